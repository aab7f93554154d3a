//! Checkpoints of every upstream, loaded from their files as a user would, against the logits of that upstream.

use burn::tensor::Tensor;
use regard::models::ModelConfig;
use regard::weights::{self, Export, LoadOptions, Upstream};
use regard::{Pass, device};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(case)
}

/// A tiny vision transformer with some fields of its own.
fn transformer(model: &str, fields: Value) -> ModelConfig {
    let mut config = json!({
        "model": model, "image": [32, 32], "patch": 8, "channels": 3, "classes": 10,
        "dim": 48, "depth": 3, "heads": 3, "mlp_dim": 192, "epsilon": 1e-6,
    });
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

fn residual(block: &str) -> ModelConfig {
    let config = json!({
        "model": "resnet", "image": [64, 64], "channels": 3, "classes": 10, "block": block, "stem": "large",
        "stem_width": 64, "layers": [1, 2, 1, 1], "widths": [8, 16, 32, 64],
    });
    serde_json::from_value(config).unwrap()
}

fn san(relation: Value) -> ModelConfig {
    let config = json!({
        "model": "san", "image": [32, 32], "channels": 3, "classes": 10, "widths": [32, 64, 128], "blocks": [1, 1, 2],
        "footprints": [3, 5, 3], "relation": relation, "sharing": "all-different",
    });
    serde_json::from_value(config).unwrap()
}

fn cases() -> Vec<(&'static str, Upstream, ModelConfig)> {
    let small = json!({"depth": 2, "mlp_dim": 96, "classes": 7});
    let with = |fields: Value| {
        let mut all = small.clone();
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        all
    };
    let regnet = json!({
        "model": "regnet", "image": [64, 64], "channels": 3, "classes": 10, "stem_width": 32, "depth": 8,
        "initial_width": 16, "slope": 16.0, "multiplier": 2.0, "group_width": 8, "squeeze": 0.25,
    });
    vec![
        ("timm_vit", Upstream::Timm, transformer("vit", json!({"pool": "class-token"}))),
        ("timm_vit_gap", Upstream::Timm, transformer("vit", json!({"pool": "average"}))),
        ("timm_vit_resized", Upstream::Timm, transformer("vit", json!({"pool": "class-token", "image": [48, 64]}))),
        ("timm_deit_distilled", Upstream::Timm, transformer("deit", json!({"distilled": true}))),
        ("timm_deit3", Upstream::Timm, transformer("deit3", json!({"layer_scale": 1e-4}))),
        ("hf_vit", Upstream::HuggingFace, transformer("vit", with(json!({"pool": "class-token", "epsilon": 1e-12})))),
        ("hf_deit", Upstream::HuggingFace, transformer("deit", with(json!({"distilled": true, "epsilon": 1e-12})))),
        ("torchvision_vit", Upstream::Torchvision, transformer("vit", with(json!({"pool": "class-token"})))),
        ("resnet_bottleneck", Upstream::Torchvision, residual("bottleneck")),
        ("resnet_basic", Upstream::Torchvision, residual("basic")),
        ("regnety", Upstream::Timm, serde_json::from_value(regnet).unwrap()),
        (
            "san_net_pairwise",
            Upstream::San,
            san(json!({"pairwise": {"relation": "subtraction", "position": "relative"}})),
        ),
        ("san_net_patchwise", Upstream::San, san(json!({"patchwise": {"relation": "concatenation"}}))),
    ]
}

/// Largest difference between the logits of a model and those of a fixture.
fn distance(model: &regard::models::Model, case: &str) -> f32 {
    let io = weights::read(&folder(case).join("io.safetensors")).unwrap().tensors;
    let input = Tensor::from_data(io["input"].clone(), &device::cpu());
    let logits = model.forward(input, &mut Pass::silent()).into_data();
    logits.iter::<f32>().zip(io["logits"].iter::<f32>()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn options(config: &ModelConfig) -> LoadOptions {
    LoadOptions { grid: config.grid(), ..LoadOptions::default() }
}

#[test]
fn checkpoints_of_every_upstream_load_by_themselves_and_give_its_logits() {
    for (case, upstream, config) in cases() {
        let model = config.init(&device::cpu()).unwrap();
        let loaded = weights::load(model, &folder(case).join("model.safetensors"), &options(&config));
        let loaded = loaded.unwrap_or_else(|error| panic!("{case}: {error}"));
        // names of torchvision and timm are the same for a plain ResNet
        assert!(loaded.upstream == upstream || case.starts_with("resnet"), "{case}: taken for {:?}", loaded.upstream);
        let distance = distance(&loaded.model, case);
        assert!(distance < 1e-4, "{case}: logits differ by {distance:e}");
    }
}

#[test]
fn an_exported_transformer_loads_again_to_the_same_bytes() {
    for (case, _, config) in cases().into_iter().filter(|(case, ..)| ["timm_vit", "hf_deit"].contains(case)) {
        let load =
            |path: &Path| weights::load(config.init(&device::cpu()).unwrap(), path, &options(&config)).unwrap().model;
        let model = load(&folder(case).join("model.safetensors"));
        for to in [Upstream::Timm, Upstream::HuggingFace] {
            let out = tempfile::tempdir().unwrap();
            let export = Export {
                to,
                architecture: case.into(),
                image: config.image(),
                heads: Some(3),
                epsilon: 1e-6,
                preprocess: regard::data::Preprocess::DEIT,
                labels: None,
                config: None,
                int8: false,
            };
            weights::export(&model, out.path(), &export).unwrap();
            assert!(out.path().join("config.json").is_file());
            let again = load(&out.path().join("model.safetensors"));
            assert_eq!(weights::tensors(&again), weights::tensors(&model), "{case} by {to:?}");
        }
    }
}
