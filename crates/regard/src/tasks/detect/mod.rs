//! Detection: a picture in, boxes with classes out.
//!
//! A sample is a picture with boxes ([`DetectionDataset`]); pictures of different sizes become one batch, padded
//! ([`DetectionBatch`]). Measured as COCO does it ([`crate::evaluate::coco`]).

mod batch;
mod measure;
mod mistakes;
mod objective;
mod section;
mod tiles;

pub use batch::{DetectionBatch, DetectionSamples};
use measure::report;
pub use measure::{DetectionFindings, class_numbers, class_table, detect_all, findings};
pub use objective::DetectionLoss;
pub use section::DetectSection;
pub use tiles::Tiles;

use burn::tensor::Device;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::training_batches::TrainingBatches;
use crate::Error;
use crate::data::dataset::Origin;
use crate::data::detection::{self, DetectionDataset};
use crate::data::{DetectionPreprocess, Loader, Part};
use crate::evaluate::{Metric, coco};
use crate::models::detect::{Detector, DetectorConfig};
use crate::report::Findings;
use crate::train::{
    self, Common, EvalReport, EvalRequest, Measured, ModelCost, NamedModel, Share, Split, Steps, Task, no_part,
};
use crate::weights::{self, LoadedDetector, Progress};

/// A recipe of detection.
pub type Recipe = train::Recipe<DetectSection>;

/// The pictures of a recipe, and the detector for them.
#[derive(Clone, Debug)]
pub struct ObjectDetection {
    pub recipe: Recipe,
    pub train: DetectionPart,
    pub validation: DetectionPart,
    pub test: DetectionPart,
    pub config: DetectorConfig,
    pub preprocess: DetectionPreprocess,
}

/// Some pictures of a dataset.
#[derive(Clone, Debug)]
pub struct DetectionPart {
    pub dataset: Arc<dyn DetectionDataset>,
    /// Those that are taken.
    pub indices: Arc<Vec<usize>>,
}

impl DetectionPart {
    /// The first `most` pictures, or all for 0.
    #[must_use]
    pub fn first(dataset: Arc<dyn DetectionDataset>, most: usize) -> Self {
        let taken = if most == 0 { dataset.len() } else { most.min(dataset.len()) };
        Self { dataset, indices: Arc::new((0..taken).collect()) }
    }

    /// The same without pictures that have no object to find.
    fn with_objects(self) -> Result<Self, Error> {
        let mut kept = Vec::new();
        for index in self.indices.iter() {
            if self.dataset.annotations(*index)?.iter().any(|annotation| !annotation.crowd) {
                kept.push(*index);
            }
        }
        Ok(Self { indices: Arc::new(kept), ..self })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
}

impl ObjectDetection {
    /// Opens the data of a recipe and makes the detector fit its classes.
    ///
    /// # Errors
    /// When there is no such data, or the detector cannot be configured for it.
    pub fn of(recipe: &Recipe) -> Result<Self, Error> {
        let part = |part, most| Ok::<_, Error>(DetectionPart::first(detection::open(&recipe.common.data, part)?, most));
        let [train, validation] = recipe.common.validation.parts();
        let DetectSection { pictures, test_pictures, keep_empty, .. } = recipe.own;
        let mut train = part(train, pictures)?;
        if !keep_empty {
            train = train.with_objects()?;
        }
        let (validation, test) = (part(validation, test_pictures)?, part(Part::Test, test_pictures)?);
        let (config, preprocess) = recipe.model(train.dataset.classes().len())?;
        Ok(Self { recipe: recipe.clone(), train, validation, test, config, preprocess })
    }

    fn training(&self) -> TrainingBatches<'_> {
        TrainingBatches {
            common: &self.recipe.common,
            items: "pictures",
            samples: self.train.len(),
            batch: self.recipe.own.batch,
            repeats: 1,
        }
    }

    fn learning(&self, share: Share) -> Result<Loader<DetectionSamples>, Error> {
        let order = self.training().order(share)?;
        let samples = DetectionSamples {
            dataset: self.train.dataset.clone(),
            indices: self.train.indices.clone(),
            preprocess: self.preprocess,
            augment: Some(self.recipe.own.augment.clone()),
            seed: self.recipe.common.seed,
        };
        Ok(Loader { samples, order, workers: self.recipe.own.workers })
    }

    fn part(&self, split: Split) -> &DetectionPart {
        match split {
            Split::Validation { .. } => &self.validation,
            Split::Test => &self.test,
        }
    }
}

/// What a detector is measured on.
#[derive(Clone, Copy, Debug)]
pub struct DetectorData<'a> {
    /// A dataset, as recipes name it.
    pub name: &'a str,
    pub part: Part,
    /// Whether the detector was trained on it, so that only the test part is new to it.
    pub is_own: bool,
    /// Pictures at a time.
    pub batch: usize,
}

