//! The commands that know models: what they count, load, run and refuse.

mod common;

use burn::tensor::{Tensor, TensorData};
use common::{assert_refused, regard, stdout_of, text};
use image::{Rgb, RgbImage};
use regard::{Pass, device, models, weights};
use std::fs;

/// A folder with the weights of a fresh vit-nano, an input for it, and pictures of two colours in ten folders.
fn workshop() -> (tempfile::TempDir, models::Model) {
    let folder = tempfile::tempdir().unwrap();
    let model = models::preset("vit-nano").unwrap().config.init(&device::cpu()).unwrap();
    weights::write_tensors(&folder.path().join("nano.safetensors"), &weights::tensors(&model)).unwrap();
    let numbers: Vec<f32> = (0..2 * 3 * 32 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    let input = [("input".to_string(), TensorData::new(numbers, [2, 3, 32, 32]))];
    weights::write_tensors(&folder.path().join("in.safetensors"), &input.into()).unwrap();
    for class in 0..10u8 {
        let name = folder.path().join(format!("data/{class}"));
        fs::create_dir_all(&name).unwrap();
        RgbImage::from_pixel(40, 50, Rgb([class * 20, 90, 200])).save(name.join("one.png")).unwrap();
    }
    (folder, model)
}

#[test]
fn every_preset_is_listed_with_its_costs() {
    let folder = tempfile::tempdir().unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout_of(folder.path(), &["models", "--json"])).unwrap();
    let listed = json.as_array().unwrap();
    assert_eq!(listed.len(), models::presets().len() + models::translator::presets().len());
    let vit = listed.iter().find(|entry| entry["name"] == "vit-base-patch16-224").unwrap();
    assert_eq!(vit["parameters"], 86_567_656);
    assert_eq!(stdout_of(folder.path(), &["models"]).lines().count(), listed.len() + 1);
    let shown = stdout_of(folder.path(), &["models", "show", "vit-nano"]);
    assert!(shown.contains("blocks.0") && shown.lines().last().unwrap().starts_with("all"), "{shown}");
}

#[test]
fn costs_follow_the_size_of_the_picture_and_changes_of_fields() {
    let folder = tempfile::tempdir().unwrap();
    let cost = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout_of(folder.path(), &[&["cost"], args, &["--json"]].concat())).unwrap()
    };
    assert_eq!(cost(&["vit-base-patch16-224", "--image", "384"])["parameters"], 86_859_496);
    assert!(
        cost(&["vit-nano", "--set", "depth=2"])["parameters"].as_u64() < cost(&["vit-nano"])["parameters"].as_u64()
    );
    assert_refused(folder.path(), &["cost", "vit-nanno"], &["`vit-nanno`", "`vit-nano`"]);
    assert_refused(folder.path(), &["cost", "vit-nano", "--set", "heads=5"], &["`heads`", "5"]);
    assert_refused(folder.path(), &["cost", "vit-nano", "--image", "big"], &["`big`"]);
    let toml = stdout_of(folder.path(), &["models", "config", "vit-nano"]);
    fs::write(folder.path().join("mine.toml"), toml.replace("depth = 5", "depth = 2")).unwrap();
    assert_eq!(cost(&["mine.toml"])["parameters"], cost(&["vit-nano", "--set", "depth=2"])["parameters"]);
    fs::write(folder.path().join("mine.toml"), toml.replace("depth = 5", "deep = 2")).unwrap();
    assert_refused(folder.path(), &["cost", "mine.toml"], &["`mine.toml`", "line ", "deep"]);
}

#[test]
fn the_tables_of_the_papers_say_how_many_cells_agree() {
    let folder = tempfile::tempdir().unwrap();
    let last = |paper: &str| stdout_of(folder.path(), &["table", paper]).lines().last().unwrap().to_string();
    assert_eq!(last("san"), "76 of 76 cells agree as printed");
    assert_eq!(last("sasa"), "16 of 18 cells agree as printed");
    assert_eq!(last("vit"), "13 of 18 cells agree as printed");
}

