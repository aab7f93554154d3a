//! Layer normalisation of rows.

use crate::elementwise::{add_all, piece, rows_per_task, written_with};
use crate::simd::{Vector, kernel};
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
        let mut partial = vec![0.0; width * 2];
        backward_rows(x, weight, piece(statistics, index, task * 2), grad, out, &mut partial);
        partial
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
    let count = width as f32;
    let whole = width / V::LANES * V::LANES;
    let mut out = out.local();
    for (x, statistics) in x.chunks_exact(width).zip(statistics.chunks_exact_mut(2)) {
        let mut sum = V::zero();
        for i in (0..width).step_by(V::LANES) {
            sum = sum.add(V::get(x, i));
        }
        let mean = sum.sum() / count;
        let mut squares = V::zero();
        for i in (0..whole).step_by(V::LANES) {
            let centred = V::get(x, i).sub(V::splat(mean));
            squares = centred.fma(centred, squares);
        }
        if whole < width {
            // the missing lanes of a short vector are zero, not the mean: a centred copy leaves them out
            let mut copy = [0.0; 16];
            let copy = &mut copy[..width - whole];
            V::get(x, whole).sub(V::splat(mean)).put(copy, 0);
            let centred = V::get(copy, 0);
            squares = centred.fma(centred, squares);
        }
        let scale = 1.0 / (squares.sum() / count + epsilon).sqrt();
        for i in (0..width).step_by(V::LANES) {
            let normal = V::get(x, i).sub(V::splat(mean)).mul(V::splat(scale));
            out.push(normal.fma(V::get(weight, i), V::get(bias, i)), width - i);
        }
        statistics.copy_from_slice(&[mean, scale]);
    }
    out.finish();
}

kernel!(pub(crate) fn backward_rows<'a, 'b>(x: &'a [f32], weight: &'a [f32], statistics: &'a [f32], grad: &'a [f32], input_grad: &'a mut UninitWriter<'b>, partial: &'a mut [f32]) = backward_rows_body);
#[inline(always)]
fn backward_rows_body<V: Vector>(
    x: &[f32],
    weight: &[f32],
    statistics: &[f32],
    grad: &[f32],
    input_grad: &mut UninitWriter,
    partial: &mut [f32],
) {
    let mut input_grad = input_grad.local();
    let width = weight.len();
    let (weight_grad, bias_grad) = partial.split_at_mut(width);
    for ((x, grad), statistics) in x.chunks_exact(width).zip(grad.chunks_exact(width)).zip(statistics.chunks_exact(2)) {
        let (mean, scale) = (V::splat(statistics[0]), V::splat(statistics[1]));
        let (mut sum, mut product) = (V::zero(), V::zero());
        for i in (0..width).step_by(V::LANES) {
            let normal = V::get(x, i).sub(mean).mul(scale);
            let slope = V::get(grad, i);
            slope.fma(normal, V::get(weight_grad, i)).put(weight_grad, i);
            slope.add(V::get(bias_grad, i)).put(bias_grad, i);
            // the gradient is zero in lanes that a short row lacks, so they add nothing
            let slope = slope.mul(V::get(weight, i));
            sum = sum.add(slope);
            product = slope.fma(normal, product);
        }
        let sum = V::splat(sum.sum() / width as f32);
        let product = V::splat(product.sum() / width as f32);
        for i in (0..width).step_by(V::LANES) {
            let normal = V::get(x, i).sub(mean).mul(scale);
            let slope = V::get(grad, i).mul(V::get(weight, i));
            input_grad.push(slope.sub(sum).sub(normal.mul(product)).mul(scale), width - i);
        }
    }
    input_grad.finish();
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
