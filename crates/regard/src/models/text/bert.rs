//! BERT: a Transformer encoder over words, positions and segments, that learns from masked words and from whether one sentence
//! follows another.
//! Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", arXiv:1810.04805;
//! the small ones: Turc et al. 2019, "Well-Read Students Learn Better", arXiv:1908.08962.
//!
//! Field names are those of `BertForPreTraining` in transformers, so that its checkpoints need no translation. Differences:
//! the weights of attention are not dropped at random, only the ends of branches are; the output projection is the table of
//! words, never a copy of it.

mod cost;
mod presets;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::data::Words;
use crate::layers::bert::{BertHeads, BertLayerConfig, BertModel};
use crate::layers::{check_depth, check_size, rows_at};
use crate::models::config;
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

pub use presets::{PRESETS, preset};

/// A BERT in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertConfig {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub positions: usize,
    /// Segments: two for pairs of sentences.
    pub types: usize,
    pub layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
    /// Whether it reads the whole text from the first token.
    pub pooler: bool,
    /// Whether it has the head for masked words.
    pub masked_words: bool,
    /// Whether it has the head for the next sentence, which needs the pooler.
    pub next_sentence: bool,
}

/// The configuration in a file: `model = "bert"` and its fields.
#[derive(Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
enum Tagged {
    Bert(BertConfig),
}

impl BertConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        check_depth(self.layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        check_size("positions", self.positions)?;
        check_size("types", self.types)?;
        if self.next_sentence && !self.pooler {
            return Err(Error::config("next_sentence", "reads the pooler, which must be true too"));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Bert, Error> {
        self.validate()?;
        let (layer, sizes) = (self.layer(), [self.vocabulary, self.positions, self.types]);
        let both = BertHeads::new(self.vocabulary, &layer, device);
        let heads = BertHeads {
            predictions: both.predictions.filter(|_| self.masked_words),
            seq_relationship: both.seq_relationship.filter(|_| self.next_sentence),
        };
        let bert = BertModel::new(sizes, &layer, self.layers, device);
        let bert = if self.pooler { bert.with_pooler(&layer, device) } else { bert };
        check_parameters(Bert { bert, cls: heads })
    }

    const fn layer(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }

    /// Changes one field.
    ///
    /// # Errors
    /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
    pub fn with(&self, field: &str, value: serde_json::Value) -> Result<Self, Error> {
        config::with_field(self, field, value)
    }

    /// The configuration in TOML, as [`from_toml`](Self::from_toml) reads it.
    pub fn to_toml(&self) -> String {
        toml::to_string(&Tagged::Bert(self.clone())).expect("a configuration is plain data")
    }

    /// # Errors
    /// When it is not TOML, or a field is unknown, missing or of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        config::from_toml(text).map(|Tagged::Bert(config)| config)
    }
}

/// The model with its heads; made by [`BertConfig::init`].
#[derive(Module, Debug)]
pub struct Bert {
    pub bert: BertModel,
    pub cls: BertHeads,
}

impl Bert {
    /// Hidden states of the tokens, `[B, N, D]`; weights `[B, A, N, N]` under `bert.encoder.layer.i.attention.self`.
    ///
    /// # Panics
    /// When a text has more tokens than there are positions.
    pub fn features(&self, words: &Words, pass: &mut Pass) -> Tensor<3> {
        pass.within("bert", |pass| self.bert.forward(words, pass))
    }

    /// The whole of each text by its first token, `[B, N, D] -> [B, D]`; none without a pooler.
    pub fn pooled(&self, features: Tensor<3>) -> Option<Tensor<2>> {
        self.bert.pooler.as_ref().map(|pooler| pooler.forward(features))
    }

    /// Logits of words at some positions only, `[B, N, D] -> [P, V]`, because logits are large. Positions count through all
    /// texts, padding included. None without the head for masked words.
    ///
    /// # Panics
    /// When there is no such position.
    pub fn word_logits(&self, features: Tensor<3>, positions: &[usize]) -> Option<Tensor<2>> {
        let head = self.cls.predictions.as_ref()?;
        Some(head.forward(rows_at(features, positions), &self.bert.embeddings.word_embeddings))
    }

    /// Logits of whether the second text follows the first, `[B, D] -> [B, 2]`: 0 is yes, 1 is no. None without the head.
    pub fn next_sentence_logits(&self, pooled: Tensor<2>) -> Option<Tensor<2>> {
        self.cls.seq_relationship.as_ref().map(|head| head.forward(pooled))
    }

    /// One vector of length 1 for each text, `[B, D]`: the mean of its tokens, as in sentence-transformers.
    pub fn sentence_vectors(&self, words: &Words, pass: &mut Pass) -> Tensor<2> {
        let features = self.features(words, pass);
        let [batch, length, dim] = features.dims();
        let lengths = words.tokens.lengths();
        let share =
            |(text, place): (usize, usize)| if place < lengths[text] { 1.0 / lengths[text] as f32 } else { 0.0 };
        let shares: Vec<f32> = (0..batch).flat_map(|text| (0..length).map(move |at| (text, at))).map(share).collect();
        let shares = TensorData::new(shares, [batch, length, 1]);
        let means = (features * Tensor::from_data(shares, &self.bert.embeddings.device())).sum_dim(1);
        let means = means.reshape([batch, dim]);
        let norms = means.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
        means / norms
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        self.bert.embeddings.limit()
    }
}

#[cfg(test)]
mod tests;
