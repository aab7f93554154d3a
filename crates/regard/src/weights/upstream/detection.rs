//! Names of detectors with anchors: torchvision's older ones, whose newer ones are ours, and detectron2's.

use burn::tensor::TensorData;

use super::{Table, Upstream, detr, floats};
use crate::Error;
use crate::weights::Tensors;
use crate::weights::rename::rename;

/// The prefix of the trunk in torchvision's detectors.
const BODY: &str = "backbone.body.";

/// Names that differ from ours: the older ones without the last number, and the layers of the second version's box head,
/// whose linear map has the number after that of flattening.
pub(super) const TORCHVISION: Table = &[
    ("backbone.fpn.inner_blocks.{i}.weight", "backbone.fpn.inner_blocks.{i}.0.weight"),
    ("backbone.fpn.inner_blocks.{i}.bias", "backbone.fpn.inner_blocks.{i}.0.bias"),
    ("backbone.fpn.layer_blocks.{i}.weight", "backbone.fpn.layer_blocks.{i}.0.weight"),
    ("backbone.fpn.layer_blocks.{i}.bias", "backbone.fpn.layer_blocks.{i}.0.bias"),
    ("rpn.head.conv.weight", "rpn.head.conv.0.0.weight"),
    ("rpn.head.conv.bias", "rpn.head.conv.0.0.bias"),
    ("roi_heads.box_head.{i}.{j}.*", "roi_heads.box_head.conv.{i}.{j}.*"),
    ("roi_heads.box_head.{i}.weight", "roi_heads.box_head.fc.weight"),
    ("roi_heads.box_head.{i}.bias", "roi_heads.box_head.fc.bias"),
];

/// Whether these are names of a detector of torchvision.
pub(super) fn is_torchvision(tensors: &Tensors) -> bool {
    tensors.keys().any(|name| name.starts_with(BODY))
}

/// The towers of RetinaNet's heads, in which older names count rectifiers too: `conv.2.weight` is `conv.1.0.weight`.
pub(super) fn tower(name: &str) -> Option<String> {
    let (head, rest) = name.split_once("_head.conv.")?;
    let (index, tensor) = rest.split_once('.')?;
    let index: usize = index.parse().ok().filter(|index| *index < 100 && index % 2 == 0)?;
    matches!(tensor, "weight" | "bias").then(|| format!("{head}_head.conv.{}.0.{tensor}", index / 2))
}

/// Faster R-CNN with a pyramid, after `backbone.`; and DC5.
pub(super) const DETECTRON2: Table = &[
    ("backbone.bottom_up.stem.conv1.weight", "backbone.body.conv1.weight"),
    ("backbone.bottom_up.stem.conv1.norm.*", "backbone.body.bn1.*"),
    ("backbone.bottom_up.res{s+1}.{b}.conv{c}.weight", "backbone.body.layer{s}.{b}.conv{c}.weight"),
    ("backbone.bottom_up.res{s+1}.{b}.conv{c}.norm.*", "backbone.body.layer{s}.{b}.bn{c}.*"),
    ("backbone.bottom_up.res{s+1}.{b}.shortcut.weight", "backbone.body.layer{s}.{b}.downsample.0.weight"),
    ("backbone.bottom_up.res{s+1}.{b}.shortcut.norm.*", "backbone.body.layer{s}.{b}.downsample.1.*"),
    ("backbone.stem.conv1.weight", "backbone.body.conv1.weight"),
    ("backbone.stem.conv1.norm.*", "backbone.body.bn1.*"),
    ("backbone.res{s+1}.{b}.conv{c}.weight", "backbone.body.layer{s}.{b}.conv{c}.weight"),
    ("backbone.res{s+1}.{b}.conv{c}.norm.*", "backbone.body.layer{s}.{b}.bn{c}.*"),
    ("backbone.res{s+1}.{b}.shortcut.weight", "backbone.body.layer{s}.{b}.downsample.0.weight"),
    ("backbone.res{s+1}.{b}.shortcut.norm.*", "backbone.body.layer{s}.{b}.downsample.1.*"),
    ("backbone.fpn_lateral2.*", "backbone.fpn.inner_blocks.0.0.*"),
    ("backbone.fpn_lateral3.*", "backbone.fpn.inner_blocks.1.0.*"),
    ("backbone.fpn_lateral4.*", "backbone.fpn.inner_blocks.2.0.*"),
    ("backbone.fpn_lateral5.*", "backbone.fpn.inner_blocks.3.0.*"),
    ("backbone.fpn_output2.*", "backbone.fpn.layer_blocks.0.0.*"),
    ("backbone.fpn_output3.*", "backbone.fpn.layer_blocks.1.0.*"),
    ("backbone.fpn_output4.*", "backbone.fpn.layer_blocks.2.0.*"),
    ("backbone.fpn_output5.*", "backbone.fpn.layer_blocks.3.0.*"),
    ("proposal_generator.rpn_head.conv.*", "rpn.head.conv.0.0.*"),
    ("proposal_generator.rpn_head.objectness_logits.*", "rpn.head.cls_logits.*"),
    ("proposal_generator.rpn_head.anchor_deltas.*", "rpn.head.bbox_pred.*"),
    ("proposal_generator.anchor_generator.cell_anchors.*", ""),
    ("roi_heads.box_head.fc1.*", "roi_heads.box_head.fc6.*"),
    ("roi_heads.box_head.fc2.*", "roi_heads.box_head.fc7.*"),
    ("roi_heads.box_predictor.cls_score.*", "roi_heads.box_predictor.cls_score.*"),
    ("roi_heads.box_predictor.bbox_pred.*", "roi_heads.box_predictor.bbox_pred.*"),
    ("pixel_mean", ""),
    ("pixel_std", ""),
];

