//! Bytes to pixels: upright, and within bounds of memory.
//!
//! **Orientation.** The EXIF tag 0x0112 is applied as PIL's `ImageOps.exif_transpose` does, for JPEG, PNG, WebP and TIFF:
//! 1 is upright; 2 is flipped left to right; 3 is turned by 180 degrees; 4 is flipped top to bottom; 5 is transposed;
//! 6 is shown turned clockwise by 90 degrees; 7 is transposed along the other diagonal; 8 is shown turned
//! counter-clockwise by 90 degrees. Other values change nothing. Orientations in XMP or in text chunks are not read.
//!
//! **Bounds.** A file may claim any size, and its side data (colour profiles, comments) may inflate a thousandfold: sizes are
//! checked before anything is decoded, and the side data of a PNG is left out without looking at it.

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::borrow::Cow;
use std::io::Cursor;

use super::MOST_PIXELS;

/// The most bytes of a file, and of what a decoder makes of it.
pub(super) const MOST_BYTES: u64 = 1 << 29;

/// What a decoder may take for a pixel: four channels of sixteen bits, twice.
const BYTES_OF_PIXEL: u64 = 16;

/// What datasets and models read.
pub(super) const FORMATS: [ImageFormat; 5] =
    [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp];

/// What tools that change a picture read: TIFF as well.
const ALL_FORMATS: [ImageFormat; 6] =
    [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::Tiff];

/// Any picture with the channels and bits of its file, upright: JPEG, PNG, WebP, GIF, BMP or TIFF.
///
/// # Errors
/// The reason why the bytes are not a picture, or its size when that is more than [`MOST_PIXELS`].
pub fn decode_image(bytes: &[u8]) -> Result<DynamicImage, String> {
    decode(bytes, &ALL_FORMATS, MOST_PIXELS).map_err(|reason| match reason {
        Reason::Format => "not a JPEG, PNG, WebP, GIF, BMP or TIFF picture".into(),
        Reason::Other(reason) => reason,
    })
}

/// Why bytes are not a picture.
pub(super) enum Reason {
    /// They are none of the formats.
    Format,
    Other(String),
}

