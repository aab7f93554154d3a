//! Batch normalisation with its parameters and running statistics, fused on the CPU.
//! Ioffe, Szegedy 2015, "Batch Normalization", arXiv:1502.03167.
//!
//! As in PyTorch, training normalises by the biased variance of the batch and updates the running variance with the
//! unbiased one; Burn's batch norm uses the biased one for both. Differences from PyTorch: batches are not counted, and a
//! batch of a single value is no error: its variance counts as zero.
//!
//! It is below the layers because SAN's operators contain it.

mod channel_lines;
mod frozen;
mod running;

use burn::module::{Flag, Initializer, Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm, batch_norm_train};
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::batch_norm::{self as kernels, Activation};
use regard_kernels::gamma::{Moments, Statistics};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use crate::cost::{Costed, Ledger, Work, size};
use crate::fused::{self, Kernel, Saved};
pub(crate) use channel_lines::ChannelLines;
pub use frozen::{FrozenBatchNorm, Norm, NormKind};
pub use running::RunningStat;

/// Normalises every channel over batch and pixels, then scales and shifts it.
///
/// On a device that tracks gradients it is in training mode, unless it was frozen by [`Module::freeze`] or returned by
/// [`Module::valid`]. Otherwise it is in evaluation mode: it normalises by the running statistics and does not update them.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// `[C]`, initially ones.
    pub gamma: Param<Tensor<1>>,
    /// `[C]`, initially zeros.
    pub beta: Param<Tensor<1>>,
    /// Off when frozen.
    pub training: Param<Flag>,
    /// `[C]`, initially zeros.
    pub running_mean: RunningStat,
    /// `[C]`, unbiased, initially ones.
    pub running_var: RunningStat,
    /// Weight of a new batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl BatchNorm {
    /// A norm of `width` channels with PyTorch's defaults: momentum 0.1, epsilon 1e-5.
    ///
    /// # Panics
    /// When the width is 0.
    pub fn new(width: usize, device: &Device) -> Self {
        assert!(width > 0, "batch_norm: needs at least 1 channel, got 0");
        Self {
            gamma: Initializer::Ones.init([width], device),
            beta: Initializer::Zeros.init([width], device),
            training: Param::from_bool(true),
            running_mean: RunningStat::new(Tensor::zeros([width], device)),
            running_var: RunningStat::new(Tensor::ones([width], device)),
            momentum: 0.1,
            epsilon: 1e-5,
        }
    }

    /// `[B, C, ..] -> [B, C, ..]`
    ///
    /// # Panics
    /// When the input has another number of channels or is empty.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_then(x, Activation::Identity)
    }

    /// [`forward`](Self::forward), then ReLU.
    ///
    /// # Panics
    /// Those of [`forward`](Self::forward).
    pub fn forward_relu<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_then(x, Activation::Relu)
    }

    fn forward_then<const D: usize>(&self, x: Tensor<D>, activation: Activation) -> Tensor<D> {
        let (shape, width) = (x.dims(), self.gamma.lazy_shape()[0]);
        assert!(D >= 2, "batch_norm: input of rank {D} has no channels");
        assert!(shape[1] == width, "batch_norm: input has channels {}, weight has channels {width}", shape[1]);
        assert!(!shape.contains(&0), "batch_norm: input of shape {shape:?} is empty");
        if !fused::runs_on(&x) {
            let out = self.plain(x);
            return if activation == Activation::Relu { relu(out) } else { out };
        }
        let norms = NormStatistics::new([self], &x.device()).expect("a single norm has one mode and one epsilon");
        let (pixels, epsilon) = (shape[2..].iter().product(), self.epsilon as f32);
        let kernel = Fused { norm: kernels::BatchNorm { pixels, epsilon, activation }, norms: norms.clone() };
        let inputs = [x.into_dispatch(), self.gamma.val().into_dispatch(), self.beta.val().into_dispatch()];
        let out = fused::apply(kernel, inputs, shape);
        norms.update([self]);
        out
    }

    /// The same with Burn operations.
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
                self.update_running_stats(found.mean, found.variance, count);
                found.output
            }
        }
    }

    /// Whether inputs on this device are normalised by batch or by running statistics.
    fn statistics(&self, device: &Device) -> Statistics {
        if device.is_autodiff() && self.training.is_enabled() { Statistics::Batch } else { Statistics::Given }
    }

    /// The running statistics.
    pub(crate) fn moments(&self) -> Moments {
        let values = |of: &RunningStat| of.value().into_data().iter::<f32>().collect();
        Moments { mean: values(&self.running_mean), variance: values(&self.running_var), count: 1 }
    }

    /// Updates the running statistics with the mean and the biased variance of a batch of `count` values.
    fn update_running_stats(&self, mean: Tensor<1>, variance: Tensor<1>, count: usize) {
        let unbiased = variance.mul_scalar(count as f64 / count.saturating_sub(1).max(1) as f64);
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, unbiased)] {
            let old = running.value();
            let batch = batch.to_device(&old.device()).mul_scalar(self.momentum);
            running.set(old.mul_scalar(1.0 - self.momentum) + batch);
        }
    }
}

