//! `regard explain` and `regard analyse` as a user meets them: pages, figures in two formats, data, checks and refusals.

use crate::common::{assert_refused, regard, stdout_of, text};
use image::{Rgb, RgbImage};
use regard::{device, models, weights};
use std::fs;
use std::path::Path;

/// Twelve different pictures in `photos`, and the weights of fresh models.
fn workshop(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let model = models::preset(name).unwrap().config.init(&device::cpu()).unwrap();
        let file = folder.path().join(format!("{name}.safetensors"));
        weights::write_tensors(&file, &weights::tensors(&model)).unwrap();
    }
    fs::create_dir(folder.path().join("photos")).unwrap();
    for photo in 0..12u32 {
        let wave = |x: u32, y: u32| ((x * (photo + 3) + y * (photo * photo % 7)) % 97 * 2) as u8;
        let picture = RgbImage::from_fn(40, 36, |x, y| Rgb([wave(x, y), wave(y, x), 20 * photo as u8]));
        picture.save(folder.path().join(format!("photos/{photo:02}.png"))).unwrap();
    }
    folder
}

/// What every page has beside it: data, and every figure twice.
#[track_caller]
fn assert_complete(page: &Path, folder: &Path, figures: &[&str]) {
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("checks") && !html.contains("FAILED"), "{}", page.display());
    // with the colon, which no encoded picture has
    let elsewhere = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "nothing is fetched");
    serde_json::from_slice::<serde_json::Value>(&fs::read(folder.join("data.json")).unwrap()).unwrap();
    for figure in figures {
        assert!(fs::read_to_string(folder.join(format!("{figure}.svg"))).unwrap().starts_with("<svg"), "{figure}");
        let png = image::open(folder.join(format!("{figure}.png"))).unwrap();
        assert!(png.width() > 100, "{figure}");
    }
}

#[test]
fn explain_writes_a_page_with_figures_and_data_for_every_kind_of_model() {
    let kinds: [(&str, &[&str]); 5] = [
        ("vit-nano", &["picture", "rollout", "lens", "class-token", "place"]),
        ("san-nano-patchwise", &["grad-cam", "place", "kernels"]),
        ("sasa-nano", &["grad-cam", "place", "kernels"]),
        ("non-local-resnet-nano", &["grad-cam", "place"]),
        ("resnet-nano", &["picture", "grad-cam"]),
    ];
    let folder = workshop(&kinds.map(|(name, _)| name));
    for (name, figures) in kinds {
        let (weights, page) = (format!("{name}.safetensors"), format!("{name}.html"));
        let args = ["explain", "photos/03.png", "--model", name, "--weights", &weights, "-o", &page, "--class", "7"];
        let stdout = stdout_of(folder.path(), &args);
        assert!(stdout.contains(&format!("photos/03.png under {name}")) && stdout.contains("ok: "), "{stdout}");
        assert!(!stdout.contains("FAILED"), "{stdout}");
        assert_complete(&folder.path().join(&page), &folder.path().join(name), figures);
    }
}

#[test]
fn explain_prints_data_in_which_maps_and_tokens_sum_to_one() {
    let folder = workshop(&["vit-nano"]);
    let args = [
        "explain",
        "photos/05.png",
        "--model",
        "vit-nano",
        "--weights",
        "vit-nano.safetensors",
        "--json",
        "--at",
        "0.1,0.9",
    ];
    let data: serde_json::Value = serde_json::from_str(&stdout_of(folder.path(), &args)).unwrap();
    assert_eq!((data["place"].as_array().unwrap().len(), &data["place"][0]["query"]), (5, &serde_json::json!([0, 7])));
    let sum = |values: &serde_json::Value| {
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).sum::<f64>()
    };
    for layer in data["class_token"].as_array().unwrap() {
        for head in 0..4 {
            assert!((sum(&layer["heads"][head]) + sum(&layer["tokens"][head]) - 1.0).abs() < 1e-4);
        }
    }
    assert_eq!(data["lens"]["layers"][4]["answers"][0]["class"], data["answers"][0]["class"]);
    assert!(data["checks"].as_array().unwrap().len() >= 4);
}

