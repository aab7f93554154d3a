//! Translation: a sentence in, a sentence of another language out.
//!
//! A sample is a [`SentencePair`] of sentences; pairs of similar length become batches within a budget of tokens ([`Buckets`]).

mod batch;
mod evaluate;
mod pairs;
mod section;

pub use batch::{Example, TextBatch};
pub use section::TranslateSection;

use burn::module::Module as _;
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::Path;

use super::TokenLoss;
use super::sentences::{shares, with_weights};
use crate::data::text::{Buckets, SentencePair, Tokenizer, with_references};
use crate::evaluate::{Better, Metric, Unit, score};
use crate::function::cross_entropy;
use crate::models::translator::{Translator, TranslatorConfig};
use crate::pass::DropoutKey;
use crate::train::{self, EvalReport, EvalRequest, Losses, Measured, ModelCost, Objective, Share, Split, Steps, Task};
use crate::translate::{Bundle, Search};
use crate::{Error, Pass};
use batch::{buckets, examples};
use pairs::Pairs;

/// A translation recipe.
pub type Recipe = train::Recipe<TranslateSection>;

/// The objective of a translator: cross-entropy of the next token.
#[derive(Debug)]
pub struct NextTokenLoss {
    smoothing: f64,
    seed: u64,
}

impl Objective for NextTokenLoss {
    type Model = Translator;
    type Batch = TextBatch;

    fn counts(&self, batch: &TextBatch) -> Vec<usize> {
        vec![batch.tokens()]
    }

    fn losses(&self, model: &Translator, batch: &TextBatch, counts: &[f64], draw_id: u64) -> Result<Losses, Error> {
        let mut pass = Pass::with_dropout(DropoutKey { seed: self.seed, step: draw_id });
        let logits = model.forward(&batch.source, &batch.target, &mut pass);
        let [sentences, length, tokens] = logits.dims();
        let loss = cross_entropy(logits.reshape([sentences * length, tokens]), batch.next.clone(), self.smoothing);
        Ok(Losses::from(loss).divided(counts[0]))
    }
}

/// A part of the data, as words and as tokens.
#[derive(Clone, Debug)]
struct Measuring {
    pairs: Vec<SentencePair>,
    examples: Vec<Example>,
    buckets: Buckets,
}

/// The translation task: the sentences and the model of a recipe.
#[derive(Clone, Debug)]
pub struct SentenceTranslation {
    recipe: Recipe,
    tokenizers: [Tokenizer; 2],
    config: TranslatorConfig,
    train: Vec<Example>,
    buckets: Buckets,
    validation: Measuring,
    /// `None` if the data has no test part.
    test: Option<Measuring>,
    /// Number of training pairs that were skipped, too long or with an empty side.
    left_out: usize,
    /// Number of training pairs that were dropped because another part has one of their sentences.
    shared: usize,
}

impl SentenceTranslation {
    fn of(recipe: &Recipe, kept: Option<[Tokenizer; 2]>) -> Result<Self, Error> {
        let Pairs { train: train_pairs, validation: validation_pairs, test: test_pairs, shared } = Pairs::of(recipe)?;
        let tokenizers = match kept {
            Some(tokenizers) => tokenizers,
            None => tokenizers(recipe, &train_pairs)?,
        };
        let config = recipe.model(tokenizers.each_ref().map(Tokenizer::vocabulary))?;
        let TranslateSection { longest, tokens, .. } = recipe.own;
        let seed = recipe.common.seed;
        let fitting = |pairs: &[SentencePair]| -> Result<Vec<Example>, Error> {
            let mut examples = examples(pairs, &tokenizers)?;
            examples.retain(|example| {
                let lengths = [example.source.len() - 1, example.target.len()];
                lengths.iter().all(|length| (1..=longest).contains(length))
            });
            Ok(examples)
        };
        let measuring = |pairs: Vec<SentencePair>| -> Result<Measuring, Error> {
            let examples = fitting(&pairs)?;
            let buckets = buckets(&examples, tokens, seed)?;
            Ok(Measuring { pairs, examples, buckets })
        };
        let train = fitting(&train_pairs)?;
        if train.is_empty() {
            return Err(Error::config("longest", format!("no pair has at most {longest} tokens per side")));
        }
        Ok(Self {
            recipe: recipe.clone(),
            buckets: buckets(&train, tokens, seed)?,
            left_out: train_pairs.len() - train.len(),
            shared,
            train,
            validation: measuring(validation_pairs)?,
            test: test_pairs.map(measuring).transpose()?,
            tokenizers,
            config,
        })
    }

