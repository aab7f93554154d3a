//! Windows of any size and stride: pixels are gathered rows, channels are columns.
//!
//! A task pads the rows that it reads, which then stay in the second cache, and reads windows where they lie.

use rayon::prelude::*;

use super::{Convolution, pad_rows};
use crate::elementwise::share;
use crate::epilogue::Epilogue;
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, rows_in_registers};
use crate::parallel::with_scratch;
use crate::planes::{COLUMNS, Planes};
use crate::product::transpose_into;
use crate::uninit::UninitWriter;

/// Padded numbers of a task, about.
const PADDED: usize = 131_072;
/// Pixels of a task, at most about.
const PIXELS: usize = 512;
/// Groups of pixels in registers that are multiplied at once.
const GROUPS: usize = 6;

pub(super) fn infer(case: &Convolution, batch: usize, x: &[f32], weight: &[f32], after: Epilogue) -> Vec<f32> {
    let Convolution { inputs, outputs, image: [height, width], kernel, stride, padding } = *case;
    let [rows, columns] = case.output_size();
    let (pixels, depth) = (rows * columns, inputs * kernel * kernel);
    // rows of the output that a task has, and those of the input that it reads
    let wide = width + 2 * padding;
    let affordable = (PADDED / (inputs * wide)).saturating_sub(kernel) / stride + 1;
    let band = share(rows, affordable.min(PIXELS.div_ceil(columns)));
    let high = (band - 1) * stride + kernel;
    let planes = Planes::new([batch, outputs, pixels], band * columns, COLUMNS);
    let corners: Offsets = (0..band * columns).map(|at| at / columns * stride * wide + at % columns * stride).collect();
    let taps: Offsets = (0..depth)
        .map(|at| {
            let (channel, tap) = (at / (kernel * kernel), at % (kernel * kernel));
            (channel * high + tap / kernel) * wide + tap % kernel
        })
        .collect();
    let order: Vec<usize> = (0..depth).collect();
    let packed = |weight: &[f32]| Panels::gathered(weight, &order, depth, weight.len() / depth);
    let weights: Vec<Panels> = weight.par_chunks(planes.some_channels * depth).map(packed).collect();
    let together = GROUPS * rows_in_registers();
    planes.write(|tile, out| {
        let x = &x[tile.image * inputs * height * width..][..inputs * height * width];
        let channels = out.len();
        let part = &weights[tile.channels.start / planes.some_channels];
        let first_row = tile.pixels.start / columns * stride;
        with_scratch(inputs * high * wide, |padded| {
            for (x, padded) in x.chunks_exact(height * width).zip(padded.chunks_exact_mut(high * wide)) {
                pad_rows((x, width), first_row, padding, (padded, wide));
            }
            with_scratch(2 * together * channels, |scratch| {
                let (sums, maps) = scratch.split_at_mut(together * channels);
                for first in (0..tile.pixels.len()).step_by(together) {
                    let count = together.min(tile.pixels.len() - first);
                    let left = Gathered { data: padded, rows: &corners, range: (first, first + count), inner: &taps };
                    multiply(left, part, Init::Zero, (&mut *sums, channels));
                    transpose_into(&sums[..count * channels], channels, count, maps);
                    let finish = |(index, out): (usize, &mut UninitWriter)| {
                        let channel = tile.channels.start + index;
                        let at = (tile.image * outputs + channel) * pixels + tile.pixels.start + first;
                        after.finish(&maps[index * count..][..count], channel, at, out);
                    };
                    out.iter_mut().enumerate().for_each(finish);
                }
            });
        });
    })
}
