use super::*;
use crate::attention::position::resample;
use crate::cost::Convention;
use crate::device;
use crate::testing::{
    Fixture, Tensors, assert_close, copies, fill, random, random_on, shapes, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn timm(fixture: &Fixture) -> VitConfig {
    let dim = fixture.usize("embed_dim");
    VitConfig {
        image: [fixture.usize("img_size"); 2],
        patch: fixture.usize("patch_size"),
        channels: 3,
        classes: fixture.usize("num_classes"),
        dim,
        depth: fixture.usize("depth"),
        heads: fixture.usize("num_heads"),
        mlp_dim: 4 * dim,
        pool: if fixture.text("pool") == "cls" { Pool::ClassToken } else { Pool::Average },
        epsilon: 1e-6,
    }
}

fn own_names(fixture: &Fixture) -> Tensors {
    fixture.checkpoint(|name| Some(name.to_string()))
}

fn filled(config: &VitConfig, tensors: &Tensors) -> Vit {
    fill(config.init(&device::cpu()).unwrap(), tensors).unwrap()
}

/// Logits of a silent and of a recorded pass equal the reference; gives what was recorded.
fn assert_parity(model: &Vit, fixture: &Fixture) -> crate::Trace {
    let silent = model.forward(fixture.tensor("io/input"), &mut Pass::silent());
    assert_close(&silent, &fixture.tensor("io/logits"), TOLERANCE);
    let mut pass = Pass::recording();
    let recorded = model.forward(fixture.tensor("io/input"), &mut pass);
    assert_close(&recorded, &fixture.tensor("io/logits"), TOLERANCE);
    assert_close(&recorded, &silent, TOLERANCE);
    pass.into_trace()
}

#[test]
fn a_class_token_model_equals_timm_with_its_weights_and_tokens() {
    let fixture = Fixture::load("timm_vit");
    let trace = assert_parity(&filled(&timm(&fixture), &own_names(&fixture)), &fixture);
    for i in 0..3 {
        let name = format!("blocks.{i}.attn.weights");
        assert_close(&trace.get::<4>(&name).unwrap(), &fixture.tensor(&format!("io/{name}")), 1e-5);
    }
    assert_close(&trace.get::<3>("norm").unwrap(), &fixture.tensor("io/tokens"), TOLERANCE);
    let names: Vec<&str> = trace.names().collect();
    assert_eq!(
        names,
        [
            "blocks.0.attn.weights",
            "blocks.0",
            "blocks.1.attn.weights",
            "blocks.1",
            "blocks.2.attn.weights",
            "blocks.2",
            "norm"
        ]
    );
}

#[test]
fn an_averaged_model_equals_timm() {
    let fixture = Fixture::load("timm_vit_gap");
    assert_parity(&filled(&timm(&fixture), &own_names(&fixture)), &fixture);
}

#[test]
fn a_model_for_another_image_size_equals_timm_with_resampled_positions() {
    let fixture = Fixture::load("timm_vit_resized");
    let (learned, asked) = (timm(&fixture), VitConfig { image: [48, 64], ..timm(&fixture) });
    let positions = resample(fixture.tensor("model/pos_embed"), learned.grid(), asked.grid(), asked.prefix());
    assert_close(&positions, &fixture.tensor("io/resampled_pos_embed"), 1e-5);
    let mut tensors = own_names(&fixture);
    tensors.insert("pos_embed".into(), positions.into_data());
    assert_parity(&filled(&asked, &tensors), &fixture);
}

#[test]
fn a_model_of_hugging_face_gives_the_same_logits() {
    let fixture = Fixture::load("hf_vit");
    let config = VitConfig {
        image: [fixture.usize("image_size"); 2],
        patch: fixture.usize("patch_size"),
        channels: fixture.usize("num_channels"),
        classes: 7,
        dim: fixture.usize("hidden_size"),
        depth: fixture.usize("num_hidden_layers"),
        heads: fixture.usize("num_attention_heads"),
        mlp_dim: fixture.usize("intermediate_size"),
        pool: Pool::ClassToken,
        epsilon: 1e-12,
    };
    assert_parity(&filled(&config, &fixture.hugging_face()), &fixture);
}

#[test]
fn a_model_of_torchvision_gives_the_same_logits() {
    const WORDS: &[(&str, &str)] = &[
        ("class_token", "cls_token"),
        ("encoder.pos_embedding", "pos_embed"),
        ("conv_proj", "patch_embed.proj"),
        ("encoder.layers.encoder_layer_", "blocks."),
        ("self_attention.in_proj_", "attn.qkv."),
        ("self_attention.out_proj", "attn.proj"),
        ("ln_1", "norm1"),
        ("ln_2", "norm2"),
        ("mlp.0", "mlp.fc1"),
        ("mlp.3", "mlp.fc2"),
        ("encoder.ln", "norm"),
        ("heads.head", "head"),
    ];
    let fixture = Fixture::load("torchvision_vit");
    let config = VitConfig {
        image: [fixture.usize("image_size"); 2],
        patch: fixture.usize("patch_size"),
        channels: 3,
        classes: fixture.usize("classes"),
        dim: fixture.usize("dim"),
        depth: fixture.usize("depth"),
        heads: fixture.usize("heads"),
        mlp_dim: fixture.usize("mlp_dim"),
        pool: Pool::ClassToken,
        epsilon: 1e-6,
    };
    let tensors =
        fixture.checkpoint(|name| Some(WORDS.iter().fold(name.to_string(), |name, (from, to)| name.replace(from, to))));
    assert_parity(&filled(&config, &tensors), &fixture);
}

fn preset_config(name: &str) -> VitConfig {
    let preset = PRESETS.iter().find(|preset| preset.name == name).unwrap_or_else(|| panic!("no preset `{name}`"));
    (preset.config)()
}

fn ledger(name: &str) -> Ledger {
    let config = preset_config(name);
    let model = config.init(&device::cpu()).unwrap();
    let ledger = Ledger::of(&model, [3, config.image[0], config.image[1]]);
    let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
    assert_eq!(ledger.parameters(), own as u64, "{name}: the ledger misses parameters");
    assert!(!model.head.weight.is_initialized(), "{name}: counting made the weights");
    ledger
}

/// Exact parameters: torchvision's for B/16, B/32, L/16, L/32 and H/14; the others by the paper's formula.
const PARAMETERS: &[(&str, u64)] = &[
    ("vit-nano", 1_007_626),
    ("vit-tiny-patch16-224", 5_717_416),
    ("vit-small-patch16-224", 22_050_664),
    ("vit-base-patch32-224", 88_224_232),
    ("vit-base-patch16-224", 86_567_656),
    ("vit-base-patch16-384", 86_859_496),
    ("vit-large-patch32-224", 306_535_400),
    ("vit-large-patch32-384", 306_632_680),
    ("vit-large-patch16-224", 304_326_632),
    ("vit-large-patch16-384", 304_715_752),
    ("vit-huge-patch14-224", 632_045_800),
    ("vit-tiny-patch16-gap-224", 5_717_032),
    ("vit-small-patch16-gap-224", 22_049_896),
    ("vit-base-patch16-gap-224", 86_566_120),
];

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PARAMETERS.len());
    for (name, parameters) in PARAMETERS {
        assert_eq!(ledger(name).parameters(), *parameters, "{name}");
    }
}

