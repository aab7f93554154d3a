use super::super::backbone::tiny_trunk;
use super::super::per_anchor;
use super::*;
use crate::boxes::{Anchors, Balance, DrawId, LevelRule, Match, RandomSampler};
use crate::cost::Convention;
use crate::data::Bounds;
use crate::device;
use crate::layers::{ExtraLevels, LastStage, NormKind};
use crate::models::TrunkConfig;
use crate::models::detect::PyramidOptions;
use crate::testing::{
    Fixture, assert_close, assert_gradient_close, distance, gradients, random, random_on, values, weights,
    without_gradient,
};

fn named(name: &str) -> FasterRcnnConfig {
    (PRESETS.iter().find(|preset| preset.name == name).unwrap().config)()
}

fn ledger(config: &FasterRcnnConfig) -> Ledger {
    let [rows, columns] = config.image;
    Ledger::of(&config.init(&device::cpu()).unwrap(), [3, rows, columns])
}

fn from_fixture(fixture: &Fixture, device: &Device) -> FasterRcnn {
    let trunk = tiny_trunk();
    let pyramid = PyramidOptions { width: 12, norm: false, extra: ExtraLevels::Pool };
    let v1 = named("faster-rcnn-resnet50-fpn");
    let count = |field: &str| fixture.usize(field);
    let config = FasterRcnnConfig {
        classes: 3,
        backbone: BackboneConfig { trunk, stages: vec![0, 1, 2, 3], pyramid: Some(pyramid) },
        rpn: RpnConfig {
            anchors: Anchors::torchvision(serde_json::from_value(fixture.config["anchor_sizes"].clone()).unwrap()),
            training: ProposalCount {
                before: count("rpn_pre_nms_top_n_train"),
                after: count("rpn_post_nms_top_n_train"),
            },
            inference: ProposalCount {
                before: count("rpn_pre_nms_top_n_test"),
                after: count("rpn_post_nms_top_n_test"),
            },
            sample: Balance { count: count("rpn_batch_size_per_image"), positive: 0.5 },
            ..v1.rpn
        },
        regions: RegionsConfig {
            rule: LevelRule { scale: 56.0, level: 4 },
            head: BoxHeadKind::Linear { hidden: 24 },
            sample: Balance { count: count("box_batch_size_per_image"), positive: 0.25 },
            ..v1.regions
        },
        limits: DetectionLimits { score: 0.1, overlap: 0.5, detections: count("box_detections_per_img") },
        ..v1
    };
    let model = config.init(device).unwrap();
    weights::fill(model, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap()
}

const SIZES: [[usize; 2]; 2] = [[64, 82], [53, 88]];

/// The pictures as torchvision resizes them: those of the other fixture of torchvision's detectors are the same.
fn images(fixture: &Fixture, device: &Device) -> Images {
    use crate::data::{ImageBatch, NormalisedPicture, Preprocess, ResizeInside};
    let resize = ResizeInside { short: fixture.usize("min_size"), long: fixture.usize("max_size") };
    let Preprocess { mean, std, .. } = Preprocess::TORCHVISION;
    let pictures = [0, 1].map(|image| {
        let [_, rows, columns] = fixture.tensor::<3>(&format!("io/image.{image}")).dims();
        let levels = fixture.values(&format!("io/image.{image}")).iter().enumerate();
        let values = levels.map(|(at, x)| (x - mean[at / (rows * columns)]) / std[at / (rows * columns)]).collect();
        resize.resize(&NormalisedPicture { values, size: [rows, columns] })
    });
    ImageBatch::collate(&pictures).unwrap().padded_to_multiple(32).to_device(device)
}

/// The objects of a fixture's picture; its class 1 is our 0.
fn objects(fixture: &Fixture, image: usize) -> Vec<Object> {
    let boxes = fixture.boxes(&format!("io/target.{image}.scaled_boxes"));
    let labels = fixture.indices(&format!("io/target.{image}.labels"));
    let bounds = |corners: &Corners| Bounds::from_pixel_corners(corners.map(f64::from), SIZES[image]);
    let pairs = labels.into_iter().zip(&boxes);
    pairs.map(|(label, corners)| Object { class: label - 1, bounds: bounds(corners), crowd: false }).collect()
}

/// torchvision's samples.
struct Recorded<'a>(&'a Fixture);

