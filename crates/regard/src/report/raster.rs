//! Rasterises figures to PNG.
//!
//! Text uses the 3 x 5 dots of `font`: SVG is more readable.

use image::{ImageFormat, Rgb, RgbImage};
use plotters::style::RGBColor;
use std::io::Cursor;

use super::canvas::{Anchor, CARD, Drawing, Font, Shape};
use super::font::dots;

/// Image pixels per pixel of the card.
const SCALE: f64 = 2.0;

impl Drawing {
    /// The bytes of a PNG file.
    #[must_use]
    pub fn png(&self) -> Vec<u8> {
        let [columns, rows] = self.size.map(|side| (SCALE * side).ceil().max(1.0) as u32);
        let mut sheet = Bitmap(RgbImage::from_pixel(columns, rows, rgb(CARD)));
        let below = |shape: &&Shape| matches!(shape, Shape::Picture { .. });
        self.shapes.iter().filter(below).for_each(|shape| sheet.put(shape));
        self.shapes.iter().filter(|shape| !below(shape)).for_each(|shape| sheet.put(shape));
        png([rows as usize, columns as usize], sheet.0.as_raw())
    }
}

/// `[H, W, 3]` as the bytes of a PNG file.
///
/// # Panics
/// When the number of values does not match.
#[must_use]
pub fn png([rows, columns]: [usize; 2], pixels: &[u8]) -> Vec<u8> {
    let image = RgbImage::from_raw(columns as u32, rows as u32, pixels.to_vec()).expect("three values for each pixel");
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).expect("memory takes a picture");
    bytes.into_inner()
}

const fn rgb(RGBColor(red, green, blue): RGBColor) -> Rgb<u8> {
    Rgb([red, green, blue])
}

struct Bitmap(RgbImage);

impl Bitmap {
    fn put(&mut self, shape: &Shape) {
        match shape {
            Shape::Text { at, text, font } => self.text(*at, text, font),
            Shape::Line { from, to, colour, width } => self.stroke(*from, *to, *colour, 1.0, *width),
            Shape::Path { points, colour, opacity, width } => {
                points.windows(2).for_each(|ends| self.stroke(ends[0], ends[1], *colour, *opacity, *width));
            }
            Shape::Rectangle { from, to, colour } => self.fill([*from, *to], *colour, 1.0, |_| true),
            Shape::Dot { at, radius, colour } => {
                let corners = [at.map(|side| side - radius), at.map(|side| side + radius)];
                self.fill(corners, *colour, 1.0, |[x, y]| (x - at[0]).hypot(y - at[1]) <= *radius);
            }
            Shape::Picture { from, to, picture } => {
                let [rows, columns] = picture.size();
                let share = |[x, y]: [f64; 2]| [(y - from[1]) / (to[1] - from[1]), (x - from[0]) / (to[0] - from[0])];
                self.each([*from, *to], |place, pixel| {
                    let [down, along] = share(place);
                    let at = |share: f64, side: usize| ((share * side as f64) as usize).min(side - 1);
                    let source = 3 * (at(down, rows) * columns + at(along, columns));
                    pixel.0.copy_from_slice(&picture.pixels()[source..source + 3]);
                });
            }
        }
    }

    /// Calls `see` with every pixel whose centre is between two corners, and its position on the card.
    fn each(&mut self, [from, to]: [[f64; 2]; 2], mut see: impl FnMut([f64; 2], &mut Rgb<u8>)) {
        let limit = [self.0.width(), self.0.height()];
        let start = [0, 1].map(|axis| (SCALE * from[axis] - 0.5).ceil().max(0.0) as u32);
        let end = [0, 1].map(|axis| ((SCALE * to[axis] - 0.5).ceil().max(0.0) as u32).min(limit[axis]));
        for row in start[1]..end[1] {
            for column in start[0]..end[0] {
                let place = [column, row].map(|at| (f64::from(at) + 0.5) / SCALE);
                see(place, self.0.get_pixel_mut(column, row));
            }
        }
    }

    fn fill(&mut self, corners: [[f64; 2]; 2], colour: RGBColor, opacity: f64, inside: impl Fn([f64; 2]) -> bool) {
        let colour = rgb(colour).0;
        self.each(corners, |place, pixel| {
            if inside(place) {
                let mix = |below: u8, above: u8| f64::from(below) + opacity * (f64::from(above) - f64::from(below));
                pixel.0 = [0, 1, 2].map(|channel| mix(pixel.0[channel], colour[channel]).round() as u8);
            }
        });
    }

