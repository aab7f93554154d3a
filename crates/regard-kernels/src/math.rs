//! Functions on vectors that no instruction gives: the exponential and the normal distribution.

use crate::simd::Vector;

/// `e^x`, relative error below 2e-7; 0 below -87.3, infinite above 88.7, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<V: Vector>(x: V) -> V {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.722_83;
    // limits first: `min` and `max` give their argument when it is NaN
    let clamped = V::splat(LOWEST).max(V::splat(HIGHEST).min(x));
    let n = clamped.mul(V::splat(std::f32::consts::LOG2_E)).round();
    // ln 2 in two parts: the first has few bits, so that n times it is exact
    let r = n.fma(V::splat(-0.693_359_4), clamped);
    let r = n.fma(V::splat(2.121_944_4e-4), r);
    let mut sum = V::splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum.fma(r, V::splat(coefficient));
    }
    // n reaches 128 at the top, one more than an exponent holds: scale in two halves
    let half = n.mul(V::splat(0.5)).round();
    let scaled = sum.scale_by_power(half).scale_by_power(n.sub(half));
    let scaled = x.sub(V::splat(HIGHEST)).positive(V::splat(f32::INFINITY), scaled);
    V::splat(LOWEST).sub(x).positive(V::zero(), scaled)
}

/// The same for what is not positive, in fewer steps: a softmax has nothing else.
#[inline(always)]
pub(crate) fn exp_of_negative<V: Vector>(x: V) -> V {
    const LOWEST: f32 = -87.3;
    let clamped = V::splat(LOWEST).max(x);
    let n = clamped.mul(V::splat(std::f32::consts::LOG2_E)).round();
    let r = n.fma(V::splat(-0.693_359_4), clamped);
    let r = n.fma(V::splat(2.121_944_4e-4), r);
    let mut sum = V::splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum.fma(r, V::splat(coefficient));
    }
    V::splat(LOWEST).sub(x).positive(V::zero(), sum.scale_by_power(n))
}

/// The hyperbolic tangent, absolute error below 2e-7.
#[inline(always)]
pub(crate) fn tanh<V: Vector>(x: V) -> V {
    let grown = exp(x.add(x)).add(V::splat(1.0));
    V::splat(1.0).sub(V::splat(2.0).div(grown))
}

/// `(density, distribution)` of the standard normal at `x`; absolute error of the second below 1e-7.
///
/// Abramowitz and Stegun 7.1.26 for the error function.
#[inline(always)]
pub(crate) fn normal<V: Vector>(x: V) -> (V, V) {
    let magnitude = x.max(V::zero().sub(x));
    let bell = exp(magnitude.mul(magnitude).mul(V::splat(-0.5)));
    let scale = V::splat(0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2);
    let t = V::splat(1.0).div(magnitude.fma(scale, V::splat(1.0)));
    let mut sum = V::splat(1.061_405_4);
    for coefficient in [-1.453_152, 1.421_413_8, -0.284_496_73, 0.254_829_6] {
        sum = sum.fma(t, V::splat(coefficient));
    }
    let tail = sum.mul(t).mul(bell).mul(V::splat(0.5));
    let distribution = x.positive(V::splat(1.0).sub(tail), tail);
    (bell.mul(V::splat(0.398_942_3)), distribution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Path, kernel, with_path};

    kernel!(fn exp_of<'a>(x: &'a mut [f32]) = exp_of_body);
    #[inline(always)]
    fn exp_of_body<V: Vector>(x: &mut [f32]) {
        for i in (0..x.len()).step_by(V::LANES) {
            exp(V::get(x, i)).put(x, i);
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place_on_every_path() {
        let inputs: Vec<f32> = (-87_000..88_700).map(|i| i as f32 * 1e-3).collect();
        for &path in Path::available() {
            let mut out = inputs.clone();
            with_path(path, || exp_of(&mut out));
            for (x, y) in inputs.iter().zip(&out) {
                let exact = f64::from(*x).exp();
                assert!(((f64::from(*y) - exact) / exact).abs() < 2e-7, "{path:?}: exp({x}) = {y}, not {exact}");
            }
        }
    }

    kernel!(fn exp_of_negatives<'a>(x: &'a mut [f32]) = exp_of_negatives_body);
    #[inline(always)]
    fn exp_of_negatives_body<V: Vector>(x: &mut [f32]) {
        for i in (0..x.len()).step_by(V::LANES) {
            exp_of_negative(V::get(x, i)).put(x, i);
        }
    }

    #[test]
    fn exp_of_what_is_not_positive_is_the_same_in_fewer_steps_on_every_path() {
        let inputs: Vec<f32> = (-90_000..=0).map(|i| i as f32 * 1e-3).chain([f32::NEG_INFINITY, -1e30]).collect();
        for &path in Path::available() {
            let [mut short, mut long] = [inputs.clone(), inputs.clone()];
            with_path(path, || exp_of_negatives(&mut short));
            with_path(path, || exp_of(&mut long));
            assert_eq!(short, long, "{path:?}");
            let mut nothing = [f32::NAN; 3];
            with_path(path, || exp_of_negatives(&mut nothing));
            assert!(nothing.iter().all(|x| x.is_nan()), "{path:?}");
        }
    }

    #[test]
    fn exp_keeps_nan_and_saturates_at_both_ends_on_every_path() {
        for &path in Path::available() {
            let mut out = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30, 0.0];
            with_path(path, || exp_of(&mut out));
            assert!(out[0].is_nan());
            assert_eq!(out[1..], [0.0, f32::INFINITY, 0.0, f32::INFINITY, 1.0], "{path:?}");
        }
    }
}
