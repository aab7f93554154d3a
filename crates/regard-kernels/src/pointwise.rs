//! Convolution by a single pixel: one matrix on the channels of every image.
//!
//! The matrix is on the left and pixels are the columns, so that images keep their layout. Images that are smaller
//! than a few vectors are put one after the other.

use rayon::prelude::*;
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::elementwise::{add_all, channel_parts, piece, rows_per_task, share, written};
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, multiply_uninit};
use crate::parallel::Parallel;
use crate::product::{Matrix, transpose};
use crate::simd::{Vector, kernel};

/// Pixels that fill vectors well.
const ROW: usize = 128;
/// Numbers that are packed at a time, about: they stay in the second cache.
const JOINED: usize = 32_768;
/// Pixels that are packed at a time.
const PACKED: usize = 256;
/// Pixels whose products are summed at once into a gradient of the matrix: about so many in small images, at most so many in
/// large ones.
const DEPTH: [usize; 2] = [256, 2048];

/// `matrix [out, in]` on images `[in, pixels]`: `[B, in, pixels] -> [B, out, pixels]`.
#[derive(Clone, Copy)]
pub(crate) struct Pointwise {
    pub inputs: usize,
    pub outputs: usize,
    pub pixels: usize,
}

impl Pointwise {
    pub fn forward(&self, x: &[f32], matrix: &[f32], bias: &[f32]) -> Vec<f32> {
        let Self { inputs, outputs, pixels } = *self;
        let group = self.images((JOINED / inputs).max(ROW), x.len() / (inputs * pixels));
        let (rows, inner) = (Offsets::strided(outputs, inputs), Offsets::strided(inputs, 1));
        let parts = channel_parts(x.len() / (inputs * pixels), group, outputs);
        let channels = outputs / parts;
        let start = if bias.is_empty() { Init::Zero } else { Init::RowBias(bias) };
        written(x.len() / inputs * outputs, group * channels * pixels, |index, out| {
            let x = piece(x, index / parts, group * inputs * pixels);
            let first = index % parts * channels;
            let left = Gathered { data: matrix, rows: &rows, range: (first, first + channels), inner: &inner };
            let columns = x.len() / inputs;
            let joined = joined(x, inputs, pixels);
            if columns == pixels {
                // some columns at a time are packed where the product finds them in a cache
                let write = |out: &mut [MaybeUninit<f32>]| {
                    for first in (0..pixels).step_by(PACKED) {
                        let columns = first..pixels.min(first + PACKED);
                        let panels =
                            Panels::packed_affine_relu((&joined, pixels), inputs, columns, None, &mut Parallel::Serial);
                        multiply_uninit(left, &panels, start, (&mut out[first..], pixels));
                        panels.return_buffer();
                    }
                };
                // SAFETY: a product writes all of its columns, and the columns of all products are those of the output
                unsafe { out.fill(channels * pixels, write) };
                return;
            }
            let panels = Panels::new(Matrix::rows(&joined, columns), inputs, columns);
            let mut row = vec![0.0; outputs * columns];
            multiply(left, &panels, start, (&mut row, columns));
            for image in 0..columns / pixels {
                row.chunks_exact(columns).for_each(|row| out.push_slice(&row[image * pixels..][..pixels]));
            }
        })
    }

    pub fn input_grad(&self, matrix: &[f32], grad: &[f32]) -> Vec<f32> {
        let transposed = Self { inputs: self.outputs, outputs: self.inputs, ..*self };
        transposed.forward(grad, &transpose(matrix, self.inputs, self.outputs), &[])
    }

    /// Gradients of the matrix and of a bias.
    pub fn parameters(&self, x: &[f32], grad: &[f32]) -> [Vec<f32>; 2] {
        let Self { inputs, outputs, pixels } = *self;
        // the narrower side is the one that is transposed
        let matrix = if inputs < outputs {
            sum_of_products((grad, outputs), (x, inputs), pixels)
        } else {
            transpose(&sum_of_products((x, inputs), (grad, outputs), pixels), outputs, inputs)
        };
        [matrix, sums_of_planes(grad, outputs, pixels)]
    }

    fn images(&self, pixels: usize, batch: usize) -> usize {
        // an image that fills vectors by itself is not copied
        if self.pixels * 2 >= ROW { 1 } else { share(batch, pixels / self.pixels) }
    }
}

/// `[m, n]`: sum over images and pixels of `a[i][pixel] b[j][pixel]`.
fn sum_of_products((a, m): (&[f32], usize), (b, n): (&[f32], usize), pixels: usize) -> Vec<f32> {
    let group = share(a.len() / (m * pixels), DEPTH[0].div_ceil(pixels));
    let rows = Offsets::strided(m, pixels);
    let parts: Vec<Vec<f32>> = a
        .par_chunks(group * m * pixels)
        .zip(b.par_chunks(group * n * pixels))
        .map(|(a, b)| {
            let count = a.len() / m;
            let places = |image: usize, range: Range<usize>| range.map(move |at| at / pixels * image + at % pixels);
            let mut part = vec![0.0; m * n];
            // so many at a time that they stay in the cache
            for first in (0..count).step_by(DEPTH[1]) {
                let range = first..count.min(first + DEPTH[1]);
                let inner: Offsets = places(m * pixels, range.clone()).collect();
                let right = Panels::gathered(b, &places(n * pixels, range).collect::<Vec<_>>(), pixels, n);
                let left = Gathered { data: a, rows: &rows, range: (0, m), inner: &inner };
                multiply(left, &right, Init::OutPlusColumnBias(&[]), (&mut part, n));
            }
            part
        })
        .collect();
    let mut sum = vec![0.0; m * n];
    add_all(&mut sum, parts);
    sum
}

/// `[B, C, pixels] -> [C]`
pub(crate) fn sums_of_planes(x: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    let task = rows_per_task(channels * pixels) * channels * pixels;
    let parts: Vec<Vec<f32>> = x
        .par_chunks(task)
        .map(|x| {
            let mut sums = vec![0.0; channels];
            for (channel, x) in x.chunks_exact(pixels).enumerate() {
                sums[channel % channels] += plane_sum(x);
            }
            sums
        })
        .collect();
    let mut sums = vec![0.0; channels];
    add_all(&mut sums, parts);
    sums
}

kernel!(fn plane_sum<'a>(x: &'a [f32]) -> f32 = plane_sum_body);
#[inline(always)]
fn plane_sum_body<V: Vector>(x: &[f32]) -> f32 {
    let mut sum = V::zero();
    for i in (0..x.len()).step_by(V::LANES) {
        sum = sum.add(V::get(x, i));
    }
    sum.sum()
}

/// Images `[B, C, pixels]` as `[C, B * pixels]`.
fn joined(x: &[f32], channels: usize, pixels: usize) -> Cow<'_, [f32]> {
    if x.len() == channels * pixels {
        return Cow::Borrowed(x);
    }
    let columns = x.len() / channels;
    let mut row = vec![0.0; x.len()];
    for (image, x) in x.chunks_exact(channels * pixels).enumerate() {
        for (row, x) in row.chunks_exact_mut(columns).zip(x.chunks_exact(pixels)) {
            row[image * pixels..][..pixels].copy_from_slice(x);
        }
    }
    Cow::Owned(row)
}
