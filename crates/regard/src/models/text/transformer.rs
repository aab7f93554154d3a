//! The Transformer: an encoder and a decoder, based only on attention.
//! Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762.
//!
//! Layers have the names of `torch.nn.Transformer`, embeddings and norms outside of them those of fairseq. Differences from
//! the paper:
//! - projections in attention have biases, as in PyTorch and fairseq;
//! - pre-norm and a norm after each stack are options;
//! - embeddings are shared between both languages only if they have one vocabulary.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::TextPreset;
use crate::attention::DotProduct;
use crate::data::Tokens;
use crate::layers::{
    Cache, Embedding, LayerNorm, Linear, Memory, NormPlace, PositionEncoding, PositionKind, StackConfig,
    TransformerDecoderLayer, TransformerEncoder, TransformerLayerConfig, check_depth, check_size,
};
use crate::models::limits::check_vocabulary;
use crate::pass::Axes;
use crate::{Error, Pass};

/// An encoder and a decoder in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerConfig {
    /// Source vocabulary.
    pub source_vocabulary: usize,
    /// Target vocabulary.
    pub target_vocabulary: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
    /// Dropout rate.
    pub dropout: f64,
    pub norm: NormPlace,
    /// Whether a norm follows the last layer of each stack, as in PyTorch; always so with pre-norm.
    pub final_norm: bool,
    pub position: PositionKind,
    pub tying: Tying,
    /// Epsilon of norms.
    pub epsilon: f64,
}

/// Which embeddings are tied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tying {
    /// Source, target and output projection, as in the paper; needs one vocabulary.
    #[default]
    All,
    /// Target and output projection.
    Target,
    None,
}

impl TransformerConfig {
    fn layer(&self) -> TransformerLayerConfig {
        let Self { dim, heads, inner, norm, dropout, epsilon, .. } = *self;
        TransformerLayerConfig { dim, heads, inner, norm, dropout, epsilon }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        check_depth(self.encoder_layers)?;
        check_depth(self.decoder_layers)?;
        check_vocabulary("source_vocabulary", self.source_vocabulary)?;
        check_vocabulary("target_vocabulary", self.target_vocabulary)?;
        if let PositionKind::Learned { places } = self.position {
            check_size("places", places)?;
        }
        if self.tying == Tying::All && self.source_vocabulary != self.target_vocabulary {
            let reason = format!("{} and {} tokens are two tables", self.source_vocabulary, self.target_vocabulary);
            return Err(Error::config("tying", reason));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Transformer, Error> {
        self.validate()?;
        let layer = self.layer();
        let final_norm = self.final_norm || self.norm == NormPlace::Pre;
        let encoder = StackConfig {
            layer: &layer,
            layers: self.encoder_layers,
            vocabulary: self.source_vocabulary,
            position: self.position,
            final_norm,
        };
        let own = |yes: bool| yes.then(|| Embedding::new(self.target_vocabulary, self.dim, device));
        let decoder = Decoder {
            embed_tokens: own(self.tying != Tying::All),
            embed_positions: PositionEncoding::new(self.position, self.dim, device),
            layers: (0..self.decoder_layers).map(|_| layer.decoder(device)).collect(),
            norm: final_norm.then(|| layer.norm(device)),
            output_projection: (self.tying == Tying::None)
                .then(|| Linear { bias: None, ..Linear::xavier(self.dim, self.target_vocabulary, device) }),
            dropout: self.dropout,
        };
        Ok(Transformer { encoder: encoder.init(device), decoder })
    }
}

/// An encoder and a decoder.
#[derive(Module, Debug)]
pub struct Transformer {
    pub encoder: TransformerEncoder,
    pub decoder: Decoder,
}

/// The decoder.
#[derive(Module, Debug)]
pub struct Decoder {
    /// None if tied to the encoder's.
    pub embed_tokens: Option<Embedding>,
    pub embed_positions: PositionEncoding,
    pub layers: Vec<TransformerDecoderLayer>,
    pub norm: Option<LayerNorm>,
    /// None if tied to the embeddings.
    pub output_projection: Option<Linear>,
    dropout: f64,
}

/// The state of decoding: the memory and the KV cache of each layer.
#[derive(Clone, Debug)]
pub struct TransformerState {
    memory: Vec<Memory>,
    caches: Vec<Cache>,
    written: usize,
}

impl Transformer {
    /// Logits of the next token at each position of the target: `[B, N, V]`.
    pub fn forward(&self, source: &Tokens, target: &Tokens, pass: &mut Pass) -> Tensor<3> {
        let memory = pass.within("encoder", |pass| self.encoder.forward(source, false, pass));
        let memory = self.memory(memory, source);
        let x = self.words(target, 0);
        let x = pass.dropout(x, self.decoder.dropout);
        let x = pass.with_tokens(Axes::Words(target.length()), |pass| {
            pass.within("decoder", |pass| self.decoder.forward_layers(x, &memory, &DotProduct::default(), pass))
        });
        self.logits(x)
    }

    /// Encodes sentences, to start decoding.
    pub fn begin(&self, source: &Tokens) -> TransformerState {
        let memory = self.encoder.forward(source, false, &mut Pass::silent());
        let caches = vec![Cache::default(); self.decoder.layers.len()];
        TransformerState { memory: self.memory(memory, source), caches, written: 0 }
    }

    /// Logits `[B, V]` of the token that follows the given ones, which follow what was written before.
    pub fn next(&self, tokens: &Tokens, state: &mut TransformerState) -> Tensor<2> {
        let pass = &mut Pass::silent();
        let mut x = self.words(tokens, state.written);
        for ((layer, cache), memory) in self.decoder.layers.iter().zip(&mut state.caches).zip(&state.memory) {
            x = layer.next(x, cache, memory, pass);
        }
        state.written += tokens.length();
        let [_, length, _] = x.dims();
        self.logits(self.decoder.normed(x.narrow(1, length - 1, 1))).squeeze_dim(1)
    }

    fn memory(&self, memory: Tensor<3>, source: &Tokens) -> Vec<Memory> {
        let padding = source.padding(&memory.device());
        let words = Axes::Words(source.length());
        let of_layer = |layer: &TransformerDecoderLayer| {
            layer.multihead_attn.project_memory(memory.clone(), padding.clone()).with_axes(words.clone())
        };
        self.decoder.layers.iter().map(of_layer).collect()
    }

    /// `[B, N, D]`: padding at the end needs no mask, because the causal mask hides it.
    fn words(&self, target: &Tokens, first: usize) -> Tensor<3> {
        let table = self.decoder.embed_tokens.as_ref().unwrap_or(&self.encoder.embed_tokens);
        let words = table.forward(target.ids(&table.weight.lazy_device()));
        self.decoder.embed_positions.forward(words, first)
    }

    /// `[B, N, D] -> [B, N, V]`
    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        match (&self.decoder.output_projection, &self.decoder.embed_tokens) {
            (Some(map), _) => map.forward(x),
            (None, Some(table)) => table.logits(x),
            (None, None) => self.encoder.embed_tokens.logits(x),
        }
    }

    /// Largest number of tokens of a sentence, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.encoder.embed_positions.limit()
    }
}

