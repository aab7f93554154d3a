//! Recipes: all settings of a run in one TOML file, with the keys of every task and those of its own task.

mod fields;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Groups, Optimiser, Schedule};
use crate::data::Part;
use crate::{Error, nearest};
use fields::fields;

/// The keys that recipes of every task have. Each has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Common {
    /// A preset, or a TOML file of a model.
    pub model: String,
    /// A dataset: a path, or the name of an embedded one.
    pub data: String,
    pub epochs: usize,
    /// Gradient accumulation: the batch of a process is split into so many parts, to save memory.
    pub accumulate: usize,
    pub seed: u64,
    /// Largest norm of the gradient; 0 for no clipping.
    pub clip: f64,
    /// Decay of the exponential moving average of parameters, which is then what is evaluated; 0 for none.
    pub ema: f64,
    /// Number of last epochs whose parameters are averaged at the end; 0 for none.
    pub average: usize,
    /// Early stopping: epochs without improvement after which training stops; 0 for never.
    pub patience: usize,
    /// What the best epoch is chosen on.
    pub validation: Validation,
    /// Initial weights.
    pub weights: Option<String>,
    /// Steps between checkpoints, in addition to those at the end of every epoch; 0 for none.
    pub save_every: usize,
    /// Changes of the model's fields.
    pub set: BTreeMap<String, toml::Value>,
    pub optimiser: Optimiser,
    pub schedule: Schedule,
    pub groups: Groups,
}

/// What the best epoch is chosen on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    /// The validation part of the data, or a tenth of the training part.
    #[default]
    Part,
    /// The test part, as many papers do: the model trains on everything else, and the result is biased upwards.
    Test,
}

impl Validation {
    /// The part to train on, and the part that the best epoch is chosen on.
    #[must_use]
    pub const fn parts(self) -> [Part; 2] {
        match self {
            Self::Part => [Part::Train, Part::Validation],
            Self::Test => [Part::TrainAndValidation, Part::Test],
        }
    }

    /// The validation part in a report: its size, or that there was none beside the test.
    #[must_use]
    pub fn fact(self, size: String, items: &str) -> String {
        match self {
            Self::Part => size,
            Self::Test => format!("the test {items}: the best epoch was chosen on them"),
        }
    }
}

impl Default for Common {
    fn default() -> Self {
        Self {
            model: String::new(),
            data: String::new(),
            epochs: 10,
            accumulate: 1,
            seed: 0,
            clip: 0.0,
            ema: 0.0,
            average: 0,
            patience: 0,
            validation: Validation::Part,
            weights: None,
            save_every: 0,
            set: BTreeMap::new(),
            optimiser: Optimiser::default(),
            schedule: Schedule::default(),
            groups: Groups::default(),
        }
    }
}

impl Common {
    /// # Errors
    /// When a value is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_positive("epochs", self.epochs)?;
        check_positive("accumulate", self.accumulate)?;
        // the largest integer in TOML
        for (field, value) in [("epochs", self.epochs as u64), ("seed", self.seed)] {
            if value > i64::MAX as u64 {
                return Err(Error::config(field, format!("must be at most {}, got {value}", i64::MAX)));
            }
        }
        if !(self.clip.is_finite() && self.clip >= 0.0) {
            return Err(Error::config("clip", format!("must be at least 0, got {}", self.clip)));
        }
        check_share("ema", self.ema)?;
        self.optimiser.validate()?;
        self.schedule.validate(self.epochs)?;
        self.groups.validate()
    }

    /// The changes of the model's fields, as JSON.
    pub fn changes(&self) -> impl Iterator<Item = (&str, serde_json::Value)> {
        self.set
            .iter()
            .map(|(field, value)| (field.as_str(), serde_json::to_value(value).expect("TOML is JSON, but for dates")))
    }
}

/// The keys of a recipe that belong to a task.
pub trait Section: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned {
    /// This task's defaults for the common keys.
    fn common() -> Common;

    /// # Errors
    /// When a value is out of range; the error names it.
    fn validate(&self, common: &Common) -> Result<(), Error>;
}

/// What to train, on which data, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe<S> {
    pub common: Common,
    /// The task's own keys; in the file they are on the same level as the others.
    pub own: S,
}

impl<S: Section> Default for Recipe<S> {
    fn default() -> Self {
        Self { common: S::common(), own: S::default() }
    }
}

/// An error unless the value is from 0 to 1.
pub(crate) fn check_share(field: &'static str, share: f64) -> Result<(), Error> {
    let fine = (0.0..=1.0).contains(&share);
    if fine { Ok(()) } else { Err(Error::config(field, format!("must be from 0 to 1, got {share}"))) }
}

/// An error unless the value is at least 1.
pub(crate) fn check_positive(field: &'static str, count: usize) -> Result<(), Error> {
    if count > 0 { Ok(()) } else { Err(Error::config(field, "must be at least 1, got 0")) }
}

