use super::super::tests::{TOLERANCE, assert_gradients, labelled, real, words};
use super::*;
use crate::device::cpu;
use crate::function::cross_entropy;
use crate::models::vision_language::Wanted;
use crate::testing::{Fixture, assert_close, fill};

fn config(fixture: &Fixture) -> VideoBertConfig {
    let own = &fixture.config["parity"];
    let number = |field: &str| own[field].as_u64().unwrap() as usize;
    VideoBertConfig {
        words: number("first_video_token"),
        branches: number("branches"),
        levels: number("levels") as u32,
        positions: fixture.usize("max_position_embeddings"),
        types: 2,
        layers: fixture.usize("num_hidden_layers"),
        dim: fixture.usize("hidden_size"),
        heads: fixture.usize("num_attention_heads"),
        inner: fixture.usize("intermediate_size"),
        dropout: 0.1,
        epsilon: 1e-12,
    }
}

#[test]
fn vectors_descend_to_the_nearest_child_at_every_level() {
    let fixture = Fixture::load("videobert");
    let levels = (0..3).map(|level| fixture.values(&format!("io/centroids.{level}")).to_vec()).collect();
    let tree = HierarchicalKMeans::new(3, 8, levels).unwrap();
    let tokens: Vec<usize> = tree.tokens(&fixture.tensor("io/vectors")).iter().map(|token| *token as usize).collect();
    assert_eq!(tokens, fixture.indices("io/tokens"));
    let differ = tokens.iter().zip(fixture.indices("io/nearest_leaf")).filter(|(own, leaf)| **own != *leaf).count();
    assert!(differ > 10, "the nearest leaf would be the same");
}

#[test]
fn words_and_video_tokens_are_predicted_as_by_the_reference() {
    let (fixture, device) = (Fixture::load("videobert"), cpu().autodiff());
    let config = config(&fixture);
    assert_eq!(config.vocabulary(), fixture.usize("vocab_size"));
    let model = config.init(&device).unwrap();
    let model = fill(model, &fixture.checkpoint(|name| Some(name.into()))).unwrap();
    let words = words(&fixture, "io/ids", &fixture.indices("io/mask"), Some("io/types"));
    let all = real(words.tokens.lengths(), 14);
    let (places, labels) = labelled(fixture.values("io/labels"));
    let count = labels.len() as f32;
    let run = |words_wanted: Vec<usize>| {
        let wanted = Wanted { words: words_wanted, matching: true, ..Wanted::default() };
        model.forward(&VisionLanguageInput { words: words.clone(), regions: None, wanted }, &mut Pass::silent())
    };
    let output = run(all.clone());
    let expected = rows_at(fixture.tensor("io/prediction_logits"), &all);
    assert_close(&output.words.unwrap().inner(), &expected, TOLERANCE);
    assert_close(&output.matching.unwrap().inner(), &fixture.tensor("io/alignment_logits"), TOLERANCE);
    let output = run(places);
    let matched = fixture.indices("io/matched").iter().map(|label| Some(*label as u32)).collect();
    let loss = cross_entropy(output.words.unwrap(), labels, 0.0) / count
        + cross_entropy(output.matching.unwrap(), matched, 0.0) / 3.0;
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), 1e-5);
    assert_gradients(&fixture, &model, &loss, 2);
}

#[test]
fn words_and_video_are_joined_with_a_turn_between_and_types_change_after_it() {
    let fixture = Fixture::load("videobert");
    let config = config(&fixture);
    let joined = config.join(&[vec![2, 14, 9], vec![2]], &[vec![0, 26], vec![5]], 5, 3);
    assert_eq!(joined.tokens.sentence(0), [2, 14, 9, 5, 46, 72, 3]);
    assert_eq!(joined.tokens.sentence(1), [2, 5, 51, 3]);
    assert_eq!(joined.types[..7], [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(joined.types[7..11], [0, 0, 1, 1]);
}

#[test]
fn a_tree_that_is_too_large_is_named() {
    let refusal = |config: VideoBertConfig| config.init(&cpu()).unwrap_err().to_string();
    let nano = VideoBertConfig::nano;
    assert!(refusal(VideoBertConfig { levels: 60, ..nano() }).starts_with("`branches`"));
    assert!(refusal(VideoBertConfig { branches: 0, ..nano() }).starts_with("`branches`"));
    assert!(refusal(VideoBertConfig { words: 0, ..nano() }).starts_with("`words`"));
}
