//! Batch normalisation of `[B, C, S]`: every channel over the batch and its `S` places.
//!
//! A plane is one channel of one sample. Planes are read side by side and give a few sums each, which are added over
//! the batch in order and in f64: neither the number of threads nor the size of the batch costs bits.

use rayon::prelude::*;

use crate::elementwise::{filled, piece, rows_per_task};
use crate::gamma::{Moments, Statistics};
use crate::simd::{Vector, kernel};

/// Mean and biased variance of every channel.
pub fn moments(x: &[f32], channels: usize, places: usize) -> Moments {
    let sums = plane_sums(x, channels, places, |_, x, sums| moments_of_planes(x, places, sums));
    let count = x.len() / channels;
    let (mut mean, mut variance) = (Vec::with_capacity(channels), Vec::with_capacity(channels));
    for channel in 0..channels {
        let planes = || sums.iter().skip(channel).step_by(channels);
        let size = places as f64;
        // where a plane's values are, and what they spread around it
        let middle = |[about, rest, _]: &[f32; 3]| f64::from(*about) + f64::from(*rest) / size;
        let spread = |[_, rest, squares]: &[f32; 3]| f64::from(*squares) - f64::from(*rest).powi(2) / size;
        let whole = planes().map(middle).sum::<f64>() * size / count as f64;
        let squares: f64 = planes().map(|plane| spread(plane) + size * (middle(plane) - whole).powi(2)).sum();
        mean.push(whole as f32);
        variance.push((squares / count as f64).max(0.0) as f32);
    }
    Moments { mean, variance, count }
}

/// `weight * (x - mean) / sqrt(variance + epsilon) + bias`
pub fn batch_norm(x: &[f32], weight: &[f32], bias: &[f32], moments: &Moments, epsilon: f32, places: usize) -> Vec<f32> {
    let channels = weight.len();
    check(x, channels, places);
    assert!(bias.len() == channels && moments.mean.len() == channels, "parameters and moments differ in length");
    let scale: Vec<f32> =
        weight.iter().zip(inverses(moments, epsilon)).map(|(weight, inverse)| weight * inverse).collect();
    let task = rows_per_task(places);
    filled(x.len(), task * places, |index, out| {
        normalise_planes(piece(x, index, task * places), index * task, places, &moments.mean, &scale, bias, out);
    })
}

/// Gradients of the input, the weight and the bias; those of the batch's own moments are in the input's.
pub fn batch_norm_backward(
    x: &[f32],
    weight: &[f32],
    moments: &Moments,
    statistics: Statistics,
    epsilon: f32,
    places: usize,
    grad: &[f32],
) -> [Vec<f32>; 3] {
    let channels = weight.len();
    check(x, channels, places);
    assert_eq!(x.len(), grad.len(), "input and gradient differ in length");
    let task = rows_per_task(places);
    let sums = plane_sums(x, channels, places, |first, x, sums| {
        gradients_of_planes(x, &grad[first * places..][..x.len()], first, places, &moments.mean, sums);
    });
    let inverse: Vec<f32> = inverses(moments, epsilon).collect();
    let over_the_batch = |which: usize, channel: usize| {
        sums.iter().skip(channel).step_by(channels).map(|sums| f64::from(sums[which])).sum::<f64>()
    };
    let bias_grad: Vec<f64> = (0..channels).map(|channel| over_the_batch(0, channel)).collect();
    let weight_grad: Vec<f64> =
        (0..channels).map(|channel| over_the_batch(1, channel) * f64::from(inverse[channel])).collect();

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
    let input_grad = filled(x.len(), task * places, |index, out| {
        let [x, grad] = [x, grad].map(|x| piece(x, index, task * places));
        combine_planes(x, grad, index * task, places, &moments.mean, &line, out);
    });
    let narrow = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
    [input_grad, narrow(weight_grad), narrow(bias_grad)]
}

