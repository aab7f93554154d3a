//! Everything that a run depends on, in one TOML file.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::distill::Distillation;
use super::{Groups, Loss, Optimiser, Schedule};
use crate::data::{Augment, Mix, Preprocess};
use crate::models::{self, ModelConfig};
use crate::{Error, nearest};

/// What to train on what, and how. Every field has a default; a recipe says what differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Recipe {
    /// A preset.
    pub model: String,
    /// A dataset: `fashion`, or a path.
    pub data: String,
    /// Only so many training pictures of each class; 0 is all.
    pub per_class: usize,
    /// Only so many test pictures of each class; 0 is all.
    pub test_per_class: usize,
    pub epochs: usize,
    /// Pictures of a step, over all processes and accumulated parts.
    pub batch: usize,
    /// Parts into which the batch of a process is cut, for less memory.
    pub accumulate: usize,
    /// How many times a picture comes in a row: repeated augmentation.
    pub repeats: usize,
    pub seed: u64,
    /// Largest length of the gradient; 0 is any.
    pub clip: f64,
    /// Part of the old value in the moving average of parameters, which is then what is tested; 0 is none.
    pub ema: f64,
    /// Probability that the last residual branch is left out.
    pub stochastic_depth: f64,
    /// Whether every branch has that probability, as in DeiT-III; otherwise it grows linearly with depth.
    pub uniform_depth: bool,
    /// Epochs without a better test accuracy after which training stops; 0 is never.
    pub patience: usize,
    /// A checkpoint to begin with; its head is replaced when it has other classes.
    pub weights: Option<String>,
    /// Threads that prepare pictures.
    pub workers: usize,
    /// Steps between two checkpoints, beside those at the end of an epoch; 0 is none.
    pub save_every: usize,
    /// Changes of the model's fields.
    pub set: BTreeMap<String, toml::Value>,
    pub optimiser: Optimiser,
    pub schedule: Schedule,
    pub loss: Loss,
    pub groups: Groups,
    pub augment: Augment,
    pub mix: Mix,
    pub distillation: Option<Distillation>,
    /// How pictures are resized and normalised; the preset's way when none.
    pub preprocess: Option<Preprocess>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            model: "vit-nano".into(),
            data: "fashion".into(),
            per_class: 0,
            test_per_class: 0,
            epochs: 10,
            batch: 64,
            accumulate: 1,
            repeats: 1,
            seed: 0,
            clip: 0.0,
            ema: 0.0,
            stochastic_depth: 0.0,
            uniform_depth: false,
            patience: 0,
            weights: None,
            workers: 2,
            save_every: 0,
            set: BTreeMap::new(),
            optimiser: Optimiser::default(),
            schedule: Schedule::default(),
            loss: Loss::default(),
            groups: Groups::default(),
            augment: Augment::default(),
            mix: Mix::default(),
            distillation: None,
            preprocess: None,
        }
    }
}

/// Refuses what is no probability.
pub(super) fn check_share(field: &'static str, share: f64) -> Result<(), Error> {
    let fine = (0.0..=1.0).contains(&share);
    if fine { Ok(()) } else { Err(Error::config(field, format!("{share} is not from 0 to 1"))) }
}

/// What recipes of every kind have.
#[derive(Debug)]
pub struct Common<'a> {
    pub model: &'a mut String,
    pub data: &'a mut String,
    pub epochs: &'a mut usize,
    pub seed: &'a mut u64,
}

/// A recipe as text.
pub trait Written: Serialize + DeserializeOwned {
    /// # Errors
    /// When a value cannot work; the error names it.
    fn check(&self) -> Result<(), Error>;

    /// To be changed; what then fits together is for [`check`](Self::check) to say.
    fn common(&mut self) -> Common<'_>;

    /// Reads a recipe.
    ///
    /// # Errors
    /// When it is not TOML, a key is unknown (the nearest one is named) or a value cannot work; with the line.
    fn from_toml(text: &str) -> Result<Self, Error> {
        let recipe: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            Error::Field { field: format!("line {line}"), reason: explain(error.message()) }
        })?;
        recipe.check()?;
        Ok(recipe)
    }

    /// The whole recipe, as [`from_toml`](Self::from_toml) reads it.
    fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe is plain data")
    }

    /// The same with one key changed, such as `optimiser.rate=1e-4`.
    ///
    /// # Errors
    /// When there is no such key or the value does not fit.
    fn with(&self, key: &str, value: &str) -> Result<Self, Error> {
        let field = || key.to_string();
        // numbers, lists and booleans as TOML has them; anything else is a word
        let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
            .map_or_else(|_| toml::Value::String(value.into()), |table| table["value"].clone());
        let mut table = toml::Table::try_from(self).expect("a recipe is plain data");
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().expect("a split has a part");
        let mut inner = &mut table;
        for part in parts {
            let entry = inner.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            inner = entry
                .as_table_mut()
                .ok_or_else(|| Error::Field { field: field(), reason: format!("`{part}` is a value and no table") })?;
        }
        inner.insert(last.into(), value);
        let changed: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| Error::Field { field: field(), reason: explain(error.message()) })?;
        changed.check()?;
        Ok(changed)
    }
}

impl Written for Recipe {
    fn check(&self) -> Result<(), Error> {
        self.validate()
    }

    fn common(&mut self) -> Common<'_> {
        let Self { model, data, epochs, seed, .. } = self;
        Common { model, data, epochs, seed }
    }
}

