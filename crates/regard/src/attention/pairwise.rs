//! Pairwise self-attention: a vector of weights for every pair of a pixel and one in its footprint.
//! Zhao, Jia, Koltun 2020, "Exploring Self-attention for Image Recognition" (SAN).
//!
//! `out_i = sum_j softmax_j(gamma([delta(phi_i, psi_j), position_ij])) * beta_j` over the `k x k` footprint
//! of `i`, mirrored at the edge of the image. The weights are vectors: each of gamma's `Cw` channels has
//! its own softmax and is used by the value channels `c` with `c mod Cw` equal to it. Without position
//! the footprint is a set: the order of its pixels does not matter.
//!
//! The published code has subtraction only; the other relations follow the paper's text.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use serde::{Deserialize, Serialize};

use regard_kernels::pairwise as kernels;
use regard_kernels::window::Window;

use super::window::{Border, aggregate, check_odd, check_window, unfold};
use super::{Attended, Gamma, check};
use crate::Pass;
use crate::batch_norm::NormStatistics;
use crate::fused::{self, Kernel, Saved};
use crate::pass::{Geometry, Reach};

/// The relation `delta` between two pixels' features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairRelation {
    /// `phi_i + psi_j`
    Summation,
    /// `phi_i - psi_j`
    Subtraction,
    /// `[phi_i, psi_j]`
    Concatenation,
    /// `phi_i * psi_j`, element by element
    Hadamard,
    /// `<phi_i, psi_j>`, one number
    Dot,
}

impl PairRelation {
    /// Channels of the relation between features of `width` channels.
    pub const fn channels(self, width: usize) -> usize {
        match self {
            Self::Summation | Self::Subtraction | Self::Hadamard => width,
            Self::Concatenation => 2 * width,
            Self::Dot => 1,
        }
    }
}

/// How the positions of two pixels enter gamma.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairPosition {
    /// `p_i - p_j`
    Relative,
    /// `p_j`
    Absolute,
    /// Not at all.
    None,
}

impl PairPosition {
    /// Channels of the position, after those of the relation.
    pub const fn channels(self) -> usize {
        match self {
            Self::Relative | Self::Absolute => 2,
            Self::None => 0,
        }
    }
}

/// Relation, position and footprint of pairwise attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairwise {
    pub relation: PairRelation,
    pub position: PairPosition,
    /// Side of the footprint, odd.
    pub window: usize,
}

impl Pairwise {
    /// The kernel's arguments; `[features, values]` are the channels of phi and beta.
    pub(crate) fn kernel(
        &self,
        batch: usize,
        [features, values]: [usize; 2],
        [height, width]: [usize; 2],
        gamma: &Gamma,
    ) -> kernels::Pairwise {
        kernels::Pairwise {
            batch,
            features,
            values,
            weights: gamma.outputs(),
            hidden: gamma.hidden(),
            window: Window::new(height, width, self.window),
            relation: match self.relation {
                PairRelation::Summation => kernels::Relation::Summation,
                PairRelation::Subtraction => kernels::Relation::Subtraction,
                PairRelation::Concatenation => kernels::Relation::Concatenation,
                PairRelation::Hadamard => kernels::Relation::Hadamard,
                PairRelation::Dot => kernels::Relation::Dot,
            },
            position: match self.position {
                PairPosition::Relative => kernels::Position::Relative,
                PairPosition::Absolute => kernels::Position::Absolute,
                PairPosition::None => kernels::Position::None,
            },
            epsilon: gamma.norm1.epsilon as f32,
        }
    }
}

/// `phi [B, R, H, W], psi [B, R, H, W], beta [B, C, H, W] -> [B, C, H, W]`, weights `[B, Cw, k*k, H*W]`.
///
/// `position` is `[2, H, W]`: the coordinates of every pixel, as the layer has mapped them.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn pairwise(
    phi: Tensor<4>,
    psi: Tensor<4>,
    beta: Tensor<4>,
    position: Option<Tensor<3>>,
    gamma: &Gamma,
    options: &Pairwise,
    pass: &mut Pass,
) -> Attended<4> {
    check_shapes(&phi, &psi, &beta, position.as_ref(), gamma, options);
    if !pass.wants_weights()
        && fused::runs_on(&phi)
        && options.window <= Window::LARGEST
        && let Some(norms) = NormStatistics::new([&gamma.norm1, &gamma.norm2], &phi.device())
    {
        return Attended { out: fused(phi, psi, beta, position, gamma, options, norms), weights: None };
    }
    let ([_, _, height, width], side) = (phi.dims(), options.window);
    let (out, weights) = plain(phi, psi, beta, position, gamma, options);
    pass.record_weights(&weights, |_| Geometry::within_map([height, width], Reach::Window { side, mirrored: true }));
    Attended { out, weights: pass.wants_weights().then_some(weights) }
}

/// The output from a fused kernel, which never forms the weights.
fn fused(
    phi: Tensor<4>,
    psi: Tensor<4>,
    beta: Tensor<4>,
    position: Option<Tensor<3>>,
    gamma: &Gamma,
    options: &Pairwise,
    norms: NormStatistics<2>,
) -> Tensor<4> {
    let [batch, features, height, width] = phi.dims();
    let shape = beta.dims();
    let case = options.kernel(batch, [features, shape[1]], [height, width], gamma);
    let parameters = gamma.flat().into_dispatch();
    let kernel = Fused { case, norms: norms.clone() };
    let [phi, psi, beta] = [phi, psi, beta].map(Tensor::into_dispatch);
    let out = match position {
        None => fused::apply(kernel, [phi, psi, beta, parameters], shape),
        Some(position) => fused::apply(kernel, [phi, psi, beta, position.into_dispatch(), parameters], shape),
    };
    norms.update([&gamma.norm1, &gamma.norm2]);
    out
}

