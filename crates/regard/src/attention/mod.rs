//! The attention operators of the literature: formulas on Burn tensors, no parameters of their own.
//!
//! | operator | who looks where | source |
//! |---|---|---|
//! | [`dot_product`](fn@dot_product) | every query at every key | Vaswani et al. 2017 |
//!
//! Every operator takes a [`Pass`](crate::Pass) and returns [`Attended`]. When nobody listens it
//! runs a fused kernel on the CPU; when somebody does, or on another device, it runs plain Burn
//! operations that form the weights. Both give the same output.

mod check;
mod dot_product;

pub use dot_product::{DotProduct, dot_product, merge_heads, split_heads};

use burn::tensor::Tensor;

/// What an operator gives back.
#[derive(Clone, Debug)]
pub struct Attended<const D: usize, const W: usize = 4> {
    /// The attended values.
    pub out: Tensor<D>,
    /// The attention weights, formed only when the pass listens.
    pub weights: Option<Tensor<W>>,
}
