use super::super::losses::divergence;
use super::super::tests::{TOLERANCE, assert_gradients, labelled, real, words};
use super::*;
use crate::device::cpu;
use crate::function::cross_entropy;
use crate::models::vision_language::Regions;
use crate::pass::{Axes, Geometry};
use crate::testing::{Fixture, assert_close, fill, weights};
use burn::tensor::TensorData;

fn places(fixture: &Fixture, field: &str) -> Vec<usize> {
    serde_json::from_value(fixture.config[field].clone()).unwrap()
}

fn filled(fixture: &Fixture, device: &Device) -> Vilbert {
    let config = VilbertConfig {
        vocabulary: fixture.usize("vocab"),
        positions: 24,
        types: 2,
        layers: fixture.usize("depth"),
        dim: fixture.usize("d"),
        heads: fixture.usize("heads"),
        inner: fixture.usize("inner"),
        region_layers: fixture.usize("vdepth"),
        region_dim: fixture.usize("vd"),
        region_heads: fixture.usize("vheads"),
        region_inner: fixture.usize("vinner"),
        joint_dim: fixture.usize("bi"),
        joint_heads: fixture.usize("biheads"),
        text_places: places(fixture, "tplaces"),
        region_places: places(fixture, "vplaces"),
        features: fixture.usize("vfeat"),
        classes: fixture.usize("classes"),
        ..VilbertConfig::base()
    };
    let tensors = weights::vilbert_names(fixture.checkpoint(|name| Some(name.into()))).unwrap();
    fill(config.init(device).unwrap(), &tensors).unwrap()
}

/// The fixture has a region 0 of its own, which is not the mean of the others.
fn picture(fixture: &Fixture, device: &Device) -> Picture {
    let hidden: Vec<bool> = fixture.indices("io/region_mask").iter().map(|there| *there == 0).collect();
    Picture {
        features: fixture.tensor_on("io/regions", device),
        locations: fixture.tensor_on("io/locations", device),
        padding: Some(Tensor::from_data(TensorData::new(hidden, [2, 6]), device)),
    }
}

fn input(fixture: &Fixture) -> VisionLanguageInput {
    let words = words(fixture, "io/ids", &fixture.indices("io/mask"), Some("io/types"));
    VisionLanguageInput { words, regions: None, wanted: Wanted::default() }
}

