//! Batch normalisation of `[B, C, S]`: every channel over the batch and its `S` pixels.
//!
//! A plane is one channel of one sample. Planes are read side by side and give a few sums each, which are added over
//! the batch in order and in f64: neither the number of threads nor the size of the batch costs bits.

use rayon::prelude::*;

use crate::elementwise::{piece, rows_per_task, written};
use crate::gamma::{Moments, Statistics};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::UninitWriter;

/// Mean and biased variance of every channel.
pub fn moments(x: &[f32], channels: usize, pixels: usize) -> Moments {
    check(x, channels, pixels);
    let sums = plane_sums(x, channels, pixels, |_, x, sums| moments_of_planes(x, pixels, sums));
    let count = x.len() / channels;
    let size = pixels as f64;
    // where a plane's values are, and what they spread around it
    let middle = |[about, rest, _]: &[f32; 3]| f64::from(*about) + f64::from(*rest) / size;
    let spread = |[_, rest, squares]: &[f32; 3]| f64::from(*squares) - f64::from(*rest).powi(2) / size;
    let mut whole = over_the_batch(&sums, channels, |_, plane| middle(plane));
    whole.iter_mut().for_each(|sum| *sum *= size / count as f64);
    let squares = over_the_batch(&sums, channels, |channel, plane| {
        spread(plane) + size * (middle(plane) - whole[channel]).powi(2)
    });
    let mean = whole.iter().map(|mean| *mean as f32).collect();
    let variance = squares.iter().map(|squares| (squares / count as f64).max(0.0) as f32).collect();
    Moments { mean, variance, count }
}

/// What follows the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Identity,
    Relu,
}

/// How a norm is applied.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Values of a channel in one sample.
    pub pixels: usize,
    pub epsilon: f32,
    pub activation: Activation,
}

/// What each channel is normalised by: `scale * (x - mean) + bias`.
struct ChannelAffine<'a> {
    mean: &'a [f32],
    scale: Vec<f32>,
    bias: &'a [f32],
    activation: Activation,
}

impl BatchNorm {
    fn lines<'a>(&self, weight: &[f32], bias: &'a [f32], moments: &'a Moments) -> ChannelAffine<'a> {
        let lengths = [bias.len(), moments.mean.len(), moments.variance.len()];
        assert_eq!(lengths, [weight.len(); 3], "batch norm: parameters and moments differ in length");
        let inverses = inverses(moments, self.epsilon);
        let scale = weight.iter().zip(inverses).map(|(weight, inverse)| weight * inverse).collect();
        ChannelAffine { mean: &moments.mean, scale, bias, activation: self.activation }
    }

    /// `weight * (x - mean) / sqrt(variance + epsilon) + bias`, and what follows.
    pub fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32], moments: &Moments) -> Vec<f32> {
        let pixels = self.pixels;
        check(x, weight.len(), pixels);
        let lines = self.lines(weight, bias, moments);
        let task = rows_per_task(pixels);
        written(x.len(), task * pixels, |index, out| {
            normalise_planes(piece(x, index, task * pixels), index * task, pixels, &lines, out);
        })
    }

    /// Gradients of the input, the weight and the bias; those of the batch's own moments are in the input's.
    pub fn backward(
        &self,
        [x, weight, bias]: [&[f32]; 3],
        moments: &Moments,
        statistics: Statistics,
        grad: &[f32],
    ) -> [Vec<f32>; 3] {
        let (pixels, epsilon) = (self.pixels, self.epsilon);
        let channels = weight.len();
        check(x, channels, pixels);
        assert_eq!(x.len(), grad.len(), "batch norm: input and gradient differ in length");
        let lines = self.lines(weight, bias, moments);
        let sums = plane_sums(x, channels, pixels, |first, x, sums| {
            gradients_of_planes(x, &grad[first * pixels..][..x.len()], first, pixels, &lines, sums);
        });
        let inverse: Vec<f32> = inverses(moments, epsilon).collect();
        let of_planes = |which: usize| over_the_batch(&sums, channels, |_, sums| f64::from(sums[which]));
        let (bias_grad, mut weight_grad) = (of_planes(0), of_planes(1));
        weight_grad.iter_mut().zip(&inverse).for_each(|(sum, inverse)| *sum *= f64::from(*inverse));

        let count = (x.len() / channels) as f64;
        // the gradient is `slope * grad + pull * (x - mean) + offset`
        let line: Vec<[f32; 3]> = (0..channels)
            .map(|channel| {
                let slope = f64::from(weight[channel]) * f64::from(inverse[channel]);
                match statistics {
                    Statistics::Given => [slope as f32, 0.0, 0.0],
                    Statistics::Batch => {
                        let pull = -slope * f64::from(inverse[channel]) * weight_grad[channel] / count;
                        [slope as f32, pull as f32, (-slope * bias_grad[channel] / count) as f32]
                    }
                }
            })
            .collect();
        let input_grad = self.combined(x, grad, &lines, &line);
        let narrow = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
        [input_grad, narrow(weight_grad), narrow(bias_grad)]
    }

    /// The gradient of the input alone, for moments that are given: a frozen norm has no other.
    pub fn backward_input(&self, [x, weight, bias]: [&[f32]; 3], moments: &Moments, grad: &[f32]) -> Vec<f32> {
        check(x, weight.len(), self.pixels);
        assert_eq!(x.len(), grad.len(), "batch norm: input and gradient differ in length");
        let lines = self.lines(weight, bias, moments);
        let line: Vec<[f32; 3]> = lines.scale.iter().map(|slope| [*slope, 0.0, 0.0]).collect();
        self.combined(x, grad, &lines, &line)
    }

    /// `slope * grad + pull * (x - mean) + offset` of every channel, where what follows the norm lets it through.
    fn combined(&self, x: &[f32], grad: &[f32], lines: &ChannelAffine, line: &[[f32; 3]]) -> Vec<f32> {
        let task = rows_per_task(self.pixels);
        written(x.len(), task * self.pixels, |index, out| {
            let [x, grad] = [x, grad].map(|x| piece(x, index, task * self.pixels));
            combine_planes(x, grad, index * task, self.pixels, (lines, line), out);
        })
    }
}

