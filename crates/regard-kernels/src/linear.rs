//! A linear layer, `y = x W^T + b` with the weight `[out, in]`, and its gradients.

use rayon::prelude::*;

use crate::elementwise::{add_all, piece, rows_per_task, share, written};
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply_rows, panel_width, push_product, push_rows};
use crate::product::{Matrix, transpose};
use crate::size;
use crate::uninit::new_array;

/// Rows of one task.
const TASK: usize = 96;
/// Maximum number of rows for which packing the whole weight does not pay off.
const FEW: usize = 6;
/// A weight of fewer elements is one task for a few rows.
const ALONE: usize = 1 << 16;
/// Maximum number of rows whose products are summed at once into the weight's gradient.
const DEPTH: usize = 512;

/// Widths of the input and output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    pub inputs: usize,
    pub outputs: usize,
}

/// Which gradients are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsGrad {
    pub input: bool,
    /// Those of weight and bias.
    pub parameters: bool,
}

impl Linear {
    /// `[rows, in], [out, in], [out] or empty -> [rows, out]`
    #[must_use]
    pub fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        self.check(x, weight);
        assert!(bias.is_empty() || bias.len() == self.outputs, "linear: length of the bias");
        if (1..=FEW).contains(&(x.len() / self.inputs)) {
            return self.few(x, weight, bias);
        }
        let start = if bias.is_empty() { Init::Zero } else { Init::ColumnBias(bias) };
        let weight = Panels::new(Matrix::transposed(weight, self.inputs), self.inputs, self.outputs);
        product(x, self.inputs, &weight, start, self.outputs)
    }

    /// The same bits for a few rows: the weight is transposed a panel at a time, which stays in the nearest cache: each
    /// panel is used once.
    fn few(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let (rows, inputs) = (x.len() / self.inputs, self.inputs);
        let width = panel_width();
        let panels = self.outputs.div_ceil(width);
        // waking a thread takes as long as computing a small weight
        let together = if weight.len() < ALONE { panels } else { share(panels, rows_per_task(width * inputs)) };
        let per_task = together * width;
        // columns of a task lie together first: an output's rows cannot be shared out by columns
        let mut columns = vec![0.0; rows * panels * width];
        columns.par_chunks_mut(rows * per_task).enumerate().for_each(|(task, columns)| {
            for (panel, out) in columns.chunks_exact_mut(rows * width).enumerate() {
                let first = task * per_task + panel * width;
                let last = self.outputs.min(first + width);
                let weight = Matrix::transposed(&weight[first * inputs..last * inputs], inputs);
                let start = if bias.is_empty() { Init::Zero } else { Init::ColumnBias(&bias[first..last]) };
                let weight = Panels::new(weight, inputs, last - first);
                multiply_rows(x, inputs, &weight, start, &mut out[..rows * (last - first)]);
            }
        });
        let mut out = Vec::with_capacity(rows * self.outputs);
        for row in 0..rows {
            for (panel, columns) in columns.chunks_exact(rows * width).enumerate() {
                let count = width.min(self.outputs - panel * width);
                out.extend_from_slice(&columns[row * count..][..count]);
            }
        }
        out
    }

    /// Gradients of input, weight and bias; empty when not wanted.
    #[must_use]
    pub fn backward(&self, x: &[f32], weight: &[f32], grad: &[f32], wanted: NeedsGrad) -> [Vec<f32>; 3] {
        self.check(x, weight);
        assert_eq!(grad.len(), x.len() / self.inputs * self.outputs, "linear: length of the gradient");
        let input = if wanted.input {
            let weight = Panels::new(Matrix::rows(weight, self.inputs), self.outputs, self.inputs);
            product(grad, self.outputs, &weight, Init::Zero, self.inputs)
        } else {
            Vec::new()
        };
        let [weight, bias] = if wanted.parameters { self.parameters(x, grad) } else { [Vec::new(), Vec::new()] };
        [input, weight, bias]
    }

    fn parameters(&self, x: &[f32], grad: &[f32]) -> [Vec<f32>; 2] {
        let (inputs, outputs) = (self.inputs, self.outputs);
        // the gradient is transposed, so that sums run along its rows
        let count = share(x.len() / inputs, DEPTH).next_multiple_of(8);
        let columns = Offsets::strided(outputs, count);
        let depth = Offsets::strided(count, 1);
        let (weights, biases): (Vec<_>, Vec<_>) = (x.par_chunks(count * inputs), grad.par_chunks(count * outputs))
            .into_par_iter()
            .map(|(x, grad)| {
                let rows = x.len() / inputs;
                let last; // the last rows are fewer
                let inner = if rows == count {
                    &depth
                } else {
                    last = Offsets::strided(rows, 1);
                    &last
                };
                let grad_t = transpose(grad, outputs, count);
                let left = Gathered { data: &grad_t, rows: &columns, range: (0, outputs), inner };
                let x = Panels::new(Matrix::rows(x, inputs), rows, inputs);
                let weight = new_array(outputs * inputs, |weight| push_product(left, &x, Init::Zero, weight));
                let mut bias = vec![0.0; outputs];
                for grad in grad.chunks_exact(outputs) {
                    bias.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += grad);
                }
                (weight, bias)
            })
            .unzip();
        let mut sums = [vec![0.0; outputs * inputs], vec![0.0; outputs]];
        sums.iter_mut().zip([weights, biases]).for_each(|(sum, parts)| add_all(sum, parts));
        sums
    }

    fn check(&self, x: &[f32], weight: &[f32]) {
        assert!(self.inputs > 0 && self.outputs > 0, "linear: a width of zero");
        assert!(x.len().is_multiple_of(self.inputs), "linear: rows of {} do not divide {}", self.inputs, x.len());
        let weights = size::product("linear", &[self.inputs, self.outputs]);
        assert_eq!(weight.len(), weights, "linear: length of the weight");
        size::product("linear", &[x.len() / self.inputs, self.outputs]);
    }
}