impl Sampler for Recorded<'_> {
    fn sample(&self, draw: DrawId, positive: &[usize], negative: &[usize], _: Balance) -> [Vec<usize>; 2] {
        let drawn: Vec<usize> = match draw {
            DrawId::Anchors { image } => ["positive", "negative"]
                .iter()
                .flat_map(|kind| self.0.indices(&format!("io/train.rpn.{image}.{kind}")))
                .collect(),
            DrawId::Regions { image } => self.0.indices(&format!("io/train.roi.{image}.sampled")),
        };
        let of = |all: &[usize]| drawn.iter().copied().filter(|index| all.contains(index)).collect::<Vec<_>>();
        let sampled = [of(positive), of(negative)];
        assert_eq!(sampled[0].len() + sampled[1].len(), drawn.len(), "what was drawn is an object or background");
        sampled
    }
}

#[test]
fn every_step_of_the_forward_pass_is_that_of_torchvision() {
    let fixture = Fixture::load("torchvision_faster_rcnn");
    let model = from_fixture(&fixture, &device::cpu());
    let images = images(&fixture, &device::cpu());
    let mut pass = Pass::recording();
    let output = model.forward(&images, &mut pass);
    let trace = pass.into_trace();
    let names = ["layer_blocks.0", "layer_blocks.1", "layer_blocks.2", "layer_blocks.3", "pool"];
    for (name, expected) in names.iter().zip(["0", "1", "2", "3", "pool"]) {
        let level = trace.get::<4>(&format!("backbone.fpn.{name}")).unwrap();
        assert_close(&level, &fixture.tensor(&format!("io/pyramid.{expected}")), 1e-4);
    }
    assert_eq!(output.rpn.anchors, fixture.boxes("io/anchors"));
    let mut first = 0;
    for (level, &anchors) in output.rpn.levels.iter().enumerate() {
        for (name, width) in [("objectness", 1), ("deltas", 4)] {
            let all = if name == "deltas" {
                output.rpn.deltas.clone()
            } else {
                output.rpn.objectness.clone().unsqueeze_dim(2)
            };
            let expected = fixture.tensor::<4>(&format!("io/rpn.level.{level}.{name}"));
            assert_eq!(expected.dims()[1], 3 * width);
            assert_close(&all.narrow(1, first, anchors), &per_anchor(expected, 3), 1e-4);
        }
        first += anchors;
    }
    for (image, proposals) in output.proposals.iter().enumerate() {
        let corners: Vec<Corners> = proposals.iter().map(|proposal| proposal.corners).collect();
        assert!(distance(corners.as_flattened(), fixture.values(&format!("io/proposals.{image}.boxes"))) < 1e-2);
        let scores: Vec<f32> = proposals.iter().map(|proposal| proposal.score).collect();
        assert!(distance(&scores, fixture.values(&format!("io/proposals.{image}.scores"))) < 1e-4);
    }
    let pooled = trace.get::<4>("roi_heads.box_roi_pool").unwrap();
    assert_close(&pooled.narrow(0, 0, 4), &fixture.tensor("io/roi.pooled"), 1e-4);
    assert_close(&output.regions.logits, &fixture.tensor("io/roi.class_logits"), 1e-4);
    assert_close(&output.regions.deltas, &fixture.tensor("io/roi.box_regression"), 1e-4);
}