/// The first convolution, whose channels are BGR there and RGB here.
const STEM: &str = "backbone.body.conv1.weight";

/// Reverses the channels of the first convolution; its own inverse.
pub(super) fn turn_channels(tensors: &mut Tensors) {
    if let Some(stem) = tensors.get_mut(STEM)
        && let [outputs, 3, height, width] = stem.shape().to_vec()[..]
    {
        let plane = height * width;
        let turned = floats(stem).chunks_exact(3 * plane).flat_map(|filter| {
            let mut planes = [0, 1, 2].map(|channel| &filter[channel * plane..][..plane]);
            planes.reverse();
            planes.concat()
        });
        *stem = TensorData::new(turned.collect::<Vec<f32>>(), [outputs, 3, height, width]);
    }
}

/// Renames the tensors of a detector to the names of its upstream: torchvision's newer ones, or detectron2's; those of DETR to
/// facebookresearch's, or to Hugging Face's with a trunk of timm.
///
/// # Errors
/// When the upstream has no name for a tensor (all are listed), or does not have such detectors.
pub fn to_detector_names(tensors: &Tensors, to: Upstream) -> Result<Tensors, Error> {
    match to {
        Upstream::Torchvision => Ok(to_torchvision(tensors)),
        Upstream::Detectron2 => to_detectron2(tensors),
        Upstream::Facebook | Upstream::HuggingFace => detr::to_names(tensors, to),
        Upstream::Regard => Ok(tensors.clone()),
        other => {
            let reason = format!(
                "detectors with anchors can be written as torchvision or detectron2, DETR as facebook or hugging-face, \
                 not as {other:?}"
            );
            Err(Error::config("to", reason))
        }
    }
}

fn to_torchvision(tensors: &Tensors) -> Tensors {
    let convolution = |name: &str| rename(name, "roi_heads.box_head.conv.{i}.0.weight", "{i}").is_some();
    // flattening has a number too
    let linear = tensors.keys().filter(|name| convolution(name)).count() + 1;
    let there = |name: &str| {
        rename(name, "roi_heads.box_head.conv.{i}.{j}.*", "roi_heads.box_head.{i}.{j}.*")
            .or_else(|| rename(name, "roi_heads.box_head.fc.*", &format!("roi_heads.box_head.{linear}.*")))
            .unwrap_or_else(|| name.to_string())
    };
    tensors.iter().map(|(name, tensor)| (there(name), tensor.clone())).collect()
}

