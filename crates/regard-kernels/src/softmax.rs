//! Softmax and log-softmax over rows.

use crate::elementwise::{piece, rows_per_task, written};
use crate::math::exp_of_negative;
use crate::simd::{Vector, kernel, lanes_of_rest};
use crate::uninit::UninitWriter;

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

fn each_row(x: &[f32], width: usize, rows: fn(&[f32], &mut UninitWriter, usize)) -> Vec<f32> {
    assert!(width > 0 && x.len().is_multiple_of(width), "softmax: rows of {width} do not divide {} values", x.len());
    let task = rows_per_task(width) * width;
    written(x.len(), task, |index, out| rows(piece(x, index, task), out, width))
}

fn each_row_pair(
    out: &[f32],
    grad: &[f32],
    width: usize,
    rows: fn(&[f32], &[f32], &mut UninitWriter, usize),
) -> Vec<f32> {
    assert_eq!(out.len(), grad.len(), "softmax: output and gradient differ in length");
    assert!(
        width > 0 && out.len().is_multiple_of(width),
        "softmax: rows of {width} do not divide {} values",
        out.len()
    );
    let task = rows_per_task(width) * width;
    written(out.len(), task, |index, input_grad| {
        rows(piece(out, index, task), piece(grad, index, task), input_grad, width);
    })
}

kernel!(fn softmax_rows<'a, 'b>(x: &'a [f32], out: &'a mut UninitWriter<'b>, width: usize) = softmax_rows_body);
#[inline(always)]
fn softmax_rows_body<V: Vector>(x: &[f32], out: &mut UninitWriter, width: usize) {
    let whole = width / V::LANES * V::LANES;
    for x in x.chunks_exact(width) {
        let largest = V::splat(self::largest::<V>(x));
        let (x, rest) = x.split_at(whole);
        let rest = exp_of_negative(rest_or_lowest(V::get(rest, 0), width).sub(largest));
        let (mut sum, start) = (rest, out.len());
        let mut exponentials = out.local();
        for x in x.chunks_exact(V::LANES) {
            let exponential = exp_of_negative(V::get(x, 0).sub(largest));
            sum = sum.add(exponential);
            exponentials.push_vector(exponential);
        }
        exponentials.finish();
        let scale = V::splat(1.0 / sum.sum());
        for out in out.written()[start..].chunks_exact_mut(V::LANES) {
            V::get(out, 0).mul(scale).put(out, 0);
        }
        let mut last = out.local();
        last.push(rest.mul(scale), width - whole);
        last.finish();
    }
}

kernel!(fn log_softmax_rows<'a, 'b>(x: &'a [f32], out: &'a mut UninitWriter<'b>, width: usize) = log_softmax_rows_body);
#[inline(always)]
fn log_softmax_rows_body<V: Vector>(x: &[f32], out: &mut UninitWriter, width: usize) {
    let whole = width / V::LANES * V::LANES;
    let mut out = out.local();
    for x in x.chunks_exact(width) {
        let largest = largest::<V>(x);
        let (x, rest) = x.split_at(whole);
        let rest = V::get(rest, 0);
        let mut sum = exp_of_negative(rest_or_lowest(rest, width).sub(V::splat(largest)));
        for x in x.chunks_exact(V::LANES) {
            sum = sum.add(exp_of_negative(V::get(x, 0).sub(V::splat(largest))));
        }
        let shift = V::splat(largest + sum.sum().ln());
        for x in x.chunks_exact(V::LANES) {
            out.push_vector(V::get(x, 0).sub(shift));
        }
        out.push(rest.sub(shift), width - whole);
    }
    out.finish();
}

kernel!(fn softmax_backward_rows<'a, 'b>(out: &'a [f32], grad: &'a [f32], input_grad: &'a mut UninitWriter<'b>, width: usize) = softmax_backward_rows_body);
#[inline(always)]
fn softmax_backward_rows_body<V: Vector>(out: &[f32], grad: &[f32], input_grad: &mut UninitWriter, width: usize) {
    let whole = width / V::LANES * V::LANES;
    let mut input_grad = input_grad.local();
    for (out, grad) in out.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let ((out, rest), (grad, grad_rest)) = (out.split_at(whole), grad.split_at(whole));
        let (rest, grad_rest) = (V::get(rest, 0), V::get(grad_rest, 0));
        let mut dot = rest.mul(grad_rest);
        for (out, grad) in out.chunks_exact(V::LANES).zip(grad.chunks_exact(V::LANES)) {
            dot = V::get(out, 0).fma(V::get(grad, 0), dot);
        }
        let dot = V::splat(dot.sum());
        for (out, grad) in out.chunks_exact(V::LANES).zip(grad.chunks_exact(V::LANES)) {
            input_grad.push_vector(V::get(out, 0).mul(V::get(grad, 0).sub(dot)));
        }
        input_grad.push(rest.mul(grad_rest.sub(dot)), width - whole);
    }
    input_grad.finish();
}

kernel!(fn log_softmax_backward_rows<'a, 'b>(out: &'a [f32], grad: &'a [f32], input_grad: &'a mut UninitWriter<'b>, width: usize) = log_softmax_backward_rows_body);
#[inline(always)]
fn log_softmax_backward_rows_body<V: Vector>(out: &[f32], grad: &[f32], input_grad: &mut UninitWriter, width: usize) {
    let whole = width / V::LANES * V::LANES;
    let mut input_grad = input_grad.local();
    for (out, grad) in out.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let ((out, rest), (grad, grad_rest)) = (out.split_at(whole), grad.split_at(whole));
        let (rest, grad_rest) = (V::get(rest, 0), V::get(grad_rest, 0));
        let mut sum = grad_rest;
        for grad in grad.chunks_exact(V::LANES) {
            sum = V::get(grad, 0).add(sum);
        }
        let sum = V::splat(0.0 - sum.sum());
        for (out, grad) in out.chunks_exact(V::LANES).zip(grad.chunks_exact(V::LANES)) {
            input_grad.push_vector(exp_of_negative(V::get(out, 0)).fma(sum, V::get(grad, 0)));
        }
        input_grad.push(exp_of_negative(rest).fma(sum, grad_rest), width - whole);
    }
    input_grad.finish();
}

/// The last elements of a row, if these are not a whole vector; below everything in the lanes that are missing.
#[inline(always)]
pub(crate) fn rest_or_lowest<V: Vector>(rest: V, width: usize) -> V {
    lanes_of_rest::<V>(width).positive(rest, V::splat(f32::NEG_INFINITY))
}

/// The largest element of a row.
#[inline(always)]
pub(crate) fn largest<V: Vector>(x: &[f32]) -> f32 {
    let vectors = x.chunks_exact(V::LANES);
    let mut largest = rest_or_lowest::<V>(V::get(vectors.remainder(), 0), x.len());
    for x in vectors {
        largest = largest.max(V::get(x, 0));
    }
    largest.max_lane()
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
