//! A whole run: data, model, epochs, tests and checkpoints.

use burn::tensor::Device;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checkpoint::{self, Progress, RealDisk};
use super::engine::Task;
use super::pictures::Pictures;
use super::{Engine, Folder, Ranks, Recipe, Schedule, average, together};
use crate::data::{Batch, Dataset, Loader, Order, Part, Preparation, Preprocess, dataset};
use crate::evaluate::{EpochRecord, Evaluation, History, Record, StepRecord};
use crate::models::{Model, ModelConfig};
use crate::weights::{self, LoadOptions};
use crate::{Error, Pass};

/// A checkpoint is made at least so often, however long an epoch takes.
const LONGEST: Duration = Duration::from_mins(5);

/// Pictures at a time in a test.
const TEST_BATCH: usize = 100;

/// What a watcher is told.
#[derive(Debug)]
pub enum Event<'a> {
    /// Before the first step; `note` says why a run does not go on from its newest checkpoint.
    Begin {
        step: usize,
        steps: usize,
        epoch_steps: usize,
        learning: usize,
        note: Option<&'a str>,
    },
    Step(&'a StepRecord),
    /// So many of so many pictures were tested.
    Testing {
        done: usize,
        of: usize,
    },
    Epoch {
        record: &'a EpochRecord,
        best: bool,
    },
    /// The mean of the last epochs was tested.
    Averaged {
        measured: Measured,
        best: bool,
    },
    Saved {
        step: usize,
    },
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    /// No better test for as many epochs as the recipe has patience.
    Patience,
    /// The watcher asked for it; the step was finished and saved.
    Stopped {
        step: usize,
    },
}

/// How long a run is, and how fast it learns when.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub epochs: usize,
    /// Steps of an epoch.
    pub steps: usize,
    /// Epochs without a better test after which it ends; 0 is never.
    pub patience: usize,
    /// Steps between two checkpoints; 0 is none.
    pub save_every: usize,
    /// Last epochs whose parameters are averaged at the end; 0 is none.
    pub average: usize,
    pub schedule: Schedule,
    /// The rate at its peak.
    pub rate: f64,
}

/// How a model did in a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub loss: f64,
    /// Share of right first answers.
    pub top1: f64,
    pub top5: f64,
    /// Of translations, when they were made.
    pub bleu: Option<f64>,
}

/// The parts of a batch, one step's worth at a time.
pub type Steps<'a, B> = Box<dyn Iterator<Item = Result<Vec<B>, Error>> + 'a>;

/// What is particular about learning from pictures or from sentences.
pub trait Course {
    type Task: Task;

    fn pace(&self) -> Pace;

    /// The batches of an epoch, from one of its steps on.
    fn steps(&self, epoch: usize, first: usize) -> Steps<'_, <Self::Task as Task>::Batch>;

    /// How much a step learns from over all processes, for the speed.
    fn amount(&self, parts: &[<Self::Task as Task>::Batch]) -> usize;

    /// What the best weights have the most of.
    fn merit(&self, measured: &Measured) -> f64 {
        measured.top1
    }

    /// Tests a model after an epoch, counted from one; `watch` is told how many of how many are done.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn test(
        &self,
        epoch: usize,
        model: &<Self::Task as Task>::Model,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Measured, Error>;
}

/// Learning from pictures.
struct Classes<'a> {
    recipe: &'a Recipe,
    device: &'a Device,
    learning: Loader,
    testing: Loader,
    epoch_steps: usize,
}

