use super::*;
use crate::cost::Ledger;
use crate::data::Tokens;
use crate::device::{self, cpu};
use crate::function::cross_entropy;
use crate::pass::{Axes, Geometry};
use crate::testing::{
    Fixture, assert_close, assert_gradient_close, fill, gradients, shapes, stirred, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn config(fixture: &Fixture) -> BertConfig {
    crate::testing::weights::bert_config(&fixture.config).unwrap()
}

fn filled(fixture: &Fixture, device: &Device) -> Bert {
    fill(config(fixture).init(device).unwrap(), &fixture.checkpoint(|name| Some(name.into()))).unwrap()
}

fn words(fixture: &Fixture) -> Words {
    let [batch, length] = fixture.tensor::<2>("io/ids").dims();
    let (ids, mask, types) = (fixture.indices("io/ids"), fixture.indices("io/mask"), fixture.indices("io/types"));
    let row = |text: usize| {
        let own: usize = mask[text * length..][..length].iter().sum();
        ids[text * length..][..own].iter().map(|id| *id as u32).collect::<Vec<_>>()
    };
    let tokens = Tokens::new(&(0..batch).map(row).collect::<Vec<_>>());
    Words { tokens, types: types.iter().map(|kind| *kind as u8).collect() }
}

/// The positions that count, and their labels.
fn masked(fixture: &Fixture) -> (Vec<usize>, Vec<Option<u32>>) {
    let labels = fixture.values("io/labels").iter().enumerate().filter(|(_, label)| **label >= 0.0);
    labels.map(|(at, label)| (at, Some(*label as u32))).unzip()
}

/// Positions that are no padding.
fn real(words: &Words) -> Vec<usize> {
    let (lengths, length) = (words.tokens.lengths(), words.tokens.length());
    (0..lengths.len()).flat_map(|text| (0..lengths[text]).map(move |at| text * length + at)).collect()
}

#[test]
fn outputs_and_attention_are_those_of_transformers() {
    let fixture = Fixture::load("hf_bert_mlm");
    let (model, words) = (filled(&fixture, &cpu()), words(&fixture));
    let places = real(&words);
    let mut pass = Pass::recording();
    let features = model.features(&words, &mut pass);
    let expected = |name: &str| rows_at(fixture.tensor::<3>(name), &places);
    assert_close(&rows_at(features.clone(), &places), &expected("io/hidden"), TOLERANCE);
    assert_close(&model.features(&words, &mut Pass::silent()), &features, TOLERANCE);
    let pooled = model.pooled(features.clone()).unwrap();
    assert_close(&pooled, &fixture.tensor("io/pooled"), TOLERANCE);
    assert_close(&model.next_sentence_logits(pooled).unwrap(), &fixture.tensor("io/next_sentence_logits"), TOLERANCE);
    assert_close(&model.word_logits(features, &places).unwrap(), &expected("io/prediction_logits"), TOLERANCE);

    let trace = pass.into_trace();
    assert_close(&rows_at(trace.get::<3>("bert.embeddings").unwrap(), &places), &expected("io/embeddings"), 1e-5);
    let name = "bert.encoder.layer.1.attention.self.weights";
    // the second text has seven words
    let weights = trace.get::<4>(name).unwrap();
    let expected = fixture.tensor::<4>("io/layer.1.attention.weights");
    assert_close(&weights.clone().narrow(0, 0, 1), &expected.clone().narrow(0, 0, 1), 1e-5);
    assert_close(&weights.slice([1..2, 0..4, 0..7]), &expected.slice([1..2, 0..4, 0..7]), 1e-5);
    assert_eq!(trace.geometry(name), Some(&Geometry::everywhere(Axes::Words(9), Axes::Words(9))));
}

#[test]
fn losses_and_gradients_are_those_of_transformers() {
    let (fixture, device) = (Fixture::load("hf_bert_mlm"), cpu().autodiff());
    let (model, words) = (filled(&fixture, &device), words(&fixture));
    let features = model.features(&words, &mut Pass::silent());
    let (places, labels) = masked(&fixture);
    let count = labels.len() as f32;
    let word_loss = cross_entropy(model.word_logits(features.clone(), &places).unwrap(), labels, 0.0) / count;
    assert_close(&word_loss.clone().inner(), &fixture.tensor("io/mlm_loss"), 1e-5);
    let next = model.next_sentence_logits(model.pooled(features).unwrap()).unwrap();
    let follows = fixture.indices("io/next_sentence_label").iter().map(|label| Some(*label as u32)).collect();
    let next_loss = cross_entropy(next, follows, 0.0) / 2.0;
    assert_close(&next_loss.clone().inner(), &fixture.tensor("io/next_sentence_loss"), 1e-5);
    let loss = word_loss + next_loss;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), 1e-5);
    let ours = gradients(&model, &loss.backward());
    assert_eq!(fixture.names("io/grad.").count(), 7);
    for name in fixture.names("io/grad.") {
        let flat = |values: &[f32]| Tensor::<1>::from_floats(values, &cpu());
        assert_gradient_close(name, &flat(&ours[name]), &flat(fixture.values(&format!("io/grad.{name}"))));
    }
    assert_eq!(
        without_gradient(&model, &{
            let features = model.features(&words, &mut Pass::silent());
            let next = model.next_sentence_logits(model.pooled(features.clone()).unwrap()).unwrap();
            (model.word_logits(features, &places).unwrap().square().sum() + next.square().sum()).backward()
        }),
        Vec::<String>::new()
    );
}

