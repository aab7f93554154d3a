//! A batch norm whose four vectors are constants, as detectors have it in a trunk that was trained elsewhere: batches of one
//! or two pictures have no statistics to speak of.
//!
//! As in torchvision and facebookresearch/detr: nothing is trained, nothing is updated, no gradient goes into it. Weights
//! and biases are part of a checkpoint under the usual names, but no parameters.

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::module::batch_norm;
use burn::tensor::{Device, Tensor};
use regard_kernels::batch_norm::{self as kernels, Activation};
use regard_kernels::gamma::Moments;
use serde::{Deserialize, Serialize};

use super::{BatchNorm, ChannelNorm, RunningStat, scale_and_shift};
use crate::cost::{Costed, Ledger, Work};
use crate::fused::{self, Kernel, Saved};

/// `weight * (x - mean) / sqrt(variance + epsilon) + bias` for every channel, with constants.
#[derive(Module, Debug)]
pub struct FrozenBatchNorm {
    /// `[C]`, ones at the start.
    pub weight: RunningStat,
    /// `[C]`, zeros at the start.
    pub bias: RunningStat,
    /// `[C]`, zeros at the start.
    pub running_mean: RunningStat,
    /// `[C]`, ones at the start.
    pub running_var: RunningStat,
    /// Added to the variance: 1e-5; 0 for the COCO weights of torchvision's first detectors.
    pub epsilon: f64,
}

impl FrozenBatchNorm {
    /// A norm of `width` channels that changes nothing until its constants are loaded.
    ///
    /// # Panics
    /// When the width is 0.
    pub fn new(width: usize, epsilon: f64, device: &Device) -> Self {
        assert!(width > 0, "frozen batch norm: needs at least 1 channel, got 0");
        let [zeros, ones] = [Tensor::zeros([width], device), Tensor::ones([width], device)];
        Self {
            weight: RunningStat::new(ones.clone()),
            bias: RunningStat::new(zeros.clone()),
            running_mean: RunningStat::new(zeros),
            running_var: RunningStat::new(ones),
            epsilon,
        }
    }

    fn forward_then<const D: usize>(&self, x: Tensor<D>, after: Activation) -> Tensor<D> {
        let constants = [&self.weight, &self.bias, &self.running_mean, &self.running_var].map(RunningStat::value);
        let (shape, width) = (x.dims(), constants[0].dims()[0]);
        assert!(shape[1] == width, "frozen batch norm: input has channels {}, weight has channels {width}", shape[1]);
        assert!(!shape.contains(&0), "frozen batch norm: input of shape {shape:?} is empty");
        if !fused::runs_on(&x) {
            let [weight, bias, mean, variance] = constants.map(|constant| constant.to_device(&x.device()));
            let out = batch_norm(x, weight, bias, mean, variance, self.epsilon);
            return if after == Activation::Relu { relu(out) } else { out };
        }
        let [weight, bias, mean, variance] = constants.map(|constant| constant.into_data().iter::<f32>().collect());
        let (pixels, epsilon) = (shape[2..].iter().product(), self.epsilon as f32);
        let kernel = Fused {
            norm: kernels::BatchNorm { pixels, epsilon, activation: after },
            weight,
            bias,
            moments: Moments { mean, variance, count: 1 },
        };
        fused::apply(kernel, [x.into_dispatch()], shape)
    }
}

impl ChannelNorm for FrozenBatchNorm {
    fn normalise(&self, map: Tensor<4>, activation: Activation) -> Tensor<4> {
        self.forward_then(map, activation)
    }

    fn scale_and_shift(&self) -> Option<[Vec<f32>; 2]> {
        let vectors = [&self.weight, &self.bias, &self.running_mean, &self.running_var].map(RunningStat::value);
        Some(scale_and_shift(vectors, self.epsilon))
    }
}

impl Costed for FrozenBatchNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        ledger.line(0, Work::Norm { elements: elements as u64 }, elements);
        shape
    }
}

#[derive(Clone, Debug)]
pub(super) struct Fused {
    pub norm: kernels::BatchNorm,
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    pub moments: Moments,
}

impl Kernel<1> for Fused {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.norm.forward(x, &self.weight, &self.bias, &self.moments), Vec::new())
    }
    fn backward(&self, [x]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.norm.backward_input([x, &self.weight, &self.bias], &self.moments, grad)]
    }
}

/// Which norm a network has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum NormKind {
    /// Trained, over the batch.
    #[default]
    Batch,
    /// Four constants a channel.
    Frozen { epsilon: f64 },
}

impl NormKind {
    /// Constants with the epsilon of PyTorch.
    pub const FROZEN: Self = Self::Frozen { epsilon: 1e-5 };

    /// A norm of `width` channels.
    ///
    /// # Panics
    /// When the width is 0.
    pub fn init(self, width: usize, device: &Device) -> Norm {
        match self {
            Self::Batch => Norm::Batch(BatchNorm::new(width, device)),
            Self::Frozen { epsilon } => Norm::Frozen(FrozenBatchNorm::new(width, epsilon, device)),
        }
    }
}

