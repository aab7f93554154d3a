//! Classification: a picture in, one class out.
//!
//! A sample is a picture with its class ([`Dataset`]); samples become batches of one size ([`Loader`]).

mod distill;
mod loss;
mod objective;
mod section;

pub use distill::{Distillation, DistillationKind};
pub use loss::{Loss, LossKind, SmoothingOver};
pub use objective::ClassLoss;
pub use section::ClassifySection;

use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::training_batches::TrainingBatches;
use crate::data::{Batch, Dataset, LabelledImages, Loader, Mix, Order, Part, Preparation, Preprocess, dataset, labels};
use crate::evaluate::{ClassificationMetrics, Metric};
use crate::models::{Model, ModelConfig};
use crate::report::{Figure as _, Findings, classes};
use crate::train::{self, Measured, ModelCost, NamedResult, Share, Split, Steps, Task};
use crate::weights::{self, Checkpoint, LoadOptions, LoadedModel, Upstream, WeightsFormat};
use crate::{Error, Pass};

/// Batch size of an evaluation.
const MEASURED_BATCH: usize = 100;

/// A classification recipe.
pub type Recipe = train::Recipe<ClassifySection>;

/// The classification task: the pictures and the model of a recipe.
#[derive(Clone, Debug)]
pub struct Classification {
    pub recipe: Recipe,
    pub train: Arc<dyn Dataset>,
    pub validation: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
}

impl Classification {
    /// Opens the data of a recipe and sets the number of classes of its model.
    ///
    /// # Errors
    /// When the data cannot be opened, or the model cannot be configured for it.
    pub fn of(recipe: &Recipe) -> Result<Self, Error> {
        let part = |part, most| -> Result<Arc<dyn Dataset>, Error> {
            let whole = dataset::open(&recipe.common.data, part)?;
            Ok(if most > 0 { Arc::new(dataset::take_per_class(whole, most)) } else { whole })
        };
        let [train, validation] = recipe.common.validation.parts();
        let ClassifySection { per_class, test_per_class, .. } = recipe.own;
        let train = part(train, per_class)?;
        let validation = part(validation, test_per_class)?;
        let test = part(Part::Test, test_per_class)?;
        let (config, preprocess) = recipe.model(train.classes().len())?;
        Ok(Self { recipe: recipe.clone(), train, validation, test, config, preprocess })
    }

    fn preparation(&self) -> Preparation {
        let (image, channels) = (self.config.image(), self.config.channels());
        let ClassifySection { augment, mix, .. } = &self.recipe.own;
        let (augment, seed) = (Some(augment.clone()), self.recipe.common.seed);
        Preparation { image, channels, preprocess: self.preprocess, augment, mix: *mix, seed }
    }

