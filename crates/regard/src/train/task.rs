//! What the engine and the loop ask of a task: they know no task by name.
//!
//! A task is a file or folder of `tasks/`. It says what a sample is and how samples become batches (`steps`), how outputs
//! become a loss (its [`Objective`]), which numbers measure it and which one decides (`METRICS`), how outputs become figures and
//! predictions for a report (`measure`), and which keys of a recipe are its own ([`Section`]).

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use super::folder;
use super::recipe::{Recipe, Section};
use crate::Error;
use crate::cost::{Convention, Ledger};
use crate::data::Part;
use crate::evaluate::{Metric, TaskInfo, Values};
use crate::report::{Drawing, Findings};
use crate::weights::{self, Progress};

/// How a batch becomes a loss.
pub trait Objective: Debug {
    type Model: Module + Debug;
    type Batch;

    /// How many counts a batch has: a process without a batch has as many zeros.
    const COUNTS: usize = 1;

    /// What the parts of the loss are divided by, such as pictures, tokens or objects: numbers that follow from a batch alone.
    /// They are summed over the batches of a step and over processes. The first is what the training speed counts.
    fn counts(&self, batch: &Self::Batch) -> Vec<usize>;

    /// Names of the parts of the loss, when it has several.
    fn parts(&self) -> &'static [&'static str] {
        &[]
    }

    /// Names of the samples of a batch for errors; empty if they have none.
    fn names(&self, _: &Self::Batch) -> Vec<String> {
        Vec::new()
    }

    /// The losses of a batch, divided by `counts`, which are those of the whole step; `draw_id` is one that no other batch of
    /// the run has.
    ///
    /// # Errors
    /// When the batch has no loss, such as one with costs that are not finite.
    fn losses(&self, model: &Self::Model, batch: &Self::Batch, counts: &[f64], draw_id: u64) -> Result<Losses, Error>;
}

/// The weight of a batch in the loss of a step.
#[derive(Clone, Debug)]
pub struct Losses {
    /// What the gradient is of.
    pub sum: Tensor<1>,
    /// Its parts, in the order of [`Objective::parts`]; their sum need not be `sum`, which may weigh them.
    pub parts: Vec<Tensor<1>>,
}

impl Losses {
    /// A loss and its parts, both divided by the same count.
    #[must_use]
    pub fn divided(self, count: f64) -> Self {
        let divide = |loss: Tensor<1>| loss / count as f32;
        Self { sum: divide(self.sum), parts: self.parts.into_iter().map(divide).collect() }
    }
}

impl From<Tensor<1>> for Losses {
    /// A loss of one part.
    fn from(sum: Tensor<1>) -> Self {
        Self { sum, parts: Vec::new() }
    }
}

/// A process and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub rank: usize,
    pub ranks: usize,
}

impl Share {
    /// Everything: one process alone.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };
}

/// What a model is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// After an epoch, counted from one, to find the best.
    Validation { epoch: usize },
    /// Once, at the end.
    Test,
}

impl Split {
    /// Whether it is time to measure, when validation is due in every so many of all epochs and in the last.
    #[must_use]
    pub const fn is_due(self, every: usize, epochs: usize) -> bool {
        match self {
            Self::Validation { epoch } => epoch.is_multiple_of(every) || epoch == epochs,
            Self::Test => true,
        }
    }
}

/// The metrics of a model.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// By the names of the task's metrics.
    pub values: Values,
    /// Facts, figures and tables for a report.
    pub findings: Findings,
}

/// What a model costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCost {
    pub parameters: u64,
    /// None where it depends on the input: sentences have no nominal length.
    pub multiply_adds: Option<u64>,
}

impl From<&Ledger> for ModelCost {
    fn from(ledger: &Ledger) -> Self {
        Self { parameters: ledger.parameters(), multiply_adds: Some(ledger.total(Convention::MultiplyAdds)) }
    }
}

