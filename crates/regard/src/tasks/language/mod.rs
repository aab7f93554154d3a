//! Language models: masked ones predict hidden words, causal ones the next word.
//! Devlin et al. 2018 (BERT), arXiv:1810.04805; Radford et al. 2018 (GPT).
//!
//! A sample is a line of text, or a piece of a long one; samples of similar length become batches within a budget of
//! tokens ([`Buckets`]). The model says whether it is masked or causal
//! ([`Direction`]). Differences from BERT: lines are independent, without next-sentence prediction, and different
//! tokens are masked in every epoch.

mod batch;
mod bundle;
mod section;

pub use batch::{Collate, LanguageBatch, MaskDraw};
pub use bundle::{Continuation, Filling, LanguageBundle};
pub use section::LanguageSection;

use burn::module::Module as _;
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::Path;

use super::TokenLoss;
use super::sentences::{Parts, shares, text_part, with_weights};
use crate::data::text::{Buckets, Tokenizer, has_lines, read_lines};
use crate::evaluate::{Better, Metric, Unit, Values};
use crate::function::cross_entropy;
use crate::layers::PositionKind;
use crate::models::language_model::{Direction, LanguageModel, LanguageModelConfig};
use crate::pass::DropoutKey;
use crate::report::{Findings, Table};
use crate::train::{
    self, EvalReport, EvalRequest, Losses, Measured, ModelCost, Objective, Share, Split, Steps, Task, no_part,
};
use crate::{Error, Pass};

/// A language modelling recipe.
pub type Recipe = train::Recipe<LanguageSection>;

/// Number of test lines that a report shows with the model's predictions.
const SHOWN: usize = 10;

/// The objective of a language model: cross-entropy of the tokens to predict.
#[derive(Debug)]
pub struct PredictedTokenLoss {
    smoothing: f64,
    seed: u64,
}

impl Objective for PredictedTokenLoss {
    type Model = LanguageModel;
    type Batch = LanguageBatch;

    fn counts(&self, batch: &LanguageBatch) -> Vec<usize> {
        vec![batch.targets.len()]
    }

    fn losses(
        &self,
        model: &LanguageModel,
        batch: &LanguageBatch,
        counts: &[f64],
        draw_id: u64,
    ) -> Result<Losses, Error> {
        let mut pass = Pass::with_dropout(DropoutKey { seed: self.seed, step: draw_id });
        let logits = model.logits_at(&batch.tokens, &batch.positions, &mut pass);
        let loss = cross_entropy(logits, batch.targets.iter().copied().map(Some).collect(), self.smoothing);
        Ok(Losses::from(loss).divided(counts[0]))
    }
}

/// A part of the data, as lines and as tokens.
#[derive(Clone, Debug)]
struct Samples {
    lines: Vec<String>,
    tokens: Vec<Vec<u32>>,
    buckets: Buckets,
}

/// The language modelling task: the text and the model of a recipe.
#[derive(Clone, Debug)]
pub struct Language {
    recipe: Recipe,
    tokenizer: Tokenizer,
    config: LanguageModelConfig,
    train: Samples,
    validation: Samples,
    /// `None` if the data has no test part.
    test: Option<Samples>,
}

/// The recipe's tokenizer, or one trained on the data.
fn tokenizer(recipe: &Recipe, lines: &[String], masked: bool) -> Result<Tokenizer, Error> {
    let LanguageSection { pieces, vocabulary, tokenizer: ref given, .. } = recipe.own;
    let tokenizer = match given {
        Some(path) => Tokenizer::load(Path::new(path))?,
        None => Tokenizer::train(pieces, vocabulary - usize::from(masked), lines.iter())?,
    };
    Ok(if masked { tokenizer.with_mask() } else { tokenizer })
}

impl Samples {
    /// Splits lines of more than `longest` tokens into several samples.
    fn new(
        lines: Vec<String>,
        collate: &Collate,
        LanguageSection { longest, tokens, .. }: &LanguageSection,
        seed: u64,
    ) -> Result<Self, Error> {
        let mut samples = Vec::with_capacity(lines.len());
        for line in &lines {
            samples.extend(collate.tokenizer.encode(line)?.chunks(*longest).map(<[u32]>::to_vec));
        }
        let lengths = samples.iter().map(|sample| [collate.length(sample); 2]).collect();
        Ok(Self { lines, tokens: samples, buckets: Buckets::new(lengths, *tokens, seed)? })
    }
}

