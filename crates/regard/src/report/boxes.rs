//! Boxes with labels on a picture: lines and letters that can be read on whatever is below them.

use image::{Rgb, RgbImage};

use super::font;
use crate::data::{Bounds, Picture};

/// A box with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledBox {
    pub bounds: Bounds,
    pub label: String,
    /// Boxes of one number have one colour.
    pub colour: usize,
}

/// Okabe and Ito's colours without black, the brightest first: pictures are dark more often than light.
const COLOURS: [[u8; 3]; 7] = [
    [0xf0, 0xe4, 0x42],
    [0x56, 0xb4, 0xe9],
    [0xe6, 0x9f, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x72, 0xb2],
];
const DARK: Rgb<u8> = Rgb([0, 0, 0]);
const LIGHT: Rgb<u8> = Rgb([255, 255, 255]);
/// Pixels of a letter with its gap.
const LETTER: u32 = 8;

/// The picture with boxes on it, the first on top; a label is above its box, or inside where there is no room.
#[must_use]
pub fn draw_boxes(picture: &Picture, boxes: &[LabelledBox]) -> Picture {
    let [rows, columns] = picture.size();
    let mut sheet = RgbImage::from_raw(columns as u32, rows as u32, picture.pixels().to_vec()).expect("RGB pixels");
    // thicker on large pictures
    let width = (rows.max(columns) as i64 / 400).clamp(1, 4);
    for one in boxes.iter().rev() {
        let [x1, y1, x2, y2] = one.bounds.pixel_corners([rows, columns]).map(|side| side.round() as i64);
        // a dark rim keeps a light line visible on light ground
        frame(&mut sheet, [x1 - 1, y1 - 1, x2 + 1, y2 + 1], width + 2, DARK);
        frame(&mut sheet, [x1, y1, x2, y2], width, Rgb(COLOURS[one.colour % COLOURS.len()]));
    }
    for one in boxes.iter().rev() {
        label(&mut sheet, one);
    }
    Picture::new([rows, columns], sheet.into_raw()).expect("as many pixels as before")
}

/// The lines of a rectangle, inwards from its border.
fn frame(sheet: &mut RgbImage, [x1, y1, x2, y2]: [i64; 4], width: i64, ink: Rgb<u8>) {
    fill(sheet, [x1, y1, x2, y1 + width], ink);
    fill(sheet, [x1, y2 - width, x2, y2], ink);
    fill(sheet, [x1, y1, x1 + width, y2], ink);
    fill(sheet, [x2 - width, y1, x2, y2], ink);
}

fn fill(sheet: &mut RgbImage, [x1, y1, x2, y2]: [i64; 4], ink: Rgb<u8>) {
    let (columns, rows) = (i64::from(sheet.width()), i64::from(sheet.height()));
    for row in y1.clamp(0, rows)..y2.clamp(0, rows) {
        for column in x1.clamp(0, columns)..x2.clamp(0, columns) {
            sheet.put_pixel(column as u32, row as u32, ink);
        }
    }
}

fn label(sheet: &mut RgbImage, one: &LabelledBox) {
    let (columns, rows) = (i64::from(sheet.width()), i64::from(sheet.height()));
    let [x1, y1, ..] = one.bounds.pixel_corners([rows as usize, columns as usize]).map(|side| side.round() as i64);
    let (wide, high) = (i64::from(LETTER) * one.label.chars().count() as i64 + 2, i64::from(font::LINE));
    if one.label.is_empty() || high > rows {
        return;
    }
    let left = x1.min(columns - wide).max(0);
    let top = if y1 >= high { y1 - high } else { y1.clamp(0, rows - high) };
    let colour = COLOURS[one.colour % COLOURS.len()];
    fill(sheet, [left, top, left + wide, top + high], Rgb(colour));
    let [red, green, blue] = colour.map(u32::from);
    let is_light = 299 * red + 587 * green + 114 * blue > 120_000;
    let ink = if is_light { DARK } else { LIGHT };
    font::write(sheet, &one.label, [left as u32 + 2, top as u32 + 2], (left + wide).min(columns) as u32, ink);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(corners: [f64; 4], label: &str, colour: usize) -> LabelledBox {
        LabelledBox { bounds: Bounds::from_pixel_corners(corners, [60, 80]), label: label.into(), colour }
    }

    #[test]
    fn lines_are_on_the_border_and_what_is_inside_stays() {
        let picture = Picture::new([60, 80], vec![100; 3 * 60 * 80]).unwrap();
        let drawn = draw_boxes(&picture, &[one([20.0, 20.0, 60.0, 50.0], "", 1)]);
        let at = |x: usize, y: usize| &drawn.pixels()[3 * (80 * y + x)..][..3];
        for (x, y) in [(20, 20), (59, 20), (20, 49), (40, 49), (59, 35)] {
            assert_eq!(at(x, y), COLOURS[1], "{x} {y}");
        }
        for (x, y) in [(40, 35), (10, 10), (70, 55)] {
            assert_eq!(at(x, y), [100; 3], "{x} {y}");
        }
        assert_eq!(at(19, 30), [0; 3], "a dark rim");
    }

    #[test]
    fn a_label_is_in_the_picture_wherever_the_box_is() {
        let picture = Picture::new([60, 80], vec![100; 3 * 60 * 80]).unwrap();
        for corners in
            [[0.0, 0.0, 30.0, 30.0], [-20.0, -20.0, 200.0, 200.0], [70.0, 50.0, 80.0, 60.0], [20.0, 20.0, 25.0, 22.0]]
        {
            let drawn = draw_boxes(&picture, &[one(corners, "cat", 0)]);
            let count = drawn.pixels().as_chunks::<3>().0.iter().filter(|pixel| **pixel == COLOURS[0]).count();
            assert!(count > 150, "{corners:?}: {count}");
        }
        // nothing breaks where there is no room at all
        let point = Picture::new([1, 1], vec![0; 3]).unwrap();
        _ = draw_boxes(&point, &[LabelledBox { bounds: Bounds::WHOLE, label: "long name".into(), colour: 9 }]);
    }
}
