//! The attention operators of the literature: formulas on Burn tensors, no parameters of their own.
//!
//! | operator | what attends to what | source |
//! |---|---|---|
//! | [`dot_product`](fn@dot_product) | every query to every key | Vaswani et al. 2017 |
//! | [`additive`](fn@additive) | every query to every key, scored by a small network | Bahdanau et al. 2014 |
//! | [`non_local`](fn@non_local) | every position to every position, by four affinities | Wang et al. 2018 |
//! | [`SpaceTimeStep::attend`] | patches of a clip in space and time, by the schemes of [`SpaceTime`] | Bertasius et al. 2021 |
//! | [`local`](fn@local) | every pixel to the window around it | Ramachandran et al. 2019 (SASA) |
//! | [`stem`](fn@stem) | every pixel to its own aligned block | Ramachandran et al. 2019 (SASA) |
//! | [`pairwise`](fn@pairwise) | every pixel to its footprint, as a set of pairs | Zhao et al. 2020 (SAN) |
//! | [`patchwise`](fn@patchwise) | every pixel to its footprint, as one patch | Zhao et al. 2020 (SAN) |
//! | [`non_local_means`](fn@non_local_means) | every pixel to the pixels whose patch looks like its own | Buades et al. 2005 |
//!
//! Position encodings without parameters: [`position`].
//!
//! Every operator takes a [`Pass`](crate::Pass) and returns [`Attended`]. If the pass records nothing, it
//! runs a fused kernel on the CPU. If the pass records, or on another device, it runs plain Burn
//! operations that form the weights. Both give the same output.

mod additive;
mod check;
mod dot_product;
mod gamma;
mod local;
#[cfg(test)]
mod naive;
mod non_local;
mod non_local_means;
mod pairwise;
mod patchwise;
pub mod position;
mod project;
mod space_time;
mod stem;
mod transport;
mod window;

pub use additive::{AdditiveMemory, AdditiveWeights, additive};
pub use dot_product::{DotProduct, dot_product, masked_self_attention, merge_heads, self_attention, split_heads};
pub use gamma::Gamma;
pub use local::{Local, Relative, local};
pub use non_local::{Affinity, NonLocalOptions, non_local};
pub use non_local_means::{NonLocalMeans, non_local_means, non_local_means_with_progress};
pub use pairwise::{PairPosition, PairRelation, Pairwise, pairwise};
pub use patchwise::{PatchRelation, Patchwise, patchwise};
pub use project::project;
pub use space_time::{AttentionPlan, ClipGrid, SpaceTime, SpaceTimeStep};
pub use stem::{Stem, mixture_weights, stem};
pub(crate) use stem::{can_fuse as can_fuse_stem, fused as fused_stem};
pub use transport::{Transport, TransportOptions, cosine_transport};
pub(crate) use window::reach;
pub use window::{Border, unfold};

use burn::tensor::Tensor;

/// The result of an operator.
#[derive(Clone, Debug)]
pub struct Attended<const D: usize, const W: usize = 4> {
    /// The attended values.
    pub out: Tensor<D>,
    /// The attention weights, formed only if the pass records them.
    pub weights: Option<Tensor<W>>,
}
