//! Windows over images: padding, its adjoint, and how an image is cut into tasks.
//!
//! Planes are padded once (never unfolded k*k times) so that a window is a plain shift of memory, and
//! rows are lengthened so that a vector may run over the right edge into zeros. Narrow images would leave most lanes
//! of a tile empty, so sixteen of them are laid side by side, pixel by pixel: a tile is then one pixel of each.

use rayon::prelude::*;
use std::ops::Range;

use crate::elementwise::{piece, rows_per_task, share, written, zeroed};
use crate::size;
use crate::tile::{Span, TILE};
use crate::uninit::UninitWriter;

/// Rows of one task, of one image and of sixteen, about. Fixed, so that sums are ordered the same whatever the number of
/// threads.
const BANDS: [usize; 2] = [8, 4];
/// The widest image that is laid beside others: from here on it fills its own tiles well enough.
const NARROW: usize = 14;

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
    /// Elements of a row: its pixels times `step`.
    pub width: usize,
    pub size: usize,
    /// Elements from a pixel to its right neighbour: one, or sixteen when as many images lie side by side.
    step: usize,
}

impl Window {
    /// The widest window that the kernels are compiled for.
    pub const LARGEST: usize = 11;

    /// Windows of `size x size` on an image.
    #[must_use]
    pub const fn new(height: usize, width: usize, size: usize) -> Self {
        Self { height, width, size, step: 1 }
    }

    /// Windows of `size x size` on sixteen images side by side.
    ///
    /// # Panics
    /// When sixteen of them are wider than any array.
    #[must_use]
    pub const fn beside(height: usize, width: usize, size: usize) -> Self {
        let width = width.checked_mul(TILE).expect("window: sixteen images are wider than any array");
        Self { height, width, size, step: TILE }
    }

    /// The same window on sixteen images side by side, if that fills tiles better and they divide the batch.
    pub(crate) fn side_by_side(&self, batch: usize) -> Option<Self> {
        let pays = self.step == 1 && self.width <= NARROW && batch > 0 && batch.is_multiple_of(TILE);
        pays.then_some(Self::beside(self.height, self.width, self.size))
    }

    pub(crate) fn step(&self) -> usize {
        self.step
    }

