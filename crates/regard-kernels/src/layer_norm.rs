//! Layer normalisation of rows.

use crate::elementwise::{add_all, piece, rows_per_task, written_with};
use crate::parallel::{LINE, with_scratch};
use crate::simd::{Vector, kernel, lanes_of_rest};
use crate::uninit::UninitWriter;

/// The output and, for the backward pass, `[mean, 1/deviation]` of every row.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> (Vec<f32>, Vec<f32>) {
    let width = weight.len();
    check(x, weight, bias);
    let task = rows_per_task(width) * width;
    let (out, statistics) = written_with(x.len(), task, |index, out| {
        let x = piece(x, index, task);
        let mut statistics = vec![0.0; x.len() / width * 2];
        forward_rows(x, weight, bias, epsilon, out, &mut statistics);
        statistics
    });
    (out, statistics.concat())
}

/// Gradients of the input, the weight and the bias.
pub fn layer_norm_backward(x: &[f32], weight: &[f32], statistics: &[f32], grad: &[f32]) -> [Vec<f32>; 3] {
    let width = weight.len();
    check(x, weight, weight);
    assert_eq!(x.len(), grad.len(), "input and gradient differ in length");
    let task = rows_per_task(width);
    let (input_grad, partials) = written_with(x.len(), task * width, |index, out| {
        let [x, grad] = [x, grad].map(|x| piece(x, index, task * width));
        backward_rows(x, weight, piece(statistics, index, task * 2), grad, out)
    });
    let mut weight_grad = vec![0.0; width * 2];
    add_all(&mut weight_grad, partials);
    let bias_grad = weight_grad.split_off(width);
    [input_grad, weight_grad, bias_grad]
}

fn check(x: &[f32], weight: &[f32], bias: &[f32]) {
    assert_eq!(weight.len(), bias.len(), "weight and bias differ in length");
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "rows of {} do not divide {} values",
        weight.len(),
        x.len()
    );
}

kernel!(pub(crate) fn forward_rows<'a, 'b>(x: &'a [f32], weight: &'a [f32], bias: &'a [f32], epsilon: f32, out: &'a mut UninitWriter<'b>, statistics: &'a mut [f32]) = forward_rows_body);
#[inline(always)]
fn forward_rows_body<V: Vector>(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    out: &mut UninitWriter,
    statistics: &mut [f32],
) {
    let width = weight.len();
    let (count, whole) = (width as f32, width / V::LANES * V::LANES);
    // vectors that need no check, and what is left of a row: fewer lanes than a vector has, maybe none
    let ((weight, weight_rest), (bias, bias_rest)) = (weight.split_at(whole), bias.split_at(whole));
    let (weight_rest, bias_rest) = (V::get(weight_rest, 0), V::get(bias_rest, 0));
    let present = lanes_of_rest::<V>(width);
    let mut out = out.local();
    for (x, statistics) in x.chunks_exact(width).zip(statistics.chunks_exact_mut(2)) {
        let (x, rest) = x.split_at(whole);
        let rest = V::get(rest, 0);
        let mut sum = rest;
        for x in x.chunks_exact(V::LANES) {
            sum = sum.add(V::get(x, 0));
        }
        let mean = sum.sum() / count;
        let centre = V::splat(mean);
        // lanes that a row lacks are zero, not the mean
        let rest = rest.sub(centre).mul(present);
        let mut squares = rest.mul(rest);
        for x in x.chunks_exact(V::LANES) {
            let centred = V::get(x, 0).sub(centre);
            squares = centred.fma(centred, squares);
        }
        let scale = 1.0 / (squares.sum() / count + epsilon).sqrt();
        statistics.copy_from_slice(&[mean, scale]);
        let scale = V::splat(scale);
        let lines = weight.chunks_exact(V::LANES).zip(bias.chunks_exact(V::LANES));
        for (x, (weight, bias)) in x.chunks_exact(V::LANES).zip(lines) {
            out.push_vector(V::get(x, 0).sub(centre).mul(scale).fma(V::get(weight, 0), V::get(bias, 0)));
        }
        if whole < width {
            out.push(rest.mul(scale).fma(weight_rest, bias_rest), width - whole);
        }
    }
    out.finish();
}

/// Writes the gradient of some rows; returns what they add to the gradients of weight and bias, one after the other.
pub(crate) fn backward_rows(
    x: &[f32],
    weight: &[f32],
    statistics: &[f32],
    grad: &[f32],
    input_grad: &mut UninitWriter,
) -> Vec<f32> {
    let width = weight.len();
    // sums that every row adds to: each begins with a cache line
    let room = width.next_multiple_of(LINE);
    with_scratch(2 * room, |sums| {
        sums.fill(0.0);
        let (weight_grad, bias_grad) = sums.split_at_mut(room);
        let (weight_grad, bias_grad) = (&mut weight_grad[..width], &mut bias_grad[..width]);
        add_rows_backward(x, weight, statistics, grad, input_grad, (&mut *weight_grad, &mut *bias_grad));
        [&*weight_grad, bias_grad].concat()
    })
}