/// Parameters with both heads; the releases say 4.4, 11.3, 29.1, 41.7, 110.1 and 336 million.
const PUBLISHED: &[(&str, u64)] = &[
    ("bert-tiny", 4_433_468),
    ("bert-mini", 11_267_900),
    ("bert-small", 29_058_876),
    ("bert-medium", 41_668_412),
    ("bert-base", 110_106_428),
    ("bert-large", 336_226_108),
];

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PUBLISHED.len());
    for (name, parameters) in PUBLISHED {
        let config = preset(name).unwrap();
        assert_eq!(BertConfig::from_toml(&config.to_toml()).unwrap(), config);
        let model = config.init(&cpu()).unwrap();
        let ledger = Ledger::of(&model, [128]);
        assert_eq!(ledger.parameters(), *parameters, "{name}");
        let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
        assert_eq!(own as u64, *parameters, "{name}");
        for path in shapes(&model).keys() {
            let part = path.rsplit_once('.').map_or("", |(part, _)| part);
            let known = |name: &str| name == part || name == path;
            assert!(
                ledger.lines().iter().any(|line| line.parameters > 0 && known(&line.name)),
                "`{path}` is in no line"
            );
        }
        assert!(!model.bert.embeddings.word_embeddings.weight.is_initialized(), "counting made the weights");
    }
}

fn small() -> BertConfig {
    BertConfig { vocabulary: 20, positions: 8, dim: 8, heads: 2, inner: 12, ..BertConfig::tiny() }
}

#[test]
fn a_sentence_vector_has_length_one_and_knows_no_padding() {
    let model = stirred(small().init(&cpu()).unwrap());
    let vectors = |texts: &[Vec<u32>]| model.sentence_vectors(&Words::new(Tokens::new(texts)), &mut Pass::silent());
    let both = vectors(&[vec![2, 5, 6, 7, 3], vec![2, 9, 3]]);
    assert_close(&both.clone().square().sum_dim(1), &Tensor::ones([2, 1], &cpu()), 1e-5);
    assert_close(&both.narrow(0, 1, 1), &vectors(&[vec![2, 9, 3]]), 1e-5);
}

#[test]
fn dropout_acts_in_training_alone() {
    let model = stirred(small().init(&cpu()).unwrap());
    let words = Words::new(Tokens::new(&[[2, 5, 3]]));
    let dropped =
        |step| values(&model.features(&words, &mut Pass::with_dropout(crate::pass::DropoutKey { seed: 1, step })));
    assert_eq!(dropped(1), dropped(1));
    assert_ne!(dropped(1), dropped(2));
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: BertConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(
        refusal(BertConfig { pooler: false, ..small() }),
        "`next_sentence`: reads the pooler, which must be true too"
    );
    assert_eq!(refusal(BertConfig { positions: 0, ..small() }), "`positions`: must be from 1 to 65536, got 0");
    assert_eq!(refusal(BertConfig { heads: 3, ..small() }), "`heads`: must divide dim 8, got 3");
    assert!(preset("bert-tiney").unwrap_err().to_string().contains("`bert-tiny`"));
    assert!(small().with("dimm", serde_json::json!(7)).unwrap_err().to_string().contains("`dim`"));
}

#[test]
#[should_panic(expected = "embeddings: 9 tokens, 8 positions are learned")]
fn a_text_that_is_too_long_is_refused() {
    let model = small().init(&cpu()).unwrap();
    model.features(&Words::new(Tokens::new(&[[2; 9]])), &mut Pass::silent());
}
