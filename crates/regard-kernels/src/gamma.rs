//! The small network that turns relations into weights: batch norm, ReLU, linear, over tiles `[rows, P]`.

use crate::simd::{Vector, kernel};
use crate::tile::TILE;

/// Mean and biased variance of every row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    pub mean: Vec<f32>,
    pub variance: Vec<f32>,
    /// How many values each row had.
    pub count: usize,
}

/// Where the moments that normalise a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// From elsewhere, whatever the input is: evaluation.
    Given,
    /// From the batch itself, so that the gradient flows through them: training.
    Batch,
}

/// A batch norm made ready: `y = scale * x + shift`, and what its gradient needs.
pub(crate) struct Norm {
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
    mean: Vec<f32>,
    inverse: Vec<f32>,
}

impl Norm {
    pub fn new(weight: &[f32], bias: &[f32], moments: &Moments, epsilon: f32) -> Self {
        let inverse: Vec<f32> = moments.variance.iter().map(|v| 1.0 / (v + epsilon).sqrt()).collect();
        let scale: Vec<f32> = weight.iter().zip(&inverse).map(|(w, i)| w * i).collect();
        let shift = bias.iter().zip(&moments.mean).zip(&scale).map(|((b, m), s)| b - m * s).collect();
        Self { scale, shift, mean: moments.mean.clone(), inverse }
    }

    /// `out = relu(norm(x))`
    pub fn relu(&self, x: &[f32], out: &mut [f32]) {
        norm_relu(x, &self.scale, &self.shift, out);
    }

    /// The gradient stops where the ReLU was off; adds the sums that the gradients of bias and weight are.
    pub fn relu_backward(&self, x: &[f32], relu: &[f32], grad: &mut [f32], sums: &mut NormGrads) {
        norm_relu_backward(x, relu, &self.mean, &self.inverse, grad, &mut sums.bias, &mut sums.weight);
    }

    /// The gradient of `x` from that of `norm(x)`; the batch's own moments pass gradients too.
    pub fn backward(&self, x: &[f32], valid: &[f32], means: Option<&NormGrads>, grad: &mut [f32]) {
        let none = NormGrads::default();
        let means = means.unwrap_or(&none);
        norm_backward(x, &self.mean, &self.inverse, &self.scale, valid, (&means.bias, &means.weight), grad);
    }
}

/// Gradients of a batch norm's bias and weight; divided by the count, what its moments take from the input's.
#[derive(Clone, Debug, Default)]
pub(crate) struct NormGrads {
    pub bias: Vec<f32>,
    pub weight: Vec<f32>,
}

impl NormGrads {
    pub fn new(rows: usize) -> Self {
        Self { bias: vec![0.0; rows], weight: vec![0.0; rows] }
    }

