//! Boxes in boxes: a length, a kind of four letters, and the content.

use crate::data::clip::reader::input::Numbers as _;

/// The boxes in a box, until one makes no sense.
pub fn children(mut bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let kind = *bytes.get(4..)?.first_chunk()?;
        let (head, length) = match bytes.be32(0)? {
            0 => (8, bytes.len()),
            1 => (16, usize::try_from(bytes.be64(8)?).ok()?),
            length => (8, length as usize),
        };
        let content = bytes.get(head..length)?;
        bytes = &bytes[length..];
        Some((kind, content))
    })
}

/// The first box of a kind in a box.
pub fn find(bytes: &[u8], kind: [u8; 4]) -> Option<&[u8]> {
    children(bytes).find(|(other, _)| *other == kind).map(|(_, content)| content)
}

/// The first box on a way of kinds.
pub fn descend<'a>(bytes: &'a [u8], way: &[[u8; 4]]) -> Option<&'a [u8]> {
    way.iter().try_fold(bytes, |bytes, kind| find(bytes, *kind))
}

/// Units in a second of `mvhd` or `mdhd`, in either version.
pub fn timescale(header: &[u8]) -> Option<u32> {
    header.be32(if header.u8_at(0)? == 1 { 20 } else { 12 })
}

/// The flags of a box with a version.
pub fn flags(content: &[u8]) -> Option<u32> {
    content.be32(0).map(|word| word & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_walked_and_what_makes_no_sense_ends_the_walk() {
        let bytes = b"\0\0\0\x0amoovab\0\0\0\x01wide\0\0\0\0\0\0\0\x11x\0\0\0\0restyz";
        let found: Vec<_> = children(bytes).collect();
        assert_eq!(found, [(*b"moov", &b"ab"[..]), (*b"wide", b"x"), (*b"rest", b"yz")]);
        assert_eq!(find(bytes, *b"wide"), Some(&b"x"[..]));
        for broken in
            [&b"\0\0\0\x07moov"[..], b"\0\0\0\x20moov", b"\0\0\0\x01moov\xff\xff\xff\xff\xff\xff\xff\xff", b"mo"]
        {
            assert_eq!(children(broken).count(), 0);
        }
    }
}
