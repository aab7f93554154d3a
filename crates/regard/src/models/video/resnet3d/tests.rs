use super::*;
use crate::cost::{Convention, Ledger};
use crate::device;
use crate::testing::{
    Fixture, assert_close, distance, fill, random, random_on, shapes, stirred, values, without_gradient,
};

fn config(fixture: &Fixture) -> ResNet3dConfig {
    ResNet3dConfig {
        frames: 4,
        image: [24, 32],
        channels: 3,
        classes: fixture.usize("classes"),
        kind: serde_json::from_value(fixture.config["kind"].clone()).unwrap(),
        stem_width: fixture.usize("stem_width"),
        layers: serde_json::from_value(fixture.config["layers"].clone()).unwrap(),
        widths: serde_json::from_value(fixture.config["widths"].clone()).unwrap(),
    }
}

#[test]
fn networks_equal_torchvision_by_its_own_names() {
    for case in ["torchvision_r3d", "torchvision_mc3", "torchvision_r2plus1d"] {
        let fixture = Fixture::load(case);
        let tensors = fixture.checkpoint(|name| Some(name.to_string()));
        let model = fill(config(&fixture).init(&device::cpu()).unwrap(), &tensors).unwrap();
        let clips = Clips { pixels: fixture.tensor("io/input") };
        let logits = model.forward(&clips, &mut Pass::silent());
        assert_close(&logits, &fixture.tensor("io/logits"), 1e-4);
        let mut pass = Pass::recording();
        assert_close(&model.forward(&clips, &mut pass), &logits, 1e-6);
        let frames = if case == "torchvision_mc3" { 4 } else { 1 };
        assert_eq!(pass.into_trace().get::<5>("layer4").unwrap().dims(), [1, 32, frames, 2, 2]);
    }
}

/// Exact parameters with 400 classes, by torchvision; multiply-adds in billions, counted here.
const PUBLISHED: &[(&str, u64, &str)] = &[
    ("r3d-nano", 265_738, "0.052"),
    ("r3d-18", 33_371_472, "40.697"),
    ("mc3-18", 11_695_440, "43.343"),
    ("r2plus1d-18", 31_505_325, "40.519"),
];

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PUBLISHED.len());
    for (name, parameters, billions) in PUBLISHED {
        let config = preset(name).unwrap();
        let model = config.init(&device::cpu()).unwrap();
        let [rows, columns] = config.image;
        let ledger = Ledger::of(&model, [3, config.frames, rows, columns]);
        for (name, shape) in shapes(&model).iter().filter(|(name, _)| !name.contains("running")) {
            let part = name.rsplit_once('.').map_or("", |(part, _)| part);
            let known = ledger.lines().iter().any(|line| line.parameters > 0 && line.name == part);
            assert!(known, "`{name}` {shape:?} is in no line");
        }
        assert!(!model.fc.weight.is_initialized(), "counting made the weights");
        let counted = ledger.total(Convention::MultiplyAdds);
        assert_eq!((ledger.parameters(), &*format!("{:.3}", counted as f64 / 1e9)), (*parameters, *billions), "{name}");
    }
}

fn nano(kind: ResNet3dKind) -> ResNet3dConfig {
    ResNet3dConfig { kind, widths: vec![8, 8, 16, 16], stem_width: 8, ..ResNet3dConfig::nano() }
}

const KINDS: [ResNet3dKind; 3] = [ResNet3dKind::R3d, ResNet3dKind::Mc3, ResNet3dKind::R2plus1d];

#[test]
fn small_models_of_every_kind_run_and_send_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for kind in KINDS {
        let model = stirred(nano(kind).init(&device).unwrap());
        let clips = Clips { pixels: random_on([2, 3, 4, 32, 32], 1, &device) };
        let logits = model.forward(&clips, &mut Pass::silent());
        assert_eq!(logits.dims(), [2, 10]);
        let gradients = (logits * random_on([2, 10], 2, &device)).sum().backward();
        assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new(), "{kind:?}");
    }
}

#[test]
fn a_clip_played_backwards_gives_something_else() {
    for kind in KINDS {
        let model = stirred(nano(kind).init(&device::cpu()).unwrap());
        let clips = Clips { pixels: random([1, 3, 4, 32, 32], 1) };
        let [forwards, backwards] =
            [clips.reversed(), clips].map(|clips| values(&model.forward(&clips, &mut Pass::silent())));
        assert!(distance(&forwards, &backwards) > 1e-3, "{kind:?}");
    }
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: ResNet3dConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let nano = ResNet3dConfig::nano;
    assert_eq!(refusal(ResNet3dConfig { frames: 0, ..nano() }), "`frames`: must be from 1 to 65536, got 0");
    let layers = refusal(ResNet3dConfig { layers: vec![1, 0], ..nano() });
    assert_eq!(layers, "`layers`: every stage has 1 to 1000 blocks, got [1, 0]");
    let widths = refusal(ResNet3dConfig { widths: vec![1], ..nano() });
    assert_eq!(widths, "`widths`: each of 4 stages has a width from 1 to 65536, got [1]");
    assert!(preset("r3d-nanno").unwrap_err().to_string().contains("`r3d-nano`"));
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let json = serde_json::to_string(&nano(ResNet3dKind::R2plus1d)).unwrap();
    assert!(json.contains(r#""kind":"r2plus1d""#), "{json}");
    assert_eq!(serde_json::from_str::<ResNet3dConfig>(&json).unwrap(), nano(ResNet3dKind::R2plus1d));
    assert!(serde_json::from_str::<ResNet3dConfig>(&json.replace("frames", "length")).is_err());
}
