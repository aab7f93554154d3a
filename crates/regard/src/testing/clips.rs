//! Small files of clips and pictures for tests.

use image::codecs::gif::{GifEncoder, Repeat};
use image::{Delay, Frame, RgbaImage};
use std::fs::{self, File};
use std::path::Path;

use crate::data::Picture;
use crate::data::clip::encode_apng;

/// A clip of noise, ten frames in a second, in the format that the ending says: GIF, or APNG for all others. GIF has at most 256 colours of a frame.
pub fn write_clip(path: &Path, frames: usize, size: [usize; 2], seed: u64) {
    let frames: Vec<Picture> =
        (0..frames as u64).map(|frame| super::noise_picture(size, 1000 * seed + frame)).collect();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if path.extension().is_none_or(|ending| ending != "gif") {
        fs::write(path, encode_apng(&frames, 10.0).unwrap()).unwrap();
        return;
    }
    let mut encoder = GifEncoder::new(File::create(path).unwrap());
    encoder.set_repeat(Repeat::Infinite).unwrap();
    for frame in frames {
        let pixels = frame.pixels().as_chunks::<3>().0.iter().flat_map(|&[r, g, b]| [r, g, b, 255]).collect();
        let [rows, columns] = frame.size().map(|side| side as u32);
        let buffer = RgbaImage::from_raw(columns, rows, pixels).unwrap();
        encoder.encode_frame(Frame::from_parts(buffer, 0, 0, Delay::from_numer_denom_ms(100, 1))).unwrap();
    }
}

/// A picture of noise as PNG.
pub fn write_picture(path: &Path, size: [usize; 2], seed: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let picture = super::noise_picture(size, seed);
    let [rows, columns] = size.map(|side| side as u32);
    image::RgbImage::from_raw(columns, rows, picture.pixels().to_vec()).unwrap().save(path).unwrap();
}
