//! Clips from files to a trained model and its maps: `train`, `eval`, `predict`, `explain`, `analyse` and `compare`.

use crate::common::{assert_refused, stdout_of};
use regard::data::clip::{self, encode_apng};
use regard::data::{Part, Picture};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Clips of two motions in folders by class, as a user has them.
fn write_data(folder: &Path) {
    let clips = clip::open("clips:6x24", Part::Train).unwrap();
    for index in (0..60).filter(|index| clips.class(*index) < 2) {
        let part = if index < 40 { "train" } else { "val" };
        let class = folder.join(part).join(&clips.classes()[clips.class(index)]);
        fs::create_dir_all(&class).unwrap();
        let frames: Vec<Picture> = clips.frames(index, &[0, 1, 2, 3, 4, 5]).unwrap();
        fs::write(class.join(format!("{index}.apng")), encode_apng(&frames, 10.0).unwrap()).unwrap();
    }
}

const RECIPE: &str = "
    task = 'clips'
    model = 'timesformer-nano'
    data = 'data'
    epochs = 1
    batch = 4
    workers = 1
    set = { depth = 2, dim = 24, mlp_dim = 48, frames = 4, image = [16, 16] }
";

#[test]
fn a_folder_of_clips_becomes_a_model_that_predicts_explains_and_is_compared() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write_data(&folder.join("data"));
    fs::write(folder.join("mine.toml"), RECIPE).unwrap();
    let said = stdout_of(folder, &["train", "mine.toml", "-o", "run"]);
    assert!(said.contains("top-1 accuracy"), "{said}");

    let measured: Value = serde_json::from_str(&stdout_of(folder, &["eval", "run", "--json"])).unwrap();
    assert_eq!((measured["clips"].as_u64(), measured["classes"].as_object().unwrap().len()), (Some(4), 2));
    let by_class = stdout_of(folder, &["eval", "run", "--data", "data", "--confusion", "confusion.svg"]);
    assert!(by_class.contains("moves") || by_class.contains("right"), "{by_class}");
    assert!(fs::read_to_string(folder.join("confusion.svg")).unwrap().contains("<svg"));

    let json = stdout_of(folder, &["predict", "data/val", "--model", "run", "--json", "--top", "2"]);
    let found: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(found.len(), 4);
    for one in &found {
        let sum: f64 = one["answers"].as_array().unwrap().iter().map(|one| one["probability"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{one}");
        assert_eq!(one["frames"][0].as_array().unwrap().len(), 4);
    }

    let clip = found[0]["picture"].as_str().unwrap();
    let args = ["explain", clip, "--model", "run", "--frame", "2", "--at", "0.2,0.7", "-o", "page.html"];
    let told = stdout_of(folder, &args);
    assert!(told.contains("in time, frames") && told.contains("temporal_attn"), "{told}");
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains("rollout") && page.contains("class token"));
    for name in ["rollout.gif", "class-token.gif", "patch.gif"] {
        assert!(clip_frames(&folder.join("page").join(name)) >= 4, "{name}");
    }
    let distances = stdout_of(folder, &["analyse", "distance", "--models", "run", "--data", "data", "--pictures", "2"]);
    assert!(distances.contains("temporal_attn"), "{distances}");

    let table = stdout_of(folder, &["compare", "mine.toml", "--models", "run", "-o", "compared"]);
    assert!(table.contains("run") && table.contains("top-1 accuracy %"), "{table}");
}

/// MP4 files in folders by class, as a phone or a download leaves them: Baseline, High with B-frames, fragmented, MOV.
fn write_mp4s(folder: &Path) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regard/fixtures/video_decoding");
    let files = [
        ("train/baseline/1.mp4", "baseline.mp4"),
        ("train/baseline/2.mov", "clip.mov"),
        ("train/high/1.mp4", "high_bframes.mp4"),
        ("train/high/2.mp4", "fragmented.mp4"),
        ("val/baseline/3.mp4", "baseline.mp4"),
        ("val/high/3.mp4", "high_bframes.mp4"),
    ];
    for (to, from) in files {
        let to = folder.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(fixtures.join(from), to).unwrap();
    }
}

#[test]
fn a_folder_of_mp4s_becomes_a_model_that_predicts_an_mp4() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write_mp4s(&folder.join("data"));
    fs::write(folder.join("mine.toml"), RECIPE.replace("batch = 4", "batch = 2")).unwrap();
    let said = stdout_of(folder, &["train", "mine.toml", "-o", "run"]);
    assert!(said.contains("top-1 accuracy"), "{said}");
    let measured: Value = serde_json::from_str(&stdout_of(folder, &["eval", "run", "--json"])).unwrap();
    assert_eq!((measured["clips"].as_u64(), measured["classes"].as_object().unwrap().len()), (Some(2), 2));
    let json = stdout_of(folder, &["predict", "data/val/high/3.mp4", "--model", "run", "--json"]);
    let found: Vec<Value> = serde_json::from_str(&json).unwrap();
    let answers = found[0]["answers"].as_array().unwrap();
    assert!(
        answers.iter().all(|one| ["baseline", "high"].contains(&one["label"].as_str().unwrap_or_default())),
        "{json}"
    );
}

fn clip_frames(path: &Path) -> usize {
    clip::Video::open(path).unwrap().length().frames
}

#[test]
fn what_cannot_be_done_with_clips_is_named() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    fs::write(folder.join("bad.mp4"), "no video").unwrap();
    assert_refused(folder, &["predict", "bad.mp4", "--model", "timesformer-nano"], &["bad.mp4"]);
    assert_refused(folder, &["predict", "bad.mp4"], &["bad.mp4", "not a video"]);
    assert_refused(folder, &["predict", "bad.mp4", "--model", "timesformer-nanoo"], &["timesformer-nano"]);
    assert_refused(folder, &["explain", "bad.mp4", "--model", "timesformer-nano", "--frame", "8"], &["--frame 8"]);
    assert_refused(folder, &["eval", "timesformer-nano", "--data", "clips", "--robustness"], &["--robustness"]);
    assert_refused(folder, &["train", "clips", "--set", "sampling=segmentz"], &["segments"]);
}
