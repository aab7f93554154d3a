use burn::tensor::Gradients;

use super::super::backbone::{tiny_trunk, trunk};
use super::*;
use crate::cost::Convention;
use crate::data::Bounds;
use crate::device;
use crate::layers::{ExtraLevels, NormKind};
use crate::models::detect::PyramidOptions;
use crate::testing::{
    Fixture, assert_close, assert_gradient_close, distance, gradients, random, random_on, values, weights,
    without_gradient,
};

fn named(name: &str) -> RetinaNetConfig {
    (PRESETS.iter().find(|preset| preset.name == name).unwrap().config)()
}

fn ledger(config: &RetinaNetConfig) -> Ledger {
    let [rows, columns] = config.image;
    Ledger::of(&config.init(&device::cpu()).unwrap(), [3, rows, columns])
}

fn from_fixture(fixture: &Fixture, device: &Device) -> RetinaNet {
    let pyramid = PyramidOptions { width: 14, norm: false, extra: ExtraLevels::OfLastLevel };
    let config = RetinaNetConfig {
        classes: 4,
        backbone: BackboneConfig { trunk: tiny_trunk(), stages: vec![1, 2, 3], pyramid: Some(pyramid) },
        anchors: Anchors::torchvision(serde_json::from_value(fixture.config["anchor_sizes"].clone()).unwrap()),
        candidates: fixture.usize("topk_candidates"),
        limits: DetectionLimits { score: 0.3, overlap: 0.5, detections: fixture.usize("detections_per_img") },
        ..RetinaNetConfig::torchvision_v1()
    };
    let model = config.init(device).unwrap();
    weights::fill(model, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap()
}

const SIZES: [[usize; 2]; 2] = [[64, 82], [53, 88]];

fn images(fixture: &Fixture, device: &Device) -> Images {
    Images { pixels: fixture.tensor_on("io/batch", device), padding: None, sizes: SIZES.into() }
}

/// The objects of a fixture's picture, whose boxes are of the resized one.
fn objects(fixture: &Fixture, image: usize) -> Vec<Object> {
    let boxes = fixture.boxes(&format!("io/target.{image}.scaled_boxes"));
    let labels = fixture.indices(&format!("io/target.{image}.labels"));
    let bounds = |corners: &Corners| Bounds::from_pixel_corners(corners.map(f64::from), SIZES[image]);
    labels.into_iter().zip(&boxes).map(|(class, b)| Object { class, bounds: bounds(b), crowd: false }).collect()
}

#[test]
fn every_step_of_the_forward_pass_is_that_of_torchvision() {
    let fixture = Fixture::load("torchvision_retinanet");
    let model = from_fixture(&fixture, &device::cpu());
    let mut pass = Pass::recording();
    let output = model.forward(fixture.tensor("io/batch"), &mut pass);
    let trace = pass.into_trace();
    for (name, expected) in [
        ("layer_blocks.0", "0"),
        ("layer_blocks.1", "1"),
        ("layer_blocks.2", "2"),
        ("extra_blocks.p6", "p6"),
        ("extra_blocks.p7", "p7"),
    ] {
        let level = trace.get::<4>(&format!("backbone.fpn.{name}")).unwrap();
        assert_close(&level, &fixture.tensor(&format!("io/pyramid.{expected}")), 1e-4);
    }
    let mut first = 0;
    for (level, &anchors) in output.levels.iter().enumerate() {
        let logits = output.logits.clone().narrow(1, first, anchors);
        assert_close(&logits, &fixture.tensor(&format!("io/level.{level}.cls_logits")), 1e-4);
        let deltas = output.deltas.clone().narrow(1, first, anchors);
        assert_close(&deltas, &fixture.tensor(&format!("io/level.{level}.bbox_regression")), 1e-4);
        first += anchors;
    }
    assert_eq!(output.anchors, fixture.boxes("io/anchors"));
}

#[test]
fn detections_are_those_of_torchvision() {
    let fixture = Fixture::load("torchvision_retinanet");
    let model = from_fixture(&fixture, &device::cpu());
    let found = model.detect(&images(&fixture, &device::cpu()), &mut Pass::silent());
    // of the original pictures
    for (image, (found, size)) in found.iter().zip([[56, 72], [40, 66]]).enumerate() {
        let classes: Vec<usize> = found.iter().map(|detection| detection.class).collect();
        assert_eq!(classes, fixture.indices(&format!("io/detection.{image}.labels")));
        let boxes: Vec<f32> =
            found.iter().flat_map(|found| found.bounds.pixel_corners(size).map(|x| x as f32)).collect();
        assert!(distance(&boxes, fixture.values(&format!("io/detection.{image}.boxes"))) < 1e-2);
        let scores: Vec<f32> = found.iter().map(|detection| detection.score as f32).collect();
        assert!(distance(&scores, fixture.values(&format!("io/detection.{image}.scores"))) < 1e-4);
    }
}

#[test]
fn anchors_are_matched_as_in_torchvision() {
    let fixture = Fixture::load("torchvision_retinanet");
    for image in [0, 1] {
        let targets = Targets::of(&objects(&fixture, image), SIZES[image], 4);
        let found = matcher().matches(&targets.corners, &fixture.boxes("io/anchors"));
        let found: Vec<f32> = found
            .iter()
            .map(|matched| match matched {
                Match::Object(object) => *object as f32,
                Match::Background => -1.0,
                Match::Ignored => -2.0,
            })
            .collect();
        assert_eq!(found, fixture.values(&format!("io/matched.{image}")));
    }
}

/// The gradients of a fixture: some in full, of all the norms.
fn assert_gradients(fixture: &Fixture, model: &impl Module, of: &Gradients) {
    let found = gradients(model, of);
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
fn losses_and_their_gradients_are_those_of_torchvision() {
    let fixture = Fixture::load("torchvision_retinanet");
    let device = device::cpu().autodiff();
    let model = from_fixture(&fixture, &device);
    let objects = [objects(&fixture, 0), objects(&fixture, 1)];
    let losses = model.losses(&images(&fixture, &device), &objects, &mut Pass::silent());
    // torchvision's is the mean over pictures
    for ((name, loss), expected) in losses.parts.iter().zip(["classification", "bbox_regression"]) {
        let (loss, expected) = (values(loss)[0] / 2.0, fixture.values(&format!("io/loss.{expected}"))[0]);
        assert!((loss - expected).abs() < 1e-4, "{name}: {loss} {expected}");
    }
    assert_gradients(&fixture, &model, &losses.sum().div_scalar(2.0).backward());
}

#[test]
fn heads_of_attention_are_those_of_their_reference() {
    let fixture = Fixture::load("sasa_detection_head");
    let device = device::cpu().autodiff();
    let kind = HeadKind::Attention { heads: fixture.usize("heads"), window: fixture.usize("kernel") };
    let (width, places, classes) = (fixture.usize("width"), fixture.usize("anchors"), fixture.usize("classes"));
    let config = HeadConfig { layers: 4, kind, groups: None };
    let class = config.init(width, places * classes, 0.0, &device).unwrap();
    let boxes = config.init(width, places * 4, 0.0, &device).unwrap();
    let heads = RetinaNetHead {
        classification_head: ClassificationHead { conv: class.conv, cls_logits: class.last },
        regression_head: RegressionHead { conv: boxes.conv, bbox_reg: boxes.last },
    };
    let ours = |name: &str| {
        name.strip_prefix("head.").unwrap().replace("rel_row", "relative.rows").replace("rel_col", "relative.columns")
    };
    let heads = weights::fill(heads, &fixture.checkpoint(|name| Some(ours(name)))).unwrap();
    let mut sum: Option<Tensor<1>> = None;
    let mut inputs = Vec::new();
    for level in 0..3 {
        let input = fixture.tensor_on::<4>(&format!("io/level.{level}.input"), &device).require_grad();
        let out = heads.forward(&input, level, places, &mut Pass::silent());
        for (out, name) in out.into_iter().zip(["cls_logits", "bbox_regression"]) {
            assert_close(&out, &fixture.tensor(&format!("io/level.{level}.{name}")), 1e-4);
            let part = (out * fixture.tensor_on(&format!("io/level.{level}.{name}_grad"), &device)).sum();
            sum = Some(sum.map_or(part.clone(), |sum| sum + part));
        }
        inputs.push(input);
    }
    let grads = sum.unwrap().backward();
    for (level, input) in inputs.iter().enumerate() {
        let expected = fixture.tensor(&format!("io/level.{level}.input_grad"));
        assert_gradient_close("input", &input.grad(&grads).unwrap(), &expected);
    }
    let found = gradients(&heads, &grads);
    for name in fixture.names("io/grad_norm.") {
        let expected = fixture.values(&format!("io/grad_norm.{name}"))[0];
        let length = found[&ours(name)].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - expected).abs() <= 1e-3 * expected.max(1e-3), "{name}: {length} {expected}");
    }
}

