use super::non_local_resnet::{NonLocalResNetConfig, Placement};
use super::resnet::ResNetConfig;
use super::*;
use crate::attention::Affinity;
use crate::cost::Convention;
use crate::device;
use crate::testing::{assert_close, random, weights};
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
        for placement in [Placement::BeforeLast, Placement::EverySecond, Placement::Every] {
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
