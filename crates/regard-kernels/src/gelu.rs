//! The exact GELU, `x` times the normal distribution at `x`, alone and after adding a bias to rows.

use crate::elementwise::{add_all, piece, rows_per_task, written, written_with};
use crate::math::normal;
use crate::simd::{Vector, kernel};
use crate::uninit::UninitWriter;

/// GELU of every element; absolute error below 1e-6.
pub fn gelu(x: &[f32]) -> Vec<f32> {
    let task = rows_per_task(1);
    written(x.len(), task, |index, out| forward(piece(x, index, task), &[], out))
}

/// Gradient of [`gelu`].
pub fn gelu_backward(x: &[f32], grad: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), grad.len(), "input and gradient differ in length");
    let task = rows_per_task(1);
    written(x.len(), task, |index, out| backward(piece(x, index, task), &[], piece(grad, index, task), out))
}

/// `gelu(x + bias)` for rows as long as the bias.
pub fn bias_gelu(x: &[f32], bias: &[f32]) -> Vec<f32> {
    check(x, bias);
    let task = rows_per_task(bias.len()) * bias.len();
    written(x.len(), task, |index, out| {
        piece(x, index, task).chunks_exact(bias.len()).for_each(|x| forward(x, bias, out));
    })
}

/// Gradients of the input and the bias of [`bias_gelu`].
pub fn bias_gelu_backward(x: &[f32], bias: &[f32], grad: &[f32]) -> [Vec<f32>; 2] {
    check(x, bias);
    assert_eq!(x.len(), grad.len(), "input and gradient differ in length");
    let width = bias.len();
    let task = rows_per_task(width) * width;
    let (input_grad, partials) = written_with(x.len(), task, |index, out| {
        let mut partial = vec![0.0; width];
        for (x, grad) in piece(x, index, task).chunks_exact(width).zip(piece(grad, index, task).chunks_exact(width)) {
            let start = out.len();
            backward(x, bias, grad, out);
            partial.iter_mut().zip(&out.written()[start..]).for_each(|(sum, g)| *sum += g);
        }
        partial
    });
    let mut bias_grad = vec![0.0; width];
    add_all(&mut bias_grad, partials);
    [input_grad, bias_grad]
}

fn check(x: &[f32], bias: &[f32]) {
    assert!(
        !bias.is_empty() && x.len().is_multiple_of(bias.len()),
        "rows of {} do not divide {} values",
        bias.len(),
        x.len()
    );
}

/// The sum of `x` and a bias that may be absent.
#[inline(always)]
fn biased<V: Vector>(x: &[f32], bias: &[f32], i: usize) -> V {
    if bias.is_empty() { V::get(x, i) } else { V::get(x, i).add(V::get(bias, i)) }
}

kernel!(pub(crate) fn forward<'a, 'b>(x: &'a [f32], bias: &'a [f32], out: &'a mut UninitWriter<'b>) = forward_body);
#[inline(always)]
fn forward_body<V: Vector>(x: &[f32], bias: &[f32], out: &mut UninitWriter) {
    let (whole, mut out) = (x.len() / V::LANES * V::LANES, out.local());
    for i in (0..whole).step_by(V::LANES) {
        let value = biased::<V>(x, bias, i);
        out.push_vector(value.mul(normal(value).1));
    }
    if whole < x.len() {
        let value = biased::<V>(x, bias, whole);
        out.push(value.mul(normal(value).1), x.len() - whole);
    }
    out.finish();
}

kernel!(
    /// The same in the place of its input.
    pub(crate) fn in_place<'a>(x: &'a mut [f32]) = in_place_body
);
#[inline(always)]
fn in_place_body<V: Vector>(x: &mut [f32]) {
    for i in (0..x.len()).step_by(V::LANES) {
        let value = V::get(x, i);
        value.mul(normal(value).1).put(x, i);
    }
}

kernel!(pub(crate) fn backward<'a, 'b>(x: &'a [f32], bias: &'a [f32], grad: &'a [f32], input_grad: &'a mut UninitWriter<'b>) = backward_body);
#[inline(always)]
fn backward_body<V: Vector>(x: &[f32], bias: &[f32], grad: &[f32], input_grad: &mut UninitWriter) {
    let (whole, mut input_grad) = (x.len() / V::LANES * V::LANES, input_grad.local());
    for i in (0..whole).step_by(V::LANES) {
        let value = biased::<V>(x, bias, i);
        let (density, distribution) = normal(value);
        input_grad.push_vector(value.fma(density, distribution).mul(V::get(grad, i)));
    }
    if whole < x.len() {
        let value = biased::<V>(x, bias, whole);
        let (density, distribution) = normal(value);
        input_grad.push(value.fma(density, distribution).mul(V::get(grad, whole)), x.len() - whole);
    }
    input_grad.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    #[test]
    fn the_error_is_below_a_millionth_on_every_path() {
        let x: Vec<f32> = (-100_000..100_000).map(|i| i as f32 * 1e-4).collect();
        for &path in Path::available() {
            let out = with_path(path, || gelu(&x));
            assert_close(&out, &naive::gelu(&wide(&x)), 1e-6);
        }
    }

    #[test]
    fn gradients_are_differences_on_every_path() {
        let (x, bias, grad) = (noise(7 * 19, 1), noise(19, 2), noise(7 * 19, 3));
        for &path in Path::available() {
            with_path(path, || {
                assert_differences(&[&x], &[&gelu_backward(&x, &grad)], &grad, |p| naive::gelu(&p[0]));
                assert_close(&bias_gelu(&x, &bias), &naive::bias_gelu(&wide(&x), &wide(&bias)), 1e-6);
                let grads = bias_gelu_backward(&x, &bias, &grad);
                assert_differences(&[&x, &bias], &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                    naive::bias_gelu(&p[0], &p[1])
                });
            });
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (x, bias, grad) = (noise(900 * 70, 1), noise(70, 2), noise(900 * 70, 3));
        assert_same_on_threads(|| {
            let [input_grad, bias_grad] = bias_gelu_backward(&x, &bias, &grad);
            vec![gelu(&x), gelu_backward(&x, &grad), bias_gelu(&x, &bias), input_grad, bias_grad]
        });
    }
}
