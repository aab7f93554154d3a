//! The largest value of every aligned block of an image.

use crate::elementwise::{piece, rows_per_task, written, zeroed};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::UninitWriter;

/// Planes `[P, H, W] -> [P, H/b, W/b]`; rows and columns that do not fill a block take no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMax {
    pub height: usize,
    pub width: usize,
    /// Side of a block.
    pub block: usize,
}

impl BlockMax {
    /// Rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        assert!(self.block > 0, "block maximum: a side of zero");
        [self.height / self.block, self.width / self.block]
    }

    /// The largest values; not a number where there is one.
    #[must_use]
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let [plane, map] = self.sizes();
        let task = rows_per_task(plane);
        written(self.planes(x) * map, task * map, |index, out| {
            let mut row = vec![0.0; self.width];
            let planes = piece(x, index, task * plane).chunks_exact(plane);
            planes.for_each(|x| largest_of_blocks(*self, x, &mut row, out));
        })
    }

    /// Every gradient goes to the first of the largest values of its block.
    #[must_use]
    pub fn backward(&self, x: &[f32], grad: &[f32]) -> Vec<f32> {
        let [plane, map] = self.sizes();
        assert_eq!(grad.len(), self.planes(x) * map, "block maximum: length of the gradient");
        let task = rows_per_task(plane);
        zeroed(x.len(), task * plane, |index, input_grad| {
            let (x, grad) = (piece(x, index, task * plane), piece(grad, index, task * map));
            let planes = input_grad.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
            for ((input_grad, x), grad) in planes.zip(grad.chunks_exact(map)) {
                if self.block == 2 {
                    spread_pairs(self.width, x, grad, input_grad);
                } else {
                    self.spread(x, grad, input_grad);
                }
            }
        })
    }

    /// The gradient of one plane.
    fn spread(&self, x: &[f32], grad: &[f32], input_grad: &mut [f32]) {
        let (block, [_, columns]) = (self.block, self.output_size());
        for (place, &grad) in grad.iter().enumerate() {
            let corner = (place / columns * self.width + place % columns) * block;
            let mut largest = f32::NEG_INFINITY;
            for row in 0..block {
                for &x in &x[corner + row * self.width..][..block] {
                    largest = larger(largest, x);
                }
            }
            let mut left = grad;
            // the branch is unpredictable: selecting is faster
            for row in 0..block {
                let row = corner + row * self.width..corner + row * self.width + block;
                for (input_grad, x) in input_grad[row.clone()].iter_mut().zip(&x[row]) {
                    let here = is_largest(*x, largest);
                    *input_grad = if here { left } else { 0.0 };
                    left = if here { 0.0 } else { left };
                }
            }
        }
    }

    fn sizes(&self) -> [usize; 2] {
        let [rows, columns] = self.output_size();
        let plane = size::product("block maximum", &[self.height, self.width]);
        let map = size::product("block maximum", &[rows, columns]);
        assert!(map > 0, "block maximum: {} does not fit {} x {}", self.block, self.height, self.width);
        [plane, map]
    }

    fn planes(&self, x: &[f32]) -> usize {
        let [plane, _] = self.sizes();
        assert!(x.len().is_multiple_of(plane), "block maximum: planes of {plane} do not divide {}", x.len());
        x.len() / plane
    }
}

/// What is not a number stays so.
#[inline(always)]
#[allow(clippy::needless_bitwise_bool)] // a lazy one is a branch
fn larger(best: f32, x: f32) -> f32 {
    if (x > best) | x.is_nan() { x } else { best }
}

kernel!(
    /// Of one plane; `row` is room for one.
    fn largest_of_blocks<'a, 'b>(case: BlockMax, x: &'a [f32], row: &'a mut [f32], out: &'a mut UninitWriter<'b>) = largest_of_blocks_body
);

#[inline(always)]
fn largest_of_blocks_body<V: Vector>(case: BlockMax, x: &[f32], row: &mut [f32], out: &mut UninitWriter) {
    let BlockMax { width, block, .. } = case;
    for x in x.chunks_exact(block * width) {
        let (first, rest) = x.split_at(width);
        if block == 2 {
            // the common one
            for at in (0..width / 2).step_by(TOGETHER) {
                let count = TOGETHER.min(width / 2 - at);
                let both = 2 * at..2 * (at + count);
                out.push_slice(&largest_of_quads(&quads(&first[both.clone()], &rest[both]))[..count]);
            }
            continue;
        }
        // down the columns first, then along
        row.copy_from_slice(first);
        for x in rest.chunks_exact(width) {
            row.iter_mut().zip(x).for_each(|(best, x)| *best = larger(*best, *x));
        }
        out.extend(row.chunks_exact(block).map(|row| row.iter().copied().fold(f32::NEG_INFINITY, larger)));
    }
}

/// Blocks of two that are looked at together.
const TOGETHER: usize = 16;

/// Their four values, each kind side by side: arrays of known length, and no branches, become vectors.
type Quads = [[f32; TOGETHER]; 4];

