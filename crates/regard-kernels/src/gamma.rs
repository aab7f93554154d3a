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

    /// From the gradient of `relu(norm(x))` to that of `x`, in place; adds the sums that the gradients of bias and weight
    /// are. `means` are what the batch's own moments take off; none when moments are given, or when
    /// [`subtract_batch_means`](Self::subtract_batch_means) follows.
    pub fn backward(
        &self,
        x: &[f32],
        valid: &[f32],
        means: Option<&NormGrads>,
        grad: &mut [f32],
        sums: &mut NormGrads,
    ) {
        norm_relu_backward(x, self, valid, means.unwrap_or(&NormGrads::default()), grad, sums);
    }

    /// What a backward pass without means left out.
    pub fn subtract_batch_means(&self, x: &[f32], valid: &[f32], means: &NormGrads, grad: &mut [f32]) {
        subtract_means(x, self, valid, means, grad);
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

    /// What is taken off a gradient, and off it times the centred input; nothing when there are no means.
    #[inline(always)]
    fn of_row(&self, row: usize, norm: &Norm) -> [f32; 2] {
        if self.bias.is_empty() { [0.0; 2] } else { [self.bias[row], self.weight[row] * norm.inverse[row]] }
    }

    pub fn mean(&self, count: usize) -> Self {
        let mean = |sums: &[f32]| sums.iter().map(|sum| sum / count as f32).collect();
        Self { bias: mean(&self.bias), weight: mean(&self.weight) }
    }
}

kernel!(fn norm_relu<'a>(x: &'a [f32], scale: &'a [f32], shift: &'a [f32], out: &'a mut [f32]) = norm_relu_body);
#[inline(always)]
fn norm_relu_body<V: Vector>(x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32]) {
    let len = x.len() / scale.len();
    for (row, (x, out)) in x.chunks_exact(len).zip(out.chunks_exact_mut(len)).enumerate() {
        let (scale, shift) = (V::splat(scale[row]), V::splat(shift[row]));
        for (x, out) in x.chunks_exact(TILE).zip(out.chunks_exact_mut(TILE)) {
            for lane in (0..TILE).step_by(V::LANES) {
                V::zero().max(V::get(x, lane).fma(scale, shift)).put(out, lane);
            }
        }
    }
}

kernel!(
    fn norm_relu_backward<'a>(x: &'a [f32], norm: &'a Norm, valid: &'a [f32], means: &'a NormGrads, grad: &'a mut [f32], sums: &'a mut NormGrads) = norm_relu_backward_body
);
#[inline(always)]
fn norm_relu_backward_body<V: Vector>(
    x: &[f32],
    norm: &Norm,
    valid: &[f32],
    means: &NormGrads,
    grad: &mut [f32],
    sums: &mut NormGrads,
) {
    let rows = norm.mean.len();
    let len = x.len() / rows;
    // lengths are checked here and not at every row, of which some have one tile
    let Norm { scale, shift, mean, inverse } = norm;
    let (scale, shift, mean, inverse) = (&scale[..rows], &shift[..rows], &mean[..rows], &inverse[..rows]);
    let (bias_sums, weight_sums) = (&mut sums.bias[..rows], &mut sums.weight[..rows]);
    let valid = &valid[..TILE];
    for (row, (x, grad)) in x.chunks_exact(len).zip(grad.chunks_exact_mut(len)).enumerate() {
        let [bias, weight] = means.of_row(row, norm).map(V::splat);
        let (scale, shift, mean) = (V::splat(scale[row]), V::splat(shift[row]), V::splat(mean[row]));
        let (mut sum, mut product) = ([V::zero(); 2], [V::zero(); 2]);
        for (x, grad) in x.chunks_exact(TILE).zip(grad.chunks_exact_mut(TILE)) {
            for (index, lane) in (0..TILE).step_by(V::LANES).enumerate() {
                let x = V::get(x, lane);
                // where the ReLU was off, no gradient comes through
                let slope = x.fma(scale, shift).positive(V::get(grad, lane), V::zero());
                let centred = x.sub(mean);
                sum[index % 2] = sum[index % 2].add(slope);
                product[index % 2] = slope.fma(centred, product[index % 2]);
                let slope = slope.sub(bias).sub(centred.mul(weight)).mul(scale);
                // pixels beyond the edge are not part of the batch
                slope.mul(V::get(valid, lane)).put(grad, lane);
            }
        }
        bias_sums[row] += sum[0].add(sum[1]).sum();
        weight_sums[row] += product[0].add(product[1]).sum() * inverse[row];
    }
}

kernel!(
    fn subtract_means<'a>(x: &'a [f32], norm: &'a Norm, valid: &'a [f32], means: &'a NormGrads, grad: &'a mut [f32]) = subtract_batch_means_body
);
#[inline(always)]
fn subtract_batch_means_body<V: Vector>(x: &[f32], norm: &Norm, valid: &[f32], means: &NormGrads, grad: &mut [f32]) {
    let len = x.len() / norm.mean.len();
    for (row, (x, grad)) in x.chunks_exact(len).zip(grad.chunks_exact_mut(len)).enumerate() {
        let (scale, mean) = (V::splat(-norm.scale[row]), V::splat(norm.mean[row]));
        let [bias, weight] = means.of_row(row, norm).map(V::splat);
        for (x, grad) in x.chunks_exact(TILE).zip(grad.chunks_exact_mut(TILE)) {
            for lane in (0..TILE).step_by(V::LANES) {
                let slope = V::get(x, lane).sub(mean).fma(weight, bias).mul(scale);
                slope.mul(V::get(valid, lane)).put(grad, lane);
            }
        }
    }
}

/// Collects moments tile by tile without losing digits to a large mean.
#[derive(Clone)]
pub(crate) struct MomentsAccumulator {
    count: usize,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl MomentsAccumulator {
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

kernel!(fn moments<'a>(x: &'a [f32], valid: &'a [f32], count: f32, mean: &'a mut [f32], squares: &'a mut [f32]) = moments_body);
#[inline(always)]
fn moments_body<V: Vector>(x: &[f32], valid: &[f32], count: f32, mean: &mut [f32], squares: &mut [f32]) {
    let len = x.len() / mean.len();
    for (row, x) in x.chunks_exact(len).enumerate() {
        let mut sum = [V::zero(); 2];
        for x in x.chunks_exact(TILE) {
            for (index, lane) in (0..TILE).step_by(V::LANES).enumerate() {
                sum[index % 2] = V::get(x, lane).fma(V::get(valid, lane), sum[index % 2]);
            }
        }
        mean[row] = sum[0].add(sum[1]).sum() / count;
        let mut sum = [V::zero(); 2];
        for x in x.chunks_exact(TILE) {
            for (index, lane) in (0..TILE).step_by(V::LANES).enumerate() {
                let centred = V::get(x, lane).sub(V::splat(mean[row])).mul(V::get(valid, lane));
                sum[index % 2] = centred.fma(centred, sum[index % 2]);
            }
        }
        squares[row] = sum[0].add(sum[1]).sum();
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