#[test]
fn multiply_adds_are_those_of_torchvision() {
    for (name, giga) in [
        ("vit-tiny-patch16-224", "1.254"),
        ("vit-small-patch16-224", "4.599"),
        ("vit-base-patch32-224", "4.409"),
        ("vit-base-patch16-224", "17.564"),
        ("vit-base-patch16-384", "55.484"),
        ("vit-large-patch32-224", "15.378"),
        ("vit-large-patch16-224", "61.555"),
        ("vit-large-patch16-384", "191.066"),
        ("vit-huge-patch14-224", "167.295"),
    ] {
        let counted = ledger(name).total(Convention::MultiplyAdds);
        assert_eq!(format!("{:.3}", counted as f64 / 1e9), giga, "{name}: {counted}");
    }
}

#[test]
fn multiply_adds_of_patches_alone_are_those_of_comparison_tables() {
    for (name, giga) in [("vit-base-patch16-384", "55.377"), ("vit-large-patch16-384", "190.707")] {
        let counted =
            preset_config(name).init(&device::cpu()).unwrap().cost_of_patches().total(Convention::MultiplyAdds);
        assert_eq!(format!("{:.3}", counted as f64 / 1e9), giga, "{name}: {counted}");
        let config = preset_config(name).averaged();
        let averaged = Ledger::of(&config.init(&device::cpu()).unwrap(), [3, 384, 384]);
        let head = (config.dim * config.classes) as u64;
        assert_eq!(averaged.total(Convention::MultiplyAdds) - head, counted, "{name}: patches alone");
    }
}