#[test]
fn both_streams_and_what_they_see_of_each_other_are_those_of_the_released_code() {
    let fixture = Fixture::load("vilbert");
    let model = filled(&fixture, &cpu());
    let mut pass = Pass::recording();
    let encoded = model.encode(&input(&fixture), &picture(&fixture, &cpu()), &mut pass);
    let expected =
        |name: &str, counts: &[usize], length: usize| rows_at(fixture.tensor::<3>(name), &real(counts, length));
    assert_close(&rows_at(encoded.text.clone(), &real(&[7, 5], 7)), &expected("io/text", &[7, 5], 7), TOLERANCE);
    assert_close(&rows_at(encoded.image.clone(), &real(&[6, 5], 6)), &expected("io/image", &[6, 5], 6), TOLERANCE);
    assert_close(&encoded.pooled_text, &fixture.tensor("io/pooled_text"), TOLERANCE);
    assert_close(&encoded.pooled_image, &fixture.tensor("io/pooled_image"), TOLERANCE);

    let trace = pass.into_trace();
    let (text, regions) = (Axes::Words(7), Axes::Slots(6));
    for (name, queries, keys) in [("text_over_regions", &text, &regions), ("regions_over_text", &regions, &text)] {
        let expected = fixture.tensor::<4>(&format!("io/co.{name}.weights")).narrow(0, 0, 1);
        let far = |layer: usize| {
            let path = format!("bert.encoder.c_layer.{layer}.biattention.{name}.weights");
            assert_eq!(trace.geometry(&path), Some(&Geometry::everywhere(queries.clone(), keys.clone())));
            let weights = trace.get::<4>(&path).unwrap().narrow(0, 0, 1);
            (weights - expected.clone()).abs().max().into_scalar::<f32>()
        };
        // the fixture does not say of which layer
        assert!(far(0).min(far(1)) < 1e-5, "{name}: {} {}", far(0), far(1));
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_released_code() {
    let (fixture, device) = (Fixture::load("vilbert"), cpu().autodiff());
    let model = filled(&fixture, &device);
    let encoded = model.encode(&input(&fixture), &picture(&fixture, &device), &mut Pass::silent());
    let (all_words, all_regions) = (real(&[7, 5], 7), real(&[5, 4], 5));
    let wanted = Wanted { words: all_words.clone(), regions: all_regions.clone(), matching: true, ..Wanted::default() };
    let output = model.output(&encoded, &wanted, &mut Pass::silent());
    let expected = |name: &str, places: &[usize]| rows_at(fixture.tensor::<3>(name), places);
    assert_close(&output.words.unwrap().inner(), &expected("io/prediction_logits", &all_words), TOLERANCE);
    // region 0 comes first
    let shifted: Vec<usize> = all_regions.iter().map(|at| at / 5 * 6 + at % 5 + 1).collect();
    assert_close(&output.region_classes.unwrap().inner(), &expected("io/region_logits", &shifted), TOLERANCE);

    let (places, labels) = labelled(fixture.values("io/labels"));
    let (masked, _) = labelled(fixture.values("io/region_labels"));
    let (word_count, region_count) = (labels.len() as f32, masked.len() as f32);
    let targets = rows_at(fixture.tensor_on("io/region_targets", &device), &masked);
    let wanted = Wanted { words: places, regions: masked, matching: true, ..Wanted::default() };
    let output = model.output(&encoded, &wanted, &mut Pass::silent());
    let mlm = cross_entropy(output.words.unwrap(), labels, 0.0) / word_count;
    let region = divergence(output.region_classes.unwrap(), targets) / region_count;
    let matching = output.matching.unwrap();
    assert_close(&matching.clone().inner(), &fixture.tensor("io/alignment_logits"), TOLERANCE);
    let matched = fixture.indices("io/matched").iter().map(|label| Some(*label as u32)).collect();
    let alignment = cross_entropy(matching, matched, 0.0) / 2.0;
    for (loss, name) in [(&mlm, "mlm_loss"), (&region, "region_loss"), (&alignment, "alignment_loss")] {
        assert_close(&loss.clone().inner(), &fixture.tensor(&format!("io/{name}")), 1e-5);
    }
    assert_gradients(&fixture, &model, &(mlm + region + alignment), 6);
}

#[test]
fn region_0_is_the_mean_of_what_can_be_seen_with_the_whole_picture_as_its_box() {
    let features = Tensor::<3>::from_data([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]]], &cpu());
    let boxes = Tensor::<3>::from_data([[[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.5], [0.0; 4]]], &cpu());
    let mut regions = Regions::new(features, boxes, vec![2]);
    let values = |regions: &Regions| {
        let picture = Picture::of(regions);
        let first = |x: Tensor<3>, at: usize| crate::testing::values(&x.narrow(1, at, 1));
        (first(picture.features, 0), first(picture.locations.clone(), 0), first(picture.locations, 1))
    };
    let (mean, whole, own) = values(&regions);
    assert_eq!((mean, whole, own), (vec![2.0, 3.0], vec![0.0, 0.0, 1.0, 1.0, 1.0], vec![0.0, 0.0, 0.5, 0.5, 0.25]));
    regions.masked = vec![true, false, false];
    assert_eq!(values(&regions).0, [1.5, 2.0]);
}

#[test]
#[should_panic(expected = "vilbert: needs regions, this input has none")]
fn a_text_alone_is_refused() {
    let model = VilbertConfig::nano().init(&cpu()).unwrap();
    let _ = model.forward(&input(&Fixture::load("vilbert")), &mut Pass::silent());
}

#[test]
fn places_that_cannot_be_are_named() {
    let refusal = |config: VilbertConfig| config.init(&cpu()).unwrap_err().to_string();
    let nano = VilbertConfig::nano;
    let error = refusal(VilbertConfig { text_places: vec![2, 1], ..nano() });
    assert_eq!(error, "`text_places`: must increase and be less than the 3 layers, got [2, 1]");
    let error = refusal(VilbertConfig { region_places: vec![0], ..nano() });
    assert_eq!(error, "`region_places`: must be as many as text_places, 2, got 1");
    assert_eq!(refusal(VilbertConfig { region_heads: 5, ..nano() }), "`region_heads`: must divide the width 64, got 5");
}
