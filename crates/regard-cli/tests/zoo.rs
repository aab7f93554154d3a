//! The commands that know models: what they count, load, run and refuse.

use crate::common::{assert_refused, regard, stdout_of, text};
use burn::tensor::{Tensor, TensorData};
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
    let of_text = models::translator::presets().len()
        + models::language_model::PRESETS.len()
        + models::bert::PRESETS.len()
        + models::vision_language::PRESETS.len();
    let of_pictures = models::presets().len() + models::detect::presets().len() + models::video::presets().len();
    assert_eq!(listed.len(), of_pictures + of_text);
    let vit = listed.iter().find(|entry| entry["name"] == "vit-base-patch16-224").unwrap();
    assert_eq!(vit["parameters"], 86_567_656);
    let count = |kind: &str| listed.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((count("detector"), count("classifier")), (models::detect::presets().len(), models::presets().len()));
    let retinanet = listed.iter().find(|entry| entry["name"] == "retinanet-resnet50-fpn").unwrap();
    assert_eq!(retinanet["parameters"], 34_014_999);
    let table = stdout_of(folder.path(), &["models"]);
    // a heading for each kind, and empty lines between kinds
    assert_eq!(table.lines().count(), listed.len() + 6 + 5);
    assert!(table.lines().any(|line| line.starts_with("detectors  ")), "{table}");
    let uniter = listed.iter().find(|entry| entry["name"] == "uniter-base").unwrap();
    assert_eq!((&uniter["parameters"], &uniter["kind"]), (&112_938_887.into(), &"vision-language".into()));
    let config = stdout_of(folder.path(), &["models", "config", "uniter-nano"]);
    assert!(config.starts_with("model = \"uniter\""), "{config}");
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
fn detectors_are_shown_counted_and_configured_as_classifiers_are() {
    let folder = tempfile::tempdir().unwrap();
    let cost = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout_of(folder.path(), &[&["cost"], args, &["--json"]].concat())).unwrap()
    };
    let usual = cost(&["detr-nano"]);
    assert_eq!(usual["image"], serde_json::json!([64, 64]));
    let larger = cost(&["detr-nano", "--image", "128x64"]);
    assert!(larger["multiply_adds"].as_u64() > usual["multiply_adds"].as_u64());
    assert_eq!(larger["parameters"], usual["parameters"]);
    let shallow = cost(&["detr-nano", "--set", "decoder_layers=1"]);
    assert!(shallow["parameters"].as_u64() < usual["parameters"].as_u64());
    let shown = stdout_of(folder.path(), &["models", "show", "detr-nano"]);
    assert!(shown.contains("detr-nano: detr, 64x64") && shown.contains("class_embed"), "{shown}");
    let toml = stdout_of(folder.path(), &["models", "config", "detr-nano"]);
    fs::write(folder.path().join("mine.toml"), toml.replace("decoder_layers = 3", "decoder_layers = 1")).unwrap();
    assert_eq!(cost(&["mine.toml"])["parameters"], shallow["parameters"]);
    assert_refused(folder.path(), &["cost", "detr-nanoo"], &["`detr-nano`"]);
    assert_refused(folder.path(), &["cost", "detr-nano", "--set", "heads=5"], &["`heads`", "5"]);
    assert_refused(folder.path(), &["predict", "x.png", "--model", "detr-nano"], &["detector", "`regard detect`"]);
}

#[test]
fn a_detector_is_exported_under_the_names_of_its_library_and_detects_from_there() {
    let folder = tempfile::tempdir().unwrap();
    stdout_of(folder.path(), &["export", "scenes-retinanet", "-o", "theirs"]);
    let tensors = weights::read(&folder.path().join("theirs/model.safetensors")).unwrap().tensors;
    assert_eq!(weights::recognise(tensors.keys().map(String::as_str)), weights::Upstream::Torchvision);
    RgbImage::from_pixel(64, 64, Rgb([90, 120, 200])).save(folder.path().join("one.png")).unwrap();
    let answer =
        |model: &str| stdout_of(folder.path(), &["detect", "one.png", "--threshold", "0", "--json", "-m", model]);
    assert_eq!(answer("theirs"), answer("scenes-retinanet"));
    let refused = ["export", "scenes-retinanet", "--to", "detectron2", "-o", "no"];
    assert_refused(folder.path(), &refused, &["detectron2", "only torchvision", "--to regard"]);
    assert_refused(folder.path(), &["export", "scenes-retinanet", "--int8", "-o", "no"], &["`--int8`"]);
    assert!(!folder.path().join("no").exists());
}

