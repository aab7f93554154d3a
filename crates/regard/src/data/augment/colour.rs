//! Brightness, colour, contrast and sharpness, as PIL's `ImageEnhance`: a picture blended with a degenerate one.

use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};

use super::Photometric;
use crate::data::Picture;

/// ITU-R 601 in integers.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

pub(super) fn grayscale(picture: &mut Picture) {
    picture.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| *pixel = [luma(*pixel); 3]);
}

/// Interpolates from another level (factor 0) to this one (1) and beyond; truncated, not rounded.
fn blend(other: u8, level: u8, factor: f32) -> u8 {
    // casting a float saturates at 0 and at 255
    (f32::from(other) + factor * (f32::from(level) - f32::from(other))) as u8
}

pub(super) fn brightness(picture: &mut Picture, factor: f32) {
    picture.pixels.iter_mut().for_each(|level| *level = blend(0, *level, factor));
}

/// Contrast: away from the mean of gray, or towards it.
pub(super) fn contrast(picture: &mut Picture, factor: f32) {
    let (pixels, _) = picture.pixels.as_chunks::<3>();
    let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
    let mean = (sum as f64 / pixels.len() as f64 + 0.5) as u8;
    picture.pixels.iter_mut().for_each(|level| *level = blend(mean, *level, factor));
}

/// Saturation: away from gray, or towards it.
pub(super) fn saturation(picture: &mut Picture, factor: f32) {
    for pixel in picture.pixels.as_chunks_mut::<3>().0 {
        let gray = luma(*pixel);
        *pixel = pixel.map(|level| blend(gray, level, factor));
    }
}

/// Sharpness: away from a smoothed picture, or towards it; the border stays.
pub(super) fn sharpness(picture: &mut Picture, factor: f32) {
    // weights of f32 in PIL's order, since the sum is cut off
    const SIDE: f32 = 1.0 / 13.0;
    const CENTRE: f32 = 5.0 / 13.0;
    let (rows, width) = (picture.rows, 3 * picture.columns);
    if rows < 3 || picture.columns < 3 {
        return;
    }
    let old = picture.pixels.clone();
    for row in 1..rows - 1 {
        for at in width * row + 3..width * (row + 1) - 3 {
            let three = |at: usize, centre: f32| {
                f32::from(old[at - 3]) * SIDE + f32::from(old[at]) * centre + f32::from(old[at + 3]) * SIDE
            };
            let smooth = 0.5 + three(at + width, SIDE) + three(at, CENTRE) + three(at - width, SIDE);
            picture.pixels[at] = blend(smooth as u8, old[at], factor);
        }
    }
}

/// Brightness, contrast and saturation each times 1 - strength to 1 + strength, in random order.
pub(super) fn draw_jitter(strength: f64, random: &mut impl Rng) -> [Photometric; 3] {
    let mut changes: [fn(f32) -> Photometric; 3] =
        [Photometric::Brightness, Photometric::Contrast, Photometric::Saturation];
    changes.shuffle(random);
    changes.map(|change| change(random.random_range((1.0 - strength).max(0.0)..=1.0 + strength) as f32))
}
