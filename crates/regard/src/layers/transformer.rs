//! Encoder and decoder layers of the Transformer: attention, then a feed-forward network, each with a residual connection
//! and a norm.
//! Vaswani et al. 2017, arXiv:1706.03762.
//!
//! Fields have the names of `torch.nn.TransformerEncoderLayer` and `TransformerDecoderLayer`. Dropout is where the paper
//! has it, at the end of every branch; PyTorch also applies it to the weights and inside the feed-forward network.

use burn::module::Module;
use burn::tensor::{Device, Tensor, activation};
use serde::{Deserialize, Serialize};

use super::multi_head::{Cache, Memory, MultiHeadAttention};
use super::tokens::{Embedding, PositionEncoding, PositionKind};
use super::{LayerNorm, Linear, check_size};
use crate::attention::DotProduct;
use crate::cost::{Ledger, Work};
use crate::data::Tokens;
use crate::pass::Axes;
use crate::{Error, Pass};

/// Post-norm or pre-norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormPlace {
    /// `Norm(x + Branch(x))`, as in the paper.
    #[default]
    Post,
    /// `x + Branch(Norm(x))`, with a norm after the last layer.
    Pre,
}

/// The sizes of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerLayerConfig {
    /// Width of a token.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    pub norm: NormPlace,
    /// Dropout rate in training.
    pub dropout: f64,
    /// Added to the variance in norms: 1e-5 in PyTorch.
    pub epsilon: f64,
}

impl TransformerLayerConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_size("dim", self.dim)?;
        check_size("heads", self.heads)?;
        check_size("inner", self.inner)?;
        if !self.dim.is_multiple_of(self.heads) {
            return Err(Error::config("heads", format!("must divide dim {}, got {}", self.dim, self.heads)));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::config("dropout", format!("must be at least 0 and below 1, got {}", self.dropout)));
        }
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            return Err(Error::config("epsilon", format!("must be between 0 and 1, got {}", self.epsilon)));
        }
        Ok(())
    }

    pub(crate) fn norm(&self, device: &Device) -> LayerNorm {
        LayerNorm::new(self.dim, self.epsilon, device)
    }

    pub(crate) fn encoder(&self, device: &Device) -> TransformerEncoderLayer {
        TransformerEncoderLayer {
            self_attn: MultiHeadAttention::new(self.dim, self.heads, device),
            linear1: Linear::xavier(self.dim, self.inner, device),
            linear2: Linear::xavier(self.inner, self.dim, device),
            norm1: self.norm(device),
            norm2: self.norm(device),
            residual: ResidualConnection { place: self.norm, dropout: self.dropout },
        }
    }

    pub(crate) fn decoder(&self, device: &Device) -> TransformerDecoderLayer {
        TransformerDecoderLayer {
            self_attn: MultiHeadAttention::new(self.dim, self.heads, device),
            multihead_attn: MultiHeadAttention::new(self.dim, self.heads, device),
            linear1: Linear::xavier(self.dim, self.inner, device),
            linear2: Linear::xavier(self.inner, self.dim, device),
            norm1: self.norm(device),
            norm2: self.norm(device),
            norm3: self.norm(device),
            residual: ResidualConnection { place: self.norm, dropout: self.dropout },
        }
    }
}

/// A residual connection around a branch, with dropout and a norm.
#[derive(Clone, Copy, Debug)]
struct ResidualConnection {
    place: NormPlace,
    dropout: f64,
}

impl ResidualConnection {
    fn apply(
        &self,
        x: Tensor<3>,
        norm: &LayerNorm,
        pass: &mut Pass,
        branch: impl FnOnce(Tensor<3>, &mut Pass) -> Tensor<3>,
    ) -> Tensor<3> {
        match self.place {
            NormPlace::Post => {
                let out = branch(x.clone(), pass);
                norm.forward(pass.add_with_dropout(x, out, self.dropout))
            }
            NormPlace::Pre => {
                let out = branch(norm.forward(x.clone()), pass);
                pass.add_with_dropout(x, out, self.dropout)
            }
        }
    }
}