#[test]
fn run_gives_the_logits_and_the_recorded_weights_of_the_library() {
    let (folder, model) = workshop();
    let args = ["run", "--model", "vit-nano", "--weights", "nano.safetensors", "--input", "in.safetensors"];
    let recording = ["--output", "out.safetensors", "--record", "blocks.*.attn.weights"];
    stdout_of(folder.path(), &[&args[..], &recording].concat());
    let out = weights::read(&folder.path().join("out.safetensors")).unwrap().tensors;
    let input = weights::read(&folder.path().join("in.safetensors")).unwrap().tensors["input"].clone();
    let mut pass = Pass::recording();
    let logits = model.forward(Tensor::from_data(input, &device::cpu()), &mut pass).into_data();
    assert_eq!(out["logits"].iter::<f32>().collect::<Vec<_>>(), logits.iter::<f32>().collect::<Vec<_>>());
    let blocks = pass.into_trace().names().filter(|name| name.ends_with("attn.weights")).count();
    assert_eq!(out.len(), blocks + 1);
    let itself = ["--output", "in.safetensors"];
    assert_refused(folder.path(), &[&args[..], &itself].concat(), &["`in.safetensors` is input and output"]);
    let nothing = ["--output", "out.safetensors", "--record", "blocks.*.mlp.weights"];
    assert_refused(folder.path(), &[&args[..], &nothing].concat(), &["blocks.*.mlp.weights"]);
}

#[test]
fn predict_names_a_bad_picture_and_answers_for_the_others() {
    let (folder, _) = workshop();
    fs::write(folder.path().join("text.jpg"), "not a picture").unwrap();
    let args =
        ["predict", "--model", "vit-nano", "--weights", "nano.safetensors", "--json", "text.jpg", "data/3/one.png"];
    let output = regard(folder.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("text.jpg"), "{}", text(&output.stderr));
    let answers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answers[0]["error"].is_string() && answers[0]["answers"].as_array().unwrap().is_empty());
    assert_eq!(answers[1]["answers"].as_array().unwrap().len(), 5);
}

#[test]
fn eval_counts_folders_of_classes_and_manifests_alike() {
    let (folder, _) = workshop();
    let args = ["eval", "--model", "vit-nano", "--weights", "nano.safetensors", "--json", "--data", "data"];
    let report = |output: &str| -> serde_json::Value { serde_json::from_str(output).unwrap() };
    let by_folder = report(&stdout_of(folder.path(), &args));
    assert_eq!(by_folder["pictures"], 10);
    let lines = (0..10).map(|class| format!("{class}/one.png,{class}")).collect::<Vec<_>>().join("\n");
    fs::write(folder.path().join("data/labels.csv"), format!("file,label\n{lines}")).unwrap();
    let by_manifest = report(&stdout_of(folder.path(), &args));
    assert_eq!((&by_manifest["top1"], &by_manifest["loss"]), (&by_folder["top1"], &by_folder["loss"]));
    fs::write(folder.path().join("data/labels.csv"), "0/one.png,0\n1/one.png,eleven\n").unwrap();
    assert_refused(folder.path(), &args, &["`eleven`"]);
}

