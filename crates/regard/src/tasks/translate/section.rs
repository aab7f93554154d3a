//! The keys of a translation recipe.

use serde::{Deserialize, Serialize};

use super::Recipe;
use crate::Error;
use crate::data::text::{FEWEST, Languages, Pieces};
use crate::models::translator::{self, TranslatorConfig};
use crate::train::{Common, Optimiser, Schedule, ScheduleShape, Section, check_positive, check_share};

/// How sentences become batches and losses. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct TranslateSection {
    /// Column names of a TSV file, in order, or extensions of aligned files.
    pub columns: [String; 2],
    /// The source language.
    pub source: String,
    /// At most this many training pairs; 0 means all.
    pub pairs: usize,
    /// TSV files with further training pairs, next to the training part or anywhere else.
    pub more: Vec<String>,
    /// How often an epoch passes over the training part, and once over the pairs of `more`.
    pub repeat: usize,
    /// Whether training pairs that share a sentence with the validation or test part are dropped. Letters decide: neither case nor
    /// punctuation makes a sentence another one.
    pub drop_shared: bool,
    /// At most this many pairs of the validation and of the test part; 0 means all.
    pub test_pairs: usize,
    /// Pairs with more tokens on a side are not trained on.
    pub longest: usize,
    pub pieces: Pieces,
    /// Maximum size of a vocabulary.
    pub vocabulary: usize,
    /// Whether both languages share one vocabulary.
    pub joint: bool,
    /// A `tokenizer.json` for both languages, to use instead.
    pub tokenizer: Option<String>,
    /// Maximum number of tokens per batch on either side, padding included.
    pub tokens: usize,
    /// Label smoothing: probability taken from the right token and given to all.
    pub smoothing: f64,
    /// Epochs between two translations of the validation part, which is also translated after the last epoch; 0 means only
    /// then.
    pub bleu_every: usize,
}

impl Default for TranslateSection {
    fn default() -> Self {
        Self {
            columns: ["en".into(), "it".into()],
            source: "it".into(),
            pairs: 0,
            more: Vec::new(),
            repeat: 1,
            drop_shared: false,
            test_pairs: 0,
            longest: 100,
            pieces: Pieces::Bpe,
            vocabulary: 4000,
            joint: true,
            tokenizer: None,
            tokens: 2000,
            smoothing: 0.1,
            bleu_every: 0,
        }
    }
}

impl Section for TranslateSection {
    fn common() -> Common {
        Common {
            model: "transformer-small".into(),
            data: "tatoeba_en_it".into(),
            epochs: 20,
            clip: 1.0,
            optimiser: Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.0 },
            schedule: Schedule { shape: ScheduleShape::InverseSquareRoot, warmup: 1.0, ..Schedule::default() },
            ..Common::default()
        }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        check_positive("tokens", self.tokens)?;
        check_positive("longest", self.longest)?;
        check_positive("repeat", self.repeat)?;
        // one more for the start or end token
        if self.longest >= self.tokens {
            let reason =
                format!("a sentence of {} tokens and one more is over a batch of {}", self.longest, self.tokens);
            return Err(Error::config("tokens", reason));
        }
        if self.vocabulary < FEWEST {
            return Err(Error::config("vocabulary", format!("must be at least {FEWEST}, got {}", self.vocabulary)));
        }
        check_share("smoothing", self.smoothing)?;
        self.languages().order()?;
        translator::preset(&common.model).map(|_| ())
    }
}

impl TranslateSection {
    /// The direction of the pairs.
    pub fn languages(&self) -> Languages {
        Languages { columns: self.columns.clone(), source: self.source.clone() }
    }
}

impl Recipe {
    /// The model for vocabularies of these sizes.
    ///
    /// # Errors
    /// When a field of the model is unknown or out of range.
    pub fn model(&self, vocabularies: [usize; 2]) -> Result<TranslatorConfig, Error> {
        let mut config = translator::preset(&self.common.model)?.config;
        for (field, tokens) in ["source_vocabulary", "target_vocabulary"].into_iter().zip(vocabularies) {
            config = config.with(field, serde_json::json!(tokens))?;
        }
        let one = self.own.joint || self.own.tokenizer.is_some();
        if !one && matches!(config, TranslatorConfig::Transformer(_)) && !self.common.set.contains_key("tying") {
            config = config.with("tying", serde_json::json!("target"))?;
        }
        for (field, value) in self.common.changes() {
            config = config.with(field, value)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights;

    #[test]
    fn a_recipe_can_be_read_back_and_a_key_changed() {
        let text = "task = 'translation'\nsource = 'en'\nset = { dropout = 0.3 }\n";
        let recipe = Recipe::from_toml(text).unwrap();
        assert_eq!((recipe.own.source.as_str(), recipe.own.languages().target()), ("en", "it"));
        assert_eq!(Recipe::from_toml(&recipe.to_toml("translate")).unwrap(), recipe);
        assert_eq!(recipe.with("optimiser.rate", "1e-4").unwrap().common.optimiser.rate(), 1e-4);
        let TranslatorConfig::Transformer(config) = recipe.model([500, 500]).unwrap() else { panic!("another model") };
        assert_eq!((config.dropout, config.source_vocabulary), (0.3, 500));
    }

    #[test]
    fn what_a_recipe_does_not_say_is_the_default_of_its_task() {
        let recipe = Recipe::from_toml("epochs = 3").unwrap();
        assert_eq!(recipe.common, Common { epochs: 3, ..TranslateSection::common() });
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |text: &str| Recipe::from_toml(text).unwrap_err().to_string();
        assert!(refused("source = 'de'").contains("`source`"));
        assert!(refused("tokens = 50").contains("`tokens`"));
        assert!(refused("vocabulary = 7").contains("`vocabulary`"));
        assert!(refused("model = 'vit-nano'").contains("vit-nano"));
        assert!(refused("smoothig = 0.1").contains("`smoothing`"));
    }

    #[test]
    fn two_vocabularies_are_two_tables() {
        let mut recipe = Recipe::default();
        recipe.own.joint = false;
        let model = recipe.model([500, 600]).unwrap().init(&crate::device::cpu()).unwrap();
        let shapes = weights::shapes(&model);
        let tables = |rows: usize| shapes.values().filter(|shape| shape.len() == 2 && shape[0] == rows).count();
        assert!(tables(500) == 1 && tables(600) >= 1, "{shapes:?}");
    }
}
