//! The training loop: epochs, validation, checkpoints, and the test at the end, for any task.

use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::checkpoint::{self, RealDisk, RunProgress};
use super::recipe::{Common, Recipe};
use super::task::{Measured, ModelOf, Objective, Share, Split, Task};
use super::{Engine, Folder, Ranks, average, folder, together};
use crate::Error;
use crate::evaluate::{EpochRecord, History, Record, StepRecord, TestRecord, Values};
use crate::report::Findings;
use crate::weights;

/// Longest time between checkpoints.
const LONGEST: Duration = Duration::from_mins(5);

/// What is reported to the caller during a run.
#[derive(Debug)]
pub enum TrainEvent<'a> {
    /// Before the first step; `note` says why a run does not resume from its newest checkpoint, if so.
    Begin {
        step: usize,
        steps: usize,
        epoch_steps: usize,
        learning: usize,
        note: Option<&'a str>,
        facts: Vec<(String, String)>,
    },
    Step(&'a StepRecord),
    /// Progress of an evaluation.
    Measuring {
        done: usize,
        of: usize,
    },
    Epoch {
        record: &'a EpochRecord,
        best: bool,
    },
    /// The average of the last epochs was evaluated.
    Averaged {
        values: &'a Values,
        best: bool,
    },
    Saved {
        step: usize,
    },
    /// The best weights were evaluated on the test part.
    Tested {
        record: &'a TestRecord,
        findings: &'a Findings,
    },
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainOutcome {
    Finished,
    /// Early stopping: no improvement for `patience` epochs.
    Patience,
    /// The caller asked to stop; the last step was finished and saved.
    Stopped {
        step: usize,
    },
}

/// Options of a run that are not part of its recipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrainOptions {
    /// Whether a run with fewer epochs may be continued.
    pub lengthen: bool,
}

/// Trains in a folder, resuming from its last checkpoint; `watch` returns whether to continue.
///
/// # Errors
/// When the recipe's model, data or weights cannot be loaded, the loss is not finite, or a checkpoint cannot be written;
/// the previous checkpoint stays intact.
pub fn train<T: Task>(
    path: &Path,
    recipe: &Recipe<T::Section>,
    start: TrainOptions,
    device: &Device,
    ranks: &dyn Ranks,
    watch: &mut dyn FnMut(TrainEvent) -> bool,
) -> Result<TrainOutcome, Error> {
    recipe.validate()?;
    let first = ranks.rank() == 0;
    // only the first process reads and writes the folder
    let kept = if first { folder::kept(path, T::KEPT)? } else { BTreeMap::new() };
    let task = T::open(recipe, &together::from_rank_0(&kept, ranks)?)?;
    together::check_agreement(recipe, &task, ranks)?;
    let epoch_steps = task.epoch_steps(ranks.count())?;
    let Some(steps) = epoch_steps.checked_mul(recipe.common.epochs) else {
        let reason = format!("{} epochs of {epoch_steps} steps are too many", recipe.common.epochs);
        return Err(Error::config("epochs", reason));
    };
    let open = || Folder::open(path, recipe, &T::info(), start.lengthen);
    // an existing folder is checked first, before slow work; a new one is created last, when nothing else can fail
    let there = if first && path.exists() { Some(open()?) } else { None };
    let (objective, model) = task.begin(first, device)?;
    let mut engine = Engine::new(objective, (&recipe.common).into(), model)?;
    let folder = match there {
        None if first => Some(open()?),
        there => there,
    };
    if let Some(folder) = &folder {
        for (name, text) in task.files() {
            folder.put(name, text)?;
        }
    }
    let restored = folder.as_ref().map(|folder| checkpoint::restore(&folder.checkpoint())).transpose()?.flatten();
    let (mut progress, note) = match restored {
        Some(restored) => {
            engine.restore(&restored.tensors)?;
            (restored.progress, restored.note)
        }
        None => (RunProgress::default(), None),
    };
    together::broadcast_state(&mut engine, &mut progress, ranks)?;
    // a lengthened run continues
    progress.finished &= !(start.lengthen && progress.step < steps);
    let history = History::default();
    let saved = Instant::now();
    let mut run = Run { task, common: &recipe.common, epoch_steps, device, ranks, engine, folder, history, saved };
    run.finish(steps, progress, note.as_deref(), watch)
}

/// The state of a run.
struct Run<'a, T: Task> {
    task: T,
    common: &'a Common,
    epoch_steps: usize,
    device: &'a Device,
    ranks: &'a dyn Ranks,
    engine: Engine<T::Objective>,
    /// Only in rank 0.
    folder: Option<Folder>,
    history: History,
    /// Time of the last checkpoint.
    saved: Instant,
}