/// The best weights of a run, and what to measure them on.
#[derive(Clone, Copy, Debug)]
pub struct EvalRequest<'a> {
    /// The run's.
    pub folder: &'a Path,
    /// A dataset, as recipes name it; not necessarily the run's own.
    pub data: &'a str,
    pub part: Part,
}

/// What `regard eval` prints.
#[derive(Clone, Debug)]
pub struct EvalReport {
    /// For people: names and values.
    pub lines: Vec<(String, String)>,
    /// The same as data.
    pub json: serde_json::Value,
    /// Figures with their file names; not every task has some.
    pub figures: Vec<(&'static str, Drawing)>,
}

/// A trained model that was measured as the models of a recipe are.
#[derive(Clone, Debug)]
pub struct NamedResult {
    pub values: Values,
    pub cost: ModelCost,
}

/// A model by name that its task evaluates outside of a run, such as a detector.
pub trait NamedModel: Debug {
    /// What it is, for messages: `a detector`.
    fn kind(&self) -> &'static str;

    fn classes(&self) -> usize;

    /// Whether its weights are untrained.
    fn is_fresh(&self) -> bool;

    /// Changes one field of its configuration.
    ///
    /// # Errors
    /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
    fn set(&mut self, field: &str, value: serde_json::Value) -> Result<(), Error>;

    /// Gives its classes other names.
    fn name_classes(&mut self, names: Vec<String>);

    /// Loads the weights and evaluates the model.
    ///
    /// # Errors
    /// When the weights or the data cannot be read, or the data has a class that the model does not know.
    fn evaluate(
        &self,
        request: &NamedRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error>;
}

/// What a [`NamedModel`] is evaluated on.
#[derive(Clone, Copy, Debug)]
pub struct NamedRequest<'a> {
    /// A dataset, as recipes name it.
    pub data: &'a str,
    pub part: Part,
    /// Samples at a time.
    pub batch: usize,
    /// Views of a clip in time, and parts of its frames in each of them.
    pub views: [usize; 2],
}

/// The batches of one step at a time: as many as are accumulated.
pub type Steps<'a, B> = Box<dyn Iterator<Item = Result<Vec<B>, Error>> + 'a>;

/// Batches in groups of so many; the last group may be smaller.
pub fn grouped<'a, B: 'a>(mut batches: impl Iterator<Item = Result<B, Error>> + 'a, size: usize) -> Steps<'a, B> {
    Box::new(std::iter::from_fn(move || {
        let step: Result<Vec<B>, Error> = batches.by_ref().take(size).collect();
        Some(step).filter(|step| step.as_ref().map_or(true, |step| !step.is_empty()))
    }))
}

pub type ModelOf<T> = <<T as Task>::Objective as Objective>::Model;
pub type BatchOf<T> = <<T as Task>::Objective as Objective>::Batch;

/// The data of a recipe, opened, and everything that is particular about learning from it.
pub trait Task: Debug + Sized {
    /// `task = ".."` in a recipe.
    const NAME: &'static str;
    /// Other spellings that recipes may have.
    const ALIASES: &'static [&'static str] = &[];
    /// What is measured after every epoch; the first decides which epoch is the best.
    const METRICS: &'static [Metric];
    /// What the training speed counts.
    const ITEMS: &'static str;
    /// Files of a run folder without which it cannot go on as it was.
    const KEPT: &'static [&'static str] = &[];

    type Section: Section;
    type Objective: Objective;

    /// Opens the data; `kept` holds those files of [`KEPT`](Self::KEPT) that the run has already.
    ///
    /// # Errors
    /// When there is no such data, or the model cannot be configured for it.
    fn open(recipe: &Recipe<Self::Section>, kept: &BTreeMap<String, String>) -> Result<Self, Error>;

