//! A run of translation: sentences of two languages become tokens, batches and steps of the same engine.

use burn::tensor::{Device, Tensor};
use std::path::Path;

use super::checkpoint::{self, Progress};
use super::engine::{Rules, Task};
use super::run::{Course, Event, Measured, Outcome, Pace, Start, Steps, run};
use super::{Alone, Engine, Folder, TextRecipe};
use crate::data::Tokens;
use crate::data::text::{Buckets, Pair, TextPart, Tokenizer, read, with_references};
use crate::evaluate::score;
use crate::function::cross_entropy;
use crate::models::translator::{Translator, TranslatorConfig};
use crate::pass::Draws;
use crate::translate::{Bundle, Search};
use crate::{Error, Pass};

/// A sentence and its translation, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Ends with the token to end with.
    pub source: Vec<u32>,
    /// Neither begins nor ends with one.
    pub target: Vec<u32>,
}

/// Sentences side by side, and what should be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextBatch {
    pub source: Tokens,
    /// Begins with the token to begin with.
    pub target: Tokens,
    /// The next token at every place, none where there is padding.
    pub wanted: Vec<Option<u32>>,
}

impl TextBatch {
    /// # Panics
    /// When there is no example.
    pub fn new(examples: &[&Example], begin: u32, end: u32) -> Self {
        let source: Vec<&[u32]> = examples.iter().map(|example| example.source.as_slice()).collect();
        let target: Vec<Vec<u32>> =
            examples.iter().map(|example| [&[begin], example.target.as_slice()].concat()).collect();
        let (source, target) = (Tokens::new(&source), Tokens::new(&target));
        let wanted = examples.iter().flat_map(|example| {
            let next = example.target.iter().copied().chain([end]).map(Some);
            next.chain(std::iter::repeat(None)).take(target.length())
        });
        Self { wanted: wanted.collect(), source, target }
    }

    /// Tokens to write.
    pub fn tokens(&self) -> usize {
        self.wanted.iter().flatten().count()
    }
}

/// How a translator learns.
#[derive(Debug)]
pub struct Sentences {
    smoothing: f64,
    seed: u64,
}

impl Task for Sentences {
    type Model = Translator;
    type Batch = TextBatch;

    fn size(batch: &TextBatch) -> usize {
        batch.tokens()
    }

    fn loss(&self, model: &Translator, batch: &TextBatch, place: usize) -> Tensor<1> {
        let mut pass = Pass::with_dropout(Draws { seed: self.seed, step: place as u64 });
        let logits = model.forward(&batch.source, &batch.target, &mut pass);
        let [sentences, length, tokens] = logits.dims();
        cross_entropy(logits.reshape([sentences * length, tokens]), batch.wanted.clone(), self.smoothing)
    }
}

/// What a run needs beside its recipe.
#[derive(Clone, Debug)]
pub struct TextParts {
    pub tokenizers: [Tokenizer; 2],
    pub train: Vec<Example>,
    pub dev: Vec<Example>,
    /// The dev part in words.
    pub dev_pairs: Vec<Pair>,
    /// Training pairs that were left out, since they are too long or have an empty side.
    pub left_out: usize,
    pub config: TranslatorConfig,
}

impl TextParts {
    /// Reads the data of a recipe; tokenizers are made of it unless they are given.
    ///
    /// # Errors
    /// When there is no such data, or the model cannot be so.
    pub fn of(recipe: &TextRecipe, tokenizers: Option<[Tokenizer; 2]>) -> Result<Self, Error> {
        let path = Path::new(&recipe.data);
        let part = |part, most: usize| -> Result<Vec<Pair>, Error> {
            let mut pairs = read(path, part, &recipe.languages())?;
            if most > 0 {
                pairs.truncate(most);
            }
            Ok(pairs)
        };
        let (train, dev_pairs) = (part(TextPart::Train, recipe.pairs)?, part(TextPart::Dev, recipe.test_pairs)?);
        let tokenizers = match tokenizers {
            Some(tokenizers) => tokenizers,
            None => self::tokenizers(recipe, &train)?,
        };
        let config = recipe.model(tokenizers.each_ref().map(Tokenizer::vocabulary))?;
        let mut examples = examples(&train, &tokenizers)?;
        let all = examples.len();
        let fits = |example: &Example| {
            let lengths = [example.source.len() - 1, example.target.len()];
            lengths.iter().all(|length| (1..=recipe.longest).contains(length))
        };
        examples.retain(fits);
        if examples.is_empty() {
            return Err(Error::config("longest", format!("no pair has at most {} tokens a side", recipe.longest)));
        }
        let mut dev = self::examples(&dev_pairs, &tokenizers)?;
        dev.retain(fits);
        let left_out = all - examples.len();
        Ok(Self { tokenizers, train: examples, dev, dev_pairs, left_out, config })
    }
}