/// The key for the task of a recipe; optional.
const TASK: &str = "task";

/// The task of a recipe, if it names one.
///
/// # Errors
/// When it is not TOML, or the task is not a string.
pub fn task_of(text: &str) -> Result<Option<String>, Error> {
    let table: toml::Table = toml::from_str(text).map_err(|error| at_line(text, &error))?;
    match table.get(TASK) {
        None => Ok(None),
        Some(toml::Value::String(task)) => Ok(Some(task.clone())),
        Some(other) => Err(Error::config("task", format!("must be a name, got {other}"))),
    }
}

impl<S: Section> Recipe<S> {
    /// Reads a recipe.
    ///
    /// # Errors
    /// When it is not TOML, a key is unknown (the error suggests the nearest one) or a value is out of range; with the line.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        let parsed = toml::de::DeTable::parse(text).map_err(|error| at_line(text, &error))?;
        let known: Vec<&str> = fields::<Common>().iter().chain(fields::<S>()).chain(&[TASK]).copied().collect();
        for key in parsed.get_ref().keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let name = key.get_ref();
                let reason = format!("`{name}`: {}", nearest::unknown(name, &known));
                return Err(Error::Field { field: line(text, key.span().start), reason });
            }
        }
        // first without the task's defaults, for errors with line numbers
        toml::from_str::<Common>(text).map_err(|error| at_line(text, &error))?;
        let own = toml::from_str::<S>(text).map_err(|error| at_line(text, &error))?;
        let written: toml::Table = toml::from_str(text).map_err(|error| at_line(text, &error))?;
        let mut common = table(&S::common());
        let of_common = written.into_iter().filter(|(key, _)| fields::<Common>().contains(&key.as_str()));
        common.extend(of_common);
        let common = common.try_into().map_err(|error: toml::de::Error| at_line(text, &error))?;
        let recipe = Self { common, own };
        recipe.validate()?;
        Ok(recipe)
    }

    /// The whole recipe, as [`from_toml`](Self::from_toml) reads it; `task` is the name of its task.
    pub fn to_toml(&self, task: &str) -> String {
        let rest = toml::to_string(&self.table()).expect("a recipe is plain data");
        format!("{TASK} = \"{task}\"\n{rest}")
    }

    /// Every key with its value.
    pub fn table(&self) -> toml::Table {
        let mut all = table(&self.common);
        all.extend(table(&self.own));
        all
    }

    /// # Errors
    /// When a value is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.common.validate()?;
        self.own.validate(&self.common)
    }

    /// Changes one key, such as `optimiser.rate=1e-4`.
    ///
    /// # Errors
    /// When there is no such key or the value has the wrong type.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, Error> {
        let wrong = |reason: String| Error::Field { field: key.to_string(), reason };
        // a TOML value, or else a string
        let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
            .map_or_else(|_| toml::Value::String(value.into()), |table| table["value"].clone());
        let mut parts: Vec<&str> = key.split('.').collect();
        let (first, last) = (parts[0], parts.pop().expect("a split has a part"));
        let is_common = fields::<Common>().contains(&first);
        if !is_common && !fields::<S>().contains(&first) {
            let known: Vec<&str> = fields::<Common>().iter().chain(fields::<S>()).copied().collect();
            return Err(wrong(nearest::unknown(first, &known)));
        }
        let mut changed = if is_common { table(&self.common) } else { table(&self.own) };
        let mut inner = &mut changed;
        for part in parts {
            let entry = inner.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            inner = entry.as_table_mut().ok_or_else(|| wrong(format!("`{part}` is a value, not a table")))?;
        }
        inner.insert(last.into(), value);
        let unfit = |error: toml::de::Error| wrong(explain(error.message()));
        let recipe = if is_common {
            Self { common: changed.try_into().map_err(unfit)?, own: self.own.clone() }
        } else {
            Self { common: self.common.clone(), own: changed.try_into().map_err(unfit)? }
        };
        recipe.validate()?;
        Ok(recipe)
    }
}

fn table(part: &impl Serialize) -> toml::Table {
    toml::Table::try_from(part).expect("a recipe is plain data")
}

/// The line number of a byte offset in a text.
fn line(text: &str, at: usize) -> String {
    format!("line {}", text[..at.min(text.len())].matches('\n').count() + 1)
}

fn at_line(text: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start);
    Error::Field { field: line(text, at), reason: explain(error.message()) }
}

/// Replaces serde's list of all known keys by the nearest one.
fn explain(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field") || message.starts_with("unknown variant"), words.next()) {
        (true, Some(unknown)) => format!("`{unknown}`: {}", nearest::unknown(unknown, &words.collect::<Vec<_>>())),
        _ => message.to_string(),
    }
}