impl Course for Classes<'_> {
    type Task = Pictures;

    fn pace(&self) -> Pace {
        let Recipe { epochs, patience, save_every, schedule, ref optimiser, .. } = *self.recipe;
        Pace { epochs, steps: self.epoch_steps, patience, save_every, average: 0, schedule, rate: optimiser.rate() }
    }

    fn steps(&self, epoch: usize, first: usize) -> Steps<'_, Batch> {
        let accumulate = self.recipe.accumulate;
        let mut batches = self.learning.epoch(epoch, first * accumulate);
        Box::new(std::iter::from_fn(move || {
            let parts: Result<Vec<Batch>, Error> = batches.by_ref().take(accumulate).collect();
            Some(parts).filter(|parts| parts.as_ref().map_or(true, |parts| !parts.is_empty()))
        }))
    }

    fn amount(&self, _: &[Batch]) -> usize {
        self.recipe.batch
    }

    fn test(&self, _: usize, model: &Model, watch: &mut dyn FnMut(usize, usize)) -> Result<Measured, Error> {
        let of = self.testing.dataset.len();
        let evaluation = test(model, &self.testing, self.device, &mut |done| watch(done, of))?;
        let accuracy = &evaluation.accuracy;
        Ok(Measured { loss: accuracy.loss(), top1: accuracy.top1(), top5: accuracy.top5(), bleu: None })
    }
}

/// What a run needs beside its recipe.
#[derive(Clone, Debug)]
pub struct Parts {
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
}

impl Parts {
    /// Opens the data of a recipe and makes the model fit its classes.
    ///
    /// # Errors
    /// When there is no such data, or the model cannot be so.
    pub fn of(recipe: &Recipe) -> Result<Self, Error> {
        let part = |part, most| -> Result<Arc<dyn Dataset>, Error> {
            let whole = dataset::open(&recipe.data, part)?;
            Ok(if most > 0 { Arc::new(dataset::take_per_class(whole, most)) } else { whole })
        };
        let train = part(Part::TrainAndValidation, recipe.per_class)?;
        let test = part(Part::Test, recipe.test_per_class)?;
        let (config, preprocess) = recipe.model(train.classes().len())?;
        Ok(Self { train, test, config, preprocess })
    }

    fn preparation(&self, recipe: &Recipe) -> Preparation {
        let (image, channels) = (self.config.image(), self.config.channels());
        let augment = Some(recipe.augment.clone());
        Preparation { image, channels, preprocess: self.preprocess, augment, mix: recipe.mix, seed: recipe.seed }
    }

    /// Makes the batches to learn from: a batch here is a part of a step.
    fn learning(&self, recipe: &Recipe, ranks: &dyn Ranks) -> Result<Loader, Error> {
        let (batch, accumulate, count) = (recipe.batch, recipe.accumulate, ranks.count());
        if !batch.is_multiple_of(accumulate * count) {
            let reason = format!("cannot be divided by {count} ranks x {accumulate} parts of a step: {batch}");
            return Err(Error::config("batch", reason));
        }
        let order = Order {
            pictures: self.train.len(),
            batch: batch / accumulate,
            repeats: recipe.repeats,
            seed: Some(recipe.seed),
            rank: ranks.rank(),
            ranks: count,
        };
        order.validate()?;
        let preparation = self.preparation(recipe);
        Ok(Loader { dataset: self.train.clone(), order, preparation, workers: recipe.workers })
    }

    /// Makes the batches to test on.
    pub fn testing(&self, recipe: &Recipe) -> Loader {
        let pictures = self.test.len();
        let order = Order { pictures, batch: TEST_BATCH, repeats: 1, seed: None, rank: 0, ranks: 1 };
        let preparation = Preparation { augment: None, mix: crate::data::Mix::default(), ..self.preparation(recipe) };
        Loader { dataset: self.test.clone(), order, preparation, workers: recipe.workers }
    }

    /// A fresh model, or one with weights.
    fn model(&self, recipe: &Recipe, weights: Option<&str>, device: &Device) -> Result<Model, Error> {
        device.seed(recipe.seed);
        let model = self.config.init(&device.clone().autodiff())?;
        let Some(address) = weights else { return Ok(model) };
        let path = weights::fetch(address, &mut |_| {})?;
        let checkpoint = weights::read(&path)?;
        let classes = self.config.classes();
        let options = LoadOptions { grid: self.config.grid(), ..LoadOptions::default() };
        if let Ok(loaded) = weights::fit(model.clone(), checkpoint.clone(), &options) {
            return Ok(loaded.model);
        }
        // other classes: only the head is new, or the error is that of the rest
        let options = LoadOptions { new_head: Some(classes), ..options };
        Ok(weights::fit(model, checkpoint, &options)?.model)
    }
}

