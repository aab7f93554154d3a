//! The detectors of torchvision, those of detectron2 in DETR's table, and a small one.

use serde_json::json;

use super::super::backbone::{nano_trunk, trunk};
use super::{Background, BoxHeadKind, FasterRcnnConfig, ProposalCount, RegionsConfig, RpnConfig, limits};
use crate::boxes::{AnchorRule, Anchors, Balance, LevelRule, Matcher};
use crate::data::DetectionPreprocess;
use crate::layers::{ExtraLevels, LastStage, NormKind};
use crate::models::TrunkConfig;
use crate::models::detect::{BackboneConfig, DetectorPreset, PyramidOptions};

const PAPER: &str = "arXiv:1506.01497";

const R50: &str = "resnet-50";
const R101: &str = "resnet-101";

impl FasterRcnnConfig {
    /// `fasterrcnn_resnet50_fpn`, and with deeper trunks; norms of ImageNet are frozen.
    ///
    /// `COCO_V1` of torchvision was trained with an epsilon of 0 in them, which `trunk.norm` can say.
    #[must_use]
    pub fn torchvision_v1(network: &str) -> Self {
        let trunk = TrunkConfig { norm: NormKind::FROZEN, ..trunk(network, &[]) };
        let pyramid = PyramidOptions { width: 256, norm: false, extra: ExtraLevels::Pool };
        Self {
            image: [800, 800],
            classes: 90,
            backbone: BackboneConfig { trunk, stages: vec![0, 1, 2, 3], pyramid: Some(pyramid) },
            rpn: RpnConfig {
                anchors: Anchors::torchvision([32.0, 64.0, 128.0, 256.0, 512.0].map(|size| vec![size]).into()),
                layers: 1,
                matcher: Matcher { object: 0.7, background: 0.3, best_of_object: true },
                sample: Balance { count: 256, positive: 0.5 },
                training: ProposalCount { before: 2000, after: 2000 },
                inference: ProposalCount { before: 1000, after: 1000 },
                overlap: 0.7,
                smallest: 1e-3,
                beta: 1.0 / 9.0,
            },
            regions: RegionsConfig {
                levels: 4,
                rule: LevelRule::PAPER,
                grid: 7,
                points: Some(2),
                aligned: false,
                head: BoxHeadKind::Linear { hidden: 1024 },
                background: Background::First,
                matcher: Matcher { object: 0.5, background: 0.5, best_of_object: false },
                sample: Balance { count: 512, positive: 0.25 },
                beta: 1.0 / 9.0,
                smallest: 1e-2,
            },
            limits: limits(),
        }
    }

    /// `fasterrcnn_resnet50_fpn_v2`: all norms are trained; regions go through convolutions.
    #[must_use]
    pub fn torchvision_v2() -> Self {
        let v1 = Self::torchvision_v1(R50);
        let pyramid = PyramidOptions { width: 256, norm: true, extra: ExtraLevels::Pool };
        let trunk = trunk(R50, &[]);
        Self {
            backbone: BackboneConfig { trunk, pyramid: Some(pyramid), ..v1.backbone },
            rpn: RpnConfig { layers: 2, ..v1.rpn },
            regions: RegionsConfig { head: BoxHeadKind::Convolutions { layers: 4, hidden: 1024 }, ..v1.regions },
            ..v1
        }
    }

    /// detectron2's with a pyramid.
    #[must_use]
    pub fn detectron2_fpn(network: &str) -> Self {
        let v1 = Self::torchvision_v1(network);
        let trunk = TrunkConfig { norm: NormKind::FROZEN, ..trunk(network, &[("stride", json!("first"))]) };
        Self {
            classes: 80,
            backbone: BackboneConfig { trunk, ..v1.backbone },
            rpn: RpnConfig {
                anchors: Anchors { rule: AnchorRule::Detectron2, ..v1.rpn.anchors },
                training: ProposalCount { before: 2000, after: 1000 },
                smallest: f32::MIN_POSITIVE,
                beta: 0.0,
                ..v1.rpn
            },
            regions: RegionsConfig {
                points: None,
                aligned: true,
                background: Background::Last,
                beta: 0.0,
                smallest: 0.0,
                ..v1.regions
            },
            ..v1
        }
    }

