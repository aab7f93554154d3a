//! Windows of 3x3 one apart: 2x2 outputs from 16 products instead of 36.
//! Lavin and Gray 2015, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308: F(2x2, 3x3).
//!
//! Tiles of 4x4 inputs and the filters are transformed by sums and differences; the 16 elements of each are 16 independent
//! products over the channels; their results are transformed to 2x2 outputs. Larger tiles need fewer products, but lose digits:
//! these lose none to speak of. A task takes some rows of tiles; its tiles are the columns of the products.

use super::{Convolution, pad_rows};
use crate::elementwise::{rows_per_task, share, written};
use crate::epilogue::Epilogue;
use crate::gathered::{Gathered, Init, Offsets, Panels, in_place_stride, multiply, rows_together};
use crate::parallel::{take_buffer, with_scratch};
use crate::planes::{Planes, ROWS};
use crate::product::transpose_into;
use crate::simd::{Vector, kernel};
use crate::uninit::UninitWriter;

/// Elements of a tile.
const TILE: usize = 16;
/// Numbers of one element of a task's tiles, about: those of all elements stay in the third cache.
const NUMBERS: usize = 40_960;
/// Tiles of a task, at most about.
const TILES: usize = 320;
/// Lanes of the widest vector.
const LANES: usize = 16;
/// Channels, and tiles of an image, from which on there is enough to multiply for the price of the transforms.
const WORTH: [usize; 2] = [16, 64];

/// Whether it is the faster way.
pub(super) fn pays(case: &Convolution) -> bool {
    let tiles = case.output_size().map(|side| side.div_ceil(2)).iter().product::<usize>();
    let [channels, least] = WORTH;
    (case.kernel, case.stride) == (3, 1) && case.inputs >= channels && case.outputs >= channels && tiles >= least
}

pub(super) fn infer(case: &Convolution, batch: usize, x: &[f32], weight: &[f32], after: Epilogue) -> Vec<f32> {
    let Convolution { inputs, outputs, image: [height, width], padding, .. } = *case;
    let [rows, columns] = case.output_size();
    let pixels = rows * columns;
    let [down, across] = [rows, columns].map(|side| side.div_ceil(2));
    // rows of tiles of a task
    let band = share(down, (NUMBERS / inputs).clamp(1, TILES).div_ceil(across));
    // whole vectors are read and written from every tile on
    let stride = in_place_stride(band * across + LANES);
    let filters = transform_filters(weight, inputs);
    let (filter_rows, inner) = (Offsets::strided(outputs, filter_len(inputs)), Offsets::strided(inputs, 1));
    let [high, wide] = [2 * band + 2, 2 * across.next_multiple_of(LANES) + 2];
    Planes::new([batch, outputs, pixels], 2 * band * columns, ROWS).write(|tile, out| {
        let x = &x[tile.image * inputs * height * width..][..inputs * height * width];
        let first_row = tile.pixels.start / columns;
        let height_of_tile = tile.pixels.len() / columns;
        let tiles = [height_of_tile.div_ceil(2), across];
        let mut elements: [Vec<f32>; TILE] = std::array::from_fn(|_| take_buffer(inputs * stride));
        with_scratch(high * wide, |padded| {
            for (channel, x) in x.chunks_exact(height * width).enumerate() {
                pad_rows((x, width), first_row, padding, (padded, wide));
                let mut rows = elements.each_mut().map(|element| &mut element[channel * stride..][..stride]);
                transform_tiles((padded, wide), tiles, &mut rows);
            }
        });
        let elements = elements.map(|element| Panels::in_place(element, inputs, tiles[0] * across, stride));
        let together = rows_together(out.len());
        let products = (TILE * together + 1) * stride;
        with_scratch(products + 2 * wide, |scratch| {
            let (sums, lines) = scratch.split_at_mut(products);
            for (block, out) in out.chunks_mut(together).enumerate() {
                let first = tile.channels.start + block * together;
                for (index, element) in elements.iter().enumerate() {
                    let range = (first, first + out.len());
                    let left = Gathered { data: &filters[index * inputs..], rows: &filter_rows, range, inner: &inner };
                    multiply(left, element, Init::Zero, (&mut sums[index * together * stride..], stride));
                }
                for (index, out) in out.iter_mut().enumerate() {
                    let channel = first + index;
                    let plane = (tile.image * outputs + channel) * pixels + tile.pixels.start;
                    for row in 0..tiles[0] {
                        let from = index * stride + row * across;
                        transform_sums((&sums[from..], together * stride), across, (lines, wide));
                        for (y, line) in lines.chunks_exact(wide).enumerate().take(height_of_tile - 2 * row) {
                            after.finish(&line[..columns], channel, plane + (2 * row + y) * columns, out);
                        }
                    }
                }
            }
        });
        elements.into_iter().for_each(Panels::return_buffer);
    })
}

/// Numbers of a transformed filter; the last ones keep filters apart in the sets of a cache.
const fn filter_len(inputs: usize) -> usize {
    TILE * inputs + LANES
}

