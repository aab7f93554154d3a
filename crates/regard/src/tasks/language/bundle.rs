//! A language model with its tokenizer: fills `[MASK]`, or continues a text.

use burn::tensor::{Device, Tensor, activation};
use rand::RngExt as _;
use serde::Serialize;
use std::path::Path;

use crate::data::Tokens;
use crate::data::text::{Tokenizer, shortened};
use crate::models::language_model::{Direction, LanguageModel, LanguageModelConfig};
use crate::random::{Purpose, generator};
use crate::translate::{LONGEST, LONGEST_BYTES};
use crate::weights::{self, LoadOptions};
use crate::{Error, Pass, file};

/// A model with its tokenizer.
#[derive(Clone, Debug)]
pub struct LanguageBundle {
    config: LanguageModelConfig,
    model: LanguageModel,
    tokenizer: Tokenizer,
}

/// A prediction for a `[MASK]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filling {
    pub word: String,
    pub probability: f64,
    /// The sentence with this word; other masks get their best words.
    pub sentence: String,
}

/// How a text is continued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Continuation {
    /// Maximum number of new tokens.
    pub length: usize,
    /// Logits are divided by this before a token is drawn; 0 always takes the most probable one.
    pub temperature: f64,
    pub seed: u64,
}

impl LanguageBundle {
    /// # Errors
    /// When tokenizer and model differ in their number of tokens, or a masked model's tokenizer has no mask.
    pub fn new(config: LanguageModelConfig, model: LanguageModel, tokenizer: Tokenizer) -> Result<Self, Error> {
        let (there, needed) = (tokenizer.vocabulary(), config.vocabulary);
        if there != needed {
            let reason = format!("has {there} tokens, the model was trained with {needed}: another tokenizer");
            return Err(Error::config("tokenizer", reason));
        }
        if config.direction == Direction::Both && tokenizer.mask().is_none() {
            return Err(Error::config("tokenizer", "has no mask token, which a masked model needs"));
        }
        Ok(Self { config, model, tokenizer })
    }

    /// The best weights of a run.
    ///
    /// # Errors
    /// When the folder does not hold a run of a language model, or a file of it is damaged.
    pub fn open(folder: &Path, device: &Device) -> Result<Self, Error> {
        let path = folder.join("model.toml");
        let config =
            LanguageModelConfig::from_toml(&file::read_text(&path)?).map_err(|error| Error::file(&path, error))?;
        let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"))?;
        let best = folder.join("best.safetensors");
        let model = weights::load(config.init(device)?, &best, &LoadOptions::default())?.model;
        Self::new(config, model, tokenizer)
    }

    /// Whether it fills masks; otherwise it continues texts.
    pub fn is_masked(&self) -> bool {
        self.config.direction == Direction::Both
    }

    pub const fn model(&self) -> &LanguageModel {
        &self.model
    }

    pub const fn config(&self) -> &LanguageModelConfig {
        &self.config
    }

    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The `top` most probable words for each `[MASK]` of a sentence, best first.
    ///
    /// # Errors
    /// When the model is causal, the sentence has no mask, or it is too long.
    pub fn fill(&self, text: &str, count: usize) -> Result<Vec<Vec<Filling>>, Error> {
        let failed = |reason: String| Error::Field { field: shortened(text), reason };
        if !self.is_masked() {
            return Err(failed("the model is causal: it continues texts, and cannot fill masks".into()));
        }
        self.check_bytes(text)?;
        let (inner, places) = self.tokenizer.encode_masked(text)?;
        if places.is_empty() {
            return Err(failed("no [MASK] in it".into()));
        }
        let tokens = [&[self.tokenizer.begin()], &inner[..], &[self.tokenizer.end()]].concat();
        self.check_length(&tokens, text)?;
        // the start token comes first
        let positions: Vec<usize> = places.iter().map(|at| at + 1).collect();
        let logits = self.model.logits_at(&Tokens::new(&[tokens]), &positions, &mut Pass::silent());
        let best: Vec<Vec<(u32, f64)>> = probabilities(logits).iter().map(|row| self.best(row, count)).collect();
        let mut filled = inner;
        for (at, words) in places.iter().zip(&best) {
            filled[*at] = words.first().map_or(self.tokenizer.end(), |(token, _)| *token);
        }
        let fillings = |(at, words): (&usize, &Vec<(u32, f64)>)| {
            let filling = |(token, probability): &(u32, f64)| {
                let mut sentence = filled.clone();
                sentence[*at] = *token;
                let (word, sentence) = (self.tokenizer.decode(&[*token]), self.tokenizer.decode(&sentence));
                Filling { word, probability: *probability, sentence }
            };
            words.iter().map(filling).collect()
        };
        Ok(places.iter().zip(&best).map(fillings).collect())
    }