#[test]
fn parameters_and_multiply_adds_are_those_of_torchvision() {
    for (name, parameters, billions) in
        [("retinanet-resnet50-fpn", 34_014_999, 151.54), ("retinanet-resnet50-fpn-v2", 38_198_935, 152.24)]
    {
        let ledger = ledger(&named(name));
        assert_eq!(ledger.parameters(), parameters, "{name}");
        let total = ledger.total(Convention::MultiplyAdds) as f64 / 1e9;
        assert!((total - billions).abs() < 5e-3, "{name}: {total}");
    }
}

#[test]
fn parameters_are_those_of_sasas_table() {
    for (name, millions) in [
        ("retinanet-sasa-baseline", 33.397),
        ("retinanet-sasa-conv-stem", 25.879),
        ("retinanet-sasa", 25.871),
        ("retinanet-sasa-conv-stem-attention", 21.987),
        ("retinanet-sasa-attention", 21.979),
    ] {
        let found = ledger(&named(name)).parameters() as f64 / 1e6;
        assert!((found - millions).abs() < 1e-3, "{name}: {found}");
    }
}

#[test]
fn every_parameter_is_in_the_ledger_once() {
    for preset in PRESETS {
        let model = (preset.config)().init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 64, 64]);
        let frozen = model.config.backbone.trunk.norm != NormKind::Batch;
        let parameters: usize = weights::shapes(&model)
            .iter()
            .filter(|(name, _)| !name.contains("running_"))
            .filter(|(name, _)| {
                !(frozen && name.contains("backbone.body") && (name.contains("bn") || name.contains("downsample.1")))
            })
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(ledger.parameters(), parameters as u64, "{}", preset.name);
    }
}