    /// Files of the run folder, by name: what is needed to use the weights.
    fn files(&self) -> Vec<(&'static str, String)>;

    /// What has to be the same in every process, by name, or they would take different steps.
    fn agreement(&self) -> BTreeMap<&'static str, String>;

    /// The model as the run begins: fresh, or with the recipe's weights if it has any and they are wanted.
    ///
    /// # Errors
    /// When the weights cannot be had or do not fit.
    fn begin(&self, weights: bool, device: &Device) -> Result<(Self::Objective, ModelOf<Self>), Error>;

    /// Steps of an epoch.
    ///
    /// # Errors
    /// When the data does not make a step, or the processes cannot share one.
    fn epoch_steps(&self, ranks: usize) -> Result<usize, Error>;

    /// A process's share of the steps of an epoch, from one of them on.
    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, BatchOf<Self>>;

    /// Measures a model; none when the data has no such part. `watch` gets the number done and the total.
    ///
    /// # Errors
    /// When the data cannot be read.
    fn measure(
        &self,
        model: &ModelOf<Self>,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error>;

    /// What a report says of the model and the data: names and values.
    fn facts(&self) -> Vec<(String, String)>;

    /// The cost of the model for its nominal input.
    ///
    /// # Errors
    /// When the configuration is invalid.
    fn cost(&self) -> Result<ModelCost, Error>;

    /// Measures the best weights of a run, for `regard eval`: by default as after its last epoch. `recipe` is the run's.
    ///
    /// # Errors
    /// When the data or the weights cannot be read, or the data has no such part.
    fn evaluate(
        recipe: &Recipe<Self::Section>,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let split = match request.part {
            Part::Validation => Split::Validation { epoch: recipe.common.epochs },
            Part::Test => Split::Test,
            other => return Err(no_part(other, "is not measured; `validation` and `test` are")),
        };
        let mut recipe = recipe.clone();
        recipe.common.data = request.data.into();
        let task = Self::open(&recipe, &folder::kept(request.folder, Self::KEPT)?)?;
        let (_, model) = task.begin(false, device)?;
        let best = weights::read(&request.folder.join("best.safetensors"))?;
        let model = weights::fill(model.valid(), &best.tensors)?;
        let measured = task.measure(&model, split, device, watch)?;
        let Measured { values, findings } = measured.ok_or_else(|| no_part(request.part, "is not in the data"))?;
        let mut lines = Self::shown(&values);
        lines.extend(findings.facts);
        Ok(EvalReport { lines, json: serde_json::to_value(values).expect("plain data"), figures: Vec::new() })
    }

    /// Measured values for people: labels and formatted values.
    #[must_use]
    fn shown(values: &Values) -> Vec<(String, String)> {
        let show = |metric: &Metric| Some((metric.label.to_string(), metric.show(*values.get(metric.name.as_ref())?)));
        Self::METRICS.iter().filter_map(show).collect()
    }

    /// The model of a name, if only this task evaluates models of its kind.
    ///
    /// # Errors
    /// When it is of this kind and cannot be resolved.
    fn named_model(_name: &str, _progress: &mut dyn FnMut(Progress)) -> Result<Option<Box<dyn NamedModel>>, Error> {
        Ok(None)
    }

    /// Measures a trained model by any of its names on the test part, without training it: `regard compare` sets it beside
    /// models of the recipe. Not every task can.
    ///
    /// # Errors
    /// When there is no such model, it is for something else, or the task cannot.
    fn measure_named(&self, name: &str, _: &Device) -> Result<NamedResult, Error> {
        let reason = format!(
            "a trained model is not compared by the task `{}`, which trains presets; `regard eval` measures a run",
            Self::NAME
        );
        Err(Error::Field { field: name.into(), reason })
    }

    /// What is reported.
    #[must_use]
    fn info() -> TaskInfo {
        TaskInfo {
            task: Self::NAME.into(),
            primary: Self::METRICS[0].name.clone(),
            items: Self::ITEMS.into(),
            metrics: Self::METRICS.into(),
        }
    }
}

/// A part of the data that cannot be measured.
pub(crate) fn no_part(part: Part, reason: &str) -> Error {
    let name = serde_json::to_value(part).expect("plain data");
    Error::config("part", format!("`{}` {reason}", name.as_str().unwrap_or_default()))
}
