//! Language models from the Transformer's layers: masked (an encoder) and causal (a decoder without cross-attention).
//! Devlin et al. 2018 (BERT), arXiv:1810.04805; Radford et al. 2018 (GPT).
//!
//! Differences from both: norms, positions and feed-forward networks are those of the Transformer, by config, and the
//! output projection is tied to the embeddings.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::TextPreset;
use crate::data::Tokens;
use crate::layers::{
    NormPlace, PositionKind, StackConfig, TransformerEncoder, TransformerLayerConfig, check_depth, rows_at,
};
use crate::models::config;
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

/// Masked or causal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Every token attends to every token: a masked language model.
    Both,
    /// A token attends to those before it: a causal language model.
    Forward,
}

/// A stack of layers over one vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageModelConfig {
    pub vocabulary: usize,
    pub direction: Direction,
    pub layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Dropout rate.
    pub dropout: f64,
    pub norm: NormPlace,
    pub position: PositionKind,
    /// Epsilon of norms.
    pub epsilon: f64,
}

/// The configuration in a file: `model = "language-model"` and its fields.
#[derive(Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
enum Tagged {
    LanguageModel(LanguageModelConfig),
}

impl LanguageModelConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<LanguageModel, Error> {
        let Self { dim, heads, inner, norm, dropout, epsilon, .. } = *self;
        let layer = TransformerLayerConfig { dim, heads, inner, norm, dropout, epsilon };
        layer.validate()?;
        check_depth(self.layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        let stack = StackConfig {
            layer: &layer,
            layers: self.layers,
            vocabulary: self.vocabulary,
            position: self.position,
            final_norm: norm == NormPlace::Pre,
        };
        check_parameters(LanguageModel { encoder: stack.init(device), causal: self.direction == Direction::Forward })
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
        toml::to_string(&Tagged::LanguageModel(self.clone())).expect("a configuration is plain data")
    }

    /// # Errors
    /// When it is not TOML, or a field is unknown, missing or of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        config::from_toml(text).map(|Tagged::LanguageModel(config)| config)
    }
}

/// Tokens in, logits for each position out.
#[derive(Module, Debug)]
pub struct LanguageModel {
    pub encoder: TransformerEncoder,
    causal: bool,
}

impl LanguageModel {
    /// Logits of each position, or of the one after it: `[B, N, V]`.
    pub fn forward(&self, tokens: &Tokens, pass: &mut Pass) -> Tensor<3> {
        self.encoder.embed_tokens.logits(self.features(tokens, pass))
    }

    /// Logits at some positions only, `[P, V]`, because logits are large. Positions count through all sentences, padding
    /// included.
    ///
    /// # Panics
    /// When there is no such position.
    pub fn logits_at(&self, tokens: &Tokens, positions: &[usize], pass: &mut Pass) -> Tensor<2> {
        let features = self.features(tokens, pass);
        self.encoder.embed_tokens.logits(rows_at(features, positions))
    }

    /// Largest number of tokens of a sentence, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.encoder.embed_positions.limit()
    }

    /// Hidden states of the tokens: `[B, N, D]`.
    pub fn features(&self, tokens: &Tokens, pass: &mut Pass) -> Tensor<3> {
        pass.within("encoder", |pass| self.encoder.forward(tokens, self.causal, pass))
    }
}

/// | | layers | D | inner | heads | dropout |
/// |---|---|---|---|---|---|
/// | small | 4 | 192 | 768 | 4 | 0.1 |
/// | nano | 2 | 128 | 512 | 4 | 0.1 |
impl LanguageModelConfig {
    const fn new(direction: Direction, layers: usize, [dim, inner, heads]: [usize; 3]) -> Self {
        let (norm, position) = (NormPlace::Pre, PositionKind::Sinusoidal);
        Self { vocabulary: 4000, direction, layers, dim, heads, inner, dropout: 0.1, norm, position, epsilon: 1e-5 }
    }