fn to_detectron2(tensors: &Tensors) -> Result<Tensors, Error> {
    let mut tensors = tensors.clone();
    turn_channels(&mut tensors);
    let pyramid = tensors.keys().any(|name| name.starts_with("backbone.fpn."));
    let mut theirs = Tensors::new();
    let mut problems = Vec::new();
    for (name, tensor) in tensors {
        let bottom_up = |there: &str| there.starts_with("backbone.bottom_up.");
        let trunk = |there: &str| there.starts_with("backbone.") && !there.starts_with("backbone.fpn_");
        let fits = |(there, here): &&(&str, &str)| !here.is_empty() && (!trunk(there) || bottom_up(there) == pyramid);
        match DETECTRON2.iter().filter(fits).find_map(|(there, here)| rename(&name, here, there)) {
            Some(there) => _ = theirs.insert(there, tensor),
            None => problems.push(format!("`{name}` {:?} has no name in detectron2", tensor.shape().to_vec())),
        }
    }
    if problems.is_empty() { Ok(theirs) } else { Err(Error::weights(problems)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::layers::ResidualStem;
    use crate::models::ModelConfig;
    use crate::models::TrunkConfig;
    use crate::models::detect::faster_rcnn::{self, BoxHeadKind, FasterRcnnConfig, RegionsConfig};
    use crate::models::detect::{BackboneConfig, PyramidOptions, retinanet};
    use crate::models::resnet::ResNetConfig;
    use crate::testing::{Fixture, weights};
    use crate::weights::{recognise, translate};

    fn recognised(tensors: &Tensors) -> Upstream {
        recognise(tensors.keys().map(String::as_str))
    }

    fn small(backbone: BackboneConfig) -> BackboneConfig {
        let ModelConfig::Resnet(network) = backbone.trunk.network else { panic!("a residual network") };
        let network = ResNetConfig {
            stem: ResidualStem::Large,
            layers: vec![1; 4],
            stem_width: 4,
            widths: vec![2, 3, 4, 5],
            ..network
        };
        let trunk = TrunkConfig { network: ModelConfig::Resnet(network), ..backbone.trunk };
        let pyramid = backbone.pyramid.map(|options| PyramidOptions { width: 32, ..options });
        BackboneConfig { trunk, pyramid, ..backbone }
    }

    fn faster_rcnn(name: &str) -> Tensors {
        let preset = faster_rcnn::PRESETS.iter().find(|preset| preset.name == name).unwrap();
        let config = (preset.config)();
        let head = match config.regions.head {
            BoxHeadKind::Linear { .. } => BoxHeadKind::Linear { hidden: 6 },
            BoxHeadKind::Convolutions { layers, .. } => BoxHeadKind::Convolutions { layers, hidden: 6 },
        };
        let config = FasterRcnnConfig {
            backbone: small(config.backbone),
            regions: RegionsConfig { head, ..config.regions },
            ..config
        };
        weights::tensors(&config.init(&device::cpu()).unwrap())
    }

    #[test]
    fn names_of_torchvision_and_detectron2_lead_there_and_back() {
        for (name, upstream, sign) in [
            ("faster-rcnn-resnet50-fpn", Upstream::Torchvision, "roi_heads.box_head.fc6.weight"),
            ("faster-rcnn-resnet50-fpn-v2", Upstream::Torchvision, "roi_heads.box_head.5.weight"),
            ("faster-rcnn-detectron2-r50-fpn", Upstream::Detectron2, "backbone.bottom_up.res5.0.shortcut.norm.weight"),
            ("faster-rcnn-detectron2-r50-fpn", Upstream::Detectron2, "backbone.fpn_lateral2.bias"),
            ("faster-rcnn-detectron2-r50-dc5", Upstream::Detectron2, "backbone.res2.0.conv3.norm.running_var"),
            ("faster-rcnn-detectron2-r50-dc5", Upstream::Detectron2, "proposal_generator.rpn_head.anchor_deltas.bias"),
        ] {
            let ours = faster_rcnn(name);
            let theirs = to_detector_names(&ours, upstream).unwrap();
            assert!(theirs.contains_key(sign), "{name}: {:?}", theirs.keys().collect::<Vec<_>>());
            assert_eq!(recognised(&theirs), upstream, "{name}");
            assert_eq!(translate(theirs, upstream).unwrap(), ours, "{name}");
        }
    }

    #[test]
    fn the_fixtures_of_torchvision_have_our_names() {
        for case in ["torchvision_retinanet", "torchvision_faster_rcnn"] {
            let tensors = Fixture::load(case).checkpoint(|name| Some(name.to_string()));
            assert_eq!(recognised(&tensors), Upstream::Torchvision);
            assert_eq!(translate(tensors.clone(), Upstream::Torchvision).unwrap(), tensors, "{case}");
            assert_eq!(to_detector_names(&tensors, Upstream::Torchvision).unwrap(), tensors, "{case}");
        }
    }

    #[test]
    fn older_names_of_torchvision_are_known() {
        for case in ["torchvision_retinanet", "torchvision_faster_rcnn"] {
            let ours = Fixture::load(case).checkpoint(|name| Some(name.to_string()));
            let older = |name: &str| {
                let block = |part: &str| {
                    rename(name, &format!("backbone.fpn.{part}.{{i}}.0.*"), &format!("backbone.fpn.{part}.{{i}}.*"))
                };
                let tower = |index: usize| {
                    let (new, old) = (format!("_head.conv.{index}.0."), format!("_head.conv.{}.", 2 * index));
                    name.contains(&new).then(|| name.replace(&new, &old))
                };
                let found = block("inner_blocks").or_else(|| block("layer_blocks")).or_else(|| (0..4).find_map(tower));
                found.unwrap_or_else(|| name.replace("rpn.head.conv.0.0.", "rpn.head.conv."))
            };
            let theirs: Tensors = ours.iter().map(|(name, tensor)| (older(name), tensor.clone())).collect();
            assert_ne!(theirs, ours);
            assert_eq!(translate(theirs, Upstream::Torchvision).unwrap(), ours, "{case}");
        }
    }

    #[test]
    fn channels_of_detectron2_are_turned() {
        let ours = faster_rcnn("faster-rcnn-detectron2-r50-dc5");
        let theirs = to_detector_names(&ours, Upstream::Detectron2).unwrap();
        let (rgb, bgr) = (floats(&ours[STEM]), floats(&theirs["backbone.stem.conv1.weight"]));
        assert_eq!(rgb[..49], bgr[98..147]);
        assert_eq!(rgb[49..98], bgr[49..98]);
    }

    #[test]
    fn what_an_upstream_does_not_know_is_named() {
        let config = retinanet::RetinaNetConfig::nano(retinanet::HeadKind::Convolution);
        let tensors = weights::tensors(&config.init(&device::cpu()).unwrap());
        let error = to_detector_names(&tensors, Upstream::Detectron2).unwrap_err().to_string();
        assert!(error.contains("has no name in detectron2"), "{error}");
        assert!(to_detector_names(&tensors, Upstream::Timm).is_err());
    }
}
