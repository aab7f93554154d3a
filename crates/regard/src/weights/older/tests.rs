use super::*;
use crate::Pass;
use crate::device::cpu;
use crate::models::{self, ModelConfig, video};
use crate::testing::{random, values};
use crate::weights::files::{TensorStorage, read_with_storage};
use crate::weights::{LoadOptions, Tensors, fill, resolve, shapes, tensors, write_tensors};
use serde_json::json;
use std::path::Path;

const PREFIXES: [&str; 5] = ["", "model.", "first.", "second.", "average."];

/// A small network, with weights in whose logits every non-local block has a part.
fn model() -> (ModelConfig, models::Model) {
    let mut config = models::preset("non-local-resnet-nano").unwrap().config;
    for (field, value) in [("widths", json!([4, 8, 12, 8])), ("layers", json!([1, 2, 2, 1])), ("classes", json!(3))] {
        config = config.with(field, value).unwrap();
    }
    cpu().seed(3);
    let model = config.init(&cpu()).unwrap();
    let awake = |(name, tensor): (String, TensorData)| {
        let ones = name.starts_with("non_local.") && name.ends_with(".norm.weight");
        let shape = tensor.shape().to_vec();
        (name, if ones { TensorData::new(vec![1f32; shape.iter().product()], shape) } else { tensor })
    };
    let awake = tensors(&model).into_iter().map(awake).collect();
    (config, fill(model, &awake).unwrap())
}

/// The files of a run that a model is read from.
fn write_run(folder: &Path, config: &ModelConfig, tensors: &Tensors) {
    std::fs::write(folder.join("model.toml"), config.to_toml()).unwrap();
    write_tensors(&folder.join("best.safetensors"), tensors).unwrap();
}

#[test]
fn no_tensor_of_todays_models_is_taken_for_an_older_one() {
    let mut layers = 0;
    let mut check = |name: &str, shape: &[usize]| {
        for prefix in PREFIXES {
            assert!(!is_in_out(&format!("{prefix}{name}"), shape), "{name} {shape:?}");
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            layers += usize::from(is_in_out(&format!("{prefix}{name}"), &reversed));
        }
    };
    for preset in models::presets() {
        shapes(&preset.config.init(&cpu()).unwrap()).iter().for_each(|(name, shape)| check(name, shape));
    }
    for preset in video::presets() {
        shapes(&preset.config.init(&cpu()).unwrap()).iter().for_each(|(name, shape)| check(name, shape));
    }
    // g and output of every block; theta and phi where the affinity has them
    let blocks = |preset: &str| match preset {
        "non-local-resnet-50-10" => 10,
        "non-local-resnet-50-5" => 5,
        _ => 1,
    };
    let nano = 4 * 2;
    let others = ["-1", "-5", "-10", "-1-dot-product", "-1-concatenation"];
    let others: usize = others.iter().map(|name| 4 * blocks(&format!("non-local-resnet-50{name}"))).sum();
    assert_eq!(layers, PREFIXES.len() * (nano + others + 2));
}

#[test]
fn layers_of_every_width_have_one_layout_only() {
    for channels in 2..40 {
        let half = channels / 2;
        for (layer, today) in [("theta", [half, channels]), ("output", [channels, half])] {
            let name = format!("non_local.3.{layer}.weight");
            assert!(!is_in_out(&name, &today), "{name} {today:?}");
            assert!(is_in_out(&name, &[today[1], today[0]]), "{name} {today:?}");
        }
    }
    for other in ["non_local.x.g.weight", "layer1.0.g.weight", "non_local.0.g.bias", "non_local.0.weights", "weight"] {
        assert!(!is_in_out(other, &[8, 4]), "{other}");
    }
}

#[test]
fn a_run_from_before_gives_the_same_logits() {
    let (config, model) = model();
    let images = random([2, 3, 16, 16], 5);
    let logits = |model: &models::Model| values(&model.forward(images.clone(), &mut Pass::silent()));
    let folder = tempfile::tempdir().unwrap();
    let before = as_before(tensors(&model));
    assert_ne!(before, tensors(&model));
    write_run(folder.path(), &config, &before);
    for lazily in [false, true] {
        let source = resolve(folder.path().to_str().unwrap(), &mut |_| {}).unwrap();
        let loaded = source.load_with(&cpu(), &LoadOptions { lazily, ..LoadOptions::default() }).unwrap();
        assert_eq!(logits(&loaded.model), logits(&model), "{lazily}");
    }
}

#[test]
fn layers_large_enough_to_stay_in_the_file_are_read_in_todays_layout_too() {
    let values: Vec<f32> = (0..256 * 128).map(|i| i as f32).collect();
    let today = TensorData::new(values, [128, 256]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let name = "non_local.0.theta.weight".to_string();
    write_tensors(&path, &as_before([(name.clone(), today.clone())].into())).unwrap();
    for storage in [TensorStorage::InMemory, TensorStorage::InFile] {
        let read = read_with_storage(&path, storage).unwrap();
        assert_eq!(read.tensors[&name], today, "{storage:?}");
    }
}
