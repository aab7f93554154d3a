//! Sentences over HTTP: vectors of a BERT, and invalid requests.

use crate::common::{self, TestServer, entry, floats};
use regard::device;
use regard::weights::{LoadedBert, load_bert_folder};
use regard_serve::{Embedder, Service, Settings};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// The small BERT of the fixtures: 32 numbers a vector, at most 24 tokens.
fn bert() -> LoadedBert {
    let folder = tempfile::tempdir().unwrap();
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../regard/fixtures/hf_bert_mlm");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), folder.path().join(file)).unwrap();
    }
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "red", "shirt", "blue", "bag", "."];
    fs::write(folder.path().join("vocab.txt"), words.join("\n")).unwrap();
    load_bert_folder(folder.path(), &device::cpu()).unwrap()
}

fn server() -> TestServer {
    TestServer::of(Service::Embeddings(Embedder::new(bert())), Settings::default())
}

fn embed(server: &TestServer, body: &Value) -> common::TestResponse {
    server.post("/v1/embed", body.to_string().as_bytes())
}

#[test]
fn sentences_become_the_vectors_of_the_library_whatever_comes_with_them() {
    let server = server();
    let texts = ["The red shirt.", "bag", "the blue bag . the red bag . the blue shirt .", "the red shirt ."];
    let found = embed(&server, &json!({ "texts": texts })).ok().json();
    assert_eq!((&found["model"], &found["dimensions"]), (&json!("nano"), &json!(32)));
    assert_eq!(found["tokens"], json!([6, 3, 14, 6]));
    let expected = bert().sentence_vectors(&texts).unwrap().vectors;
    for (index, expected) in expected.iter().enumerate() {
        let vector = floats(&found["vectors"][index]);
        common::assert_close(&vector, expected, 1e-5);
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
        let alone = embed(&server, &json!({ "texts": [texts[index]] })).ok().json();
        common::assert_close(&floats(&alone["vectors"][0]), expected, 1e-5);
    }
    let tensor = json!({ "inputs": [{ "name": "text", "datatype": "BYTES", "shape": [4], "data": texts }] });
    let infer = server.post("/v2/models/nano/infer", tensor.to_string().as_bytes()).ok().json();
    assert_eq!(infer["outputs"][0]["shape"], json!([4, 32]));
    common::assert_close(&floats(&infer["outputs"][0]["data"]), &expected.concat(), 1e-5);
    let models = server.get("/v1/models").ok().json();
    assert_eq!((&models["models"][0]["task"], &models["models"][0]["tokens"]), (&json!("embed"), &json!(24)));
}

#[test]
fn texts_that_are_empty_or_too_long_are_refused_by_number_or_cut_off_when_asked() {
    let server = server();
    let long = "red ".repeat(50);
    embed(&server, &json!({ "texts": [] })).refused(400, "`texts` is empty");
    embed(&server, &json!({ "texts": ["red", " "] })).refused(422, "`texts[1]`: is empty");
    embed(&server, &json!({ "texts": [long] })).refused(422, "`texts[0]`: 52 tokens, the most is 24; `truncate`");
    embed(&server, &json!({ "texts": ["word ".repeat(10_000)] })).refused(422, "50000 bytes, the most is 16384");
    let cut = embed(&server, &json!({ "texts": [long], "truncate": true })).ok().json();
    assert_eq!(cut["tokens"], json!([52]));
    let whole = embed(&server, &json!({ "texts": ["red ".repeat(22)] })).ok().json();
    common::assert_close(&floats(&cut["vectors"][0]), &floats(&whole["vectors"][0]), 1e-5);
    embed(&server, &json!({ "texts": vec!["red"; 129] })).refused(422, "129 in one request, the most is 128");
    embed(&server, &json!({ "texts": ["red"], "pool": "cls" })).refused(400, "pool");
    embed(&server, &json!({ "texts": ["red"], "model": "other" })).refused(404, "`other`");
    server.get("/v1/embed").refused(405, "GET");
    let none = TestServer::new(vec![entry("vit", common::nano())], Settings::default());
    embed(&none, &json!({ "texts": ["red"] })).refused(422, "no model of sentences is served here");
}