#[test]
fn the_tables_of_the_papers_say_how_many_cells_agree() {
    let folder = tempfile::tempdir().unwrap();
    let last = |paper: &str| stdout_of(folder.path(), &["table", paper]).lines().last().unwrap().to_string();
    assert_eq!(last("san"), "76 of 76 cells agree as printed");
    assert_eq!(last("sasa"), "16 of 18 cells agree as printed");
    assert_eq!(last("vit"), "13 of 18 cells agree as printed");
    assert_eq!(last("timesformer"), "5 of 5 cells agree as printed");
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
    assert_refused(folder.path(), &[&args[..], &itself].concat(), &["`in.safetensors` is both input and output"]);
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
    let stdout = stdout_of(folder.path(), &[&args[..], &["--per-class", "--confusion", "confusion.svg"]].concat());
    assert!(stdout.contains("calibration error") && stdout.contains("mostly taken for"), "{stdout}");
    assert_eq!(stdout.lines().count(), 7 + 1 + 1 + 10, "{stdout}");
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
    assert_refused(folder.path(), &turned, &["my-run/best.safetensors"]);
    fs::copy(folder.path().join("nano.safetensors"), run.join("best.safetensors")).unwrap();
    let stdout = stdout_of(folder.path(), &turned);
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].contains("no rotation") && lines[0].ends_with("upside-down"), "{stdout}");
    assert!(lines.len() == 3 && lines[1].starts_with("vit-nano ") && lines[2].starts_with("my-run "), "{stdout}");
    fs::create_dir(folder.path().join("vit-nano")).unwrap();
    fs::rename(&run, folder.path().join("vit-nano/seed0")).unwrap();
    let seed = [&turned[..turned.len() - 4], &["vit-nano/seed0", "--part", "all", "--robustness"]].concat();
    assert!(stdout_of(folder.path(), &seed).contains("\nvit-nano/seed0 "), "a seed is stdout with its model");
    fs::rename(folder.path().join("vit-nano/seed0"), &run).unwrap();
    // pictures of one colour look alike from every side
    assert!(lines[1..].iter().all(|line| line.matches("(0.0)").count() == 4), "{stdout}");
    assert_refused(folder.path(), &[&args[..], &["--part", "all"]].concat(), &["2 models", "--robustness"]);
    assert_refused(folder.path(), &[&turned[..], &["--model", "vit-nano"]].concat(), &["2 of --model and 1 of"]);
    let wide = [&turned[..], &["--set", "image=[32,48]"]].concat();
    assert_refused(folder.path(), &wide, &["32 rows and 48 columns"]);
}

