//! `regard embed-text` as a user meets it, on a small BERT of random numbers.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn regard(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regard")).current_dir(folder).args(args).output().unwrap()
}

/// The small BERT of the fixtures in a folder as on the hub.
fn model(folder: &Path) {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../regard/fixtures/hf_bert_mlm");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), folder.join(file)).unwrap();
    }
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "red", "shirt", "blue", "bag", "."];
    fs::write(folder.join("vocab.txt"), words.join("\n")).unwrap();
}

#[test]
fn sentences_become_vectors_of_length_one_and_a_table_of_cosines() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let texts = ["The red shirt.", "the RED shirt .", "blue bag"];
    let args = [&["embed-text", "--model", "."], &texts[..], &["--json"]].concat();
    let output = regard(folder.path(), &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["texts"][0]["text"], json!(texts[0]));
    assert_eq!(found["texts"][2]["vector"].as_array().unwrap().len(), 32);
    let similarity: Vec<Vec<f64>> = serde_json::from_value(found["similarity"].clone()).unwrap();
    assert!((similarity[0][1] - 1.0).abs() < 1e-5 && similarity[0][2] < 0.999, "{similarity:?}");
    let table = regard(folder.path(), &args[..args.len() - 1]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.lines().nth(1).unwrap().starts_with("   1  1.000  1.000"), "{table}");
    let vector = regard(folder.path(), &["embed-text", "-m", ".", "bag"]).stdout;
    assert_eq!(String::from_utf8(vector).unwrap().split_whitespace().count(), 32);
}

#[test]
fn a_text_that_is_too_long_is_cut_with_a_note_and_a_folder_without_a_model_is_named() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let output = regard(folder.path(), &["embed-text", "-m", ".", &"red ".repeat(500)]);
    assert!(output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("has more than 24 tokens; the rest is left out"), "{stderr}");
    let output = regard(folder.path(), &["embed-text", "-m", "nowhere", "red"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("nowhere") && stderr.contains("hint: `--model` takes a folder"), "{stderr}");
}