#[test]
fn lines_of_the_ledger_are_parts_of_the_model() {
    for config in [VitConfig::nano(), VitConfig::nano().averaged()] {
        let model = config.init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 32, 32]);
        for name in shapes(&model).keys() {
            let part = name.rsplit_once('.').map_or("", |(part, _)| part);
            let known =
                ledger.lines().iter().any(|line| line.parameters > 0 && (line.name == part || line.name == *name));
            assert!(known, "`{name}` is in no line");
        }
    }
}

#[test]
fn small_presets_run_and_send_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for (name, _) in PARAMETERS.iter().filter(|(_, parameters)| *parameters < 30_000_000) {
        let config = preset_config(name);
        let model = config.init(&device).unwrap();
        let [rows, columns] = config.image;
        let logits = model.forward(random_on([1, 3, rows, columns], 1, &device), &mut Pass::silent());
        assert_eq!(logits.dims(), [1, config.classes]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{name}");
        let gradients = (logits * random_on([1, config.classes], 2, &device)).sum().backward();
        assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn base_presets_run() {
    for (name, _) in PARAMETERS.iter().filter(|(_, parameters)| (30_000_000..100_000_000).contains(parameters)) {
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
    for pool in [Pool::ClassToken, Pool::Average] {
        let config = VitConfig { image: [12, 28], channels: 5, classes: 2, pool, ..VitConfig::nano() };
        let model = config.init(&device::cpu()).unwrap();
        let images = random([2, 5, 12, 28], 1);
        let both = model.forward(images.clone(), &mut Pass::silent());
        assert_eq!(both.dims(), [2, 2]);
        let second = model.forward(images.narrow(0, 1, 1), &mut Pass::silent());
        assert_close(&both.narrow(0, 1, 1), &second, 1e-5);
    }
}

#[test]
#[should_panic(
    expected = "positions are learned for 32 x 32; build the model for the other size and resample `pos_embed`"
)]
fn an_image_of_another_size_says_what_to_do() {
    VitConfig::nano().init(&device::cpu()).unwrap().forward(random([1, 3, 28, 28], 1), &mut Pass::silent());
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: VitConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let nano = VitConfig::nano;
    assert_eq!(refusal(VitConfig { heads: 5, ..nano() }), "`heads`: must divide dim 128, got 5");
    assert_eq!(refusal(VitConfig { patch: 5, ..nano() }), "`patch`: must divide the image of 32 x 32, got 5");
    assert_eq!(refusal(VitConfig { depth: 0, ..nano() }), "`depth`: must be from 1 to 1024, got 0");
    assert_eq!(refusal(VitConfig { classes: 0, ..nano() }), "`classes`: must be from 1 to 65536, got 0");
    assert_eq!(refusal(VitConfig { epsilon: 0.0, ..nano() }), "`epsilon`: must be between 0 and 1, got 0");
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let json = serde_json::to_string(&VitConfig::nano()).unwrap();
    assert!(json.contains(r#""pool":"class-token""#), "{json}");
    assert_eq!(serde_json::from_str::<VitConfig>(&json).unwrap(), VitConfig::nano());
    assert!(serde_json::from_str::<VitConfig>(&json.replace("mlp_dim", "mlp_ratio")).is_err());
}