impl Decoder {
    /// `[B, N, D] -> [B, N, D]` through the layers only, each with its memory; always causal.
    pub fn forward_layers(
        &self,
        mut x: Tensor<3>,
        memory: &[Memory],
        options: &DotProduct,
        pass: &mut Pass,
    ) -> Tensor<3> {
        let options = DotProduct { causal: true, ..options.clone() };
        for (i, (layer, memory)) in self.layers.iter().zip(memory).enumerate() {
            let name = format!("layers.{i}");
            x = pass.within(&name, |pass| layer.forward(x, memory, &options, pass));
            pass.record(&name, &x);
        }
        self.normed(x)
    }

    fn normed(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

impl TransformerState {
    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, Int>) -> Self {
        Self {
            memory: self.memory.iter().map(|memory| memory.select(indices)).collect(),
            caches: self.caches.iter().map(|cache| cache.select(indices)).collect(),
            written: self.written,
        }
    }
}

/// | | layers | D | inner | heads | dropout | source |
/// |---|---|---|---|---|---|---|
/// | base | 6 + 6 | 512 | 2048 | 8 | 0.1 | Vaswani et al. 2017, Table 3: 65 M parameters |
/// | big | 6 + 6 | 1024 | 4096 | 16 | 0.3 | same: 213 M |
/// | small | 3 + 3 | 192 | 768 | 4 | 0.3 | ours |
/// | nano | 2 + 2 | 128 | 512 | 4 | 0.1 | ours |
impl TransformerConfig {
    const fn new(layers: usize, [dim, inner, heads]: [usize; 3], dropout: f64, vocabulary: usize) -> Self {
        Self {
            source_vocabulary: vocabulary,
            target_vocabulary: vocabulary,
            dim,
            heads,
            inner,
            encoder_layers: layers,
            decoder_layers: layers,
            dropout,
            norm: NormPlace::Post,
            final_norm: false,
            position: PositionKind::Sinusoidal,
            tying: Tying::All,
            epsilon: 1e-5,
        }
    }

    /// For English and German, with a shared vocabulary of 37,000 tokens.
    #[must_use]
    pub const fn base() -> Self {
        Self::new(6, [512, 2048, 8], 0.1, 37_000)
    }

    #[must_use]
    pub const fn big() -> Self {
        Self::new(6, [1024, 4096, 16], 0.3, 37_000)
    }

    /// Trains on tens of thousands of sentences in about an hour without a GPU; pre-norm, which is easier to train.
    #[must_use]
    pub const fn small() -> Self {
        Self { norm: NormPlace::Pre, ..Self::new(3, [192, 768, 4], 0.3, 4_000) }
    }

    /// For tests and experiments.
    #[must_use]
    pub const fn nano() -> Self {
        Self { norm: NormPlace::Pre, ..Self::new(2, [128, 512, 4], 0.1, 4_000) }
    }
}

const PAPER: &str = "arXiv:1706.03762";

pub const PRESETS: &[TextPreset<TransformerConfig>] = &[
    TextPreset { name: "transformer-nano", paper: "ours", config: TransformerConfig::nano },
    TextPreset { name: "transformer-small", paper: "ours", config: TransformerConfig::small },
    TextPreset { name: "transformer-base", paper: PAPER, config: TransformerConfig::base },
    TextPreset { name: "transformer-big", paper: PAPER, config: TransformerConfig::big },
];

#[cfg(test)]
mod tests;
