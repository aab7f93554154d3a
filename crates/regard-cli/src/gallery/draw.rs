//! Draws pictures and heat maps.

use image::{Rgb, RgbImage, imageops};
use regard::report::font;
use regard::report::overlay::glow;

use super::scene::Picture;

/// Side of a drawn panel; pictures and maps are enlarged to it without smoothing.
const PANEL: u32 = 384;
const GAP: u32 = 8;
const PAPER: Rgb<u8> = Rgb([250, 250, 248]);
const INK: Rgb<u8> = Rgb([30, 30, 30]);

/// The attention of a query at each position.
#[derive(Clone, Debug)]
pub struct AttentionMap {
    pub rows: usize,
    pub columns: usize,
    /// NaN for gaps.
    pub values: Vec<f32>,
    /// Row and column of the query, when there is one.
    pub query: Option<(usize, usize)>,
}

/// Panels side by side.
pub fn row_of(panels: &[RgbImage]) -> RgbImage {
    let count = panels.len() as u32;
    let mut sheet = RgbImage::from_pixel(count * (PANEL + GAP) + GAP, PANEL + 2 * GAP, PAPER);
    for (index, panel) in panels.iter().enumerate() {
        let left = GAP + index as u32 * (PANEL + GAP);
        imageops::replace(&mut sheet, panel, i64::from(left), i64::from(GAP));
    }
    sheet
}

/// All panels at half size, each under its label.
pub fn contact_sheet(panels: &[(String, RgbImage)]) -> RgbImage {
    const COLUMNS: u32 = 6;
    let side = PANEL / 2;
    let (width, height) = (side + GAP, side + 3 * GAP);
    let rows = (panels.len() as u32).div_ceil(COLUMNS);
    let mut sheet = RgbImage::from_pixel(COLUMNS * width + GAP, rows * height + GAP, PAPER);
    for (index, (label, panel)) in panels.iter().enumerate() {
        let (left, top) = (GAP + index as u32 % COLUMNS * width, GAP + index as u32 / COLUMNS * height);
        font::write(&mut sheet, label, [left, top], left + side, INK);
        let small = imageops::resize(panel, side, side, imageops::FilterType::Nearest);
        imageops::replace(&mut sheet, &small, i64::from(left), i64::from(top + 2 * GAP));
    }
    sheet
}

pub fn picture(picture: &Picture) -> RgbImage {
    panel(picture.rows, picture.columns, |row, column| {
        picture.pixel(row, column).map(|value| (value.clamp(0.0, 1.0) * 255.0).round() as u8)
    })
}

/// A heat map from dark (the least of this map) to bright (the most), the query framed.
pub fn heat(heat: &AttentionMap) -> RgbImage {
    let least = heat.values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = heat.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = (most - least).max(f32::MIN_POSITIVE);
    let mut image = panel(heat.rows, heat.columns, |row, column| {
        let value = heat.values[row * heat.columns + column];
        // the square root makes small values visible next to the peak
        if value.is_nan() { PAPER.0 } else { glow(((value - least) / range).sqrt()) }
    });
    if let Some((row, column)) = heat.query {
        frame(&mut image, heat, row as u32, column as u32);
    }
    image
}

fn panel(rows: usize, columns: usize, colour: impl Fn(usize, usize) -> [u8; 3]) -> RgbImage {
    RgbImage::from_fn(PANEL, PANEL, |x, y| {
        Rgb(colour(y as usize * rows / PANEL as usize, x as usize * columns / PANEL as usize))
    })
}

fn frame(image: &mut RgbImage, heat: &AttentionMap, row: u32, column: u32) {
    let (high, wide) = (PANEL / heat.rows as u32, PANEL / heat.columns as u32);
    let (top, left) = (row * high, column * wide);
    for y in top..top + high {
        for x in left..left + wide {
            let inside = (top + 2..top + high - 2).contains(&y) && (left + 2..left + wide - 2).contains(&x);
            if !inside {
                image.put_pixel(x, y, Rgb([90, 220, 255]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_without_differences_is_dark_and_what_is_not_shown_is_paper() {
        let mut even = AttentionMap { rows: 2, columns: 2, values: vec![0.5; 4], query: None };
        assert!(heat(&even).pixels().all(|pixel| pixel.0 == glow(0.0)));
        even.values = vec![f32::NAN; 4];
        assert!(heat(&even).pixels().all(|pixel| *pixel == PAPER));
    }
}