fn tokenizers(recipe: &TextRecipe, pairs: &[Pair]) -> Result<[Tokenizer; 2], Error> {
    type Side = fn(&Pair) -> &str;
    let train = |sides: &[Side]| {
        let sentences: Vec<&str> = sides.iter().flat_map(|side| pairs.iter().map(side)).collect();
        Tokenizer::train(recipe.pieces, recipe.vocabulary, sentences.into_iter())
    };
    let [source, target]: [Side; 2] = [|pair| &pair.source, |pair| &pair.target];
    match (&recipe.tokenizer, recipe.joint) {
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

fn examples(pairs: &[Pair], [source, target]: &[Tokenizer; 2]) -> Result<Vec<Example>, Error> {
    let example = |pair: &Pair| {
        let mut tokens = source.encode(&pair.source)?;
        tokens.push(source.end());
        Ok(Example { source: tokens, target: target.encode(&pair.target)? })
    };
    pairs.iter().map(example).collect()
}

/// Learning from sentences.
struct Sentenced<'a> {
    recipe: &'a TextRecipe,
    device: &'a Device,
    parts: &'a TextParts,
    buckets: Buckets,
    dev: Buckets,
}

/// Batches of examples by their lengths.
fn buckets(examples: &[Example], recipe: &TextRecipe) -> Result<Buckets, Error> {
    let lengths = examples.iter().map(|example| [example.source.len(), example.target.len() + 1]);
    Buckets::new(lengths.collect(), recipe.tokens, recipe.seed)
}

impl Sentenced<'_> {
    fn batch(&self, examples: &[Example], places: &[usize]) -> TextBatch {
        let target = &self.parts.tokenizers[1];
        let examples: Vec<&Example> = places.iter().map(|place| &examples[*place]).collect();
        TextBatch::new(&examples, target.begin(), target.end())
    }

    /// Translates the dev part with the cheapest search.
    fn bleu(&self, model: &Translator) -> Result<f64, Error> {
        let bundle = Bundle::new(self.parts.config.clone(), model.clone(), self.parts.tokenizers.clone())?;
        let referenced = with_references(&self.parts.dev_pairs);
        let sources: Vec<&str> = referenced.iter().map(|one| one.source.as_str()).collect();
        let search = Search { longer: 20, ..bundle.search().greedy() };
        let translations = bundle.translate(&sources, &search, self.device, &mut |_| {})?;
        let best: Vec<&str> = translations.iter().map(|all| all.first().map_or("", |one| one.text.as_str())).collect();
        let references: Vec<Vec<String>> = referenced.into_iter().map(|one| one.references).collect();
        Ok(score(&best, &references).bleu)
    }
}

impl Course for Sentenced<'_> {
    type Task = Sentences;

    fn pace(&self) -> Pace {
        let TextRecipe { epochs, patience, save_every, average, schedule, ref optimiser, .. } = *self.recipe;
        let steps = self.buckets.batches().div_ceil(self.recipe.accumulate);
        Pace { epochs, steps, patience, save_every, average, schedule, rate: optimiser.rate() }
    }

    fn steps(&self, epoch: usize, first: usize) -> Steps<'_, TextBatch> {
        let batches = self.buckets.epoch(epoch);
        let steps: Vec<Vec<Vec<usize>>> = batches.chunks(self.recipe.accumulate).map(<[_]>::to_vec).collect();
        let step = move |parts: Vec<Vec<usize>>| {
            Ok(parts.iter().map(|places| self.batch(&self.parts.train, places)).collect())
        };
        Box::new(steps.into_iter().skip(first).map(step))
    }

    /// As many tokens can be foreseen with less doubt.
    fn merit(&self, measured: &Measured) -> f64 {
        -measured.loss
    }

    fn amount(&self, parts: &[TextBatch]) -> usize {
        parts.iter().map(TextBatch::tokens).sum()
    }

    fn test(&self, epoch: usize, model: &Translator, watch: &mut dyn FnMut(usize, usize)) -> Result<Measured, Error> {
        let mut counts = Counts::default();
        let batches = self.dev.in_order();
        for (done, places) in batches.iter().enumerate() {
            counts.add(model, &self.batch(&self.parts.dev, places));
            watch(done + 1, batches.len());
        }
        let every = self.recipe.bleu_every;
        let due = every > 0 && (epoch.is_multiple_of(every) || epoch == self.recipe.epochs);
        let bleu = if due { Some(self.bleu(model)?) } else { None };
        Ok(Measured { bleu, ..counts.measured() })
    }
}