fn nano(name: &str, device: &Device) -> RetinaNet {
    named(name).init(device).unwrap()
}

#[test]
fn small_ones_are_small() {
    for name in ["retinanet-nano", "retinanet-nano-attention"] {
        let parameters = ledger(&named(name)).parameters();
        assert!((300_000..800_000).contains(&parameters), "{name}: {parameters}");
    }
}

fn object(class: usize, corners: [f64; 4]) -> Object {
    Object { class, bounds: Bounds::from_pixel_corners(corners, [64, 64]), crowd: false }
}

#[test]
fn a_gradient_reaches_every_parameter_and_a_picture_without_objects_teaches_background() {
    let device = device::cpu().autodiff();
    for name in ["retinanet-nano", "retinanet-nano-attention"] {
        let model = nano(name, &device);
        let images = Images::unpadded(random_on([2, 3, 64, 64], 1, &device));
        let objects = [
            vec![object(3, [5.0, 5.0, 15.0, 20.0]), object(1, [30.0, 20.0, 52.0, 44.0])],
            vec![object(0, [20.0, 40.0, 48.0, 63.0])],
        ];
        let losses = model.losses(&images, &objects, &mut Pass::silent());
        assert_eq!(losses.parts.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["class", "box"]);
        assert_eq!(without_gradient(&model, &losses.sum().backward()), Vec::<String>::new(), "{name}");
        let empty = model.losses(&images, &[vec![], vec![]], &mut Pass::silent());
        let [class, boxes] = [0, 1].map(|part| values(&empty.parts[part].1)[0]);
        assert!(class > 0.0 && class.is_finite() && boxes == 0.0, "{name}: {class} {boxes}");
    }
}