impl<T: Task> Run<'_, T> {
    /// Trains from the current step to the end.
    fn finish(
        &mut self,
        steps: usize,
        mut progress: RunProgress,
        note: Option<&str>,
        watch: &mut dyn FnMut(TrainEvent) -> bool,
    ) -> Result<TrainOutcome, Error> {
        if let Some(folder) = &mut self.folder {
            self.history = folder.rewind(progress.step, progress.finished)?;
        }
        let (learning, facts) = (self.engine.trainable_parameters(), self.task.facts());
        watch(TrainEvent::Begin { step: progress.step, steps, epoch_steps: self.epoch_steps, learning, note, facts });
        let mut outcome = TrainOutcome::Finished;
        while !progress.finished && progress.step < steps {
            if let Some(end) = self.epoch(&mut progress, watch)? {
                outcome = end;
                break;
            }
        }
        if progress.finished {
            self.test(&progress, watch)?;
        }
        Ok(outcome)
    }

    /// Trains the rest of an epoch and validates; returns an outcome if the run ends.
    fn epoch(
        &mut self,
        progress: &mut RunProgress,
        watch: &mut dyn FnMut(TrainEvent) -> bool,
    ) -> Result<Option<TrainOutcome>, Error> {
        let Common { epochs, patience, save_every, average, schedule, ref optimiser, .. } = *self.common;
        let (steps, rank) = (self.epoch_steps, self.ranks.rank());
        let epoch = progress.step / steps;
        let begin = Instant::now();
        let share = Share { rank, ranks: self.ranks.count() };
        let mut batches = self.task.steps(epoch, progress.step % steps, share);
        let (mut stop, mut stopped) = (false, false);
        while progress.step < (epoch + 1) * steps {
            let start = Instant::now();
            let step_batches = batches.next().expect("the number of steps that the task declared")?;
            let rate = schedule.rate(optimiser.rate(), progress.step, steps, epochs);
            let done = self.engine.step(progress.step, rate, &step_batches, stop, self.ranks);
            let done = done.map_err(|error| explain(self.folder.as_ref(), error, progress))?;
            progress.add_loss(progress.step % steps, done.loss);
            progress.step += 1;
            let record = StepRecord {
                step: progress.step,
                epoch: epoch + 1,
                loss: done.loss,
                parts: done.parts,
                rate,
                gradient_norm: done.gradient_norm,
                items_per_second: done.count / start.elapsed().as_secs_f64(),
            };
            record_in(self.folder.as_mut(), &mut self.history, Record::Step(record.clone()))?;
            stop = !watch(TrainEvent::Step(&record));
            // a single process stops at once; several learn of it in the next step and stop after the same one
            let all_stop = done.stop || (stop && self.ranks.count() == 1);
            let last = progress.step == (epoch + 1) * steps;
            let due = (save_every > 0 && progress.step.is_multiple_of(save_every)) || self.saved.elapsed() > LONGEST;
            stopped = all_stop;
            // the last step of an epoch is saved after its validation
            if (all_stop || due) && !last {
                save(self.folder.as_ref(), &self.engine, *progress, watch)?;
                self.saved = Instant::now();
            }
            if all_stop && !last {
                return Ok(Some(TrainOutcome::Stopped { step: progress.step }));
            }
        }
        drop(batches);
        let best = self.validate(epoch, begin, progress, watch)?;
        let waited = epoch + 1 - progress.best_epoch.min(epoch + 1);
        let impatient = patience > 0 && waited >= patience && self.folder.is_some();
        let mut flags = [impatient, stop].map(|flag| f32::from(u8::from(flag)));
        self.ranks.sum(&mut flags)?;
        let [impatient, stop] = flags.map(|flag| flag > 0.0);
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
            if average > 0 {
                average::keep(folder, epoch + 1, average, &weights)?;
            }
        }
        if progress.finished && average > 0 {
            self.average(epoch + 1, progress, watch)?;
        }
        save(self.folder.as_ref(), &self.engine, *progress, watch)?;
        self.saved = Instant::now();
        let end = if epoch + 1 == epochs { TrainOutcome::Finished } else { TrainOutcome::Patience };
        let stopped = stopped.then_some(TrainOutcome::Stopped { step: progress.step });
        Ok(progress.finished.then_some(end).or(stopped))
    }

    /// Evaluates the model on the validation part; returns whether it is the best so far.
    fn validate(
        &mut self,
        epoch: usize,
        begin: Instant,
        progress: &mut RunProgress,
        watch: &mut dyn FnMut(TrainEvent) -> bool,
    ) -> Result<bool, Error> {
        if self.folder.is_none() {
            return Ok(false);
        }
        let measured = self.measure(&self.engine.model(), Split::Validation { epoch: epoch + 1 }, watch)?;
        let losses = || self.history.steps.iter().filter(|record| record.epoch == epoch + 1).map(|record| record.loss);
        let sum = progress.epoch_loss.map_or_else(|| losses().sum(), f64::from_bits);
        let record = EpochRecord {
            epoch: epoch + 1,
            step: progress.step,
            train_loss: sum / self.epoch_steps as f64,
            seconds: begin.elapsed().as_secs_f64(),
            metrics: measured.values,
        };
        let best = is_best::<T>(&record.metrics, progress, epoch + 1);
        record_in(self.folder.as_mut(), &mut self.history, Record::Epoch(record.clone()))?;
        watch(TrainEvent::Epoch { record: &record, best });
        Ok(best)
    }

    fn measure(
        &self,
        model: &ModelOf<T>,
        split: Split,
        watch: &mut dyn FnMut(TrainEvent) -> bool,
    ) -> Result<Measured, Error> {
        let measured = self.task.measure(model, split, self.device, &mut |done, of| {
            watch(TrainEvent::Measuring { done, of });
        })?;
        Ok(measured.unwrap_or_default())
    }

    /// Evaluates the average of the last epochs, and saves it if it is the best.
    fn average(
        &mut self,
        epoch: usize,
        progress: &mut RunProgress,
        watch: &mut dyn FnMut(TrainEvent) -> bool,
    ) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mean = average::mean(folder)?;
        let model = weights::fill(self.engine.model(), &mean)?;
        let Measured { values, .. } = self.measure(&model, Split::Validation { epoch }, watch)?;
        weights::write_tensors(&folder.path().join("average.safetensors"), &mean)?;
        let best = is_best::<T>(&values, progress, epoch);
        if best {
            weights::write_tensors(&folder.path().join("best.safetensors"), &mean)?;
        }
        watch(TrainEvent::Averaged { values: &values, best });
        Ok(())
    }

    /// Evaluates the best weights on the test part, unless that is done already.
    fn test(&mut self, progress: &RunProgress, watch: &mut dyn FnMut(TrainEvent) -> bool) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let path = folder.path().join("best.safetensors");
        if !path.is_file() {
            return Err(Error::file(&path, "the run is finished, but its best weights are missing"));
        }
        if self.history.test.is_some() {
            return Ok(());
        }
        let model = weights::fill(self.engine.model(), &weights::read(&path)?.tensors)?;
        let measured = self.task.measure(&model, Split::Test, self.device, &mut |done, of| {
            watch(TrainEvent::Measuring { done, of });
        })?;
        let Some(Measured { values, findings }) = measured else { return Ok(()) };
        let record = TestRecord { epoch: progress.best_epoch, metrics: values };
        // written last, so that an interrupted test is repeated
        watch(TrainEvent::Tested { record: &record, findings: &findings });
        record_in(self.folder.as_mut(), &mut self.history, Record::Test(record))
    }
}