impl Recipe {
    /// Reads a recipe.
    ///
    /// # Errors
    /// When it is not TOML, a key is unknown (the nearest one is named) or a value cannot work; with the line.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        Written::from_toml(text)
    }

    /// The whole recipe, as [`from_toml`](Self::from_toml) reads it.
    pub fn to_toml(&self) -> String {
        Written::to_toml(self)
    }

    /// The same with one key changed, such as `optimiser.rate=1e-4`.
    ///
    /// # Errors
    /// When there is no such key or the value does not fit.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, Error> {
        Written::with(self, key, value)
    }

    /// # Errors
    /// When a value cannot work; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        for (field, count) in
            [("epochs", self.epochs), ("batch", self.batch), ("accumulate", self.accumulate), ("repeats", self.repeats)]
        {
            if count == 0 {
                return Err(Error::config(field, "must be at least 1"));
            }
        }
        if !self.batch.is_multiple_of(self.accumulate) {
            let reason = format!("{} parts do not divide a batch of {}", self.accumulate, self.batch);
            return Err(Error::config("accumulate", reason));
        }
        if !(self.clip.is_finite() && self.clip >= 0.0) {
            return Err(Error::config("clip", format!("{} is no length", self.clip)));
        }
        check_share("ema", self.ema)?;
        check_share("stochastic-depth", self.stochastic_depth)?;
        if self.stochastic_depth >= 1.0 {
            return Err(Error::config("stochastic-depth", "1 leaves nothing of the model"));
        }
        self.optimiser.validate()?;
        self.schedule.validate(self.epochs)?;
        self.loss.validate()?;
        self.augment.validate()?;
        self.mix.validate()?;
        if let Some(distillation) = &self.distillation {
            distillation.validate()?;
        }
        models::preset(&self.model).map(|_| ())
    }

    /// The model for so many classes, and what it expects of a picture.
    ///
    /// # Errors
    /// When a field of the model is unknown or cannot work.
    pub fn model(&self, classes: usize) -> Result<(ModelConfig, Preprocess), Error> {
        let preset = models::preset(&self.model)?;
        let mut config = preset.config.with("classes", serde_json::json!(classes))?;
        for (field, value) in &self.set {
            let value = serde_json::to_value(value).expect("TOML is JSON, but for dates");
            config = config.with(field, value)?;
        }
        Ok((config, self.preprocess.unwrap_or(preset.preprocess)))
    }
}

/// An unknown key with the nearest known one, instead of a list of all.
fn explain(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field") || message.starts_with("unknown variant"), words.next()) {
        (true, Some(unknown)) => format!("`{unknown}`: {}", nearest::unknown(unknown, &words.collect::<Vec<_>>())),
        _ => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{LossKind, Shape};

    #[test]
    fn an_empty_recipe_is_the_default_and_every_recipe_can_be_read_back() {
        assert_eq!(Recipe::from_toml("").unwrap(), Recipe::default());
        let text = "
            model = 'resnet-nano'
            batch = 32
            set = { image = [28, 28] }
            optimiser = { rule = 'sgd', rate = 0.1, nesterov = true }
            schedule = { shape = { step = { every = 30, factor = 0.1 } } }
            loss = { kind = { binary = { threshold = 0.2 } } }
            augment = { crop = { random = { padding = 4 } }, flip = 0.5 }
        ";
        let recipe = Recipe::from_toml(text).unwrap();
        assert_eq!(recipe.loss.kind, LossKind::Binary { threshold: 0.2 });
        assert_eq!(recipe.schedule.shape, Shape::Step { every: 30.0, factor: 0.1 });
        assert_eq!(Recipe::from_toml(&recipe.to_toml()).unwrap(), recipe);
        assert_eq!(recipe.model(7).unwrap().0.image(), [28, 28]);
        assert_eq!(recipe.model(7).unwrap().0.classes(), 7);
    }

    fn refused(text: &str) -> String {
        Recipe::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_key() {
        let error = refused("epochs = 3\nbach = 64\n");
        assert!(error.contains("line 2") && error.contains("`bach`") && error.contains("`batch`"), "{error}");
        let error = refused("[optimiser]\nrule = 'adamw'\nrate = 0.1\nbeta = 2\n");
        assert!(error.contains("`betas`"), "{error}");
        assert!(refused("[schedule]\nshape = 'cosin'").contains("`cosine`"));
        assert!(refused("model = 'vit-nanoo'").contains("`vit-nano`"));
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_name() {
        for (text, name) in [
            ("epochs = 0", "epochs"),
            ("batch = 10\naccumulate = 3", "accumulate"),
            ("stochastic-depth = 1.0", "stochastic-depth"),
            ("ema = 2.0", "ema"),
            ("clip = -1.0", "clip"),
            ("loss = { smoothing = 1.5 }", "loss.smoothing"),
            ("optimiser = { rule = 'adamw', rate = -1.0 }", "optimiser.rate"),
        ] {
            assert!(refused(text).contains(name), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn one_key_can_be_changed_and_the_rest_stays() {
        let recipe = Recipe::default().with("optimiser.rate", "1e-4").unwrap().with("model", "resnet-nano").unwrap();
        assert_eq!((recipe.optimiser.rate(), recipe.model.as_str()), (1e-4, "resnet-nano"));
        assert_eq!(recipe.batch, Recipe::default().batch);
        let changed = recipe.with("set.image", "[28, 28]").unwrap();
        assert_eq!(changed.model(10).unwrap().0.image(), [28, 28]);
        assert!(recipe.with("optimiser.speed", "1").unwrap_err().to_string().contains("optimiser.speed"));
        assert!(recipe.with("batch.size", "1").unwrap_err().to_string().contains("no table"));
        assert!(recipe.with("epochs", "many").is_err());
    }
}
