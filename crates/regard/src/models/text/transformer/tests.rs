use super::*;
use crate::device::cpu;
use crate::pass::DropoutKey;
use crate::testing::weights::{self, Upstream, translate};
use crate::testing::{Fixture, assert_close, shapes, stirred, values, without_gradient};

fn config() -> TransformerConfig {
    TransformerConfig { source_vocabulary: 11, target_vocabulary: 11, ..TransformerConfig::new(2, [8, 16, 2], 0.0, 11) }
}

fn model(config: &TransformerConfig) -> Transformer {
    stirred(config.init(&cpu()).unwrap())
}

fn every_choice() -> Vec<TransformerConfig> {
    let mut all = Vec::new();
    for norm in [NormPlace::Post, NormPlace::Pre] {
        for position in [PositionKind::Sinusoidal, PositionKind::Fairseq, PositionKind::Learned { places: 30 }] {
            for tying in [Tying::All, Tying::Target, Tying::None] {
                let target_vocabulary = if tying == Tying::All { 11 } else { 13 };
                all.push(TransformerConfig { target_vocabulary, norm, position, tying, ..config() });
            }
        }
    }
    all
}

#[test]
fn it_equals_pytorch_with_padding_and_a_causal_mask() {
    let fixture = Fixture::load("torch_transformer");
    let config = TransformerConfig {
        dim: fixture.usize("d_model"),
        heads: fixture.usize("heads"),
        inner: fixture.usize("ff"),
        encoder_layers: fixture.usize("encoder_layers"),
        decoder_layers: fixture.usize("decoder_layers"),
        final_norm: true,
        epsilon: fixture.config["layer_norm_eps"].as_f64().unwrap(),
        ..config()
    };
    let model = config.init(&cpu()).unwrap();
    let mut tensors = translate(fixture.checkpoint(|name| Some(name.to_string())), Upstream::Pytorch).unwrap();
    // what the reference leaves to its users
    let words = "encoder.embed_tokens.weight";
    tensors.insert(words.into(), weights::tensors(&model)[words].clone());
    let model = weights::fill(model, &tensors).unwrap();

    let padding = fixture.tensor::<2>("io/source_padding").greater_elem(0.5);
    for mut pass in [Pass::silent(), Pass::recording()] {
        let options = DotProduct { padding: Some(padding.clone()), ..DotProduct::default() };
        let memory = model.encoder.forward_layers(fixture.tensor("io/source"), &options, &mut pass);
        let memory: Vec<Memory> = model
            .decoder
            .layers
            .iter()
            .map(|layer| layer.multihead_attn.project_memory(memory.clone(), Some(padding.clone())))
            .collect();
        let target = fixture.tensor("io/target");
        let out = model.decoder.forward_layers(target, &memory, &DotProduct::default(), &mut pass);
        assert_close(&out, &fixture.tensor("io/output"), 1e-4);
    }
}

#[test]
fn a_word_does_not_see_those_after_it_and_padding_changes_nothing() {
    for config in every_choice() {
        let model = model(&config);
        let logits = |source: &[&[u32]], target: &[&[u32]]| {
            model.forward(&Tokens::new(source), &Tokens::new(target), &mut Pass::silent())
        };
        let one = logits(&[&[1, 2, 3]], &[&[4, 5, 6]]);
        let other = logits(&[&[1, 2, 3]], &[&[4, 5, 7]]);
        assert_close(&one.clone().narrow(1, 0, 2), &other.clone().narrow(1, 0, 2), 0.0);
        assert!((one.clone() - other).abs().max().into_scalar::<f32>() > 1e-3);
        let both = logits(&[&[1, 2, 3], &[3, 4, 5, 6, 7]], &[&[4, 5, 6], &[7, 8, 9, 10]]);
        assert_close(&both.slice([0..1, 0..3]), &one, 1e-5);
    }
}

#[test]
fn one_word_after_the_other_is_all_of_them_at_once_bit_for_bit() {
    for config in every_choice() {
        let model = model(&config);
        let source = Tokens::new(&[vec![1, 2, 3], vec![3, 4, 5, 6, 7]]);
        let target = [[4, 5, 6, 7, 2], [9, 8, 7, 6, 1]];
        let all = model.forward(&source, &Tokens::new(&target), &mut Pass::silent());
        let mut state = model.begin(&source);
        for n in 0..5 {
            let next = model.next(&Tokens::new(&target.map(|row| [row[n]])), &mut state);
            assert_close(&next, &all.clone().narrow(1, n, 1).squeeze_dim(1), 0.0);
        }
    }
}

