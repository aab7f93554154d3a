use super::*;
use crate::testing::{Fixture, distance};
use crate::weights::toy::{SMALL, TIMM, Toy, ToySize};
use crate::weights::{WeightsFormat, tensors};

fn checkpoint(case: &str) -> Checkpoint {
    let tensors = Fixture::load(case).checkpoint(|name| Some(name.to_string()));
    Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() }
}

fn toy(shape: ToySize) -> Toy {
    Toy::new(shape, &device::cpu())
}

fn problems(error: Error) -> String {
    match error {
        Error::Weights { problems, .. } => problems.join("\n"),
        other => panic!("{other}"),
    }
}

fn floats(tensor: &TensorData) -> Vec<f32> {
    tensor.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn files_of_several_upstreams_fill_the_same_model() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for (case, shape, upstream) in [
        ("timm_vit", TIMM, Upstream::Timm),
        ("hf_vit", SMALL, Upstream::HuggingFace),
        ("torchvision_vit", SMALL, Upstream::Torchvision),
        ("hf_deit", ToySize { tokens: 2, positions: 18, ..SMALL }, Upstream::HuggingFace),
    ] {
        let path = fixtures.join(case).join("model.safetensors");
        let loaded = load(toy(shape), &path, &LoadOptions::default()).unwrap();
        assert_eq!((loaded.upstream, loaded.resampled), (upstream, None), "{case}");
        assert_eq!(tensors(&loaded.model), translate(checkpoint(case).tensors, upstream).unwrap(), "{case}");
    }
}

#[test]
fn a_forced_upstream_is_believed() {
    let options = LoadOptions { from: Some(Upstream::Timm), ..LoadOptions::default() };
    let error = problems(fit(toy(SMALL), checkpoint("hf_vit"), &options).unwrap_err());
    assert!(error.contains("unexpected `vit.embeddings.cls_token` [1, 1, 48]"), "{error}");
    assert!(error.contains("missing `cls_token` [1, 1, 48]"), "{error}");
}

