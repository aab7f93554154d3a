use super::super::losses::divergence;
use super::super::tests::{TOLERANCE, assert_gradients, counts, labelled, real, rows, words};
use super::*;
use crate::device::cpu;
use crate::function::cross_entropy;
use crate::models::vision_language::Wanted;
use crate::pass::{Axes, Geometry};
use crate::testing::{Fixture, assert_close, fill, stirred, weights};

fn filled(fixture: &Fixture, device: &Device) -> VisualBert {
    let config = weights::visual_bert_config(&fixture.config).unwrap();
    let tensors = weights::visual_bert_names(fixture.checkpoint(|name| Some(name.into()))).unwrap();
    fill(config.init(device).unwrap(), &tensors).unwrap()
}

fn regions(fixture: &Fixture, features: &str, mask: &str, device: &Device) -> Regions {
    let features = fixture.tensor_on::<3>(features, device);
    let [batch, count, _] = features.dims();
    let boxes = Tensor::zeros([batch, count, 4], device);
    Regions::new(features, boxes, counts(&fixture.indices(mask), batch))
}

fn input(fixture: &Fixture, wanted: Wanted, device: &Device) -> VisionLanguageInput {
    let mask = fixture.indices("io/attention_mask");
    let words = words(fixture, "io/input_ids", &mask, Some("io/token_type_ids"));
    let regions = regions(fixture, "io/visual_embeds", "io/visual_attention_mask", device);
    VisionLanguageInput { words, regions: Some(regions), wanted }
}

#[test]
fn words_and_matching_are_those_of_transformers() {
    let fixture = Fixture::load("hf_visual_bert");
    let mask = fixture.indices("io/text_mask");
    let words = words(&fixture, "io/ids", &mask, None);
    let places = real(&[7, 5], 7);
    let wanted = Wanted { words: places, matching: true, ..Wanted::default() };
    let regions = Some(regions(&fixture, "io/regions", "io/region_mask", &cpu()));
    let output = filled(&fixture, &cpu()).forward(&VisionLanguageInput { words, regions, wanted }, &mut Pass::silent());
    // text, then regions
    let expected = rows_at(fixture.tensor("io/prediction_logits"), &real(&[7, 5], 12));
    assert_close(&output.words.unwrap(), &expected, TOLERANCE);
    assert_close(&output.matching.unwrap(), &fixture.tensor("io/alignment_logits"), TOLERANCE);
}

#[test]
fn pretraining_has_the_attention_losses_and_gradients_of_transformers() {
    let (fixture, device) = (Fixture::load("hf_visual_bert_pretraining"), cpu().autodiff());
    let model = filled(&fixture, &device);
    // labels are for words and regions
    let text: Vec<f32> = fixture.values("io/labels").chunks_exact(13).flat_map(|row| row[..8].to_vec()).collect();
    let (places, labels) = labelled(&text);
    let count = labels.len() as f32;
    let wanted = Wanted { words: places, matching: true, ..Wanted::default() };
    let input = input(&fixture, wanted, &device);
    let mut pass = Pass::recording_attention(["nothing"]);
    let output = model.forward(&input, &mut pass);
    let matched = fixture.indices("io/sentence_image_labels").iter().map(|label| Some(*label as u32)).collect();
    let loss = cross_entropy(output.words.unwrap(), labels, 0.0) / count
        + cross_entropy(output.matching.clone().unwrap(), matched, 0.0) / 2.0;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), 1e-5);
    assert_close(&output.matching.unwrap().inner(), &fixture.tensor("io/alignment_logits"), TOLERANCE);
    assert_gradients(&fixture, &model, &loss, 5);

    let trace = pass.into_trace();
    let axes = Axes::Joined(vec![Axes::Words(8), Axes::Slots(5)]);
    assert_eq!(trace.attention().count(), 2);
    assert!(trace.attention().all(|(_, geometry)| *geometry == Geometry::everywhere(axes.clone(), axes.clone())));
    // the fixture does not say of which layer, and padding looks at other things: the first sample has none
    let expected = fixture.tensor::<4>("io/attention.weights").narrow(0, 0, 1);
    let far = |layer: usize| {
        let name = format!("visual_bert.encoder.layer.{layer}.attention.self.weights");
        let weights = trace.get::<4>(&name).unwrap().inner().narrow(0, 0, 1);
        (weights - expected.clone()).abs().max().into_scalar::<f32>()
    };
    assert!(far(0).min(far(1)) < 1e-5, "{} {}", far(0), far(1));
}

