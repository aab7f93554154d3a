//! Pixels at other places.

use crate::data::Picture;

/// Left and right exchanged.
pub(super) fn flip(picture: &mut Picture) {
    for line in picture.pixels.chunks_exact_mut(3 * picture.columns) {
        line.as_chunks_mut::<3>().0.reverse();
    }
}

/// Rows reversed.
pub(super) fn upside_down(picture: &mut Picture) {
    let width = 3 * picture.columns;
    for row in 0..picture.rows / 2 {
        let (upper, lower) = picture.pixels.split_at_mut(width * (picture.rows - 1 - row));
        upper[width * row..width * (row + 1)].swap_with_slice(&mut lower[..width]);
    }
}

/// Turned clockwise by so many times 90 degrees.
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

/// Where a pixel comes from: old x = `m[0]` x + `m[1]` y + `m[2]`, old y = `m[3]` x + `m[4]` y + `m[5]`.
pub(super) type Affine = [f64; 6];

/// Turned around the middle, counter-clockwise for positive angles.
pub(super) fn rotation(degrees: f64, [rows, columns]: [usize; 2]) -> Affine {
    let (sin, cos) = (-degrees.to_radians()).sin_cos();
    let (x, y) = (columns as f64 / 2.0, rows as f64 / 2.0);
    [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]
}

/// Every pixel taken from another place, between pixels bilinearly, from outside `fill`.
///
/// As PIL's `Image.transform` with `BILINEAR`: the result is cut off, not rounded. timm takes bilinear and bicubic in
/// turn at random; here it is always bilinear.
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
            // casts of negative numbers give 0
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
    fn a_quarter_turn_is_a_rotation_by_minus_90_degrees() {
        let picture = noise_picture([6, 6], 0);
        let (mut turned, mut rotated) = (picture.clone(), picture);
        turn(&mut turned, 1);
        affine(&mut rotated, rotation(-90.0, [6, 6]), [0; 3]);
        let difference = turned.pixels().iter().zip(rotated.pixels()).map(|(a, b)| a.abs_diff(*b)).max();
        // a level of 7 that comes out as 6.999.. is cut off to 6
        assert!(difference <= Some(1), "{difference:?}");
    }
}
