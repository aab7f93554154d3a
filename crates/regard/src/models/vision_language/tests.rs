//! Laws of every family, and helpers for their fixtures.

use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::Pass;
use crate::cost::Ledger;
use crate::data::Tokens;
use crate::device::{self, cpu};
use crate::testing::{
    Fixture, assert_close, assert_gradient_close, gradients, random_on, shapes, stirred, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
pub const TOLERANCE: f32 = 1e-4;

/// The words of a fixture; `mask` is 1 where there is one.
pub fn words(fixture: &Fixture, ids: &str, mask: &[usize], types: Option<&str>) -> Words {
    let ([batch, length], ids) = (fixture.tensor::<2>(ids).dims(), fixture.indices(ids));
    let row = |text: usize| {
        let own: usize = mask[text * length..][..length].iter().sum();
        ids[text * length..][..own].iter().map(|id| *id as u32).collect::<Vec<_>>()
    };
    let tokens = Tokens::new(&(0..batch).map(row).collect::<Vec<_>>());
    let types = types.map_or_else(Vec::new, |name| fixture.indices(name).iter().map(|kind| *kind as u8).collect());
    Words { tokens, types }
}

/// Ones of a mask, row by row.
pub fn counts(mask: &[usize], rows: usize) -> Vec<usize> {
    mask.chunks_exact(mask.len() / rows).map(|row| row.iter().sum()).collect()
}

/// The non-negative numbers of a list, with their positions.
pub fn labelled(labels: &[f32]) -> (Vec<usize>, Vec<Option<u32>>) {
    let counted = labels.iter().enumerate().filter(|(_, label)| **label >= 0.0);
    counted.map(|(at, label)| (at, Some(*label as u32))).unzip()
}

/// Positions without padding: `length` a row, the first `counts` of which are there.
pub fn real(counts: &[usize], length: usize) -> Vec<usize> {
    (0..counts.len()).flat_map(|row| (0..counts[row]).map(move |at| row * length + at)).collect()
}

/// The gradients of a fixture are those of a loss.
#[track_caller]
pub fn assert_gradients(fixture: &Fixture, model: &impl burn::module::Module, loss: &Tensor<1>, expected: usize) {
    let ours = gradients(model, &loss.backward());
    assert_eq!(fixture.names("io/grad.").count(), expected);
    for name in fixture.names("io/grad.") {
        let flat = |values: &[f32]| Tensor::<1>::from_floats(values, &cpu());
        assert_gradient_close(name, &flat(&ours[name]), &flat(fixture.values(&format!("io/grad.{name}"))));
    }
}

/// Exact parameters, by the shapes of the released code and counted by hand. Without heads the papers' trunks are: `VisualBERT` 111.45
/// million with 2048 features and 110.66 with 1024, UNITER 109.9 and 335.7, and `ViLBERT` has 250.0 with its heads.
const PARAMETERS: &[(&str, u64)] = &[
    ("visual-bert-nano", 412_626),
    ("visual-bert-base", 112_074_812),
    ("visual-bert-vqa", 113_856_825),
    ("visual-bert-nlvr2", 110_665_730),
    ("uniter-nano", 454_114),
    ("uniter-base", 112_938_887),
    ("uniter-large", 340_524_935),
    ("vilbert-nano", 406_658),
    ("vilbert-base", 250_044_029),
    ("lxmert-nano", 403_730),
    ("lxmert-base", 228_051_752),
    ("video-bert-nano", 338_642),
    ("video-bert-large", 357_480_508),
];

#[test]
fn every_preset_has_its_parameters_without_making_them_and_costs_have_their_names() {
    assert_eq!(PRESETS.len(), PARAMETERS.len());
    let mut found = Vec::new();
    for (name, _) in PARAMETERS {
        let model = preset(name).unwrap().init(&cpu()).unwrap();
        let ledger = Ledger::of(&model, [20, 36]);
        let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(ledger.parameters(), own as u64, "{name}: the ledger misses parameters");
        for path in shapes(&model).keys() {
            let part = path.rsplit_once('.').map_or("", |(part, _)| part);
            let known = |name: &str| name == part || name == path;
            assert!(
                ledger.lines().iter().any(|line| line.parameters > 0 && known(&line.name)),
                "{name}: `{path}` is in no line"
            );
        }
        found.push((*name, own as u64));
    }
    assert_eq!(found, PARAMETERS);
}

/// Two texts with their regions, for a small model.
pub fn input(config: &VisionLanguageConfig, device: &Device) -> VisionLanguageInput {
    let words = Words::new(Tokens::new(&[vec![2, 7, 9, 11, 4, 3], vec![2, 8, 4, 3]]));
    let regions = config.features().map(|features| {
        let corners = [[0.1, 0.2, 0.5, 0.4], [0.0, 0.0, 1.0, 1.0], [0.3, 0.1, 0.4, 0.9]];
        let boxes = Tensor::from_data([corners, corners], device);
        let mut regions = Regions::new(random_on([2, 3, features], 3, device), boxes, vec![3, 2]);
        regions.masked = vec![false, true, false, true, false, false];
        if config.answer() == AnswerHead::Pair {
            regions.pictures = vec![0, 1, 1, 0, 1, 0];
        }
        regions
    });
    let regions_wanted = if config.classes().is_some() { vec![1, 3] } else { Vec::new() };
    let wanted = Wanted { words: vec![2, 7], regions: regions_wanted, matching: true, alignment: true, answer: true };
    VisionLanguageInput { words, regions, wanted }
}

fn nanos() -> Vec<(&'static str, VisionLanguageConfig)> {
    let all = PRESETS.iter().filter(|preset| preset.paper == "ours").map(|preset| (preset.name, (preset.config)()));
    let pair = |config: &VisionLanguageConfig| {
        let config = config.with("answer", serde_json::json!("pair")).ok()?;
        if matches!(config, VisionLanguageConfig::Uniter(_)) {
            config.with("types", 3.into()).ok()
        } else {
            Some(config)
        }
    };
    let pairs: Vec<_> = all.clone().filter_map(|(name, config)| Some((name, pair(&config)?))).collect();
    all.chain(pairs).collect()
}

/// A weighted sum of all outputs of a model.
fn projection(output: &VisionLanguageOutput) -> Tensor<1> {
    let project = |x: &Option<Tensor<2>>, seed: u64| {
        x.as_ref().map(|x| (x.clone() * random_on(x.dims(), seed, &x.device())).sum())
    };
    let parts = [
        project(&output.words, 1),
        project(&output.region_features, 2),
        project(&output.region_classes, 3),
        project(&output.region_attributes, 4),
        project(&output.matching, 5),
        project(&output.answer, 6),
        output.alignment.as_ref().map(|alignment| alignment.distance.clone().sum()),
    ];
    parts.into_iter().flatten().reduce(|a, b| a + b).expect("something is wanted")
}

#[test]
fn small_models_send_a_gradient_to_every_parameter_that_is_used() {
    let device = cpu().autodiff();
    for (name, config) in nanos() {
        let model = stirred(config.init(&device).unwrap());
        let mut input = input(&config, &device);
        let mut loss = projection(&model.forward(&input, &mut Pass::silent()));
        // statements about two pictures leave the heads of pre-training out
        input.wanted.answer = false;
        if config.answer() == AnswerHead::Pair {
            loss = loss + projection(&model.forward(&input, &mut Pass::silent()));
        }
        assert!(values(&loss.clone().inner())[0].is_finite(), "{name}");
        let mut missing = without_gradient(&model, &loss.backward());
        missing.retain(|path| !path.contains("q_dense"));
        assert_eq!(missing, Vec::<String>::new(), "{name}");
    }
}

/// One sample of an input, without its padding.
fn alone(input: &VisionLanguageInput, sample: usize) -> VisionLanguageInput {
    let words = Words::new(Tokens::new(&[input.words.tokens.sentence(sample)]));
    let regions = input.regions.as_ref().map(|regions| {
        let (count, length) = (regions.counts[sample], regions.length());
        let cut = |x: &Tensor<3>| x.clone().slice([sample..sample + 1, 0..count]);
        let mut own = Regions::new(cut(&regions.features), cut(&regions.boxes), vec![count]);
        own.masked = regions.masked[sample * length..][..count].to_vec();
        if !regions.pictures.is_empty() {
            own.pictures = regions.pictures[sample * length..][..count].to_vec();
        }
        own
    });
    let wanted = Wanted { words: Vec::new(), regions: Vec::new(), ..input.wanted.clone() };
    VisionLanguageInput { words, regions, wanted }
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one_and_padding_changes_nothing() {
    for (name, config) in nanos() {
        let model = stirred(config.init(&cpu()).unwrap());
        let input = input(&config, &cpu());
        let both = model.forward(&input, &mut Pass::silent());
        for sample in 0..2 {
            let one = model.forward(&alone(&input, sample), &mut Pass::silent());
            let compare = |both: &Option<Tensor<2>>, one: &Option<Tensor<2>>| {
                assert_eq!(both.is_some(), one.is_some(), "{name}");
                if let (Some(both), Some(one)) = (both, one) {
                    assert_close(&both.clone().narrow(0, sample, 1), one, TOLERANCE);
                }
            };
            compare(&Some(both.pooled.clone()), &Some(one.pooled.clone()));
            compare(&both.matching, &one.matching);
            compare(&both.answer, &one.answer);
            if let (Some(both), Some(one)) = (&both.alignment, &one.alignment) {
                assert_close(&both.distance.clone().narrow(0, sample, 1), &one.distance, TOLERANCE);
            }
        }
    }
}

#[test]
fn recorded_passes_give_the_same_and_weights_know_words_and_regions() {
    for (name, config) in nanos() {
        let model = stirred(config.init(&cpu()).unwrap());
        let input = input(&config, &cpu());
        let mut pass = Pass::recording();
        let recorded = model.forward(&input, &mut pass);
        assert_close(&model.forward(&input, &mut Pass::silent()).pooled, &recorded.pooled, TOLERANCE);
        let trace = pass.into_trace();
        assert!(trace.attention().count() >= 4, "{name}");
        for (path, geometry) in trace.attention() {
            let weights = trace.get::<4>(path).unwrap();
            let [_, _, queries, keys] = weights.dims();
            assert_eq!((geometry.queries.tokens(), geometry.keys.tokens()), (queries, keys), "{name}: {path}");
            let sums = values(&weights.sum_dim(3));
            assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{name}: {path}");
        }
    }
}

#[test]
fn a_configuration_reads_back_and_a_wrong_one_is_named() {
    for known in PRESETS {
        let config = preset(known.name).unwrap();
        assert_eq!(VisionLanguageConfig::from_toml(&config.to_toml()).unwrap(), config, "{}", known.name);
        config.validate().unwrap();
        let error = config.with("layerss", serde_json::json!(7)).unwrap_err().to_string();
        assert!(error.contains("`layers`"), "{error}");
        let error = config.with("heads", 5.into()).unwrap().init(&device::cpu()).unwrap_err().to_string();
        assert!(error.starts_with("`heads`: must divide dim"), "{error}");
        let error = config.with("types", 0.into()).unwrap().init(&device::cpu()).unwrap_err().to_string();
        assert!(error.contains("types"), "{}: {error}", known.name);
    }
    assert!(preset("uniter-bass").unwrap_err().to_string().contains("`uniter-base`"));
    let changed = preset("uniter-nano").unwrap().with("answer", serde_json::json!({ "question": { "answers": 5 } }));
    assert_eq!(changed.unwrap().answer(), AnswerHead::Question { answers: 5 });
}

#[test]
fn texts_without_a_picture_are_read_by_the_families_that_can() {
    for (name, config) in nanos() {
        if !config.reads_text_alone() || config.answer() == AnswerHead::Pair {
            continue;
        }
        let model = config.init(&cpu()).unwrap();
        let output =
            model.forward(&VisionLanguageInput { regions: None, ..input(&config, &cpu()) }, &mut Pass::silent());
        assert!(output.regions.is_none() && output.words.is_some() && output.alignment.is_none(), "{name}");
    }
}

#[test]
fn the_largest_models_can_be_made_of_one_layer_and_run() {
    for preset in PRESETS.iter().filter(|preset| preset.paper != "ours") {
        let mut config = (preset.config)();
        for (field, value) in [("layers", 1), ("region_layers", 1), ("cross_layers", 1)] {
            config = config.with(field, value.into()).unwrap_or(config);
        }
        for field in ["text_places", "region_places"] {
            config = config.with(field, serde_json::json!([0])).unwrap_or(config);
        }
        // the tables are most of their size
        for field in ["vocabulary", "words"] {
            config = config.with(field, 100.into()).unwrap_or(config);
        }
        if let VisionLanguageConfig::VideoBert(own) = &mut config {
            own.branches = 2;
        }
        let model = config.init(&cpu()).unwrap();
        let output = model.forward(&input(&config, &cpu()), &mut Pass::silent());
        assert!(values(&output.pooled).iter().all(|x| x.is_finite()), "{}", preset.name);
    }
}

/// A tensor of whole numbers as flags.
pub fn flags(fixture: &Fixture, name: &str) -> Vec<bool> {
    fixture.indices(name).iter().map(|flag| *flag == 1).collect()
}

/// Soft targets, row by row.
pub fn rows(fixture: &Fixture, name: &str, device: &Device) -> Tensor<2> {
    let shape = fixture.tensor::<2>(name).dims();
    Tensor::from_data(TensorData::new(fixture.values(name).to_vec(), shape), device)
}
