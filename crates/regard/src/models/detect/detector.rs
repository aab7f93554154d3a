//! Any detector. A family is one file and one line in `detectors!`.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{DetectionLosses, detr, faster_rcnn, retinanet};
use crate::boxes::RandomSampler;
use crate::cost::{Costed, Ledger};
use crate::data::{Detection, DetectionPreprocess, Images, Object};
use crate::models::config;
use crate::models::limits::check_parameters;
use crate::pass::DropoutKey;
use crate::{Error, Pass};

/// A named configuration of a detector.
#[derive(Clone, Copy, Debug)]
pub struct DetectorPreset<C> {
    /// Its name for users.
    pub name: &'static str,
    /// Its source, such as `arXiv:2005.12872`.
    pub paper: &'static str,
    pub preprocess: DetectionPreprocess,
    pub config: fn() -> C,
}

/// A preset of any family.
#[derive(Clone, Debug)]
pub struct AnyDetectorPreset {
    pub name: &'static str,
    pub paper: &'static str,
    pub preprocess: DetectionPreprocess,
    pub config: DetectorConfig,
}

/// The divisors of a detector's losses: counts of a step, over all processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossCounts {
    pub pictures: f64,
    /// Objects to learn.
    pub objects: f64,
    /// Objects that are matched: per picture at most the number of queries.
    pub matched: f64,
}

impl LossCounts {
    /// How many counts there are.
    pub const COUNT: usize = 3;

    /// In the order of [`DetectorConfig::counts`].
    ///
    /// # Panics
    /// When there are more or fewer.
    #[must_use]
    pub fn of(counts: &[f64]) -> Self {
        let [pictures, objects, matched] = *counts else { panic!("a detector has {} counts", Self::COUNT) };
        Self { pictures, objects, matched }
    }
}

/// The seed of a detector's random choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossDraw {
    pub seed: u64,
    /// Differs for every batch of a run.
    pub step: u64,
}

/// A loss with its named parts.
#[derive(Clone, Debug)]
pub struct DetectorLosses {
    /// The loss to differentiate.
    pub sum: Tensor<1>,
    /// In the order of [`DetectorConfig::loss_parts`].
    pub parts: Vec<(&'static str, Tensor<1>)>,
}

impl DetectorLosses {
    /// From parts that are summed over the pictures of a batch.
    fn per_picture(losses: DetectionLosses, counts: LossCounts) -> Self {
        let divide = |loss: Tensor<1>| loss / counts.pictures as f32;
        let sum = divide(losses.sum());
        Self { sum, parts: losses.parts.into_iter().map(|(name, part)| (name, divide(part))).collect() }
    }
}

/// The interface of a family of detectors.
pub trait DetectorFamily: Module + Costed {
    /// Names of the parts of its loss.
    const LOSS_PARTS: &'static [&'static str];

    /// The prefix of the trunk's parameters.
    const TRUNK: &'static str;

    /// Boxes of each picture, best first.
    fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>>;

    /// The loss, divided by the counts of the whole step.
    ///
    /// # Errors
    /// When the outputs cannot be matched with the objects, for example if costs are not finite.
    fn losses(
        &self,
        images: &Images,
        objects: &[Vec<Object>],
        counts: LossCounts,
        draw: LossDraw,
    ) -> Result<DetectorLosses, Error>;
}