#[test]
fn regions_take_the_positions_of_the_words_that_they_show() {
    let fixture = Fixture::load("hf_visual_bert_pretraining");
    let model = filled(&fixture, &cpu());
    let wanted = Wanted { words: real(&[8, 6], 8), matching: true, ..Wanted::default() };
    let mut input = input(&fixture, wanted, &cpu());
    let places = fixture.values("io/image_text_alignment");
    let list = |places: &[f32]| places.iter().filter(|at| **at >= 0.0).map(|at| *at as usize).collect::<Vec<_>>();
    let aligned = places.chunks_exact(3).map(list).collect();
    let plain = model.forward(&input, &mut Pass::silent());
    input.regions.as_mut().unwrap().aligned = aligned;
    for (output, end) in [(plain, ""), (model.forward(&input, &mut Pass::silent()), "_aligned")] {
        let expected = fixture.tensor(&format!("io/prediction_logits{end}"));
        assert_close(&output.words.unwrap(), &rows_at(expected, &real(&[8, 6], 13)), TOLERANCE);
        assert_close(&output.matching.unwrap(), &fixture.tensor(&format!("io/alignment_logits{end}")), TOLERANCE);
    }
}

#[test]
fn questions_are_answered_at_the_mask_before_the_end() {
    let (fixture, device) = (Fixture::load("hf_visual_bert_vqa"), cpu().autodiff());
    let model = filled(&fixture, &device);
    let wanted = Wanted { answer: true, ..Wanted::default() };
    let answer = model.forward(&input(&fixture, wanted, &device), &mut Pass::silent()).answer.unwrap();
    assert_close(&answer.clone().inner(), &fixture.tensor("io/logits"), TOLERANCE);
    let loss = divergence(answer, rows(&fixture, "io/labels", &device)) / 2.0;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), 1e-5);
    // the fixture calls the head `cls`
    let ours = crate::testing::gradients(&model, &loss.backward());
    assert_eq!(fixture.names("io/grad.").count(), 3);
    for name in fixture.names("io/grad.") {
        let flat = |values: &[f32]| Tensor::<1>::from_floats(values, &cpu());
        let own = &ours[&name.replace("cls.weight", "classifier.weight")];
        crate::testing::assert_gradient_close(name, &flat(own), &flat(fixture.values(&format!("io/grad.{name}"))));
    }
}

#[test]
fn statements_about_two_pictures_know_left_from_right() {
    let fixture = Fixture::load("hf_visual_bert_nlvr2");
    let wanted = Wanted { answer: true, ..Wanted::default() };
    let mut input = input(&fixture, wanted, &cpu());
    let pictures = fixture.indices("io/visual_token_type_ids").iter().map(|kind| *kind as u8).collect();
    input.regions.as_mut().unwrap().pictures = pictures;
    let answer = filled(&fixture, &cpu()).forward(&input, &mut Pass::silent()).answer.unwrap();
    assert_close(&answer, &fixture.tensor("io/logits"), TOLERANCE);
    let labels = fixture.indices("io/labels").iter().map(|label| Some(*label as u32)).collect();
    assert_close(&(cross_entropy(answer, labels, 0.0) / 2.0), &fixture.tensor("io/loss"), 1e-5);
}

#[test]
fn both_conventions_of_the_type_of_regions_are_other_models() {
    let fixture = Fixture::load("hf_visual_bert");
    let config = weights::visual_bert_config(&fixture.config).unwrap();
    // the fixture's types differ by less than rounding
    let tensors = weights::tensors(&stirred(config.init(&cpu()).unwrap()));
    let words = words(&fixture, "io/ids", &fixture.indices("io/text_mask"), None);
    let regions = Some(regions(&fixture, "io/regions", "io/region_mask", &cpu()));
    let input = VisionLanguageInput { words, regions, wanted: Wanted { matching: true, ..Wanted::default() } };
    let run = |region_type: usize, input: &VisionLanguageInput| {
        let config = VisualBertConfig { region_type, ..config.clone() };
        let model = fill(config.init(&cpu()).unwrap(), &tensors).unwrap();
        model.forward(input, &mut Pass::silent()).matching.unwrap()
    };
    let mut as_zero = input.clone();
    as_zero.regions.as_mut().unwrap().pictures = vec![0; 10];
    assert_close(&run(0, &input), &run(1, &as_zero), 1e-6);
    assert!((run(0, &input) - run(1, &input)).abs().max().into_scalar::<f32>() > 1e-4);
}
