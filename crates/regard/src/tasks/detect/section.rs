//! The keys of a recipe that are detection's own.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::data::{DetectionAugment, DetectionPreprocess};
use crate::models::detect::{self, DetectorConfig};
use crate::train::{Common, Recipe, Section, check_positive};

/// How pictures with boxes become batches. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DetectSection {
    /// Only so many training pictures; 0 is all.
    pub pictures: usize,
    /// Only so many pictures of the validation and of the test part; 0 is all.
    pub test_pictures: usize,
    /// Pictures of a step, over all processes and accumulated parts.
    pub batch: usize,
    /// Threads that prepare pictures.
    pub workers: usize,
    /// Whether pictures without objects are learned from.
    pub keep_empty: bool,
    /// Epochs between two measurements of the validation part; the last epoch is always measured.
    pub measure_every: usize,
    /// Weights of a classifier for the trunk: a file, or a model by any of its names.
    pub trunk: Option<String>,
    pub augment: DetectionAugment,
    /// How pictures are resized and normalised; the preset's if `None`.
    pub preprocess: Option<DetectionPreprocess>,
}

impl Default for DetectSection {
    fn default() -> Self {
        Self {
            pictures: 0,
            test_pictures: 0,
            batch: 8,
            workers: 2,
            keep_empty: true,
            measure_every: 1,
            trunk: None,
            augment: DetectionAugment::default(),
            preprocess: None,
        }
    }
}

impl Section for DetectSection {
    fn common() -> Common {
        Common { model: "detr-nano".into(), data: "scenes".into(), ..Common::default() }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        check_positive("batch", self.batch)?;
        check_positive("measure-every", self.measure_every)?;
        if !self.batch.is_multiple_of(common.accumulate) {
            let reason = format!("{} parts do not divide a batch of {}", common.accumulate, self.batch);
            return Err(Error::config("accumulate", reason));
        }
        if self.preprocess.is_some_and(|preprocess| preprocess.multiple == 0) {
            return Err(Error::config("preprocess.multiple", "must be at least 1, got 0"));
        }
        self.augment.validate()?;
        Recipe { common: common.clone(), own: self.clone() }.named().map(|_| ())
    }
}

impl Recipe<DetectSection> {
    /// The detector as it is named: a preset, or a TOML file.
    fn named(&self) -> Result<(DetectorConfig, DetectionPreprocess), Error> {
        detect::named(&self.common.model)
    }

    /// The detector for so many classes, and what it expects of a picture.
    ///
    /// # Errors
    /// When a field of the model is unknown or cannot work.
    pub fn model(&self, classes: usize) -> Result<(DetectorConfig, DetectionPreprocess), Error> {
        let (named, preprocess) = self.named()?;
        let mut config = named.with("classes", serde_json::json!(classes))?;
        for (field, value) in self.common.changes() {
            config = config.with(field, value)?;
        }
        if config.classes() < classes {
            let reason = format!("the data has {classes} classes, got {}", config.classes());
            return Err(Error::config("set.classes", reason));
        }
        let trained = self.own.augment.largest_side();
        let preprocess = self.own.preprocess.unwrap_or_else(|| preprocess.trained_at(trained, config.image()));
        Ok((config, preprocess))
    }
}
