//! The families in one enum.

use burn::module::Module;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::answer::AnswerHead;
use super::input::VisionLanguageInput;
use super::output::VisionLanguageOutput;
use super::{lxmert, uniter, video_bert, vilbert, visual_bert};
use crate::cost::{Costed, Ledger};
use crate::models::config;
use crate::{Error, Pass};

/// The configuration of a model of vision and language: in TOML, `model = "uniter"` and its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum VisionLanguageConfig {
    VisualBert(visual_bert::VisualBertConfig),
    Uniter(uniter::UniterConfig),
    Vilbert(vilbert::VilbertConfig),
    Lxmert(lxmert::LxmertConfig),
    VideoBert(video_bert::VideoBertConfig),
}

/// A model of vision and language.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // used one at a time, not in arrays
pub enum VisionLanguageModel {
    VisualBert(visual_bert::VisualBert),
    Uniter(uniter::Uniter),
    Vilbert(vilbert::Vilbert),
    Lxmert(lxmert::Lxmert),
    VideoBert(video_bert::VideoBert),
}

/// The same expression for every family.
macro_rules! each {
    ($kind:ident, $value:expr, $inner:ident => $then:expr) => {
        match $value {
            $kind::VisualBert($inner) => $then,
            $kind::Uniter($inner) => $then,
            $kind::Vilbert($inner) => $then,
            $kind::Lxmert($inner) => $then,
            $kind::VideoBert($inner) => $then,
        }
    };
}

impl VisionLanguageConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<VisionLanguageModel, Error> {
        Ok(match self {
            Self::VisualBert(config) => VisionLanguageModel::VisualBert(config.init(device)?),
            Self::Uniter(config) => VisionLanguageModel::Uniter(config.init(device)?),
            Self::Vilbert(config) => VisionLanguageModel::Vilbert(config.init(device)?),
            Self::Lxmert(config) => VisionLanguageModel::Lxmert(config.init(device)?),
            Self::VideoBert(config) => VisionLanguageModel::VideoBert(config.init(device)?),
        })
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        each!(Self, self, config => config.validate())
    }

    /// The name of the family, as in TOML.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        match self {
            Self::VisualBert(_) => "visual-bert",
            Self::Uniter(_) => "uniter",
            Self::Vilbert(_) => "vilbert",
            Self::Lxmert(_) => "lxmert",
            Self::VideoBert(_) => "video-bert",
        }
    }

    /// Number of tokens, video tokens included.
    #[must_use]
    pub const fn vocabulary(&self) -> usize {
        match self {
            Self::VisualBert(config) => config.vocabulary,
            Self::Uniter(config) => config.vocabulary,
            Self::Vilbert(config) => config.vocabulary,
            Self::Lxmert(config) => config.vocabulary,
            Self::VideoBert(config) => config.vocabulary(),
        }
    }

    /// Most tokens of a text; of a video too, if it is tokens.
    #[must_use]
    pub const fn positions(&self) -> usize {
        each!(Self, self, config => config.positions)
    }

    /// Features of a region; none for a model of videos.
    #[must_use]
    pub const fn features(&self) -> Option<usize> {
        match self {
            Self::VisualBert(config) => Some(config.features),
            Self::Uniter(config) => Some(config.features),
            Self::Vilbert(config) => Some(config.features),
            Self::Lxmert(config) => Some(config.features),
            Self::VideoBert(_) => None,
        }
    }

    /// Classes of regions; none without a head for them.
    #[must_use]
    pub const fn classes(&self) -> Option<usize> {
        match self {
            Self::Uniter(config) if config.pretraining => Some(config.classes),
            Self::Vilbert(config) if config.pretraining => Some(config.classes),
            Self::Lxmert(config) if config.pretraining => Some(config.classes),
            _ => None,
        }
    }

    /// What it answers.
    #[must_use]
    pub const fn answer(&self) -> AnswerHead {
        match self {
            Self::VisualBert(config) => config.answer,
            Self::Uniter(config) => config.answer,
            Self::Vilbert(config) => config.answer,
            Self::Lxmert(config) => config.answer,
            Self::VideoBert(_) => AnswerHead::None,
        }
    }

    /// The class of [`matching`](VisionLanguageOutput::matching) that says that text and picture belong together.
    #[must_use]
    pub const fn matched_class(&self) -> u32 {
        match self {
            Self::Uniter(_) | Self::Lxmert(_) => 1,
            // as in BERT's next sentence
            Self::VisualBert(_) | Self::Vilbert(_) | Self::VideoBert(_) => 0,
        }
    }

    /// Whether a question must end with `[MASK] [SEP]`, because the answer is read there.
    #[must_use]
    pub const fn answers_at_mask(&self) -> bool {
        matches!(self, Self::VisualBert(config) if matches!(config.answer, AnswerHead::Question { .. }))
    }

    /// Whether it puts the whole picture before its regions.
    #[must_use]
    pub const fn sees_whole_picture_first(&self) -> bool {
        matches!(self, Self::Vilbert(_))
    }

    /// Whether it reads texts without a picture.
    #[must_use]
    pub const fn reads_text_alone(&self) -> bool {
        matches!(self, Self::VisualBert(_) | Self::Uniter(_) | Self::VideoBert(_))
    }

    /// Changes one field.
    ///
    /// # Errors
    /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
    pub fn with(&self, field: &str, value: serde_json::Value) -> Result<Self, Error> {
        config::with_field(self, field, value)
    }

    /// The configuration in TOML, as [`from_toml`](Self::from_toml) reads it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration is plain data")
    }

    /// # Errors
    /// When it is not TOML, or a field is unknown, missing or of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        config::from_toml(text)
    }
}

impl VisionLanguageModel {
    /// Hidden states and the outputs that are wanted.
    ///
    /// # Panics
    /// When sizes do not fit the config, a text has more tokens than there are positions, or what the family needs is missing.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        each!(Self, self, model => model.forward(input, pass))
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        each!(Self, self, model => model.limit())
    }
}

impl Costed for VisionLanguageModel {
    /// `[N, R]`: so many words and regions, or video tokens.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        each!(Self, self, model => model.cost(shape, ledger))
    }
}