impl Language {
    fn of(recipe: &Recipe, kept: Option<Tokenizer>) -> Result<Self, Error> {
        let path = Path::new(&recipe.common.data);
        let has = |part| has_lines(path, part);
        let mut parts = Parts::read(recipe.common.validation, has, |part| read_lines(path, part))?;
        parts.truncate(recipe.own.lines, recipe.own.test_lines);
        // the vocabulary is not known yet
        let masked = recipe.model(1)?.direction == Direction::Both;
        let tokenizer = kept.map_or_else(|| tokenizer(recipe, &parts.train, masked), Ok)?;
        let config = recipe.model(tokenizer.vocabulary())?;
        if let PositionKind::Learned { places } = config.position
            && places < recipe.own.longest + 2
        {
            let reason =
                format!("{} tokens and two more are over the {places} positions of the model", recipe.own.longest);
            return Err(Error::config("longest", reason));
        }
        let collate = Collate { direction: config.direction, tokenizer: &tokenizer, mask: recipe.own.mask };
        let samples = |lines| Samples::new(lines, &collate, &recipe.own, recipe.common.seed);
        let train = samples(parts.train)?;
        if train.tokens.is_empty() {
            return Err(Error::file(path, "no token to learn from"));
        }
        let (validation, test) = (samples(parts.validation)?, parts.test.map(samples).transpose()?);
        Ok(Self { recipe: recipe.clone(), train, validation, test, tokenizer, config })
    }

    const fn collate(&self) -> Collate<'_> {
        Collate { direction: self.config.direction, tokenizer: &self.tokenizer, mask: self.recipe.own.mask }
    }

    /// The model's predictions for the first lines of a part.
    fn answers(&self, model: &LanguageModel, samples: &Samples) -> Result<Table, Error> {
        let bundle = LanguageBundle::new(self.config.clone(), model.clone(), self.tokenizer.clone())?;
        let lines = samples.lines.iter().filter(|line| line.split_whitespace().count() > 2).take(SHOWN);
        let mut table = match self.config.direction {
            Direction::Both => Table::new().words("sentence").words("hidden").words("best words"),
            Direction::Forward => Table::new().words("beginning").words("went on").words("continuation"),
        };
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let middle = words.len() / 2;
            let (before, after) = (words[..middle].join(" "), words[middle..].join(" "));
            if bundle.is_masked() {
                let sentence = [&before, "[MASK]", &words[middle + 1..].join(" ")].join(" ");
                let fillings = bundle.fill(&sentence, 3)?;
                let best = fillings[0].iter().map(|one| format!("{} {:.0} %", one.word, 100.0 * one.probability));
                table.row([sentence, words[middle].to_string(), best.collect::<Vec<_>>().join(", ")]);
            } else {
                let rest = Continuation { length: 30, temperature: 0.0, seed: 0 };
                let whole = bundle.write_on(&before, rest)?;
                table.row([before, after, whole]);
            }
        }
        Ok(table)
    }
}

/// Evaluates a model on samples.
fn token_loss(
    model: &LanguageModel,
    samples: &Samples,
    collate: &Collate,
    watch: &mut dyn FnMut(usize, usize),
) -> TokenLoss {
    let (mut loss, batches) = (TokenLoss::default(), samples.buckets.in_order());
    for (done, indices) in batches.iter().enumerate() {
        let batch = collate.batch(&samples.tokens, indices, MaskDraw::MEASURED);
        let logits = model.logits_at(&batch.tokens, &batch.positions, &mut Pass::silent());
        let targets: Vec<Option<u32>> = batch.targets.into_iter().map(Some).collect();
        loss.add(logits.unsqueeze(), &targets);
        watch(done + 1, batches.len());
    }
    loss
}

/// The values of the task's metrics.
fn values(loss: &TokenLoss) -> Values {
    let values = [("loss", loss.loss()), ("perplexity", loss.loss().exp()), ("top1", loss.top1())];
    values.map(|(name, value)| (name.into(), value)).into()
}

