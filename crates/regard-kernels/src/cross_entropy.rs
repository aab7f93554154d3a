//! Cross-entropy of rows of logits against one class a row, without ever forming their softmax.

use rayon::prelude::*;

use crate::elementwise::{piece, rows_per_task, zeroed};
use crate::math::exp_of_negative;
use crate::simd::{Vector, kernel};
use crate::size;
use crate::softmax::largest;

/// The target of rows that are ignored: no loss and no gradient.
pub const IGNORE: u32 = u32::MAX;

/// One target for each row of `classes` logits.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    pub classes: usize,
    pub targets: Vec<u32>,
    /// Label smoothing: probability taken from the target and given to all classes.
    pub smoothing: f32,
}

impl CrossEntropy {
    /// The sum of the losses of all rows, and the log-sum-exp of each row.
    #[must_use]
    pub fn forward(&self, logits: &[f32]) -> (f32, Vec<f32>) {
        self.check(logits);
        let rows: Vec<[f32; 2]> = logits
            .par_chunks(self.classes)
            .zip(&self.targets)
            .with_min_len(rows_per_task(self.classes))
            .map(|(row, &target)| match target {
                IGNORE => [0.0, 0.0],
                target => {
                    let [lse, total] = lse_and_sum(row);
                    let even = self.smoothing / self.classes as f32;
                    [lse - (1.0 - self.smoothing) * row[target as usize] - even * total, lse]
                }
            })
            .collect();
        let loss = rows.iter().map(|[loss, _]| f64::from(*loss)).sum::<f64>();
        (loss as f32, rows.iter().map(|[_, sum]| *sum).collect())
    }

    /// The gradient of the logits, for a gradient of the loss.
    #[must_use]
    pub fn backward(&self, logits: &[f32], lse: &[f32], grad: f32) -> Vec<f32> {
        self.check(logits);
        assert_eq!(lse.len(), self.targets.len(), "cross_entropy: one log-sum-exp for each row");
        let rows = rows_per_task(self.classes);
        let even = self.smoothing / self.classes as f32;
        zeroed(logits.len(), rows * self.classes, |index, out| {
            let logits = piece(logits, index, rows * self.classes);
            for (row, (out, logits)) in
                out.chunks_exact_mut(self.classes).zip(logits.chunks_exact(self.classes)).enumerate()
            {
                let target = self.targets[index * rows + row];
                if target != IGNORE {
                    gradient_row(logits, lse[index * rows + row], even, grad, out);
                    out[target as usize] -= (1.0 - self.smoothing) * grad;
                }
            }
        })
    }

    fn check(&self, logits: &[f32]) {
        let len = size::product("cross_entropy", &[self.targets.len(), self.classes]);
        assert_eq!(logits.len(), len, "cross_entropy: one target for each row");
        let known = |target: &u32| *target == IGNORE || (*target as usize) < self.classes;
        assert!(self.targets.iter().all(known), "cross_entropy: a target is not among {} classes", self.classes);
    }
}

kernel!(
    /// The log-sum-exp of a row, and its plain sum.
    fn lse_and_sum<'a>(row: &'a [f32]) -> [f32; 2] = lse_and_sum_body
);
#[inline(always)]
fn lse_and_sum_body<V: Vector>(row: &[f32]) -> [f32; 2] {
    let largest = largest::<V>(row);
    let (mut sum, mut total) = (V::zero(), V::zero());
    let whole = row.len() - row.len() % V::LANES;
    for i in (0..whole).step_by(V::LANES) {
        let logits = V::get(row, i);
        sum = sum.add(exp_of_negative(logits.sub(V::splat(largest))));
        total = total.add(logits);
    }
    let (mut sum, mut total) = (sum.sum(), total.sum());
    for logit in &row[whole..] {
        sum += (logit - largest).exp();
        total += logit;
    }
    [largest + sum.ln(), total]
}

kernel!(fn gradient_row<'a>(logits: &'a [f32], sum: f32, even: f32, grad: f32, out: &'a mut [f32]) = gradient_row_body);
#[inline(always)]
fn gradient_row_body<V: Vector>(logits: &[f32], sum: f32, even: f32, grad: f32, out: &mut [f32]) {
    for i in (0..logits.len()).step_by(V::LANES) {
        let share = exp_of_negative(V::get(logits, i).sub(V::splat(sum)));
        share.sub(V::splat(even)).mul(V::splat(grad)).put(out, i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_differences, assert_same_on_threads, noise, wide};

    const CLASSES: usize = 37;

    fn case(smoothing: f32) -> CrossEntropy {
        CrossEntropy { classes: CLASSES, targets: vec![3, IGNORE, 36, 0], smoothing }
    }

    /// By its definition.
    fn definition(case: &CrossEntropy, logits: &[f64]) -> f64 {
        let rows = logits.chunks(CLASSES).zip(&case.targets).filter(|(_, target)| **target != IGNORE);
        rows.map(|(row, &target)| {
            let sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            let wanted = |class: usize| {
                let even = f64::from(case.smoothing) / CLASSES as f64;
                even + if class == target as usize { 1.0 - f64::from(case.smoothing) } else { 0.0 }
            };
            row.iter().enumerate().map(|(class, x)| -wanted(class) * (x - sum)).sum::<f64>()
        })
        .sum()
    }

    #[test]
    fn it_is_its_definition_and_so_is_its_gradient() {
        for smoothing in [0.0, 0.1] {
            let (case, logits) = (case(smoothing), noise(4 * CLASSES, 1));
            let (loss, lse) = case.forward(&logits);
            assert!((f64::from(loss) - definition(&case, &wide(&logits))).abs() < 1e-4);
            let grad = case.backward(&logits, &lse, 0.5);
            assert_differences(&[&logits], &[&grad], &[0.5], |moved| vec![definition(&case, &moved[0])]);
            assert!(grad[CLASSES..2 * CLASSES].iter().all(|x| *x == 0.0), "ignored rows get no gradient");
        }
    }

    #[test]
    fn large_logits_and_any_number_of_threads_are_fine() {
        let logits: Vec<f32> = noise(4 * CLASSES, 1).iter().map(|x| 1e4 * x).collect();
        assert!(case(0.1).forward(&logits).0.is_finite());
        assert_same_on_threads(|| vec![case(0.1).forward(&noise(4 * CLASSES, 1)).1]);
    }

    #[test]
    #[should_panic(expected = "cross_entropy: a target is not among 37 classes")]
    fn a_target_that_is_no_class_is_refused() {
        let _ = CrossEntropy { targets: vec![37], ..case(0.0) }.forward(&noise(CLASSES, 1));
    }
}
