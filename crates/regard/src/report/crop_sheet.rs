//! Crops of pictures with boxes on them, each under what is said of it: the mistakes of a detector.

use plotters::style::RGBColor;

use super::canvas::{Anchor, Canvas, Drawing, FADED, Font, INK, MARGIN, draw, nothing, shorten};
use super::figure::Figure;
use crate::data::{Filter, Picture};

const GAP: f64 = 14.0;
/// Height of a line of text, and of its letters.
const LINE: f64 = 15.0;
const LETTERS: f64 = 11.0;
/// Where the first row begins, below title and legend.
const TOP: f64 = MARGIN + 52.0;
/// A box has at least this much around it, as fractions of its longer side.
const CONTEXT: f64 = 0.4;
/// The shortest side of a crop in pixels of the picture: a tiny object shows nothing by itself.
const LEAST: f64 = 32.0;
const RIM: RGBColor = RGBColor(0, 0, 0);

/// Where a box comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxOrigin {
    /// A person drew it.
    Annotation,
    Detector,
}

impl BoxOrigin {
    /// Colours of Okabe and Ito that differ in brightness, too.
    const fn colour(self) -> RGBColor {
        match self {
            Self::Annotation => RGBColor(0x56, 0xb4, 0xe9),
            Self::Detector => RGBColor(0xf0, 0xe4, 0x42),
        }
    }
}

/// A sheet of crops.
#[derive(Clone, Debug, Default)]
pub struct CropSheet {
    pub title: String,
    /// Crops per row.
    pub columns: usize,
    /// Side of a crop on the sheet, in pixels.
    pub side: f64,
    pub crops: Vec<LabelledCrop>,
}

/// A part of a picture with boxes.
#[derive(Clone, Debug)]
pub struct LabelledCrop {
    /// Above the picture, the most important first.
    pub lines: Vec<String>,
    picture: Picture,
    /// Left, top, right and bottom as fractions of the crop.
    boxes: Vec<(BoxOrigin, [f64; 4])>,
}

impl LabelledCrop {
    /// The part of a picture around boxes, which are left, top, width and height in pixels; at most `side` pixels wide.
    #[must_use]
    pub fn around(picture: &Picture, boxes: &[(BoxOrigin, [f64; 4])], side: usize, lines: Vec<String>) -> Self {
        let [rows, columns] = picture.size();
        let corners = boxes.iter().map(|(_, [x, y, w, h])| [*x, *y, x + w, y + h]);
        let all = corners.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])]);
        let [x1, y1, x2, y2] = all.unwrap_or([0.0, 0.0, columns as f64, rows as f64]);
        let wanted = ((1.0 + 2.0 * CONTEXT) * (x2 - x1).max(y2 - y1)).max(LEAST);
        let (left, wide) = span(f64::midpoint(x1, x2), wanted, columns);
        let (top, high) = span(f64::midpoint(y1, y2), wanted, rows);
        let crop = picture.crop([top, left], [high, wide]);
        let scale = side as f64 / wide.max(high) as f64;
        let crop = if scale < 1.0 {
            crop.resize([high, wide].map(|side| ((side as f64 * scale).round() as usize).max(1)), Filter::Bilinear)
        } else {
            crop
        };
        let share = |at: f64, from: usize, length: usize| ((at - from as f64) / length as f64).clamp(0.0, 1.0);
        let boxes = boxes.iter().map(|(origin, [x, y, w, h])| {
            let across = [*x, x + w].map(|at| share(at, left, wide));
            let down = [*y, y + h].map(|at| share(at, top, high));
            (*origin, [across[0], down[0], across[1], down[1]])
        });
        Self { lines, picture: crop, boxes: boxes.collect() }
    }
}

/// First pixel and length of a stretch around a middle, inside a side.
fn span(middle: f64, length: f64, side: usize) -> (usize, usize) {
    let length = (length.ceil().max(1.0) as usize).min(side);
    let first = (middle - length as f64 / 2.0).round().clamp(0.0, (side - length) as f64);
    (first as usize, length)
}

impl Figure for CropSheet {
    fn drawing(&self) -> Drawing {
        if self.crops.is_empty() || self.columns == 0 {
            return nothing([480.0, 160.0], &self.title);
        }
        let columns = self.columns.min(self.crops.len());
        let rows = self.crops.len().div_ceil(columns);
        let text = LINE * self.crops.iter().map(|crop| crop.lines.len()).max().unwrap_or(0) as f64;
        let (wide, high) = (self.side + GAP, self.side + text + GAP);
        let size = [2.0 * MARGIN + columns as f64 * wide - GAP, TOP + rows as f64 * high - GAP + MARGIN];
        draw([size[0].max(420.0), size[1]], &self.title, |canvas| {
            legend(canvas);
            for (index, crop) in self.crops.iter().enumerate() {
                let left = MARGIN + (index % columns) as f64 * wide;
                let top = TOP + (index / columns) as f64 * high;
                for (line, words) in crop.lines.iter().enumerate() {
                    let font = Font::new(Anchor::Start).size(LETTERS);
                    let font = if line == 0 { font.colour(INK).bold() } else { font.colour(FADED) };
                    let at = [left, top + LINE * (line as f64 + 0.5) - 2.0];
                    canvas.text(at, &shorten(words, LETTERS, self.side), font);
                }
                self.picture(crop, [left, top + text], canvas);
            }
        })
    }
}