/// Whether the deciding metric is the best so far; updates `progress` if so.
fn is_best<T: Task>(values: &Values, progress: &mut RunProgress, epoch: usize) -> bool {
    let metric = &T::METRICS[0];
    let score = values.get(metric.name.as_ref()).map_or(f64::NAN, |value| metric.score(*value));
    let score = if score.is_nan() { f64::NEG_INFINITY } else { score };
    let best = progress.best.is_none_or(|best| score > f64::from_bits(best));
    if best {
        (progress.best, progress.best_epoch) = (Some(score.to_bits()), epoch);
    }
    best
}

fn record_in(folder: Option<&mut Folder>, history: &mut History, record: Record) -> Result<(), Error> {
    if let Some(folder) = folder {
        folder.record(&record)?;
    }
    history.push(record);
    Ok(())
}

fn save<O: Objective>(
    folder: Option<&Folder>,
    engine: &Engine<O>,
    progress: RunProgress,
    watch: &mut dyn FnMut(TrainEvent) -> bool,
) -> Result<(), Error> {
    if let Some(folder) = folder {
        checkpoint::save(&folder.checkpoint(), &engine.tensors(), progress, &mut RealDisk)?;
        watch(TrainEvent::Saved { step: progress.step });
    }
    Ok(())
}

/// Adds the last good checkpoint to the error of a loss that is not finite.
fn explain(folder: Option<&Folder>, error: Error, progress: &RunProgress) -> Error {
    match error {
        Error::Diverged { step, rate, loss, gradient_norm, samples, .. } => {
            let folder = folder.map(Folder::checkpoint);
            let saved = folder.and_then(|folder| Some((checkpoint::progress(&folder).ok()?, folder)));
            let saved = saved.map_or("there is no checkpoint yet".into(), |(saved, folder)| {
                format!("the last good checkpoint is step {} in {}", saved.step, folder.display())
            });
            debug_assert_eq!(step, progress.step);
            Error::Diverged { step: step + 1, rate, loss, gradient_norm, samples, saved }
        }
        other => other,
    }
}