    fn training(&self) -> TrainingBatches<'_> {
        TrainingBatches {
            common: &self.recipe.common,
            items: "pictures",
            samples: self.train.len(),
            batch: self.recipe.own.batch,
            repeats: self.recipe.own.repeats,
        }
    }

    /// The loader of training batches; with accumulation, a batch is a part of a step.
    fn learning(&self, share: Share) -> Result<Loader<LabelledImages>, Error> {
        let order = self.training().order(share)?;
        let workers = self.recipe.own.workers;
        let samples = LabelledImages { dataset: self.train.clone(), preparation: self.preparation() };
        Ok(Loader { samples, order, workers })
    }

    /// The loader of a part's batches, in order and without augmentation.
    #[must_use]
    pub fn measuring(&self, dataset: &Arc<dyn Dataset>) -> Loader<LabelledImages> {
        let order = Order { samples: dataset.len(), batch: MEASURED_BATCH, repeats: 1, seed: None, rank: 0, ranks: 1 };
        let preparation = Preparation { augment: None, mix: Mix::default(), ..self.preparation() };
        let samples = LabelledImages { dataset: dataset.clone(), preparation };
        Loader { samples, order, workers: self.recipe.own.workers }
    }

    /// A model with random parameters or with weights.
    fn model(&self, weights: Option<&str>, device: &Device) -> Result<Model, Error> {
        device.seed(self.recipe.common.seed);
        let model = self.config.init(&device.clone().autodiff())?;
        let Some(address) = weights else { return Ok(model) };
        let (checkpoint, from) = checkpoint(address)?;
        let options = LoadOptions { grid: self.config.grid(), from, ..LoadOptions::default() };
        if let Ok(loaded) = weights::fit(model.clone(), checkpoint.clone(), &options) {
            return Ok(loaded.model);
        }
        // other classes: only the head is new; other differences are the first error
        let options = LoadOptions { new_head: Some(self.config.classes()), ..options };
        Ok(weights::fit(model, checkpoint, &options)?.model)
    }

    /// Maps each class of the data to one of a trained model: by name if it has names, otherwise in order.
    fn in_model(&self, name: &str, classes: usize, labels: Option<&[String]>) -> Result<Vec<usize>, Error> {
        let own = self.test.classes();
        let by_name: Option<Vec<usize>> = own.iter().map(|class| labels::find(class, labels?)).collect();
        match by_name {
            Some(by_name) => Ok(by_name),
            None if own.len() == classes => Ok((0..classes).collect()),
            None => {
                let reason = format!("it has {classes} classes, the data has {}", own.len());
                Err(Error::Field { field: name.into(), reason })
            }
        }
    }

    fn teacher(&self, device: &Device) -> Result<Option<Model>, Error> {
        let Some(distillation) = &self.recipe.own.distillation else { return Ok(None) };
        let classes = self.config.classes();
        let Some(address) = &distillation.weights else {
            let teacher = trained("distillation.teacher", &distillation.teacher, device)?;
            let theirs = teacher.config.classes();
            if theirs != classes {
                let reason = format!("has {theirs} classes, the student {classes}");
                return Err(Error::config("distillation.teacher", reason));
            }
            return Ok(Some(teacher.model));
        };
        let config = distillation.config()?.with("classes", serde_json::json!(classes))?;
        let path = weights::fetch(address, &mut |_| {})?;
        let options = LoadOptions { grid: config.grid(), ..LoadOptions::default() };
        Ok(Some(weights::load(config.init(device)?, &path, &options)?.model))
    }
}

/// A model by any of its names, with weights.
fn trained(field: &'static str, name: &str, device: &Device) -> Result<LoadedModel, Error> {
    let source = weights::resolve(name, &mut |_| {})?;
    if source.is_fresh() {
        return Err(Error::config(field, format!("`{name}` has no weights; `{name}=WEIGHTS` names them")));
    }
    source.load(device)
}

/// The initial weights, and the upstream of their names if known: a file, an address, or those of a model by any of
/// its names.
fn checkpoint(name: &str) -> Result<(Checkpoint, Option<Upstream>), Error> {
    if Path::new(name).is_file() || name.contains("://") || name.starts_with("hf:") {
        return Ok((weights::read(&weights::fetch(name, &mut |_| {})?)?, None));
    }
    let tensors = weights::tensors(&trained("weights", name, &crate::device::cpu())?.model);
    let checkpoint = Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() };
    Ok((checkpoint, Some(Upstream::Regard)))
}

/// Evaluates a model on the pictures of a loader.
///
/// # Errors
/// When a picture cannot be read.
pub fn evaluate(
    model: &Model,
    loader: &Loader<LabelledImages>,
    device: &Device,
    watch: &mut dyn FnMut(usize),
) -> Result<ClassificationMetrics, Error> {
    evaluate_classes(model, loader, |class| class, device, watch)
}

/// [`evaluate`] with the model's class for each class of the data.
fn evaluate_classes(
    model: &Model,
    loader: &Loader<LabelledImages>,
    in_model: impl Fn(usize) -> usize,
    device: &Device,
    watch: &mut dyn FnMut(usize),
) -> Result<ClassificationMetrics, Error> {
    let mut evaluation = ClassificationMetrics::default();
    for batch in loader.epoch(0, 0) {
        let batch = batch?;
        let labels: Vec<usize> = batch.targets.iter().map(|target| in_model(target.class)).collect();
        evaluation.add(model.forward(batch.tensor(device), &mut Pass::silent()), &labels);
        watch(evaluation.accuracy.pictures);
    }
    Ok(evaluation)
}

