//! Multi-head attention with its projections: self-attention, with or without a cache, and cross-attention.
//! Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
//!
//! Parameters are those of `torch.nn.MultiheadAttention`; its `in_proj_weight` is our `in_proj.weight`.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use super::Linear;
use crate::Pass;
use crate::attention::{DotProduct, dot_product, masked_self_attention, merge_heads, split_heads};
use crate::function;
use crate::pass::Axes;

/// A joint projection to queries, keys and values, and an output projection.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// Projections to queries, keys and values, in this order: `[3D, D]`.
    pub in_proj: Linear,
    pub out_proj: Linear,
    heads: usize,
}

/// Projected keys and values of a memory, for cross-attention.
#[derive(Clone, Debug)]
pub struct Memory {
    /// `[B, A, M, K]`
    key: Tensor<4>,
    value: Tensor<4>,
    /// `[B, M]`, true for padding.
    padding: Option<Tensor<2, Bool>>,
    /// The layout of its tokens.
    axes: Axes,
}

/// The KV cache of a decoder: keys and values of the tokens so far, `[B, A, M, K]` each; none before the first.
#[derive(Clone, Debug, Default)]
pub struct Cache(Option<[Tensor<4>; 2]>);

impl MultiHeadAttention {
    /// # Panics
    /// The first forward pass panics when the heads do not divide the width.
    pub fn new(dim: usize, heads: usize, device: &Device) -> Self {
        Self { in_proj: Linear::xavier(dim, 3 * dim, device), out_proj: Linear::xavier(dim, dim, device), heads }
    }

    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, N]`.
    pub fn self_attention(&self, x: Tensor<3>, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
        self.out_proj.forward(masked_self_attention(self.in_proj.forward(x), self.heads, options, pass))
    }

    /// Causal self-attention of the next tokens, which are added to the cache: `[B, N, D] -> [B, N, D]`, weights
    /// `[B, A, N, M]`.
    pub fn cached_self_attention(&self, x: Tensor<3>, cache: &mut Cache, pass: &mut Pass) -> Tensor<3> {
        let dim = x.dims()[2];
        let all = self.in_proj.forward(x);
        let [query, key, value] = [0, 1, 2].map(|part| split_heads(all.clone().narrow(2, part * dim, dim), self.heads));
        let [key, value] = match cache.0.take() {
            Some([keys, values]) => [Tensor::cat(vec![keys, key], 2), Tensor::cat(vec![values, value], 2)],
            None => [key, value],
        };
        cache.0 = Some([key.clone(), value.clone()]);
        let options = DotProduct { causal: true, ..DotProduct::default() };
        self.out_proj.forward(merge_heads(dot_product(query, key, value, &options, pass).out))
    }

    /// Projects a memory `[B, M, D]` to keys and values.
    pub fn project_memory(&self, memory: Tensor<3>, padding: Option<Tensor<2, Bool>>) -> Memory {
        let dim = memory.dims()[2];
        let both = self.rows(memory, dim, 2 * dim);
        let [key, value] = [0, 1].map(|part| split_heads(both.clone().narrow(2, part * dim, dim), self.heads));
        let axes = Axes::Slots(key.dims()[2]);
        Memory { key, value, padding, axes }
    }

    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, M]`.
    pub fn cross_attention(&self, x: Tensor<3>, memory: &Memory, pass: &mut Pass) -> Tensor<3> {
        let dim = x.dims()[2];
        let query = split_heads(self.rows(x, 0, dim), self.heads);
        let options = DotProduct { padding: memory.padding.clone(), ..DotProduct::default() };
        let attended = pass.with_keys(memory.axes.clone(), |pass| {
            dot_product(query, memory.key.clone(), memory.value.clone(), &options, pass)
        });
        self.out_proj.forward(merge_heads(attended.out))
    }

    /// Applies some rows of the joint projection.
    fn rows(&self, x: Tensor<3>, start: usize, count: usize) -> Tensor<3> {
        let bias = self.in_proj.bias.as_ref().map(|bias| bias.val().narrow(0, start, count));
        function::linear(x, self.in_proj.weight.val().narrow(0, start, count), bias)
    }
}

impl Memory {
    /// Sets the layout of the tokens, which is recorded with the attention weights.
    #[must_use]
    pub fn with_axes(self, axes: Axes) -> Self {
        Self { axes, ..self }
    }

    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, burn::tensor::Int>) -> Self {
        let pick = |tensor: &Tensor<4>| tensor.clone().select(0, indices.clone());
        let padding = self.padding.clone().map(|padding| padding.int().select(0, indices.clone()).bool());
        Self { key: pick(&self.key), value: pick(&self.value), padding, axes: self.axes.clone() }
    }
}

impl Cache {
    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, burn::tensor::Int>) -> Self {
        Self(self.0.clone().map(|both| both.map(|tensor| tensor.select(0, indices.clone()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_close, random, stirred};

    fn layer() -> MultiHeadAttention {
        stirred(MultiHeadAttention::new(8, 2, &cpu()))
    }

    #[test]
    fn tokens_that_look_at_themselves_as_a_memory_look_at_each_other() {
        let (layer, x) = (layer(), random([2, 5, 8], 1));
        let within = layer.self_attention(x.clone(), &DotProduct::default(), &mut Pass::silent());
        let across = layer.cross_attention(x.clone(), &layer.project_memory(x, None), &mut Pass::silent());
        assert_close(&across, &within, 1e-6);
    }

    #[test]
    fn one_token_after_the_other_is_all_of_them_at_once_bit_for_bit() {
        let (layer, x) = (layer(), random([2, 7, 8], 1));
        let options = DotProduct { causal: true, ..DotProduct::default() };
        let all = layer.self_attention(x.clone(), &options, &mut Pass::silent());
        let mut cache = Cache::default();
        for n in 0..7 {
            let one = layer.cached_self_attention(x.clone().narrow(1, n, 1), &mut cache, &mut Pass::silent());
            assert_close(&one, &all.clone().narrow(1, n, 1), 0.0);
        }
    }
}
