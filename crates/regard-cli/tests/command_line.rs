//! The binary as a user meets it: its words, its files, its exit status.

use image::{DynamicImage, GrayImage, ImageBuffer, Luma, LumaA, Rgb, Rgba, RgbaImage};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn regard(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regard")).current_dir(folder).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn stdout_of(args: &[&str]) -> String {
    let output = regard(Path::new("."), args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// A gray step with noise, the same every time.
fn noisy_gray(width: u32, height: u32) -> GrayImage {
    GrayImage::from_fn(width, height, |x, y| {
        let clean = if x < width / 2 { 80 } else { 170 };
        Luma([(clean + (x * 7919 + y * 104_729) % 31 - 15) as u8])
    })
}

/// Status 2, nothing on stdout, and an error with a hint that names these.
#[track_caller]
fn assert_refused(folder: &Path, args: &[&str], culprits: &[&str]) {
    let output = regard(folder, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.starts_with("error: ") && stderr.contains("\nhint: "), "{stderr}");
    for culprit in culprits {
        assert!(stderr.contains(culprit), "no `{culprit}` in: {stderr}");
    }
}

#[test]
fn help_is_readable() {
    insta::assert_snapshot!("help", stdout_of(&["--help"]));
    for command in [
        "gallery",
        "denoise",
        "operators",
        "models",
        "cost",
        "table",
        "predict",
        "translate",
        "fill",
        "embed-text",
        "eval",
        "explain",
        "run",
        "serve",
        "export",
    ] {
        insta::assert_snapshot!(format!("help-{command}"), stdout_of(&[command, "--help"]));
    }
    insta::assert_snapshot!("help-plan-show", stdout_of(&["plan", "show", "--help"]));
    insta::assert_snapshot!("help-data-browse", stdout_of(&["data", "browse", "--help"]));
}

#[test]
fn operators_are_listed_as_text_and_as_json() {
    insta::assert_snapshot!("operators", stdout_of(&["operators"]));
    let json: serde_json::Value = serde_json::from_str(&stdout_of(&["operators", "--json"])).unwrap();
    let operators = json.as_array().unwrap();
    assert_eq!(operators.len() + 1, stdout_of(&["operators"]).lines().count());
    assert!(operators.iter().all(|operator| operator["name"].is_string() && operator["paper"].is_string()));
}

#[test]
fn a_sheet_of_what_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_refused(folder.path(), &["data", "browse", "nowhere", "-o", "page.png"], &["nowhere"]);
    assert_refused(folder.path(), &["data", "browse", "nowhere", "-o", "page.doc"], &["page.doc", "png"]);
    assert_refused(folder.path(), &["data", "browse", "nowhere", "-o", "page.png", "--rows", "2000"], &["2000"]);
    let recipe = ["data", "browse", "nowhere", "-o", "page.png", "--recipe", "recipe.toml"];
    assert_refused(folder.path(), &recipe, &["recipe.toml"]);
    fs::write(folder.path().join("recipe.toml"), "[mix]\nmixupp = 1.0\n").unwrap();
    assert_refused(folder.path(), &recipe, &["recipe.toml", "mixupp"]);
}

#[test]
fn a_plan_is_shown_as_a_table_and_as_json_and_multiplies_what_the_model_costs() {
    let parse = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let json = parse(stdout_of(&["plan", "show", "resnet-nano", "--runs", "1", "--json"]));
    let nodes = json["nodes"].as_array().unwrap();
    let sum: u64 = nodes.iter().filter_map(|node| node["multiply_adds"].as_u64()).sum();
    let cost = parse(stdout_of(&["cost", "resnet-nano", "--json"]));
    assert_eq!((sum, &json["multiply_adds"]), (cost["multiply_adds"].as_u64().unwrap(), &cost["multiply_adds"]));
    assert!(nodes.iter().all(|node| node["microseconds"].is_number() && node["output"].is_array()));
    assert!(nodes.iter().any(|node| node["name"] == "layer1.0.conv1" && node["operation"] == "convolution+relu"));
    let table = stdout_of(&["plan", "show", "resnet-nano", "--runs", "1"]);
    assert_eq!(table.lines().count(), nodes.len() + 4, "{table}");
    assert_refused(tempfile::tempdir().unwrap().path(), &["plan", "show", "resnet-nanno"], &["resnet-nano"]);
}

#[test]
fn the_version_is_told() {
    assert_eq!(stdout_of(&["--version"]), format!("regard {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn gallery_writes_a_map_for_every_line_of_its_table_and_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let output = regard(folder.path(), &["gallery"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let maps: Vec<_> = stdout.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let maps: Vec<_> = maps.iter().filter(|name| !name.contains('/') && name.contains(".png")).collect();
    assert!(maps.len() > 20, "{stdout}");
    let drawn = folder.path().join("regard-out");
    for name in maps.iter().copied().chain([&"all.png"]) {
        let image = image::open(drawn.join(name)).unwrap().into_rgb8();
        let first = image.get_pixel(image.width() / 2, image.height() / 2);
        assert!(image.width() >= 384 && image.pixels().any(|pixel| pixel != first), "{name} shows nothing");
    }
    assert_eq!(fs::read_dir(&drawn).unwrap().count(), maps.len() + 1, "nothing else is left behind");

    assert!(regard(folder.path(), &["gallery", "--out", "again"]).status.success());
    let sheet = |out: &str| fs::read(folder.path().join(out).join("all.png")).unwrap();
    assert!(sheet("again") == sheet("regard-out"), "another run draws something else");
}

#[test]
fn denoise_smooths_a_picture_and_keeps_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let noisy = noisy_gray(40, 30);
    noisy.save(folder.path().join("in.png")).unwrap();
    let output = regard(folder.path(), &["denoise", "in.png", "out.png", "--sigma", "0.05"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    assert!(text(&output.stderr).contains("40x30"));
    let denoised = image::open(folder.path().join("out.png")).unwrap();
    assert_eq!(denoised.color(), image::ColorType::L8);
    let spread = |image: &GrayImage| {
        let left: Vec<f32> = (0..30)
            .flat_map(|y| (0..20).map(move |x| (x, y)))
            .map(|(x, y)| f32::from(image.get_pixel(x, y).0[0]))
            .collect();
        left.iter().map(|value| (value - 80.0).powi(2)).sum::<f32>() / left.len() as f32
    };
    assert!(spread(&denoised.into_luma8()) < spread(&noisy) / 4.0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left behind");
}

#[test]
fn denoise_keeps_alpha_and_depth() {
    let folder = tempfile::tempdir().unwrap();
    let alpha = |x: u32, y: u32| (x * 11 + y * 3) as u8;
    RgbaImage::from_fn(20, 20, |x, y| Rgba([100 + (x * y % 9) as u8, 50, 60, alpha(x, y)]))
        .save(folder.path().join("rgba.png"))
        .unwrap();
    let deep: ImageBuffer<LumaA<u16>, Vec<u16>> =
        ImageBuffer::from_fn(20, 20, |x, y| LumaA([30_000 + (x * y % 9) as u16, (x * 1000 + y) as u16]));
    DynamicImage::ImageLumaA16(deep.clone()).save(folder.path().join("deep.png")).unwrap();
    for name in ["rgba", "deep"] {
        let output =
            regard(folder.path(), &["denoise", &format!("{name}.png"), &format!("{name}-out.png"), "--sigma", "0.02"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let rgba = image::open(folder.path().join("rgba-out.png")).unwrap();
    assert!(rgba.as_rgba8().unwrap().enumerate_pixels().all(|(x, y, pixel)| pixel.0[3] == alpha(x, y)));
    let DynamicImage::ImageLumaA16(out) = image::open(folder.path().join("deep-out.png")).unwrap() else {
        panic!("the depth changed")
    };
    assert!(out.pixels().zip(deep.pixels()).all(|(out, deep)| out.0[1] == deep.0[1]));
    assert!(out != deep);
}

#[test]
fn denoise_writes_every_format_and_over_its_input() {
    let folder = tempfile::tempdir().unwrap();
    ImageBuffer::from_fn(16, 16, |x, y| Rgb([(x * 9) as u8, (y * 9) as u8, 77]))
        .save(folder.path().join("in.png"))
        .unwrap();
    for out in ["out.jpg", "out.webp", "out.tiff", "out.bmp", "out.gif", "in.png"] {
        let output =
            regard(folder.path(), &["denoise", "in.png", out, "--sigma", "0.1", "--patch", "3", "--search", "5"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(image::open(folder.path().join(out)).unwrap().width(), 16);
    }
}

#[test]
fn bad_input_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    noisy_gray(20, 6).save(folder.join("flat.png")).unwrap();
    noisy_gray(20, 20).save(folder.join("in.png")).unwrap();
    RgbaImage::new(20, 20).save(folder.join("rgba.png")).unwrap();
    fs::write(folder.join("text.png"), "no image at all").unwrap();
    let whole = fs::read(folder.join("in.png")).unwrap();
    fs::write(folder.join("half.png"), &whole[..whole.len() / 2]).unwrap();

    let denoise = |input: &str, output: &str, rest: &[&str], culprits: &[&str]| {
        let args = [&["denoise", input, output], rest].concat();
        assert_refused(folder, &args, culprits);
        assert!(!folder.join("out.png").exists());
    };
    let sigma = &["--sigma", "0.1"];
    denoise("missing.png", "out.png", sigma, &["missing.png"]);
    denoise("text.png", "out.png", sigma, &["text.png"]);
    denoise("half.png", "out.png", sigma, &["half.png"]);
    denoise("flat.png", "out.png", sigma, &["flat.png", "20x6", "7"]);
    denoise("in.png", "out.docx", sigma, &["out.docx", "png"]);
    denoise("in.png", "out", sigma, &["`out`"]);
    denoise("in.png", "nowhere/out.png", sigma, &["nowhere"]);
    denoise("rgba.png", "out.jpg", sigma, &["out.jpg", "alpha"]);
    for value in ["nan", "inf", "-0.1", "25"] {
        denoise("in.png", "out.png", &["--sigma", value], &["--sigma", "25 in 8-bit"]);
    }
    denoise("in.png", "out.png", &["--sigma", "0.1", "--patch", "4"], &["--patch", "4"]);
    denoise("in.png", "out.png", &["--sigma", "0.1", "--search", "0"], &["--search", "0"]);
    denoise("in.png", "out.png", &["--sigma", "0.1", "--strength", "-1"], &["--strength", "-1"]);
    assert_refused(folder, &["gallery", "--device", "tpu"], &["`tpu`", "cpu, wgpu, cuda"]);
    assert_refused(folder, &["gallery", "--out", "in.png"], &["in.png"]);
    assert_eq!(regard(folder, &["paint"]).status.code(), Some(2));
    assert_eq!(regard(folder, &["denoise", "in.png", "out.png"]).status.code(), Some(2), "sigma is required");
}

#[test]
fn an_interrupted_reader_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .arg("operators")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_picture_of_enormous_size_is_refused_before_it_is_decoded() {
    // a header of 100000 x 100000 pixels, and next to no data
    const HUGE: &[u8] = &[
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 1, 134, 160, 0, 1, 134, 160, 8, 2, 0, 0, 0,
        39, 48, 156, 159, 0, 0, 0, 11, 73, 68, 65, 84, 120, 156, 99, 96, 128, 1, 0, 0, 10, 0, 1, 127, 128, 116, 94, 0,
        0, 0, 0, 73, 69, 78, 68, 174, 66, 96, 130,
    ];
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("huge.png"), HUGE).unwrap();
    assert_refused(
        folder.path(),
        &["denoise", "huge.png", "out.png", "--sigma", "0.1"],
        &["huge.png", "100000 x 100000"],
    );
}