#[test]
fn explain_refuses_what_it_cannot_use_and_says_why() {
    let folder = workshop(&["vit-nano"]);
    let with = |more: &[&'static str]| {
        [&["explain", "photos/00.png", "--model", "vit-nano", "--weights", "vit-nano.safetensors"][..], more].concat()
    };
    assert_refused(
        folder.path(),
        &["explain", "nowhere.png", "--model", "vit-nano", "--weights", "vit-nano.safetensors"],
        &["nowhere.png"],
    );
    assert_refused(folder.path(), &with(&["-o", "page.pdf"]), &["`page.pdf`", ".html"]);
    assert_refused(folder.path(), &with(&["-o", "no/page.html"]), &["`no`"]);
    assert_refused(folder.path(), &with(&["--class", "zebra"]), &["`zebra`", "below 10"]);
    assert_refused(folder.path(), &with(&["--discard", "1.5"]), &["1.5"]);
    assert_refused(folder.path(), &["explain", "photos/00.png", "--run", "photos"], &["`photos` has no model.toml"]);
    let output = regard(folder.path(), &with(&["--at", "2,0.5"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("0 to 1"));
}

#[test]
fn every_analysis_writes_its_folder() {
    let folder = workshop(&["vit-nano", "resnet-nano"]);
    let both = "vit-nano=vit-nano.safetensors,resnet-nano=resnet-nano.safetensors";
    let pictures = ["--data", "photos", "--pictures", "8", "--batch", "4"];
    let cases: [(&str, &str, &[&str], &[&str]); 6] = [
        ("cka", both, &pictures, &["cka-0", "cka-1", "cka-2"]),
        ("field", both, &pictures, &["radius", "field-0", "field-1"]),
        ("distance", "vit-nano,sasa-nano", &pictures, &["distance-0", "distance-1"]),
        ("entropy", "vit-nano=vit-nano.safetensors", &pictures, &["entropy-0"]),
        ("positions", "vit-nano=vit-nano.safetensors", &[], &["positions-0"]),
        ("filters", both, &[], &["filters-0", "filters-1"]),
    ];
    for (analysis, models, more, figures) in cases {
        let args = [&["analyse", analysis, "--models", models, "-o", analysis][..], more].concat();
        let stdout = stdout_of(folder.path(), &args);
        assert!(stdout.contains("ok: ") && !stdout.contains("FAILED"), "{stdout}");
        assert_complete(&folder.path().join(analysis).join("report.html"), &folder.path().join(analysis), figures);
    }
    let cka: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("cka/data.json")).unwrap()).unwrap();
    let itself = &cka["pairs"][1]["similarity"]["values"];
    assert!((0..5).all(|layer| (itself[layer][layer].as_f64().unwrap() - 1.0).abs() < 1e-6));
}

#[test]
fn analyses_refuse_what_they_cannot_use_and_say_why() {
    let folder = workshop(&["vit-nano"]);
    let vit = "vit-nano=vit-nano.safetensors";
    let cka = |batch: &'static str| ["analyse", "cka", "--models", vit, "--data", "photos", "--batch", batch];
    assert_refused(folder.path(), &cka("3"), &["at least 4 pictures, got 3"]);
    assert_refused(
        folder.path(),
        &["analyse", "cka", "--models", "vit-nano,vit-nano,vit-nano", "--data", "photos"],
        &["3 models"],
    );
    assert_refused(
        folder.path(),
        &["analyse", "distance", "--models", "resnet-nano", "--data", "photos"],
        &["`resnet-nano` has no attention"],
    );
    assert_refused(
        folder.path(),
        &["analyse", "positions", "--models", "resnet-nano"],
        &["no embedding of absolute positions"],
    );
    assert_refused(folder.path(), &["analyse", "filters", "--models", "san-nano-pairwise"], &["no filters"]);
    assert_refused(folder.path(), &["analyse", "cka", "--models", vit, "--data", "nowhere"], &["nowhere"]);
    assert_refused(
        folder.path(),
        &["analyse", "cka", "--models", "vit-nanno", "--data", "photos"],
        &["`vit-nanno`", "`vit-nano`"],
    );
    assert_refused(
        folder.path(),
        &["analyse", "filters", "--models", vit, "-o", "vit-nano.safetensors"],
        &["is a file"],
    );
    fs::write(folder.path().join("photos/12.png"), "not a picture").unwrap();
    let args = ["analyse", "entropy", "--models", vit, "--data", "photos", "--pictures", "13"];
    assert_refused(folder.path(), &args, &["12.png", "1 pictures could not be read"]);
}

#[test]
fn the_boxes_of_each_query_are_drawn_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["analyse", "queries", "-m", "detr-nano", "--data", "scenes", "--pictures", "6", "--threshold", "0.05"];
    let stdout = stdout_of(folder.path(), &[&args[..], &["-o", "queries"]].concat());
    assert!(stdout.contains("fired") && stdout.contains("ok: centres are inside"), "{stdout}");
    assert_complete(&folder.path().join("queries/report.html"), &folder.path().join("queries"), &["queries-0"]);
    let json: serde_json::Value =
        serde_json::from_str(&stdout_of(folder.path(), &[&args[..], &["--json"]].concat())).unwrap();
    let found = &json["models"][0]["specialisation"];
    let queries = found["queries"].as_array().unwrap();
    assert_eq!((json["pictures"].as_u64(), queries.len()), (Some(6), 16));
    assert!(queries.iter().all(|query| query["boxes"].as_array().unwrap().len() == 6));
    // reference points begin as a grid, so that even fresh queries answer for places of their own
    assert!(found["between"].as_f64().unwrap() > 0.5, "{}", found["between"]);
    let svg = fs::read_to_string(folder.path().join("queries/queries-0.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), 3 + 16 * 6);
    let other = |model: &'static str| ["analyse", "queries", "--models", model, "--data", "scenes", "--pictures", "2"];
    assert_refused(folder.path(), &other("retinanet-nano"), &["`retinanet-nano` has no queries", "DETR"]);
    assert_refused(folder.path(), &other("vit-nano"), &["classifier"]);
    assert_refused(folder.path(), &["analyse", "queries", "-m", "detr-nano", "--data", "nowhere"], &["nowhere"]);
}
