//! A writer of APNG: animations without loss that browsers show. PNG specification, third edition, 11.3.

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write as _;

use crate::Error;
use crate::data::Picture;

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];

/// Frames of one size as an animation that repeats, so many of them in a second.
///
/// # Errors
/// When there is no frame, their sizes differ, or the rate is not one of 1/65 to 1000.
pub fn encode_apng(frames: &[Picture], rate: f64) -> Result<Vec<u8>, Error> {
    let milliseconds = (1000.0 / rate).round();
    if !(1.0..=65535.0).contains(&milliseconds) {
        return Err(Error::config("rate", format!("must be from 1/65 to 1000 frames in a second, got {rate}")));
    }
    let Some(first) = frames.first() else { return Err(Error::config("frames", "there is none")) };
    let [rows, columns] = first.size();
    if let Some(other) = frames.iter().find(|frame| frame.size() != first.size()) {
        let reason = format!("{} x {} and {columns} x {rows} pixels", other.size()[1], other.size()[0]);
        return Err(Error::config("frames", reason));
    }
    let mut file = SIGNATURE.to_vec();
    let sides = [columns as u32, rows as u32].map(u32::to_be_bytes).concat();
    // eight bits of red, green and blue
    chunk(&mut file, *b"IHDR", &[&sides[..], &[8, 2, 0, 0, 0]].concat());
    chunk(&mut file, *b"acTL", &[(frames.len() as u32).to_be_bytes(), [0; 4]].concat());
    let mut sequence = 0u32;
    for (index, frame) in frames.iter().enumerate() {
        // size, no offset, a delay in milliseconds, and the whole frame in the place of the one before
        let delay = [(milliseconds as u16).to_be_bytes(), 1000u16.to_be_bytes()].concat();
        chunk(&mut file, *b"fcTL", &[&sequence.to_be_bytes()[..], &sides, &[0; 8], &delay, &[0, 0]].concat());
        sequence += 1;
        let pixels = compressed(frame);
        if index == 0 {
            chunk(&mut file, *b"IDAT", &pixels);
        } else {
            chunk(&mut file, *b"fdAT", &[&sequence.to_be_bytes()[..], &pixels].concat());
            sequence += 1;
        }
    }
    chunk(&mut file, *b"IEND", &[]);
    Ok(file)
}

/// Rows as differences to the pixel on the left, compressed.
fn compressed(frame: &Picture) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in frame.pixels().chunks_exact(3 * frame.size()[1]) {
        let left = std::iter::repeat_n(&0, 3).chain(row);
        let line: Vec<u8> =
            std::iter::once(1).chain(row.iter().zip(left).map(|(own, left)| own.wrapping_sub(*left))).collect();
        // writing into memory does not fail
        let _ = encoder.write_all(&line);
    }
    encoder.finish().unwrap_or_default()
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], content: &[u8]) {
    file.extend((content.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend_from_slice(content);
    let mut checksum = flate2::Crc::new();
    checksum.update(&file[start..]);
    file.extend(checksum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::clip::Video;
    use crate::testing::noise_picture;

    #[test]
    fn what_is_written_is_read_again_without_loss() {
        let frames: Vec<Picture> = (0..5).map(|seed| noise_picture([7, 11], seed)).collect();
        let video = Video::from_bytes("noise.apng", encode_apng(&frames, 12.5).unwrap()).unwrap();
        assert_eq!((video.length().frames, video.length().rate), (5, 12.5));
        assert_eq!(video.frames(&[0, 1, 2, 3, 4]).unwrap(), frames);
        let mut count = 0;
        video
            .for_each_frame(&mut |frame| {
                assert_eq!(frame, frames[count]);
                count += 1;
            })
            .unwrap();
        assert_eq!(count, 5);
    }

    #[test]
    fn what_is_no_animation_is_refused() {
        let frame = noise_picture([2, 2], 0);
        assert!(encode_apng(&[], 10.0).is_err());
        assert!(encode_apng(&[frame.clone(), noise_picture([2, 3], 0)], 10.0).is_err());
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-3] {
            assert!(encode_apng(std::slice::from_ref(&frame), rate).is_err(), "{rate}");
        }
    }
}
