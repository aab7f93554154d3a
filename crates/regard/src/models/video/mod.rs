//! Models of video: from clips to logits. A family is one file and one line in `families!`; it records under the paths of its
//! parameters and computes its cost.

pub mod i3d;
pub mod resnet3d;
pub mod timesformer;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::config;
use super::limits::check_parameters;
use crate::cost::{Costed, Ledger};
use crate::data::clip::FrameSampling;
use crate::data::{Clips, Preprocess};
use crate::{Error, Pass, file};

/// A named configuration of a model of video.
#[derive(Clone, Copy, Debug)]
pub struct ClipPreset<C> {
    /// Its name for users.
    pub name: &'static str,
    /// Its source, such as `arXiv:2102.05095`.
    pub paper: &'static str,
    /// How each frame is prepared.
    pub preprocess: Preprocess,
    /// Which frames of a clip it sees.
    pub sampling: FrameSampling,
    pub config: fn() -> C,
}

/// Generates the enums over all families, so that a family is one line and no match arm can be forgotten.
macro_rules! families {
    ($($variant:ident $name:literal $module:ident $config:ident $model:ident;)*) => {
        /// The configuration of any model of video: in TOML, `model = "timesformer"` and its fields.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "model")]
        pub enum VideoConfig {
            $(#[serde(rename = $name)] $variant($module::$config),)*
        }

        /// Any model of video, ready to run.
        #[derive(Module, Debug)]
        #[allow(clippy::large_enum_variant)] // used one at a time, not in arrays
        pub enum VideoModel {
            $($variant($module::$model),)*
        }

        /// The values of `model = ".."`.
        const FAMILIES: &[&str] = &[$($name),*];

        impl VideoConfig {
            /// # Errors
            /// When a field is out of range; the error names it.
            pub fn validate(&self) -> Result<(), Error> {
                match self {
                    $(Self::$variant(config) => config.validate(),)*
                }
            }

            /// The model with random parameters, which are initialised on first use.
            ///
            /// # Errors
            /// When a field is out of range; the error names it.
            pub fn init(&self, device: &Device) -> Result<VideoModel, Error> {
                match self {
                    $(Self::$variant(config) => {
                        config.init(device).and_then(check_parameters).map(VideoModel::$variant)
                    })*
                }
            }

            /// The family's name, as in `model = ".."`.
            #[must_use]
            pub const fn family(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Number of frames of a clip, `T`.
            #[must_use]
            pub const fn frames(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.frames,)*
                }
            }

            /// Rows and columns of a frame.
            #[must_use]
            pub const fn image(&self) -> [usize; 2] {
                match self {
                    $(Self::$variant(config) => config.image,)*
                }
            }

            /// Channels of a frame.
            #[must_use]
            pub const fn channels(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.channels,)*
                }
            }

            /// Number of logits.
            #[must_use]
            pub const fn classes(&self) -> usize {
                match self {
                    $(Self::$variant(config) => config.classes,)*
                }
            }
        }

        impl VideoModel {
            /// `[B, C, T, H, W] -> [B, classes]`
            ///
            /// # Panics
            /// When the clips do not have the config's frames, size and channels.
            pub fn forward(&self, clips: &Clips, pass: &mut Pass) -> Tensor<2> {
                match self {
                    $(Self::$variant(model) => model.forward(clips, pass),)*
                }
            }
        }

        impl Costed for VideoModel {
            fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
                match self {
                    $(Self::$variant(model) => model.cost(shape, ledger),)*
                }
            }
        }

        /// Every preset, family by family.
        #[must_use]
        pub fn presets() -> Vec<AnyClipPreset> {
            let mut all = Vec::new();
            $(all.extend($module::PRESETS.iter().map(|preset| AnyClipPreset {
                name: preset.name,
                paper: preset.paper,
                preprocess: preset.preprocess,
                sampling: preset.sampling,
                config: VideoConfig::$variant((preset.config)()),
            }));)*
            all
        }
    };
}

families! {
    Timesformer "timesformer" timesformer TimesformerConfig Timesformer;
    I3d "i3d" i3d I3dConfig I3d;
    Resnet3d "resnet3d" resnet3d ResNet3dConfig ResNet3d;
}

/// A preset of any family.
#[derive(Clone, Debug)]
pub struct AnyClipPreset {
    pub name: &'static str,
    pub paper: &'static str,
    pub preprocess: Preprocess,
    pub sampling: FrameSampling,
    pub config: VideoConfig,
}