#[derive(Clone, Debug)]
struct Fused {
    case: kernels::Pairwise,
    norms: NormStatistics<2>,
}

impl Kernel<5> for Fused {
    fn forward(&self, inputs: [&[f32]; 5]) -> (Vec<f32>, Vec<f32>) {
        (self.case.forward(inputs, self.norms.moments(|| self.case.moments(inputs))), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 5], _: Saved, grad: &[f32]) -> [Vec<f32>; 5] {
        let moments = self.norms.moments(|| self.case.moments(inputs));
        self.case.backward(inputs, moments, self.norms.statistics, grad)
    }
}

impl Kernel<4> for Fused {
    fn forward(&self, [phi, psi, beta, gamma]: [&[f32]; 4]) -> (Vec<f32>, Vec<f32>) {
        Kernel::<5>::forward(self, [phi, psi, beta, &[], gamma])
    }
    fn backward(&self, [phi, psi, beta, gamma]: [&[f32]; 4], saved: Saved, grad: &[f32]) -> [Vec<f32>; 4] {
        let [phi, psi, beta, _, gamma] = Kernel::<5>::backward(self, [phi, psi, beta, &[], gamma], saved, grad);
        [phi, psi, beta, gamma]
    }
}

/// The output and the weights, from Burn operations.
fn plain(
    phi: Tensor<4>,
    psi: Tensor<4>,
    beta: Tensor<4>,
    position: Option<Tensor<3>>,
    gamma: &Gamma,
    options: &Pairwise,
) -> (Tensor<4>, Tensor<4>) {
    let mut relation = relate(phi, psi, options);
    if let Some(position) = position {
        let [batch, _, offsets, pixels] = relation.dims();
        let position = footprint_positions(position, options).expand([batch, 2, offsets, pixels]);
        relation = Tensor::cat(vec![relation, position], 1);
    }
    let weights = softmax(gamma.forward(relation), 2);
    (aggregate(weights.clone(), beta, options.window), weights)
}

/// `[B, R, H, W], [B, R, H, W] -> [B, d, k*k, H*W]`
fn relate(phi: Tensor<4>, psi: Tensor<4>, options: &Pairwise) -> Tensor<4> {
    let [batch, channels, height, width] = phi.dims();
    let (offsets, pixels) = (options.window * options.window, height * width);
    let phi = phi.reshape([batch, channels, 1, pixels]);
    let psi = unfold(psi, options.window, Border::Reflect);
    match options.relation {
        PairRelation::Summation => phi + psi,
        PairRelation::Subtraction => phi - psi,
        PairRelation::Hadamard => phi * psi,
        PairRelation::Concatenation => Tensor::cat(vec![phi.expand([batch, channels, offsets, pixels]), psi], 1),
        PairRelation::Dot => (phi * psi).sum_dim(1),
    }
}

/// `[2, H, W] -> [1, 2, k*k, H*W]`: the positions of the pixels in every footprint.
fn footprint_positions(position: Tensor<3>, options: &Pairwise) -> Tensor<4> {
    let [planes, height, width] = position.dims();
    let there = unfold(position.clone().unsqueeze::<4>(), options.window, Border::Reflect);
    match options.position {
        PairPosition::Relative => position.reshape([1, planes, 1, height * width]) - there,
        PairPosition::Absolute | PairPosition::None => there,
    }
}

fn check_shapes(
    phi: &Tensor<4>,
    psi: &Tensor<4>,
    beta: &Tensor<4>,
    position: Option<&Tensor<3>>,
    gamma: &Gamma,
    options: &Pairwise,
) {
    const NAME: &str = "pairwise";
    let [batch, channels, height, width] = phi.dims();
    check::not_empty(NAME, "phi", &[("batch", batch), ("channels", channels), ("height", height), ("width", width)]);
    check::not_empty(NAME, "beta", &[("channels", beta.dims()[1])]);
    for (axis, name) in [(0, "batch"), (1, "channels"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("phi", phi.dims()[axis]), ("psi", psi.dims()[axis]));
    }
    for (axis, name) in [(0, "batch"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("psi", psi.dims()[axis]), ("beta", beta.dims()[axis]));
    }
    check_odd(NAME, options.window);
    check_window(NAME, options.window, Border::Reflect, (height, width));
    let planes = position.map_or(0, |position| {
        check::agree(NAME, "height", ("position", position.dims()[1]), ("psi", height));
        check::agree(NAME, "width", ("position", position.dims()[2]), ("psi", width));
        position.dims()[0]
    });
    check::agree(NAME, "planes", ("position", planes), ("the option", options.position.channels()));
    let relation = options.relation.channels(channels) + planes;
    check::agree(NAME, "channels", ("gamma", gamma.inputs()), ("the relation", relation));
    check::divides(NAME, ("weight channels", gamma.outputs()), ("beta channels", beta.dims()[1]));
}

#[cfg(test)]
mod tests;
