use super::super::losses::{divergence, foreground_classes, squared_error, transport_loss};
use super::super::tests::{TOLERANCE, assert_gradients, flags, labelled, real, rows};
use super::*;
use crate::data::{Tokens, Words};
use crate::device::cpu;
use crate::function::cross_entropy;
use crate::pass::{Axes, Geometry};
use crate::testing::{Fixture, assert_close, fill, weights};

const WORDS: [usize; 3] = [8, 6, 7];
const REGIONS: [usize; 3] = [5, 7, 4];

fn filled(fixture: &Fixture, device: &Device) -> Uniter {
    let config = UniterConfig {
        vocabulary: fixture.usize("vocab"),
        positions: 24,
        layers: fixture.usize("layers"),
        dim: fixture.usize("dim"),
        heads: fixture.usize("heads"),
        inner: fixture.usize("inner"),
        features: fixture.usize("feature"),
        classes: fixture.usize("classes"),
        ..UniterConfig::base()
    };
    let tensors = weights::uniter_names(fixture.checkpoint(|name| Some(name.into()))).unwrap();
    fill(config.init(device).unwrap(), &tensors).unwrap()
}

fn input(fixture: &Fixture, ids: &str, wanted: Wanted, device: &Device) -> VisionLanguageInput {
    let ids = fixture.indices(ids);
    let text = |row: usize| ids[row * 8..][..WORDS[row]].iter().map(|id| *id as u32).collect::<Vec<_>>();
    let words = Words::new(Tokens::new(&[text(0), text(1), text(2)]));
    let boxes = fixture.tensor_on::<3>("io/boxes", device).narrow(2, 0, 4);
    let regions = Regions::new(fixture.tensor_on("io/regions", device), boxes, REGIONS.to_vec());
    VisionLanguageInput { words, regions: Some(regions), wanted }
}

#[test]
fn hidden_states_attention_and_transport_are_those_of_the_released_code() {
    let fixture = Fixture::load("uniter");
    assert_eq!(
        (fixture.indices("io/text_lengths"), fixture.indices("io/region_counts")),
        (WORDS.into(), REGIONS.into())
    );
    let wanted = Wanted { matching: true, alignment: true, ..Wanted::default() };
    let input = input(&fixture, "io/ids", wanted, &cpu());
    let mut pass = Pass::recording();
    let output = filled(&fixture, &cpu()).forward(&input, &mut pass);
    // upstream closes the sequences up
    let sequence = fixture.tensor::<3>("io/sequence");
    assert_close(&rows_at(output.text, &real(&WORDS, 8)), &rows_at(sequence.clone(), &real(&WORDS, 13)), TOLERANCE);
    let after = |row: usize| (0..REGIONS[row]).map(move |at| row * 13 + WORDS[row] + at);
    let places: Vec<usize> = (0..3).flat_map(after).collect();
    assert_close(&rows_at(output.regions.unwrap(), &real(&REGIONS, 7)), &rows_at(sequence, &places), TOLERANCE);
    assert_close(&output.pooled, &fixture.tensor("io/pooled"), TOLERANCE);
    assert_close(&output.matching.unwrap(), &fixture.tensor("io/itm_scores"), TOLERANCE);

    let trace = pass.into_trace();
    let name = "uniter.encoder.layer.1.attention.self.weights";
    let axes = Axes::Joined(vec![Axes::Words(8), Axes::Slots(7)]);
    assert_eq!(trace.geometry(name), Some(&Geometry::everywhere(axes.clone(), axes)));
    // sample 2: seven words and four regions, with one place of padding between
    let weights = trace.get::<4>(name).unwrap().narrow(0, 2, 1);
    let closed =
        |x: Tensor<4>, axis: usize| Tensor::cat(vec![x.clone().narrow(axis, 0, 7), x.narrow(axis, 8, 4)], axis);
    let weights = closed(closed(weights, 2), 3).reshape([4, 11, 11]);
    assert_close(&weights, &fixture.tensor("io/layer.1.attention.weights.of_sample_2"), 1e-5);

    let alignment = output.alignment.unwrap();
    assert_close(&alignment.plan, &fixture.tensor("io/ot_plan"), 1e-5);
    assert_close(&trace.get::<3>("transport").unwrap(), &alignment.plan, 0.0);
    assert_close(&alignment.distance, &fixture.tensor("io/ot_distance"), TOLERANCE);
    let loss = transport_loss(alignment.distance, &flags(&fixture, "io/matched")) / 3.0;
    assert_close(&loss, &fixture.tensor("io/ot_loss"), TOLERANCE);
}

