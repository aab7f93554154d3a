use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{Fixture, assert_close, copies, fill, random, random_on, shapes, values, without_gradient};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn nano() -> Deit3Config {
    Deit3Config { classes: 10, ..Deit3Config::new(16, [4, 2, 24, 3]) }
}

#[test]
fn it_equals_timm() {
    let fixture = Fixture::load("timm_deit3");
    let sizes = ["patch_size", "depth", "embed_dim", "num_heads"].map(|field| fixture.usize(field));
    let config =
        Deit3Config { classes: fixture.usize("num_classes"), ..Deit3Config::new(fixture.usize("img_size"), sizes) };
    let tensors = fixture.checkpoint(|name| Some(name.to_string()));
    let model = fill(config.init(&device::cpu()).unwrap(), &tensors).unwrap();
    let silent = model.forward(fixture.tensor("io/input"), &mut Pass::silent());
    assert_close(&silent, &fixture.tensor("io/logits"), TOLERANCE);
    let mut pass = Pass::recording();
    let recorded = model.forward(fixture.tensor("io/input"), &mut pass);
    assert_close(&recorded, &fixture.tensor("io/logits"), TOLERANCE);
    assert_close(&recorded, &silent, TOLERANCE);
    let trace = pass.into_trace();
    for i in 0..config.depth {
        assert_eq!(trace.get::<4>(&format!("blocks.{i}.attn.weights")).unwrap().dims(), [2, 3, 17, 17]);
    }
    assert_eq!(trace.get::<3>("norm").unwrap().dims(), [2, 17, 48]);
}

#[test]
fn positions_are_for_patches_alone() {
    let model = nano().init(&device::cpu()).unwrap();
    assert_eq!(model.pos_embed.lazy_shape().to_vec(), [1, 16, 24]);
    let mut pass = Pass::recording_only(["norm"]);
    model.forward(random([1, 3, 16, 16], 1), &mut pass);
    assert_eq!(pass.into_trace().get::<3>("norm").unwrap().dims(), [1, 17, 24]);
}

#[test]
fn residual_branches_start_at_a_ten_thousandth() {
    let model = nano().init(&device::cpu()).unwrap();
    let scale = model.blocks[1].ls2.as_ref().unwrap();
    assert!(values(&scale.gamma.val()).iter().all(|gamma| *gamma == 1e-4));
}

/// Exact parameters: a ViT's, two scales for each block more and one position less.
const PARAMETERS: &[(&str, u64)] = &[
    ("deit3-small", 22_059_496),
    ("deit3-base", 86_585_320),
    ("deit3-large", 304_374_760),
    ("deit3-huge", 632_126_440),
];

fn preset_config(name: &str) -> Deit3Config {
    let preset = PRESETS.iter().find(|preset| preset.name == name).unwrap_or_else(|| panic!("no preset `{name}`"));
    (preset.config)()
}

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PARAMETERS.len());
    for (name, parameters) in PARAMETERS {
        let model = preset_config(name).init(&device::cpu()).unwrap();
        let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
        let counted = Ledger::of(&model, [3, 224, 224]).parameters();
        assert_eq!((counted, own as u64), (*parameters, *parameters), "{name}");
        assert!(!model.head.weight.is_initialized(), "{name}: counting made the weights");
    }
}

#[test]
fn multiply_adds_are_those_of_vit() {
    for (name, giga) in
        [("deit3-small", "4.599"), ("deit3-base", "17.564"), ("deit3-large", "61.555"), ("deit3-huge", "167.295")]
    {
        let ledger = Ledger::of(&preset_config(name).init(&device::cpu()).unwrap(), [3, 224, 224]);
        assert_eq!(format!("{:.3}", ledger.total(Convention::MultiplyAdds) as f64 / 1e9), giga, "{name}");
    }
}

#[test]
fn the_small_preset_sends_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    let model = preset_config("deit3-small").init(&device).unwrap();
    let logits = model.forward(random_on([1, 3, 224, 224], 1, &device), &mut Pass::silent());
    assert!(values(&logits).iter().all(|logit| logit.is_finite()));
    let gradients = (logits * random_on([1, 1000], 2, &device)).sum().backward();
    assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new());
}

#[test]
fn the_base_preset_runs() {
    let mut model = preset_config("deit3-base").init(&device::cpu()).unwrap();
    model.blocks = copies(&model.blocks[0], 12);
    let logits = model.forward(random([1, 3, 224, 224], 1), &mut Pass::silent());
    assert_eq!(logits.dims(), [1, 1000]);
    assert!(values(&logits).iter().all(|logit| logit.is_finite()));
}

#[test]
fn any_image_channels_and_classes_work() {
    let config = Deit3Config { image: [12, 28], channels: 1, classes: 2, ..nano() };
    let model = config.init(&device::cpu()).unwrap();
    let images = random([2, 1, 12, 28], 1);
    let both = model.forward(images.clone(), &mut Pass::silent());
    assert_eq!(both.dims(), [2, 2]);
    assert_close(&both.narrow(0, 1, 1), &model.forward(images.narrow(0, 1, 1), &mut Pass::silent()), 1e-5);
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: Deit3Config| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(refusal(Deit3Config { heads: 5, ..nano() }), "`heads`: must divide dim 24, got 5");
    assert_eq!(refusal(Deit3Config { patch: 0, ..nano() }), "`patch`: must be from 1 to 65536, got 0");
    assert_eq!(
        refusal(Deit3Config { layer_scale: f64::NAN, ..nano() }),
        "`layer_scale`: must be a finite number, got NaN"
    );
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let json = serde_json::to_string(&nano()).unwrap();
    assert_eq!(serde_json::from_str::<Deit3Config>(&json).unwrap(), nano());
    assert!(serde_json::from_str::<Deit3Config>(&json.replace("layer_scale", "scale")).is_err());
}