fn cost(config: &ModelConfig) -> Result<ModelCost, Error> {
    Ok((&config.ledger(config.image())?).into())
}

impl Task for Classification {
    const NAME: &'static str = "classify";
    const METRICS: &'static [Metric] = ClassificationMetrics::METRICS;
    const ITEMS: &'static str = "pictures";

    type Section = ClassifySection;
    type Objective = ClassLoss;

    fn open(recipe: &Recipe, _: &BTreeMap<String, String>) -> Result<Self, Error> {
        Self::of(recipe)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("model.toml", self.config.to_toml()),
            ("preprocess.toml", toml::to_string(&self.preprocess).expect("plain data")),
            ("classes.txt", self.train.classes().join("\n") + "\n"),
        ]
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let classes = self.train.classes().join(", ");
        [("training pictures", self.train.len().to_string()), ("classes", classes)].into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(ClassLoss, Model), Error> {
        let weights = self.recipe.common.weights.as_deref().filter(|_| weights);
        let teacher = self.teacher(device)?;
        Ok((ClassLoss::new(&self.recipe, teacher, device), self.model(weights, device)?))
    }

    fn epoch_steps(&self, ranks: usize) -> Result<usize, Error> {
        self.training().epoch_steps(ranks)
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, Batch> {
        self.training().steps(self.learning(share), epoch, first)
    }

    fn measure(
        &self,
        model: &Model,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let pictures = match split {
            Split::Validation { .. } => &self.validation,
            Split::Test => &self.test,
        };
        if pictures.is_empty() {
            return Ok(None);
        }
        let evaluation = evaluate(model, &self.measuring(pictures), device, &mut |done| watch(done, pictures.len()))?;
        let ClassificationMetrics { confusion, calibration, .. } = &evaluation;
        let findings = match split {
            Split::Validation { .. } => Findings::default(),
            Split::Test => Findings {
                facts: vec![("calibration error".into(), format!("{:.2} %", 100.0 * calibration.error()))],
                figures: vec![
                    ("confusion.svg", classes::confusion(confusion, self.train.classes()).drawing()),
                    ("calibration.svg", classes::calibration(calibration).drawing()),
                ],
                tables: vec![classes::table(confusion, self.train.classes())],
            },
        };
        Ok(Some(Measured { values: evaluation.values(), findings }))
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        cost(&self.config)
    }

    /// Uses the model's own preprocessing, and matches its classes with those of the data.
    fn measure_named(&self, name: &str, device: &Device) -> Result<NamedResult, Error> {
        let LoadedModel { model, config, preprocess, labels, .. } = trained("models", name, device)?;
        let imagenet = || (config.classes() == 1000).then(labels::imagenet);
        let classes = self.in_model(name, config.classes(), labels.or_else(imagenet).as_deref())?;
        let mut loader = self.measuring(&self.test);
        let preparation = &mut loader.samples.preparation;
        (preparation.image, preparation.channels, preparation.preprocess) =
            (config.image(), config.channels(), preprocess);
        let evaluation = evaluate_classes(&model, &loader, |class| classes[class], device, &mut |_| {})?;
        Ok(NamedResult { values: evaluation.values(), cost: cost(&config)? })
    }

    fn facts(&self) -> Vec<(String, String)> {
        let parameters = self.cost().map(|cost| cost.parameters.to_string());
        let validation = self.recipe.common.validation.fact(self.validation.len().to_string(), "pictures");
        let facts = [
            ("parameters", parameters.unwrap_or_default()),
            ("training pictures", self.train.len().to_string()),
            ("validation pictures", validation),
            ("test pictures", self.test.len().to_string()),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod run_tests;