#[test]
fn eval_tells_classes_and_draws_what_they_are_taken_for() {
    let (folder, _) = workshop();
    let args = ["eval", "--model", "vit-nano", "--weights", "nano.safetensors", "--data", "data"];
    let told = stdout_of(folder.path(), &[&args[..], &["--per-class", "--confusion", "confusion.svg"]].concat());
    assert!(told.contains("calibration error") && told.contains("mostly taken for"), "{told}");
    assert_eq!(told.lines().count(), 7 + 1 + 1 + 10, "{told}");
    let svg = fs::read_to_string(folder.path().join("confusion.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("true class"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout_of(folder.path(), &[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["classes"].as_array().unwrap().len(), 10);
    let cells: u64 = json["confusion"].as_array().unwrap().iter().map(|cell| cell["pictures"].as_u64().unwrap()).sum();
    assert_eq!(cells, 10);
    fs::write(folder.path().join("data/3/text.png"), "not a picture").unwrap();
    assert_refused(folder.path(), &args, &["text.png", "1 of 11 pictures could not be read"]);
    assert_refused(folder.path(), &[&args[..], &["--confusion", "a.png"]].concat(), &["`a.png`"]);
}

#[test]
fn robustness_compares_checkpoints_and_runs_on_turned_pictures() {
    let (folder, _) = workshop();
    let run = folder.path().join("my-run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("model.toml"), stdout_of(folder.path(), &["models", "config", "vit-nano"])).unwrap();
    let args = ["eval", "--model", "vit-nano", "--weights", "nano.safetensors", "--data", "data", "--run", "my-run"];
    let turned = [&args[..], &["--part", "all", "--robustness"]].concat();
    assert_refused(folder.path(), &turned, &["`my-run` has no best.safetensors"]);
    fs::copy(folder.path().join("nano.safetensors"), run.join("best.safetensors")).unwrap();
    let told = stdout_of(folder.path(), &turned);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].contains("no rotation") && lines[0].ends_with("upside-down"), "{told}");
    assert!(lines.len() == 3 && lines[1].starts_with("vit-nano ") && lines[2].starts_with("my-run "), "{told}");
    fs::create_dir(folder.path().join("vit-nano")).unwrap();
    fs::rename(&run, folder.path().join("vit-nano/seed0")).unwrap();
    let seed = [&turned[..turned.len() - 4], &["vit-nano/seed0", "--part", "all", "--robustness"]].concat();
    assert!(stdout_of(folder.path(), &seed).contains("\nvit-nano/seed0 "), "a seed is told with its model");
    fs::rename(folder.path().join("vit-nano/seed0"), &run).unwrap();
    // pictures of one colour look alike from every side
    assert!(lines[1..].iter().all(|line| line.matches("(0.0)").count() == 4), "{told}");
    assert_refused(folder.path(), &[&args[..], &["--part", "all"]].concat(), &["2 models", "--robustness"]);
    assert_refused(folder.path(), &[&turned[..], &["--model", "vit-nano"]].concat(), &["2 of --model and 1 of"]);
    let wide = [&turned[..], &["--set", "image=[32,48]"]].concat();
    assert_refused(folder.path(), &wide, &["32 rows and 48 columns"]);
}

#[test]
fn weights_that_do_not_fit_are_listed_and_a_new_head_is_given_when_asked() {
    let (folder, _) = workshop();
    let predict = |more: &[&str]| {
        let args = ["predict", "--model", "vit-nano", "--weights", "nano.safetensors", "data/3/one.png"];
        regard(folder.path(), &[&args[..], more].concat())
    };
    let stderr = text(&predict(&["--set", "classes=7"]).stderr);
    assert!(stderr.contains("`head.weight`") && stderr.contains("[10, ") && stderr.contains("[7, "), "{stderr}");
    assert!(predict(&["--new-head", "7"]).status.success());
    assert!(text(&predict(&["--set", "image=[48,32]"]).stdout).contains('%'), "positions are resampled");
}

#[test]
fn eight_bits_are_exported_in_a_smaller_file_that_answers_alike() {
    let (folder, _) = workshop();
    let export = ["export", "--model", "vit-nano", "--weights", "nano.safetensors", "-o", "out"];
    stdout_of(folder.path(), &[&export[..], &["--int8"]].concat());
    let size = |file: &str| fs::metadata(folder.path().join(file)).unwrap().len();
    assert!(size("out/model.safetensors") * 3 < size("nano.safetensors"));
    let predict = |weights: &str| {
        let args = ["predict", "--int8", "--model", "vit-nano", "--weights", weights, "data/3/one.png"];
        stdout_of(folder.path(), &args)
    };
    assert_eq!(predict("out/model.safetensors"), predict("nano.safetensors"));
    let hugging_face = [&export[..], &["--int8", "--to", "hugging-face"]].concat();
    assert_refused(folder.path(), &hugging_face, &["int8", "under the names of timm"]);
}

#[test]
fn an_export_is_a_folder_that_loads_again() {
    let (folder, _) = workshop();
    let args = ["export", "--model", "vit-nano", "--weights", "nano.safetensors", "--to", "hugging-face", "-o", "out"];
    stdout_of(folder.path(), &args);
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("out/config.json")).unwrap()).unwrap();
    assert_eq!(config["hidden_size"], 128, "{config}");
    let predict = |weights: &str| {
        stdout_of(folder.path(), &["predict", "--model", "vit-nano", "--weights", weights, "data/3/one.png"])
    };
    assert_eq!(predict("out/model.safetensors"), predict("nano.safetensors"));
    assert_refused(folder.path(), &[&args[..6], &["jax", "-o", "out"]].concat(), &["Jax"]);
}