/// Three sums of every plane; `of` gets the number of its first plane, some planes and the place of their sums.
fn plane_sums(
    x: &[f32],
    channels: usize,
    pixels: usize,
    of: impl Fn(usize, &[f32], &mut [[f32; 3]]) + Sync,
) -> Vec<[f32; 3]> {
    check(x, channels, pixels);
    let mut sums = vec![[0.0; 3]; x.len() / pixels];
    let task = rows_per_task(pixels);
    sums.par_chunks_mut(task)
        .zip(x.par_chunks(task * pixels))
        .enumerate()
        .for_each(|(index, (sums, x))| of(index * task, x, sums));
    sums
}

/// The sum of something about the planes of each channel, in the order of the batch.
fn over_the_batch(planes: &[[f32; 3]], channels: usize, term: impl Fn(usize, &[f32; 3]) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; channels];
    for sample in planes.chunks_exact(channels) {
        sums.iter_mut().zip(sample).enumerate().for_each(|(channel, (sum, plane))| *sum += term(channel, plane));
    }
    sums
}

fn inverses(moments: &Moments, epsilon: f32) -> impl Iterator<Item = f32> + '_ {
    moments.variance.iter().map(move |variance| 1.0 / (variance + epsilon).sqrt())
}

fn check(x: &[f32], channels: usize, pixels: usize) {
    let sample = size::product("batch norm", &[channels, pixels]);
    assert!(
        !x.is_empty() && sample > 0 && x.len().is_multiple_of(sample),
        "batch norm: {channels} channels of {pixels} pixels do not divide {} values",
        x.len()
    );
}