/// An upright picture of one of these formats with at most so many pixels; none is decoded otherwise.
pub(super) fn decode(bytes: &[u8], formats: &[ImageFormat], most: u64) -> Result<DynamicImage, Reason> {
    let (mut picture, orientation) = decode_stored(bytes, formats, most)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Rows and columns as stored, and the EXIF orientation from 1 to 8, without decoding pixels.
pub(super) fn header(bytes: &[u8]) -> Result<([usize; 2], u8), String> {
    let format = image::guess_format(bytes).ok().filter(|format| FORMATS.contains(format));
    let format = format.ok_or("not a JPEG, PNG, WebP, GIF or BMP picture")?;
    let bytes = if format == ImageFormat::Png { png_without_side_data(bytes) } else { bytes.into() };
    let mut reader = ImageReader::with_format(Cursor::new(&*bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| error.to_string())?;
    let (columns, rows) = decoder.dimensions();
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok(([rows as usize, columns as usize], orientation.to_exif()))
}

/// A picture as it is stored, and how it is turned to be upright.
pub(super) fn decode_stored(
    bytes: &[u8],
    formats: &[ImageFormat],
    most: u64,
) -> Result<(DynamicImage, Orientation), Reason> {
    let wrong = |error: image::ImageError| Reason::Other(error.to_string());
    let format = image::guess_format(bytes).ok().filter(|format| formats.contains(format)).ok_or(Reason::Format)?;
    let whole = match format {
        ImageFormat::Jpeg => jpeg_ends(bytes),
        ImageFormat::WebP => webp_ends(bytes),
        // their decoders notice by themselves
        _ => true,
    };
    if !whole {
        return Err(Reason::Other("the data ends before the picture does".into()));
    }
    let bytes = if format == ImageFormat::Png { png_without_side_data(bytes) } else { bytes.into() };
    let mut reader = ImageReader::with_format(Cursor::new(&*bytes), format);
    let mut limits = Limits::default();
    // parts of a file claim sizes of their own: none needs more than the pixels, the file and some tables
    limits.max_alloc = Some((BYTES_OF_PIXEL * most + bytes.len() as u64 + (1 << 20)).min(MOST_BYTES));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(wrong)?;
    let (columns, rows) = decoder.dimensions();
    if columns == 0 || rows == 0 {
        return Err(Reason::Other(format!("{columns} x {rows} pixels")));
    }
    if u64::from(columns) * u64::from(rows) > most || decoder.total_bytes() > MOST_BYTES {
        return Err(Reason::Other(format!("{columns} x {rows} pixels are more than {most}")));
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok((DynamicImage::from_decoder(decoder).map_err(wrong)?, orientation))
}

const PNG_SIGNATURE: usize = 8;

/// A PNG without colour profile and texts, which a decoder would inflate, and with its EXIF block before its pixels, where
/// a decoder looks for it. What is broken stays for the decoder to find.
pub(super) fn png_without_side_data(bytes: &[u8]) -> Cow<'_, [u8]> {
    /// A type, and the bytes of the whole chunk.
    type Chunk<'a> = (&'a [u8], &'a [u8]);
    let (mut chunks, mut at): (Vec<Chunk<'_>>, usize) = (Vec::new(), PNG_SIGNATURE);
    while let Some(header) = bytes.get(at..at + 8) {
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        // length, type, content and checksum
        let Some(chunk) = bytes.get(at..at + 12 + length) else { break };
        chunks.push((&chunk[4..8], chunk));
        at += chunk.len();
    }
    let is_side_data = |kind: &[u8]| matches!(kind, b"iCCP" | b"zTXt" | b"iTXt" | b"tEXt");
    let pixels = chunks.iter().position(|(kind, _)| *kind == b"IDAT").unwrap_or(chunks.len());
    let is_late = |index: usize, kind: &[u8]| index > pixels && kind == b"eXIf";
    let needs_change = |(index, (kind, _)): (usize, &Chunk<'_>)| is_side_data(kind) || is_late(index, kind);
    if !chunks.iter().enumerate().any(needs_change) {
        return bytes.into();
    }
    let mut kept = bytes[..PNG_SIGNATURE].to_vec();
    for (index, (kind, chunk)) in chunks.iter().enumerate() {
        if index == pixels {
            let late = chunks.iter().enumerate().filter(|(index, (kind, _))| is_late(*index, kind));
            late.take(1).for_each(|(_, (_, chunk))| kept.extend_from_slice(chunk));
        }
        if !is_side_data(kind) && !is_late(index, kind) {
            kept.extend_from_slice(chunk);
        }
    }
    // a chunk that is cut off
    kept.extend_from_slice(&bytes[at..]);
    kept.into()
}

/// Whether the segments and scans of a JPEG file go on to the marker of its end.
///
/// Decoders fill what is missing with gray; a picture that is half gray would be a wrong answer.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0xff)) {
        at += offset + 1;
        let Some(marker) = bytes.get(at) else { return false };
        match marker {
            0xd9 => return true,
            // a stuffed byte of a scan, a restart, a filling byte: no segment
            0x00 | 0x01 | 0xd0..=0xd8 => at += 1,
            0xff => {}
            _ => {
                let Some(length) = bytes.get(at + 1..at + 3) else { return false };
                at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            }
        }
    }
    false
}

/// Whether a WebP file and its chunks are as long as they say: what is cut off may be only how the picture is turned, and
/// a decoder takes as much memory for a chunk as that claims.
pub(super) fn webp_ends(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(|number| u32::from_le_bytes(number) as usize);
    let Some(end) = number(4).map(|length| 8 + length).filter(|end| *end <= bytes.len()) else { return false };
    let mut at = 12;
    while at < end {
        let Some(size) = number(at + 4) else { return false };
        at += 8 + size;
        if at > bytes.len() {
            return false;
        }
        // chunks begin at even places
        at += size % 2;
    }
    true
}

#[cfg(test)]
mod tests;
