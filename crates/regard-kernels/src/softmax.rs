//! Softmax and log-softmax over rows.

use rayon::prelude::*;

use crate::elementwise::rows_per_task;
use crate::math::exp_of_negative;
use crate::simd::{Vector, kernel};

/// Softmax of every row of `width`.
pub fn softmax(x: &[f32], width: usize) -> Vec<f32> {
    each_row(x, width, softmax_rows)
}

/// Logarithm of the softmax of every row of `width`.
pub fn log_softmax(x: &[f32], width: usize) -> Vec<f32> {
    each_row(x, width, log_softmax_rows)
}

/// Gradient of [`softmax`] from its output.
pub fn softmax_backward(out: &[f32], grad: &[f32], width: usize) -> Vec<f32> {
    each_row_pair(out, grad, width, softmax_backward_rows)
}

/// Gradient of [`log_softmax`] from its output.
pub fn log_softmax_backward(out: &[f32], grad: &[f32], width: usize) -> Vec<f32> {
    each_row_pair(out, grad, width, log_softmax_backward_rows)
}

fn each_row(x: &[f32], width: usize, rows: fn(&[f32], &mut [f32], usize)) -> Vec<f32> {
    assert!(width > 0 && x.len().is_multiple_of(width), "softmax: rows of {width} do not divide {} values", x.len());
    let mut out = vec![0.0; x.len()];
    let task = rows_per_task(width) * width;
    out.par_chunks_mut(task).zip(x.par_chunks(task)).for_each(|(out, x)| rows(x, out, width));
    out
}

fn each_row_pair(out: &[f32], grad: &[f32], width: usize, rows: fn(&[f32], &[f32], &mut [f32], usize)) -> Vec<f32> {
    assert_eq!(out.len(), grad.len(), "softmax: output and gradient differ in length");
    assert!(
        width > 0 && out.len().is_multiple_of(width),
        "softmax: rows of {width} do not divide {} values",
        out.len()
    );
    let mut input_grad = vec![0.0; out.len()];
    let task = rows_per_task(width) * width;
    (input_grad.par_chunks_mut(task), out.par_chunks(task), grad.par_chunks(task))
        .into_par_iter()
        .for_each(|(input_grad, out, grad)| rows(out, grad, input_grad, width));
    input_grad
}

kernel!(fn softmax_rows<'a>(x: &'a [f32], out: &'a mut [f32], width: usize) = softmax_rows_body);
#[inline(always)]
fn softmax_rows_body<V: Vector>(x: &[f32], out: &mut [f32], width: usize) {
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let largest = largest::<V>(x);
        let mut sum = 0.0;
        for i in (0..width).step_by(V::LANES) {
            exp_of_negative(V::get(x, i).sub(V::splat(largest))).put(out, i);
        }
        for i in (0..width).step_by(V::LANES) {
            sum += V::get(out, i).sum();
        }
        let scale = V::splat(1.0 / sum);
        for i in (0..width).step_by(V::LANES) {
            V::get(out, i).mul(scale).put(out, i);
        }
    }
}

kernel!(fn log_softmax_rows<'a>(x: &'a [f32], out: &'a mut [f32], width: usize) = log_softmax_rows_body);
#[inline(always)]
fn log_softmax_rows_body<V: Vector>(x: &[f32], out: &mut [f32], width: usize) {
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let largest = largest::<V>(x);
        let mut sum = 0.0;
        for i in (0..width).step_by(V::LANES) {
            exp_of_negative(V::get(x, i).sub(V::splat(largest))).put(out, i);
            sum += V::get(&out[..width], i).sum();
        }
        let shift = V::splat(largest + sum.ln());
        for i in (0..width).step_by(V::LANES) {
            V::get(x, i).sub(shift).put(out, i);
        }
    }
}