#[test]
fn every_objective_and_the_gradients_of_their_sum_are_those_of_the_released_code() {
    let (fixture, device) = (Fixture::load("uniter"), cpu().autodiff());
    let model = filled(&fixture, &device);
    let mean = |name: &str| values(fixture.values(&format!("io/{name}")));

    // masked words
    let (places, labels) = labelled(fixture.values("io/mlm_labels"));
    let words = input(&fixture, "io/mlm_ids", Wanted { words: places, ..Wanted::default() }, &device);
    let scores = model.forward(&words, &mut Pass::silent()).words.unwrap();
    assert_close(&scores.clone().inner(), &fixture.tensor("io/mlm_scores"), TOLERANCE);
    let mlm = cross_entropy(scores, labels, 0.0) / 4.0;
    assert_mean(&mlm, mean("mlm_loss"));

    // masked regions
    let masked = flags(&fixture, "io/hidden_regions");
    let places: Vec<usize> = (0..21).filter(|at| masked[*at]).collect();
    let mut regions = input(&fixture, "io/ids", Wanted { regions: places, ..Wanted::default() }, &device);
    regions.regions.as_mut().unwrap().masked = masked;
    let output = model.forward(&regions, &mut Pass::silent());
    let features = output.region_features.unwrap();
    assert_close(&features.clone().inner(), &fixture.tensor("io/mrfr_prediction"), TOLERANCE);
    let mrfr = squared_error(features, rows(&fixture, "io/mrfr_target", &device)) / (5.0 * 18.0);
    assert_mean(&mrfr, mean("mrfr_loss"));
    let classes = output.region_classes.unwrap();
    assert_close(&classes.clone().inner(), &fixture.tensor("io/mrc_scores"), TOLERANCE);
    let mrc_kl = divergence(classes.clone(), rows(&fixture, "io/mrc_targets", &device)) / (5.0 * 13.0);
    assert_mean(&mrc_kl, mean("mrc_kl_loss"));
    let best = foreground_classes(fixture.values("io/mrc_targets"), 13);
    assert_mean(&(cross_entropy(classes, best, 0.0) / 5.0), mean("mrc_loss"));

    // matching and word-region alignment
    let wanted = Wanted { matching: true, alignment: true, ..Wanted::default() };
    let output = model.forward(&input(&fixture, "io/ids", wanted, &device), &mut Pass::silent());
    let matched = flags(&fixture, "io/matched");
    let labels = matched.iter().map(|matched| Some(u32::from(*matched))).collect();
    let itm = cross_entropy(output.matching.unwrap(), labels, 0.0) / 3.0;
    assert_mean(&itm, mean("itm_loss"));
    let wra = transport_loss(output.alignment.unwrap().distance, &matched) / 3.0 * 0.1;

    let loss = mlm + mrfr + mrc_kl + itm + wra;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/total_loss"), TOLERANCE);
    assert_gradients(&fixture, &model, &loss, 7);
}

fn values(losses: &[f32]) -> f32 {
    losses.iter().sum::<f32>() / losses.len() as f32
}

#[track_caller]
fn assert_mean(loss: &Tensor<1>, expected: f32) {
    let loss = crate::testing::values(&loss.clone().inner())[0];
    assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
}