/// Measures a detector on data whose classes it knows, by their names.
///
/// # Errors
/// When there is no such data, it has a class that the detector does not know, or the detector has no names for its classes.
pub fn evaluate_detector(
    detector: &LoadedDetector,
    data: &DetectorData,
    device: &Device,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<EvalReport, Error> {
    let LoadedDetector { name, model, preprocess, labels, .. } = detector;
    let known = labels.as_ref().ok_or_else(|| Error::Field {
        field: name.clone(),
        reason: "has no names for its classes: `classes.txt` beside its configuration, or `--labels FILE`".into(),
    })?;
    let parts = detection::open_parts(data.name)?;
    // a fifth of other data is the test only because something must be, and a few pictures have no fifth
    let no_test = parts.origins.test == Origin::FifthOfPictures || parts.test.is_empty();
    let whole = data.part == Part::Test && no_test && !data.is_own;
    let (dataset, measured_on) = match data.part {
        _ if whole => (detection::open(data.name, Part::All)?, "all pictures: the data has no parts"),
        Part::Test => (parts.test, "test"),
        Part::Validation => (parts.validation, "validation"),
        Part::Train => (parts.train, "train"),
        other => (detection::open(data.name, other)?, "all pictures"),
    };
    if dataset.is_empty() {
        return Err(no_part(data.part, "is not in the data"));
    }
    let part = DetectionPart::first(dataset, 0);
    let found = detect_all((model, known), &part, preprocess, data.batch, device, watch)?;
    report(&found, &found.evaluate()?, (&part, measured_on))
}

impl Task for ObjectDetection {
    const NAME: &'static str = "detect";
    const ALIASES: &'static [&'static str] = &["detection"];
    const METRICS: &'static [Metric] = &coco::METRICS;
    const ITEMS: &'static str = "pictures";

    type Section = DetectSection;
    type Objective = DetectionLoss;

    fn open(recipe: &Recipe, _: &BTreeMap<String, String>) -> Result<Self, Error> {
        Self::of(recipe)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("model.toml", self.config.to_toml()),
            ("preprocess.toml", toml::to_string(&self.preprocess).expect("plain data")),
            ("classes.txt", self.train.dataset.classes().join("\n") + "\n"),
        ]
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let classes = self.train.dataset.classes().join(", ");
        [("training pictures", self.train.len().to_string()), ("classes", classes)].into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(DetectionLoss, Detector), Error> {
        let Common { seed, weights: ref address, .. } = self.recipe.common;
        device.seed(seed);
        let mut model = self.config.init(&device.clone().autodiff())?;
        if let Some(trunk) = self.recipe.own.trunk.as_ref().filter(|_| weights) {
            model = weights::fill_trunk(model, trunk)?;
        }
        if let Some(address) = address.as_ref().filter(|_| weights) {
            model = weights::begin_detector(model, address)?;
        }
        Ok((DetectionLoss::new(self.config.clone(), seed, device), model))
    }

    fn epoch_steps(&self, ranks: usize) -> Result<usize, Error> {
        self.training().epoch_steps(ranks)
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, DetectionBatch> {
        self.training().steps(self.learning(share), epoch, first)
    }

    fn measure(
        &self,
        model: &Detector,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let part = self.part(split);
        let due = split.is_due(self.recipe.own.measure_every, self.recipe.common.epochs);
        if part.is_empty() || !due {
            return Ok(None);
        }
        let known = self.train.dataset.classes();
        let found = detect_all((model, known), part, &self.preprocess, self.recipe.own.batch, device, watch)?;
        let evaluation = found.evaluate()?;
        let values = evaluation.summary.values();
        let findings = match split {
            Split::Validation { .. } => Findings::default(),
            Split::Test => findings(&found, &evaluation, &found.diagnose(), part)?,
        };
        Ok(Some(Measured { values, findings }))
    }

    /// On any data whose classes the run knows, by their names.
    fn evaluate(
        recipe: &Recipe,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let source = weights::resolve_detector(&request.folder.display().to_string(), &mut |_| {})?;
        let data = DetectorData {
            name: request.data,
            part: request.part,
            is_own: request.data == recipe.common.data,
            batch: recipe.own.batch,
        };
        evaluate_detector(&source.load(device)?, &data, device, watch)
    }

    fn named_model(name: &str, progress: &mut dyn FnMut(Progress)) -> Result<Option<Box<dyn NamedModel>>, Error> {
        if !weights::is_detector(name) {
            return Ok(None);
        }
        Ok(Some(Box::new(weights::resolve_detector(name, progress)?)))
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        let size = self.preprocess.size(self.config.image());
        Ok((&self.config.ledger(size)?).into())
    }

    fn facts(&self) -> Vec<(String, String)> {
        let parameters = self.cost().map(|cost| cost.parameters.to_string());
        let validation = self.recipe.common.validation.fact(self.validation.len().to_string(), "pictures");
        let facts = [
            ("parameters", parameters.unwrap_or_default()),
            ("classes", self.train.dataset.classes().len().to_string()),
            ("training pictures", self.train.len().to_string()),
            ("validation pictures", validation),
            ("test pictures", self.test.len().to_string()),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

#[cfg(test)]
mod tests;
