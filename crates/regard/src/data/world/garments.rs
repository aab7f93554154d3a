//! Garments of Fashion-MNIST, and how they are painted onto a canvas in colour.

use super::draw::Draw;
use crate::data::dataset::garment;
use crate::data::{Part, Picture};

/// Names and classes of Fashion-MNIST. Coat and shirt are left out: too like pullover and tee to be asked for by name.
pub const KINDS: [(&str, usize); 8] =
    [("tee", 0), ("trouser", 1), ("pullover", 2), ("dress", 3), ("sandal", 5), ("sneaker", 7), ("bag", 8), ("boot", 9)];

pub const COLOURS: [(&str, [u8; 3]); 6] = [
    ("red", [225, 50, 45]),
    ("green", [50, 175, 70]),
    ("blue", [60, 95, 230]),
    ("yellow", [235, 205, 50]),
    ("purple", [165, 70, 200]),
    ("white", [235, 235, 235]),
];

#[must_use]
pub fn colour_names() -> [&'static str; 6] {
    COLOURS.map(|(name, _)| name)
}

/// Pixels of a side of a garment's picture.
const SIDE: usize = 28;
/// A pixel of a higher level belongs to the garment.
const EMPTY: u8 = 8;

/// One picture of a garment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garment {
    /// Index in [`KINDS`].
    pub kind: usize,
    /// Whether it is one of the test pictures of Fashion-MNIST, and its number among those of its class.
    pub test: bool,
    pub index: usize,
}

impl Garment {
    /// One of a part's own: 1,000 of each kind for training, 200 for validation and 200 for the test.
    ///
    /// # Panics
    /// When there is no such kind, or the part is not one of the three.
    pub(super) fn draw(part: Part, kind: usize, draw: &mut Draw) -> Self {
        let (test, first, count) = match part {
            Part::Train => (false, 0, 1000),
            Part::Validation => (false, 1000, 200),
            Part::Test => (true, 0, 200),
            other => panic!("garments are of one part, not of {other}"),
        };
        Self { kind, test, index: first + draw.below(count) }
    }

    /// `[28, 28]`
    fn levels(&self) -> &'static [u8] {
        garment(self.test, KINDS[self.kind].1, self.index)
    }

    /// Left, top, right and bottom of what can be seen of it, in pixels of the canvas, when it is not turned.
    #[must_use]
    pub fn extent(&self, place: &GarmentPlacement) -> [f64; 4] {
        let levels = self.levels();
        let is_seen = |row: usize, column: usize| levels[SIDE * row + column] > EMPTY;
        let rows: Vec<usize> = (0..SIDE).filter(|row| (0..SIDE).any(|column| is_seen(*row, column))).collect();
        let columns: Vec<usize> = (0..SIDE).filter(|column| (0..SIDE).any(|row| is_seen(row, *column))).collect();
        let ends =
            |places: &[usize]| [places.first().copied().unwrap_or(0), places.last().map_or(SIDE, |last| last + 1)];
        let ([left, right], [top, bottom]) = (ends(&columns), ends(&rows));
        let scaled = |at: usize, centre: f64| centre + (at as f64 - 14.0) * (place.side / 28.0);
        let [x, y] = place.centre;
        [scaled(left, x), scaled(top, y), scaled(right, x), scaled(bottom, y)]
    }
}

/// Where a garment is painted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GarmentPlacement {
    /// `[x, y]` in pixels.
    pub centre: [f64; 2],
    /// Pixels of a side of its picture.
    pub side: f64,
    /// Cosine and sine of how far it is turned, clockwise.
    pub turn: [f64; 2],
    /// 0 for nothing, 1 for all of it.
    pub visibility: f64,
}

impl GarmentPlacement {
    #[must_use]
    pub const fn upright(centre: [f64; 2], side: f64) -> Self {
        Self { centre, side, turn: [1.0, 0.0], visibility: 1.0 }
    }
}

/// Levels from 0 to 255 that are not rounded yet.
#[derive(Clone, Debug)]
pub struct GarmentCanvas {
    side: usize,
    /// `[H, W, 3]`
    levels: Vec<f64>,
}

impl GarmentCanvas {
    /// A square of one gray level.
    #[must_use]
    pub fn new(side: usize, level: f64) -> Self {
        Self { side, levels: vec![level; 3 * side * side] }
    }