    fn batch(&self, examples: &[Example], indices: &[usize]) -> TextBatch {
        let target = &self.tokenizers[1];
        let examples: Vec<&Example> = indices.iter().map(|index| &examples[*index]).collect();
        TextBatch::new(&examples, target.begin(), target.end())
    }

    /// BLEU of greedy translations.
    fn bleu(&self, model: &Translator, pairs: &[SentencePair], device: &Device) -> Result<f64, Error> {
        let bundle = Bundle::new(self.config.clone(), model.clone(), self.tokenizers.clone())?;
        let referenced = with_references(pairs);
        let sources: Vec<&str> = referenced.iter().map(|one| one.source.as_str()).collect();
        let search = Search { longer: 20, ..bundle.search().greedy() };
        let translations = bundle.translate(&sources, &search, device, &mut |_| {})?;
        let best: Vec<&str> = translations.iter().map(|all| all.first().map_or("", |one| one.text.as_str())).collect();
        let references: Vec<Vec<String>> = referenced.into_iter().map(|one| one.references).collect();
        Ok(score(&best, &references).bleu)
    }
}

fn tokenizers(recipe: &Recipe, pairs: &[SentencePair]) -> Result<[Tokenizer; 2], Error> {
    type Side = fn(&SentencePair) -> &str;
    let TranslateSection { pieces, vocabulary, joint, ref tokenizer, .. } = recipe.own;
    let train = |sides: &[Side]| {
        let sentences: Vec<&str> = sides.iter().flat_map(|side| pairs.iter().map(side)).collect();
        Tokenizer::train(pieces, vocabulary, sentences.into_iter())
    };
    let [source, target]: [Side; 2] = [|pair| &pair.source, |pair| &pair.target];
    match (tokenizer, joint) {
        (Some(path), _) => {
            let given = Tokenizer::load(Path::new(path))?;
            Ok([given.clone(), given])
        }
        (None, true) => {
            let both = train(&[source, target])?;
            Ok([both.clone(), both])
        }
        (None, false) => Ok([train(&[source])?, train(&[target])?]),
    }
}