/// `[O, C, 3, 3] -> [O, 16, C]`, filters [`filter_len`] apart.
fn transform_filters(weight: &[f32], inputs: usize) -> Vec<f32> {
    let (filter, outputs) = (filter_len(inputs), weight.len() / (9 * inputs));
    let some = rows_per_task(filter).min(outputs);
    written(outputs * filter, some * filter, |index, out| {
        with_scratch(9 * inputs, |taps| {
            for weight in weight.chunks_exact(9 * inputs).skip(index * some).take(some) {
                transpose_into(weight, 9, inputs, taps);
                transform_filter(taps, inputs, out);
                out.push_zeros(LANES);
            }
        });
    })
}

kernel!(
    fn transform_filter<'a, 'b>(taps: &'a [f32], inputs: usize, out: &'a mut UninitWriter<'b>) = transform_filter_body
);

/// `G g G'` of every channel, with the rows `1 0 0`, `.5 .5 .5`, `.5 -.5 .5` and `0 0 1` of G.
#[inline(always)]
fn transform_filter_body<V: Vector>(taps: &[f32], inputs: usize, out: &mut UninitWriter) {
    #[inline(always)]
    fn product<V: Vector>(row: usize, [a, b, c]: [V; 3]) -> V {
        let half = V::splat(0.5);
        match row {
            0 => a,
            1 => half.mul(a.add(c).add(b)),
            2 => half.mul(a.add(c).sub(b)),
            _ => c,
        }
    }
    let mut out = out.local();
    for element in 0..TILE {
        for at in (0..inputs).step_by(V::LANES) {
            let mut column = [V::zero(); 3];
            for (j, column) in column.iter_mut().enumerate() {
                let mut tap = [V::zero(); 3];
                for (i, tap) in tap.iter_mut().enumerate() {
                    *tap = V::get(&taps[(3 * i + j) * inputs..][..inputs], at);
                }
                *column = product(element / 4, tap);
            }
            out.push(product(element % 4, column), inputs - at);
        }
    }
    out.finish();
}

kernel!(
    fn transform_tiles<'a, 'b>(padded: (&'a [f32], usize), tiles: [usize; 2], out: &'a mut [&'b mut [f32]; TILE]) = transform_tiles_body
);

/// `B' d B` of tiles two apart, with the rows `1 0 -1 0`, `0 1 1 0`, `0 -1 1 0` and `0 1 0 -1` of B'. Lanes after the last tile
/// of a row are overwritten by the next row or not read as tiles.
#[inline(always)]
fn transform_tiles_body<V: Vector>(
    (padded, wide): (&[f32], usize),
    [down, across]: [usize; 2],
    out: &mut [&mut [f32]; TILE],
) {
    for row in 0..down {
        for column in (0..across).step_by(V::LANES) {
            // even and odd columns of four rows, and those two further
            let mut lines = [[V::zero(); 4]; 4];
            for (i, line) in lines.iter_mut().enumerate() {
                let from = &padded[(2 * row + i) * wide + 2 * column..][..2 * V::LANES + 2];
                let [even, odd] = V::get(from, 0).deinterleave(V::get(from, V::LANES));
                let [next_even, next_odd] = V::get(&from[2..], 0).deinterleave(V::get(&from[2..], V::LANES));
                *line = [even, odd, next_even, next_odd];
            }
            for i in 0..4 {
                let mut d = [V::zero(); 4];
                for (j, d) in d.iter_mut().enumerate() {
                    *d = match i {
                        0 => lines[0][j].sub(lines[2][j]),
                        1 => lines[1][j].add(lines[2][j]),
                        2 => lines[2][j].sub(lines[1][j]),
                        _ => lines[1][j].sub(lines[3][j]),
                    };
                }
                let at = row * across + column;
                d[0].sub(d[2]).put(out[4 * i], at);
                d[1].add(d[2]).put(out[4 * i + 1], at);
                d[2].sub(d[1]).put(out[4 * i + 2], at);
                d[1].sub(d[3]).put(out[4 * i + 3], at);
            }
        }
    }
}

kernel!(
    fn transform_sums<'a>(sums: (&'a [f32], usize), across: usize, lines: (&'a mut [f32], usize)) = transform_sums_body
);

/// `A' m A` of a row of tiles, with the rows `1 1 1 0` and `0 1 -1 -1` of A': two rows of outputs.
#[inline(always)]
fn transform_sums_body<V: Vector>((sums, stride): (&[f32], usize), across: usize, (lines, wide): (&mut [f32], usize)) {
    for column in (0..across).step_by(V::LANES) {
        let mut rows = [[V::zero(); 4]; 2];
        for j in 0..4 {
            let mut m = [V::zero(); 4];
            for (i, m) in m.iter_mut().enumerate() {
                *m = V::get(&sums[(4 * i + j) * stride..], column);
            }
            rows[0][j] = m[0].add(m[1]).add(m[2]);
            rows[1][j] = m[1].sub(m[2]).sub(m[3]);
        }
        for (i, row) in rows.into_iter().enumerate() {
            let [first, second] = row[0].add(row[1]).add(row[2]).interleave(row[1].sub(row[2]).sub(row[3]));
            let line = &mut lines[i * wide + 2 * column..];
            first.put(line, 0);
            second.put(line, V::LANES);
        }
    }
}
