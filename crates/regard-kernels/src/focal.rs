//! Focal loss: the sigmoid cross-entropy of every class, with little weight on easy examples.
//!
//! Lin et al. 2017, arXiv:1708.02002: `-alpha_t (1 - p_t)^gamma ln p_t`, as torchvision's `sigmoid_focal_loss`. For one
//! target per row (an anchor): a class, background, or ignored. With `z` the logit of a wrong answer (`x` for a
//! class that is not the target, `-x` for the target) an element is `p^gamma softplus(z)` of `p = sigmoid(z)`; its logarithm
//! and its power never round to zero or infinity. Loss and gradient come from one sweep.

use crate::elementwise::{piece, rows_per_task, written_with};
use crate::math::exp_of_negative;
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::{LocalWriter, UninitWriter};

/// The target of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FocalTarget {
    Class(u32),
    /// None of the classes.
    Background,
    /// No loss and no gradient, as of anchors between the thresholds.
    Ignored,
}

/// One target for each row of `classes` logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Focal {
    pub classes: usize,
    pub targets: Vec<FocalTarget>,
    /// A factor of the loss of each row, such as one over the number of objects of its picture.
    pub weights: Vec<f32>,
    /// Weight of targets, from 0 to 1; other classes have the remainder.
    pub alpha: f32,
    /// How fast the weight of easy examples falls; 0 is cross-entropy.
    pub gamma: f32,
}

impl Focal {
    /// The loss of all rows, and its gradient by the logits.
    #[must_use]
    pub fn loss_and_gradient(&self, logits: &[f32]) -> (f32, Vec<f32>) {
        self.check(logits);
        let task = rows_per_task(self.classes);
        let (gradient, losses) = written_with(logits.len(), task * self.classes, |index, out| {
            let logits = piece(logits, index, task * self.classes);
            rows(self, index * task, logits, out)
        });
        (losses.iter().sum::<f64>() as f32, gradient)
    }

    fn check(&self, logits: &[f32]) {
        assert!(self.classes > 0, "focal: no classes");
        let len = size::product("focal", &[self.targets.len(), self.classes]);
        assert_eq!(logits.len(), len, "focal: one target for each row");
        assert_eq!(self.weights.len(), self.targets.len(), "focal: one weight for each row");
        let known =
            |target: &FocalTarget| !matches!(target, FocalTarget::Class(class) if *class as usize >= self.classes);
        assert!(self.targets.iter().all(known), "focal: a target is not among {} classes", self.classes);
    }
}

kernel!(
    /// The loss of some rows, of which the first has number `first`.
    fn rows<'a, 'b>(case: &'a Focal, first: usize, logits: &'a [f32], out: &'a mut UninitWriter<'b>) -> f64 = rows_body
);
#[inline(always)]
fn rows_body<V: Vector>(case: &Focal, first: usize, logits: &[f32], out: &mut UninitWriter) -> f64 {
    let mut loss = 0.0;
    for (index, logits) in logits.chunks_exact(case.classes).enumerate() {
        let weight = case.weights[first + index];
        let background = weight * (1.0 - case.alpha);
        match case.targets[first + index] {
            FocalTarget::Ignored => out.push_zeros(case.classes),
            FocalTarget::Background => {
                let mut out = out.local();
                loss += f64::from(background) * f64::from(wrong::<V>(logits, case.gamma, background, &mut out));
                out.finish();
            }
            FocalTarget::Class(class) => {
                let (before, after) = logits.split_at(class as usize);
                let mut out = out.local();
                let mut sum = wrong::<V>(before, case.gamma, background, &mut out);
                let (value, slope) = element(V::splat(-after[0]), case.gamma);
                out.push(slope.mul(V::splat(-weight * case.alpha)), 1);
                let mut of_target = [0.0];
                value.put(&mut of_target, 0);
                sum += wrong::<V>(&after[1..], case.gamma, background, &mut out);
                out.finish();
                loss +=
                    f64::from(weight * case.alpha) * f64::from(of_target[0]) + f64::from(background) * f64::from(sum);
            }
        }
    }
    loss
}

/// The sum over classes that are not the target, without their factor; writes their gradients with it.
#[inline(always)]
fn wrong<V: Vector>(logits: &[f32], gamma: f32, factor: f32, out: &mut LocalWriter) -> f32 {
    let mut sum = V::zero();
    for at in (0..logits.len()).step_by(V::LANES) {
        let (mut value, slope) = element(V::get(logits, at), gamma);
        let count = logits.len() - at;
        if count < V::LANES {
            // lanes that a short row lacks are a logit of zero, which has a loss: a copy leaves them out
            let mut copy = [0.0; 16];
            value.put(&mut copy[..count], 0);
            value = V::get(&copy, 0);
        }
        sum = sum.add(value);
        out.push(slope.mul(V::splat(factor)), count);
    }
    sum.sum()
}

