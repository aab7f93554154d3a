//! Multi-head attention with its projections: self-attention, with or without a cache, and cross-attention.
//! Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
//!
//! Parameters are those of `torch.nn.MultiheadAttention`; its `in_proj_weight` is our `in_proj.weight`.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use super::Linear;
use crate::Pass;
use crate::attention::{DotProduct, dot_product, masked_self_attention, merge_heads, split_heads};
use crate::cost::{Ledger, Work, size};
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
    /// `[B or 1, A or 1, N, M]`, added to the scores.
    bias: Option<Tensor<4>>,
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

    /// [`self_attention`](Self::self_attention) of tokens at positions `[B or 1, N, D]`, which are added to queries and keys
    /// but not to values.
    pub fn self_attention_at(
        &self,
        x: Tensor<3>,
        positions: &Tensor<3>,
        options: &DotProduct,
        pass: &mut Pass,
    ) -> Tensor<3> {
        let dim = x.dims()[2];
        let both = self.rows(x.clone() + positions.clone(), 0, 2 * dim);
        let [query, key] = [0, 1].map(|part| split_heads(both.clone().narrow(2, part * dim, dim), self.heads));
        let value = split_heads(self.rows(x, 2 * dim, dim), self.heads);
        self.out_proj.forward(merge_heads(dot_product(query, key, value, options, pass).out))
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
        Memory { key, value, padding, bias: None, axes }
    }

    /// [`project_memory`](Self::project_memory) of tokens at positions `[B or 1, M, D]`, which are added to keys but not to
    /// values.
    pub fn project_memory_at(
        &self,
        memory: Tensor<3>,
        positions: &Tensor<3>,
        padding: Option<Tensor<2, Bool>>,
    ) -> Memory {
        let dim = memory.dims()[2];
        let key = split_heads(self.rows(memory.clone() + positions.clone(), dim, dim), self.heads);
        let value = split_heads(self.rows(memory, 2 * dim, dim), self.heads);
        let axes = Axes::Slots(key.dims()[2]);
        Memory { key, value, padding, bias: None, axes }
    }

    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, M]`.
    pub fn cross_attention(&self, x: Tensor<3>, memory: &Memory, pass: &mut Pass) -> Tensor<3> {
        let dim = x.dims()[2];
        let query = split_heads(self.rows(x, 0, dim), self.heads);
        let options =
            DotProduct { padding: memory.padding.clone(), bias: memory.bias.clone(), ..DotProduct::default() };
        let attended = pass.with_keys(memory.axes.clone(), |pass| {
            dot_product(query, memory.key.clone(), memory.value.clone(), &options, pass)
        });
        self.out_proj.forward(merge_heads(attended.out))
    }

    /// Adds the cost of queries that look at keys, both at positions, below `name`.
    pub(super) fn cost_at(&self, name: &str, [queries, keys]: [usize; 2], ledger: &mut Ledger) {
        let dim = self.out_proj.weight.lazy_shape()[1];
        let scores = self.heads * queries * keys;
        ledger.within(name, |ledger| {
            ledger.each("positions", &[queries + keys, dim], |elements| Work::Add { elements });
            // a third of the projection for queries, two thirds for keys and values
            let (positions, macs) = ((queries + 2 * keys) as u64, (dim * dim) as u64);
            let parameters = size(&self.in_proj.weight) + self.in_proj.bias.as_ref().map_or(0, size);
            let work = Work::Linear { positions, macs, outputs: dim as u64, bias: self.in_proj.bias.is_some() };
            ledger.within("in_proj", |ledger| ledger.line(parameters, work, (queries + 2 * keys) * dim));
            let product = Work::Product { macs: (dim * queries * keys) as u64 };
            ledger.within("scores", |ledger| ledger.line(0, product, scores));
            ledger.each("softmax", &[scores], |elements| Work::Softmax { elements });
            ledger.within("values", |ledger| ledger.line(0, product, queries * dim));
            ledger.part("out_proj", &self.out_proj, vec![queries, dim]);
        });
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

    /// Sets a bias `[B or 1, A or 1, N, M]`, which is added to the scores.
    #[must_use]
    pub fn with_bias(self, bias: Tensor<4>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, burn::tensor::Int>) -> Self {
        let pick = |tensor: &Tensor<4>| tensor.clone().select(0, indices.clone());
        let padding = self.padding.clone().map(|padding| padding.int().select(0, indices.clone()).bool());
        let bias = self.bias.clone().map(|bias| if bias.dims()[0] == 1 { bias } else { pick(&bias) });
        Self { key: pick(&self.key), value: pick(&self.value), padding, bias, axes: self.axes.clone() }
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
    fn positions_are_added_to_queries_and_keys_but_not_to_values() {
        let (layer, x, positions) = (layer(), random([2, 5, 8], 1), random([1, 5, 8], 2));
        let mut pass = Pass::recording();
        let silent = layer.self_attention_at(x.clone(), &positions, &DotProduct::default(), &mut Pass::silent());
        let out = layer.self_attention_at(x.clone(), &positions, &DotProduct::default(), &mut pass);
        assert_close(&silent, &out, 1e-5);
        // the weights are those of tokens with positions, the values those of tokens alone
        let mut placed = Pass::recording();
        layer.self_attention(x.clone() + positions.clone(), &DotProduct::default(), &mut placed);
        let weights = placed.into_trace().get::<4>("weights").unwrap();
        assert_close(&pass.into_trace().get::<4>("weights").unwrap(), &weights, 1e-6);
        let values = split_heads(layer.rows(x.clone(), 16, 8), 2);
        assert_close(&out, &layer.out_proj.forward(merge_heads(weights.matmul(values))), 1e-5);
        let memory = layer.project_memory_at(x.clone(), &positions, None);
        assert_close(&layer.cross_attention(x + positions, &memory, &mut Pass::silent()), &out, 1e-5);
    }

    #[test]
    fn the_bias_of_a_memory_is_added_to_the_scores() {
        let (layer, x) = (layer(), random([2, 5, 8], 1));
        // all but the third key are as good as masked
        let bias = Tensor::<4>::zeros([1, 1, 5, 5], &cpu());
        let bias = bias.slice_fill([0..1, 0..1, 0..5, 0..2], -1e9).slice_fill([0..1, 0..1, 0..5, 3..5], -1e9);
        let memory = layer.project_memory(x.clone(), None).with_bias(bias);
        let out = layer.cross_attention(x.clone(), &memory, &mut Pass::silent());
        let alone = layer.project_memory(x.clone().narrow(1, 2, 1), None);
        assert_close(&out, &layer.cross_attention(x, &alone, &mut Pass::silent()), 1e-5);
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
