//! Everything that a run of translation depends on, in one TOML file with `task = "translation"`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::recipe::{Common, Written, check_share};
use super::{Groups, Optimiser, Recipe, Schedule, Shape};
use crate::Error;
use crate::data::text::{FEWEST, Languages, Pieces};
use crate::models::translator::{self, TranslatorConfig};

/// What a text recipe is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextTask {
    #[default]
    Translation,
}

/// What to train on which sentences, and how. Every field has a default; a recipe says what differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TextRecipe {
    pub task: TextTask,
    /// A preset.
    pub model: String,
    /// A folder of sentences in two languages, or a TSV file.
    pub data: String,
    /// Names of the columns of a TSV file, in their order, or endings of aligned files.
    pub columns: [String; 2],
    /// The one to translate from.
    pub source: String,
    /// Only so many pairs of the training part; 0 is all.
    pub pairs: usize,
    /// Only so many of the dev part; 0 is all.
    pub test_pairs: usize,
    /// Pairs with more tokens on a side are left out of training.
    pub longest: usize,
    pub pieces: Pieces,
    /// Most tokens of a vocabulary.
    pub vocabulary: usize,
    /// Whether both languages have one vocabulary.
    pub joint: bool,
    /// A `tokenizer.json` for both languages instead.
    pub tokenizer: Option<String>,
    pub epochs: usize,
    /// Most tokens of a batch on either side, padding included.
    pub tokens: usize,
    /// Batches of a step.
    pub accumulate: usize,
    pub seed: u64,
    /// Largest length of the gradient; 0 is any.
    pub clip: f64,
    /// Part of the old value in the moving average of parameters, which is then what is tested; 0 is none.
    pub ema: f64,
    /// Last epochs whose parameters are averaged at the end; 0 is none.
    pub average: usize,
    /// Probability that is taken from the right token and given to all.
    pub smoothing: f64,
    /// Epochs between two translations of the dev part, beside that after the last; 0 is none.
    pub bleu_every: usize,
    /// Epochs without a better test after which training stops; 0 is never.
    pub patience: usize,
    /// Steps between two checkpoints, beside those at the end of an epoch; 0 is none.
    pub save_every: usize,
    /// Changes of the model's fields.
    pub set: BTreeMap<String, toml::Value>,
    pub optimiser: Optimiser,
    pub schedule: Schedule,
    pub groups: Groups,
}

impl Default for TextRecipe {
    fn default() -> Self {
        Self {
            task: TextTask::Translation,
            model: "transformer-small".into(),
            data: "tatoeba_en_it".into(),
            columns: ["en".into(), "it".into()],
            source: "it".into(),
            pairs: 0,
            test_pairs: 0,
            longest: 100,
            pieces: Pieces::Bpe,
            vocabulary: 4000,
            joint: true,
            tokenizer: None,
            epochs: 20,
            tokens: 2000,
            accumulate: 1,
            seed: 0,
            clip: 1.0,
            ema: 0.0,
            average: 0,
            smoothing: 0.1,
            bleu_every: 0,
            patience: 0,
            save_every: 0,
            set: BTreeMap::new(),
            optimiser: Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.0 },
            schedule: Schedule { shape: Shape::InverseSquareRoot, warmup: 1.0, ..Schedule::default() },
            groups: Groups::default(),
        }
    }
}

impl Written for TextRecipe {
    fn check(&self) -> Result<(), Error> {
        self.validate()
    }

    fn common(&mut self) -> Common<'_> {
        let Self { model, data, epochs, seed, .. } = self;
        Common { model, data, epochs, seed }
    }
}