#[test]
fn weights_that_do_not_fit_are_told_with_the_field_to_set_and_a_new_head_is_refused() {
    let (folder, _) = workshop();
    let predict = |more: &[&str]| {
        let args = ["predict", "--model", "vit-nano", "--weights", "nano.safetensors", "data/3/one.png"];
        regard(folder.path(), &[&args[..], more].concat())
    };
    let stderr = text(&predict(&["--set", "classes=7"]).stderr);
    assert!(stderr.contains("`head.weight`") && stderr.contains("[10, ") && stderr.contains("[7, "), "{stderr}");
    assert!(stderr.contains("hint: the weights are for 10 classes: `--set classes=10`"), "{stderr}");
    let refused = predict(&["--new-head", "7"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--set classes=7") && refused.stdout.is_empty());
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
    assert_refused(folder.path(), &hugging_face, &["int8", "with the names of timm"]);
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

/// A run of the weights of the workshop, with five classes and a preprocessing of its own.
fn run_folder(folder: &std::path::Path) {
    let run = folder.join("my-run");
    fs::create_dir(&run).unwrap();
    let config = models::preset("vit-nano").unwrap().config.with("classes", serde_json::json!(5)).unwrap();
    let config = config.with("depth", serde_json::json!(1)).unwrap();
    fs::write(run.join("model.toml"), config.to_toml()).unwrap();
    // far from what the preset does to a picture
    fs::write(
        run.join("preprocess.toml"),
        "mean = [0.9, 0.0, 0.9]\nstd = [0.1, 4.0, 0.1]\ncrop = 0.5\nfilter = \"bilinear\"\n",
    )
    .unwrap();
    fs::write(run.join("classes.txt"), "0\n1\n2\n3\n4\n").unwrap();
    let model = config.init(&device::cpu()).unwrap();
    weights::write_tensors(&run.join("best.safetensors"), &weights::tensors(&model)).unwrap();
    for class in 5..10 {
        fs::remove_dir_all(folder.join(format!("data/{class}"))).unwrap();
    }
}

#[test]
fn every_command_takes_a_run_and_its_preprocessing_however_it_is_spelled() {
    let (folder, _) = workshop();
    run_folder(folder.path());
    let eval = |args: &[&str]| -> serde_json::Value {
        let all = [&["eval", "--data", "data", "--part", "all", "--json"], args].concat();
        let mut report: serde_json::Value = serde_json::from_str(&stdout_of(folder.path(), &all)).unwrap();
        report.as_object_mut().unwrap().remove("pictures_per_second");
        report
    };
    let expected = eval(&["my-run"]);
    for args in [
        &["--model", "my-run"][..],
        &["--run", "my-run"],
        &["--model", "my-run/model.toml", "--weights", "my-run/best.safetensors"],
        &["my-run/best.safetensors"],
        &["--set", "classes=5", "--set", "depth=1", "vit-nano=my-run/best.safetensors"],
    ] {
        assert_eq!(eval(args), expected, "{args:?}");
    }
    let predicted = stdout_of(folder.path(), &["predict", "--model", "my-run", "data/3/one.png"]);
    assert_eq!(predicted.lines().count(), 6, "{predicted}");
    stdout_of(folder.path(), &["explain", "--model", "my-run", "data/3/one.png"]);
    stdout_of(folder.path(), &["run", "my-run", "--input", "in.safetensors", "--output", "out.safetensors"]);
    for to in ["timm", "hugging-face"] {
        stdout_of(folder.path(), &["export", "my-run", "--to", to, "-o", to]);
        assert_eq!(stdout_of(folder.path(), &["predict", "--model", to, "data/3/one.png"]), predicted, "{to}");
    }
    stdout_of(folder.path(), &["analyse", "positions", "--models", "my-run"]);
    assert!(stdout_of(folder.path(), &["cost", "my-run"]).contains("parameters"));
}

#[test]
fn an_old_spelling_works_and_says_the_new_one_in_a_line() {
    let (folder, _) = workshop();
    let old =
        regard(folder.path(), &["predict", "--model", "vit-nano", "--weights", "nano.safetensors", "data/3/one.png"]);
    let new = regard(folder.path(), &["predict", "--model", "vit-nano=nano.safetensors", "data/3/one.png"]);
    assert!(old.status.success() && new.status.success());
    assert_eq!(old.stdout, new.stdout);
    let note = text(&old.stderr);
    assert!(note.starts_with("note: ") && note.lines().count() == 1, "{note}");
    assert!(note.contains("`--model vit-nano=nano.safetensors`") && new.stderr.is_empty(), "{note}");
}

#[test]
fn predict_takes_folders_patterns_and_the_standard_input_and_needs_no_model() {
    use std::io::Write as _;
    let (folder, _) = workshop();
    let pictures = |args: &[&str], input: &[u8]| {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_regard"))
            .current_dir(folder.path())
            .args(["predict", "--csv", "--top", "1"])
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("note: no `--model`: using the embedded `fashion-vit`"));
        let lines: Vec<String> = text(&output.stdout).lines().map(String::from).collect();
        assert_eq!(lines[0], "picture,rank,class,label,probability");
        lines[1..].iter().map(|line| line.split(',').next().unwrap().to_string()).collect::<Vec<_>>()
    };
    let all: Vec<String> = (0..10).map(|class| format!("data/{class}/one.png")).collect();
    assert_eq!(pictures(&["data"], b""), all);
    assert_eq!(pictures(&["data/*/one.png"], b""), all);
    assert_eq!(pictures(&["data/[12]/*.png"], b""), all[1..3]);
    let picture = fs::read(folder.path().join("data/3/one.png")).unwrap();
    assert_eq!(pictures(&["-"], &picture), ["-"]);
    assert_eq!(pictures(&["--from-stdin"], b"data/4/one.png\ndata/5\n"), all[4..6]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert_refused(folder.path(), &["predict", "empty"], &["no pictures in `empty`"]);
    assert_refused(folder.path(), &["predict", "data/*.jpg"], &["`data/*.jpg`: no file"]);
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name_for_one_picture_and_for_many() {
    let (folder, model) = workshop();
    let mut tensors = weights::tensors(&model);
    let name = "blocks.1.mlp.fc1.weight";
    let mut values: Vec<f32> = tensors[name].iter::<f32>().collect();
    values[7] = f32::INFINITY;
    let shape = tensors[name].shape().to_vec();
    tensors.insert(name.into(), TensorData::new(values, shape));
    weights::write_tensors(&folder.path().join("nan.safetensors"), &tensors).unwrap();
    for pictures in [&["data/3/one.png"][..], &["data/3/one.png", "data/4/one.png"]] {
        let args = [&["predict", "--model", "vit-nano=nan.safetensors"], pictures].concat();
        assert_refused(folder.path(), &args, &[name, "NaN or infinite"]);
        assert!(regard(folder.path(), &args).stdout.is_empty());
    }
}

#[test]
fn a_wrong_checkpoint_is_told_in_three_lines_and_in_full_when_asked() {
    let (folder, _) = workshop();
    let args = ["predict", "--model", "resnet-nano=nano.safetensors", "data/3/one.png"];
    let brief = text(&regard(folder.path(), &args).stderr);
    assert!(brief.lines().count() <= 5 && brief.contains("this looks like `vit-nano`"), "{brief}");
    assert!(brief.contains("hint: ") && brief.contains("`--verbose`"), "{brief}");
    let full = text(&regard(folder.path(), &[&args[..], &["--verbose"]].concat()).stderr);
    assert!(full.lines().count() > 50 && full.contains("unexpected `blocks.0.attn.qkv.weight`"), "{full}");
}

#[test]
fn imagenet_classes_are_known_by_identifier_and_by_name() {
    let (folder, _) = workshop();
    let config = models::preset("vit-nano").unwrap().config.with("classes", serde_json::json!(1000)).unwrap();
    let model = config.init(&device::cpu()).unwrap();
    weights::write_tensors(&folder.path().join("thousand.safetensors"), &weights::tensors(&model)).unwrap();
    fs::create_dir(folder.path().join("photos")).unwrap();
    for (from, to) in [("0", "n01440764"), ("1", "great_white_shark"), ("2", "tabby")] {
        fs::rename(folder.path().join("data").join(from), folder.path().join("photos").join(to)).unwrap();
    }
    let args = ["eval", "--set", "classes=1000", "vit-nano=thousand.safetensors", "--data", "photos", "--json"];
    let report: serde_json::Value = serde_json::from_str(&stdout_of(folder.path(), &args)).unwrap();
    assert_eq!(report["pictures"], 3);
    fs::rename(folder.path().join("photos/tabby"), folder.path().join("photos/n99999999")).unwrap();
    assert_refused(folder.path(), &args, &["unknown class `n99999999`"]);
}