/// Defines the enums over all families, so that adding a family is one line and no match can be forgotten.
macro_rules! detectors {
    ($($variant:ident $name:literal $module:ident $config:ident $model:ident;)*) => {
        /// The configuration of any detector: in TOML, `model = "detr"` and its fields.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "model")]
        #[allow(clippy::large_enum_variant)] // there is one of them, not an array
        pub enum DetectorConfig {
            $(#[serde(rename = $name)] $variant($module::$config),)*
        }

        /// Any detector, ready to run.
        #[derive(Module, Debug)]
        #[allow(clippy::large_enum_variant)] // there is one of them, not an array
        pub enum Detector {
            $($variant($module::$model),)*
        }

        /// The values of `model = ".."`.
        const FAMILIES: &[&str] = &[$($name),*];

        impl DetectorConfig {
            /// The detector with random parameters, initialised on first use.
            ///
            /// # Errors
            /// When a field is out of range; the error names it.
            pub fn init(&self, device: &Device) -> Result<Detector, Error> {
                match self {
                    $(Self::$variant(config) => {
                        config.init(device).and_then(check_parameters).map(Detector::$variant)
                    })*
                }
            }

            /// Rows and columns of a typical picture.
            #[must_use]
            pub const fn image(&self) -> [usize; 2] {
                match self {
                    $(Self::$variant(config) => config.image,)*
                }
            }

            /// Number of classes, without a background.
            #[must_use]
            pub const fn classes(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.classes,)*
                }
            }

            /// The names of the parts of the loss.
            #[must_use]
            pub const fn loss_parts(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant(_) => <$module::$model as DetectorFamily>::LOSS_PARTS,)*
                }
            }
        }

        impl Detector {
            /// Boxes of each picture, best first.
            pub fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
                match self {
                    $(Self::$variant(model) => DetectorFamily::detect(model, images, pass),)*
                }
            }

            /// The loss of pictures and the objects in them, divided by the counts of the whole step.
            ///
            /// # Errors
            /// When the outputs cannot be matched with the objects, for example if costs are not finite.
            pub fn losses(
                &self,
                images: &Images,
                objects: &[Vec<Object>],
                counts: LossCounts,
                draw: LossDraw,
            ) -> Result<DetectorLosses, Error> {
                match self {
                    $(Self::$variant(model) => DetectorFamily::losses(model, images, objects, counts, draw),)*
                }
            }

            /// The prefix of the trunk's parameters.
            #[must_use]
            pub const fn trunk_prefix(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => <$module::$model as DetectorFamily>::TRUNK,)*
                }
            }
        }

        impl Costed for Detector {
            fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
                match self {
                    $(Self::$variant(model) => model.cost(shape, ledger),)*
                }
            }
        }

        /// Every preset, family by family.
        #[must_use]
        pub fn presets() -> Vec<AnyDetectorPreset> {
            let mut all = Vec::new();
            $(all.extend($module::PRESETS.iter().map(|preset| AnyDetectorPreset {
                name: preset.name,
                paper: preset.paper,
                preprocess: preset.preprocess,
                config: DetectorConfig::$variant((preset.config)()),
            }));)*
            all
        }
    };
}

impl DetectorFamily for detr::Detr {
    const LOSS_PARTS: &'static [&'static str] = &["class", "box", "giou"];
    const TRUNK: &'static str = "backbone.0.body.";

    fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
        self.forward(images, pass).detections()
    }

    fn losses(
        &self,
        images: &Images,
        objects: &[Vec<Object>],
        counts: LossCounts,
        LossDraw { seed, step }: LossDraw,
    ) -> Result<DetectorLosses, Error> {
        let LossCounts { pictures, objects: all, matched } = counts;
        let output = self.forward(images, &mut Pass::with_dropout(DropoutKey { seed, step }));
        let counts = detr::DetrCounts { pictures, objects: all, matched };
        let losses = detr::DetrCriterion::default().losses(&output, objects, &counts)?;
        Ok(DetectorLosses { parts: losses.parts().into(), sum: losses.total })
    }
}

impl DetectorFamily for retinanet::RetinaNet {
    const LOSS_PARTS: &'static [&'static str] = &["class", "box"];
    const TRUNK: &'static str = "backbone.body.";

    fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
        self.detect(images, pass)
    }

    fn losses(
        &self,
        images: &Images,
        objects: &[Vec<Object>],
        counts: LossCounts,
        _: LossDraw,
    ) -> Result<DetectorLosses, Error> {
        Ok(DetectorLosses::per_picture(self.losses(images, objects, &mut Pass::silent()), counts))
    }
}