/// Either norm.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a network has a hundred
pub enum Norm {
    Batch(BatchNorm),
    Frozen(FrozenBatchNorm),
}

impl Norm {
    /// `[B, C, ..] -> [B, C, ..]`
    ///
    /// # Panics
    /// When the input has other channels, or nothing in it.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_then(x, Activation::Identity)
    }

    /// [`forward`](Self::forward), then ReLU.
    ///
    /// # Panics
    /// As there.
    pub fn forward_relu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_then(x, Activation::Relu)
    }

    fn forward_then<const D: usize>(&self, x: Tensor<D>, after: Activation) -> Tensor<D> {
        match self {
            Self::Batch(norm) => norm.forward_then(x, after),
            Self::Frozen(norm) => norm.forward_then(x, after),
        }
    }

    /// Mean and variance that evaluation normalises with.
    pub const fn running(&self) -> [&RunningStat; 2] {
        match self {
            Self::Batch(norm) => [&norm.running_mean, &norm.running_var],
            Self::Frozen(norm) => [&norm.running_mean, &norm.running_var],
        }
    }

    /// Factor and term of every channel.
    pub fn affine(&self) -> [Tensor<1>; 2] {
        match self {
            Self::Batch(norm) => [norm.gamma.val(), norm.beta.val()],
            Self::Frozen(norm) => [norm.weight.value(), norm.bias.value()],
        }
    }

    /// What is added to the variance.
    pub const fn epsilon(&self) -> f64 {
        match self {
            Self::Batch(norm) => norm.epsilon,
            Self::Frozen(norm) => norm.epsilon,
        }
    }
}

impl ChannelNorm for Norm {
    fn normalise(&self, map: Tensor<4>, activation: Activation) -> Tensor<4> {
        self.forward_then(map, activation)
    }

    fn scale_and_shift(&self) -> Option<[Vec<f32>; 2]> {
        match self {
            Self::Batch(norm) => norm.scale_and_shift(),
            Self::Frozen(norm) => norm.scale_and_shift(),
        }
    }
}

impl Costed for Norm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        match self {
            Self::Batch(norm) => norm.cost(shape, ledger),
            Self::Frozen(norm) => norm.cost(shape, ledger),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{Fixture, assert_close, assert_gradient_close, distance, random_on, values, weights};

    fn from_fixture(fixture: &Fixture, epsilon: f64, device: &Device) -> Norm {
        let norm = NormKind::Frozen { epsilon }.init(6, device);
        weights::fill(norm, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap()
    }

    #[test]
    fn it_equals_the_reference_with_either_epsilon() {
        let fixture = Fixture::load("frozen_batch_norm");
        for (epsilon, name) in [(1e-5, "io/output"), (0.0, "io/output_eps0")] {
            let norm = from_fixture(&fixture, epsilon, &device::cpu());
            let out = values(&norm.forward(fixture.tensor::<4>("io/input")));
            for (out, expected) in out.iter().zip(fixture.values(name)) {
                assert!((out - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{epsilon}: {out} {expected}");
            }
        }
    }

    #[test]
    fn its_gradient_is_the_references_and_nothing_else_has_one() {
        let fixture = Fixture::load("frozen_batch_norm");
        let device = device::cpu().autodiff();
        let norm = from_fixture(&fixture, 1e-5, &device);
        let before = weights::tensors(&norm);
        let x = fixture.tensor_on::<4>("io/input", &device).require_grad();
        let out = norm.forward(x.clone());
        let grads = (out * fixture.tensor_on("io/output_grad", &device)).sum().backward();
        assert_gradient_close("input", &x.grad(&grads).unwrap(), &fixture.tensor("io/input_grad"));
        assert!(norm.affine().iter().all(|vector| vector.grad(&grads).is_none()));
        assert_eq!(weights::tensors(&norm), before, "a forward pass changes nothing");
    }

    #[test]
    fn it_is_a_batch_norm_in_evaluation_with_its_rectifier_and_gradient() {
        let device = device::cpu().autodiff();
        let trained = BatchNorm::new(3, &device);
        trained.running_mean.set(random_on([3], 1, &device));
        trained.running_var.set(random_on::<1>([3], 2, &device).add_scalar(1.5));
        let frozen = FrozenBatchNorm::new(3, 1e-5, &device);
        frozen.running_mean.set(trained.running_mean.value());
        frozen.running_var.set(trained.running_var.value());
        let run = |norm: &Norm| {
            let x = random_on::<4>([2, 3, 4, 5], 3, &device).require_grad();
            let out = norm.forward_relu(x.clone());
            let grads = (out.clone() * random_on(out.dims(), 4, &device)).sum().backward();
            (out.inner(), x.grad(&grads).unwrap())
        };
        let (out, grad) = run(&Norm::Frozen(frozen));
        let (expected, expected_grad) = run(&Norm::Batch(trained.freeze()));
        assert_close(&out, &expected, 1e-6);
        assert!(distance(&values(&grad), &values(&expected_grad)) < 1e-6);
    }
}