fn teacher(recipe: &Recipe, classes: usize, device: &Device) -> Result<Option<Model>, Error> {
    let Some(distillation) = &recipe.distillation else { return Ok(None) };
    let config = distillation.config()?.with("classes", serde_json::json!(classes))?;
    let path = weights::fetch(&distillation.weights, &mut |_| {})?;
    let options = LoadOptions { grid: config.grid(), ..LoadOptions::default() };
    Ok(Some(weights::load(config.init(device)?, &path, &options)?.model))
}

/// How a model does on the test pictures.
///
/// # Errors
/// When a picture cannot be read.
pub fn test(
    model: &Model,
    loader: &Loader,
    device: &Device,
    watch: &mut dyn FnMut(usize),
) -> Result<Evaluation, Error> {
    let mut evaluation = Evaluation::default();
    for batch in loader.epoch(0, 0) {
        let batch = batch?;
        let labels: Vec<usize> = batch.targets.iter().map(|target| target.class).collect();
        evaluation.add(model.forward(batch.tensor(device), &mut Pass::silent()), &labels);
        watch(evaluation.accuracy.pictures);
    }
    Ok(evaluation)
}

/// Trains in a folder, from its last checkpoint on; `watch` answers whether to go on.
///
/// # Errors
/// When something of the recipe cannot be had, the loss is not finite, or a checkpoint cannot be written; the
/// checkpoint before is whole.
pub fn train(
    path: &Path,
    recipe: &Recipe,
    device: &Device,
    ranks: &dyn Ranks,
    watch: &mut dyn FnMut(Event) -> bool,
) -> Result<Outcome, Error> {
    recipe.validate()?;
    let parts = Parts::of(recipe)?;
    together::agree(recipe, &parts, ranks)?;
    let learning = parts.learning(recipe, ranks)?;
    let epoch_steps = learning.order.steps() / recipe.accumulate;
    if epoch_steps == 0 {
        let reason = format!("{} pictures are less than a batch of {}", parts.train.len(), recipe.batch);
        return Err(Error::config("batch", reason));
    }
    // only the first process reads and writes it
    let folder = if ranks.rank() == 0 { Some(Folder::open(path, recipe)?) } else { None };
    if let Some(folder) = &folder {
        folder.describe(&parts.config, &parts.preprocess, parts.train.classes())?;
    }
    let teacher = teacher(recipe, parts.config.classes(), device)?;
    let weights = recipe.weights.as_deref().filter(|_| folder.is_some());
    let mut engine = Engine::new(recipe, parts.model(recipe, weights, device)?, teacher, device)?;
    let restored = folder.as_ref().map(|folder| checkpoint::restore(&folder.checkpoint())).transpose()?.flatten();
    let (mut progress, note) = match restored {
        Some(restored) => {
            engine.restore(&restored.tensors)?;
            (restored.progress, restored.note)
        }
        None => (Progress::default(), None),
    };
    together::begin(&mut engine, &mut progress, ranks)?;
    let testing = parts.testing(recipe);
    let course = Classes { recipe, device, learning, testing, epoch_steps };
    run(course, engine, Start { folder, progress, note }, ranks, watch)
}

/// Where a run is.
pub(super) struct Start {
    /// Of the first process alone.
    pub folder: Option<Folder>,
    pub progress: Progress,
    /// Why it is not at its newest checkpoint, when it is not.
    pub note: Option<String>,
}

/// Trains from wherever a run is to its end.
pub(super) fn run<C: Course>(
    course: C,
    engine: Engine<C::Task>,
    start: Start,
    ranks: &dyn Ranks,
    watch: &mut dyn FnMut(Event) -> bool,
) -> Result<Outcome, Error> {
    let Start { mut folder, mut progress, note } = start;
    let history = folder.as_mut().map(|folder| folder.rewind(progress.step)).transpose()?.unwrap_or_default();
    let pace = course.pace();
    let (steps, learning) = (pace.steps * pace.epochs, engine.learning());
    let mut run = Run { course, pace, ranks, engine, folder, history, saved: Instant::now() };
    watch(Event::Begin { step: progress.step, steps, epoch_steps: pace.steps, learning, note: note.as_deref() });
    if progress.finished {
        return Ok(Outcome::Finished);
    }
    while progress.step < steps {
        if let Some(outcome) = run.epoch(&mut progress, watch)? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Finished)
}

