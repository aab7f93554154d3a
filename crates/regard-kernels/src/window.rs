//! Windows over images: padding, its adjoint, and how an image is cut into tasks.
//!
//! Planes are padded once (never unfolded k*k times) so that a window is a plain shift of memory, and
//! rows are lengthened so that a vector may run over the right edge into zeros.

use rayon::prelude::*;
use std::ops::Range;

use crate::tile::TILE;

/// Rows of one task. Fixed, so that sums are ordered the same whatever the number of threads.
const BAND: usize = 8;

/// What lies beyond the edge of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// Nothing; the caller masks it.
    Zero,
    /// The image mirrored at its edge, the edge itself not repeated.
    Reflect,
}

/// A k x k window around every pixel of an image: offsets -(k-1)/2 ..= k/2, rows first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub height: usize,
    pub width: usize,
    pub size: usize,
}

impl Window {
    /// The widest window that the kernels are compiled for.
    pub const LARGEST: usize = 11;

    /// Pixels of the image.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Positions of the window.
    #[must_use]
    pub fn offsets(&self) -> usize {
        self.size * self.size
    }

    fn before(&self) -> usize {
        (self.size - 1) / 2
    }

    /// Length of a padded row.
    pub(crate) fn stride(&self) -> usize {
        self.width.next_multiple_of(TILE) + self.size - 1
    }

    /// Elements of one padded plane that holds `rows` of the image.
    pub(crate) fn plane(&self, rows: usize) -> usize {
        (rows + self.size - 1) * self.stride()
    }

    /// Checks what the kernels rely on.
    pub(crate) fn check(&self, border: Border) {
        assert!((1..=Self::LARGEST).contains(&self.size), "window is {}, needs 1 to {}", self.size, Self::LARGEST);
        if border == Border::Reflect {
            let reach = self.size / 2;
            assert!(
                reach < self.height && reach < self.width,
                "a window of {} reflects {reach} pixels, the image is {} x {}",
                self.size,
                self.height,
                self.width
            );
        }
    }

    /// `[C, H, W] -> [C, H + k - 1, stride]`
    pub(crate) fn pad(&self, x: &[f32], border: Border) -> Vec<f32> {
        let channels = x.len() / self.pixels();
        let (stride, before) = (self.stride(), self.before());
        let mut padded = vec![0.0; channels * self.plane(self.height)];
        for (plane, x) in padded.chunks_exact_mut(self.plane(self.height)).zip(x.chunks_exact(self.pixels())) {
            for (row, padded) in plane.chunks_exact_mut(stride).enumerate() {
                let Some(row) = source(row, before, self.height, border) else { continue };
                let x = &x[row * self.width..][..self.width];
                padded[before..before + self.width].copy_from_slice(x);
                if border == Border::Reflect {
                    for column in (0..before).chain(before + self.width..self.width + self.size - 1) {
                        padded[column] = x[mirror(column, before, self.width)];
                    }
                }
            }
        }
        padded
    }

    /// The adjoint of [`pad`](Self::pad): what went into the border comes back to where it was copied from.
    pub(crate) fn fold(&self, padded: &[f32], border: Border) -> Vec<f32> {
        let channels = padded.len() / self.plane(self.height);
        let (stride, before) = (self.stride(), self.before());
        let mut x = vec![0.0; channels * self.pixels()];
        for (plane, x) in padded.chunks_exact(self.plane(self.height)).zip(x.chunks_exact_mut(self.pixels())) {
            for (row, padded) in plane.chunks_exact(stride).enumerate() {
                let Some(row) = source(row, before, self.height, border) else { continue };
                let x = &mut x[row * self.width..][..self.width];
                for (column, &value) in padded[..self.width + self.size - 1].iter().enumerate() {
                    if let Some(column) = source(column, before, self.width, border) {
                        x[column] += value;
                    }
                }
            }
        }
        x
    }

    /// One where a padded plane shows the image, zero beyond it.
    pub(crate) fn inside(&self) -> Vec<f32> {
        self.pad(&vec![1.0; self.pixels()], Border::Zero)
    }

    /// Runs `work` on bands of rows, in parallel, results in order.
    pub(crate) fn bands<T: Send>(&self, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<(Range<usize>, T)> {
        let count = self.height.div_ceil(BAND);
        (0..count)
            .into_par_iter()
            .map(|band| {
                let rows = band * BAND..((band + 1) * BAND).min(self.height);
                (rows.clone(), work(rows))
            })
            .collect()
    }

    /// The first columns of the tiles of a row, and how many of their pixels are inside the image.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..width).step_by(TILE).map(move |column| (column, TILE.min(width - column)))
    }

    /// Puts a band `[C, rows, W]` into an image `[C, H, W]`.
    pub(crate) fn put_band(&self, image: &mut [f32], rows: &Range<usize>, band: &[f32]) {
        let part = rows.len() * self.width;
        for (image, band) in image.chunks_exact_mut(self.pixels()).zip(band.chunks_exact(part)) {
            image[rows.start * self.width..][..part].copy_from_slice(band);
        }
    }

    /// Adds the padded gradient of a band `[C, rows + k - 1, stride]` to that of the image.
    pub(crate) fn add_band(&self, padded: &mut [f32], rows: &Range<usize>, band: &[f32]) {
        let part = self.plane(rows.len());
        for (padded, band) in padded.chunks_exact_mut(self.plane(self.height)).zip(band.chunks_exact(part)) {
            for (sum, value) in padded[rows.start * self.stride()..].iter_mut().zip(band) {
                *sum += value;
            }
        }
    }
}

/// Where a padded index comes from; none for a zero border.
fn source(padded: usize, before: usize, size: usize, border: Border) -> Option<usize> {
    match border {
        Border::Reflect => Some(mirror(padded, before, size)),
        Border::Zero => padded.checked_sub(before).filter(|&index| index < size),
    }
}

fn mirror(padded: usize, before: usize, size: usize) -> usize {
    match padded.checked_sub(before) {
        None => before - padded,
        Some(index) if index < size => index,
        Some(index) => 2 * (size - 1) - index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::noise;

    #[test]
    fn reflection_does_not_repeat_the_edge() {
        let window = Window { height: 1, width: 4, size: 1 };
        assert_eq!(window.pad(&[1.0, 2.0, 3.0, 4.0], Border::Reflect)[..4], [1.0, 2.0, 3.0, 4.0]);
        let window = Window { height: 3, width: 3, size: 5 };
        let x: Vec<f32> = (1..=9u8).map(f32::from).collect();
        let padded = window.pad(&x, Border::Reflect);
        assert_eq!(padded[..7], [9.0, 8.0, 7.0, 8.0, 9.0, 8.0, 7.0]);
        assert_eq!(padded[2 * window.stride()..][..7], [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn folding_is_the_adjoint_of_padding() {
        for (size, border) in [(3, Border::Reflect), (7, Border::Reflect), (4, Border::Zero), (7, Border::Zero)] {
            let window = Window { height: 6, width: 9, size };
            let x = noise(2 * window.pixels(), 1);
            let padded = window.pad(&x, border);
            // beyond the padding lies only room for vectors to run over
            let mut y = noise(padded.len(), 2);
            for row in y.chunks_exact_mut(window.stride()) {
                row[window.width + size - 1..].fill(0.0);
            }
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            assert!((dot(&padded, &y) - dot(&x, &window.fold(&y, border))).abs() < 1e-5);
        }
    }
}
