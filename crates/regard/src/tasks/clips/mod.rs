//! Clips: short runs of frames in, one class out.
//!
//! A sample is a clip with its class ([`ClipDataset`]), of which some frames are taken ([`FrameSampling`](crate::data::clip::FrameSampling))
//! and changed alike. The test averages the probabilities of several views; the validation has one.

mod batch;
mod measure;
mod memory;
mod objective;
mod prepare;
mod section;

pub use batch::{ClipBatch, ClipPart, ClipSamples};
pub use measure::{ClassPair, evaluate, exchanged_pairs, findings, mean_of_views};
pub use memory::training_bytes;
pub use objective::ClipLoss;
pub use prepare::{ClipPreparation, PreparedViews};
pub use section::ClipsSection;

use burn::tensor::Device;
use std::collections::BTreeMap;

use super::training_batches::TrainingBatches;
use crate::Error;
use crate::data::clip;
use crate::data::dataset::Origin;
use crate::data::{Augment, Loader, Order, Part, labels};
use crate::evaluate::{ClassificationMetrics, Metric};
use crate::models::{AnyClipPreset, VideoConfig, VideoModel};
use crate::report::Findings;
use crate::train::{
    self, Common, EvalReport, EvalRequest, Measured, ModelCost, NamedModel, NamedResult, Share, Split, Steps, Task,
    no_part,
};
use crate::weights::{self, LoadedVideo, Progress};

/// A recipe of clips.
pub type Recipe = train::Recipe<ClipsSection>;

/// The clips of a recipe, and the model for them.
#[derive(Clone, Debug)]
pub struct ClipClassification {
    pub recipe: Recipe,
    pub train: ClipPart,
    pub validation: ClipPart,
    pub test: ClipPart,
    /// The model, and what it expects of a clip.
    pub model: AnyClipPreset,
}

impl ClipClassification {
    /// Opens the data of a recipe and makes the model fit its classes.
    ///
    /// # Errors
    /// When there is no such data, or the model cannot be configured for it.
    pub fn of(recipe: &Recipe) -> Result<Self, Error> {
        let part = |part, most| Ok::<_, Error>(ClipPart::first_per_class(clip::open(&recipe.common.data, part)?, most));
        let [train, validation] = recipe.common.validation.parts();
        let ClipsSection { per_class, test_per_class, .. } = recipe.own;
        let train = part(train, per_class)?;
        let (validation, test) = (part(validation, test_per_class)?, part(Part::Test, test_per_class)?);
        let model = recipe.model(train.dataset.classes().len())?;
        Ok(Self { recipe: recipe.clone(), train, validation, test, model })
    }

    fn preparation(&self) -> ClipPreparation {
        let AnyClipPreset { config, preprocess, sampling, .. } = &self.model;
        let plain = ClipPreparation::of(config, *preprocess, *sampling);
        ClipPreparation { augment: self.recipe.own.augment.clone(), ..plain }
    }

    fn training(&self) -> TrainingBatches<'_> {
        TrainingBatches {
            common: &self.recipe.common,
            items: "clips",
            samples: self.train.len(),
            batch: self.recipe.own.batch,
            repeats: 1,
        }
    }

    fn learning(&self, share: Share) -> Result<Loader<ClipSamples>, Error> {
        let order = self.training().order(share)?;
        let samples = ClipSamples { part: self.train.clone(), preparation: self.preparation(), seed: order.seed };
        Ok(Loader { samples, order, workers: self.recipe.own.workers })
    }

    /// Makes the batches of a part, in its order and without augmentation: the test in several views.
    fn measuring(&self, split: Split) -> Loader<ClipSamples> {
        let ClipsSection { views, crops, batch, workers, .. } = self.recipe.own;
        let (part, [views, crops]) = match split {
            Split::Validation { .. } => (&self.validation, [1, 1]),
            Split::Test => (&self.test, [views, crops]),
        };
        let preparation = ClipPreparation { augment: Augment::default(), views, crops, ..self.preparation() };
        measuring(part, preparation, batch, workers)
    }
}