    fn stroke(&mut self, from: [f64; 2], to: [f64; 2], colour: RGBColor, opacity: f64, width: f64) {
        // a line thinner than a pixel would have gaps
        let reach = (width / 2.0).max(0.5 / SCALE);
        let along = [to[0] - from[0], to[1] - from[1]];
        let length = along[0].hypot(along[1]).max(1e-9);
        let near = |[x, y]: [f64; 2]| {
            let away = [x - from[0], y - from[1]];
            let share = ((away[0] * along[0] + away[1] * along[1]) / (length * length)).clamp(0.0, 1.0);
            (away[0] - share * along[0]).hypot(away[1] - share * along[1]) <= reach
        };
        let corners = [
            [from[0].min(to[0]) - reach, from[1].min(to[1]) - reach],
            [from[0].max(to[0]) + reach, from[1].max(to[1]) + reach],
        ];
        self.fill(corners, colour, opacity, near);
    }

    fn text(&mut self, at: [f64; 2], text: &str, font: &Font) {
        // letters are five dots high, and a little more than half as high as their line
        let dot = (0.65 * font.size / 5.0 * SCALE).round().max(1.0) / SCALE;
        let length = dot * (4.0 * text.chars().count() as f64 - 1.0).max(0.0);
        let start = match font.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -length / 2.0,
            Anchor::End => -length,
        };
        for (row, column) in dots(text) {
            let (along, down) = (start + f64::from(column) * dot, (f64::from(row) - 2.5) * dot);
            let corner = if font.upwards { [at[0] + down, at[1] - along - dot] } else { [at[0] + along, at[1] + down] };
            // so that all dots have the same width
            let corner = corner.map(|side| (side * SCALE).round() / SCALE);
            self.fill([corner, corner.map(|side| side + dot)], font.colour, 1.0, |_| true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::{INK, draw};
    use super::*;
    use crate::data::Picture;

    fn decoded(drawing: &Drawing) -> RgbImage {
        image::load_from_memory(&drawing.png()).unwrap().into_rgb8()
    }

    #[test]
    fn shapes_are_where_they_are_on_the_card() {
        let red = RGBColor(200, 0, 0);
        let drawing = draw([60.0, 80.0], "", |canvas| {
            canvas.rectangle([10.0, 20.0], [30.0, 40.0], red);
            canvas.dot([45.0, 60.0], 5.0, INK);
            canvas.line([0.0, 75.0], [60.0, 75.0], INK, 1.0);
        });
        let image = decoded(&drawing);
        assert_eq!(image.dimensions(), (120, 160));
        let at = |x: f64, y: f64| *image.get_pixel((2.0 * x) as u32, (2.0 * y) as u32);
        assert_eq!((at(10.5, 20.5), at(29.5, 39.5), at(30.5, 39.5)), (rgb(red), rgb(red), rgb(CARD)));
        assert_eq!((at(45.0, 60.0), at(49.5, 64.5)), (rgb(INK), rgb(CARD)));
        assert!((0..60).all(|x| at(f64::from(x), 75.0) == rgb(INK)), "a line has no gaps");
        let reds = image.pixels().filter(|pixel| **pixel == rgb(red)).count();
        assert_eq!(reds, 40 * 40);
    }

    #[test]
    fn pictures_lie_below_whatever_comes_later_or_earlier() {
        let picture = Picture::new([1, 2], vec![1, 2, 3, 40, 50, 60]).unwrap();
        let drawing = draw([40.0, 60.0], "", |canvas| {
            canvas.line([0.0, 50.0], [40.0, 50.0], INK, 2.0);
            canvas.picture([0.0, 40.0], [40.0, 60.0], &picture);
        });
        let image = decoded(&drawing);
        assert_eq!((image.get_pixel(5, 90).0, image.get_pixel(70, 90).0), ([1, 2, 3], [40, 50, 60]));
        assert_eq!(image.get_pixel(5, 100).0, rgb(INK).0);
        assert!(drawing.svg().contains("data:image/png;base64,"));
    }

    #[test]
    fn letters_are_drawn_beside_and_upwards() {
        let ink = |upwards: bool| {
            let font = Font { upwards, ..Font::new(Anchor::Middle) };
            let image = decoded(&draw([80.0, 80.0], "", |canvas| canvas.text([40.0, 40.0], "depth", font)));
            let dark = |x: u32, y: u32| *image.get_pixel(x, y) == rgb(INK);
            let columns = (0..160).filter(|x| (0..160).any(|y| dark(*x, y))).count();
            let rows = (0..160).filter(|y| (0..160).any(|x| dark(x, *y))).count();
            (columns, rows)
        };
        let ((wide, low), (narrow, high)) = (ink(false), ink(true));
        assert_eq!(((wide, low), wide > 2 * low), ((high, narrow), true));
    }
}
