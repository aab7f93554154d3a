//! DeiT-Tiny with its published weights on a hundred photos, against timm. Both are too large for this repository: the
//! test looks for them in `$REGARD_SHARED/deit_tiny` or `../shared/data/deit_tiny` and says when it finds nothing.

use burn::tensor::{Tensor, TensorData};
use regard::analyse::{Check, HeadMeans, Query, RolloutOptions, distance, explain};
use regard::data::{Picture, prepare};
use regard::weights::{self, LoadOptions};
use regard::{Pass, device, models};
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn folder() -> Option<PathBuf> {
    let root = env!("CARGO_MANIFEST_DIR");
    let shared =
        std::env::var("REGARD_SHARED").map_or_else(|_| PathBuf::from(root).join("../../../shared/data"), PathBuf::from);
    Some(shared.join("deit_tiny")).filter(|folder| folder.join("reference.json").is_file())
}

/// DeiT-Tiny with its published weights.
fn deit_tiny(folder: &Path) -> (models::Model, models::AnyPreset) {
    let preset = models::preset("deit-tiny").unwrap();
    let model = preset.config.init(&device::cpu()).unwrap();
    let file = folder.join("deit_tiny_patch16_224.safetensors");
    (weights::load(model, &file, &LoadOptions::default()).unwrap().model, preset)
}

fn skipped() {
    // stderr of a passing test is shown by `--nocapture` alone; the note is for those who look
    std::io::stderr().write_all(b"SKIPPED: no deit_tiny folder; set REGARD_SHARED\n").unwrap();
}

#[test]
fn early_heads_look_near_and_far_and_late_ones_far_alone_and_every_check_holds() {
    let Some(folder) = folder() else { return skipped() };
    let (model, preset) = deit_tiny(&folder);
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let mut means = HeadMeans::of(distance);
    for photo in &reference["photos"].as_array().unwrap()[..4] {
        let picture = Picture::open(&folder.join("photos").join(photo["file"].as_str().unwrap())).unwrap();
        let pixels = prepare(&picture, &preset.preprocess, [224, 224]);
        let image = Tensor::from_data(TensorData::new(pixels, [1, 3, 224, 224]), &device::cpu());
        let found = explain(&model, image, 5).unwrap();
        assert_eq!(photo["top5"][0].as_u64(), Some(found.answers[0].class as u64));
        assert!(found.checks().iter().all(Check::holds), "{:?}", found.checks());
        assert!(found.rollout(RolloutOptions::default()).unwrap().check().holds());
        assert_eq!(found.maps(Query::Token(0)).len(), 12);
        means.add(&found.attentions).unwrap();
    }
    // Raghu et al. 2021, figure 3: in pixels of 224, where looking at all alike is about 117
    let layers = means.layers();
    let near = |layer: usize| layers[layer].heads.iter().copied().fold(f64::INFINITY, f64::min);
    let far = |layer: usize| layers[layer].heads.iter().copied().fold(0.0, f64::max);
    assert!(near(1) < 40.0 && far(2) > 70.0, "{:?}", &layers[..3]);
    assert!((9..12).all(|layer| near(layer) > 90.0), "{:?}", &layers[9..]);
}

#[test]
fn a_hundred_photos_are_classified_as_timm_does() {
    let Some(folder) = folder() else { return skipped() };
    let (model, preset) = deit_tiny(&folder);
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let logits = weights::read(&folder.join("reference_logits.safetensors")).unwrap().tensors;
    let expected: Vec<f32> = logits.values().next().unwrap().iter::<f32>().collect();

    let (mut same, mut right, mut distances) = (0, 0, Vec::new());
    for (photo, expected) in reference["photos"].as_array().unwrap().iter().zip(expected.chunks(1000)) {
        let picture = Picture::open(&folder.join("photos").join(photo["file"].as_str().unwrap())).unwrap();
        let pixels = prepare(&picture, &preset.preprocess, [224, 224]);
        let input = Tensor::from_data(TensorData::new(pixels, [1, 3, 224, 224]), &device::cpu());
        let logits: Vec<f32> = model.forward(input, &mut Pass::silent()).into_data().iter::<f32>().collect();
        let best = (0..1000).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u64;
        same += usize::from(photo["top5"][0].as_u64() == Some(best));
        right += usize::from(photo["label"].as_u64() == Some(best));
        distances.push(logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max));
    }
    distances.sort_by(f32::total_cmp);
    let median = distances[distances.len() / 2];
    writeln!(std::io::stderr(), "same top-1: {same}, right: {right}, median largest difference: {median}").unwrap();
    assert!(same >= 97, "only {same} of 100 photos have timm's best answer");
    assert!((78..=80).contains(&right), "{right} of 100 photos are right");
    assert!(median <= 0.1, "the median of the largest differences is {median}");
}
