//! Batch normalisation with its parameters and running moments, fused on the CPU.
//! Ioffe, Szegedy 2015, "Batch Normalization", arXiv:1502.03167.
//!
//! As PyTorch has it: training normalises by the biased variance of the batch and remembers the unbiased one, where
//! Burn's own norm remembers the biased one. Differences from PyTorch: batches are not counted, and a batch of a single
//! value is no error; it remembers a variance of zero.
//!
//! It lives below the layers, since SAN's operators are defined by means of it.

mod running;

use burn::module::{Flag, Initializer, Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm, batch_norm_train};
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::batch_norm::{self as kernels, Activation};
use regard_kernels::gamma::{Moments, Statistics};
use std::sync::{Arc, OnceLock};

use crate::cost::{Costed, Ledger, Work, size};
use crate::fused::{self, Kept, Kernel};
pub use running::Running;

/// Normalises every channel over the batch and its places, then scales and shifts it.
///
/// It trains on a device that tracks gradients, unless it is frozen by [`Module::freeze`] or came out of
/// [`Module::valid`]: then, as elsewhere, the running moments normalise and stay what they are.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// `[C]`, ones at the start.
    pub gamma: Param<Tensor<1>>,
    /// `[C]`, zeros at the start.
    pub beta: Param<Tensor<1>>,
    /// Off when frozen.
    pub training: Param<Flag>,
    /// `[C]`, zeros at the start.
    pub running_mean: Running,
    /// `[C]`, unbiased, ones at the start.
    pub running_var: Running,
    /// Share of a new batch in the running moments.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl BatchNorm {
    /// A norm of `width` channels with the momentum 0.1 and the epsilon 1e-5 of PyTorch; others are set as fields.
    ///
    /// # Panics
    /// When the width is 0.
    pub fn new(width: usize, device: &Device) -> Self {
        assert!(width > 0, "batch_norm: needs at least 1 channel, got 0");
        Self {
            gamma: Initializer::Ones.init([width], device),
            beta: Initializer::Zeros.init([width], device),
            training: Param::from_bool(true),
            running_mean: Running::new(Tensor::zeros([width], device)),
            running_var: Running::new(Tensor::ones([width], device)),
            momentum: 0.1,
            epsilon: 1e-5,
        }
    }

    /// `[B, C, ..] -> [B, C, ..]`
    ///
    /// # Panics
    /// When the input has other channels, or nothing in it.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.followed(x, Activation::Identity)
    }

    /// [`forward`](Self::forward), then ReLU.
    ///
    /// # Panics
    /// As there.
    pub fn forward_relu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.followed(x, Activation::Relu)
    }

    fn followed<const D: usize>(&self, x: Tensor<D>, after: Activation) -> Tensor<D> {
        let (shape, width) = (x.dims(), self.gamma.lazy_shape()[0]);
        assert!(D >= 2, "batch_norm: input of rank {D} has no channels");
        assert!(shape[1] == width, "batch_norm: input has channels {}, weight has channels {width}", shape[1]);
        assert!(!shape.contains(&0), "batch_norm: input of shape {shape:?} is empty");
        if !fused::runs_on(&x) {
            let out = self.plain(x);
            return if after == Activation::Relu { relu(out) } else { out };
        }
        let norms = Norms::new([self], &x.device()).expect("one norm agrees with itself");
        let (pixels, epsilon) = (shape[2..].iter().product(), self.epsilon as f32);
        let kernel = Fused { norm: kernels::BatchNorm { pixels, epsilon, activation: after }, norms: norms.clone() };
        let inputs = [x.into_dispatch(), self.gamma.val().into_dispatch(), self.beta.val().into_dispatch()];
        let out = fused::apply(kernel, inputs, shape);
        norms.update([self]);
        out
    }

    /// The same by Burn's operations.
    fn plain<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let device = x.device();
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        match self.statistics(&device) {
            Statistics::Given => {
                let [mean, variance] = [&self.running_mean, &self.running_var].map(|of| of.value().to_device(&device));
                batch_norm(x, gamma, beta, mean, variance, self.epsilon)
            }
            Statistics::Batch => {
                let count = x.shape().num_elements() / x.dims()[1];
                let found = batch_norm_train(x, gamma, beta, self.epsilon);
                self.remember(found.mean, found.variance, count);
                found.output
            }
        }
    }

    /// Where the moments of an input on this device come from.
    fn statistics(&self, device: &Device) -> Statistics {
        if device.is_autodiff() && self.training.is_enabled() { Statistics::Batch } else { Statistics::Given }
    }

    /// The moments that evaluation normalises with.
    pub(crate) fn moments(&self) -> Moments {
        let values = |of: &Running| of.value().into_data().iter::<f32>().collect();
        Moments { mean: values(&self.running_mean), variance: values(&self.running_var), count: 1 }
    }

    /// Moves the running moments towards those of a batch of `count` values, whose variance is the biased one.
    fn remember(&self, mean: Tensor<1>, variance: Tensor<1>, count: usize) {
        let unbiased = variance.mul_scalar(count as f64 / count.saturating_sub(1).max(1) as f64);
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, unbiased)] {
            let old = running.value();
            let batch = batch.to_device(&old.device()).mul_scalar(self.momentum);
            running.set(old.mul_scalar(1.0 - self.momentum) + batch);
        }
    }
}

