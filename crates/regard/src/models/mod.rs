//! The models: one paper, one file. Every model gives logits for pictures, records under the paths of its parameters
//! and knows its costs.

pub mod deit;
pub mod deit3;
pub mod language_model;
pub mod non_local_resnet;
pub mod regnet;
pub mod resnet;
pub mod rnn_search;
pub mod san;
pub mod sasa;
pub mod transformer;
pub mod translator;
pub mod vit;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cost::{Costed, Ledger};
use crate::data::Preprocess;
use crate::{Error, Pass, nearest};

/// A named configuration of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset<C> {
    /// What users call it.
    pub name: &'static str,
    /// Where it comes from, such as `arXiv:2010.11929`.
    pub paper: &'static str,
    /// What it expects of a picture.
    pub preprocess: Preprocess,
    /// Its configuration.
    pub config: fn() -> C,
}

/// A named configuration of a paper about text.
#[derive(Clone, Copy, Debug)]
pub struct TextPreset<C> {
    /// What users call it.
    pub name: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// Its configuration.
    pub config: fn() -> C,
}

/// Writes the enums over all families, so that a family is one line and forgetting a match is impossible.
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
        #[allow(clippy::large_enum_variant)] // there is one of them, not an array
        pub enum Model {
            $($variant($module::$model),)*
        }

        impl ModelConfig {
            /// The model with fresh parameters, which come to be when they are first used.
            ///
            /// # Errors
            /// When a field cannot work; the error names it.
            pub fn init(&self, device: &Device) -> Result<Model, Error> {
                match self {
                    $(Self::$variant(config) => config.init(device).map(Model::$variant),)*
                }
            }

            /// Rows and columns of the pictures that it is made for.
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
    /// To be compared with the label.
    pub class: Tensor<2>,
    /// Of a distillation token, to be compared with the teacher.
    pub distilled: Option<Tensor<2>>,
}

impl Heads {
    /// What inference reads: the mean of the heads.
    #[must_use]
    pub fn mean(self) -> Tensor<2> {
        match self.distilled {
            Some(distilled) => (self.class + distilled).div_scalar(2.0),
            None => self.class,
        }
    }
}

impl Model {
    /// The same as [`forward`](Self::forward) with the heads apart, as training needs them.
    pub fn forward_heads(&self, images: Tensor<4>, pass: &mut Pass) -> Heads {
        match self {
            Self::Deit(model) => model.forward_heads(images, pass),
            other => Heads { class: other.forward(images, pass), distilled: None },
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
    /// The costs of the model for its nominal picture, without making a parameter.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn ledger(&self) -> Result<Ledger, Error> {
        self.config.ledger(self.config.image())
    }
}

impl ModelConfig {
    /// The family's name, as `model = ".."` has it.
    pub fn family(&self) -> String {
        let value = serde_json::to_value(self).expect("a configuration is plain data");
        value["model"].as_str().expect("the tag is text").to_string()
    }

    /// The configuration in TOML, as [`from_toml`](Self::from_toml) reads it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is plain data")
    }

    /// Rows and columns of patches that positions are learned for; none for models without such positions.
    pub fn grid(&self) -> Option<[usize; 2]> {
        match self {
            Self::Vit(config) => Some(config.grid()),
            Self::Deit(config) => Some(config.grid()),
            Self::Deit3(config) => Some(config.grid()),
            Self::Resnet(_) | Self::Regnet(_) | Self::NonLocalResnet(_) | Self::San(_) | Self::Sasa(_) => None,
        }
    }

    /// The costs for a picture of another size.
    ///
    /// # Errors
    /// When the configuration cannot work with that size.
    pub fn ledger(&self, image: [usize; 2]) -> Result<Ledger, Error> {
        let config = self.with("image", serde_json::json!(image))?;
        let model = config.init(&crate::device::cpu())?;
        Ok(Ledger::of(&model, [self.channels(), image[0], image[1]]))
    }

    /// The same with one field changed, as `--set depth=4` does.
    ///
    /// A table changes only what it names: `relation = { pairwise = { relation = "dot" } }` keeps the position.
    ///
    /// # Errors
    /// When there is no such field (the nearest one is named) or the value does not fit.
    pub fn with(&self, field: &str, value: serde_json::Value) -> Result<Self, Error> {
        changed(self, field, value)
    }

    /// Reads a configuration in TOML.
    ///
    /// # Errors
    /// When it is not TOML, or a field is unknown, missing or does not fit.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        read_toml(text)
    }
}

/// A configuration of any kind of model with one field changed.
fn changed<C: Serialize + DeserializeOwned>(config: &C, field: &str, value: serde_json::Value) -> Result<C, Error> {
    let mut fields = serde_json::to_value(config).expect("a configuration is plain data");
    let table = fields.as_object_mut().expect("a configuration is a table");
    if !table.contains_key(field) {
        let known: Vec<&str> = table.keys().map(String::as_str).filter(|key| *key != "model").collect();
        return Err(Error::Field { field: field.into(), reason: nearest::unknown(field, &known) });
    }
    change(&mut table[field], value);
    serde_json::from_value(fields).map_err(|error| Error::Field { field: field.into(), reason: error.to_string() })
}

/// A configuration of any kind of model; an error has its line.
fn read_toml<C: DeserializeOwned>(text: &str) -> Result<C, Error> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        Error::Field { field: format!("line {line}"), reason: error.message().to_string() }
    })
}

/// Puts a value in the place of another; tables with the same keys, key by key.
fn change(old: &mut serde_json::Value, new: serde_json::Value) {
    match (old, new) {
        (serde_json::Value::Object(old), serde_json::Value::Object(new))
            if new.keys().all(|key| old.contains_key(key)) =>
        {
            for (key, value) in new {
                change(&mut old[&key], value);
            }
        }
        (old, new) => *old = new,
    }
}

/// The preset of a name.
///
/// # Errors
/// When there is none; the nearest name is told.
pub fn preset(name: &str) -> Result<AnyPreset, Error> {
    named(presets(), name, |preset| preset.name)
}

/// The one of this name, or the nearest name in an error.
fn named<P>(presets: Vec<P>, name: &str, name_of: fn(&P) -> &'static str) -> Result<P, Error> {
    let known: Vec<&str> = presets.iter().map(name_of).collect();
    let reason = nearest::unknown(name, &known);
    presets
        .into_iter()
        .find(|preset| name_of(preset) == name)
        .ok_or_else(|| Error::Field { field: name.into(), reason })
}

#[cfg(test)]
mod tests;