    /// detectron2's with one level of stride 16, whose last stage is dilated.
    #[must_use]
    pub fn detectron2_dc5(network: &str) -> Self {
        let fpn = Self::detectron2_fpn(network);
        let trunk = TrunkConfig { last_stage: LastStage::DilatedThroughout, ..fpn.backbone.trunk };
        Self {
            backbone: BackboneConfig { trunk, stages: vec![3], pyramid: None },
            rpn: RpnConfig {
                anchors: Anchors { sizes: vec![vec![32.0, 64.0, 128.0, 256.0, 512.0]], ..fpn.rpn.anchors },
                training: ProposalCount { before: 12_000, after: 2000 },
                inference: ProposalCount { before: 6000, after: 1000 },
                ..fpn.rpn
            },
            regions: RegionsConfig { levels: 1, ..fpn.regions },
            ..fpn
        }
    }

    /// For pictures of 64 x 64 pixels with objects of 8 to 26: levels of strides 4, 8 and 16, norms that are trained.
    #[must_use]
    pub fn nano() -> Self {
        let v1 = Self::torchvision_v1(R50);
        let pyramid = PyramidOptions { width: 64, norm: true, extra: ExtraLevels::None };
        Self {
            image: [64, 64],
            classes: 8,
            backbone: BackboneConfig { trunk: nano_trunk(), stages: vec![0, 1, 2], pyramid: Some(pyramid) },
            rpn: RpnConfig {
                anchors: Anchors::torchvision(vec![vec![14.0], vec![20.0], vec![26.0]]),
                matcher: Matcher { object: 0.6, ..v1.rpn.matcher },
                sample: Balance { count: 64, positive: 0.5 },
                training: ProposalCount { before: 300, after: 100 },
                inference: ProposalCount { before: 200, after: 50 },
                ..v1.rpn
            },
            regions: RegionsConfig {
                levels: 3,
                rule: LevelRule { scale: 16.0, level: 3 },
                grid: 5,
                aligned: true,
                head: BoxHeadKind::Linear { hidden: 96 },
                sample: Balance { count: 48, positive: 0.25 },
                ..v1.regions
            },
            ..v1
        }
    }
}

const fn preset(
    name: &'static str,
    preprocess: DetectionPreprocess,
    config: fn() -> FasterRcnnConfig,
) -> DetectorPreset<FasterRcnnConfig> {
    DetectorPreset { name, paper: PAPER, preprocess, config }
}

/// Every preset.
pub const PRESETS: &[DetectorPreset<FasterRcnnConfig>] = &[
    preset("faster-rcnn-nano", DetectionPreprocess::as_it_is(16), FasterRcnnConfig::nano),
    preset("faster-rcnn-resnet50-fpn", DetectionPreprocess::TORCHVISION, || FasterRcnnConfig::torchvision_v1(R50)),
    preset("faster-rcnn-resnet50-fpn-v2", DetectionPreprocess::TORCHVISION, FasterRcnnConfig::torchvision_v2),
    preset("faster-rcnn-resnet101-fpn", DetectionPreprocess::TORCHVISION, || FasterRcnnConfig::torchvision_v1(R101)),
    preset("faster-rcnn-detectron2-r50-fpn", DetectionPreprocess::DETECTRON2, || FasterRcnnConfig::detectron2_fpn(R50)),
    preset("faster-rcnn-detectron2-r101-fpn", DetectionPreprocess::DETECTRON2, || {
        FasterRcnnConfig::detectron2_fpn(R101)
    }),
    preset("faster-rcnn-detectron2-r50-dc5", DetectionPreprocess::DETECTRON2, || FasterRcnnConfig::detectron2_dc5(R50)),
    preset("faster-rcnn-detectron2-r101-dc5", DetectionPreprocess::DETECTRON2, || {
        FasterRcnnConfig::detectron2_dc5(R101)
    }),
];