#[inline(always)]
fn quads(upper: &[f32], lower: &[f32]) -> Quads {
    let mut quads = [[0.0; TOGETHER]; 4];
    // where there are all of them, the length is known
    if let (Some(upper), Some(lower)) =
        (upper.first_chunk::<{ 2 * TOGETHER }>(), lower.first_chunk::<{ 2 * TOGETHER }>())
    {
        split(upper, lower, &mut quads);
    } else {
        split(upper, lower, &mut quads);
    }
    quads
}

#[inline(always)]
fn split(upper: &[f32], lower: &[f32], [a, b, c, d]: &mut Quads) {
    for (i, (upper, lower)) in upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0).enumerate().take(TOGETHER)
    {
        (a[i], b[i], c[i], d[i]) = (upper[0], upper[1], lower[0], lower[1]);
    }
}

#[inline(always)]
fn largest_of_quads([a, b, c, d]: &Quads) -> [f32; TOGETHER] {
    let mut largest = [0.0; TOGETHER];
    for i in 0..TOGETHER {
        largest[i] = larger(larger(a[i], b[i]), larger(c[i], d[i]));
    }
    largest
}

kernel!(
    /// The gradient of one plane of blocks of two.
    fn spread_pairs<'a>(width: usize, x: &'a [f32], grad: &'a [f32], input_grad: &'a mut [f32]) = spread_pairs_body
);

#[inline(always)]
#[allow(clippy::needless_bitwise_bool)] // lazy ones are branches
fn spread_pairs_body<V: Vector>(width: usize, x: &[f32], grad: &[f32], input_grad: &mut [f32]) {
    let rows = x.chunks_exact(2 * width).zip(input_grad.chunks_exact_mut(2 * width));
    for ((x, grads), grad) in rows.zip(grad.chunks_exact(width / 2)) {
        let ((upper, lower), (up, down)) = (x.split_at(width), grads.split_at_mut(width));
        for first in (0..grad.len()).step_by(TOGETHER) {
            let count = TOGETHER.min(grad.len() - first);
            let both = 2 * first..2 * (first + count);
            let x = quads(&upper[both.clone()], &lower[both.clone()]);
            let (largest, mut grads, mut own) = (largest_of_quads(&x), [[0.0; TOGETHER]; 4], [0.0; TOGETHER]);
            own[..count].copy_from_slice(&grad[first..first + count]);
            for i in 0..TOGETHER {
                let (a, b, c) =
                    (is_largest(x[0][i], largest[i]), is_largest(x[1][i], largest[i]), is_largest(x[2][i], largest[i]));
                grads[0][i] = if a { own[i] } else { 0.0 };
                grads[1][i] = if b & !a { own[i] } else { 0.0 };
                grads[2][i] = if c & !a & !b { own[i] } else { 0.0 };
                grads[3][i] = if a | b | c { 0.0 } else { own[i] };
            }
            let (up, down) = (&mut up[both.clone()], &mut down[both]);
            for (i, (up, down)) in up.as_chunks_mut::<2>().0.iter_mut().zip(down.as_chunks_mut::<2>().0).enumerate() {
                (*up, *down) = ([grads[0][i], grads[1][i]], [grads[2][i], grads[3][i]]);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_bitwise_bool)] // as above
fn is_largest(x: f32, largest: f32) -> bool {
    (x == largest) | x.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_same_on_threads, noise};

    #[test]
    fn a_block_gives_its_largest_value_and_gets_the_gradient_there() {
        let case = BlockMax { height: 2, width: 5, block: 2 };
        let x = [1.0, 5.0, -3.0, -1.0, 9.0, 2.0, 5.0, -2.0, -4.0, 9.0];
        assert_eq!(case.forward(&x), [5.0, -1.0]);
        assert_eq!(case.backward(&x, &[2.0, 3.0]), [0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_not_a_number_is_the_largest() {
        let case = BlockMax { height: 1, width: 1, block: 1 };
        assert!(case.forward(&[f32::NAN])[0].is_nan());
        let case = BlockMax { height: 2, width: 2, block: 2 };
        let x = [1.0, f32::NAN, f32::NAN, -2.0];
        assert!(case.forward(&x)[0].is_nan());
        assert_eq!(case.backward(&x, &[7.0]), [0.0, 7.0, 0.0, 0.0]);
    }

    #[test]
    fn every_block_equals_its_definition() {
        for (height, width, block) in [(6, 6, 2), (7, 9, 2), (9, 6, 3)] {
            let case = BlockMax { height, width, block };
            let x = noise(3 * height * width, 1);
            let [rows, columns] = case.output_size();
            let expected: Vec<f32> = (0..3 * rows * columns)
                .map(|at| {
                    let (plane, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
                    (0..block * block)
                        .map(|p| x[(plane * height + row * block + p / block) * width + column * block + p % block])
                        .fold(f32::NEG_INFINITY, f32::max)
                })
                .collect();
            assert_eq!(case.forward(&x), expected);
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = BlockMax { height: 30, width: 30, block: 2 };
        let (x, grad) = (noise(50 * 900, 1), noise(50 * 225, 2));
        assert_same_on_threads(|| vec![case.forward(&x), case.backward(&x, &grad)]);
    }
}