/// `p^gamma softplus(z)` of `p = sigmoid(z)`, and its derivative `p^gamma (gamma (1 - p) softplus(z) + p)`.
#[inline(always)]
fn element<V: Vector>(z: V, gamma: f32) -> (V, V) {
    let [zero, one] = [0.0, 1.0].map(V::splat);
    let negative = zero.sub(z);
    let small = exp_of_negative(negative.min(z));
    let log = log1p(small);
    let softplus = zero.max(z).add(log);
    let sum = one.add(small);
    let p = z.positive(one, small).div(sum);
    let rest = z.positive(small, one).div(sum);
    let power = if gamma == 2.0 {
        p.mul(p)
    } else if gamma == 0.0 {
        one
    } else {
        // ln p is -softplus(-z)
        exp_of_negative(zero.max(negative).add(log).mul(V::splat(-gamma)))
    };
    let slope = rest.mul(softplus).fma(V::splat(gamma), p);
    (power.mul(softplus), power.mul(slope))
}

/// `ln(1 + x)` for x from 0 to 1: `2 artanh(x / (2 + x))` by its series, relative error below 1e-7.
#[inline(always)]
fn log1p<V: Vector>(x: V) -> V {
    let s = x.div(x.add(V::splat(2.0)));
    let square = s.mul(s);
    let mut sum = V::splat(2.0 / 15.0);
    for coefficient in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
        sum = sum.fma(square, V::splat(coefficient));
    }
    sum.mul(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};
    use FocalTarget::{Background, Class, Ignored};

    fn case(classes: usize, gamma: f32) -> Focal {
        let last = classes as u32 - 1;
        let targets = vec![Class(0), Background, Ignored, Class(last), Background, Class(last / 2)];
        Focal { classes, targets, weights: vec![1.0, 0.5, 2.0, 1.5, 1.0, 0.25], alpha: 0.25, gamma }
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        for (classes, gamma) in [(1, 2.0), (3, 0.0), (16, 2.0), (37, 1.5), (91, 2.0)] {
            let case = case(classes, gamma);
            let logits: Vec<f32> = noise(6 * classes, 1).iter().map(|x| 5.0 * x).collect();
            let expected = naive::focal(&case, &wide(&logits));
            for &path in Path::available() {
                with_path(path, || {
                    let (loss, gradient) = case.loss_and_gradient(&logits);
                    assert!((f64::from(loss) - expected).abs() < 1e-6 * expected, "{loss}, not {expected}");
                    assert_differences(&[&logits], &[&gradient], &[1.0], |p| vec![naive::focal(&case, &p[0])]);
                    assert!(gradient[2 * classes..3 * classes].iter().all(|x| *x == 0.0), "ignored rows have none");
                });
            }
        }
    }

    #[test]
    fn large_logits_are_finite_and_wrong_ones_cost_their_size() {
        for gamma in [0.0, 2.0, 3.0] {
            let case = Focal { targets: vec![Class(0)], weights: vec![1.0], alpha: 0.5, gamma, classes: 2 };
            let (loss, gradient) = case.loss_and_gradient(&[-1e4, 1e4]);
            assert!((loss - 1e4).abs() < 1.0, "{loss}");
            assert!((gradient[0] + 0.5).abs() < 1e-6 && (gradient[1] - 0.5).abs() < 1e-6, "{gradient:?}");
            let (loss, gradient) = case.loss_and_gradient(&[1e4, -1e4]);
            assert_eq!((loss, gradient), (0.0, vec![-0.0, 0.0]));
        }
    }

    #[test]
    fn a_logit_that_is_nan_is_seen_unless_ignored() {
        let mut logits = noise(18, 1);
        logits[7] = f32::NAN;
        assert!(case(3, 2.0).loss_and_gradient(&logits).0.is_finite());
        logits[4] = f32::NAN;
        assert!(case(3, 2.0).loss_and_gradient(&logits).0.is_nan());
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let mut case = case(91, 2.0);
        (case.targets, case.weights) = (case.targets.repeat(200), case.weights.repeat(200));
        let logits = noise(1200 * 91, 1);
        assert_same_on_threads(|| {
            let (loss, gradient) = case.loss_and_gradient(&logits);
            vec![vec![loss], gradient]
        });
    }

    #[test]
    #[should_panic(expected = "focal: a target is not among 3 classes")]
    fn a_target_that_is_no_class_is_refused() {
        let case = Focal { targets: vec![Class(3)], weights: vec![1.0], ..case(3, 2.0) };
        let _ = case.loss_and_gradient(&[0.0; 3]);
    }
}