#[test]
fn detections_are_those_of_torchvision() {
    let fixture = Fixture::load("torchvision_faster_rcnn");
    let model = from_fixture(&fixture, &device::cpu());
    let found = model.detect(&images(&fixture, &device::cpu()), &mut Pass::silent());
    // of the original pictures
    for (image, (found, size)) in found.iter().zip([[56, 72], [40, 66]]).enumerate() {
        let labels: Vec<usize> = found.iter().map(|detection| detection.class + 1).collect();
        assert_eq!(labels, fixture.indices(&format!("io/detection.{image}.labels")));
        let boxes: Vec<f32> =
            found.iter().flat_map(|found| found.bounds.pixel_corners(size).map(|x| x as f32)).collect();
        assert!(distance(&boxes, fixture.values(&format!("io/detection.{image}.boxes"))) < 1e-2);
        let scores: Vec<f32> = found.iter().map(|detection| detection.score as f32).collect();
        assert!(distance(&scores, fixture.values(&format!("io/detection.{image}.scores"))) < 1e-4);
    }
}

#[test]
fn anchors_and_regions_are_matched_as_in_torchvision() {
    let fixture = Fixture::load("torchvision_faster_rcnn");
    let config = named("faster-rcnn-resnet50-fpn");
    for image in [0, 1] {
        let targets = Targets::of(&objects(&fixture, image), SIZES[image], 3);
        let found: Vec<f32> = config
            .rpn
            .matcher
            .matches(&targets.corners, &fixture.boxes("io/anchors"))
            .into_iter()
            .map(|matched| match matched {
                Match::Object(_) => 1.0,
                Match::Background => 0.0,
                Match::Ignored => -1.0,
            })
            .collect();
        assert_eq!(found, fixture.values(&format!("io/train.rpn.{image}.labels")));
        let candidates = fixture.boxes(&format!("io/train.roi.{image}.candidates"));
        let labels: Vec<usize> = config
            .regions
            .matcher
            .matches(&targets.corners, &candidates)
            .into_iter()
            .map(|matched| matched.object().map_or(0, |object| targets.classes[object] + 1))
            .collect();
        assert_eq!(labels, fixture.indices(&format!("io/train.roi.{image}.candidate_labels")));
    }
}

#[test]
fn losses_and_their_gradients_are_those_of_torchvision() {
    let fixture = Fixture::load("torchvision_faster_rcnn");
    let device = device::cpu().autodiff();
    let model = from_fixture(&fixture, &device);
    let images = images(&fixture, &device);
    let objects = [objects(&fixture, 0), objects(&fixture, 1)];
    let losses = model.losses(&images, &objects, &Recorded(&fixture), &mut Pass::silent());
    let names = ["loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"];
    for ((name, loss), expected) in losses.parts.iter().zip(names) {
        let (loss, expected) = (values(loss)[0] / 2.0, fixture.values(&format!("io/loss.{expected}"))[0]);
        assert!((loss - expected).abs() < 1e-4, "{name}: {loss} {expected}");
    }
    let found = gradients(&model, &losses.sum().div_scalar(2.0).backward());
    for name in fixture.names("io/grad.") {
        let expected = fixture.values(&format!("io/grad.{name}"));
        let gradient = Tensor::<1>::from_data(&found[name][..], &device::cpu());
        assert_gradient_close(name, &gradient, &Tensor::from_data(expected, &device::cpu()));
    }
    let mut names = 0;
    for name in fixture.names("io/grad_norm.") {
        let expected = fixture.values(&format!("io/grad_norm.{name}"))[0];
        let length = found[name].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - expected).abs() <= 1e-3 * expected.max(1e-3), "{name}: {length} {expected}");
        names += 1;
    }
    assert_eq!(names, found.len(), "every parameter has a gradient");
}

#[test]
fn proposals_of_training_are_those_of_torchvision() {
    let fixture = Fixture::load("torchvision_faster_rcnn");
    let model = from_fixture(&fixture, &device::cpu());
    let (_, rpn) = model.propose(&images(&fixture, &device::cpu()), &mut Pass::silent());
    for (image, proposals) in model.rpn.proposals(&rpn, &SIZES, true).iter().enumerate() {
        let corners: Vec<Corners> = proposals.iter().map(|proposal| proposal.corners).collect();
        let expected = fixture.values(&format!("io/train.proposals.{image}.boxes"));
        assert!(distance(corners.as_flattened(), expected) < 1e-2);
    }
}

