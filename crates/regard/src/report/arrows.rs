//! Frames side by side, and arrows from one point to others: how the figures of the non-local networks show attention.
//! Wang et al. 2018, arXiv:1711.07971, figures 1 and 3.

use plotters::style::RGBColor;

use super::canvas::{Anchor, Canvas, Drawing, FADED, Font, MARGIN, draw, nothing, shorten};
use super::figure::Figure;
use crate::data::Picture;

const GAP: f64 = 10.0;
/// Height of a name, and of its letters.
const NAME: f64 = 16.0;
const LETTERS: f64 = 11.0;
const QUERY: RGBColor = RGBColor(90, 220, 255);
const ARROW: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
/// Longest side of an arrow's head in pixels.
const HEAD: f64 = 7.0;

/// A row of frames with arrows.
#[derive(Clone, Debug, Default)]
pub struct ArrowStrip {
    pub title: String,
    /// Side of a frame in pixels.
    pub side: f64,
    /// Each frame under its name.
    pub frames: Vec<(String, Picture)>,
    /// Where all arrows start.
    pub from: FramePoint,
    pub to: Vec<Arrow>,
}

/// A point in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FramePoint {
    pub frame: usize,
    /// Fractions of height and width.
    pub at: [f64; 2],
}

/// An arrow to a point; the heaviest is drawn strongest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrow {
    pub to: FramePoint,
    pub weight: f32,
}

impl Figure for ArrowStrip {
    fn drawing(&self) -> Drawing {
        if self.frames.is_empty() {
            return nothing([480.0, 160.0], &self.title);
        }
        let top = MARGIN + 28.0;
        let width = 2.0 * MARGIN + self.frames.len() as f64 * (self.side + GAP) - GAP;
        draw([width.max(240.0), top + NAME + self.side + MARGIN], &self.title, |canvas| {
            for (index, (name, picture)) in self.frames.iter().enumerate() {
                let [left, _] = self.corner(index);
                let font = Font::new(Anchor::Start).size(LETTERS).colour(FADED);
                canvas.text([left, top + NAME / 2.0 - 1.0], &shorten(name, LETTERS, self.side), font);
                let [wide, high] = self.shown(picture);
                let from = [left, top + NAME];
                canvas.picture(from, [from[0] + wide, from[1] + high], picture);
            }
            let Some(start) = self.position(self.from) else { return };
            let most = self.to.iter().map(|arrow| arrow.weight).fold(0.0, f32::max);
            // the heaviest comes last, on top of the others
            for arrow in self.to.iter().rev() {
                let Some(end) = self.position(arrow.to) else { continue };
                arrow_between(canvas, start, end, f64::from(arrow.weight / most.max(f32::MIN_POSITIVE)));
            }
            canvas.dot(start, 4.0, QUERY);
        })
    }
}

impl ArrowStrip {
    fn corner(&self, frame: usize) -> [f64; 2] {
        [MARGIN + frame as f64 * (self.side + GAP), MARGIN + 28.0 + NAME]
    }

    /// Columns and rows of pixels that a picture takes.
    fn shown(&self, picture: &Picture) -> [f64; 2] {
        let [rows, columns] = picture.size();
        let scale = self.side / rows.max(columns) as f64;
        [columns as f64 * scale, rows as f64 * scale]
    }

    fn position(&self, point: FramePoint) -> Option<[f64; 2]> {
        let (_, picture) = self.frames.get(point.frame)?;
        let ([left, top], [wide, high]) = (self.corner(point.frame), self.shown(picture));
        Some([left + point.at[1] * wide, top + point.at[0] * high])
    }
}

/// A line with a head; `strength` from 0 to 1.
fn arrow_between(canvas: &mut Canvas, from: [f64; 2], to: [f64; 2], strength: f64) {
    let [along, down] = [to[0] - from[0], to[1] - from[1]];
    let length = along.hypot(down);
    let (opacity, width) = (0.35 + 0.65 * strength, 1.0 + 1.5 * strength);
    // a point that looks at itself has no direction
    if length < 1.0 {
        canvas.dot(to, 2.0 + 2.0 * strength, ARROW);
        return;
    }
    canvas.path(&[from, to], ARROW, opacity, width);
    let head = HEAD.min(length / 2.0);
    let side = |sign: f64| {
        let (x, y) = (along / length, down / length);
        [to[0] - head * (x - sign * 0.5 * y), to[1] - head * (y + sign * 0.5 * x)]
    };
    canvas.path(&[side(1.0), to, side(-1.0)], ARROW, opacity, width);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip() -> ArrowStrip {
        let picture = Picture::new([2, 2], vec![7; 12]).unwrap();
        let point = |frame, at| FramePoint { frame, at };
        ArrowStrip {
            title: "strip".into(),
            side: 60.0,
            frames: vec![("one".into(), picture.clone()), ("two".into(), picture)],
            from: point(0, [0.5, 0.5]),
            to: vec![
                Arrow { to: point(1, [0.25, 0.75]), weight: 0.5 },
                Arrow { to: point(0, [0.5, 0.5]), weight: 0.2 },
                Arrow { to: point(1, [0.75, 0.25]), weight: 0.1 },
            ],
        }
    }

    #[test]
    fn every_arrow_has_a_line_and_a_head_and_one_to_itself_is_a_dot() {
        let svg = strip().svg();
        assert_eq!(svg.matches("<image").count(), 2);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 2));
        assert!(svg.contains("one") && svg.contains("two"));
        assert!(image::load_from_memory(&strip().png()).is_ok());
    }

    #[test]
    fn arrows_to_frames_that_are_not_there_are_left_out() {
        let mut strip = strip();
        strip.to[0].to.frame = 9;
        assert_eq!(strip.svg().matches("<polyline").count(), 2);
        assert!(ArrowStrip::default().svg().contains("no data"));
    }
}
