//! Mosaics: parts of four pictures around a random point, for small and crowded objects, and new borders.
//!
//! As in `YOLOv4` (Bochkovskiy et al. 2020, arXiv:2004.10934), except that pictures cover their quarter, without gray between
//! them: each is resized to cover its quarter, keeping its aspect, and cropped at random.

use rand::{Rng, RngExt as _};

use super::super::{Change, Changes, Geometric};
use crate::data::{Bounds, Filter, Object, Picture};

/// The point where the quarters meet, as fractions of the sides.
const MIDDLE: [f64; 2] = [0.3, 0.7];

/// A mosaic of these rows and columns, and the objects of which at least the fraction `least` is visible.
///
/// # Panics
/// When a side is less than two pixels: each quarter needs one.
#[must_use]
pub fn mosaic(
    pictures: [(&Picture, &[Object]); 4],
    size: [usize; 2],
    least: f64,
    random: &mut impl Rng,
) -> (Picture, Vec<Object>) {
    let [rows, columns] = size;
    assert!(rows > 1 && columns > 1, "mosaic: {columns} x {rows} pixels");
    let [down, along] = size.map(|side| {
        let share = random.random_range(MIDDLE[0]..=MIDDLE[1]);
        ((share * side as f64) as usize).clamp(1, side - 1)
    });
    let quarters = [
        ([0, 0], [down, along]),
        ([0, along], [down, columns - along]),
        ([down, 0], [rows - down, along]),
        ([down, along], [rows - down, columns - along]),
    ];
    let mut pixels = vec![0; 3 * rows * columns];
    let mut objects = Vec::new();
    for ((picture, own), (corner, quarter)) in pictures.into_iter().zip(quarters) {
        let changes = covering(picture.size(), quarter, random);
        let part = changes.picture(picture);
        for (line, row) in part.pixels().chunks_exact(3 * quarter[1]).zip(corner[0]..) {
            pixels[3 * (row * columns + corner[1])..][..3 * quarter[1]].copy_from_slice(line);
        }
        objects.extend(changes.objects(own, least).into_iter().map(|object| {
            let [x1, y1, x2, y2] = object.bounds.pixel_corners(quarter);
            let [top, left] = corner.map(|side| side as f64);
            let bounds = Bounds::from_pixel_corners([x1 + left, y1 + top, x2 + left, y2 + top], size);
            Object { bounds, ..object }
        }));
    }
    (Picture::new(size, pixels).expect("as many pixels as that"), objects)
}

/// Resizes the picture to cover the quarter, then crops it at random.
fn covering(from: [usize; 2], quarter: [usize; 2], random: &mut impl Rng) -> Changes {
    let scale = [0, 1].map(|axis| quarter[axis] as f64 / from[axis] as f64);
    let scale = scale[0].max(scale[1]);
    let whole = [0, 1].map(|axis| ((from[axis] as f64 * scale).round() as usize).max(quarter[axis]));
    let corner = [0, 1].map(|axis| random.random_range(0..=whole[axis] - quarter[axis]));
    let change = Geometric::ResizedCrop { whole, corner, size: quarter, filter: Filter::Bilinear };
    Changes { changes: vec![Change::Geometric(change)], ..Changes::new(from) }
}