impl Costed for BatchNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        ledger.line(size(&self.gamma) + size(&self.beta), Work::Norm { elements: elements as u64 }, elements);
        shape
    }
}

/// The moments that the norms of a fused kernel use: read before it runs, found while it runs, kept after it ran.
#[derive(Clone, Debug)]
pub(crate) struct Norms<const N: usize> {
    pub statistics: Statistics,
    given: [Moments; N],
    found: Arc<OnceLock<[Moments; N]>>,
}

impl<const N: usize> Norms<N> {
    /// None when the norms disagree about where their moments come from or about epsilon: the kernels know one.
    pub fn new(norms: [&BatchNorm; N], device: &Device) -> Option<Self> {
        let statistics = norms.map(|norm| norm.statistics(device));
        let agree = |index: usize| statistics[index] == statistics[0] && norms[index].epsilon == norms[0].epsilon;
        (0..N).all(agree).then(|| Self {
            statistics: statistics[0],
            given: if statistics[0] == Statistics::Given {
                norms.map(BatchNorm::moments)
            } else {
                [(); N].map(|()| Moments::default())
            },
            found: Arc::default(),
        })
    }

    /// What the forward pass normalises with; `find` looks for it in the batch.
    pub fn moments(&self, find: impl FnOnce() -> [Moments; N]) -> &[Moments; N] {
        self.found.get_or_init(|| match self.statistics {
            Statistics::Given => self.given.clone(),
            Statistics::Batch => find(),
        })
    }

    /// Lets the norms remember the batch.
    pub fn update(&self, norms: [&BatchNorm; N]) {
        if let (Statistics::Batch, Some(found)) = (self.statistics, self.found.get()) {
            for (norm, Moments { mean, variance, count }) in norms.iter().zip(found) {
                let device = norm.running_mean.value().device();
                let tensor = |values: &[f32]| Tensor::from_data(TensorData::from(values), &device);
                norm.remember(tensor(mean), tensor(variance), *count);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Fused {
    norm: kernels::BatchNorm,
    norms: Norms<1>,
}

impl Fused {
    fn moments(&self, x: &[f32], channels: usize) -> &Moments {
        let [moments] = self.norms.moments(|| [kernels::moments(x, channels, self.norm.pixels)]);
        moments
    }
}

impl Kernel<3> for Fused {
    fn forward(&self, [x, weight, bias]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        let moments = self.moments(x, weight.len());
        (self.norm.forward(x, weight, bias, moments), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 3], _: Kept, grad: &[f32]) -> [Vec<f32>; 3] {
        let moments = self.moments(inputs[0], inputs[1].len());
        self.norm.backward(inputs, moments, self.norms.statistics, grad)
    }
}

#[cfg(test)]
mod tests;
