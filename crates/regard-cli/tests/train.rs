//! `regard train`, `compare` and `quickstart` as a user meets them, and as a crash finds them.

use image::RgbImage;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A vision transformer that learns in no time: 36 training pictures, 9 of the test, 3 epochs of 4 steps.
const RECIPE: &str = "
model = 'vit-nano'
data = 'data'
epochs = 3
batch = 8
workers = 1
ema = 0.9
save-every = 1
set = { image = [12, 12], dim = 16, depth = 2, heads = 2, mlp_dim = 32 }
optimiser = { rule = 'adamw', rate = 3e-3 }
mix = { mixup = 0.8 }
augment = { flip = 0.5 }
";

/// A folder with a recipe and three classes of pictures that differ in colour.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("recipe.toml"), RECIPE).unwrap();
    for class in 0..3u8 {
        let folder = place.path().join(format!("data/class{class}"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..15u8 {
            let pixel = |x: u32, y: u32| {
                let mut levels = [(x as u8).wrapping_mul(number), (y as u8).wrapping_mul(number + 7), number];
                levels[usize::from(class)] = 200;
                image::Rgb(levels)
            };
            RgbImage::from_fn(12, 12, pixel).save(folder.join(format!("{number}.png"))).unwrap();
        }
    }
    place
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.current_dir(folder).args(args).env("RAYON_NUM_THREADS", "1");
    command
}

fn regard(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn start(folder: &Path, args: &[&str]) -> Child {
    command(folder, args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The weights and the recipe of a run: what must not depend on interruptions.
fn result(run: &Path) -> Vec<Vec<u8>> {
    ["best.safetensors", "last.safetensors", "recipe.toml"].map(|name| fs::read(run.join(name)).unwrap()).to_vec()
}

#[test]
fn a_run_leaves_a_folder_that_explains_itself() {
    let place = place();
    let output = regard(place.path(), &["train", "recipe.toml", "-o", "run", "--seed", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (stdout, heard) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.contains("\ntest        top-1 accuracy ") && stdout.contains("run/best.safetensors"), "{stdout}");
    assert!(heard.contains("epoch 3") && heard.contains("validation: top-1 accuracy"), "{heard}");
    let run = place.path().join("run");
    for name in [
        "recipe.toml",
        "task.json",
        "model.toml",
        "preprocess.toml",
        "classes.txt",
        "loss.svg",
        "accuracy.svg",
        "rate.svg",
    ] {
        assert!(run.join(name).is_file(), "{name}");
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 12 + 3 + 1);
    let origin = fs::read_to_string(run.join("run.json")).unwrap();
    assert!(origin.contains("train recipe.toml") && origin.contains("\"seed\": 3"), "{origin}");
    let report = fs::read_to_string(run.join("REPORT.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("class2") && !report.contains("http://localhost"), "{report}");
}

#[test]
fn thirty_kills_in_a_row_change_nothing_but_the_time() {
    let place = place();
    let straight = regard(place.path(), &["train", "recipe.toml", "-o", "straight"]);
    assert!(straight.status.success(), "{}", text(&straight.stderr));
    let (mut killed, run) = (0, place.path().join("killed"));
    for number in 0u64.. {
        if killed == 30 {
            break;
        }
        let mut child = start(place.path(), &["train", "recipe.toml", "-o", "killed"]);
        // at every moment of a start, a step and a save
        std::thread::sleep(Duration::from_millis(10 + 23 * number % 200));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            killed += 1;
            child.wait().unwrap();
        } else {
            // it came to its end between two kills: begin again
            assert!(result(&run) == result(&place.path().join("straight")));
            fs::remove_dir_all(&run).unwrap();
        }
    }
    let last = regard(place.path(), &["train", "recipe.toml", "-o", "killed"]);
    assert!(last.status.success(), "{}", text(&last.stderr));
    assert!(result(&run) == result(&place.path().join("straight")));
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_the_step_saves_and_says_how_to_go_on() {
    let place = place();
    let long = ["train", "recipe.toml", "-o", "run", "--epochs", "100000"];
    let child = command(place.path(), &long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let manifest = place.path().join("run/checkpoint/last.json");
    while !manifest.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let heard = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{heard}");
    assert!(heard.contains("is saved") && heard.contains("regard train --resume run"), "{heard}");
    let step = |manifest: &Path| {
        let manifest: serde_json::Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
        manifest["progress"]["step"].as_u64().unwrap()
    };
    let stopped_after: u64 =
        heard.split("stopped after step ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert_eq!(step(&manifest), stopped_after);
}

#[test]
fn a_run_goes_on_from_its_folder_alone() {
    let place = place();
    let first = regard(place.path(), &["train", "recipe.toml", "-o", "run"]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    fs::remove_file(place.path().join("recipe.toml")).unwrap();
    let again = regard(place.path(), &["train", "--resume", "run"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(text(&again.stdout), text(&first.stdout));
}

#[test]
fn bad_recipes_and_folders_are_told_with_status_2() {
    let place = place();
    let refused = |args: &[&str], wanted: &str| {
        let output = regard(place.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(wanted), "{args:?}: {}", text(&output.stderr));
    };
    refused(&["train", "nonsense"], "no recipe `nonsense`");
    refused(&["train", "recipe.toml", "--set", "bach=3"], "`batch`");
    refused(&["train", "recipe.toml", "--set", "set.dept=3"], "`depth`");
    refused(&["train", "recipe.toml", "--model", "vit-nanu"], "`vit-nano`");
    refused(&["train", "recipe.toml", "--data", "nowhere"], "nowhere");
    refused(&["train", "recipe.toml", "--set", "batch=1000"], "1000");
    refused(&["train", "--resume", "data"], "recipe.toml");
    refused(&["compare", "recipe.toml", "--models", "vit-nano,vit-nanu"], "`vit-nano`");
    fs::write(place.path().join("data/class1/3.png"), b"no picture").unwrap();
    refused(&["train", "recipe.toml", "-o", "broken"], "3.png");
}

#[test]
fn a_comparison_trains_each_model_with_each_seed_once() {
    let place = place();
    let compare = ["compare", "recipe.toml", "--models", "vit-nano,vit-nano+depth=1", "--seeds", "0,1", "-o", "all"];
    let output = regard(place.path(), &compare);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("vit-nano+depth=1") && stdout.contains('±'), "{stdout}");
    for name in ["compare.md", "compare.json", "compare.svg"] {
        assert!(place.path().join("all").join(name).is_file(), "{name}");
    }
    let again = regard(place.path(), &compare);
    assert_eq!(text(&again.stdout), stdout, "what is there is not trained again");
}

#[test]
fn a_comparison_measures_what_is_trained_already_as_its_own_run_was_measured() {
    let place = place();
    let compare =
        |models: &str| regard(place.path(), &["compare", "recipe.toml", "--models", models, "-o", "all", "--json"]);
    let rows = |models: &str| -> serde_json::Value {
        let output = compare(models);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let trained = rows("vit-nano")[0].clone();
    let run = "all/vit-nano/seed0";
    let both = rows(&format!("{run},all/vit-nano/seed0/model.toml={run}/best.safetensors,vit-nano"));
    assert_eq!((both[2]["mean"].clone(), both[2]["seconds"].is_number()), (trained["mean"].clone(), true));
    for row in [&both[0], &both[1]] {
        assert_eq!((&row["mean"], &row["parameters"]), (&trained["mean"], &trained["parameters"]));
        assert!(row["seconds"].is_null() && row["metrics"]["top5"].is_number(), "{row}");
    }
    let refused = |models: &str, word: &str| {
        let output = compare(models);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    };
    refused("fashion-vit", "it has 10 classes, the data has 3");
    refused("vit-nano=nowhere.safetensors", "nowhere.safetensors");
}

/// The losses that a run wrote down.
fn losses(run: &Path) -> Vec<f64> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.filter_map(|record| record.get("loss")?.as_f64()).collect()
}

#[test]
fn a_student_listens_to_the_teacher_of_another_run_as_much_as_it_is_told_to() {
    let place = place();
    let run = |name: &str, more: &[&str]| {
        let output = regard(place.path(), &[&["train", "recipe.toml", "-o", name], more].concat());
        (output.status.code(), text(&output.stderr))
    };
    let teacher = run("teacher", &["--model", "resnet-nano", "--set", "set={ image = [12, 12] }"]);
    assert_eq!(teacher.0, Some(0), "{}", teacher.1);
    let taught = |name: &str, rest: &str| {
        let keys =
            format!("distillation={{ teacher = 'teacher/model.toml', weights = 'teacher/best.safetensors', {rest} }}");
        run(name, &["--set", &keys])
    };
    assert_eq!(run("alone", &[]).0, Some(0));
    for (name, rest) in [
        ("deaf", "share = 0.0"),
        ("hard", "share = 1.0"),
        ("soft", "share = 1.0, kind = { soft = { temperature = 3.0 } }"),
    ] {
        let (status, output) = taught(name, rest);
        assert_eq!(status, Some(0), "{output}");
    }
    let losses = |name: &str| losses(&place.path().join(name));
    assert_eq!(losses("deaf"), losses("alone"));
    for name in ["hard", "soft"] {
        assert_ne!(losses(name), losses("alone"), "{name}");
    }
    assert_ne!(losses("hard"), losses("soft"));
    fs::remove_file(place.path().join("teacher/best.safetensors")).unwrap();
    let (status, output) = taught("none", "share = 0.5");
    assert!(status == Some(2) && output.contains("teacher/best.safetensors"), "{output}");
}

#[test]
fn the_small_quickstart_trains_five_models_and_goes_on_from_what_is_there() {
    let place = tempfile::tempdir().unwrap();
    let output = regard(place.path(), &["quickstart", "--small"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    for model in ["vit-nano", "san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "resnet-nano"] {
        assert!(stdout.contains(model), "{stdout}");
    }
    let report = fs::read_to_string(place.path().join("regard-out/quickstart-small/REPORT.html")).unwrap();
    assert_eq!(report.matches("data:image/png").count(), 6);
    let again = regard(place.path(), &["quickstart", "--small"]);
    assert_eq!(text(&again.stdout), stdout, "what is there is not trained again");
}