impl CropSheet {
    fn picture(&self, crop: &LabelledCrop, from: [f64; 2], canvas: &mut Canvas) {
        let [rows, columns] = crop.picture.size();
        let scale = self.side / rows.max(columns) as f64;
        let shape = [columns as f64 * scale, rows as f64 * scale];
        canvas.picture(from, [from[0] + shape[0], from[1] + shape[1]], &crop.picture);
        // dashes are above lines, so that both are seen where they coincide
        for drawn in [BoxOrigin::Detector, BoxOrigin::Annotation] {
            for (origin, [left, top, right, bottom]) in crop.boxes.iter().filter(|(origin, _)| *origin == drawn) {
                let at = |x: f64, y: f64| [from[0] + x * shape[0], from[1] + y * shape[1]];
                let corners = [at(*left, *top), at(*right, *top), at(*right, *bottom), at(*left, *bottom)];
                outline(canvas, &[corners[0], corners[1], corners[2], corners[3], corners[0]], *origin);
            }
        }
    }
}

/// A line in the colour of its origin, with a dark rim that keeps it visible on light ground; dashed for annotations.
fn outline(canvas: &mut Canvas, points: &[[f64; 2]], origin: BoxOrigin) {
    match origin {
        BoxOrigin::Detector => stroke(canvas, points, origin),
        BoxOrigin::Annotation => {
            points
                .windows(2)
                .for_each(|ends| dashes(ends[0], ends[1]).iter().for_each(|dash| stroke(canvas, dash, origin)));
        }
    }
}

fn stroke(canvas: &mut Canvas, points: &[[f64; 2]], origin: BoxOrigin) {
    canvas.path(points, RIM, 0.75, 4.0);
    canvas.path(points, origin.colour(), 1.0, 2.0);
}

/// A line in pieces with gaps; it begins and ends with half a piece, so that corners are drawn.
fn dashes(from: [f64; 2], to: [f64; 2]) -> Vec<[[f64; 2]; 2]> {
    const PERIOD: f64 = 12.0;
    let length = (to[0] - from[0]).hypot(to[1] - from[1]);
    let count = (length / PERIOD).round().max(1.0);
    let at = |share: f64| [0, 1].map(|axis| from[axis] + share.clamp(0.0, 1.0) * (to[axis] - from[axis]));
    let quarter = 0.25 / count;
    (0..=count as usize)
        .map(|dash| dash as f64 / count)
        .map(|middle| [at(middle - quarter), at(middle + quarter)])
        .collect()
}

fn legend(canvas: &mut Canvas) {
    let y = MARGIN + 32.0;
    for (origin, name, left) in
        [(BoxOrigin::Detector, "detected", MARGIN), (BoxOrigin::Annotation, "annotated", MARGIN + 110.0)]
    {
        // colours for pictures are pale on paper
        canvas.rectangle([left, y - 6.0], [left + 36.0, y + 6.0], FADED);
        outline(canvas, &[[left + 5.0, y], [left + 31.0, y]], origin);
        canvas.text([left + 43.0, y], name, Font::new(Anchor::Start).size(LETTERS).colour(FADED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(rows: usize, columns: usize) -> Picture {
        Picture::new([rows, columns], (0..3 * rows * columns).map(|level| (level % 251) as u8).collect()).unwrap()
    }

    #[test]
    fn a_crop_holds_its_boxes_with_room_around_them() {
        let boxes = [(BoxOrigin::Detector, [100.0, 50.0, 40.0, 20.0])];
        let crop = LabelledCrop::around(&picture(200, 300), &boxes, 200, vec!["cat".into()]);
        assert_eq!(crop.picture.size(), [72, 72]);
        let (_, [left, top, right, bottom]) = crop.boxes[0];
        assert!(left > 0.2 && top > 0.2 && right < 0.8 && bottom < 0.8, "{:?}", crop.boxes);
        assert!((72.0 * (right - left) - 40.0).abs() < 1e-9 && (72.0 * (bottom - top) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn whatever_the_box_is_the_crop_is_inside_of_the_picture() {
        for bounds in [
            [-50.0, -50.0, 20.0, 20.0],
            [290.0, 190.0, 500.0, 500.0],
            [0.0, 0.0, 300.0, 200.0],
            [10.0, 10.0, 0.0, 0.0],
            [f64::NAN, 0.0, 1.0, 1.0],
        ] {
            for size in [[200, 300], [1, 1], [3, 900]] {
                let crop = LabelledCrop::around(
                    &picture(size[0], size[1]),
                    &[(BoxOrigin::Annotation, bounds)],
                    64,
                    Vec::new(),
                );
                assert!(crop.picture.size().iter().all(|side| (1..=64).contains(side)), "{bounds:?} {size:?}");
            }
        }
        let whole = LabelledCrop::around(&picture(20, 30), &[], 64, Vec::new());
        assert_eq!(whole.picture.size(), [20, 30]);
    }

    #[test]
    fn annotations_are_dashed_and_detections_are_not() {
        let boxes = |origin| [(origin, [10.0, 10.0, 30.0, 30.0])];
        let crop =
            |origin| LabelledCrop::around(&picture(60, 60), &boxes(origin), 60, vec!["one".into(), "two".into()]);
        let sheet = |origin| CropSheet { title: "sheet".into(), columns: 4, side: 120.0, crops: vec![crop(origin)] };
        let lines = |origin| sheet(origin).svg().matches("<polyline").count();
        assert!(lines(BoxOrigin::Annotation) > 2 * lines(BoxOrigin::Detector));
        let svg = sheet(BoxOrigin::Detector).svg();
        assert!(["one", "two", "detected", "annotated"].iter().all(|words| svg.contains(words)));
        assert!(image::load_from_memory(&sheet(BoxOrigin::Annotation).png()).is_ok());
        assert!(CropSheet::default().svg().contains("no data"));
    }
}