    /// The most probable tokens that are text.
    fn best(&self, probabilities: &[f32], count: usize) -> Vec<(u32, f64)> {
        let mut order: Vec<u32> = (0..probabilities.len() as u32).collect();
        order.sort_by(|a, b| probabilities[*b as usize].total_cmp(&probabilities[*a as usize]));
        let words = order
            .into_iter()
            .filter(|token| !self.tokenizer.is_unknown(*token) && !self.tokenizer.decode(&[*token]).is_empty());
        words.take(count).map(|token| (token, f64::from(probabilities[token as usize]))).collect()
    }

    /// A text and its continuation.
    ///
    /// # Errors
    /// When the model is masked, or the text is too long.
    pub fn write_on(
        &self,
        text: &str,
        Continuation { length, temperature, seed }: Continuation,
    ) -> Result<String, Error> {
        if self.is_masked() {
            let reason = "the model is masked: it fills [MASK], and cannot continue a text".into();
            return Err(Error::Field { field: shortened(text), reason });
        }
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::config("temperature", format!("must be at least 0, got {temperature}")));
        }
        self.check_bytes(text)?;
        let mut tokens = [&[self.tokenizer.begin()], &self.tokenizer.encode(text)?[..]].concat();
        self.check_length(&tokens, text)?;
        let most = self.most().min(tokens.len().saturating_add(length));
        while tokens.len() < most {
            let last = tokens.len() - 1;
            let logits = self.model.logits_at(&Tokens::new(&[tokens.as_slice()]), &[last], &mut Pass::silent());
            let scale = if temperature > 0.0 { temperature } else { 1.0 };
            let row = probabilities(logits.div_scalar(scale)).remove(0);
            let next = if temperature > 0.0 {
                let draw = generator(seed, Purpose::NextToken, [0, tokens.len() as u64]).random::<f32>();
                drawn(&row, draw)
            } else {
                (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)
            };
            if next as u32 == self.tokenizer.end() {
                break;
            }
            tokens.push(next as u32);
        }
        Ok(self.tokenizer.decode(&tokens))
    }

    /// Maximum number of tokens of a text.
    fn most(&self) -> usize {
        self.model.limit().map_or(LONGEST, |limit| limit.min(LONGEST))
    }

    fn check_bytes(&self, text: &str) -> Result<(), Error> {
        if text.len() <= LONGEST_BYTES {
            return Ok(());
        }
        let reason = format!("{} bytes are more tokens than the maximum of {}", text.len(), self.most());
        Err(Error::Field { field: shortened(text), reason })
    }

    fn check_length(&self, tokens: &[u32], text: &str) -> Result<(), Error> {
        let most = self.most();
        if tokens.len() <= most {
            return Ok(());
        }
        Err(Error::Field { field: shortened(text), reason: format!("{} tokens, the maximum is {most}", tokens.len()) })
    }
}

/// The probabilities of each row of logits `[P, V]`.
fn probabilities(logits: Tensor<2>) -> Vec<Vec<f32>> {
    let [_, vocabulary] = logits.dims();
    let values: Vec<f32> = activation::softmax(logits, 1).into_data().try_to_vec().expect("logits are f32");
    values.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect()
}

/// The token at which the cumulative probability passes a number from 0 to 1.
fn drawn(probabilities: &[f32], draw: f32) -> usize {
    let mut sum = 0.0;
    let passed = probabilities.iter().position(|probability| {
        sum += probability;
        draw < sum
    });
    passed.unwrap_or(probabilities.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_drawn_as_often_as_it_is_likely() {
        let draws: Vec<usize> = (0..100).map(|part| drawn(&[0.25, 0.0, 0.75], part as f32 / 100.0)).collect();
        let count = |token| draws.iter().filter(|drawn| **drawn == token).count();
        assert_eq!([count(0), count(1), count(2)], [25, 0, 75]);
        assert_eq!(drawn(&[0.5, 0.4], 0.99), 1);
    }
}
