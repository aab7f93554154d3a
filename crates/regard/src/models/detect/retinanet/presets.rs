//! The detectors of torchvision, those of SASA's table, and small ones.

use super::super::backbone::{nano_trunk, trunk};
use super::{BoxLoss, HeadConfig, HeadKind, RetinaNetConfig, candidates, limits, matcher};
use crate::boxes::Anchors;
use crate::data::DetectionPreprocess;
use crate::layers::{ExtraLevels, NormKind};
use crate::models::TrunkConfig;
use crate::models::detect::{BackboneConfig, DetectorPreset, PyramidOptions};

const RETINANET: &str = "arXiv:1708.02002";
const SASA: &str = "arXiv:1906.05909";

/// Four 3x3 convolutions before the last.
const CONVOLUTIONS: HeadConfig = HeadConfig { layers: 4, kind: HeadKind::Convolution, groups: None };

fn resnet50() -> TrunkConfig {
    trunk("resnet-50", &[])
}

impl RetinaNetConfig {
    /// `retinanet_resnet50_fpn`: norms of ImageNet are frozen.
    ///
    /// `COCO_V1` of torchvision was trained with an epsilon of 0 in them, which `trunk.norm` can say.
    #[must_use]
    pub fn torchvision_v1() -> Self {
        let trunk = TrunkConfig { norm: NormKind::FROZEN, ..resnet50() };
        let pyramid = PyramidOptions { width: 256, norm: false, extra: ExtraLevels::OfLastLevel };
        Self {
            image: [800, 800],
            classes: 91,
            backbone: BackboneConfig { trunk, stages: vec![1, 2, 3], pyramid: Some(pyramid) },
            anchors: Anchors::three_scales(&[32, 64, 128, 256, 512]),
            head: CONVOLUTIONS,
            box_loss: BoxLoss::L1,
            matcher: matcher(),
            candidates: candidates(),
            limits: limits(),
        }
    }

    /// `retinanet_resnet50_fpn_v2`: norms are trained, heads have group norms, boxes have a GIoU loss.
    #[must_use]
    pub fn torchvision_v2() -> Self {
        let pyramid = PyramidOptions { width: 256, norm: false, extra: ExtraLevels::OfLastMap };
        let v1 = Self::torchvision_v1();
        Self {
            backbone: BackboneConfig { trunk: resnet50(), pyramid: Some(pyramid), ..v1.backbone },
            head: HeadConfig { groups: Some(32), ..CONVOLUTIONS },
            box_loss: BoxLoss::Giou,
            ..v1
        }
    }

    /// A row of SASA's table: 640 x 640 pixels, 6 anchors, 90 classes.
    #[must_use]
    pub fn sasa(trunk: TrunkConfig, kind: HeadKind) -> Self {
        let v1 = Self::torchvision_v1();
        let scale = std::f32::consts::SQRT_2;
        let sizes = [32.0, 64.0, 128.0, 256.0, 512.0].map(|size: f32| vec![size, (size * scale).trunc()]);
        Self {
            image: [640, 640],
            classes: 90,
            backbone: BackboneConfig { trunk, ..v1.backbone },
            anchors: Anchors::torchvision(sizes.into()),
            head: HeadConfig { kind, ..CONVOLUTIONS },
            ..v1
        }
    }

    /// For pictures of 64 x 64 pixels with objects of 8 to 26: levels of strides 4, 8 and 16, norms that are trained, and
    /// norms in the heads, which let it learn from the first step on.
    #[must_use]
    pub fn nano(kind: HeadKind) -> Self {
        let pyramid = PyramidOptions { width: 64, norm: true, extra: ExtraLevels::None };
        Self {
            image: [64, 64],
            classes: 8,
            backbone: BackboneConfig { trunk: nano_trunk(), stages: vec![0, 1, 2], pyramid: Some(pyramid) },
            anchors: Anchors::torchvision(vec![vec![10.0, 13.0, 17.0], vec![16.0, 20.0, 25.0], vec![24.0, 28.0, 32.0]]),
            head: HeadConfig { layers: 2, kind, groups: Some(8) },
            ..Self::torchvision_v2()
        }
    }
}

/// Attention of SASA's heads.
const ATTENTION: HeadKind = HeadKind::Attention { heads: 8, window: 7 };

const fn preset(
    name: &'static str,
    paper: &'static str,
    config: fn() -> RetinaNetConfig,
) -> DetectorPreset<RetinaNetConfig> {
    DetectorPreset { name, paper, preprocess: DetectionPreprocess::TORCHVISION, config }
}

/// For small pictures without resizing.
const fn nano(
    name: &'static str,
    paper: &'static str,
    config: fn() -> RetinaNetConfig,
) -> DetectorPreset<RetinaNetConfig> {
    DetectorPreset { preprocess: DetectionPreprocess::as_it_is(16), ..preset(name, paper, config) }
}

/// Every preset.
pub const PRESETS: &[DetectorPreset<RetinaNetConfig>] = &[
    nano("retinanet-nano", RETINANET, || RetinaNetConfig::nano(HeadKind::Convolution)),
    nano("retinanet-nano-attention", SASA, || RetinaNetConfig::nano(HeadKind::Attention { heads: 4, window: 5 })),
    preset("retinanet-resnet50-fpn", RETINANET, RetinaNetConfig::torchvision_v1),
    preset("retinanet-resnet50-fpn-v2", RETINANET, RetinaNetConfig::torchvision_v2),
    preset("retinanet-sasa-baseline", SASA, || RetinaNetConfig::sasa(resnet50(), HeadKind::Convolution)),
    preset("retinanet-sasa-conv-stem", SASA, || {
        RetinaNetConfig::sasa(trunk("sasa-resnet50-conv-stem", &[]), HeadKind::Convolution)
    }),
    preset("retinanet-sasa", SASA, || RetinaNetConfig::sasa(trunk("sasa-resnet50", &[]), HeadKind::Convolution)),
    preset("retinanet-sasa-conv-stem-attention", SASA, || {
        RetinaNetConfig::sasa(trunk("sasa-resnet50-conv-stem", &[]), ATTENTION)
    }),
    preset("retinanet-sasa-attention", SASA, || RetinaNetConfig::sasa(trunk("sasa-resnet50", &[]), ATTENTION)),
];
