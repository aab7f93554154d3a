use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{
    Fixture, Tensors, assert_close, copies, fill, random, random_on, shapes, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn nano() -> DeitConfig {
    DeitConfig { image: [16, 16], patch: 4, classes: 10, depth: 2, ..DeitConfig::new(16, 24, 3).with_distillation() }
}

fn assert_parity(config: &DeitConfig, tensors: &Tensors, fixture: &Fixture) {
    let model = fill(config.init(&device::cpu()).unwrap(), tensors).unwrap();
    let silent = model.forward(fixture.tensor("io/input"), &mut Pass::silent());
    assert_close(&silent, &fixture.tensor("io/logits"), TOLERANCE);
    let mut pass = Pass::recording();
    let recorded = model.forward(fixture.tensor("io/input"), &mut pass);
    assert_close(&recorded, &fixture.tensor("io/logits"), TOLERANCE);
    assert_close(&recorded, &silent, TOLERANCE);
    let trace = pass.into_trace();
    for i in 0..config.depth {
        assert_eq!(trace.get::<4>(&format!("blocks.{i}.attn.weights")).unwrap().dims(), [2, 3, 18, 18]);
    }
    assert_eq!(trace.get::<3>("norm").unwrap().dims(), [2, 18, 48]);
}

#[test]
fn a_distilled_model_equals_timm() {
    let fixture = Fixture::load("timm_deit_distilled");
    let config = DeitConfig {
        patch: fixture.usize("patch_size"),
        classes: fixture.usize("num_classes"),
        depth: fixture.usize("depth"),
        distilled: true,
        ..DeitConfig::new(fixture.usize("img_size"), fixture.usize("embed_dim"), fixture.usize("num_heads"))
    };
    assert_parity(&config, &fixture.checkpoint(|name| Some(name.to_string())), &fixture);
}

#[test]
fn a_distilled_model_of_hugging_face_gives_the_same_logits() {
    let fixture = Fixture::load("hf_deit");
    let config = DeitConfig {
        patch: fixture.usize("patch_size"),
        classes: 7,
        depth: fixture.usize("num_hidden_layers"),
        mlp_dim: fixture.usize("intermediate_size"),
        distilled: true,
        epsilon: 1e-12,
        ..DeitConfig::new(
            fixture.usize("image_size"),
            fixture.usize("hidden_size"),
            fixture.usize("num_attention_heads"),
        )
    };
    assert_parity(&config, &fixture.hugging_face(), &fixture);
}

#[test]
fn inference_is_the_mean_of_two_heads_that_differ() {
    let model = nano().init(&device::cpu()).unwrap();
    let images = random([2, 3, 16, 16], 1);
    let Heads { class, distilled } = model.forward_heads(images.clone(), &mut Pass::silent());
    let distilled = distilled.unwrap();
    assert!(crate::testing::distance(&values(&class), &values(&distilled)) > 1e-3);
    let mean = (class + distilled) / 2.0;
    assert_close(&model.forward(images, &mut Pass::silent()), &mean, 1e-6);
}

#[test]
fn a_model_that_is_not_distilled_has_one_head() {
    let model = DeitConfig { distilled: false, ..nano() }.init(&device::cpu()).unwrap();
    assert!(!shapes(&model).keys().any(|name| name.contains("dist")));
    assert_eq!(model.pos_embed.lazy_shape().to_vec(), [1, 17, 24]);
    let logits = model.forward_heads(random([2, 3, 16, 16], 1), &mut Pass::silent());
    assert!(logits.distilled.is_none());
    assert_eq!(logits.class.dims(), [2, 10]);
}

/// Exact parameters, and giga multiply-adds of patches alone as comparison tables count them.
const PUBLISHED: &[(&str, u64, Option<&str>)] = &[
    ("deit-tiny", 5_717_416, None),
    ("deit-small", 22_050_664, Some("4.574")),
    ("deit-base", 86_567_656, Some("17.471")),
    ("deit-base-384", 86_859_496, Some("55.377")),
    ("deit-tiny-distilled", 5_910_800, None),
    ("deit-small-distilled", 22_436_432, Some("4.574")),
    ("deit-base-distilled", 87_338_192, Some("17.471")),
    ("deit-base-distilled-384", 87_630_032, Some("55.377")),
];

fn preset_config(name: &str) -> DeitConfig {
    let preset = PRESETS.iter().find(|preset| preset.name == name).unwrap_or_else(|| panic!("no preset `{name}`"));
    (preset.config)()
}

#[test]
fn every_preset_has_the_published_costs_without_making_its_weights() {
    assert_eq!(PRESETS.len(), PUBLISHED.len());
    for (name, parameters, giga) in PUBLISHED {
        let config = preset_config(name);
        let model = config.init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, config.image[0], config.image[1]]);
        let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!((ledger.parameters(), own as u64), (*parameters, *parameters), "{name}");
        if let Some(giga) = giga {
            let counted = model.cost_of_patches().total(Convention::MultiplyAdds);
            assert_eq!(format!("{:.3}", counted as f64 / 1e9), *giga, "{name}: {counted}");
        }
        assert!(!model.head.weight.is_initialized(), "{name}: counting made the weights");
    }
}