/// Three sums of every plane; `of` gets the number of its first plane, some planes and the place of their sums.
fn plane_sums(
    x: &[f32],
    channels: usize,
    places: usize,
    of: impl Fn(usize, &[f32], &mut [[f32; 3]]) + Sync,
) -> Vec<[f32; 3]> {
    check(x, channels, places);
    let mut sums = vec![[0.0; 3]; x.len() / places];
    let task = rows_per_task(places);
    sums.par_chunks_mut(task)
        .zip(x.par_chunks(task * places))
        .enumerate()
        .for_each(|(index, (sums, x))| of(index * task, x, sums));
    sums
}

fn inverses(moments: &Moments, epsilon: f32) -> impl Iterator<Item = f32> + '_ {
    moments.variance.iter().map(move |variance| 1.0 / (variance + epsilon).sqrt())
}

fn check(x: &[f32], channels: usize, places: usize) {
    assert!(
        !x.is_empty() && channels * places > 0 && x.len().is_multiple_of(channels * places),
        "{channels} channels of {places} places do not divide {} values",
        x.len()
    );
}

kernel!(fn moments_of_planes(x: &[f32], places: usize, sums: &mut [[f32; 3]]) = moments_of_planes_body);
/// About where a plane's values are, what is left of their sum there, and their squares around it.
#[inline(always)]
fn moments_of_planes_body<V: Vector>(x: &[f32], places: usize, sums: &mut [[f32; 3]]) {
    for (x, sums) in x.chunks_exact(places).zip(sums) {
        let whole = places - places % V::LANES;
        let mut sum = V::zero();
        for i in (0..places).step_by(V::LANES) {
            sum = sum.add(V::get(x, i));
        }
        let about = sum.sum() / places as f32;
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

kernel!(fn normalise_planes(x: &[f32], first: usize, places: usize, mean: &[f32], scale: &[f32], bias: &[f32], out: &mut [f32]) = normalise_planes_body);
#[inline(always)]
fn normalise_planes_body<V: Vector>(
    x: &[f32],
    first: usize,
    places: usize,
    mean: &[f32],
    scale: &[f32],
    bias: &[f32],
    out: &mut [f32],
) {
    for (plane, (x, out)) in x.chunks_exact(places).zip(out.chunks_exact_mut(places)).enumerate() {
        let channel = (first + plane) % mean.len();
        let (mean, scale, bias) = (V::splat(mean[channel]), V::splat(scale[channel]), V::splat(bias[channel]));
        for i in (0..places).step_by(V::LANES) {
            V::get(x, i).sub(mean).fma(scale, bias).put(out, i);
        }
    }
}

kernel!(fn gradients_of_planes(x: &[f32], grad: &[f32], first: usize, places: usize, mean: &[f32], sums: &mut [[f32; 3]]) = gradients_of_planes_body);
/// The sum of the gradient, and of its product with the centred input.
#[inline(always)]
fn gradients_of_planes_body<V: Vector>(
    x: &[f32],
    grad: &[f32],
    first: usize,
    places: usize,
    mean: &[f32],
    sums: &mut [[f32; 3]],
) {
    for (plane, ((x, grad), sums)) in x.chunks_exact(places).zip(grad.chunks_exact(places)).zip(sums).enumerate() {
        let mean = V::splat(mean[(first + plane) % mean.len()]);
        let (mut sum, mut product) = (V::zero(), V::zero());
        for i in (0..places).step_by(V::LANES) {
            // the gradient is zero in lanes that a short plane lacks, so they add nothing
            let slope = V::get(grad, i);
            sum = sum.add(slope);
            product = slope.fma(V::get(x, i).sub(mean), product);
        }
        *sums = [sum.sum(), product.sum(), 0.0];
    }
}

kernel!(fn combine_planes(x: &[f32], grad: &[f32], first: usize, places: usize, mean: &[f32], line: &[[f32; 3]], out: &mut [f32]) = combine_planes_body);
#[inline(always)]
fn combine_planes_body<V: Vector>(
    x: &[f32],
    grad: &[f32],
    first: usize,
    places: usize,
    mean: &[f32],
    line: &[[f32; 3]],
    out: &mut [f32],
) {
    for (plane, out) in out.chunks_exact_mut(places).enumerate() {
        let (x, grad) = (&x[plane * places..][..places], &grad[plane * places..][..places]);
        let channel = (first + plane) % mean.len();
        let mean = V::splat(mean[channel]);
        let [slope, pull, offset] = line[channel].map(V::splat);
        for i in (0..places).step_by(V::LANES) {
            let moved = V::get(x, i).sub(mean).fma(pull, offset);
            V::get(grad, i).fma(slope, moved).put(out, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const EPSILON: f32 = 1e-2;

    /// Batch, channels, places: rows shorter than a vector, as long, longer, and with a rest.
    const SHAPES: &[[usize; 3]] = &[[4, 3, 1], [2, 1, 5], [3, 4, 16], [2, 5, 49], [1, 2, 130]];

    #[test]
    fn every_path_equals_the_definition_and_its_differences_in_training() {
        for &[batch, channels, places] in SHAPES {
            let len = batch * channels * places;
            let (x, weight, bias, grad) = (noise(len, 1), noise(channels, 2), noise(channels, 3), noise(len, 4));
            let definition = |p: &[Vec<f64>]| {
                let found = naive::batch_moments(&p[0], channels, places);
                naive::batch_norm(&p[0], &p[1], &p[2], &found, f64::from(EPSILON), places)
            };
            for &path in Path::available() {
                with_path(path, || {
                    let found = moments(&x, channels, places);
                    let out = batch_norm(&x, &weight, &bias, &found, EPSILON, places);
                    assert_close(&out, &definition(&[wide(&x), wide(&weight), wide(&bias)]), 5e-6);
                    let grads = batch_norm_backward(&x, &weight, &found, Statistics::Batch, EPSILON, places, &grad);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, definition);
                });
            }
        }
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences_in_evaluation() {
        for &[batch, channels, places] in SHAPES {
            let len = batch * channels * places;
            let (x, weight, bias, grad) = (noise(len, 1), noise(channels, 2), noise(channels, 3), noise(len, 4));
            let variance = noise(channels, 6).iter().map(|x| x + 1.5).collect();
            let given = Moments { mean: noise(channels, 5), variance, count: 1 };
            let definition = |p: &[Vec<f64>]| {
                let given = [wide(&given.mean), wide(&given.variance)];
                naive::batch_norm(&p[0], &p[1], &p[2], &given, f64::from(EPSILON), places)
            };
            for &path in Path::available() {
                with_path(path, || {
                    let out = batch_norm(&x, &weight, &bias, &given, EPSILON, places);
                    assert_close(&out, &definition(&[wide(&x), wide(&weight), wide(&bias)]), 5e-6);
                    let grads = batch_norm_backward(&x, &weight, &given, Statistics::Given, EPSILON, places, &grad);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, definition);
                });
            }
        }
    }

    #[test]
    fn moments_keep_their_digits_far_from_zero() {
        let [batch, channels, places] = [6, 2, 75];
        let x: Vec<f32> = noise(batch * channels * places, 1).iter().map(|x| x + 1000.0).collect();
        let expected = naive::batch_moments(&wide(&x), channels, places);
        for &path in Path::available() {
            with_path(path, || {
                let found = moments(&x, channels, places);
                assert_close(&found.mean, &expected[0], 1e-4);
                assert_close(&found.variance, &expected[1], 1e-6);
                assert_eq!(found.count, batch * places);
            });
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let [batch, channels, places] = [12, 7, 900];
        let len = batch * channels * places;
        let (x, weight, grad) = (noise(len, 1), noise(channels, 2), noise(len, 3));
        assert_same_on_threads(|| {
            let found = moments(&x, channels, places);
            let out = batch_norm(&x, &weight, &weight, &found, 1e-5, places);
            let grads = batch_norm_backward(&x, &weight, &found, Statistics::Batch, 1e-5, places, &grad);
            [vec![found.mean, found.variance, out], grads.to_vec()].concat()
        });
    }
}
