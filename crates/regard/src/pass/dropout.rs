//! Dropout: in training, single elements are set to zero at random and the others scaled up.
//! Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting".
//!
//! The mask depends only on the seed, the step and the number of the dropout call in the model. It is never stored: the
//! backward pass draws it again.

use burn::tensor::{Tensor, TensorData};
use rand::RngExt as _;
use regard_kernels::dropout as kernels;

use super::Pass;
use crate::fused::{self, Kernel, Saved};
use crate::random::{Purpose, generator};

/// Determines all masks of one forward pass: two batches with the same seed and step get the same masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutKey {
    pub seed: u64,
    pub step: u64,
}

/// The state of dropout during one forward pass.
#[derive(Clone, Debug)]
pub(super) struct Dropout {
    key: DropoutKey,
    /// Number of dropout calls so far.
    calls: u64,
}

impl Pass {
    /// A pass that records nothing and applies dropout where a model has it.
    #[must_use]
    pub fn with_dropout(key: DropoutKey) -> Self {
        Self { dropout: Some(Dropout { key, calls: 0 }), ..Self::default() }
    }

    /// Sets elements to zero with probability `rate`; returns the tensor unchanged outside training.
    #[must_use]
    pub fn dropout<const D: usize>(&mut self, tensor: Tensor<D>, rate: f64) -> Tensor<D> {
        let Some(key) = self.next_key(rate) else { return tensor };
        let (shape, kernel) = (tensor.dims(), Fused(kernels::Dropout::new(rate, key)));
        if fused::runs_on(&tensor) {
            return fused::apply(kernel, [tensor.into_dispatch()], shape);
        }
        let factors = factors(&kernel, shape, &tensor);
        tensor * factors
    }

    /// `x + dropout(branch)`, the end of every branch of a transformer.
    #[must_use]
    pub fn add_with_dropout<const D: usize>(&mut self, x: Tensor<D>, branch: Tensor<D>, rate: f64) -> Tensor<D> {
        let Some(key) = self.next_key(rate) else { return x + branch };
        let (shape, kernel) = (x.dims(), Fused(kernels::Dropout::new(rate, key)));
        if fused::runs_on(&x) {
            return fused::apply(kernel, [x.into_dispatch(), branch.into_dispatch()], shape);
        }
        let factors = factors(&kernel, shape, &branch);
        x + branch * factors
    }

    fn next_key(&mut self, rate: f64) -> Option<u64> {
        let Dropout { key, calls } = self.dropout.as_mut()?;
        let mut generator = generator(key.seed, Purpose::Dropout, [key.step, *calls]);
        *calls += 1;
        (rate > 0.0).then(|| generator.random())
    }
}

/// 0 or `1 / (1 - rate)` for each element, on the device of `like`.
fn factors<const D: usize>(kernel: &Fused, shape: [usize; D], like: &Tensor<D>) -> Tensor<D> {
    let ones = vec![1.0; shape.iter().product()];
    Tensor::from_data(TensorData::new(kernel.0.apply(&ones), shape), &like.device())
}

#[derive(Clone, Debug)]
struct Fused(kernels::Dropout);

impl Kernel<1> for Fused {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.0.apply(x), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.0.apply(grad)]
    }
}

impl Kernel<2> for Fused {
    fn forward(&self, [x, branch]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        (self.0.add(x, branch), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 2], _: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        [grad.to_vec(), self.0.apply(grad)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};

    const KEY: DropoutKey = DropoutKey { seed: 1, step: 2 };
    const SHAPE: [usize; 2] = [100, 200];

    fn dropped(key: DropoutKey, rate: f64) -> Vec<f32> {
        values(&Pass::with_dropout(key).dropout(Tensor::<2>::ones(SHAPE, &device::cpu()), rate))
    }

    #[test]
    fn the_rate_is_left_out_and_the_rest_makes_up_for_it() {
        for rate in [0.1, 0.5, 0.9] {
            let out = dropped(KEY, rate);
            let zeros = out.iter().filter(|x| **x == 0.0).count() as f64 / out.len() as f64;
            assert!((zeros - rate).abs() < 0.015, "{rate} {zeros}");
            let kept = (1.0 / (1.0 - rate)) as f32;
            assert!(out.iter().all(|x| *x == 0.0 || (x - kept).abs() < 1e-6));
        }
    }

    #[test]
    fn the_same_call_draws_the_same_mask_and_any_other_draws_another() {
        assert_eq!(dropped(KEY, 0.5), dropped(KEY, 0.5));
        assert_ne!(dropped(KEY, 0.5), dropped(DropoutKey { step: 3, ..KEY }, 0.5));
        assert_ne!(dropped(KEY, 0.5), dropped(DropoutKey { seed: 3, ..KEY }, 0.5));
        let mut pass = Pass::with_dropout(KEY);
        let ones = Tensor::<2>::ones(SHAPE, &device::cpu());
        let [first, second] = [0, 1].map(|_| values(&pass.dropout(ones.clone(), 0.5)));
        assert_ne!(first, second);
        // neither neighbours nor rows draw alike
        let agree = |shift: usize| first.iter().zip(&first[shift..]).filter(|(a, b)| a == b).count() as f64;
        for shift in [1, 16, 200, 256] {
            let share = agree(shift) / (first.len() - shift) as f64;
            assert!((share - 0.5).abs() < 0.02, "{shift} {share}");
        }
    }

    #[test]
    fn nothing_is_left_out_by_a_pass_that_does_not_train_or_a_rate_of_zero() {
        let x = random([3, 4], 1);
        assert_close(&Pass::silent().dropout(x.clone(), 0.5), &x, 0.0);
        assert_close(&Pass::with_dropout(KEY).dropout(x.clone(), 0.0), &x, 0.0);
    }

    #[test]
    fn a_branch_is_dropped_before_it_is_added_and_gradients_are_differences() {
        let (x, branch) = (random([30, 4], 1), random([30, 4], 2));
        let expected = x.clone() + Pass::with_dropout(KEY).dropout(branch.clone(), 0.3);
        assert_close(&Pass::with_dropout(KEY).add_with_dropout(x, branch, 0.3), &expected, 1e-6);
        assert_gradients_are_differences(&[("x", noise(40, 1)), ("branch", noise(40, 2))], |p| {
            Pass::with_dropout(KEY).add_with_dropout(p[0].clone(), p[1].clone(), 0.3)
        });
    }
}
