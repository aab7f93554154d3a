//! The keys of a recipe that are those of clips.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::data::clip::{FrameSampling, TestCrop};
use crate::data::{Augment, Preprocess};
use crate::models::video::{self, AnyClipPreset, VideoConfig};
use crate::tasks::classify::Loss;
use crate::train::{Common, Recipe, Section, check_positive, check_share};

/// How clips become batches and losses. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ClipsSection {
    /// Only so many training clips of each class; 0 is all.
    pub per_class: usize,
    /// Only so many clips of each class of the validation and of the test part; 0 is all.
    pub test_per_class: usize,
    /// Clips of a step, over all processes and accumulated parts.
    pub batch: usize,
    /// Threads that prepare clips.
    pub workers: usize,
    /// Which frames of a clip the model sees, the preset's way when none; how many is the model's `frames`.
    pub sampling: Option<FrameSampling>,
    /// Views of a clip in time when the test part is measured; their probabilities are averaged.
    pub views: usize,
    /// Parts of a frame along its longer side in each of these views: 1 or 3.
    pub crops: usize,
    /// Epochs between two measurements of the validation part; the last epoch is always measured.
    pub measure_every: usize,
    /// Probability that the last residual branch is left out.
    pub stochastic_depth: f64,
    /// Gradient checkpointing: every block is computed once more in the backward pass instead of keeping its activations.
    pub checkpoint: bool,
    pub loss: Loss,
    /// The same random changes for all frames of a clip. A flip turns left into right: not where classes have a direction.
    pub augment: Augment,
    /// How frames are resized and normalised; the preset's if `None`.
    pub preprocess: Option<Preprocess>,
}

impl Default for ClipsSection {
    fn default() -> Self {
        Self {
            per_class: 0,
            test_per_class: 0,
            batch: 32,
            workers: 2,
            sampling: None,
            views: 1,
            crops: 1,
            measure_every: 1,
            stochastic_depth: 0.0,
            checkpoint: false,
            loss: Loss::default(),
            augment: Augment::default(),
            preprocess: None,
        }
    }
}

impl Section for ClipsSection {
    fn common() -> Common {
        Common { model: "timesformer-nano".into(), data: "clips".into(), ..Common::default() }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        for (field, value) in [("batch", self.batch), ("views", self.views), ("measure-every", self.measure_every)] {
            check_positive(field, value)?;
        }
        if !self.batch.is_multiple_of(common.accumulate) {
            let reason = format!("{} parts do not divide a batch of {}", common.accumulate, self.batch);
            return Err(Error::config("accumulate", reason));
        }
        check_crops(self.crops)?;
        check_share("stochastic-depth", self.stochastic_depth)?;
        if self.stochastic_depth >= 1.0 {
            return Err(Error::config("stochastic-depth", "must be below 1, got 1"));
        }
        self.loss.validate()?;
        self.augment.validate()?;
        let named = video::named(&common.model)?;
        if self.checkpoint && !matches!(named.config, VideoConfig::Timesformer(_)) {
            let reason =
                format!("`{}` has norms with running statistics; only a TimeSformer recomputes blocks", common.model);
            return Err(Error::config("checkpoint", reason));
        }
        Ok(())
    }
}

/// # Errors
/// When a test cannot have so many parts of a frame.
pub(super) fn check_crops(crops: usize) -> Result<&'static [TestCrop], Error> {
    TestCrop::all(crops).ok_or_else(|| Error::config("crops", format!("must be 1 or 3, got {crops}")))
}

impl Recipe<ClipsSection> {
    /// The model for so many classes, and what it expects of a clip.
    ///
    /// # Errors
    /// When a field of the model is unknown or cannot work, or it has fewer classes than the data.
    pub fn model(&self, classes: usize) -> Result<AnyClipPreset, Error> {
        let named = video::named(&self.common.model)?;
        let mut config = named.config.with("classes", serde_json::json!(classes))?;
        for (field, value) in self.common.changes() {
            config = config.with(field, value)?;
        }
        config.validate()?;
        if config.classes() < classes {
            let reason = format!("the data has {classes} classes, got {}", config.classes());
            return Err(Error::config("set.classes", reason));
        }
        let preprocess = self.own.preprocess.unwrap_or(named.preprocess);
        Ok(AnyClipPreset { config, preprocess, sampling: self.own.sampling.unwrap_or(named.sampling), ..named })
    }
}
