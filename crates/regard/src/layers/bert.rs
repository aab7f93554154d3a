//! The layers of BERT and of the models made of it: attention, then a feed-forward network with GELU, each with a residual
//! connection and a norm after it.
//! Devlin et al. 2018, arXiv:1810.04805.
//!
//! Fields have the names of `transformers`, so that names of tensors are those of its checkpoints. Difference: dropout is
//! not applied to attention weights, only to the outputs of branches.

mod embeddings;
mod heads;
mod model;

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use super::{LayerNorm, Linear, NormPlace, TransformerLayerConfig};
use crate::attention::{DotProduct, dot_product, merge_heads, split_heads};
use crate::cost::{Costed, Ledger, Work};
use crate::function;
use crate::{Error, Pass};

pub use embeddings::{BertEmbeddings, cost_of_table};
pub use heads::{BertPooler, BertPredictions, BertTransform, SequentialHead, SequentialTransform};
pub use model::{BertHeads, BertModel};

/// The sizes of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BertLayerConfig {
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Dropout rate in training.
    pub dropout: f64,
    /// Added to the variance in norms.
    pub epsilon: f64,
}

impl BertLayerConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { dim, heads, inner, dropout, epsilon } = *self;
        TransformerLayerConfig { dim, heads, inner, norm: NormPlace::Post, dropout, epsilon }.validate()
    }

    /// A layer with fresh weights: normal with deviation 0.02, biases zero.
    pub fn init(&self, device: &Device) -> BertLayer {
        BertLayer {
            attention: BertAttention::new(self, device),
            intermediate: BertIntermediate { dense: Linear::normal(self.dim, self.inner, device) },
            output: BertOutput::new(self.inner, self, device),
        }
    }

    pub fn norm(&self, device: &Device) -> LayerNorm {
        LayerNorm::new(self.dim, self.epsilon, device)
    }
}

/// Projections to queries, keys and values.
#[derive(Module, Debug)]
pub struct BertProjections {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    heads: usize,
}

impl BertProjections {
    pub fn new(config: &BertLayerConfig, device: &Device) -> Self {
        let map = || Linear::normal(config.dim, config.dim, device);
        Self { query: map(), key: map(), value: map(), heads: config.heads }
    }

    /// Tokens `[B, N, D]` attend to a context `[B, M, D]`: `[B, N, D]`, weights `[B, A, N, M]`.
    pub fn forward(
        &self,
        x: Tensor<3>,
        context: Tensor<3>,
        padding: Option<&Tensor<2, Bool>>,
        pass: &mut Pass,
    ) -> Tensor<3> {
        attend([&self.query, &self.key, &self.value], self.heads, [x, context], padding, pass)
    }

    /// Adds the cost for so many tokens and keys.
    pub fn cost_of(&self, [queries, keys]: [usize; 2], ledger: &mut Ledger) {
        let maps = [("query", &self.query), ("key", &self.key), ("value", &self.value)];
        cost_of_attention(maps, self.heads, [queries, keys], ledger);
    }
}

/// Attention with its projections: tokens attend to a context without its `padding` `[B, M]`.
pub fn attend(
    [query, key, value]: [&Linear; 3],
    heads: usize,
    [x, context]: [Tensor<3>; 2],
    padding: Option<&Tensor<2, Bool>>,
    pass: &mut Pass,
) -> Tensor<3> {
    let options = DotProduct { padding: padding.cloned(), ..DotProduct::default() };
    let query = split_heads(query.forward(x), heads);
    let [key, value] = [key.forward(context.clone()), value.forward(context)].map(|map| split_heads(map, heads));
    merge_heads(dot_product(query, key, value, &options, pass).out)
}

/// Adds the cost of [`attend`]; the maps have names.
pub fn cost_of_attention(maps: [(&str, &Linear); 3], heads: usize, [queries, keys]: [usize; 2], ledger: &mut Ledger) {
    let dim = maps[0].1.weight.lazy_shape().dims::<2>()[0];
    for ((name, map), tokens) in maps.into_iter().zip([queries, keys, keys]) {
        let width = map.weight.lazy_shape().dims::<2>()[1];
        ledger.part(name, map, vec![tokens, width]);
    }
    let (pairs, work) = (queries * keys, Work::Product { macs: (queries * keys * dim) as u64 });
    ledger.within("scores", |ledger| ledger.line(0, work, heads * pairs));
    ledger.each("weights", &[heads, pairs], |elements| Work::Softmax { elements });
    ledger.within("values", |ledger| ledger.line(0, work, queries * dim));
}