#[test]
fn states_follow_their_sentences() {
    let model = model(&config());
    let source = Tokens::new(&[vec![1, 2, 3], vec![3, 4, 5, 6, 7]]);
    let mut state = model.begin(&source);
    model.next(&Tokens::new(&[[4], [9]]), &mut state);
    let swapped = Tensor::<1, Int>::from_data([1, 0, 0], &cpu());
    let after = model.next(&Tokens::new(&[[8], [5], [5]]), &mut state.select(&swapped));
    let straight = model.next(&Tokens::new(&[[5], [8]]), &mut state);
    assert_close(&after.clone().narrow(0, 0, 1), &straight.clone().narrow(0, 1, 1), 0.0);
    assert_close(&after.narrow(0, 2, 1), &straight.narrow(0, 0, 1), 0.0);
}

#[test]
fn attention_is_recorded_by_layer_under_the_names_of_parameters_and_sums_to_one() {
    let model = model(&config());
    let (source, target) = (Tokens::new(&[vec![1, 2, 3]]), Tokens::new(&[vec![4, 5]]));
    let mut pass = Pass::recording();
    let recorded = model.forward(&source, &target, &mut pass);
    assert_close(&recorded, &model.forward(&source, &target, &mut Pass::silent()), 1e-5);
    let trace = pass.into_trace();
    for (name, shape) in [
        ("encoder.layers.1.self_attn.weights", [1, 2, 3, 3]),
        ("decoder.layers.0.self_attn.weights", [1, 2, 2, 2]),
        ("decoder.layers.1.multihead_attn.weights", [1, 2, 2, 3]),
    ] {
        let weights = trace.get::<4>(name).unwrap();
        assert_eq!(weights.dims(), shape);
        assert!(values(&weights.sum_dim(3)).iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }
}

#[test]
fn every_parameter_learns_and_dropout_is_drawn_from_seed_and_step() {
    for config in every_choice() {
        let config = TransformerConfig { dropout: 0.2, ..config };
        let model = config.init(&cpu().autodiff()).unwrap();
        let (source, target) = (Tokens::new(&[vec![1, 2, 3], vec![5, 6]]), Tokens::new(&[[4, 5, 6], [6, 5, 1]]));
        let run = |step| model.forward(&source, &target, &mut Pass::with_dropout(DropoutKey { seed: 1, step }));
        assert_close(&run(1), &run(1), 0.0);
        assert!((run(1) - run(2)).abs().max().into_scalar::<f32>() > 1e-3);
        let weights = crate::testing::random_on(run(1).dims(), 3, &cpu().autodiff());
        let gradients = (run(1) * weights).sum().backward();
        assert!(without_gradient(&model, &gradients).is_empty(), "{:?}", without_gradient(&model, &gradients));
    }
}

#[test]
fn parameters_are_those_of_the_papers() {
    let count = |config: TransformerConfig| {
        shapes(&config.init(&cpu()).unwrap()).values().map(|shape| shape.iter().product::<usize>()).sum::<usize>()
    };
    // 63.05 M and 214.2 M by the formulas without biases inside of attention; the paper's own vocabulary is not known
    // exactly, and it prints 65 M and 213 M
    let attention_biases = |dim: usize| 18 * 4 * dim;
    assert_eq!(count(TransformerConfig::base()) - attention_biases(512), 63_045_632);
    assert_eq!(count(TransformerConfig::big()) - attention_biases(1024), 214_171_648);
    for preset in PRESETS {
        (preset.config)().validate().unwrap();
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let refused = |config: TransformerConfig| config.init(&cpu()).unwrap_err().to_string();
    assert!(refused(TransformerConfig { heads: 3, ..config() }).contains("`heads`"));
    assert!(refused(TransformerConfig { dropout: 1.0, ..config() }).contains("`dropout`"));
    assert!(refused(TransformerConfig { source_vocabulary: 0, ..config() }).contains("`source_vocabulary`"));
    assert!(refused(TransformerConfig { target_vocabulary: 12, ..config() }).contains("`tying`"));
    assert!(refused(TransformerConfig { decoder_layers: 0, ..config() }).contains("`depth`"));
}
