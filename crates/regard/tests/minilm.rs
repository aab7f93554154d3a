//! A trained sentence encoder, all-MiniLM-L6-v2, against transformers: the whole path of a BERT on real weights. They are too
//! large for this repository: the test looks for them in `$REGARD_SHARED/minilm_l6` or `../shared/data/minilm_l6` and says when
//! it finds nothing.

use regard::data::Words;
use regard::{Pass, device, weights};
use safetensors::SafeTensors;
use std::io::Write as _;
use std::path::PathBuf;

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

fn folder() -> Option<PathBuf> {
    let root = env!("CARGO_MANIFEST_DIR");
    let shared =
        std::env::var("REGARD_SHARED").map_or_else(|_| PathBuf::from(root).join("../../../shared/data"), PathBuf::from);
    Some(shared.join("minilm_l6")).filter(|folder| folder.join("reference.json").is_file())
}

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn whole_numbers(file: &SafeTensors, name: &str) -> Vec<i64> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

#[track_caller]
fn assert_close(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let furthest = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(furthest < TOLERANCE, "{what}: {furthest:e}");
}

#[test]
fn a_trained_sentence_encoder_gives_its_reference_outputs() {
    let Some(folder) = folder() else {
        std::io::stderr().write_all(b"SKIPPED: no minilm_l6 folder; set REGARD_SHARED\n").unwrap();
        return;
    };
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder.join("reference.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    let loaded = weights::load_bert_folder(&folder, &device::cpu()).unwrap();
    assert!(loaded.config.pooler && !loaded.config.masked_words);

    let texts: Vec<String> = serde_json::from_value(reference["texts"].clone()).unwrap();
    let encoded: Vec<_> = texts.iter().map(|text| loaded.tokenizer.encode(text, Some(512)).unwrap()).collect();
    let (ids, mask) = (whole_numbers(&expected, "ids"), whole_numbers(&expected, "mask"));
    for (row, text) in encoded.iter().enumerate() {
        let own = mask[row * 16..][..16].iter().sum::<i64>() as usize;
        let ids: Vec<u32> = ids[row * 16..][..own].iter().map(|id| *id as u32).collect();
        assert_eq!(text.ids, ids, "{}", texts[row]);
    }

    let words = Words::of(&encoded);
    assert_eq!(words.tokens.length(), 16);
    let name = "bert.encoder.layer.5.attention.self.weights";
    let mut pass = Pass::recording_only([name]);
    let features = loaded.model.features(&words, &mut pass);
    let hidden = floats(&expected, "hidden");
    for (row, text) in encoded[..4].iter().enumerate() {
        let own = features.clone().slice([row..row + 1, 0..text.ids.len()]);
        let own: Vec<f32> = own.into_data().iter::<f32>().collect();
        assert_close("hidden", &own, &hidden[row * 16 * 384..][..own.len()]);
    }
    let pooled = loaded.model.pooled(features).unwrap();
    assert_close("pooled", &pooled.into_data().iter::<f32>().collect::<Vec<_>>(), &floats(&expected, "pooled"));
    // queries that are words
    let own = encoded[0].ids.len();
    let weights = pass.into_trace().get::<4>(name).unwrap().slice([0..1, 0..12, 0..own]);
    let theirs = floats(&expected, "layer.5.attention.weights_of_first");
    let theirs: Vec<f32> = theirs.chunks_exact(256).flat_map(|head| head[..own * 16].to_vec()).collect();
    assert_close("attention", &weights.into_data().iter::<f32>().collect::<Vec<_>>(), &theirs);

    let vectors = loaded.model.sentence_vectors(&words, &mut Pass::silent());
    let similarity: Vec<f32> = vectors.clone().matmul(vectors.clone().transpose()).into_data().iter::<f32>().collect();
    assert_close("sentence", &vectors.into_data().iter::<f32>().collect::<Vec<_>>(), &floats(&expected, "sentence"));
    let theirs: Vec<Vec<f32>> = serde_json::from_value(reference["similarity"].clone()).unwrap();
    assert_close("similarity", &similarity, &theirs.concat());
}