/// The end of a branch: a linear map, dropout, the residual sum, a norm.
#[derive(Module, Debug)]
pub struct BertOutput {
    pub dense: Linear,
    pub layer_norm: LayerNorm,
    dropout: f64,
}

impl BertOutput {
    pub fn new(inputs: usize, config: &BertLayerConfig, device: &Device) -> Self {
        let dense = Linear::normal(inputs, config.dim, device);
        Self { dense, layer_norm: config.norm(device), dropout: config.dropout }
    }

    /// `[B, N, inputs], [B, N, D] -> [B, N, D]`
    pub fn forward(&self, branch: Tensor<3>, x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        self.layer_norm.forward(pass.add_with_dropout(x, self.dense.forward(branch), self.dropout))
    }
}

impl Costed for BertOutput {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("dense", &self.dense, shape);
        ledger.each("add", &shape, |elements| Work::Add { elements });
        ledger.part("LayerNorm", &self.layer_norm, shape)
    }
}

/// Self-attention with its residual connection and norm.
#[derive(Module, Debug)]
pub struct BertAttention {
    pub self_: BertProjections,
    pub output: BertOutput,
}

impl BertAttention {
    pub fn new(config: &BertLayerConfig, device: &Device) -> Self {
        Self { self_: BertProjections::new(config, device), output: BertOutput::new(config.dim, config, device) }
    }

    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, N]` under `self`.
    pub fn forward(&self, x: Tensor<3>, padding: Option<&Tensor<2, Bool>>, pass: &mut Pass) -> Tensor<3> {
        let attended = pass.within("self", |pass| self.self_.forward(x.clone(), x.clone(), padding, pass));
        self.output.forward(attended, x, pass)
    }
}

impl Costed for BertAttention {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        ledger.within("self", |ledger| self.self_.cost_of([shape[0]; 2], ledger));
        ledger.part("output", &self.output, shape)
    }
}

/// The hidden layer of the feed-forward network, with the exact GELU.
#[derive(Module, Debug)]
pub struct BertIntermediate {
    pub dense: Linear,
}

impl BertIntermediate {
    /// `[B, N, D] -> [B, N, inner]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        gelu_of(&self.dense, x)
    }
}

impl Costed for BertIntermediate {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("dense", &self.dense, shape);
        ledger.each("gelu", &shape, |elements| Work::Activation { elements });
        shape
    }
}

/// Attention, then a feed-forward network.
#[derive(Module, Debug)]
pub struct BertLayer {
    pub attention: BertAttention,
    pub intermediate: BertIntermediate,
    pub output: BertOutput,
}

impl BertLayer {
    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, N]` under `attention.self`.
    pub fn forward(&self, x: Tensor<3>, padding: Option<&Tensor<2, Bool>>, pass: &mut Pass) -> Tensor<3> {
        let x = pass.within("attention", |pass| self.attention.forward(x, padding, pass));
        self.output.forward(self.intermediate.forward(x.clone()), x, pass)
    }
}

impl Costed for BertLayer {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("attention", &self.attention, shape);
        let inner = ledger.part("intermediate", &self.intermediate, shape);
        ledger.part("output", &self.output, inner)
    }
}

/// A stack of layers.
#[derive(Module, Debug)]
pub struct BertEncoder {
    pub layer: Vec<BertLayer>,
}

impl BertEncoder {
    pub fn new(config: &BertLayerConfig, layers: usize, device: &Device) -> Self {
        Self { layer: (0..layers).map(|_| config.init(device)).collect() }
    }

    /// `[B, N, D] -> [B, N, D]`; records the tokens after each layer under `layer.i`.
    pub fn forward(&self, mut x: Tensor<3>, padding: Option<&Tensor<2, Bool>>, pass: &mut Pass) -> Tensor<3> {
        for (i, layer) in self.layer.iter().enumerate() {
            let name = format!("layer.{i}");
            x = pass.within(&name, |pass| layer.forward(x, padding, pass));
            x = pass.watch(&name, x);
        }
        x
    }
}

impl Costed for BertEncoder {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        for (i, layer) in self.layer.iter().enumerate() {
            shape = ledger.part(format!("layer.{i}"), layer, shape);
        }
        shape
    }
}

/// `gelu(x W^T + b)`, exact.
pub fn gelu_of<const D: usize>(map: &Linear, x: Tensor<D>) -> Tensor<D> {
    let product = map.product(x);
    match &map.bias {
        Some(bias) => function::bias_gelu(product, bias.val()),
        None => function::gelu(product),
    }
}

#[cfg(test)]
mod tests;