/// `max(0, x W1 + b1) W2 + b2`
fn feed_forward(linear1: &Linear, linear2: &Linear, x: Tensor<3>) -> Tensor<3> {
    linear2.forward(activation::relu(linear1.forward(x)))
}

fn residual_cost(name: &str, norm: &LayerNorm, shape: &[usize], ledger: &mut Ledger) {
    ledger.each(&format!("{name}.add"), shape, |elements| Work::Add { elements });
    ledger.part(name, norm, shape.to_vec());
}

fn feed_forward_cost(linear1: &Linear, linear2: &Linear, shape: &[usize], ledger: &mut Ledger) {
    let inner = ledger.part("linear1", linear1, shape.to_vec());
    ledger.each("relu", &inner, |elements| Work::Activation { elements });
    ledger.part("linear2", linear2, inner);
}

/// Self-attention, optionally causal, then a feed-forward network.
#[derive(Module, Debug)]
pub struct TransformerEncoderLayer {
    pub self_attn: MultiHeadAttention,
    pub linear1: Linear,
    pub linear2: Linear,
    pub norm1: LayerNorm,
    pub norm2: LayerNorm,
    #[module(skip)]
    residual: ResidualConnection,
}

impl TransformerEncoderLayer {
    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, N]` under `self_attn`.
    pub fn forward(&self, x: Tensor<3>, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
        let x = self.residual.apply(x, &self.norm1, pass, |x, pass| {
            pass.within("self_attn", |pass| self.self_attn.self_attention(x, options, pass))
        });
        self.residual.apply(x, &self.norm2, pass, |x, _| feed_forward(&self.linear1, &self.linear2, x))
    }

    /// [`forward`](Self::forward) for tokens at positions, which are added to queries and keys: DETR does so in every layer.
    pub fn forward_at(&self, x: Tensor<3>, positions: &Tensor<3>, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
        let x = self.residual.apply(x, &self.norm1, pass, |x, pass| {
            pass.within("self_attn", |pass| self.self_attn.self_attention_at(x, positions, options, pass))
        });
        self.residual.apply(x, &self.norm2, pass, |x, _| feed_forward(&self.linear1, &self.linear2, x))
    }

    /// Adds the cost of [`forward_at`](Self::forward_at) for tokens `[N, D]`.
    pub(crate) fn cost_at(&self, shape: &[usize], ledger: &mut Ledger) {
        self.self_attn.cost_at("self_attn", [shape[0]; 2], ledger);
        residual_cost("norm1", &self.norm1, shape, ledger);
        feed_forward_cost(&self.linear1, &self.linear2, shape, ledger);
        residual_cost("norm2", &self.norm2, shape, ledger);
    }
}

/// Causal self-attention, then cross-attention to the memory, then a feed-forward network.
#[derive(Module, Debug)]
pub struct TransformerDecoderLayer {
    pub self_attn: MultiHeadAttention,
    pub multihead_attn: MultiHeadAttention,
    pub linear1: Linear,
    pub linear2: Linear,
    pub norm1: LayerNorm,
    pub norm2: LayerNorm,
    pub norm3: LayerNorm,
    #[module(skip)]
    residual: ResidualConnection,
}

impl TransformerDecoderLayer {
    /// `[B, N, D] -> [B, N, D]`, weights under `self_attn` and `multihead_attn`; `options.padding` masks tokens of the target.
    pub fn forward(&self, x: Tensor<3>, memory: &Memory, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
        let attend =
            |x, pass: &mut Pass| pass.within("self_attn", |pass| self.self_attn.self_attention(x, options, pass));
        self.forward_with(x, attend, |x| x, memory, pass)
    }

    /// [`forward`](Self::forward) for tokens at positions, which are added to queries and keys of the self-attention and to
    /// queries of the cross-attention: the object queries of DETR.
    pub fn forward_at(&self, x: Tensor<3>, positions: &Tensor<3>, memory: &Memory, pass: &mut Pass) -> Tensor<3> {
        let options = DotProduct::default();
        let attend = |x, pass: &mut Pass| {
            pass.within("self_attn", |pass| self.self_attn.self_attention_at(x, positions, &options, pass))
        };
        self.forward_with(x, attend, |x| x + positions.clone(), memory, pass)
    }

    /// Adds the cost of [`forward_at`](Self::forward_at) for tokens `[N, D]` and so many tokens of a memory.
    pub(crate) fn cost_at(&self, shape: &[usize], memory: usize, ledger: &mut Ledger) {
        self.self_attn.cost_at("self_attn", [shape[0]; 2], ledger);
        residual_cost("norm1", &self.norm1, shape, ledger);
        self.multihead_attn.cost_at("multihead_attn", [shape[0], memory], ledger);
        residual_cost("norm2", &self.norm2, shape, ledger);
        feed_forward_cost(&self.linear1, &self.linear2, shape, ledger);
        residual_cost("norm3", &self.norm3, shape, ledger);
    }

    /// [`forward`](Self::forward) for the next tokens, with the KV cache of those before.
    pub fn next(&self, x: Tensor<3>, cache: &mut Cache, memory: &Memory, pass: &mut Pass) -> Tensor<3> {
        let attend =
            |x, pass: &mut Pass| pass.within("self_attn", |pass| self.self_attn.cached_self_attention(x, cache, pass));
        self.forward_with(x, attend, |x| x, memory, pass)
    }

    fn forward_with(
        &self,
        x: Tensor<3>,
        attend: impl FnOnce(Tensor<3>, &mut Pass) -> Tensor<3>,
        query: impl FnOnce(Tensor<3>) -> Tensor<3>,
        memory: &Memory,
        pass: &mut Pass,
    ) -> Tensor<3> {
        let x = self.residual.apply(x, &self.norm1, pass, attend);
        let x = self.residual.apply(x, &self.norm2, pass, |x, pass| {
            pass.within("multihead_attn", |pass| self.multihead_attn.cross_attention(query(x), memory, pass))
        });
        self.residual.apply(x, &self.norm3, pass, |x, _| feed_forward(&self.linear1, &self.linear2, x))
    }
}

/// Embeddings, encoder layers and an optional final norm.
#[derive(Module, Debug)]
pub struct TransformerEncoder {
    pub embed_tokens: Embedding,
    pub embed_positions: PositionEncoding,
    pub layers: Vec<TransformerEncoderLayer>,
    pub norm: Option<LayerNorm>,
    dropout: f64,
}

/// The sizes of a [`TransformerEncoder`].
#[derive(Clone, Debug)]
pub(crate) struct StackConfig<'a> {
    pub layer: &'a TransformerLayerConfig,
    pub layers: usize,
    pub vocabulary: usize,
    pub position: PositionKind,
    pub final_norm: bool,
}

impl StackConfig<'_> {
    pub fn init(&self, device: &Device) -> TransformerEncoder {
        TransformerEncoder {
            embed_tokens: Embedding::new(self.vocabulary, self.layer.dim, device),
            embed_positions: PositionEncoding::new(self.position, self.layer.dim, device),
            layers: (0..self.layers).map(|_| self.layer.encoder(device)).collect(),
            norm: self.final_norm.then(|| self.layer.norm(device)),
            dropout: self.layer.dropout,
        }
    }
}

impl TransformerEncoder {
    /// Tokens to vectors `[B, N, D]`; with `causal`, a token attends only to itself and those before it.
    pub fn forward(&self, tokens: &Tokens, causal: bool, pass: &mut Pass) -> Tensor<3> {
        let device = self.embed_tokens.weight.lazy_device();
        let x = self.embed_positions.forward(self.embed_tokens.forward(tokens.ids(&device)), 0);
        let x = pass.dropout(x, self.dropout);
        let options = DotProduct { causal, padding: tokens.padding(&device), ..DotProduct::default() };
        pass.with_tokens(Axes::Words(tokens.length()), |pass| self.forward_layers(x, &options, pass))
    }

    /// `[B, N, D] -> [B, N, D]` through the layers and the norm.
    pub fn forward_layers(&self, mut x: Tensor<3>, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
        for (i, layer) in self.layers.iter().enumerate() {
            let name = format!("layers.{i}");
            x = pass.within(&name, |pass| layer.forward(x, options, pass));
            pass.record(&name, &x);
        }
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