#[test]
fn parameters_and_multiply_adds_are_those_of_torchvision() {
    for (name, parameters, billions) in
        [("faster-rcnn-resnet50-fpn", 41_755_286, 134.38), ("faster-rcnn-resnet50-fpn-v2", 43_712_278, 280.37)]
    {
        let ledger = ledger(&named(name));
        assert_eq!(ledger.parameters(), parameters, "{name}");
        let total = ledger.total(Convention::MultiplyAdds) as f64 / 1e9;
        assert!((total - billions).abs() < 5e-3, "{name}: {total}");
    }
}

#[test]
fn parameters_are_those_of_detectron2() {
    for (name, millions) in [
        ("faster-rcnn-detectron2-r50-fpn", 41.70),
        ("faster-rcnn-detectron2-r101-fpn", 60.64),
        ("faster-rcnn-detectron2-r50-dc5", 165.58),
    ] {
        let found = ledger(&named(name)).parameters() as f64 / 1e6;
        assert!((found - millions).abs() < 1e-2, "{name}: {found}");
    }
}

#[test]
fn every_parameter_is_in_the_ledger_once() {
    for preset in PRESETS {
        let model = (preset.config)().init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 64, 64]);
        let frozen = model.config.backbone.trunk.norm != NormKind::Batch;
        let is_constant = |name: &str| {
            let norm = name.contains("backbone.body") && (name.contains(".bn") || name.contains("downsample.1"));
            name.contains("running_") || (frozen && norm)
        };
        let parameters: usize = weights::shapes(&model)
            .iter()
            .filter(|(name, _)| !is_constant(name))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(ledger.parameters(), parameters as u64, "{}", preset.name);
    }
}

fn nano(device: &Device) -> FasterRcnn {
    named("faster-rcnn-nano").init(device).unwrap()
}

fn object(class: usize, corners: [f64; 4]) -> Object {
    Object { class, bounds: Bounds::from_pixel_corners(corners, [64, 64]), crowd: false }
}

#[test]
fn the_small_one_is_small_and_a_gradient_reaches_every_parameter() {
    let parameters = ledger(&named("faster-rcnn-nano")).parameters();
    assert!((300_000..800_000).contains(&parameters), "{parameters}");
    let device = device::cpu().autodiff();
    let model = nano(&device);
    let images = Images::unpadded(random_on([2, 3, 64, 64], 1, &device));
    let objects = [vec![object(3, [5.0, 5.0, 15.0, 20.0])], vec![object(0, [20.0, 40.0, 48.0, 63.0])]];
    let sampler = RandomSampler { seed: 1, step: 2 };
    let losses = model.losses(&images, &objects, &sampler, &mut Pass::silent());
    let names: Vec<&str> = losses.parts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["objectness", "rpn_box", "class", "box"]);
    assert_eq!(without_gradient(&model, &losses.sum().backward()), Vec::<String>::new());
}

#[test]
fn pictures_without_objects_teach_background_alone() {
    let device = device::cpu().autodiff();
    let images = Images::unpadded(random_on([2, 3, 64, 64], 1, &device));
    let sampler = RandomSampler { seed: 1, step: 2 };
    let losses = nano(&device).losses(&images, &[vec![], vec![]], &sampler, &mut Pass::silent());
    let found: Vec<f32> = losses.parts.iter().map(|(_, part)| values(part)[0]).collect();
    assert!(found[0] > 0.0 && found[2] > 0.0 && found.iter().all(|loss| loss.is_finite()), "{found:?}");
    assert_eq!((found[1], found[3]), (0.0, 0.0));
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = nano(&device::cpu());
    let images = random([2, 3, 64, 64], 1);
    let whole = model.detect(&Images::unpadded(images.clone()), &mut Pass::silent());
    for (index, whole) in whole.iter().enumerate() {
        let one = Images::unpadded(images.clone().narrow(0, index, 1));
        let found = model.detect(&one, &mut Pass::silent()).remove(0);
        assert_eq!(found.len(), whole.len());
        for (one, of_two) in found.iter().zip(whole) {
            assert!(one.class == of_two.class && (one.score - of_two.score).abs() < 1e-5);
        }
    }
}