config::config_methods!(VideoConfig);

impl VideoConfig {
    /// The cost of one clip, without initialising parameters.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn ledger(&self) -> Result<Ledger, Error> {
        let [rows, columns] = self.image();
        let model = self.init(&crate::device::cpu())?;
        Ok(Ledger::of(&model, [self.channels(), self.frames(), rows, columns]))
    }
}

/// A model as recipes name it: a preset, or a TOML file and the files next to it in a run folder.
///
/// # Errors
/// When there is no such preset, or the file is not of a model of video.
pub fn named(name: &str) -> Result<AnyClipPreset, Error> {
    let path = std::path::Path::new(name);
    if path.extension().is_none_or(|ending| ending != "toml") {
        return preset(name);
    }
    let config = VideoConfig::from_toml(&file::read_text(path)?).map_err(|error| Error::file(path, error))?;
    // defaults are those of the family's first preset
    let family = presets().into_iter().find(|preset| preset.config.family() == config.family());
    let mut named = family.ok_or_else(|| Error::file(path, "a family without a preset"))?;
    let [preprocess, sampling] = ["preprocess.toml", "sampling.toml"].map(|file| path.with_file_name(file));
    if preprocess.is_file() {
        named.preprocess = Preprocess::read(&preprocess)?;
    }
    if sampling.is_file() {
        named.sampling = FrameSampling::read(&sampling)?;
    }
    Ok(AnyClipPreset { config, ..named })
}

/// The preset with this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<AnyClipPreset, Error> {
    config::find(presets(), name, |preset| preset.name)
}

/// Whether a text is the configuration of a model of video, valid or not.
#[must_use]
pub fn is_config(text: &str) -> bool {
    config::is_of_family(text, FAMILIES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use serde_json::json;

    #[test]
    fn every_preset_is_read_back_from_toml_and_keeps_its_family() {
        for preset in presets() {
            let text = preset.config.to_toml();
            assert!(is_config(&text), "{text}");
            assert_eq!(VideoConfig::from_toml(&text).unwrap(), preset.config);
            assert_eq!(super::preset(preset.name).unwrap().config.family(), preset.config.family());
        }
        assert!(!is_config("model = 'vit'") && !is_config("model = 3"));
    }

    #[test]
    fn small_presets_give_finite_logits_of_any_number_of_classes() {
        for preset in presets().iter().filter(|preset| preset.paper == "ours") {
            let config = preset.config.with("classes", json!(3)).unwrap();
            let [rows, columns] = config.image();
            let pixels = crate::testing::random([2, config.channels(), config.frames(), rows, columns], 1);
            let logits = config.init(&cpu()).unwrap().forward(&Clips { pixels }, &mut Pass::silent());
            assert_eq!(logits.dims(), [2, 3], "{}", preset.name);
            assert!(crate::testing::values(&logits).iter().all(|logit| logit.is_finite()), "{}", preset.name);
            assert!(config.ledger().unwrap().parameters() > 0);
        }
    }

    #[test]
    fn a_file_has_the_preparation_beside_it_or_that_of_its_family() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let own = preset("timesformer-nano").unwrap();
        let config = own.config.with("depth", json!(2)).unwrap();
        std::fs::write(&path, config.to_toml()).unwrap();
        let name = path.display().to_string();
        let found = named(&name).unwrap();
        assert_eq!((found.config.clone(), found.preprocess, found.sampling), (config, own.preprocess, own.sampling));
        let sampling = FrameSampling::Dense { rate: 3 };
        std::fs::write(path.with_file_name("sampling.toml"), sampling.to_toml()).unwrap();
        std::fs::write(path.with_file_name("preprocess.toml"), toml::to_string(&Preprocess::VIT).unwrap()).unwrap();
        let found = named(&name).unwrap();
        assert_eq!((found.preprocess, found.sampling), (Preprocess::VIT, sampling));
    }

    #[test]
    fn a_wrong_name_or_field_gets_the_nearest() {
        assert!(preset("timesformer-nanno").unwrap_err().to_string().contains("`timesformer-nano`"));
        let config = preset("timesformer-nano").unwrap().config;
        assert!(config.with("frame", json!(4)).unwrap_err().to_string().contains("`frames`"));
        let error = config.with("heads", json!(5)).unwrap().init(&cpu()).unwrap_err().to_string();
        assert!(error.contains("`heads`"), "{error}");
    }
}