    /// Elements of a plane.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.height.checked_mul(self.width).expect("window: an image that no array holds")
    }

    /// Rows and columns of the window.
    pub(crate) fn span(&self) -> Span {
        [self.size; 2]
    }

    /// Positions of the window.
    #[must_use]
    pub fn offsets(&self) -> usize {
        self.size.checked_mul(self.size).expect("window: a size that no array holds")
    }

    fn before(&self) -> usize {
        (self.size - 1) / 2
    }

    /// Length of a padded row.
    pub(crate) fn stride(&self) -> usize {
        self.width.next_multiple_of(TILE) + (self.size - 1) * self.step
    }

    /// Elements of one padded plane that holds `rows` of the image.
    pub(crate) fn plane(&self, rows: usize) -> usize {
        (rows + self.size - 1) * self.stride()
    }

    /// Checks what the kernels rely on.
    pub(crate) fn check(&self, border: Border) {
        assert!((1..=Self::LARGEST).contains(&self.size), "window is {}, needs 1 to {}", self.size, Self::LARGEST);
        assert!(self.height > 0 && self.width > 0, "window: an image of {} x {}", self.height, self.width);
        // a padded plane: what is smaller does not wrap either
        let stride = size::sum("window", &[self.width, TILE, (self.size - 1) * self.step]);
        size::product("window", &[size::sum("window", &[self.height, self.size]), stride]);
        if border == Border::Reflect {
            let reach = self.size / 2;
            let columns = self.width / self.step;
            assert!(
                reach < self.height && reach < columns,
                "a window of {} reflects {reach} pixels, the image is {} x {columns}",
                self.size,
                self.height,
            );
        }
    }

    /// `[C, H, W] -> [C, H + k - 1, stride]`
    pub(crate) fn pad(&self, x: &[f32], border: Border) -> Vec<f32> {
        let channels = x.len() / self.pixels();
        let (stride, before, step) = (self.stride(), self.before(), self.step);
        let (columns, plane, group) = (self.width / step, self.plane(self.height), self.planes_per_task());
        let after = self.size - 1 - before;
        // to the right of the image and its border there is room for vectors to run over
        let room = stride - (columns + self.size - 1) * step;
        written(channels * plane, group * plane, |index, padded| {
            for x in piece(x, index, group * self.pixels()).chunks_exact(self.pixels()) {
                for row in 0..self.height + self.size - 1 {
                    let Some(row) = source(row, before, self.height, border) else {
                        padded.push_zeros(stride);
                        continue;
                    };
                    let x = &x[row * self.width..][..self.width];
                    let pixel = |from: usize| &x[from * step..][..step];
                    match border {
                        Border::Zero => padded.push_zeros(before * step),
                        Border::Reflect => {
                            (0..before).for_each(|column| padded.push_slice(pixel(mirror(column, before, columns))));
                        }
                    }
                    padded.push_slice(x);
                    match border {
                        Border::Zero => padded.push_zeros(after * step + room),
                        Border::Reflect => {
                            let columns_after = before + columns..before + columns + after;
                            columns_after.for_each(|column| padded.push_slice(pixel(mirror(column, before, columns))));
                            padded.push_zeros(room);
                        }
                    }
                }
            }
        })
    }

    /// The adjoint of [`pad`](Self::pad): what went into the border comes back to where it was copied from.
    pub(crate) fn fold(&self, padded: &[f32], border: Border) -> Vec<f32> {
        let channels = padded.len() / self.plane(self.height);
        let (stride, before, step) = (self.stride(), self.before(), self.step);
        let (columns, plane, group) = (self.width / step, self.plane(self.height), self.planes_per_task());
        zeroed(channels * self.pixels(), group * self.pixels(), |index, x| {
            let padded = piece(padded, index, group * plane);
            for (plane, x) in padded.chunks_exact(plane).zip(x.chunks_exact_mut(self.pixels())) {
                for (row, padded) in plane.chunks_exact(stride).enumerate() {
                    let Some(row) = source(row, before, self.height, border) else { continue };
                    let x = &mut x[row * self.width..][..self.width];
                    add(x, &padded[before * step..][..self.width]);
                    if border == Border::Reflect {
                        for column in self.beyond() {
                            let to = mirror(column, before, columns);
                            add(&mut x[to * step..][..step], &padded[column * step..][..step]);
                        }
                    }
                }
            }
        })
    }

    /// Padded columns that are not of the image.
    fn beyond(&self) -> impl Iterator<Item = usize> + use<> {
        let (before, columns) = (self.before(), self.width / self.step);
        (0..before).chain(before + columns..columns + self.size - 1)
    }

    fn planes_per_task(&self) -> usize {
        rows_per_task(self.pixels())
    }

    /// One where a padded plane shows the image, zero beyond it.
    pub(crate) fn inside(&self) -> Vec<f32> {
        self.pad(&vec![1.0; self.pixels()], Border::Zero)
    }

    /// Runs `work` on bands of rows, in parallel, results in order.
    pub(crate) fn bands<T: Send>(&self, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<(Range<usize>, T)> {
        let [single, several] = BANDS;
        let rows = share(self.height, if self.step == 1 { single } else { several });
        let count = self.height.div_ceil(rows);
        (0..count)
            .into_par_iter()
            .map(|band| {
                let rows = band * rows..((band + 1) * rows).min(self.height);
                (rows.clone(), work(rows))
            })
            .collect()
    }

    /// The first columns of the tiles of a row, and how many of their pixels are inside the image.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..width).step_by(TILE).map(move |column| (column, TILE.min(width - column)))
    }

    /// Writes an image `[C, H, W]` from all of its bands `[C, rows, W]`.
    pub(crate) fn join_bands(&self, bands: &[(Range<usize>, Vec<f32>)], image: &mut UninitWriter) {
        let group = self.planes_per_task();
        image.fill_pieces(group * self.pixels(), |index, planes| {
            for channel in index * group..index * group + planes.room() / self.pixels() {
                for (rows, band) in bands {
                    let part = rows.len() * self.width;
                    planes.push_slice(&band[channel * part..][..part]);
                }
            }
        });
    }

    /// Puts a band `[C, rows, W]` into an image `[C, H, W]`.
    pub(crate) fn put_band(&self, image: &mut [f32], rows: &Range<usize>, band: &[f32]) {
        let part = rows.len() * self.width;
        let planes = image.par_chunks_exact_mut(self.pixels()).zip(band.par_chunks_exact(part));
        planes.with_min_len(self.planes_per_task()).for_each(|(image, band)| {
            image[rows.start * self.width..][..part].copy_from_slice(band);
        });
    }

    /// Adds the padded gradient of a band `[C, rows + k - 1, stride]` to that of the image.
    pub(crate) fn add_band(&self, padded: &mut [f32], rows: &Range<usize>, band: &[f32]) {
        let planes =
            padded.par_chunks_exact_mut(self.plane(self.height)).zip(band.par_chunks_exact(self.plane(rows.len())));
        planes.with_min_len(self.planes_per_task()).for_each(|(padded, band)| {
            add(&mut padded[rows.start * self.stride()..][..band.len()], band);
        });
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Lays every sixteen images side by side: `[B, ..] -> [B/16, .., 16]`.
pub(crate) fn interleave(x: &[f32], batch: usize) -> Vec<f32> {
    each_sixteen(x, batch, |x, out| out.push_transposed([TILE, x.len() / TILE], (x, x.len() / TILE), TILE))
}

/// The inverse of [`interleave`].
pub(crate) fn separate(x: &[f32], batch: usize) -> Vec<f32> {
    each_sixteen(x, batch, |x, out| out.push_transposed([x.len() / TILE, TILE], (x, TILE), x.len() / TILE))
}

fn each_sixteen(x: &[f32], batch: usize, group: impl Fn(&[f32], &mut UninitWriter) + Sync) -> Vec<f32> {
    let len = (x.len() / batch * TILE).max(1);
    written(x.len(), len, |index, out| group(piece(x, index, len), out))
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
        let window = Window::new(1, 4, 1);
        assert_eq!(window.pad(&[1.0, 2.0, 3.0, 4.0], Border::Reflect)[..4], [1.0, 2.0, 3.0, 4.0]);
        let window = Window::new(3, 3, 5);
        let x: Vec<f32> = (1..=9u8).map(f32::from).collect();
        let padded = window.pad(&x, Border::Reflect);
        assert_eq!(padded[..7], [9.0, 8.0, 7.0, 8.0, 9.0, 8.0, 7.0]);
        assert_eq!(padded[2 * window.stride()..][..7], [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn images_side_by_side_are_padded_each_by_itself() {
        let (alone, beside) = (Window::new(4, 5, 3), Window::new(4, 5, 3).side_by_side(32).unwrap());
        let x = noise(32 * 2 * 20, 1);
        let padded = beside.pad(&interleave(&x, 32)[16 * 2 * 20..], Border::Reflect);
        for image in 0..16 {
            let one = alone.pad(&x[(16 + image) * 2 * 20..][..2 * 20], Border::Reflect);
            for plane_row in 0..2 * 6 {
                for column in 0..7 {
                    let beside = padded[plane_row * beside.stride() + column * 16 + image];
                    assert_eq!(one[plane_row * alone.stride() + column], beside);
                }
            }
        }
        assert_eq!(separate(&interleave(&x, 32), 32), x);
        assert_eq!([Window::new(4, 5, 3).side_by_side(33), Window::new(4, 15, 3).side_by_side(32)], [None, None]);
    }

    #[test]
    fn folding_is_the_adjoint_of_padding() {
        for (size, border) in [(3, Border::Reflect), (7, Border::Reflect), (4, Border::Zero), (7, Border::Zero)] {
            for window in [Window::new(6, 9, size), Window::new(6, 9, size).side_by_side(TILE).unwrap()] {
                let x = noise(2 * window.pixels(), 1);
                let padded = window.pad(&x, border);
                // beyond the padding lies only room for vectors to run over
                let mut y = noise(padded.len(), 2);
                for row in y.chunks_exact_mut(window.stride()) {
                    row[window.width + (size - 1) * window.step..].fill(0.0);
                }
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
                assert!((dot(&padded, &y) - dot(&x, &window.fold(&y, border))).abs() < 1e-5);
            }
        }
    }
}