    pub fn add(&mut self, other: &Self) {
        for (sums, parts) in [(&mut self.bias, &other.bias), (&mut self.weight, &other.weight)] {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
    }

    pub fn mean(&self, count: usize) -> Self {
        let mean = |sums: &[f32]| sums.iter().map(|sum| sum / count as f32).collect();
        Self { bias: mean(&self.bias), weight: mean(&self.weight) }
    }
}

kernel!(fn norm_relu(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) = norm_relu_body);
#[inline(always)]
fn norm_relu_body<V: Vector>(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    let len = x.len() / scale.len();
    for (row, (x, out)) in x.chunks_exact(len).zip(out.chunks_exact_mut(len)).enumerate() {
        let (scale, shift) = (V::splat(scale[row]), V::splat(shift[row]));
        for i in (0..len).step_by(V::LANES) {
            V::zero().max(V::get(x, i).fma(scale, shift)).put(out, i);
        }
    }
}

kernel!(
    fn norm_relu_backward(x: &[f32], relu: &[f32], mean: &[f32], inverse: &[f32], grad: &mut [f32], sums: &mut [f32], products: &mut [f32]) = norm_relu_backward_body
);
#[inline(always)]
fn norm_relu_backward_body<V: Vector>(
    x: &[f32],
    relu: &[f32],
    mean: &[f32],
    inverse: &[f32],
    grad: &mut [f32],
    sums: &mut [f32],
    products: &mut [f32],
) {
    let len = x.len() / mean.len();
    for (row, grad) in grad.chunks_exact_mut(len).enumerate() {
        let (x, relu) = (&x[row * len..][..len], &relu[row * len..][..len]);
        let (mut sum, mut product) = (V::zero(), V::zero());
        for i in (0..len).step_by(V::LANES) {
            let slope = V::get(relu, i).positive(V::get(grad, i), V::zero());
            slope.put(grad, i);
            sum = sum.add(slope);
            product = slope.fma(V::get(x, i).sub(V::splat(mean[row])), product);
        }
        sums[row] += sum.sum();
        products[row] += product.sum() * inverse[row];
    }
}

kernel!(
    fn norm_backward(x: &[f32], mean: &[f32], inverse: &[f32], scale: &[f32], valid: &[f32], means: (&[f32], &[f32]), grad: &mut [f32]) = norm_backward_body
);
#[inline(always)]
fn norm_backward_body<V: Vector>(
    x: &[f32],
    mean: &[f32],
    inverse: &[f32],
    scale: &[f32],
    valid: &[f32],
    means: (&[f32], &[f32]),
    grad: &mut [f32],
) {
    let len = x.len() / mean.len();
    for (row, grad) in grad.chunks_exact_mut(len).enumerate() {
        let x = &x[row * len..][..len];
        let scale = V::splat(scale[row]);
        if means.0.is_empty() {
            for i in (0..len).step_by(V::LANES) {
                V::get(grad, i).mul(scale).put(grad, i);
            }
            continue;
        }
        let (sum, product) = (V::splat(means.0[row]), V::splat(means.1[row] * inverse[row]));
        for i in (0..len).step_by(V::LANES) {
            let centred = V::get(x, i).sub(V::splat(mean[row]));
            let slope = V::get(grad, i).sub(sum).sub(centred.mul(product)).mul(scale);
            // pixels beyond the edge are not part of the batch
            slope.mul(V::get(valid, i % TILE)).put(grad, i);
        }
    }
}

/// Collects moments tile by tile without losing digits to a large mean.
#[derive(Clone)]
pub(crate) struct Collector {
    count: usize,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl Collector {
    pub fn new(rows: usize) -> Self {
        Self { count: 0, mean: vec![0.0; rows], squares: vec![0.0; rows] }
    }

    /// Adds the pixels of a tile `[rows, P]` that are inside the image.
    pub fn add_tile(&mut self, x: &[f32], valid: &[f32]) {
        let len = x.len() / self.mean.len();
        let inside = valid.iter().filter(|&&v| v > 0.0).count();
        let count = len / TILE * inside;
        let (mut mean, mut squares) = (vec![0.0; self.mean.len()], vec![0.0; self.mean.len()]);
        moments(x, valid, count as f32, &mut mean, &mut squares);
        self.merge(count, mean.iter().zip(&squares).map(|(&m, &s)| (f64::from(m), f64::from(s))));
    }

    pub fn add(&mut self, other: &Self) {
        self.merge(other.count, other.mean.iter().copied().zip(other.squares.iter().copied()));
    }

    /// Chan's rule for joining the moments of two samples.
    fn merge(&mut self, count: usize, other: impl Iterator<Item = (f64, f64)>) {
        let (ours, theirs) = (self.count as f64, count as f64);
        let whole = ours + theirs;
        for ((mean, squares), (other_mean, other_squares)) in self.mean.iter_mut().zip(&mut self.squares).zip(other) {
            let apart = other_mean - *mean;
            *mean += apart * theirs / whole;
            *squares += other_squares + apart * apart * ours * theirs / whole;
        }
        self.count += count;
    }

    pub fn moments(&self) -> Moments {
        Moments {
            mean: self.mean.iter().map(|&mean| mean as f32).collect(),
            variance: self.squares.iter().map(|squares| (squares / self.count as f64) as f32).collect(),
            count: self.count,
        }
    }
}

kernel!(fn moments(x: &[f32], valid: &[f32], count: f32, mean: &mut [f32], squares: &mut [f32]) = moments_body);
#[inline(always)]
fn moments_body<V: Vector>(x: &[f32], valid: &[f32], count: f32, mean: &mut [f32], squares: &mut [f32]) {
    let len = x.len() / mean.len();
    for (row, x) in x.chunks_exact(len).enumerate() {
        let mut sum = V::zero();
        for i in (0..len).step_by(V::LANES) {
            sum = V::get(x, i).fma(V::get(valid, i % TILE), sum);
        }
        mean[row] = sum.sum() / count;
        let mut sum = V::zero();
        for i in (0..len).step_by(V::LANES) {
            let centred = V::get(x, i).sub(V::splat(mean[row])).mul(V::get(valid, i % TILE));
            sum = centred.fma(centred, sum);
        }
        squares[row] = sum.sum();
    }
}

/// One for the first `count` pixels of a tile.
pub(crate) fn valid(count: usize) -> [f32; TILE] {
    std::array::from_fn(|lane| f32::from(u8::from(lane < count)))
}

/// Adds the sum of every row of `[rows, P]`.
pub(crate) fn add_row_sums(x: &[f32], sums: &mut [f32]) {
    let len = x.len() / sums.len();
    for (x, sum) in x.chunks_exact(len).zip(sums) {
        // sixteen partial sums, so that the compiler may use vectors
        let mut lanes = [0.0; TILE];
        for x in x.chunks_exact(TILE) {
            lanes.iter_mut().zip(x).for_each(|(lane, x)| *lane += x);
        }
        *sum += lanes.iter().sum::<f32>();
    }
}