/// What an epoch needs.
struct Run<'a, C: Course> {
    course: C,
    pace: Pace,
    ranks: &'a dyn Ranks,
    engine: Engine<C::Task>,
    folder: Option<Folder>,
    history: History,
    saved: Instant,
}

impl<C: Course> Run<'_, C> {
    /// The rest of an epoch and its test; an outcome when the run ends with it.
    fn epoch(
        &mut self,
        progress: &mut Progress,
        watch: &mut dyn FnMut(Event) -> bool,
    ) -> Result<Option<Outcome>, Error> {
        let Pace { epochs, steps, patience, save_every, .. } = self.pace;
        let epoch = progress.step / steps;
        let begin = Instant::now();
        let mut batches = self.course.steps(epoch, progress.step % steps);
        let (mut stop, mut stopped) = (false, false);
        while progress.step < (epoch + 1) * steps {
            let start = Instant::now();
            let parts = batches.next().expect("as many steps as the pace says")?;
            let rate = self.pace.schedule.rate(self.pace.rate, progress.step, steps, epochs);
            let done = self.engine.step(progress.step, rate, &parts, stop, self.ranks);
            let done = done.map_err(|error| explain(self.folder.as_ref(), error, progress))?;
            progress.step += 1;
            let record = StepRecord {
                step: progress.step,
                epoch: epoch + 1,
                loss: done.loss,
                rate,
                gradient_norm: done.gradient_norm,
                pictures_per_second: self.course.amount(&parts) as f64 / start.elapsed().as_secs_f64(),
            };
            record_in(self.folder.as_mut(), &mut self.history, Record::Step(record.clone()))?;
            stop = !watch(Event::Step(&record));
            // alone, a stop is at once; together, all hear of it with the next step and end with the same one
            let all_stop = done.stop || (stop && self.ranks.count() == 1);
            let last = progress.step == (epoch + 1) * steps;
            let due = (save_every > 0 && progress.step.is_multiple_of(save_every)) || self.saved.elapsed() > LONGEST;
            stopped = all_stop;
            // the last step of an epoch is saved with the test that belongs to it
            if (all_stop || due) && !last {
                save(self.folder.as_ref(), &self.engine, *progress, watch)?;
                self.saved = Instant::now();
            }
            if all_stop && !last {
                return Ok(Some(Outcome::Stopped { step: progress.step }));
            }
        }
        drop(batches);
        let best = self.test(epoch, begin, progress, watch)?;
        let waited = epoch + 1 - progress.best_epoch.min(epoch + 1);
        let impatient = patience > 0 && waited >= patience && self.folder.is_some();
        let mut told = [impatient, stop].map(|flag| f32::from(u8::from(flag)));
        self.ranks.sum(&mut told)?;
        let [impatient, stop] = told.map(|flag| flag > 0.0);
        stopped |= stop;
        progress.finished = impatient || epoch + 1 == epochs;
        if let Some(folder) = &self.folder {
            let weights = weights::tensors(&self.engine.model());
            if best {
                weights::write_tensors(&folder.path().join("best.safetensors"), &weights)?;
            }
            if progress.finished {
                weights::write_tensors(&folder.path().join("last.safetensors"), &weights)?;
            }
            if self.pace.average > 0 {
                average::keep(folder, epoch + 1, self.pace.average, &weights)?;
            }
        }
        if progress.finished && self.pace.average > 0 {
            self.average(epoch + 1, progress, watch)?;
        }
        save(self.folder.as_ref(), &self.engine, *progress, watch)?;
        self.saved = Instant::now();
        let end = if epoch + 1 == epochs { Outcome::Finished } else { Outcome::Patience };
        let stopped = stopped.then_some(Outcome::Stopped { step: progress.step });
        Ok(progress.finished.then_some(end).or(stopped))
    }

    /// Tests the model; whether it is the best so far.
    fn test(
        &mut self,
        epoch: usize,
        begin: Instant,
        progress: &mut Progress,
        watch: &mut dyn FnMut(Event) -> bool,
    ) -> Result<bool, Error> {
        if self.folder.is_none() {
            return Ok(false);
        }
        let measured = self.course.test(epoch + 1, &self.engine.model(), &mut |done, of| {
            watch(Event::Testing { done, of });
        })?;
        let losses = self.history.steps.iter().filter(|record| record.epoch == epoch + 1);
        // a loss is an f32, whatever a reader made of its digits
        let (sum, count) =
            losses.fold((0.0, 0), |(sum, count), record| (sum + f64::from(record.loss as f32), count + 1));
        let record = EpochRecord {
            epoch: epoch + 1,
            step: progress.step,
            train_loss: sum / f64::from(count),
            test_loss: measured.loss,
            top1: measured.top1,
            top5: measured.top5,
            bleu: measured.bleu,
            seconds: begin.elapsed().as_secs_f64(),
        };
        let merit = self.course.merit(&measured);
        let best = progress.best.is_none_or(|best| merit > f64::from_bits(best));
        if best {
            (progress.best, progress.best_epoch) = (Some(merit.to_bits()), epoch + 1);
        }
        record_in(self.folder.as_mut(), &mut self.history, Record::Epoch(record.clone()))?;
        watch(Event::Epoch { record: &record, best });
        Ok(best)
    }

    /// Tests the mean of the last epochs, and keeps it when it is the best.
    fn average(
        &mut self,
        epoch: usize,
        progress: &mut Progress,
        watch: &mut dyn FnMut(Event) -> bool,
    ) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mean = average::mean(folder)?;
        let model = weights::fill(self.engine.model(), &mean)?;
        let measured = self.course.test(epoch, &model, &mut |done, of| {
            watch(Event::Testing { done, of });
        })?;
        weights::write_tensors(&folder.path().join("average.safetensors"), &mean)?;
        let merit = self.course.merit(&measured);
        let best = progress.best.is_none_or(|best| merit > f64::from_bits(best));
        if best {
            (progress.best, progress.best_epoch) = (Some(merit.to_bits()), epoch);
            weights::write_tensors(&folder.path().join("best.safetensors"), &mean)?;
        }
        watch(Event::Averaged { measured, best });
        Ok(())
    }
}

