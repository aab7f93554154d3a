//! Translation models: the Transformer and the recurrent network that it replaced.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::rnn_search::{self, RnnSearch, RnnSearchConfig, RnnSearchState};
use super::transformer::{self, Transformer, TransformerConfig, TransformerState};
use crate::data::Tokens;
use crate::models::config;
use crate::models::limits::check_parameters;
use crate::{Error, Pass};

/// The configuration of a translation model: in TOML, `model = "transformer"` and its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum TranslatorConfig {
    Transformer(TransformerConfig),
    RnnSearch(RnnSearchConfig),
}

/// A translation model.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // used one at a time, not in arrays
pub enum Translator {
    Transformer(Transformer),
    RnnSearch(RnnSearch),
}

/// The state of decoding.
#[derive(Clone, Debug)]
pub enum TranslatorState {
    Transformer(TransformerState),
    RnnSearch(Box<RnnSearchState>),
}

config::config_methods!(TranslatorConfig);

impl TranslatorConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Translator, Error> {
        match self {
            Self::Transformer(config) => config.init(device).and_then(check_parameters).map(Translator::Transformer),
            Self::RnnSearch(config) => config.init(device).and_then(check_parameters).map(Translator::RnnSearch),
        }
    }

    /// Vocabulary sizes of source and target.
    pub const fn vocabularies(&self) -> [usize; 2] {
        match self {
            Self::Transformer(config) => [config.source_vocabulary, config.target_vocabulary],
            Self::RnnSearch(config) => [config.source_vocabulary, config.target_vocabulary],
        }
    }
}

impl Translator {
    /// Logits of the next token at each position of the target: `[B, N, V]`.
    pub fn forward(&self, source: &Tokens, target: &Tokens, pass: &mut Pass) -> Tensor<3> {
        match self {
            Self::Transformer(model) => model.forward(source, target, pass),
            Self::RnnSearch(model) => model.forward(source, target, pass),
        }
    }

    /// Encodes sentences, to start decoding.
    pub fn begin(&self, source: &Tokens) -> TranslatorState {
        match self {
            Self::Transformer(model) => TranslatorState::Transformer(model.begin(source)),
            Self::RnnSearch(model) => TranslatorState::RnnSearch(Box::new(model.begin(source))),
        }
    }

    /// Logits `[B, V]` of the token that follows the given ones, one for each sentence.
    ///
    /// # Panics
    /// When the state is that of another kind of model.
    pub fn next(&self, tokens: &[u32], state: &mut TranslatorState) -> Tensor<2> {
        let tokens = Tokens::new(&tokens.iter().map(|token| [*token]).collect::<Vec<_>>());
        match (self, state) {
            (Self::Transformer(model), TranslatorState::Transformer(state)) => model.next(&tokens, state),
            (Self::RnnSearch(model), TranslatorState::RnnSearch(state)) => model.next(&tokens, state),
            _ => panic!("translator: a state of another kind of model"),
        }
    }

    /// Largest number of tokens of a sentence, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        match self {
            Self::Transformer(model) => model.limit(),
            Self::RnnSearch(_) => None,
        }
    }
}

impl TranslatorState {
    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, Int>) -> Self {
        match self {
            Self::Transformer(state) => Self::Transformer(state.select(indices)),
            Self::RnnSearch(state) => Self::RnnSearch(Box::new(state.select(indices))),
        }
    }
}

/// A preset of a translation model.
#[derive(Clone, Debug)]
pub struct TranslatorPreset {
    pub name: &'static str,
    pub paper: &'static str,
    pub config: TranslatorConfig,
}

/// Every preset.
pub fn presets() -> Vec<TranslatorPreset> {
    let transformers = transformer::PRESETS.iter().map(|preset| TranslatorPreset {
        name: preset.name,
        paper: preset.paper,
        config: TranslatorConfig::Transformer((preset.config)()),
    });
    let recurrent = rnn_search::PRESETS.iter().map(|preset| TranslatorPreset {
        name: preset.name,
        paper: preset.paper,
        config: TranslatorConfig::RnnSearch((preset.config)()),
    });
    transformers.chain(recurrent).collect()
}

/// The preset with this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<TranslatorPreset, Error> {
    config::find(presets(), name, |preset| preset.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_found_by_its_name_and_can_be_written_and_read() {
        for known in presets() {
            let found = preset(known.name).unwrap();
            assert_eq!(TranslatorConfig::from_toml(&found.config.to_toml()).unwrap(), known.config);
        }
        assert!(preset("transformer-smal").unwrap_err().to_string().contains("`transformer-small`"));
    }

    #[test]
    fn a_field_can_be_changed_and_an_unknown_one_is_named() {
        let config = preset("rnnsearch-nano").unwrap().config;
        let changed = config.with("source_vocabulary", serde_json::json!(77)).unwrap();
        assert_eq!(changed.vocabularies(), [77, 4000]);
        assert!(config.with("hiden", serde_json::json!(7)).unwrap_err().to_string().contains("`hidden`"));
    }
}