/// A norm of every channel of a map, which a convolution before it can apply.
pub trait ChannelNorm: Debug {
    /// `[B, C, H, W] -> [B, C, H, W]`, then the activation.
    fn normalise(&self, map: Tensor<4>, activation: Activation) -> Tensor<4>;

    /// Factor and term of every channel in inference; none where the statistics are those of the batch.
    fn scale_and_shift(&self) -> Option<[Vec<f32>; 2]>;
}

impl ChannelNorm for BatchNorm {
    fn normalise(&self, map: Tensor<4>, activation: Activation) -> Tensor<4> {
        self.forward_then(map, activation)
    }

    fn scale_and_shift(&self) -> Option<[Vec<f32>; 2]> {
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        let given = self.statistics(&gamma.device()) == Statistics::Given;
        given.then(|| scale_and_shift([gamma, beta, self.running_mean.value(), self.running_var.value()], self.epsilon))
    }
}

/// Factor and term by weight, bias, mean and variance.
fn scale_and_shift(vectors: [Tensor<1>; 4], epsilon: f64) -> [Vec<f32>; 2] {
    let [weight, bias, mean, variance] =
        vectors.map(|vector| vector.into_data().iter::<f32>().map(f64::from).collect::<Vec<_>>());
    let scale: Vec<f64> = weight.iter().zip(&variance).map(|(weight, v)| weight / (v + epsilon).sqrt()).collect();
    let shift = bias.iter().zip(mean).zip(&scale).map(|((bias, mean), scale)| (bias - mean * scale) as f32).collect();
    [scale.into_iter().map(|scale| scale as f32).collect(), shift]
}

impl Costed for BatchNorm {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        ledger.line(size(&self.gamma) + size(&self.beta), Work::Norm { elements: elements as u64 }, elements);
        shape
    }
}

/// The statistics of the norms inside a fused kernel: the running ones, or those of the batch, which the kernel computes.
#[derive(Clone, Debug)]
pub(crate) struct NormStatistics<const N: usize> {
    pub statistics: Statistics,
    given: [Moments; N],
    found: Arc<OnceLock<[Moments; N]>>,
}

impl<const N: usize> NormStatistics<N> {
    /// None when the norms differ in mode or epsilon: the kernels take only one of each.
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

    /// The statistics to normalise by; `find` computes those of the batch.
    pub fn moments(&self, find: impl FnOnce() -> [Moments; N]) -> &[Moments; N] {
        self.found.get_or_init(|| match self.statistics {
            Statistics::Given => self.given.clone(),
            Statistics::Batch => find(),
        })
    }

    /// Updates the running statistics of the norms.
    pub fn update(&self, norms: [&BatchNorm; N]) {
        if let (Statistics::Batch, Some(found)) = (self.statistics, self.found.get()) {
            for (norm, Moments { mean, variance, count }) in norms.iter().zip(found) {
                let device = norm.running_mean.value().device();
                let tensor = |values: &[f32]| Tensor::from_data(TensorData::from(values), &device);
                norm.update_running_stats(tensor(mean), tensor(variance), *count);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Fused {
    norm: kernels::BatchNorm,
    norms: NormStatistics<1>,
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
    fn backward(&self, inputs: [&[f32]; 3], _: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let moments = self.moments(inputs[0], inputs[1].len());
        self.norm.backward(inputs, moments, self.norms.statistics, grad)
    }
}

#[cfg(test)]
mod tests;