/// Tokens that were foreseen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    tokens: usize,
    first: usize,
    in_five: usize,
    loss: f64,
}

impl Counts {
    /// Adds what a model foresees of a batch, without smoothing or dropout.
    pub fn add(&mut self, model: &Translator, batch: &TextBatch) {
        let logits = model.forward(&batch.source, &batch.target, &mut Pass::silent());
        let [sentences, length, tokens] = logits.dims();
        let logits = logits.reshape([sentences * length, tokens]);
        self.loss += f64::from(cross_entropy(logits.clone(), batch.wanted.clone(), 0.0).into_scalar::<f32>());
        let values: Vec<f32> = logits.into_data().try_to_vec().expect("logits are f32");
        for (row, wanted) in values.chunks_exact(tokens).zip(&batch.wanted) {
            let Some(wanted) = *wanted else { continue };
            let own = row[wanted as usize];
            let before = row.iter().filter(|logit| **logit > own).count();
            self.tokens += 1;
            self.first += usize::from(before == 0);
            self.in_five += usize::from(before < 5);
        }
    }

    /// Means over the tokens.
    pub fn measured(&self) -> Measured {
        let share = |count: usize| count as f64 / self.tokens as f64;
        Measured {
            loss: self.loss / self.tokens as f64,
            top1: share(self.first),
            top5: share(self.in_five),
            bleu: None,
        }
    }
}

/// How well a translator foresees the sentences of a recipe's part: the loss of a token, whose exponential is the perplexity.
///
/// # Errors
/// When a sentence cannot be cut into tokens.
pub fn foresee(bundle: &Bundle, pairs: &[Pair], tokens: usize) -> Result<Measured, Error> {
    let mut examples = examples(pairs, bundle.tokenizers())?;
    examples.retain(|example| example.source.len().max(example.target.len() + 1) <= tokens);
    let lengths = examples.iter().map(|example| [example.source.len(), example.target.len() + 1]).collect();
    let (mut counts, target) = (Counts::default(), &bundle.tokenizers()[1]);
    for places in Buckets::new(lengths, tokens, 0)?.in_order() {
        let examples: Vec<&Example> = places.iter().map(|place| &examples[*place]).collect();
        counts.add(bundle.model(), &TextBatch::new(&examples, target.begin(), target.end()));
    }
    Ok(counts.measured())
}

/// Trains a translator in a folder, from its last checkpoint on; `watch` answers whether to go on.
///
/// # Errors
/// When something of the recipe cannot be had, the loss is not finite, or a checkpoint cannot be written; the
/// checkpoint before is whole.
pub fn train_text(
    path: &Path,
    recipe: &TextRecipe,
    device: &Device,
    watch: &mut dyn FnMut(Event) -> bool,
) -> Result<Outcome, Error> {
    recipe.validate()?;
    let folder = Folder::open(path, recipe)?;
    // a run that goes on keeps its tokens, whatever became of the data
    let there = ["tokenizer.json", "source.json"].iter().any(|name| path.join(name).exists());
    let tokenizers = if there { Some(Bundle::read_tokenizers(path)?) } else { None };
    let parts = TextParts::of(recipe, tokenizers)?;
    let (buckets, dev) = (buckets(&parts.train, recipe)?, buckets(&parts.dev, recipe)?);
    folder.put("model.toml", parts.config.to_toml())?;
    for (name, text) in Bundle::written_tokenizers(&parts.tokenizers) {
        folder.put(name, text)?;
    }
    device.seed(recipe.seed);
    let model = parts.config.init(&device.clone().autodiff())?;
    let TextRecipe { clip, ema, optimiser, smoothing, seed, .. } = *recipe;
    let rules = Rules { clip, ema, optimiser, groups: recipe.groups.clone() };
    let mut engine = Engine::of(Sentences { smoothing, seed }, rules, model)?;
    let (progress, note) = match checkpoint::restore(&folder.checkpoint())? {
        Some(restored) => {
            engine.restore(&restored.tensors)?;
            (restored.progress, restored.note)
        }
        None => (Progress::default(), None),
    };
    let course = Sentenced { recipe, device, parts: &parts, buckets, dev };
    run(course, engine, Start { folder: Some(folder), progress, note }, &Alone, watch)
}

#[cfg(test)]
mod tests;
