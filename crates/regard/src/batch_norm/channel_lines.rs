//! What a norm does to every channel once its moments no longer change: a line, for plans that fold it away.

use regard_kernels::batch_norm::Activation;
use regard_kernels::gamma::{Moments, Statistics};
use std::any::Any;

use super::{Fused, frozen};

/// `scale * x + shift` for every channel, and maybe a ReLU.
pub(crate) struct ChannelLines {
    pub scale: Vec<f64>,
    pub shift: Vec<f64>,
    pub relu: bool,
}

impl ChannelLines {
    /// The lines of a norm's kernel, whose parameters are its inputs unless it holds them; none for other kernels and for
    /// norms of the batch.
    pub(crate) fn of(kernel: &dyn Any, parameters: &[&[f32]]) -> Option<Self> {
        if let (Some(norm), [gamma, beta]) = (kernel.downcast_ref::<Fused>(), parameters) {
            let [moments] = &norm.norms.given;
            let given = norm.norms.statistics == Statistics::Given;
            return given.then(|| Self::from(norm.norm, gamma, beta, moments));
        }
        let frozen::Fused { norm, weight, bias, moments } = kernel.downcast_ref()?;
        Some(Self::from(*norm, weight, bias, moments))
    }

    fn from(norm: regard_kernels::batch_norm::BatchNorm, gamma: &[f32], beta: &[f32], moments: &Moments) -> Self {
        let deviation = |variance: &f32| (f64::from(*variance) + f64::from(norm.epsilon)).sqrt();
        let scale: Vec<f64> = gamma
            .iter()
            .zip(&moments.variance)
            .map(|(gamma, variance)| f64::from(*gamma) / deviation(variance))
            .collect();
        let shift = beta.iter().zip(&moments.mean).zip(&scale);
        let shift = shift.map(|((beta, mean), scale)| f64::from(*beta) - f64::from(*mean) * scale).collect();
        Self { scale, shift, relu: norm.activation == Activation::Relu }
    }
}