/// `[rows, inner] x [inner, n] -> [rows, n]`
fn product(x: &[f32], inner: usize, b: &Panels, start: Init, n: usize) -> Vec<f32> {
    written(x.len() / inner * n, TASK * n, |index, out| push_rows(piece(x, index, TASK * inner), inner, b, start, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const ALL: NeedsGrad = NeedsGrad { input: true, parameters: true };

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 3), (97, 20, 33), (3, 64, 40)] {
            let case = Linear { inputs, outputs };
            let (x, weight, bias) = (noise(rows * inputs, 1), noise(inputs * outputs, 2), noise(outputs, 3));
            let grad = noise(rows * outputs, 4);
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(&x, &weight, &bias);
                    assert_close(&out, &naive::linear(&wide(&x), &wide(&weight), &wide(&bias)), 1e-5);
                    let grads = case.backward(&x, &weight, &grad, ALL);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                        naive::linear(&p[0], &p[1], &p[2])
                    });
                });
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_many() {
        for (inputs, outputs) in [(7, 3), (64, 40), (192, 1000)] {
            let case = Linear { inputs, outputs };
            let (x, weight, bias) = (noise(20 * inputs, 1), noise(inputs * outputs, 2), noise(outputs, 3));
            for &path in Path::available() {
                with_path(path, || {
                    let many = case.forward(&x, &weight, &bias);
                    for rows in [1, 4, FEW] {
                        let few = case.forward(&x[..rows * inputs], &weight, &bias);
                        assert_eq!(few, many[..rows * outputs], "{path:?} {rows}");
                    }
                });
            }
        }
    }

    #[test]
    fn no_rows_give_none() {
        assert!(Linear { inputs: 3, outputs: 5 }.forward(&[], &noise(15, 1), &[]).is_empty());
    }

    #[test]
    fn without_a_bias_it_is_zero() {
        let (x, weight) = (noise(4 * 3, 1), noise(5 * 3, 2));
        let case = Linear { inputs: 3, outputs: 5 };
        assert_eq!(case.forward(&x, &weight, &[]), case.forward(&x, &weight, &[0.0; 5]));
    }

    #[test]
    fn only_wanted_gradients_are_made() {
        let (x, weight, grad) = (noise(4 * 3, 1), noise(5 * 3, 2), noise(4 * 5, 3));
        let case = Linear { inputs: 3, outputs: 5 };
        let lengths = |wanted| case.backward(&x, &weight, &grad, wanted).map(|grad| grad.len());
        assert_eq!(lengths(NeedsGrad { input: true, parameters: false }), [12, 0, 0]);
        assert_eq!(lengths(NeedsGrad { input: false, parameters: true }), [0, 15, 5]);
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (x, weight, grad) = (noise(700 * 30, 1), noise(30 * 50, 2), noise(700 * 50, 3));
        let case = Linear { inputs: 30, outputs: 50 };
        assert_same_on_threads(|| {
            [vec![case.forward(&x, &weight, &[])], case.backward(&x, &weight, &grad, ALL).to_vec()].concat()
        });
    }
}