fn record_in(folder: Option<&mut Folder>, history: &mut History, record: Record) -> Result<(), Error> {
    if let Some(folder) = folder {
        folder.record(&record)?;
    }
    match record {
        Record::Step(record) => history.steps.push(record),
        Record::Epoch(record) => history.epochs.push(record),
    }
    Ok(())
}

fn save<T: Task>(
    folder: Option<&Folder>,
    engine: &Engine<T>,
    progress: Progress,
    watch: &mut dyn FnMut(Event) -> bool,
) -> Result<(), Error> {
    if let Some(folder) = folder {
        checkpoint::save(&folder.checkpoint(), &engine.tensors(), progress, &mut RealDisk)?;
        watch(Event::Saved { step: progress.step });
    }
    Ok(())
}

/// A loss that is not finite, with the way back.
fn explain(folder: Option<&Folder>, error: Error, progress: &Progress) -> Error {
    match error {
        Error::Diverged { step, rate, loss, gradient_norm, .. } => {
            let folder = folder.map(Folder::checkpoint);
            let saved = folder.and_then(|folder| Some((checkpoint::progress(&folder).ok()?, folder)));
            let saved = saved.map_or("no checkpoint was made yet".into(), |(saved, folder)| {
                format!("the last good checkpoint is step {} in {}", saved.step, folder.display())
            });
            debug_assert_eq!(step, progress.step);
            Error::Diverged { step: step + 1, rate, loss, gradient_norm, saved }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
