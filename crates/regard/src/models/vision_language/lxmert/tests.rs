use super::super::losses::smooth_l1;
use super::super::tests::{TOLERANCE, assert_gradients, counts, labelled, real, words};
use super::*;
use crate::device::cpu;
use crate::function::cross_entropy;
use crate::pass::Geometry;
use crate::testing::{Fixture, assert_close, fill, weights};

fn filled(fixture: &Fixture, device: &Device) -> Lxmert {
    let config = weights::lxmert_config(&fixture.config).unwrap();
    let tensors = weights::lxmert_names(fixture.checkpoint(|name| Some(name.into()))).unwrap();
    fill(config.init(device).unwrap(), &tensors).unwrap()
}

fn input(fixture: &Fixture, wanted: Wanted, device: &Device) -> VisionLanguageInput {
    let words = words(fixture, "io/ids", &fixture.indices("io/mask"), None);
    let boxes = fixture.tensor_on("io/boxes", device);
    let regions = fixture.tensor_on("io/regions", device);
    let regions = Regions::new(regions, boxes, counts(&fixture.indices("io/region_mask"), 2));
    VisionLanguageInput { words, regions: Some(regions), wanted }
}

#[test]
fn outputs_and_attention_are_those_of_transformers() {
    let fixture = Fixture::load("lxmert");
    let places = real(&[7, 5], 7);
    let wanted = Wanted { words: places.clone(), matching: true, answer: true, ..Wanted::default() };
    let mut pass = Pass::recording();
    let output = filled(&fixture, &cpu()).forward(&input(&fixture, wanted, &cpu()), &mut pass);
    let expected = |name: &str, places: &[usize]| rows_at(fixture.tensor::<3>(name), places);
    assert_close(&rows_at(output.text, &places), &expected("io/language", &places), TOLERANCE);
    let regions = real(&[5, 4], 5);
    assert_close(&rows_at(output.regions.unwrap(), &regions), &expected("io/vision", &regions), TOLERANCE);
    assert_close(&output.pooled, &fixture.tensor("io/pooled"), TOLERANCE);
    assert_close(&output.words.unwrap(), &expected("io/prediction_logits", &places), TOLERANCE);
    assert_close(&output.matching.unwrap(), &fixture.tensor("io/match_logits"), TOLERANCE);
    assert_close(&output.answer.unwrap(), &fixture.tensor("io/answer_logits"), TOLERANCE);

    let trace = pass.into_trace();
    let expected = fixture.tensor::<4>("io/cross.weights").narrow(0, 0, 1);
    let far = |layer: usize| {
        let path = format!("lxmert.encoder.x_layers.{layer}.visual_attention.att.text_over_regions.weights");
        assert_eq!(trace.geometry(&path), Some(&Geometry::everywhere(Axes::Words(7), Axes::Slots(5))));
        let weights = trace.get::<4>(&path).unwrap().narrow(0, 0, 1);
        (weights - expected.clone()).abs().max().into_scalar::<f32>()
    };
    // the fixture does not say of which layer
    assert!(far(0).min(far(1)) < 1e-5, "{} {}", far(0), far(1));
}

#[test]
fn the_summed_loss_and_its_gradients_are_those_of_transformers() {
    let (fixture, device) = (Fixture::load("lxmert"), cpu().autodiff());
    let model = filled(&fixture, &device);
    let (places, labels) = labelled(fixture.values("io/labels"));
    let count = labels.len() as f32;
    // losses of regions are divided by all of them, padding included
    let counted: Vec<usize> = fixture.indices("io/counted_regions");
    let regions: Vec<usize> = (0..10).filter(|at| counted[*at] == 1).collect();
    let wanted = Wanted { words: places, regions: regions.clone(), matching: true, answer: true, ..Wanted::default() };
    let output = model.forward(&input(&fixture, wanted, &device), &mut Pass::silent());
    let class =
        |name: &str| -> Vec<Option<u32>> { fixture.indices(name).iter().map(|label| Some(*label as u32)).collect() };
    let of_regions = |name: &str| -> Vec<Option<u32>> {
        let all = class(name);
        regions.iter().map(|at| all[*at]).collect()
    };
    let features = rows_at(fixture.tensor_on("io/features", &device), &regions);
    let loss = cross_entropy(output.words.unwrap(), labels, 0.0) / count
        + cross_entropy(output.matching.unwrap(), class("io/matched"), 0.0) / 2.0
        + cross_entropy(output.answer.unwrap(), class("io/answer"), 0.0) / 2.0
        + (cross_entropy(output.region_classes.unwrap(), of_regions("io/objects"), 0.0)
            + cross_entropy(output.region_attributes.unwrap(), of_regions("io/attributes"), 0.0)
            + smooth_l1(output.region_features.unwrap(), features) / 16.0)
            * 6.67
            / 10.0;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), TOLERANCE);
    assert_gradients(&fixture, &model, &loss, 3);
}