#[test]
fn multiply_adds_with_the_class_token_are_those_of_torchvision() {
    for (name, giga) in [("deit-tiny", "1.254"), ("deit-small", "4.599"), ("deit-base", "17.564")] {
        let ledger = Ledger::of(&preset_config(name).init(&device::cpu()).unwrap(), [3, 224, 224]);
        assert_eq!(format!("{:.3}", ledger.total(Convention::MultiplyAdds) as f64 / 1e9), giga, "{name}");
    }
}

#[test]
fn small_presets_run_and_send_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for (name, ..) in PUBLISHED.iter().filter(|(_, parameters, _)| *parameters < 30_000_000) {
        let config = preset_config(name);
        let model = config.init(&device).unwrap();
        let logits = model.forward(random_on([1, 3, 224, 224], 1, &device), &mut Pass::silent());
        assert_eq!(logits.dims(), [1, config.classes]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{name}");
        let gradients = (logits * random_on([1, config.classes], 2, &device)).sum().backward();
        assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn base_presets_run() {
    for (name, ..) in PUBLISHED.iter().filter(|(_, parameters, _)| *parameters > 30_000_000) {
        let config = preset_config(name);
        let [rows, columns] = config.image;
        let mut model = config.init(&device::cpu()).unwrap();
        model.blocks = copies(&model.blocks[0], config.depth);
        let logits = model.forward(random([1, 3, rows, columns], 1), &mut Pass::silent());
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{name}");
    }
}

#[test]
fn any_image_channels_and_classes_work() {
    let config = DeitConfig { image: [12, 28], channels: 1, classes: 2, ..nano() };
    let model = config.init(&device::cpu()).unwrap();
    let images = random([2, 1, 12, 28], 1);
    let both = model.forward(images.clone(), &mut Pass::silent());
    assert_eq!(both.dims(), [2, 2]);
    assert_close(&both.narrow(0, 1, 1), &model.forward(images.narrow(0, 1, 1), &mut Pass::silent()), 1e-5);
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: DeitConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(refusal(DeitConfig { heads: 5, ..nano() }), "`heads`: must divide dim 24, got 5");
    assert_eq!(refusal(DeitConfig { image: [16, 18], ..nano() }), "`patch`: must divide the image of 16 x 18, got 4");
    assert_eq!(refusal(DeitConfig { depth: 2000, ..nano() }), "`depth`: must be from 1 to 1024, got 2000");
    assert_eq!(refusal(DeitConfig { classes: 0, ..nano() }), "`classes`: must be from 1 to 65536, got 0");
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let json = serde_json::to_string(&nano()).unwrap();
    assert_eq!(serde_json::from_str::<DeitConfig>(&json).unwrap(), nano());
    assert!(serde_json::from_str::<DeitConfig>(&json.replace("distilled", "teacher")).is_err());
}