#[test]
fn any_trunk_of_the_zoo_will_do() {
    for name in ["sasa-nano", "san-nano-pairwise"] {
        let config = named("retinanet-nano");
        let backbone = BackboneConfig { trunk: trunk(name, &[]), ..config.backbone };
        let model = RetinaNetConfig { backbone, ..config }.init(&device::cpu()).unwrap();
        let images = Images::unpadded(random([1, 3, 32, 32], 1));
        let objects = [vec![Object { class: 1, bounds: Bounds { w: 0.5, h: 0.4, ..Bounds::WHOLE }, crowd: false }]];
        let losses = model.losses(&images, &objects, &mut Pass::silent());
        assert!(losses.parts.iter().all(|(_, part)| values(part)[0] > 0.0), "{name}");
    }
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = nano("retinanet-nano-attention", &device::cpu());
    let images = random([2, 3, 64, 64], 1);
    let whole = model.forward(images.clone(), &mut Pass::silent()).logits;
    for index in 0..2 {
        let one = model.forward(images.clone().narrow(0, index, 1), &mut Pass::silent()).logits;
        assert_close(&one, &whole.clone().narrow(0, index, 1), 1e-5);
    }
}

#[test]
fn heads_of_attention_record_their_weights_at_every_level() {
    let model = nano("retinanet-nano-attention", &device::cpu());
    let mut pass = Pass::recording_attention(["backbone.fpn.layer_blocks.0"]);
    model.forward(random([1, 3, 64, 64], 1), &mut pass);
    let trace = pass.into_trace();
    // two heads of two layers and a last one, at three levels
    assert_eq!(trace.attention().count(), 2 * 3 * 3);
    let weights = trace.get::<4>("head.regression_head.conv.1.0.level1.weights").unwrap();
    assert_eq!(weights.dims(), [1, 4, 25, 64]);
    assert!(trace.geometry("head.classification_head.cls_logits.0.level2.weights").is_some());
    assert!(trace.get::<4>("backbone.fpn.layer_blocks.0").is_ok());
}

#[test]
fn a_score_can_be_differentiated_by_the_map_that_it_comes_from() {
    let device = device::cpu().autodiff();
    let model = nano("retinanet-nano", &device).valid();
    let mut pass = Pass::recording_only(["backbone.fpn.layer_blocks.*"]).with_gradients();
    let output = model.forward(random([1, 3, 64, 64], 1), &mut pass);
    let trace = pass.into_trace();
    let grads = output.logit(0, 0, 3).backward();
    let gradient = trace.gradient::<4>("backbone.fpn.layer_blocks.0", &grads).unwrap();
    assert!(values(&gradient).iter().any(|x| *x != 0.0));
}

#[test]
fn the_best_are_over_the_threshold_in_order_and_few() {
    let logits = [-9.0, 2.0, 0.5, 2.0, -1.0, f32::NAN, 3.0];
    let places = |threshold, count| best(&logits, threshold, count).iter().map(|(_, place)| *place).collect::<Vec<_>>();
    assert_eq!(places(0.5, 10), [6, 1, 3, 2]);
    assert_eq!(places(0.5, 2), [6, 1]);
    assert_eq!(places(0.95, 10), [6]);
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: RetinaNetConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let good = named("retinanet-nano");
    assert_eq!(refusal(RetinaNetConfig { classes: 0, ..good.clone() }), "`classes`: must be from 1 to 65536, got 0");
    let anchors = Anchors::torchvision(vec![vec![8.0]]);
    assert_eq!(refusal(RetinaNetConfig { anchors, ..good.clone() }), "`anchors`: have sizes for 1 levels, there are 3");
    let backbone = BackboneConfig { stages: vec![0, 1, 7], ..good.backbone.clone() };
    assert_eq!(
        refusal(RetinaNetConfig { backbone, ..good.clone() }),
        "`stages`: must be some of 0 to 2, rising, got [0, 1, 7]"
    );
    let limits = DetectionLimits { score: 1.5, ..good.limits };
    assert_eq!(refusal(RetinaNetConfig { limits, ..good }), "`limits`: score must be at least 0 and below 1, got 1.5");
}

#[test]
fn a_config_reads_back() {
    for preset in PRESETS {
        let config = (preset.config)();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<RetinaNetConfig>(&text).unwrap(), config, "{}", preset.name);
    }
}