    #[must_use]
    pub const fn masked_small() -> Self {
        Self::new(Direction::Both, 4, [192, 768, 4])
    }

    #[must_use]
    pub const fn masked_nano() -> Self {
        Self::new(Direction::Both, 2, [128, 512, 4])
    }

    #[must_use]
    pub const fn causal_small() -> Self {
        Self::new(Direction::Forward, 4, [192, 768, 4])
    }

    #[must_use]
    pub const fn causal_nano() -> Self {
        Self::new(Direction::Forward, 2, [128, 512, 4])
    }
}

pub const PRESETS: &[TextPreset<LanguageModelConfig>] = &[
    TextPreset { name: "masked-nano", paper: "ours", config: LanguageModelConfig::masked_nano },
    TextPreset { name: "masked-small", paper: "ours", config: LanguageModelConfig::masked_small },
    TextPreset { name: "causal-nano", paper: "ours", config: LanguageModelConfig::causal_nano },
    TextPreset { name: "causal-small", paper: "ours", config: LanguageModelConfig::causal_small },
];

/// The preset with this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<TextPreset<LanguageModelConfig>, Error> {
    config::find(PRESETS.to_vec(), name, |preset| preset.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{stirred, values};

    fn model(direction: Direction) -> LanguageModel {
        let config = LanguageModelConfig { vocabulary: 11, ..LanguageModelConfig::new(direction, 2, [8, 16, 2]) };
        stirred(config.init(&cpu()).unwrap())
    }

    fn first_position(model: &LanguageModel, sentence: &[u32]) -> Vec<f32> {
        values(&model.forward(&Tokens::new(&[sentence]), &mut Pass::silent()).narrow(1, 0, 1))
    }

    #[test]
    fn a_masked_model_sees_what_comes_and_a_causal_one_does_not() {
        let (masked, causal) = (model(Direction::Both), model(Direction::Forward));
        assert_ne!(first_position(&masked, &[1, 2, 3]), first_position(&masked, &[1, 2, 4]));
        assert_eq!(first_position(&causal, &[1, 2, 3]), first_position(&causal, &[1, 2, 4]));
    }

    #[test]
    fn padding_changes_nothing() {
        for direction in [Direction::Both, Direction::Forward] {
            let model = model(direction);
            let alone = model.forward(&Tokens::new(&[[1, 2]]), &mut Pass::silent());
            let both = model.forward(&Tokens::new(&[vec![1, 2], vec![3, 4, 5, 6]]), &mut Pass::silent());
            crate::testing::assert_close(&both.slice([0..1, 0..2]), &alone, 1e-6);
        }
    }
    #[test]
    fn logits_of_some_positions_are_those_of_all_at_these_positions() {
        let (model, tokens) = (model(Direction::Both), Tokens::new(&[vec![1, 2], vec![3, 4, 5, 6]]));
        let all = model.forward(&tokens, &mut Pass::silent()).reshape([8, 11]);
        let some = model.logits_at(&tokens, &[7, 1], &mut Pass::silent());
        let expected = Tensor::cat(vec![all.clone().narrow(0, 7, 1), all.narrow(0, 1, 1)], 0);
        crate::testing::assert_close(&some, &expected, 1e-6);
    }

    #[test]
    fn every_preset_is_found_by_its_name_and_can_be_written_read_and_made() {
        for known in PRESETS {
            let config = (preset(known.name).unwrap().config)();
            assert_eq!(LanguageModelConfig::from_toml(&config.to_toml()).unwrap(), config);
            config.init(&cpu()).unwrap();
        }
        assert!(preset("masked-nanu").unwrap_err().to_string().contains("`masked-nano`"));
        assert!(LanguageModelConfig::from_toml("model = 'vit'").is_err());
        let config = LanguageModelConfig::masked_nano();
        assert!(config.with("dimm", serde_json::json!(7)).unwrap_err().to_string().contains("`dim`"));
    }
}
