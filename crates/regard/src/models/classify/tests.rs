use super::non_local_resnet::{NonLocalPlacement, NonLocalResNetConfig};
use super::resnet::ResNetConfig;
use super::*;
use crate::attention::Affinity;
use crate::cost::Convention;
use crate::device;
use crate::pass::StochasticDepth;
use crate::testing::{assert_close, random, random_on, values, weights, without_gradient};
use std::collections::BTreeSet;

#[test]
fn names_are_unique_and_every_preset_can_be_counted_without_making_a_parameter() {
    let mut names = BTreeSet::new();
    for preset in presets() {
        assert!(names.insert(preset.name), "{} stands twice", preset.name);
        let ledger = preset.ledger().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        assert!(ledger.parameters() > 0 && ledger.total(Convention::MultiplyAdds) > 0, "{}", preset.name);
    }
    assert!(names.len() > 30, "{names:?}");
}

#[test]
fn the_ledger_counts_exactly_the_parameters_of_the_model() {
    for preset in presets() {
        let model = preset.config.init(&device::cpu()).unwrap();
        let parameters: usize = weights::shapes(&model)
            .iter()
            .filter(|(name, _)| !name.ends_with("running_mean") && !name.ends_with("running_var"))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(preset.ledger().unwrap().parameters(), parameters as u64, "{}", preset.name);
    }
}

#[test]
fn names_in_the_ledger_are_paths_of_parameters() {
    for preset in presets() {
        let model = preset.config.init(&device::cpu()).unwrap();
        let shapes = weights::shapes(&model);
        for line in preset.ledger().unwrap().lines().iter().filter(|line| line.parameters > 0) {
            let below = format!("{}.", line.name);
            let known = shapes.keys().any(|name| *name == line.name || name.starts_with(&below));
            assert!(known, "{}: no parameter below `{}`", preset.name, line.name);
        }
    }
}

#[test]
fn small_presets_have_about_the_same_number_of_parameters() {
    for name in ["vit-nano", "san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "resnet-nano"] {
        let parameters = preset(name).unwrap().ledger().unwrap().parameters();
        assert!((800_000..=1_200_000).contains(&parameters), "{name} has {parameters}");
    }
}

#[test]
fn every_preset_survives_toml() {
    for preset in presets() {
        let text = preset.config.to_toml();
        assert_eq!(ModelConfig::from_toml(&text).unwrap(), preset.config, "{text}");
    }
}

#[test]
fn any_preset_takes_another_number_of_classes() {
    for preset in presets() {
        let config = preset.config.with("classes", serde_json::json!(7)).unwrap();
        let mut ledger = Ledger::default();
        let model = config.init(&device::cpu()).unwrap();
        let [height, width] = config.image();
        assert_eq!(model.cost(vec![config.channels(), height, width], &mut ledger), [7], "{}", preset.name);
    }
}

#[test]
fn an_unknown_name_or_field_tells_the_nearest() {
    let error = preset("vit-nanno").unwrap_err().to_string();
    assert!(error.contains("`vit-nanno`") && error.contains("`vit-nano`"), "{error}");
    let error = preset("vit-nano").unwrap().config.with("deph", serde_json::json!(3)).unwrap_err().to_string();
    assert!(error.contains("`deph`") && error.contains("`depth`"), "{error}");
    let error = ModelConfig::from_toml("model = \"vit\"\ndeph = 3").unwrap_err().to_string();
    assert!(error.contains("deph") && error.contains("line "), "{error}");
    let error = preset("vit-tiny").unwrap_err().to_string();
    assert!(error.contains("`vit-tiny-patch16-224`"), "{error}");
}

#[test]
fn a_fresh_non_local_resnet_gives_the_logits_of_the_resnet_with_its_weights() {
    for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation] {
        for placement in [NonLocalPlacement::BeforeLast, NonLocalPlacement::EverySecond, NonLocalPlacement::Every] {
            let scale = false;
            let config = NonLocalResNetConfig { placement, affinity, scale, ..NonLocalResNetConfig::nano() };
            let model = config.init(&device::cpu()).unwrap();
            let mut tensors = weights::tensors(&model);
            tensors.retain(|name, _| !name.starts_with("non_local."));
            let resnet = ResNetConfig::nano().init(&device::cpu()).unwrap();
            let resnet = weights::fill(resnet, &tensors).unwrap();
            let images = random([2, 3, 20, 24], 1);
            let expected = resnet.forward(images.clone(), &mut Pass::silent());
            assert_close(&model.forward(images, &mut Pass::silent()), &expected, 0.0);
        }
    }
}

