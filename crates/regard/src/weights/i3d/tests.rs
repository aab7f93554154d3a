use super::*;
use crate::Pass;
use crate::attention::Affinity;
use crate::data::Clips;
use crate::device::cpu;
use crate::layers::ResidualStem;
use crate::models::i3d::I3dKind;
use crate::models::resnet3d::{ResNet3dConfig, ResNet3dKind};
use crate::testing::{Fixture, assert_close, distance};
use crate::weights::{LoadOptions, Upstream, fill, fit, read, tensors};
use std::path::Path;

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn checkpoint(case: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(case);
    read(&folder.join("model.safetensors")).unwrap()
}

fn config(fixture: &Fixture, kind: I3dKind, non_local: &[[usize; 2]]) -> I3dConfig {
    I3dConfig {
        kind,
        frames: 4,
        image: [32, 48],
        channels: 3,
        classes: fixture.usize("classes"),
        stem: ResidualStem::Large,
        width: fixture.usize("width"),
        layers: serde_json::from_value(fixture.config["depths"].clone()).unwrap(),
        non_local: non_local.to_vec(),
        affinity: Affinity::EmbeddedGaussian,
        sub_sample: true,
    }
}

#[test]
fn networks_of_slowfast_load_by_their_own_names() {
    for (case, kind) in [("nonlocal_c2d", I3dKind::C2d), ("nonlocal_i3d", I3dKind::I3d)] {
        let fixture = Fixture::load(case);
        let model = config(&fixture, kind, &[[3, 1], [4, 0], [4, 2]]).init(&cpu()).unwrap();
        let loaded = fit(model, checkpoint(case), &LoadOptions::default()).unwrap();
        assert_eq!(loaded.upstream, Upstream::Slowfast);
        let logits = loaded.model.forward(&Clips { pixels: fixture.tensor("io/input") }, &mut Pass::silent());
        assert_close(&logits, &fixture.tensor("io/logits"), TOLERANCE);
    }
}

#[test]
fn networks_of_torchvision_load_by_their_own_names() {
    for (case, kind) in [
        ("torchvision_r3d", ResNet3dKind::R3d),
        ("torchvision_mc3", ResNet3dKind::Mc3),
        ("torchvision_r2plus1d", ResNet3dKind::R2plus1d),
    ] {
        let fixture = Fixture::load(case);
        let config = ResNet3dConfig {
            layers: vec![1; 4],
            widths: vec![4, 8, 16, 32],
            classes: 6,
            ..ResNet3dConfig::layers18(kind)
        };
        let loaded = fit(config.init(&cpu()).unwrap(), checkpoint(case), &LoadOptions::default()).unwrap();
        assert_eq!(loaded.upstream, Upstream::Torchvision);
        let logits = loaded.model.forward(&Clips { pixels: fixture.tensor("io/input") }, &mut Pass::silent());
        assert_close(&logits, &fixture.tensor("io/logits"), TOLERANCE);
    }
}

#[test]
fn an_i3d_starts_from_a_resnet_as_the_reference_says() {
    let fixture = Fixture::load("inflate_resnet");
    let start = start_i3d(&config(&fixture, I3dKind::I3d, &[]), checkpoint("inflate_resnet"), &cpu()).unwrap();
    assert_eq!(start.upstream, Upstream::Torchvision);
    assert_eq!(start.new_head, ["head.projection.bias", "head.projection.weight"]);
    let mut ours = tensors(&start.model);
    let mut compared = 0;
    for name in fixture.names("io/after.").filter(|name| !name.ends_with("num_batches_tracked")) {
        let expected = fixture.values(&format!("io/after.{name}"));
        if is_head(name) {
            let shape = ours[name].shape().to_vec();
            ours.insert(name.into(), TensorData::new(expected.to_vec(), shape));
        }
        assert!(distance(ours[name].as_slice().unwrap(), expected) < 1e-7, "{name}");
        compared += 1;
    }
    assert_eq!(compared, ours.len());
    let model = fill(start.model, &ours).unwrap();
    let logits = model.forward(&Clips { pixels: fixture.tensor("io/input") }, &mut Pass::silent());
    assert_close(&logits, &fixture.tensor("io/i3d_logits"), TOLERANCE);
}

#[test]
fn a_c2d_that_starts_from_a_resnet_has_its_features_for_a_clip_in_which_nothing_moves() {
    let fixture = Fixture::load("inflate_resnet");
    for places in [&[][..], &[[3, 1]]] {
        let config = config(&fixture, I3dKind::C2d, places);
        let start = start_i3d(&config, checkpoint("inflate_resnet"), &cpu()).unwrap();
        let still = fixture.tensor::<4>("io/still_frame").unsqueeze_dim::<5>(2).repeat_dim(2, 4);
        let mut pass = Pass::recording();
        start.model.forward(&Clips { pixels: still }, &mut pass);
        let features = pass.into_trace().get::<5>("s5").unwrap().flatten::<3>(2, 4).mean_dim(2).squeeze_dim::<2>(2);
        assert_close(&features, &fixture.tensor("io/c2d_features_of_still"), TOLERANCE);
    }
}

#[test]
fn an_i3d_starts_from_a_c2d_and_keeps_its_head_and_its_non_local_blocks() {
    let fixture = Fixture::load("nonlocal_c2d");
    let config = config(&fixture, I3dKind::I3d, &[[3, 1], [4, 0], [4, 2]]);
    let start = start_i3d(&config, checkpoint("nonlocal_c2d"), &cpu()).unwrap();
    assert!(start.new_head.is_empty());
    let ours = tensors(&start.model);
    let theirs = fixture.values("model/s4.pathway0_nonlocal2.conv_out.weight");
    assert_eq!(ours["s4.pathway0_nonlocal2.output.weight"].as_slice::<f32>().unwrap(), theirs);
    let stem = &ours["s1.pathway0_stem.conv.weight"];
    assert_eq!(stem.shape().to_vec(), [4, 3, 5, 7, 7]);
    assert!(
        (stem.as_slice::<f32>().unwrap()[0] - fixture.values("model/s1.pathway0_stem.conv.weight")[0] / 5.0).abs()
            < 1e-7
    );
}

#[test]
fn what_a_file_lacks_or_has_too_much_is_named() {
    let fixture = Fixture::load("inflate_resnet");
    let config = I3dConfig { layers: [1, 1, 2, 1], ..config(&fixture, I3dKind::I3d, &[]) };
    let error = start_i3d(&config, checkpoint("inflate_resnet"), &cpu()).unwrap_err();
    let Error::Weights { problems, .. } = error else { panic!("{error}") };
    let named = |text: &str| problems.iter().any(|problem| problem.contains(text));
    assert!(named("missing `s4.pathway0_res1.branch2.a.weight` [16, 64, 1, 1, 1]"), "{problems:?}");
    assert!(named("unexpected `s3.pathway0_res1.branch2.a.weight`"), "{problems:?}");
}
