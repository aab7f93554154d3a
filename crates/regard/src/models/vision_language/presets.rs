//! Published sizes, and small ones for scenes of garments.

use super::answer::AnswerHead;
use super::lxmert::LxmertConfig;
use super::model::VisionLanguageConfig;
use super::uniter::UniterConfig;
use super::video_bert::VideoBertConfig;
use super::vilbert::VilbertConfig;
use super::visual_bert::VisualBertConfig;
use crate::Error;
use crate::models::config;

/// A named configuration.
#[derive(Clone, Copy, Debug)]
pub struct VisionLanguagePreset {
    pub name: &'static str,
    pub paper: &'static str,
    pub config: fn() -> VisionLanguageConfig,
}

/// Words of the small models, special tokens included.
const FEW_WORDS: usize = 80;
/// Numbers of a region of the small models: 16 x 16 pixels of three colours.
const FEW_FEATURES: usize = 768;
const FEW_ANSWERS: AnswerHead = AnswerHead::Question { answers: 32 };

impl VisualBertConfig {
    /// For COCO, with 2048 features a region.
    #[must_use]
    pub const fn base() -> Self {
        Self {
            vocabulary: 30_522,
            positions: 512,
            types: 2,
            layers: 12,
            dim: 768,
            heads: 12,
            inner: 3072,
            features: 2048,
            region_type: 1,
            dropout: 0.1,
            epsilon: 1e-12,
            pretraining: true,
            answer: AnswerHead::None,
        }
    }

    #[must_use]
    pub const fn nano() -> Self {
        Self {
            vocabulary: FEW_WORDS,
            positions: 48,
            layers: 4,
            dim: 96,
            heads: 4,
            inner: 192,
            features: FEW_FEATURES,
            answer: FEW_ANSWERS,
            ..Self::base()
        }
    }
}

impl UniterConfig {
    #[must_use]
    pub const fn base() -> Self {
        Self {
            vocabulary: 28_996,
            positions: 512,
            types: 2,
            layers: 12,
            dim: 768,
            heads: 12,
            inner: 3072,
            features: 2048,
            classes: 1601,
            dropout: 0.1,
            epsilon: 1e-12,
            pretraining: true,
            answer: AnswerHead::None,
        }
    }

    #[must_use]
    pub const fn large() -> Self {
        Self { layers: 24, dim: 1024, heads: 16, inner: 4096, ..Self::base() }
    }

    #[must_use]
    pub const fn nano() -> Self {
        Self {
            vocabulary: FEW_WORDS,
            positions: 48,
            layers: 4,
            dim: 96,
            heads: 4,
            inner: 192,
            features: FEW_FEATURES,
            classes: 16,
            answer: FEW_ANSWERS,
            ..Self::base()
        }
    }
}

impl VilbertConfig {
    #[must_use]
    pub fn base() -> Self {
        Self {
            vocabulary: 30_522,
            positions: 512,
            types: 2,
            layers: 12,
            dim: 768,
            heads: 12,
            inner: 3072,
            region_layers: 6,
            region_dim: 1024,
            region_heads: 8,
            region_inner: 1024,
            joint_dim: 1024,
            joint_heads: 8,
            text_places: (6..12).collect(),
            region_places: (0..6).collect(),
            features: 2048,
            classes: 1601,
            dropout: 0.1,
            epsilon: 1e-12,
            pretraining: true,
            answer: AnswerHead::None,
        }
    }

    #[must_use]
    pub fn nano() -> Self {
        Self {
            vocabulary: FEW_WORDS,
            positions: 48,
            layers: 3,
            dim: 64,
            heads: 4,
            inner: 128,
            region_layers: 2,
            region_dim: 64,
            region_heads: 4,
            region_inner: 128,
            joint_dim: 64,
            joint_heads: 4,
            text_places: vec![1, 2],
            region_places: vec![0, 1],
            features: FEW_FEATURES,
            classes: 16,
            answer: FEW_ANSWERS,
            ..Self::base()
        }
    }
}

