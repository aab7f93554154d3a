//! Sums of values under the weights `max(0, a_i + b_j)`, which are never stored: the concatenation of non-local blocks.

use rayon::prelude::*;

use crate::elementwise::{piece, zeroed};
use crate::product::{Matrix, Size, multiply};
use crate::simd::{Vector, kernel};
use crate::size;

/// Rows and columns of the weights that are made at once: they stay in the first cache.
const TILE: [usize; 2] = [48, 128];

/// `a [B, N]`, `b [B, M]`, `values [B, M, V] -> [B, N, V]`: the sum over j of `max(0, a_i + b_j) values_j`, divided by `M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRelu {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    /// Width of a value, `V`.
    pub width: usize,
}

/// What of `a_i + b_j` is the weight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// Itself, if it is positive.
    Relu,
    /// One, if it is positive.
    Step,
}

impl PairRelu {
    /// The sums.
    #[must_use]
    pub fn forward(&self, [a, b, values]: [&[f32]; 3]) -> Vec<f32> {
        self.check([a, b, values]);
        let mut out = self.sums(Weight::Relu, (a, self.queries), (b, self.keys), values);
        self.divide(&mut out);
        out
    }

    /// One gradient for each input.
    #[must_use]
    pub fn backward(&self, [a, b, values]: [&[f32]; 3], grad: &[f32]) -> [Vec<f32>; 3] {
        self.check([a, b, values]);
        let outputs = size::product("pair relu", &[self.batch, self.queries, self.width]);
        assert_eq!(grad.len(), outputs, "pair relu: length of the gradient");
        let (queries, keys) = ((a, self.queries), (b, self.keys));
        // the gradient of a_i is that of output i times the sum of the values it looks at; that of b_j the other way round
        let mut a_grad = self.dots(grad, &self.sums(Weight::Step, queries, keys, values));
        let mut b_grad = self.dots(values, &self.sums(Weight::Step, keys, queries, grad));
        let mut values_grad = self.sums(Weight::Relu, keys, queries, grad);
        [&mut a_grad, &mut b_grad, &mut values_grad].into_iter().for_each(|grad| self.divide(grad));
        [a_grad, b_grad, values_grad]
    }

    /// `[B, N, V]`: the sum over j of the weight of `a_i + b_j` times `values_j`.
    fn sums(
        &self,
        weight: Weight,
        (a, rows): (&[f32], usize),
        (b, columns): (&[f32], usize),
        values: &[f32],
    ) -> Vec<f32> {
        let tasks = rows.div_ceil(TILE[0]).max(1);
        let clips: Vec<Vec<f32>> = (0..self.batch * tasks)
            .into_par_iter()
            .map(|task| {
                let (index, block) = (task / tasks, task % tasks);
                let a = piece(piece(a, index, rows), block, TILE[0]);
                let (b, values) = (piece(b, index, columns), piece(values, index, columns * self.width));
                let mut out = vec![0.0; a.len() * self.width];
                let mut tile = vec![0.0; TILE[0] * TILE[1]];
                for (b, values) in b.chunks(TILE[1]).zip(values.chunks(TILE[1] * self.width)) {
                    weigh(weight == Weight::Relu, a, b, &mut tile);
                    let size = Size { m: a.len(), inner: b.len(), n: self.width };
                    multiply(size, Matrix::rows(&tile, b.len()), (values, self.width), (&mut out, self.width), true);
                }
                out
            })
            .collect();
        clips.concat()
    }

    /// The dot product of every row with that of another array.
    fn dots(&self, x: &[f32], y: &[f32]) -> Vec<f32> {
        let (width, rows) = (self.width, TILE[0]);
        zeroed(x.len() / width, rows, |index, out| {
            let [x, y] = [x, y].map(|x| piece(x, index, rows * width).chunks_exact(width));
            for (out, (x, y)) in out.iter_mut().zip(x.zip(y)) {
                *out = x.iter().zip(y).map(|(x, y)| x * y).sum();
            }
        })
    }

    fn divide(&self, x: &mut [f32]) {
        let keys = self.keys as f32;
        x.iter_mut().for_each(|x| *x /= keys);
    }

    fn check(&self, [a, b, values]: [&[f32]; 3]) {
        let Self { batch, queries, keys, width } = *self;
        assert!(keys > 0 && width > 0, "pair relu: a size of zero");
        let sizes = [&[batch, queries, 1], &[batch, keys, 1], &[batch, keys, width]];
        for (name, x, sizes) in [("a", a, sizes[0]), ("b", b, sizes[1]), ("values", values, sizes[2])] {
            assert_eq!(x.len(), size::product("pair relu", sizes), "pair relu: length of {name}");
        }
    }
}

kernel!(fn weigh<'a>(relu: bool, a: &'a [f32], b: &'a [f32], tile: &'a mut [f32]) = weigh_body);

#[inline(always)]
fn weigh_body<V: Vector>(relu: bool, a: &[f32], b: &[f32], tile: &mut [f32]) {
    for (a, row) in a.iter().zip(tile.chunks_exact_mut(b.len())) {
        for (weight, b) in row.iter_mut().zip(b) {
            let sum = a + b;
            let positive = if relu { sum } else { 1.0 };
            // what is not a number stays so
            *weight = if sum <= 0.0 { 0.0 } else { positive };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    fn naive(case: &PairRelu, p: &[Vec<f64>]) -> Vec<f64> {
        let PairRelu { batch, queries, keys, width } = *case;
        let mut out = vec![0.0; batch * queries * width];
        for b in 0..batch {
            for i in 0..queries {
                for j in 0..keys {
                    let weight = (p[0][b * queries + i] + p[1][b * keys + j]).max(0.0) / keys as f64;
                    for c in 0..width {
                        out[(b * queries + i) * width + c] += weight * p[2][(b * keys + j) * width + c];
                    }
                }
            }
        }
        out
    }

    fn inputs(case: &PairRelu) -> [Vec<f32>; 3] {
        let PairRelu { batch, queries, keys, width } = *case;
        [noise(batch * queries, 1), noise(batch * keys, 2), noise(batch * keys * width, 3)]
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        for [batch, queries, keys, width] in [[1, 1, 1, 1], [2, 5, 7, 3], [2, 50, 130, 20], [1, 3, 300, 40]] {
            let case = PairRelu { batch, queries, keys, width };
            let inputs = inputs(&case);
            let slices = inputs.each_ref().map(Vec::as_slice);
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(slices);
                    assert_close(&out, &naive(&case, &slices.map(wide)), 1e-5);
                    let grad = noise(out.len(), 4);
                    let grads = case.backward(slices, &grad);
                    assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &grad, |p| naive(&case, p));
                });
            }
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = PairRelu { batch: 3, queries: 150, keys: 200, width: 9 };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        assert_same_on_threads(|| {
            let out = case.forward(slices);
            [vec![out.clone()], case.backward(slices, &out).to_vec()].concat()
        });
    }
}