impl TextRecipe {
    /// # Errors
    /// When a value cannot work; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        for (field, count) in [
            ("epochs", self.epochs),
            ("tokens", self.tokens),
            ("accumulate", self.accumulate),
            ("longest", self.longest),
        ] {
            if count == 0 {
                return Err(Error::config(field, "must be at least 1"));
            }
        }
        // a token to begin or to end with is one more
        if self.longest + 1 > self.tokens {
            let reason =
                format!("a sentence of {} tokens and one more is over a batch of {}", self.longest, self.tokens);
            return Err(Error::config("tokens", reason));
        }
        if self.vocabulary < FEWEST {
            return Err(Error::config("vocabulary", format!("must be at least {FEWEST}, got {}", self.vocabulary)));
        }
        if !(self.clip.is_finite() && self.clip >= 0.0) {
            return Err(Error::config("clip", format!("{} is no length", self.clip)));
        }
        check_share("ema", self.ema)?;
        check_share("smoothing", self.smoothing)?;
        self.languages().order()?;
        self.optimiser.validate()?;
        self.schedule.validate(self.epochs)?;
        translator::preset(&self.model).map(|_| ())
    }

    /// Which way the data is read.
    pub fn languages(&self) -> Languages {
        Languages { columns: self.columns.clone(), source: self.source.clone() }
    }

    /// The model for vocabularies of so many tokens.
    ///
    /// # Errors
    /// When a field of the model is unknown or cannot work.
    pub fn model(&self, vocabularies: [usize; 2]) -> Result<TranslatorConfig, Error> {
        let mut config = translator::preset(&self.model)?.config;
        for (field, tokens) in ["source_vocabulary", "target_vocabulary"].into_iter().zip(vocabularies) {
            config = config.with(field, serde_json::json!(tokens))?;
        }
        let one = self.joint || self.tokenizer.is_some();
        if !one && matches!(config, TranslatorConfig::Transformer(_)) && !self.set.contains_key("tying") {
            config = config.with("tying", serde_json::json!("target"))?;
        }
        for (field, value) in &self.set {
            let value = serde_json::to_value(value).expect("TOML is JSON, but for dates");
            config = config.with(field, value)?;
        }
        Ok(config)
    }
}

/// A recipe of any kind; without a `task` it is one for pictures.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // there is one of them, not an array
pub enum AnyRecipe {
    Pictures(Recipe),
    Translation(TextRecipe),
}

impl AnyRecipe {
    /// # Errors
    /// As [`Recipe::from_toml`] and [`Written::from_toml`].
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        if is_text(text) {
            TextRecipe::from_toml(text).map(Self::Translation)
        } else {
            Recipe::from_toml(text).map(Self::Pictures)
        }
    }
}

/// Whether a recipe says that it is for translation.
fn is_text(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key("task"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_makes_a_recipe_one_for_translation_and_it_can_be_read_back() {
        assert_eq!(AnyRecipe::from_toml("").unwrap(), AnyRecipe::Pictures(Recipe::default()));
        let text = "task = 'translation'\nsource = 'en'\nset = { dropout = 0.3 }\n";
        let AnyRecipe::Translation(recipe) = AnyRecipe::from_toml(text).unwrap() else { panic!("for pictures") };
        assert_eq!((recipe.source.as_str(), recipe.languages().target()), ("en", "it"));
        assert_eq!(TextRecipe::from_toml(&recipe.to_toml()).unwrap(), recipe);
        assert_eq!(recipe.with("optimiser.rate", "1e-4").unwrap().optimiser.rate(), 1e-4);
        let TranslatorConfig::Transformer(config) = recipe.model([500, 500]).unwrap() else { panic!("another model") };
        assert_eq!((config.dropout, config.source_vocabulary), (0.3, 500));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused =
            |text: &str| AnyRecipe::from_toml(&format!("task = 'translation'\n{text}")).unwrap_err().to_string();
        assert!(refused("source = 'de'").contains("`source`"));
        assert!(refused("tokens = 50").contains("`tokens`"));
        assert!(refused("vocabulary = 7").contains("`vocabulary`"));
        assert!(refused("model = 'vit-nano'").contains("vit-nano"));
        assert!(refused("smoothig = 0.1").contains("`smoothing`"));
        assert!(AnyRecipe::from_toml("task = 'painting'").unwrap_err().to_string().contains("painting"));
    }

    #[test]
    fn two_vocabularies_are_two_tables() {
        let recipe = TextRecipe { joint: false, ..TextRecipe::default() };
        recipe.model([500, 600]).unwrap().init(&crate::device::cpu()).unwrap();
    }
}
