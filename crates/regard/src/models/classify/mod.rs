//! Classifiers: from pictures to logits. A family is one file and one line in `families!`; it records under the paths of
//! its parameters and computes its cost.

mod backbone;
pub mod deit;
pub mod deit3;
mod inspect;
pub mod non_local_resnet;
pub mod regnet;
pub mod resnet;
pub mod san;
pub mod sasa;
mod trunk;
pub mod vit;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::config;
use super::limits::check_parameters;
use crate::cost::{Costed, Ledger};
use crate::data::Preprocess;
use crate::layers::packed::PackedForm;
use crate::{Error, Pass};

pub use backbone::{Backbone, FeatureMap, StagedBackbone};
pub use inspect::{FamilyConfig, ImageTransformer, Inspect};
pub use trunk::{Trunk, TrunkConfig, TrunkStage};

/// A named configuration of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset<C> {
    /// Its name.
    pub name: &'static str,
    /// Its source, such as `arXiv:2010.11929`.
    pub paper: &'static str,
    /// Its preprocessing.
    pub preprocess: Preprocess,
    /// Its configuration.
    pub config: fn() -> C,
}

/// The packed form of a family for inference; by default none.
pub(crate) trait Packing {
    /// Its packed form.
    fn packed_form(&self) -> PackedForm<'_> {
        PackedForm::None
    }
}

/// Generates the enums over all families, so that a family is one line and no match arm can be forgotten.
macro_rules! families {
    ($($variant:ident $module:ident $config:ident $model:ident;)*) => {
        /// The configuration of any model: in TOML, `model = "vit"` and its fields.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "model", rename_all = "kebab-case")]
        pub enum ModelConfig {
            $($variant($module::$config),)*
        }

        /// Any model, ready to run.
        #[derive(Module, Debug)]
        #[allow(clippy::large_enum_variant)] // used one at a time, not in arrays
        pub enum Model {
            $($variant($module::$model),)*
        }

        impl ModelConfig {
            /// The model with random parameters, which are initialised on first use.
            ///
            /// # Errors
            /// When a field is out of range; the error names it.
            pub fn init(&self, device: &Device) -> Result<Model, Error> {
                match self {
                    $(Self::$variant(config) => config.init(device).and_then(check_parameters).map(Model::$variant),)*
                }
            }

            /// Rows and columns of the nominal picture.
            pub fn image(&self) -> [usize; 2] {
                match self {
                    $(Self::$variant(config) => config.image,)*
                }
            }

            /// Channels of a picture.
            pub fn channels(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.channels,)*
                }
            }

            /// Rows and columns of patches that positions are learned for; none for models without learned positions.
            pub fn grid(&self) -> Option<[usize; 2]> {
                match self {
                    $(Self::$variant(config) => config.position_grid(),)*
                }
            }

            /// Number of logits.
            pub fn classes(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.classes,)*
                }
            }
        }

        impl Model {
            /// `[B, C, H, W] -> [B, classes]`
            pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
                match self {
                    $(Self::$variant(model) => model.forward(images, pass),)*
                }
            }
        }

        impl Model {
            /// The model's [`Inspect`] implementation.
            pub fn inspect(&self) -> &dyn Inspect {
                match self {
                    $(Self::$variant(model) => model,)*
                }
            }

            /// The model as a mutable transformer over patches; none if it is not one.
            pub fn as_transformer_mut(&mut self) -> Option<&mut dyn ImageTransformer> {
                match self {
                    $(Self::$variant(model) => model.as_transformer_mut(),)*
                }
            }
        }

        impl Model {
            /// The model's packed form.
            pub(crate) fn packed_form(&self) -> PackedForm<'_> {
                match self {
                    $(Self::$variant(model) => model.packed_form(),)*
                }
            }
        }

        impl Costed for Model {
            fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
                match self {
                    $(Self::$variant(model) => model.cost(shape, ledger),)*
                }
            }
        }

        /// Every preset, family by family.
        pub fn presets() -> Vec<AnyPreset> {
            let mut all = Vec::new();
            $(all.extend($module::PRESETS.iter().map(|preset| AnyPreset {
                name: preset.name,
                paper: preset.paper,
                preprocess: preset.preprocess,
                config: ModelConfig::$variant((preset.config)()),
            }));)*
            all
        }
    };
}

families! {
    Vit vit VitConfig Vit;
    Deit deit DeitConfig Deit;
    Deit3 deit3 Deit3Config Deit3;
    Resnet resnet ResNetConfig ResNet;
    Regnet regnet RegNetConfig RegNet;
    NonLocalResnet non_local_resnet NonLocalResNetConfig NonLocalResNet;
    San san SanConfig San;
    Sasa sasa SasaConfig Sasa;
}

/// The logits of a model's heads, each `[B, classes]`.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Trained with the label.
    pub class: Tensor<2>,
    /// Of the distillation token, trained with the teacher.
    pub distilled: Option<Tensor<2>>,
}

impl Heads {
    /// The logits of a model with one head.
    #[must_use]
    pub const fn single(class: Tensor<2>) -> Self {
        Self { class, distilled: None }
    }

    /// The mean of the heads, for inference.
    #[must_use]
    pub fn mean(self) -> Tensor<2> {
        match self.distilled {
            Some(distilled) => (self.class + distilled).div_scalar(2.0),
            None => self.class,
        }
    }
}

impl Model {
    /// The model as a transformer over patches, if it is one.
    pub fn as_transformer(&self) -> Option<&dyn ImageTransformer> {
        self.inspect().as_transformer()
    }

    /// [`forward`](Self::forward) with separate heads, for training.
    pub fn forward_heads(&self, images: Tensor<4>, pass: &mut Pass) -> Heads {
        match self.as_transformer() {
            Some(transformer) => transformer.forward_heads(images, pass),
            None => Heads::single(self.forward(images, pass)),
        }
    }
}

/// A preset of any family.
#[derive(Clone, Debug)]
pub struct AnyPreset {
    pub name: &'static str,
    pub paper: &'static str,
    pub preprocess: Preprocess,
    pub config: ModelConfig,
}

impl AnyPreset {
    /// The cost for the nominal picture, without initialising parameters.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn ledger(&self) -> Result<Ledger, Error> {
        self.config.ledger(self.config.image())
    }
}

config::config_methods!(ModelConfig);

impl ModelConfig {
    /// The family's name, as in `model = ".."`.
    pub fn family(&self) -> String {
        let value = serde_json::to_value(self).expect("a configuration is plain data");
        value["model"].as_str().expect("the tag is text").to_string()
    }

    /// The cost for a picture of this size.
    ///
    /// # Errors
    /// When the configuration is invalid for that size.
    pub fn ledger(&self, image: [usize; 2]) -> Result<Ledger, Error> {
        let config = self.with("image", serde_json::json!(image))?;
        let model = config.init(&crate::device::cpu())?;
        Ok(Ledger::of(&model, [self.channels(), image[0], image[1]]))
    }
}

/// The preset with this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<AnyPreset, Error> {
    config::find(presets(), name, |preset| preset.name)
}

#[cfg(test)]
mod tests;