kernel!(fn add_rows_backward<'a, 'b>(x: &'a [f32], weight: &'a [f32], statistics: &'a [f32], grad: &'a [f32], input_grad: &'a mut UninitWriter<'b>, sums: (&'a mut [f32], &'a mut [f32])) = backward_rows_body);
#[inline(always)]
fn backward_rows_body<V: Vector>(
    x: &[f32],
    weight: &[f32],
    statistics: &[f32],
    grad: &[f32],
    input_grad: &mut UninitWriter,
    (weight_grad, bias_grad): (&mut [f32], &mut [f32]),
) {
    let mut input_grad = input_grad.local();
    let width = weight.len();
    let whole = width / V::LANES * V::LANES;
    let (weight_grad, weight_grad_rest) = weight_grad.split_at_mut(whole);
    let (bias_grad, bias_grad_rest) = bias_grad.split_at_mut(whole);
    let (weight, weight_rest) = weight.split_at(whole);
    let weight_rest = V::get(weight_rest, 0);
    let (mut weight_grad_sum, mut bias_grad_sum) = (V::get(weight_grad_rest, 0), V::get(bias_grad_rest, 0));
    for ((x, grad), statistics) in x.chunks_exact(width).zip(grad.chunks_exact(width)).zip(statistics.chunks_exact(2)) {
        let (mean, scale) = (V::splat(statistics[0]), V::splat(statistics[1]));
        let ((x, rest), (grad, grad_rest)) = (x.split_at(whole), grad.split_at(whole));
        let (rest, grad_rest) = (V::get(rest, 0).sub(mean).mul(scale), V::get(grad_rest, 0));
        // the gradient is zero in lanes that a row lacks, so they add nothing
        let slope_rest = grad_rest.mul(weight_rest);
        let (mut sum, mut product) = (slope_rest, slope_rest.mul(rest));
        let grads = weight_grad.chunks_exact_mut(V::LANES).zip(bias_grad.chunks_exact_mut(V::LANES));
        let rows = x.chunks_exact(V::LANES).zip(grad.chunks_exact(V::LANES));
        for (((x, grad), weight), (weight_grad, bias_grad)) in rows.zip(weight.chunks_exact(V::LANES)).zip(grads) {
            let (normal, grad) = (V::get(x, 0).sub(mean).mul(scale), V::get(grad, 0));
            grad.fma(normal, V::get(weight_grad, 0)).put(weight_grad, 0);
            grad.add(V::get(bias_grad, 0)).put(bias_grad, 0);
            let slope = grad.mul(V::get(weight, 0));
            sum = sum.add(slope);
            product = slope.fma(normal, product);
        }
        let sum = V::splat(sum.sum() / width as f32);
        let product = V::splat(product.sum() / width as f32);
        let rows = x.chunks_exact(V::LANES).zip(grad.chunks_exact(V::LANES));
        for ((x, grad), weight) in rows.zip(weight.chunks_exact(V::LANES)) {
            let normal = V::get(x, 0).sub(mean).mul(scale);
            let slope = V::get(grad, 0).mul(V::get(weight, 0));
            input_grad.push_vector(slope.sub(sum).sub(normal.mul(product)).mul(scale));
        }
        if whole < width {
            weight_grad_sum = grad_rest.fma(rest, weight_grad_sum);
            bias_grad_sum = bias_grad_sum.add(grad_rest);
            input_grad.push(slope_rest.sub(sum).sub(rest.mul(product)).mul(scale), width - whole);
        }
    }
    input_grad.finish();
    weight_grad_sum.put(weight_grad_rest, 0);
    bias_grad_sum.put(bias_grad_rest, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        for width in [1, 5, 16, 40, 192] {
            let (x, weight, bias, grad) = (noise(width * 6, 1), noise(width, 2), noise(width, 3), noise(width * 6, 4));
            for &path in Path::available() {
                with_path(path, || {
                    let (out, statistics) = layer_norm(&x, &weight, &bias, 1e-2);
                    assert_close(&out, &naive::layer_norm(&wide(&x), &wide(&weight), &wide(&bias), 1e-2), 5e-6);
                    let grads = layer_norm_backward(&x, &weight, &statistics, &grad);
                    assert_differences(&[&x, &weight, &bias], &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                        naive::layer_norm(&p[0], &p[1], &p[2], 1e-2)
                    });
                });
            }
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (x, weight, grad) = (noise(900 * 70, 1), noise(70, 2), noise(900 * 70, 3));
        assert_same_on_threads(|| {
            let (out, statistics) = layer_norm(&x, &weight, &weight, 1e-6);
            let grads = layer_norm_backward(&x, &weight, &statistics, &grad);
            [[out].to_vec(), grads.to_vec()].concat()
        });
    }
}
