//! The networks of the paper and small ones.

use super::{I3dConfig, I3dKind};
use crate::Error;
use crate::attention::Affinity;
use crate::data::clip::FrameSampling;
use crate::data::{Filter, Preprocess, Resize};
use crate::layers::ResidualStem;
use crate::models::config;
use crate::models::video::ClipPreset;

/// Where the non-local blocks of ResNet-50 are: right before the last block of s4.
pub const ONE_NON_LOCAL: &[[usize; 2]] = &[[4, 4]];
/// After every second block of s3 and s4; facebookresearch/SlowFast has ResNet-101's there too.
pub const FIVE_NON_LOCAL: &[[usize; 2]] = &[[3, 1], [3, 3], [4, 1], [4, 3], [4, 5]];
/// After every block of s3 and s4.
pub const TEN_NON_LOCAL: &[[usize; 2]] =
    &[[3, 0], [3, 1], [3, 2], [3, 3], [4, 0], [4, 1], [4, 2], [4, 3], [4, 4], [4, 5]];

impl I3dConfig {
    /// ResNet-50 for Kinetics-400: 8 frames of 224 x 224.
    #[must_use]
    pub fn resnet50(kind: I3dKind, non_local: &[[usize; 2]]) -> Self {
        Self {
            kind,
            frames: 8,
            image: [224; 2],
            channels: 3,
            classes: 400,
            stem: ResidualStem::Large,
            width: 64,
            layers: [3, 4, 6, 3],
            non_local: non_local.to_vec(),
            affinity: Affinity::EmbeddedGaussian,
            sub_sample: true,
        }
    }

    /// ResNet-101.
    #[must_use]
    pub fn resnet101(kind: I3dKind, non_local: &[[usize; 2]]) -> Self {
        Self { layers: [3, 4, 23, 3], ..Self::resnet50(kind, non_local) }
    }

    /// Ours, for clips of 8 frames of 32 x 32 pixels: a few hundred thousand parameters, trained without a GPU.
    #[must_use]
    pub fn nano(kind: I3dKind, non_local: &[[usize; 2]]) -> Self {
        Self {
            image: [32; 2],
            classes: 10,
            stem: ResidualStem::Small,
            width: 8,
            layers: [1, 2, 2, 2],
            ..Self::resnet50(kind, non_local)
        }
    }
}

const PAPER: &str = "arXiv:1711.07971";

/// Right before the last block of s4 in a small network.
const NANO_NON_LOCAL: &[[usize; 2]] = &[[4, 0]];

/// Kinetics as facebookresearch/SlowFast prepares it.
const KINETICS: Preprocess =
    Preprocess { mean: [0.45; 3], std: [0.225; 3], crop: 1.0, filter: Filter::Bilinear, resize: Resize::ShortSide };

const fn of(name: &'static str, paper: &'static str, config: fn() -> I3dConfig) -> ClipPreset<I3dConfig> {
    // the released networks take every eighth frame
    let sampling =
        if matches!(paper.as_bytes(), b"ours") { FrameSampling::Uniform } else { FrameSampling::Dense { rate: 8 } };
    ClipPreset { name, paper, preprocess: KINETICS, sampling, config }
}

/// The paper's networks with 0, 1, 5 and 10 non-local blocks, its table of affinities, and small networks.
pub const PRESETS: &[ClipPreset<I3dConfig>] = &[
    of("c2d-nano", "ours", || I3dConfig::nano(I3dKind::C2d, &[])),
    of("c2d-nano-nl1", "ours", || I3dConfig::nano(I3dKind::C2d, NANO_NON_LOCAL)),
    of("i3d-nano", "ours", || I3dConfig::nano(I3dKind::I3d, &[])),
    of("i3d-nano-nl1", "ours", || I3dConfig::nano(I3dKind::I3d, NANO_NON_LOCAL)),
    of("c2d-50", PAPER, || I3dConfig::resnet50(I3dKind::C2d, &[])),
    of("c2d-50-nl1", PAPER, || I3dConfig::resnet50(I3dKind::C2d, ONE_NON_LOCAL)),
    of("c2d-50-nl1-gaussian", PAPER, || affinity(Affinity::Gaussian)),
    of("c2d-50-nl1-dot-product", PAPER, || affinity(Affinity::DotProduct)),
    of("c2d-50-nl1-concatenation", PAPER, || affinity(Affinity::Concatenation)),
    of("c2d-50-nl5", PAPER, || I3dConfig::resnet50(I3dKind::C2d, FIVE_NON_LOCAL)),
    of("c2d-50-nl10", PAPER, || I3dConfig::resnet50(I3dKind::C2d, TEN_NON_LOCAL)),
    of("i3d-50", PAPER, || I3dConfig::resnet50(I3dKind::I3d, &[])),
    of("i3d-50-nl1", PAPER, || I3dConfig::resnet50(I3dKind::I3d, ONE_NON_LOCAL)),
    of("i3d-50-nl5", PAPER, || I3dConfig::resnet50(I3dKind::I3d, FIVE_NON_LOCAL)),
    of("i3d-50-nl10", PAPER, || I3dConfig::resnet50(I3dKind::I3d, TEN_NON_LOCAL)),
    of("c2d-101", PAPER, || I3dConfig::resnet101(I3dKind::C2d, &[])),
    of("c2d-101-nl5", PAPER, || I3dConfig::resnet101(I3dKind::C2d, FIVE_NON_LOCAL)),
    of("i3d-101", PAPER, || I3dConfig::resnet101(I3dKind::I3d, &[])),
    of("i3d-101-nl5", PAPER, || I3dConfig::resnet101(I3dKind::I3d, FIVE_NON_LOCAL)),
];

/// The paper's table 2a.
fn affinity(affinity: Affinity) -> I3dConfig {
    I3dConfig { affinity, ..I3dConfig::resnet50(I3dKind::C2d, ONE_NON_LOCAL) }
}

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<I3dConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}