impl DetectorFamily for faster_rcnn::FasterRcnn {
    const LOSS_PARTS: &'static [&'static str] = &["objectness", "rpn_box", "class", "box"];
    const TRUNK: &'static str = "backbone.body.";

    fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
        self.detect(images, pass)
    }

    fn losses(
        &self,
        images: &Images,
        objects: &[Vec<Object>],
        counts: LossCounts,
        LossDraw { seed, step }: LossDraw,
    ) -> Result<DetectorLosses, Error> {
        let sampler = RandomSampler { seed, step };
        Ok(DetectorLosses::per_picture(self.losses(images, objects, &sampler, &mut Pass::silent()), counts))
    }
}

detectors! {
    Detr "detr" detr DetrConfig Detr;
    Retinanet "retinanet" retinanet RetinaNetConfig RetinaNet;
    FasterRcnn "faster-rcnn" faster_rcnn FasterRcnnConfig FasterRcnn;
}

config::config_methods!(DetectorConfig);

impl DetectorConfig {
    /// The family's name, as `model = ".."` has it.
    #[must_use]
    pub fn family(&self) -> String {
        let value = serde_json::to_value(self).expect("a configuration is plain data");
        value["model"].as_str().expect("the tag is text").to_string()
    }

    /// The costs for a picture of this size, without initialising parameters.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn ledger(&self, [rows, columns]: [usize; 2]) -> Result<Ledger, Error> {
        Ok(Ledger::of(&self.init(&crate::device::cpu())?, [3, rows, columns]))
    }

    /// Pictures, objects, and objects that get a query; see [`LossCounts`].
    #[must_use]
    pub fn counts(&self, pictures: &[Vec<Object>]) -> [usize; LossCounts::COUNT] {
        let most = match self {
            Self::Detr(config) => config.num_queries,
            Self::Retinanet(_) | Self::FasterRcnn(_) => usize::MAX,
        };
        let objects = pictures.iter().map(|objects| objects.iter().filter(|object| is_learned(object)).count());
        let (sum, matched) =
            objects.fold((0, 0), |(sum, matched), objects| (sum + objects, matched + objects.min(most)));
        [pictures.len(), sum, matched]
    }
}

/// Whether a detector learns an object: not a crowd, and a box with an area.
fn is_learned(object: &Object) -> bool {
    !object.crowd && object.bounds.w > 0.0 && object.bounds.h > 0.0
}

/// The preset of a name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<AnyDetectorPreset, Error> {
    config::find(presets(), name, |preset| preset.name)
}

/// A detector from a preset or a TOML file, and its preprocessing.
///
/// # Errors
/// When there is no such preset, or the file does not describe a detector.
pub fn named(name: &str) -> Result<(DetectorConfig, DetectionPreprocess), Error> {
    let path = std::path::Path::new(name);
    if path.extension().is_none_or(|ending| ending != "toml") {
        let preset = preset(name)?;
        return Ok((preset.config, preset.preprocess));
    }
    let config = DetectorConfig::from_toml(&crate::file::read_text(path)?).map_err(|error| Error::file(path, error))?;
    let beside = path.with_file_name("preprocess.toml");
    let preprocess = if beside.is_file() { DetectionPreprocess::read(&beside)? } else { usual_preprocess(&config) };
    Ok((config, preprocess))
}

/// Whether a TOML text is the configuration of a detector.
#[must_use]
pub fn is_config(text: &str) -> bool {
    config::is_of_family(text, FAMILIES)
}

/// The preprocessing of the first preset of a family.
#[must_use]
pub fn usual_preprocess(config: &DetectorConfig) -> DetectionPreprocess {
    let family = presets().into_iter().find(|preset| preset.config.family() == config.family());
    family.map_or(DetectionPreprocess::DETR, |preset| preset.preprocess)
}

/// Whether the shape of a parameter depends on the number of classes.
#[must_use]
pub fn knows_classes(name: &str) -> bool {
    const LAYERS: [&str; 4] = ["class_embed", "cls_logits", "box_predictor.cls_score", "box_predictor.bbox_pred"];
    LAYERS.iter().any(|layer| name.contains(layer))
}