#[test]
fn sizes_that_cannot_be_built_are_refused_by_name_before_anything_is_allocated() {
    let huge = usize::MAX;
    for preset in presets() {
        let refused = |field: &str, value: serde_json::Value| {
            let config = preset.config.with(field, value.clone()).unwrap();
            config.grid();
            let error = config.init(&device::cpu()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{} {field} = {value}: {error}", preset.name);
        };
        for side in [0, 1_000_000, huge] {
            refused("image", serde_json::json!([side, side]));
        }
        for classes in [0, 1_000_000_000, huge] {
            refused("classes", serde_json::json!(classes));
        }
        refused("channels", serde_json::json!(0));
        refused("channels", serde_json::json!(huge));
        if preset.config.grid().is_some() {
            for patch in [0, huge] {
                refused("patch", serde_json::json!(patch));
            }
        }
    }
}

#[test]
fn more_parameters_than_fit_are_refused_before_the_first_one_is_made() {
    for (name, field, value) in [
        ("vit-nano", "dim", serde_json::json!(65536)),
        ("resnet-50", "width", serde_json::json!(64.0)),
        ("san10-patchwise", "widths", serde_json::json!([65536, 65536, 65536, 65536, 65536])),
        ("sasa-resnet26", "widths", serde_json::json!([65536, 65536, 65536, 65536])),
    ] {
        let config = preset(name).unwrap().config.with(field, value).unwrap();
        let error = config.init(&device::cpu()).unwrap_err().to_string();
        assert!(error.contains("`model`: must have at most 8589934592 parameters"), "{name}: {error}");
    }
}

/// Name, stride and channels of every map of a backbone.
fn features(name: &str, changes: &[(&str, serde_json::Value)]) -> Vec<(String, usize, usize)> {
    let config = preset(name).unwrap().config;
    let config = changes.iter().fold(config, |config, (field, value)| config.with(field, value.clone()).unwrap());
    let [rows, columns] = config.image();
    let images = random([1, config.channels(), rows, columns], 1);
    let pass = &mut Pass::silent();
    let features = match config.init(&device::cpu()).unwrap() {
        Model::Vit(model) => model.features(images, pass),
        Model::Resnet(model) => model.features(images, pass),
        Model::San(model) => model.features(images, pass),
        Model::Sasa(model) => model.features(images, pass),
        other => panic!("{name} is no backbone: {other:?}"),
    };
    let described = features.into_iter().map(|FeatureMap { name, stride, map }| {
        let [_, channels, height, width] = map.dims();
        assert_eq!([height, width], [rows / stride, columns / stride], "{name}");
        (name, stride, channels)
    });
    described.collect()
}

#[test]
fn backbones_have_the_strides_and_channels_of_their_papers() {
    let maps = |names: &str, rows: &[(usize, usize)]| -> Vec<(String, usize, usize)> {
        let number = |at: usize| if names == "layer" { format!("layer{}", at + 1) } else { format!("{names}{at}") };
        rows.iter().enumerate().map(|(at, (stride, channels))| (number(at), *stride, *channels)).collect()
    };
    let image = ("image", serde_json::json!([64, 96]));
    let small = std::slice::from_ref(&image);
    assert_eq!(features("resnet-50", small), maps("layer", &[(4, 256), (8, 512), (16, 1024), (32, 2048)]));
    assert_eq!(features("resnet-nano", small), maps("layer", &[(1, 16), (2, 32), (4, 64), (8, 128)]));
    assert_eq!(features("san-nano-pairwise", small), maps("stages.", &[(2, 64), (4, 256), (8, 512)]));
    assert_eq!(features("sasa-nano", small), maps("groups.", &[(2, 128), (4, 256), (8, 512)]));
    assert_eq!(features("vit-nano", small), [("blocks.4".to_string(), 4, 128)]);
}

/// A small model of every family, with a parameter in the branch of its first and of its last block.
const FAMILIES: &[(&str, &str, &str, &str)] = &[
    ("vit-nano", r#"{"image": [16, 16]}"#, "blocks.0.mlp.fc2.weight", "blocks.4.mlp.fc2.weight"),
    (
        "deit-tiny-distilled",
        r#"{"image": [16, 16], "patch": 8, "depth": 3, "dim": 24, "mlp_dim": 48}"#,
        "blocks.0.attn.proj.weight",
        "blocks.2.attn.proj.weight",
    ),
    (
        "deit3-small",
        r#"{"image": [16, 16], "patch": 8, "depth": 3, "dim": 24, "mlp_dim": 48, "layer_scale": 0.1}"#,
        "blocks.0.ls2.gamma",
        "blocks.2.ls2.gamma",
    ),
    (
        "resnet-nano",
        r#"{"image": [16, 16], "layers": [1, 1, 1, 1]}"#,
        "layer_.0.0.conv2.weight",
        "layer_.3.0.conv2.weight",
    ),
    (
        "regnety-4gf",
        r#"{"depth": 8, "initial_width": 16, "slope": 16.0, "multiplier": 2.0, "group_width": 8}"#,
        "s_.0.b_.0.conv3.conv.weight",
        "s_.3.b_.2.conv3.conv.weight",
    ),
    (
        "non-local-resnet-nano",
        r#"{"image": [16, 16], "layers": [1, 1, 2, 1], "placement": "every"}"#,
        "layer_.0.0.bn2.Batch.gamma",
        "layer_.3.0.bn2.Batch.gamma",
    ),
    (
        "san-nano-pairwise",
        r#"{"widths": [32, 64, 64], "blocks": [1, 1, 2]}"#,
        "stages.0.layer.0.conv.weight",
        "stages.2.layer.1.conv.weight",
    ),
    (
        "san-nano-patchwise",
        r#"{"widths": [32, 64, 64], "blocks": [1, 1, 2]}"#,
        "stages.0.layer.0.bn2.beta",
        "stages.2.layer.1.bn2.beta",
    ),
    (
        "sasa-nano",
        r#"{"image": [16, 16], "widths": [16, 16, 32], "blocks": [1, 1, 2]}"#,
        "groups.0.0.conv3.weight",
        "groups.2.1.conv3.weight",
    ),
];

fn small(name: &str, changes: &str) -> ModelConfig {
    let changes: serde_json::Map<String, serde_json::Value> = serde_json::from_str(changes).unwrap();
    let preset = preset(name).unwrap().config;
    changes.into_iter().fold(preset, |config, (field, value)| config.with(&field, value).unwrap())
}

fn images(config: &ModelConfig, device: &Device) -> Tensor<4> {
    let image = config.image().map(|side| side.min(32));
    random_on([3, config.channels(), image[0], image[1]], 1, device)
}

fn depth(rate: f64, step: u64) -> Pass {
    Pass::with_stochastic_depth(StochasticDepth { rate, uniform: false, seed: 5, step })
}

#[test]
fn every_family_leaves_branches_out_by_the_step_alone() {
    for (name, changes, ..) in FAMILIES {
        let config = small(name, changes);
        let model = config.init(&device::cpu()).unwrap();
        let run = |mut pass: Pass| values(&model.forward(images(&config, &device::cpu()), &mut pass));
        let (whole, some) = (run(Pass::silent()), run(depth(0.9, 1)));
        assert_eq!(run(depth(0.0, 1)), whole, "{name}");
        assert_eq!(run(depth(0.9, 1)), some, "{name}");
        assert_ne!(some, whole, "{name}");
        assert!((2..6).any(|step| run(depth(0.9, step)) != some), "{name}");
    }
}

#[test]
fn no_gradient_reaches_a_branch_that_every_picture_leaves_out() {
    let device = device::cpu().autodiff();
    for (name, changes, first, last) in FAMILIES {
        let config = small(name, changes);
        let model = config.init(&device).unwrap();
        let missing = |mut pass: Pass| {
            let out = model.forward(images(&config, &device), &mut pass);
            let seed = random_on(out.dims(), 2, &device);
            let missing = without_gradient(&model, &(out * seed).sum().backward());
            [first, last].map(|parameter| missing.iter().any(|name| name.ends_with(*parameter)))
        };
        assert_eq!(missing(depth(1.0 - 1e-12, 1)), [false, true], "{name}: the rate grows from the first to the last");
        assert_eq!(missing(depth(0.0, 1)), [false, false], "{name}");
    }
}

#[test]
fn the_heads_are_apart_for_training_and_one_for_inference() {
    for (name, changes, ..) in FAMILIES {
        let config = small(name, changes);
        let model = config.init(&device::cpu()).unwrap();
        let images = images(&config, &device::cpu());
        let heads = model.forward_heads(images.clone(), &mut Pass::silent());
        assert_eq!(heads.distilled.is_some(), name.contains("distilled"), "{name}");
        assert_eq!(heads.class.dims(), [3, config.classes()], "{name}");
        assert_close(&heads.mean(), &model.forward(images, &mut Pass::silent()), 0.0);
    }
}

#[test]
fn a_part_of_a_field_is_changed_alone() {
    use serde_json::json;
    let config = preset("san-nano-pairwise").unwrap().config;
    let dot = config.with("relation", json!({ "pairwise": { "relation": "dot" } })).unwrap().to_toml();
    assert!(dot.contains("relation = \"dot\"") && dot.contains("position = \"relative\""), "{dot}");
    let patch = config.with("relation", json!({ "patchwise": { "relation": "star" } })).unwrap().to_toml();
    assert!(patch.contains("[relation.patchwise]") && !patch.contains("pairwise"), "{patch}");
    let error = config.with("relation", json!({ "pairwise": { "relatoin": "dot" } })).unwrap_err().to_string();
    assert!(error.contains("relatoin"), "{error}");
}