    #[cfg(test)]
    pub(super) fn levels(&self) -> &[f64] {
        &self.levels
    }

    /// Paints a garment over what is there: every pixel is taken from the garment's picture, between pixels bilinearly.
    pub fn paint(&mut self, garment: &Garment, colour: usize, place: &GarmentPlacement) {
        let (picture, scale, [cos, sin]) = (garment.levels(), 28.0 / place.side, place.turn);
        let level_at = |row: f64, column: f64| -> f64 {
            let inside = |place: f64| (0.0..SIDE as f64).contains(&place);
            if inside(row) && inside(column) { f64::from(picture[SIDE * row as usize + column as usize]) } else { 0.0 }
        };
        let tint = COLOURS[colour].1.map(f64::from);
        for (index, pixel) in self.levels.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (x, y) = ((index % self.side) as f64 + 0.5, (index / self.side) as f64 + 0.5);
            let (dx, dy) = ((x - place.centre[0]) * scale, (y - place.centre[1]) * scale);
            let (u, v) = (cos * dx + sin * dy + 13.5, cos * dy - sin * dx + 13.5);
            let (left, top) = (u.floor(), v.floor());
            let (right_share, lower_share) = (u - left, v - top);
            let upper = level_at(top, left) * (1.0 - right_share) + level_at(top, left + 1.0) * right_share;
            let lower = level_at(top + 1.0, left) * (1.0 - right_share) + level_at(top + 1.0, left + 1.0) * right_share;
            let level = upper * (1.0 - lower_share) + lower * lower_share;
            let cover = (level / 48.0).min(1.0) * place.visibility;
            let shade = 0.3 + 0.7 * level / 255.0;
            for (old, tint) in pixel.iter_mut().zip(tint) {
                *old = *old * (1.0 - cover) + tint * shade * cover;
            }
        }
    }

    /// Eight bits, with noise on every level.
    #[must_use]
    pub(super) fn develop(&self, draw: &mut Draw) -> Picture {
        let pixels = self.levels.iter().map(|level| (level + draw.noise()).clamp(0.0, 255.0) as u8).collect();
        Picture::new([self.side; 2], pixels).expect("a canvas is a square")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_holds_what_is_painted_and_touches_it_on_all_sides() {
        // twice the size, so that a pixel of the garment is two of the canvas
        let place = GarmentPlacement::upright([40.0, 36.0], 56.0);
        for kind in 0..KINDS.len() {
            for index in [0, 7, 150] {
                let garment = Garment { kind, test: true, index };
                let mut canvas = GarmentCanvas::new(80, 0.0);
                canvas.paint(&garment, 5, &place);
                let [x1, y1, x2, y2] = garment.extent(&place);
                // levels above 8 of 255 give more than this
                let seen: Vec<[f64; 2]> = (0..80 * 80)
                    .filter(|index| canvas.levels[3 * index] > 12.0)
                    .map(|index| [(index % 80) as f64 + 0.5, (index / 80) as f64 + 0.5])
                    .collect();
                let end = |axis: usize, least: bool| {
                    let places = seen.iter().map(|place| place[axis]);
                    if least { places.fold(f64::MAX, f64::min) } else { places.fold(f64::MIN, f64::max) }
                };
                let found = [end(0, true), end(1, true), end(0, false), end(1, false)];
                for (box_side, seen_side) in [x1, y1, x2, y2].iter().zip(found) {
                    assert!((box_side - seen_side).abs() <= 2.0, "{:?}: {found:?} {:?}", garment, [x1, y1, x2, y2]);
                }
            }
        }
    }

    #[test]
    fn what_is_invisible_changes_nothing_and_a_full_turn_neither() {
        let garment = Garment { kind: 6, test: false, index: 3 };
        let place = GarmentPlacement::upright([15.0, 16.0], 24.0);
        let painted = |place: &GarmentPlacement| {
            let mut canvas = GarmentCanvas::new(32, 30.0);
            canvas.paint(&garment, 0, place);
            canvas.levels
        };
        assert_eq!(painted(&GarmentPlacement { visibility: 0.0, ..place }), vec![30.0; 3 * 32 * 32]);
        let half = painted(&GarmentPlacement { turn: [-1.0, 0.0], ..place });
        assert_ne!(half, painted(&place));
    }
}