impl LxmertConfig {
    #[must_use]
    pub const fn base() -> Self {
        Self {
            vocabulary: 30_522,
            positions: 512,
            types: 2,
            layers: 9,
            region_layers: 5,
            cross_layers: 5,
            dim: 768,
            heads: 12,
            inner: 3072,
            features: 2048,
            classes: 1600,
            attributes: 400,
            dropout: 0.1,
            epsilon: 1e-12,
            pretraining: true,
            answer: AnswerHead::Question { answers: 9500 },
        }
    }

    #[must_use]
    pub const fn nano() -> Self {
        Self {
            vocabulary: FEW_WORDS,
            positions: 48,
            layers: 2,
            region_layers: 1,
            cross_layers: 2,
            dim: 64,
            heads: 4,
            inner: 128,
            features: FEW_FEATURES,
            classes: 16,
            attributes: 16,
            answer: FEW_ANSWERS,
            ..Self::base()
        }
    }
}

impl VideoBertConfig {
    /// BERT's words, an unused one of which is `[>]`, and 12 ^ 4 video tokens.
    #[must_use]
    pub const fn large() -> Self {
        Self {
            words: 30_522,
            branches: 12,
            levels: 4,
            positions: 512,
            types: 2,
            layers: 24,
            dim: 1024,
            heads: 16,
            inner: 4096,
            dropout: 0.1,
            epsilon: 1e-12,
        }
    }

    #[must_use]
    pub const fn nano() -> Self {
        Self {
            words: FEW_WORDS,
            branches: 4,
            levels: 3,
            positions: 64,
            layers: 4,
            dim: 96,
            heads: 4,
            inner: 192,
            ..Self::large()
        }
    }
}

const fn preset_of(
    name: &'static str,
    paper: &'static str,
    config: fn() -> VisionLanguageConfig,
) -> VisionLanguagePreset {
    VisionLanguagePreset { name, paper, config }
}

const VISUAL_BERT: &str = "arXiv:1908.03557";
const UNITER: &str = "arXiv:1909.11740";

/// Every preset; parameters are in the tests.
pub const PRESETS: &[VisionLanguagePreset] = &[
    preset_of("visual-bert-nano", "ours", || VisionLanguageConfig::VisualBert(VisualBertConfig::nano())),
    preset_of("visual-bert-base", VISUAL_BERT, || VisionLanguageConfig::VisualBert(VisualBertConfig::base())),
    preset_of("visual-bert-vqa", VISUAL_BERT, || {
        let answer = AnswerHead::Question { answers: 3129 };
        VisionLanguageConfig::VisualBert(VisualBertConfig { pretraining: false, answer, ..VisualBertConfig::base() })
    }),
    preset_of("visual-bert-nlvr2", VISUAL_BERT, || {
        let (features, answer) = (1024, AnswerHead::Pair);
        let base = VisualBertConfig::base();
        VisionLanguageConfig::VisualBert(VisualBertConfig { features, pretraining: false, answer, ..base })
    }),
    preset_of("uniter-nano", "ours", || VisionLanguageConfig::Uniter(UniterConfig::nano())),
    preset_of("uniter-base", UNITER, || VisionLanguageConfig::Uniter(UniterConfig::base())),
    preset_of("uniter-large", UNITER, || VisionLanguageConfig::Uniter(UniterConfig::large())),
    preset_of("vilbert-nano", "ours", || VisionLanguageConfig::Vilbert(VilbertConfig::nano())),
    preset_of("vilbert-base", "arXiv:1908.02265", || VisionLanguageConfig::Vilbert(VilbertConfig::base())),
    preset_of("lxmert-nano", "ours", || VisionLanguageConfig::Lxmert(LxmertConfig::nano())),
    preset_of("lxmert-base", "arXiv:1908.07490", || VisionLanguageConfig::Lxmert(LxmertConfig::base())),
    preset_of("video-bert-nano", "ours", || VisionLanguageConfig::VideoBert(VideoBertConfig::nano())),
    preset_of("video-bert-large", "arXiv:1904.01766", || VisionLanguageConfig::VideoBert(VideoBertConfig::large())),
];

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<VisionLanguageConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}
