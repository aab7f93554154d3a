//! The attention operators of the literature: formulas on Burn tensors, no parameters of their own.
//!
//! | operator | who looks where | source |
//! |---|---|---|
//! | [`dot_product`](fn@dot_product) | every query at every key | Vaswani et al. 2017 |
//! | [`additive`](fn@additive) | every query at every key, scored by a small network | Bahdanau et al. 2014 |
//! | [`non_local`](fn@non_local) | every position at every position, by four affinities | Wang et al. 2018 |
//!
//! Every operator takes a [`Pass`](crate::Pass) and returns [`Attended`]. When nobody listens it
//! runs a fused kernel on the CPU; when somebody does, or on another device, it runs plain Burn
//! operations that form the weights. Both give the same output.

mod additive;
mod check;
mod dot_product;
mod non_local;

pub use additive::{AdditiveMemory, AdditiveWeights, additive};
pub use dot_product::{DotProduct, dot_product, merge_heads, split_heads};
pub use non_local::{Affinity, NonLocalOptions, non_local};

use burn::tensor::Tensor;

/// What an operator gives back.
#[derive(Clone, Debug)]
pub struct Attended<const D: usize, const W: usize = 4> {
    /// The attended values.
    pub out: Tensor<D>,
    /// The attention weights, formed only when the pass listens.
    pub weights: Option<Tensor<W>>,
}