/// Makes the batches of a part as a model expects them; `batch` counts views.
fn measuring(part: &ClipPart, preparation: ClipPreparation, batch: usize, workers: usize) -> Loader<ClipSamples> {
    let batch = (batch / (preparation.views * preparation.crops)).max(1);
    let order = Order { samples: part.len(), batch, repeats: 1, seed: None, rank: 0, ranks: 1 };
    Loader { samples: ClipSamples { part: part.clone(), preparation, seed: None }, order, workers }
}

/// What a model of video is measured on.
#[derive(Clone, Copy, Debug)]
pub struct ClipData<'a> {
    /// A dataset, as recipes name it.
    pub name: &'a str,
    pub part: Part,
    /// Whether the model was trained on it, so that only the test part is new to it.
    pub is_own: bool,
    /// Clips at a time.
    pub batch: usize,
    /// Views in time, and parts of a frame in each of them.
    pub views: [usize; 2],
}

/// Measures a model on data whose classes it knows, by their names.
///
/// # Errors
/// When there is no such data, or it has a class that the model does not know.
pub fn evaluate_video(
    video: &LoadedVideo,
    data: &ClipData,
    device: &Device,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<EvalReport, Error> {
    let (dataset, measured_on) = if data.is_own || data.part != Part::Test {
        (clip::open(data.name, data.part)?, data.part.to_string())
    } else {
        let parts = clip::open_parts(data.name)?;
        // a fifth of other data is the test only because something must be
        if matches!(parts.origins.test, Origin::Own(_)) {
            (parts.test, data.part.to_string())
        } else {
            (clip::open(data.name, Part::All)?, "all: the data has no parts".to_string())
        }
    };
    let part = ClipPart::first_per_class(dataset, 0);
    if part.is_empty() {
        return Err(no_part(data.part, "is not in the data"));
    }
    let evaluation = measure_on(video, &part, data, device, watch)?;
    let names = video.labels.clone().unwrap_or_else(|| part.dataset.classes().to_vec());
    Ok(measure::report(&evaluation, &names, &measured_on))
}

/// A trained model on a part of other data: its own preparation, classes by their names.
fn measure_on(
    video: &LoadedVideo,
    part: &ClipPart,
    data: &ClipData,
    device: &Device,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<ClassificationMetrics, Error> {
    let LoadedVideo { name, model, config, preprocess, labels, sampling, .. } = video;
    let classes = in_model(name, config.classes(), labels.as_deref(), part.dataset.classes())?;
    let [views, crops] = data.views;
    let preparation = ClipPreparation { views, crops, ..ClipPreparation::of(config, *preprocess, *sampling) };
    let loader = measuring(part, preparation, data.batch, 1);
    measure::evaluate_classes(model, &loader, |class| classes[class], device, &mut |done| watch(done, part.len()))
}

/// The class of a model for each class of data: by their names where it has any, else in their order.
fn in_model(name: &str, classes: usize, labels: Option<&[String]>, own: &[String]) -> Result<Vec<usize>, Error> {
    let by_name: Option<Vec<usize>> = own.iter().map(|class| labels::find(class, labels?)).collect();
    match by_name {
        Some(by_name) => Ok(by_name),
        None if labels.is_none() && own.len() == classes => Ok((0..classes).collect()),
        None => {
            let unknown = own.iter().find(|class| labels.is_some_and(|labels| labels::find(class, labels).is_none()));
            let reason = match (unknown, labels) {
                (Some(unknown), Some(labels)) => format!("does not know `{unknown}`; it knows {}", labels.join(", ")),
                _ => format!("has {classes} classes, the data {}", own.len()),
            };
            Err(Error::Field { field: name.into(), reason })
        }
    }
}

fn cost(config: &VideoConfig) -> Result<ModelCost, Error> {
    Ok((&config.ledger()?).into())
}

impl Task for ClipClassification {
    const NAME: &'static str = "clips";
    const METRICS: &'static [Metric] = ClassificationMetrics::METRICS;
    const ITEMS: &'static str = "clips";

    type Section = ClipsSection;
    type Objective = ClipLoss;

    fn open(recipe: &Recipe, _: &BTreeMap<String, String>) -> Result<Self, Error> {
        Self::of(recipe)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("model.toml", self.model.config.to_toml()),
            ("preprocess.toml", toml::to_string(&self.model.preprocess).expect("plain data")),
            ("sampling.toml", self.model.sampling.to_toml()),
            ("classes.txt", self.train.dataset.classes().join("\n") + "\n"),
        ]
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let classes = self.train.dataset.classes().join(", ");
        [("training clips", self.train.len().to_string()), ("classes", classes)].into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(ClipLoss, VideoModel), Error> {
        let Common { seed, weights: ref address, .. } = self.recipe.common;
        device.seed(seed);
        let device = device.clone().autodiff();
        let model = match address.as_ref().filter(|_| weights) {
            Some(address) => weights::begin_video(&self.model.config, address, &device)?,
            None => self.model.config.init(&device)?,
        };
        Ok((ClipLoss::new(&self.recipe, &device), model))
    }

    fn epoch_steps(&self, ranks: usize) -> Result<usize, Error> {
        self.training().epoch_steps(ranks)
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, ClipBatch> {
        self.training().steps(self.learning(share), epoch, first)
    }

    fn measure(
        &self,
        model: &VideoModel,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let due = split.is_due(self.recipe.own.measure_every, self.recipe.common.epochs);
        let loader = self.measuring(split);
        let clips = loader.samples.part.len();
        if clips == 0 || !due {
            return Ok(None);
        }
        let evaluation = evaluate(model, &loader, device, &mut |done| watch(done, clips))?;
        let findings = match split {
            Split::Validation { .. } => Findings::default(),
            Split::Test => findings(&evaluation, self.train.dataset.classes()),
        };
        Ok(Some(Measured { values: evaluation.values(), findings }))
    }

    /// On any data whose classes the run knows, by their names.
    fn evaluate(
        recipe: &Recipe,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let source = weights::resolve_video(&request.folder.display().to_string(), &mut |_| {})?;
        let ClipsSection { views, crops, batch, .. } = recipe.own;
        let views = if request.part == Part::Test { [views, crops] } else { [1, 1] };
        let is_own = request.data == recipe.common.data;
        let data = ClipData { name: request.data, part: request.part, is_own, batch, views };
        evaluate_video(&source.load(device)?, &data, device, watch)
    }

    fn named_model(name: &str, progress: &mut dyn FnMut(Progress)) -> Result<Option<Box<dyn NamedModel>>, Error> {
        if !weights::is_video(name) {
            return Ok(None);
        }
        Ok(Some(Box::new(weights::resolve_video(name, progress)?)))
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        cost(&self.model.config)
    }

    /// Clips are prepared as the model wants them; its classes are matched with those of the data.
    fn measure_named(&self, name: &str, device: &Device) -> Result<NamedResult, Error> {
        let source = weights::resolve_video(name, &mut |_| {})?;
        if source.is_fresh() {
            return Err(Error::config("models", format!("`{name}` has no weights; `{name}=WEIGHTS` names them")));
        }
        let video = source.load(device)?;
        let ClipsSection { views, crops, batch, .. } = self.recipe.own;
        let data =
            ClipData { name: &self.recipe.common.data, part: Part::Test, is_own: true, batch, views: [views, crops] };
        let evaluation = measure_on(&video, &self.test, &data, device, &mut |_, _| {})?;
        Ok(NamedResult { values: evaluation.values(), cost: cost(&video.config)? })
    }

    fn facts(&self) -> Vec<(String, String)> {
        let parameters = self.cost().map(|cost| cost.parameters.to_string());
        let validation = self.recipe.common.validation.fact(self.validation.len().to_string(), "clips");
        let memory = training_bytes(&self.model.config, &self.recipe).map(|bytes| format!("about {} MB", bytes >> 20));
        let facts = [
            ("parameters", parameters.unwrap_or_default()),
            ("memory", memory.unwrap_or_default()),
            ("training clips", self.train.len().to_string()),
            ("validation clips", validation),
            ("test clips", self.test.len().to_string()),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

#[cfg(test)]
mod tests;