impl Task for SentenceTranslation {
    const NAME: &'static str = "translate";
    const ALIASES: &'static [&'static str] = &["translation"];
    const METRICS: &'static [Metric] = &[
        Metric::new("loss", "loss of a token", Better::Lower, Unit::Number),
        Metric::new("top1", "token accuracy", Better::Higher, Unit::Percent),
        Metric::new("top5", "token among the five best", Better::Higher, Unit::Percent),
        Metric::new("bleu", "BLEU, greedy", Better::Higher, Unit::Number),
    ];
    const ITEMS: &'static str = "tokens";
    const KEPT: &'static [&'static str] = &["tokenizer.json", "source.json", "target.json"];

    type Section = TranslateSection;
    type Objective = NextTokenLoss;

    /// A resumed run keeps its tokenizers, even if the data changed.
    fn open(recipe: &Recipe, kept: &BTreeMap<String, String>) -> Result<Self, Error> {
        let kept = if kept.is_empty() { None } else { Some(Bundle::kept_tokenizers(kept)?) };
        Self::of(recipe, kept)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = Bundle::written_tokenizers(&self.tokenizers);
        files.push(("model.toml", self.config.to_toml()));
        files
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let tokens: usize = self.train.iter().map(|example| example.source.len() + example.target.len()).sum();
        let [source, target] = self.config.vocabularies();
        [
            ("training pairs", self.train.len().to_string()),
            ("training tokens", tokens.to_string()),
            ("vocabularies", format!("{source} and {target}")),
        ]
        .into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(NextTokenLoss, Translator), Error> {
        let seed = self.recipe.common.seed;
        device.seed(seed);
        let address = self.recipe.common.weights.as_deref().filter(|_| weights);
        let model = with_weights(self.config.init(&device.clone().autodiff())?, address)?;
        Ok((NextTokenLoss { smoothing: self.recipe.own.smoothing, seed }, model))
    }

    fn epoch_steps(&self, _: usize) -> Result<usize, Error> {
        Ok(self.buckets.batches().div_ceil(self.recipe.common.accumulate))
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, TextBatch> {
        let steps = shares(&self.buckets, epoch, self.recipe.common.accumulate, share);
        let batches = |step: Vec<Vec<usize>>| Ok(step.iter().map(|batch| self.batch(&self.train, batch)).collect());
        Box::new(steps.skip(first).map(batches))
    }

    fn measure(
        &self,
        model: &Translator,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let (part, translated) = match split {
            Split::Validation { epoch } => {
                let every = self.recipe.own.bleu_every;
                let due = every > 0 && (epoch.is_multiple_of(every) || epoch == self.recipe.common.epochs);
                (Some(&self.validation), due)
            }
            Split::Test => (self.test.as_ref(), true),
        };
        let Some(Measuring { pairs, examples, buckets }) = part.filter(|part| !part.examples.is_empty()) else {
            return Ok(None);
        };
        let mut loss = TokenLoss::default();
        let batches = buckets.in_order();
        for (done, indices) in batches.iter().enumerate() {
            let batch = self.batch(examples, indices);
            loss.add(model.forward(&batch.source, &batch.target, &mut Pass::silent()), &batch.next);
            watch(done + 1, batches.len());
        }
        let mut values = loss.values();
        if translated {
            values.insert("bleu".into(), self.bleu(model, pairs, device)?);
        }
        Ok(Some(Measured { values, ..Measured::default() }))
    }

    /// Reads only the part that is evaluated, and decodes as `regard translate` does.
    fn evaluate(
        recipe: &Recipe,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        evaluate::evaluate(recipe, request, device, watch)
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        let model = self.config.init(&crate::device::cpu())?;
        Ok(ModelCost { parameters: model.num_params() as u64, multiply_adds: None })
    }

    fn facts(&self) -> Vec<(String, String)> {
        let languages = self.recipe.own.languages();
        let test = self.test.as_ref().map_or("none".into(), |test| test.pairs.len().to_string());
        let facts = [
            ("languages", format!("{} to {}", languages.source, languages.target())),
            ("training pairs", self.train.len().to_string()),
            ("left out", format!("{} training pairs that are too long or empty", self.left_out)),
            ("dropped", format!("{} training pairs with a sentence of another part", self.shared)),
            ("validation pairs", self.validation.pairs.len().to_string()),
            ("test pairs", test),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

/// Evaluates a translator on sentences.
///
/// # Errors
/// When a sentence cannot be tokenized.
pub fn token_loss(bundle: &Bundle, pairs: &[SentencePair], tokens: usize) -> Result<TokenLoss, Error> {
    let mut examples = examples(pairs, bundle.tokenizers())?;
    examples.retain(|example| example.source.len().max(example.target.len() + 1) <= tokens);
    let (mut loss, target) = (TokenLoss::default(), &bundle.tokenizers()[1]);
    for indices in buckets(&examples, tokens, 0)?.in_order() {
        let examples: Vec<&Example> = indices.iter().map(|index| &examples[*index]).collect();
        let batch = TextBatch::new(&examples, target.begin(), target.end());
        loss.add(bundle.model().forward(&batch.source, &batch.target, &mut Pass::silent()), &batch.next);
    }
    Ok(loss)
}

#[cfg(test)]
mod tests;