#[test]
fn background_is_first_or_last_and_never_an_answer() {
    let config = named("faster-rcnn-nano");
    for background in [Background::First, Background::Last] {
        let regions = RegionsConfig { background, ..config.regions };
        let config = FasterRcnnConfig { regions, ..config.clone() };
        let config = FasterRcnnConfig { limits: DetectionLimits { score: 0.0, ..config.limits }, ..config };
        let model = config.init(&device::cpu()).unwrap();
        let boxes = if background == Background::First { 9 } else { 8 };
        assert_eq!(weights::shapes(&model)["roi_heads.box_predictor.bbox_pred.weight"][0], boxes * 4);
        let found = model.detect(&Images::unpadded(random([1, 3, 64, 64], 1)), &mut Pass::silent());
        assert!(!found[0].is_empty() && found[0].iter().all(|detection| detection.class < 8));
    }
}

#[test]
fn a_score_can_be_differentiated_by_the_map_that_it_comes_from() {
    let device = device::cpu().autodiff();
    let model = nano(&device).valid();
    let mut pass = Pass::recording_only(["backbone.fpn.layer_blocks.*"]).with_gradients();
    let output = model.forward(&Images::unpadded(random([1, 3, 64, 64], 1)), &mut pass);
    let trace = pass.into_trace();
    let grads = model.logit(&output, 0, 3).backward();
    let reached = (0..3).any(|level| {
        let gradient = trace.gradient::<4>(&format!("backbone.fpn.layer_blocks.{level}"), &grads);
        gradient.is_ok_and(|gradient| values(&gradient).iter().any(|x| *x != 0.0))
    });
    assert!(reached);
}

#[test]
fn a_dilated_detector_reads_one_level_of_stride_16() {
    let config = named("faster-rcnn-detectron2-r50-dc5");
    let trunk = TrunkConfig { last_stage: LastStage::DilatedThroughout, ..tiny_trunk() };
    let config = FasterRcnnConfig {
        backbone: BackboneConfig { trunk, ..config.backbone },
        regions: RegionsConfig { head: BoxHeadKind::Linear { hidden: 8 }, ..config.regions },
        ..config
    };
    let model = config.init(&device::cpu()).unwrap();
    let output = model.forward(&Images::unpadded(random([1, 3, 80, 70], 1)), &mut Pass::silent());
    // 5 rows of 5 columns, though 70 / 5 is 14
    assert_eq!(output.rpn.anchors.len(), 25 * 15);
    let [x1, _, x2, _] = output.rpn.anchors[15];
    assert!((x1 + x2 - 32.0).abs() < 1e-4);
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: FasterRcnnConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let good = named("faster-rcnn-nano");
    let rpn = RpnConfig { layers: 0, ..good.rpn.clone() };
    assert_eq!(refusal(FasterRcnnConfig { rpn, ..good.clone() }), "`layers`: must be from 1 to 16, got 0");
    let regions = RegionsConfig { levels: 9, ..good.regions };
    assert_eq!(refusal(FasterRcnnConfig { regions, ..good.clone() }), "`levels`: regions are read from 9, there are 3");
    let regions = RegionsConfig { points: Some(0), ..good.regions };
    assert_eq!(refusal(FasterRcnnConfig { regions, ..good }), "`points`: must be at least 1, got 0");
}

#[test]
fn a_config_reads_back() {
    for preset in PRESETS {
        let config = (preset.config)();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<FasterRcnnConfig>(&text).unwrap(), config, "{}", preset.name);
    }
}