#[test]
fn a_head_for_other_classes_is_an_error_unless_a_new_one_is_asked_for() {
    let shape = ToySize { classes: 5, ..TIMM };
    let error = fit(toy(shape), checkpoint("timm_vit"), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`head.weight` is [10, 48], the model needs [5, 48]"), "{error}");

    let model = toy(shape);
    let before = some_tensors(&model, is_head);
    let options = LoadOptions { new_head: Some(5), ..LoadOptions::default() };
    let loaded = fit(model, checkpoint("timm_vit"), &options).unwrap();
    assert_eq!(loaded.new_head, ["head.bias", "head.weight"]);
    let after = tensors(&loaded.model);
    assert_eq!(after["head.weight"], before["head.weight"], "the head starts anew");
    assert_eq!(after["norm.weight"], checkpoint("timm_vit").tensors["norm.weight"], "the rest is loaded");

    let options = LoadOptions { new_head: Some(6), ..LoadOptions::default() };
    let error = fit(toy(shape), checkpoint("timm_vit"), &options).unwrap_err().to_string();
    assert!(error.contains("`new_head`: 6 classes were asked for, and the model's `head.bias` is [5]"), "{error}");
}

#[test]
fn a_checkpoint_without_a_head_takes_a_new_one() {
    let mut headless = checkpoint("timm_vit");
    headless.tensors.retain(|name, _| !is_head(name));
    assert!(fit(toy(TIMM), headless.clone(), &LoadOptions::default()).is_err());
    assert!(fit(toy(TIMM), headless, &LoadOptions { new_head: Some(10), ..LoadOptions::default() }).is_ok());
}

#[test]
fn positions_are_resampled_to_the_grid_of_the_model() {
    let reference = Fixture::load("timm_vit_resized");
    let expected: Tensor<3> = reference.tensor("io/resampled_pos_embed");
    let shape = ToySize { positions: 1 + 6 * 8, ..TIMM };
    let options = LoadOptions { grid: Some([6, 8]), ..LoadOptions::default() };
    let loaded = fit(toy(shape), checkpoint("timm_vit_resized"), &options).unwrap();
    assert_eq!(loaded.resampled, Some([[4, 4], [6, 8]]));
    let positions = floats(&tensors(&loaded.model)["pos_embed"]);
    assert!(distance(&positions, &floats(&expected.into_data())) < 1e-5);
}

#[test]
fn squares_are_found_without_being_told() {
    let shape = ToySize { positions: 1 + 36, ..TIMM };
    let loaded = fit(toy(shape), checkpoint("timm_vit"), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.resampled, Some([[4, 4], [6, 6]]));
    // a table without the class token, as in DeiT-III
    let mut patches = checkpoint("timm_vit");
    let table = floats(&patches.tensors["pos_embed"])[48..].to_vec();
    patches.tensors.insert("pos_embed".into(), TensorData::new(table, [1, 16, 48]));
    let loaded = fit(toy(ToySize { positions: 9, ..TIMM }), patches, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.resampled, Some([[4, 4], [3, 3]]));
}

#[test]
fn a_rectangle_of_as_many_patches_is_another_grid() {
    let options = LoadOptions { grid: Some([2, 8]), ..LoadOptions::default() };
    let loaded = fit(toy(TIMM), checkpoint("timm_vit"), &options).unwrap();
    assert_eq!(loaded.resampled, Some([[4, 4], [2, 8]]));
    let options = LoadOptions { grid: Some([2, 8]), grid_from: Some([2, 8]), ..LoadOptions::default() };
    assert_eq!(fit(toy(TIMM), checkpoint("timm_vit"), &options).unwrap().resampled, None);
    let options = LoadOptions { grid: Some([4, 4]), ..LoadOptions::default() };
    assert_eq!(fit(toy(TIMM), checkpoint("timm_vit"), &options).unwrap().resampled, None);
}

#[test]
fn a_grid_that_cannot_be_is_named() {
    let fail = |positions, grid, grid_from| {
        let options = LoadOptions { grid, grid_from, ..LoadOptions::default() };
        fit(toy(ToySize { positions, ..TIMM }), checkpoint("timm_vit"), &options).unwrap_err().to_string()
    };
    for (error, expected) in [
        (fail(49, None, None), "49 positions (a square and 1 tokens?), the checkpoint 17 (a square?)"),
        (fail(13, None, None), "13 positions (a square and 1 tokens?)"),
        (fail(49, Some([5, 8]), None), "49 positions (5x8 and 1 tokens?)"),
        (fail(49, Some([6, 8]), Some([3, 5])), "the checkpoint 17 (3x5?)"),
        (fail(49, Some([usize::MAX, 8]), None), "`grid`: the model has 49 positions"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_checkpoint_with_a_value_that_is_not_finite_is_refused_by_name() {
    let spoiled = Checkpoint { not_finite: vec!["head.bias".into()], ..checkpoint("timm_vit") };
    let error = fit(toy(TIMM), spoiled, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`head.bias` has values that are NaN or infinite"), "{error}");
}

#[test]
fn a_wrong_checkpoint_says_how_many_classes_it_has_or_what_it_looks_like() {
    let error = fit(toy(ToySize { classes: 5, ..TIMM }), checkpoint("timm_vit"), &LoadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Weights { classes: Some(10), looks_like: None, .. }), "{error:?}");
    let deit = crate::models::preset("deit-tiny").unwrap().config.init(&device::cpu()).unwrap();
    let tensors = shapes(&deit).into_iter().map(|(name, shape)| (name, TensorData::zeros::<f32, _>(shape))).collect();
    let deit = Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() };
    let error = fit(toy(TIMM), deit, &LoadOptions::default()).unwrap_err().to_string();
    assert!(
        error.lines().count() == 3 && error.contains("this looks like ") && error.contains("`deit-tiny`"),
        "{error}"
    );
}

#[test]
fn a_classifiers_weights_fill_a_trunk_without_their_head() {
    let checkpoint = || checkpoint("resnet_basic");
    let width = checkpoint().tensors["conv1.weight"].shape()[0];
    let fields: serde_json::Value = Fixture::load("resnet_basic").config;
    let network = crate::models::preset("resnet-18").unwrap().config;
    let network =
        [("stem_width", width.into()), ("widths", fields["channels"].clone()), ("layers", fields["layers"].clone())]
            .into_iter()
            .fold(network, |network, (field, value)| network.with(field, value).unwrap());
    let trunk = crate::models::TrunkConfig::new(network).init(&device::cpu()).unwrap();
    let error = problems(fit(trunk.clone(), checkpoint(), &LoadOptions::default()).unwrap_err());
    assert!(error.contains("unexpected `fc.weight`"), "{error}");
    let options = LoadOptions { without_head: true, ..LoadOptions::default() };
    let loaded = fit(trunk, checkpoint(), &options).unwrap();
    let mut expected = checkpoint().tensors;
    expected.retain(|name, _| !name.starts_with("fc."));
    assert_eq!(tensors(&loaded.model), expected);
}