kernel!(fn moments_of_planes<'a>(x: &'a [f32], pixels: usize, sums: &'a mut [[f32; 3]]) = moments_of_planes_body);
/// About where a plane's values are, what is left of their sum there, and their squares around it.
#[inline(always)]
fn moments_of_planes_body<V: Vector>(x: &[f32], pixels: usize, sums: &mut [[f32; 3]]) {
    for (x, sums) in x.chunks_exact(pixels).zip(sums) {
        let whole = pixels - pixels % V::LANES;
        let mut sum = V::zero();
        for i in (0..pixels).step_by(V::LANES) {
            sum = sum.add(V::get(x, i));
        }
        let about = sum.sum() / pixels as f32;
        let (mut rest, mut squares) = (V::zero(), V::zero());
        for i in (0..whole).step_by(V::LANES) {
            let centred = V::get(x, i).sub(V::splat(about));
            rest = rest.add(centred);
            squares = centred.fma(centred, squares);
        }
        // one by one: the lanes that a short vector lacks are not at the centre
        let (mut rest, mut squares) = (rest.sum(), squares.sum());
        for x in &x[whole..] {
            rest += x - about;
            squares += (x - about) * (x - about);
        }
        *sums = [about, rest, squares];
    }
}

kernel!(fn normalise_planes<'a, 'b>(x: &'a [f32], first: usize, pixels: usize, lines: &'a ChannelAffine<'a>, out: &'a mut UninitWriter<'b>) = normalise_planes_body);
#[inline(always)]
fn normalise_planes_body<V: Vector>(
    x: &[f32],
    first: usize,
    pixels: usize,
    lines: &ChannelAffine,
    out: &mut UninitWriter,
) {
    let mut out = out.local();
    for (plane, x) in x.chunks_exact(pixels).enumerate() {
        let (mean, scale, bias) = lines.of_plane::<V>(first + plane);
        let lowest = V::splat(if lines.activation == Activation::Relu { 0.0 } else { f32::NEG_INFINITY });
        let vectors = x.chunks_exact(V::LANES);
        let rest = vectors.remainder();
        for x in vectors {
            out.push_vector(lowest.max(V::get(x, 0).sub(mean).fma(scale, bias)));
        }
        out.push(lowest.max(V::get(rest, 0).sub(mean).fma(scale, bias)), rest.len());
    }
    out.finish();
}

impl ChannelAffine<'_> {
    #[inline(always)]
    fn of_plane<V: Vector>(&self, plane: usize) -> (V, V, V) {
        let channel = plane % self.mean.len();
        (V::splat(self.mean[channel]), V::splat(self.scale[channel]), V::splat(self.bias[channel]))
    }
}

/// The gradient before what follows the norm: none came through where a ReLU was off.
#[inline(always)]
fn pre_activation_grad<V: Vector>(centred: V, scale: V, bias: V, activation: Activation, grad: V) -> V {
    match activation {
        Activation::Identity => grad,
        Activation::Relu => centred.fma(scale, bias).positive(grad, V::zero()),
    }
}

kernel!(fn gradients_of_planes<'a>(x: &'a [f32], grad: &'a [f32], first: usize, pixels: usize, lines: &'a ChannelAffine<'a>, sums: &'a mut [[f32; 3]]) = gradients_of_planes_body);
/// The sum of the gradient, and of its product with the centred input.
#[inline(always)]
fn gradients_of_planes_body<V: Vector>(
    x: &[f32],
    grad: &[f32],
    first: usize,
    pixels: usize,
    lines: &ChannelAffine,
    sums: &mut [[f32; 3]],
) {
    for (plane, ((x, grad), sums)) in x.chunks_exact(pixels).zip(grad.chunks_exact(pixels)).zip(sums).enumerate() {
        let (mean, scale, bias) = lines.of_plane::<V>(first + plane);
        let (mut sum, mut product) = (V::zero(), V::zero());
        for i in (0..pixels).step_by(V::LANES) {
            // the gradient is zero in lanes that a short plane lacks, so they add nothing
            let centred = V::get(x, i).sub(mean);
            let slope = pre_activation_grad(centred, scale, bias, lines.activation, V::get(grad, i));
            sum = sum.add(slope);
            product = slope.fma(centred, product);
        }
        *sums = [sum.sum(), product.sum(), 0.0];
    }
}

kernel!(fn combine_planes<'a, 'b>(x: &'a [f32], grad: &'a [f32], first: usize, pixels: usize, lines: (&'a ChannelAffine<'a>, &'a [[f32; 3]]), out: &'a mut UninitWriter<'b>) = combine_planes_body);
#[inline(always)]
fn combine_planes_body<V: Vector>(
    x: &[f32],
    grad: &[f32],
    first: usize,
    pixels: usize,
    (lines, gradients): (&ChannelAffine, &[[f32; 3]]),
    out: &mut UninitWriter,
) {
    let mut out = out.local();
    for (plane, (x, grad)) in x.chunks_exact(pixels).zip(grad.chunks_exact(pixels)).enumerate() {
        let (mean, scale, bias) = lines.of_plane::<V>(first + plane);
        let [slope, pull, offset] = gradients[(first + plane) % gradients.len()].map(V::splat);
        let (x, grad) = (x.chunks_exact(V::LANES), grad.chunks_exact(V::LANES));
        let (rest, grad_rest) = (x.remainder(), grad.remainder());
        for (x, grad) in x.zip(grad) {
            let centred = V::get(x, 0).sub(mean);
            let grad = pre_activation_grad(centred, scale, bias, lines.activation, V::get(grad, 0));
            out.push_vector(grad.fma(slope, centred.fma(pull, offset)));
        }
        let centred = V::get(rest, 0).sub(mean);
        let grad = pre_activation_grad(centred, scale, bias, lines.activation, V::get(grad_rest, 0));
        out.push(grad.fma(slope, centred.fma(pull, offset)), rest.len());
    }
    out.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const EPSILON: f32 = 1e-2;

    /// Batch, channels, pixels: rows shorter than a vector, as long, longer, and with a rest.
    const SHAPES: &[[usize; 3]] = &[[4, 3, 1], [2, 1, 5], [3, 4, 16], [2, 5, 49], [1, 2, 130]];

    fn followed(x: Vec<f64>, activation: Activation) -> Vec<f64> {
        let lowest = if activation == Activation::Relu { 0.0 } else { f64::NEG_INFINITY };
        x.into_iter().map(|x| x.max(lowest)).collect()
    }

    fn cases() -> impl Iterator<Item = ([usize; 3], BatchNorm)> {
        SHAPES.iter().flat_map(|&shape| {
            [Activation::Identity, Activation::Relu]
                .map(|activation| (shape, BatchNorm { pixels: shape[2], epsilon: EPSILON, activation }))
        })
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences_in_training() {
        for ([batch, channels, pixels], case) in cases() {
            let len = batch * channels * pixels;
            let (x, weight, bias, grad) = (noise(len, 1), noise(channels, 2), noise(channels, 3), noise(len, 4));
            let definition = |p: &[Vec<f64>]| {
                let found = naive::batch_moments(&p[0], channels, pixels);
                followed(naive::batch_norm(&p[0], &p[1], &p[2], &found, f64::from(EPSILON), pixels), case.activation)
            };
            for &path in Path::available() {
                with_path(path, || {
                    let found = moments(&x, channels, pixels);
                    let out = case.forward(&x, &weight, &bias, &found);
                    assert_close(&out, &definition(&[wide(&x), wide(&weight), wide(&bias)]), 5e-6);
                    let grads = case.backward([&x, &weight, &bias], &found, Statistics::Batch, &grad);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, definition);
                });
            }
        }
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences_in_evaluation() {
        for ([batch, channels, pixels], case) in cases() {
            let len = batch * channels * pixels;
            let (x, weight, bias, grad) = (noise(len, 1), noise(channels, 2), noise(channels, 3), noise(len, 4));
            let variance = noise(channels, 6).iter().map(|x| x + 1.5).collect();
            let given = Moments { mean: noise(channels, 5), variance, count: 1 };
            let definition = |p: &[Vec<f64>]| {
                let given = [wide(&given.mean), wide(&given.variance)];
                followed(naive::batch_norm(&p[0], &p[1], &p[2], &given, f64::from(EPSILON), pixels), case.activation)
            };
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(&x, &weight, &bias, &given);
                    assert_close(&out, &definition(&[wide(&x), wide(&weight), wide(&bias)]), 5e-6);
                    let grads = case.backward([&x, &weight, &bias], &given, Statistics::Given, &grad);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, definition);
                });
            }
        }
    }

    #[test]
    fn moments_keep_their_digits_far_from_zero() {
        let [batch, channels, pixels] = [6, 2, 75];
        let x: Vec<f32> = noise(batch * channels * pixels, 1).iter().map(|x| x + 1000.0).collect();
        let expected = naive::batch_moments(&wide(&x), channels, pixels);
        for &path in Path::available() {
            with_path(path, || {
                let found = moments(&x, channels, pixels);
                assert_close(&found.mean, &expected[0], 1e-4);
                assert_close(&found.variance, &expected[1], 1e-6);
                assert_eq!(found.count, batch * pixels);
            });
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let [batch, channels, pixels] = [12, 7, 900];
        let len = batch * channels * pixels;
        let (x, weight, grad) = (noise(len, 1), noise(channels, 2), noise(len, 3));
        assert_same_on_threads(|| {
            let found = moments(&x, channels, pixels);
            let case = BatchNorm { pixels, epsilon: 1e-5, activation: Activation::Relu };
            let out = case.forward(&x, &weight, &weight, &found);
            let grads = case.backward([&x, &weight, &weight], &found, Statistics::Batch, &grad);
            [vec![found.mean, found.variance, out], grads.to_vec()].concat()
        });
    }
}
