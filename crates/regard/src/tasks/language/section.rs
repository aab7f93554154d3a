//! The keys of a language modelling recipe.

use serde::{Deserialize, Serialize};

use super::Recipe;
use crate::Error;
use crate::data::text::{FEWEST, Pieces};
use crate::models::language_model::{self, LanguageModelConfig};
use crate::train::{Common, Optimiser, Schedule, ScheduleShape, Section, check_positive, check_share};

/// How lines of text become batches and losses. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct LanguageSection {
    /// At most this many training lines; 0 means all.
    pub lines: usize,
    /// At most this many lines of the validation and of the test part; 0 means all.
    pub test_lines: usize,
    /// Maximum number of tokens per sample; longer lines are split.
    pub longest: usize,
    pub pieces: Pieces,
    /// Maximum size of the vocabulary.
    pub vocabulary: usize,
    /// A `tokenizer.json` to use instead.
    pub tokenizer: Option<String>,
    /// Maximum number of tokens per batch, padding included.
    pub tokens: usize,
    /// Fraction of tokens that a masked model has to predict.
    pub mask: f64,
    /// Label smoothing: probability taken from the right token and given to all.
    pub smoothing: f64,
}

impl Default for LanguageSection {
    fn default() -> Self {
        Self {
            lines: 0,
            test_lines: 0,
            longest: 100,
            pieces: Pieces::Bpe,
            vocabulary: 4000,
            tokenizer: None,
            tokens: 2000,
            mask: 0.15,
            smoothing: 0.0,
        }
    }
}

impl Section for LanguageSection {
    fn common() -> Common {
        Common {
            model: "masked-nano".into(),
            data: "text".into(),
            epochs: 10,
            clip: 1.0,
            optimiser: Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.01 },
            schedule: Schedule { shape: ScheduleShape::Cosine, warmup: 1.0, ..Schedule::default() },
            ..Common::default()
        }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        check_positive("longest", self.longest)?;
        // a start and an end token
        if self.longest.saturating_add(2) > self.tokens {
            let reason = format!("a sample of {} tokens and two more is over a batch of {}", self.longest, self.tokens);
            return Err(Error::config("tokens", reason));
        }
        // one more for the mask token
        if self.vocabulary <= FEWEST {
            return Err(Error::config("vocabulary", format!("must be above {FEWEST}, got {}", self.vocabulary)));
        }
        if !(self.mask > 0.0 && self.mask <= 1.0) {
            return Err(Error::config("mask", format!("must be above 0 and at most 1, got {}", self.mask)));
        }
        check_share("smoothing", self.smoothing)?;
        language_model::preset(&common.model).map(|_| ())
    }
}

impl Recipe {
    /// The model for a vocabulary of this size.
    ///
    /// # Errors
    /// When a field of the model is unknown or out of range.
    pub fn model(&self, vocabulary: usize) -> Result<LanguageModelConfig, Error> {
        let config = (language_model::preset(&self.common.model)?.config)();
        let config = config.with("vocabulary", serde_json::json!(vocabulary))?;
        self.common.changes().try_fold(config, |config, (field, value)| config.with(field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::language_model::Direction;

    #[test]
    fn a_recipe_can_be_read_back_and_its_model_says_what_it_predicts() {
        let recipe = Recipe::from_toml("model = 'causal-nano'\nmask = 0.2\nset = { dim = 64 }").unwrap();
        assert_eq!(Recipe::from_toml(&recipe.to_toml("language")).unwrap(), recipe);
        let config = recipe.model(500).unwrap();
        assert_eq!((config.vocabulary, config.dim, config.direction), (500, 64, Direction::Forward));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |text: &str| Recipe::from_toml(text).unwrap_err().to_string();
        assert!(refused("longest = 99\ntokens = 100").contains("`tokens`"));
        assert!(refused("vocabulary = 300").contains("`vocabulary`"));
        assert!(refused("mask = 0.0").contains("`mask`") && refused("mask = nan").contains("`mask`"));
        assert!(refused("model = 'masked-nanu'").contains("`masked-nano`"));
        assert!(refused("maks = 0.2").contains("`mask`"));
    }
}
