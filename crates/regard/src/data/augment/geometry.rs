//! Geometric changes of pixels.

use crate::data::resample::resample;
use crate::data::{Filter, Picture};

/// The picture resized to `whole` and cropped from `corner` on, reflected at the border.
pub(super) fn reflected_part(
    picture: &Picture,
    whole: [usize; 2],
    corner: [isize; 2],
    size: [usize; 2],
    filter: Filter,
) -> Picture {
    // the row and column of the resized picture for each of the crop
    let [rows, columns] = [0, 1].map(|axis| {
        let places = (0..size[axis]).map(|place| reflected(corner[axis] + place as isize, whole[axis]));
        places.collect::<Vec<usize>>()
    });
    let needed = [&rows, &columns].map(|places| {
        let (first, last) = (places.iter().min(), places.iter().max());
        first.copied().unwrap_or(0)..last.map_or(0, |last| last + 1)
    });
    let (first, width) = ([needed[0].start, needed[1].start], needed[1].len());
    let resized = resample(&picture.pixels, picture.size(), whole, needed, filter);
    let mut pixels = Vec::with_capacity(3 * size[0] * size[1]);
    for row in rows {
        let line = &resized[3 * width * (row - first[0])..][..3 * width];
        columns.iter().for_each(|column| pixels.extend_from_slice(&line[3 * (column - first[1])..][..3]));
    }
    Picture { rows: size[0], columns: size[1], pixels }
}

/// An index outside `0..size` reflected into it; the border itself is not repeated.
pub(super) fn reflected(place: isize, size: usize) -> usize {
    let last = size as isize - 1;
    if last == 0 {
        return 0;
    }
    let folded = place.rem_euclid(2 * last);
    folded.min(2 * last - folded) as usize
}

/// A horizontal flip.
pub(super) fn flip(picture: &mut Picture) {
    for line in picture.pixels.chunks_exact_mut(3 * picture.columns) {
        line.as_chunks_mut::<3>().0.reverse();
    }
}

/// A vertical flip.
pub(super) fn upside_down(picture: &mut Picture) {
    let width = 3 * picture.columns;
    for row in 0..picture.rows / 2 {
        let (upper, lower) = picture.pixels.split_at_mut(width * (picture.rows - 1 - row));
        upper[width * row..width * (row + 1)].swap_with_slice(&mut lower[..width]);
    }
}

/// A clockwise rotation by this many times 90 degrees.
pub(super) fn turn(picture: &mut Picture, quarters: usize) {
    if quarters % 4 >= 2 {
        picture.pixels.as_chunks_mut::<3>().0.reverse();
    }
    if quarters % 2 == 1 {
        let (old, _) = picture.pixels.as_chunks::<3>();
        let (rows, columns) = (picture.rows, picture.columns);
        let place = |row: usize, column: usize| old[columns * (rows - 1 - column) + row];
        picture.pixels = (0..columns).flat_map(|row| (0..rows).flat_map(move |column| place(row, column))).collect();
        (picture.rows, picture.columns) = (columns, rows);
    }
}

/// An affine map from new to old positions: old x = `m[0]` x + `m[1]` y + `m[2]`, old y = `m[3]` x + `m[4]` y + `m[5]`.
pub type Affine = [f64; 6];

/// The inverse: the new `[x, y]` of an old point.
pub(super) fn inverse(m: Affine, [x, y]: [f64; 2]) -> [f64; 2] {
    let determinant = m[0] * m[4] - m[1] * m[3];
    let (x, y) = (x - m[2], y - m[5]);
    [(m[4] * x - m[1] * y) / determinant, (m[0] * y - m[3] * x) / determinant]
}

/// A rotation around the centre, counter-clockwise for positive angles.
pub(super) fn rotation(degrees: f64, [rows, columns]: [usize; 2]) -> Affine {
    let (sin, cos) = (-degrees.to_radians()).sin_cos();
    let (x, y) = (columns as f64 / 2.0, rows as f64 / 2.0);
    [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]
}

/// Maps every pixel with bilinear interpolation; pixels from outside are `fill`.
///
/// As PIL's `Image.transform` with `BILINEAR`: the result is truncated, not rounded. timm chooses bilinear or bicubic
/// at random; here it is always bilinear.
pub(super) fn affine(picture: &mut Picture, m: Affine, fill: [u8; 3]) {
    let (old, _) = picture.pixels.as_chunks::<3>();
    let (rows, columns) = (picture.rows, picture.columns);
    let mut pixels = Vec::with_capacity(picture.pixels.len());
    for row in 0..rows {
        for column in 0..columns {
            let (x, y) = (column as f64 + 0.5, row as f64 + 0.5);
            let (x, y) = (m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]);
            if !((0.0..columns as f64).contains(&x) && (0.0..rows as f64).contains(&y)) {
                pixels.extend(fill);
                continue;
            }
            let (x, y) = (x - 0.5, y - 0.5);
            let (left, top) = (x.floor(), y.floor());
            let (right_share, lower_share) = (x - left, y - top);
            // casts saturate negative numbers at 0
            let (upper, lower) = (top as usize, ((top + 1.0) as usize).min(rows - 1));
            let (left, right) = (left as usize, ((left + 1.0) as usize).min(columns - 1));
            pixels.extend([0, 1, 2].map(|channel| {
                let level = |row: usize, column: usize| f64::from(old[columns * row + column][channel]);
                let between = |row| level(row, left) + (level(row, right) - level(row, left)) * right_share;
                let (upper, lower) = (between(upper), between(lower));
                (upper + (lower - upper) * lower_share) as u8
            }));
        }
    }
    picture.pixels = pixels;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise_picture;

    fn letters(rows: usize, columns: usize, text: &str) -> Picture {
        Picture::new([rows, columns], text.bytes().flat_map(|letter| [letter; 3]).collect()).unwrap()
    }

    #[test]
    fn pixels_go_where_they_should() {
        let changed = |change: fn(&mut Picture)| {
            let mut picture = letters(2, 3, "abcdef");
            change(&mut picture);
            picture
        };
        assert_eq!(changed(flip), letters(2, 3, "cbafed"));
        assert_eq!(changed(upside_down), letters(2, 3, "defabc"));
        assert_eq!(changed(|picture| turn(picture, 0)), letters(2, 3, "abcdef"));
        assert_eq!(changed(|picture| turn(picture, 1)), letters(3, 2, "daebfc"));
        assert_eq!(changed(|picture| turn(picture, 2)), letters(2, 3, "fedcba"));
        assert_eq!(changed(|picture| turn(picture, 3)), letters(3, 2, "cfbead"));
    }

    #[test]
    fn a_border_is_reflected_as_by_torch() {
        let places: Vec<usize> = (-3..7).map(|place| reflected(place, 4)).collect();
        assert_eq!(places, [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!((reflected(-5, 1), reflected(9, 2)), (0, 1));
    }

    #[test]
    fn a_quarter_turn_is_a_rotation_by_minus_90_degrees() {
        let picture = noise_picture([6, 6], 0);
        let (mut turned, mut rotated) = (picture.clone(), picture);
        turn(&mut turned, 1);
        affine(&mut rotated, rotation(-90.0, [6, 6]), [0; 3]);
        let difference = turned.pixels().iter().zip(rotated.pixels()).map(|(a, b)| a.abs_diff(*b)).max();
        // a level of 7 computed as 6.999.. is truncated to 6
        assert!(difference <= Some(1), "{difference:?}");
    }
}
