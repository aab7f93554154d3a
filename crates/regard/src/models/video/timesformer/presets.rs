//! The models of the paper and a small one.

use super::TimesformerConfig;
use crate::Error;
use crate::attention::SpaceTime;
use crate::data::clip::FrameSampling;
use crate::data::{Filter, Preprocess, Resize};
use crate::layers::Start;
use crate::models::config;
use crate::models::video::ClipPreset;

/// ViT-B/16 for Kinetics-400. Section 4 of the paper:
///
/// | | frames | image |
/// |---|---|---|
/// | `TimeSformer` | 8 | 224 x 224 |
/// | `TimeSformer-HR` | 16 | 448 x 448 |
/// | `TimeSformer-L` | 96 | 224 x 224 |
impl TimesformerConfig {
    const fn kinetics(scheme: SpaceTime, frames: usize, image: usize) -> Self {
        Self {
            scheme,
            frames,
            image: [image; 2],
            patch: 16,
            channels: 3,
            classes: 400,
            dim: 768,
            depth: 12,
            heads: 12,
            mlp_dim: 3072,
            epsilon: 1e-6,
            start: Start::Paper,
        }
    }

    /// The paper's default model, with one of its five schemes.
    #[must_use]
    pub const fn base(scheme: SpaceTime) -> Self {
        Self::kinetics(scheme, 8, 224)
    }

    /// High resolution.
    #[must_use]
    pub const fn high_resolution() -> Self {
        Self::kinetics(SpaceTime::Divided, 16, 448)
    }

    /// Long range.
    #[must_use]
    pub const fn long() -> Self {
        Self::kinetics(SpaceTime::Divided, 96, 224)
    }

    /// Ours, for clips of 8 frames of 32 x 32 pixels: a hundred thousand parameters, trained from scratch without a GPU.
    #[must_use]
    pub const fn nano() -> Self {
        Self {
            image: [32; 2],
            patch: 8,
            classes: 10,
            dim: 48,
            depth: 3,
            heads: 3,
            mlp_dim: 192,
            start: Start::Narrow,
            ..Self::base(SpaceTime::Divided)
        }
    }
}

const PAPER: &str = "arXiv:2102.05095";

/// Kinetics as the paper prepares it: the short side becomes that of the crop.
const KINETICS: Preprocess =
    Preprocess { mean: [0.45; 3], std: [0.225; 3], crop: 1.0, filter: Filter::Bilinear, resize: Resize::ShortSide };

/// Frames that are so many thirtieths of a second apart.
const fn paper(name: &'static str, rate: usize, config: fn() -> TimesformerConfig) -> ClipPreset<TimesformerConfig> {
    ClipPreset { name, paper: PAPER, preprocess: KINETICS, sampling: FrameSampling::Dense { rate }, config }
}

const NANO: ClipPreset<TimesformerConfig> = ClipPreset {
    name: "timesformer-nano",
    paper: "ours",
    preprocess: KINETICS,
    sampling: FrameSampling::Uniform,
    config: TimesformerConfig::nano,
};

/// Every preset; parameters and multiply-adds are in the tests.
pub const PRESETS: &[ClipPreset<TimesformerConfig>] = &[
    NANO,
    paper("timesformer-base", 32, || TimesformerConfig::base(SpaceTime::Divided)),
    paper("timesformer-base-space", 32, || TimesformerConfig::base(SpaceTime::Space)),
    paper("timesformer-base-joint", 32, || TimesformerConfig::base(SpaceTime::Joint)),
    paper("timesformer-base-local-global", 32, || TimesformerConfig::base(SpaceTime::SparseLocalGlobal)),
    paper("timesformer-base-axial", 32, || TimesformerConfig::base(SpaceTime::Axial)),
    paper("timesformer-hr", 16, TimesformerConfig::high_resolution),
    paper("timesformer-l", 4, TimesformerConfig::long),
];

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<TimesformerConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}