impl Task for Language {
    const NAME: &'static str = "language";
    const METRICS: &'static [Metric] = &[
        Metric::new("loss", "loss of a token", Better::Lower, Unit::Number),
        Metric::new("perplexity", "perplexity", Better::Lower, Unit::Number),
        Metric::new("top1", "token accuracy", Better::Higher, Unit::Percent),
    ];
    const ITEMS: &'static str = "tokens";
    const KEPT: &'static [&'static str] = &["tokenizer.json"];

    type Section = LanguageSection;
    type Objective = PredictedTokenLoss;

    /// A resumed run keeps its tokenizer, even if the data changed.
    fn open(recipe: &Recipe, kept: &BTreeMap<String, String>) -> Result<Self, Error> {
        let load = |text: &String| Tokenizer::from_json(text, Path::new("tokenizer.json"));
        Self::of(recipe, kept.get("tokenizer.json").map(load).transpose()?)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        vec![("tokenizer.json", self.tokenizer.to_json()), ("model.toml", self.config.to_toml())]
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let tokens: usize = self.train.tokens.iter().map(Vec::len).sum();
        [
            ("training lines", self.train.lines.len().to_string()),
            ("training tokens", tokens.to_string()),
            ("vocabulary", self.config.vocabulary.to_string()),
        ]
        .into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(PredictedTokenLoss, LanguageModel), Error> {
        let seed = self.recipe.common.seed;
        device.seed(seed);
        let address = self.recipe.common.weights.as_deref().filter(|_| weights);
        let model = with_weights(self.config.init(&device.clone().autodiff())?, address)?;
        Ok((PredictedTokenLoss { smoothing: self.recipe.own.smoothing, seed }, model))
    }

    fn epoch_steps(&self, _: usize) -> Result<usize, Error> {
        Ok(self.train.buckets.batches().div_ceil(self.recipe.common.accumulate))
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, LanguageBatch> {
        let steps = shares(&self.train.buckets, epoch, self.recipe.common.accumulate, share);
        let draw = MaskDraw { seed: self.recipe.common.seed, epoch: epoch as u64 };
        let batches = move |step: Vec<Vec<usize>>| {
            Ok(step.iter().map(|batch| self.collate().batch(&self.train.tokens, batch, draw)).collect())
        };
        Box::new(steps.skip(first).map(batches))
    }

    fn measure(
        &self,
        model: &LanguageModel,
        split: Split,
        _: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let samples = match split {
            Split::Validation { .. } => Some(&self.validation),
            Split::Test => self.test.as_ref(),
        };
        let Some(samples) = samples.filter(|samples| !samples.tokens.is_empty()) else { return Ok(None) };
        let loss = token_loss(model, samples, &self.collate(), watch);
        let mut findings = Findings::default();
        if split == Split::Test {
            findings.tables.push(self.answers(model, samples)?);
        }
        Ok(Some(Measured { values: values(&loss), findings }))
    }

    /// Reads only the part that is evaluated.
    fn evaluate(
        recipe: &Recipe,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let bundle = LanguageBundle::open(request.folder, device)?;
        let (direction, tokenizer) = (bundle.config().direction, bundle.tokenizer());
        let collate = Collate { direction, tokenizer, mask: recipe.own.mask };
        let lines = read_lines(Path::new(request.data), text_part(request.part)?)?;
        let samples = Samples::new(lines, &collate, &recipe.own, recipe.common.seed)?;
        if samples.tokens.is_empty() {
            return Err(no_part(request.part, "has no token"));
        }
        let values = values(&token_loss(bundle.model(), &samples, &collate, watch));
        let mut lines = Self::shown(&values);
        lines.push(("lines".into(), samples.lines.len().to_string()));
        Ok(EvalReport { lines, json: serde_json::to_value(values).expect("plain data"), figures: Vec::new() })
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        let model = self.config.init(&crate::device::cpu())?;
        Ok(ModelCost { parameters: model.num_params() as u64, multiply_adds: None })
    }

    fn facts(&self) -> Vec<(String, String)> {
        let test = self.test.as_ref().map_or("none".into(), |test| test.lines.len().to_string());
        let predicts = match self.config.direction {
            Direction::Both => format!("hidden tokens, {} % of all", 100.0 * self.recipe.own.mask),
            Direction::Forward => "the next token".into(),
        };
        let facts = [
            ("predicts", predicts),
            ("training lines", self.train.lines.len().to_string()),
            ("training tokens", self.train.tokens.iter().map(Vec::len).sum::<usize>().to_string()),
            ("vocabulary", self.config.vocabulary.to_string()),
            ("validation lines", self.validation.lines.len().to_string()),
            ("test lines", test),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

#[cfg(test)]
mod tests;