kernel!(fn softmax_backward_rows<'a>(out: &'a [f32], grad: &'a [f32], input_grad: &'a mut [f32], width: usize) = softmax_backward_rows_body);
#[inline(always)]
fn softmax_backward_rows_body<V: Vector>(out: &[f32], grad: &[f32], input_grad: &mut [f32], width: usize) {
    for ((out, grad), input_grad) in
        out.chunks_exact(width).zip(grad.chunks_exact(width)).zip(input_grad.chunks_exact_mut(width))
    {
        let mut dot = V::zero();
        for i in (0..width).step_by(V::LANES) {
            dot = V::get(out, i).fma(V::get(grad, i), dot);
        }
        let dot = V::splat(dot.sum());
        for i in (0..width).step_by(V::LANES) {
            V::get(out, i).mul(V::get(grad, i).sub(dot)).put(input_grad, i);
        }
    }
}

kernel!(fn log_softmax_backward_rows<'a>(out: &'a [f32], grad: &'a [f32], input_grad: &'a mut [f32], width: usize) = log_softmax_backward_rows_body);
#[inline(always)]
fn log_softmax_backward_rows_body<V: Vector>(out: &[f32], grad: &[f32], input_grad: &mut [f32], width: usize) {
    for ((out, grad), input_grad) in
        out.chunks_exact(width).zip(grad.chunks_exact(width)).zip(input_grad.chunks_exact_mut(width))
    {
        let mut sum = V::zero();
        for i in (0..width).step_by(V::LANES) {
            sum = V::get(grad, i).add(sum);
        }
        let sum = V::splat(0.0 - sum.sum());
        for i in (0..width).step_by(V::LANES) {
            exp_of_negative(V::get(out, i)).fma(sum, V::get(grad, i)).put(input_grad, i);
        }
    }
}

/// The largest element of a row; the lanes that a short row lacks do not count.
#[inline(always)]
pub(crate) fn largest<V: Vector>(x: &[f32]) -> f32 {
    let whole = x.len() / V::LANES * V::LANES;
    let mut largest = V::splat(f32::NEG_INFINITY);
    for i in (0..whole).step_by(V::LANES) {
        largest = largest.max(V::get(x, i));
    }
    x[whole..].iter().fold(largest.max_lane(), |a, &b| if a > b { a } else { b })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;
    use crate::simd::{Path, with_path};
    use naive::{assert_close, assert_same_on_threads, noise};

    #[test]
    fn every_path_equals_the_definition() {
        for width in [1, 7, 16, 33, 197] {
            let (x, grad) = (noise(width * 5, 1), noise(width * 5, 2));
            let scaled: Vec<f32> = x.iter().map(|x| x * 10.0).collect();
            for &path in Path::available() {
                with_path(path, || {
                    let out = softmax(&scaled, width);
                    assert_close(&out, &naive::softmax(&scaled, width), 1e-6);
                    assert_close(
                        &softmax_backward(&out, &grad, width),
                        &naive::softmax_backward(&scaled, &grad, width),
                        1e-6,
                    );
                    let out = log_softmax(&scaled, width);
                    assert_close(&out, &naive::log_softmax(&scaled, width), 4e-6);
                    assert_close(
                        &log_softmax_backward(&out, &grad, width),
                        &naive::log_softmax_backward(&scaled, &grad, width),
                        2e-5,
                    );
                });
            }
        }
    }

    #[test]
    fn masked_entries_get_exactly_nothing() {
        let out = softmax(&[0.0, f32::NEG_INFINITY, 1.0], 3);
        assert_eq!(out[1], 0.0);
        assert!((out[0] + out[2] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (x, grad) = (noise(900 * 70, 1), noise(900 * 70, 2));
        assert_same_on_threads(|| {
            let (out, log) = (softmax(&x, 70), log_softmax(&x, 70));
            let grads = [softmax_backward(&out, &grad, 70), log_softmax_backward(&log, &grad, 70)];
            [vec![out, log], grads.to_vec()].concat()
        });
    }
}
