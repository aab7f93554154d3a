//! Heat maps over pictures.

use crate::data::{Filter, Picture};

/// A colour map with rising brightness: black, violet, red, orange, pale yellow.
#[must_use]
pub fn glow(share: f32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 5] =
        [[0., 0., 8.], [80., 18., 110.], [185., 55., 85.], [250., 140., 30.], [252., 250., 165.]];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let first = (place as usize).min(STOPS.len() - 2);
    let part = place - first as f32;
    [0, 1, 2].map(|c| (STOPS[first][c] + part * (STOPS[first + 1][c] - STOPS[first][c])) as u8)
}

/// Values `[H, W]` from dark (minimum) to bright (maximum) by their square root, one pixel each. Non-finite values are
/// gray.
///
/// # Panics
/// When the number of values is not the number of pixels, or there are none.
#[must_use]
pub fn heat(size: [usize; 2], values: &[f32]) -> Picture {
    heat_between(size, values, range(values))
}

/// The lowest and the highest finite value.
#[must_use]
pub fn range(values: &[f32]) -> [f32; 2] {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    [finite().fold(f32::INFINITY, f32::min), finite().fold(f32::NEG_INFINITY, f32::max)]
}

/// The same from dark for `least` to bright for `most`, so that several pictures have one scale.
fn heat_between(size: [usize; 2], values: &[f32], [least, most]: [f32; 2]) -> Picture {
    let range = (most - least).max(f32::MIN_POSITIVE);
    let colour = |value: &f32| {
        if value.is_finite() { glow(((value - least) / range).sqrt()) } else { [204; 3] }
    };
    Picture::new(size, values.iter().flat_map(colour).collect()).expect("a colour for every place")
}

/// A heat map over a picture, at its size; the picture is unchanged where a value is not finite.
///
/// # Panics
/// When the number of values is not the number of pixels, or there are none.
#[must_use]
pub fn overlay(picture: &Picture, size: [usize; 2], values: &[f32]) -> Picture {
    overlay_between(picture, size, values, range(values))
}

/// The same on a scale from `least` to `most`: for the frames of a clip.
///
/// # Panics
/// As [`overlay`].
#[must_use]
pub fn overlay_between(picture: &Picture, size: [usize; 2], values: &[f32], scale: [f32; 2]) -> Picture {
    let [rows, columns] = picture.size();
    blend(picture, &heat_between(size, values, scale), values, |row, column| {
        row * size[0] / rows * size[1] + column * size[1] / columns
    })
}

/// A heat map over a picture whose cells need not divide it: `cell` is the height and width of one as fractions of the picture.
///
/// # Panics
/// When the number of values is not the number of cells, or there are none.
#[must_use]
pub fn overlay_cells(picture: &Picture, size: [usize; 2], cell: [f64; 2], values: &[f32]) -> Picture {
    let [rows, columns] = picture.size();
    let place =
        |at: usize, of: usize, axis: usize| (((at as f64 + 0.5) / of as f64 / cell[axis]) as usize).min(size[axis] - 1);
    blend(picture, &heat(size, values), values, |row, column| place(row, rows, 0) * size[1] + place(column, columns, 1))
}

/// Mixes a picture with colours; `at` is the number of the value at a row and column.
fn blend(picture: &Picture, heat: &Picture, values: &[f32], at: impl Fn(usize, usize) -> usize) -> Picture {
    let [rows, columns] = picture.size();
    let mut pixels = Vec::with_capacity(3 * rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let place = at(row, column);
            let (below, above) = (&picture.pixels()[3 * (row * columns + column)..], &heat.pixels()[3 * place..]);
            let share = if values[place].is_finite() { 0.6 } else { 0.0 };
            let mix = |c: usize| (1.0 - share) * f32::from(below[c]) + share * f32::from(above[c]);
            pixels.extend((0..3).map(|c| mix(c).round() as u8));
        }
    }
    Picture::new([rows, columns], pixels).expect("as many as before")
}

/// Resizes a picture so that its long side has `side` pixels.
#[must_use]
pub fn fitted(picture: &Picture, side: usize) -> Picture {
    let [rows, columns] = picture.size();
    let longest = rows.max(columns);
    picture.resize([rows, columns].map(|own| (own * side / longest).max(1)), Filter::Bilinear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_brighter() {
        let light = |share: f32| glow(share).iter().map(|value| u32::from(*value)).sum::<u32>();
        assert!((0..100).all(|step| light(step as f32 / 100.0) <= light((step + 1) as f32 / 100.0)));
    }

    #[test]
    fn a_value_covers_its_part_of_the_picture_and_gaps_leave_it() {
        let white = Picture::new([4, 4], vec![255; 48]).unwrap();
        let found = overlay(&white, [2, 2], &[0.0, 1.0, f32::NAN, 0.0]);
        let at = |row: usize, column: usize| &found.pixels()[3 * (4 * row + column)..][..3];
        assert_eq!((at(0, 0), at(1, 3)), (at(1, 1), at(0, 2)));
        assert!(at(0, 3)[0] > at(0, 0)[0]);
        assert_eq!(at(3, 0), [255; 3]);
        assert_eq!(overlay_cells(&white, [2, 2], [0.5; 2], &[0.0, 1.0, f32::NAN, 0.0]), found);
        // cells of three quarters: the second row and column begin in the last pixel
        let large = overlay_cells(&white, [2, 2], [0.75; 2], &[0.0, 1.0, f32::NAN, 0.0]);
        assert_eq!(&large.pixels()[..3], &large.pixels()[3 * (4 * 2 + 2)..][..3]);
        assert_eq!(&large.pixels()[3 * 4 * 3..][..3], [255; 3]);
        assert!(heat([1, 2], &[0.5, 0.5]).pixels().iter().all(|level| *level < 20), "no differences are dark");
    }
}
