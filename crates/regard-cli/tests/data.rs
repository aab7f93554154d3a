//! `regard data` as a user meets it.

use image::{Rgb, RgbImage};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn regard(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regard")).current_dir(folder).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn paint(path: &Path, width: u32, level: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(width, 4, Rgb([level; 3])).save(path).unwrap();
}

/// Two classes of different pictures, and no parts.
fn sound(root: &Path) {
    for level in 0..10 {
        paint(&root.join(format!("flowers/rose/{level}.png")), 4, level);
        paint(&root.join(format!("flowers/tulip/{level}.png")), 6, 100 + level);
    }
}

#[test]
fn help_is_readable() {
    let help = |args: &[&str]| text(&regard(Path::new("."), args).stdout);
    insta::assert_snapshot!("data-help", help(&["data", "--help"]));
    insta::assert_snapshot!("data-check-help", help(&["data", "check", "--help"]));
    insta::assert_snapshot!("data-fetch-help", help(&["data", "fetch", "--help"]));
}

#[test]
fn a_sound_folder_has_status_0() {
    let root = tempfile::tempdir().unwrap();
    sound(root.path());
    let output = regard(root.path(), &["data", "check", "flowers"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!("data-check-sound", text(&output.stdout));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn everything_wrong_with_a_folder_is_named_and_the_status_is_1() {
    let root = tempfile::tempdir().unwrap();
    let train = root.path().join("flowers/train");
    for level in 0..10 {
        paint(&train.join(format!("rose/{level}.png")), 4, level);
    }
    paint(&train.join("rose/again.png"), 4, 3);
    paint(&train.join("tulip/0.png"), 4, 100);
    paint(&train.join("tulip/not a tulip.png"), 4, 5);
    paint(&root.path().join("flowers/test/rose/known.png"), 4, 7);
    paint(&root.path().join("flowers/test/tulip/1.png"), 8, 101);
    fs::write(train.join("tulip/broken.png"), "not a picture").unwrap();
    let output = regard(root.path(), &["data", "check", "flowers"]);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("data-check-broken", text(&output.stdout) + "---\n" + &text(&output.stderr));

    let output = regard(root.path(), &["data", "check", "flowers", "--json", "--least", "2"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // the broken picture was all that `tulip` had for validation
    assert_eq!((&json["layout"], &json["problems"]), (&"folder of classes".into(), &5.into()));
    assert_eq!(json["unreadable"][0]["name"], "flowers/train/tulip/broken.png");
    assert_eq!(json["duplicates"].as_array().unwrap().len(), 3);
    assert_eq!(json["classes"][1]["name"], "tulip");
}

#[test]
fn what_is_no_dataset_has_status_2_and_says_what_would_be_one() {
    let root = tempfile::tempdir().unwrap();
    paint(&root.path().join("loose/1.png"), 4, 1);
    for (source, culprits) in [
        ("nothing", ["nothing: ", "`fashion`"]),
        ("loose", ["1 pictures without classes (1.png)", "folder of classes"]),
    ] {
        let output = regard(root.path(), &["data", "check", source]);
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains("\nhint: "), "{stderr}");
        culprits.iter().for_each(|culprit| assert!(stderr.contains(culprit), "{stderr}"));
    }
}

#[test]
fn public_datasets_are_listed_and_another_name_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let list = text(&regard(root.path(), &["data", "fetch"]).stdout);
    assert_eq!(list.lines().count(), 5);
    let output = regard(root.path(), &["data", "fetch", "imagenet"]);
    assert_eq!(output.status.code(), Some(2));
    for name in list.lines().filter_map(|line| line.split(' ').next()) {
        assert!(text(&output.stderr).contains(name));
    }
}

#[test]
fn a_recipe_finds_what_fetch_leaves_behind() {
    let folder = Path::new(".");
    let recipe = text(&regard(folder, &["recipes", "cifar"]).stdout);
    let help = text(&regard(folder, &["data", "fetch", "--help"]).stdout);
    assert!(recipe.contains("regard data fetch cifar-10\n") && recipe.contains("\ndata = \"data/cifar-10\"\n"));
    assert!(help.contains("[default: data]"), "{help}");
}

#[test]
fn train_val_and_test_are_all_shown_and_compared() {
    let root = tempfile::tempdir().unwrap();
    for (part, levels) in [("train", 0..10), ("val", 10..15), ("test", 15..20)] {
        for level in levels {
            paint(&root.path().join(format!("flowers/{part}/rose/{level}.png")), 4, level);
            paint(&root.path().join(format!("flowers/{part}/tulip/{level}.png")), 4, 100 + level);
        }
    }
    let check = |args: &[&str]| {
        let output = regard(root.path(), &[&["data", "check", "flowers"], args].concat());
        (output.status.code(), text(&output.stdout))
    };
    let (status, stdout) = check(&[]);
    assert_eq!(status, Some(0), "{stdout}");
    insta::assert_snapshot!("data-check-three-parts", stdout);
    let json: serde_json::Value = serde_json::from_str(&check(&["--json"]).1).unwrap();
    assert_eq!((&json["train"], &json["validation"], &json["test"]), (&20.into(), &10.into(), &10.into()));
    assert_eq!((&json["origins"]["validation"], &json["origins"]["test"]), (&"val/".into(), &"test/".into()));
    paint(&root.path().join("flowers/test/rose/known.png"), 4, 12);
    let (status, stdout) = check(&[]);
    assert_eq!(status, Some(1));
    let leak = "flowers/val/rose/12.png (validation) = flowers/test/rose/known.png (test)";
    assert!(stdout.contains("copies in more than one part (leaks): 1") && stdout.contains(leak), "{stdout}");
    // without test/ the folder val/ is the test, and a tenth of train is validation
    fs::remove_dir_all(root.path().join("flowers/test")).unwrap();
    let stdout = check(&[]).1;
    assert!(stdout.contains("validation  a tenth of train\ntest        val/\n"), "{stdout}");
}

#[test]
fn a_mirror_with_other_content_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}/datasets/", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nother").unwrap();
        request[0].clone()
    });
    let output = regard(root.path(), &["data", "fetch", "cifar-10", "-o", "sets", "--from", &mirror]);
    assert_eq!(server.join().unwrap(), "GET /datasets/cifar-10-binary.tar.gz HTTP/1.1");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cifar-10-binary.tar.gz: its SHA-256 is") && stderr.contains("\nhint: "), "{stderr}");
    assert!(!root.path().join("sets/cifar-10").exists());
}

/// Twenty pictures of 40 x 30 pixels with two boxes each, as a table.
fn boxes(root: &Path, wrong: &str) {
    let mut table = String::from("image,x1,y1,x2,y2,class\n");
    for level in 0..20 {
        let path = root.join(format!("boxes/{level}.png"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(40, 30, Rgb([10 * level; 3])).save(path).unwrap();
        let bottom = 10 + level % 10;
        table.extend([format!("{level}.png,1,2,21,{bottom},cat\n"), format!("{level}.png,5.5,5,39,29,dog\n")]);
    }
    fs::write(root.join("boxes/boxes.csv"), table + wrong).unwrap();
}

#[test]
fn pictures_with_boxes_are_checked_converted_and_drawn() {
    let root = tempfile::tempdir().unwrap();
    boxes(root.path(), "");
    let run = |args: &[&str]| {
        let output = regard(root.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    };
    let stdout = run(&["data", "check", "boxes"]);
    for line in [
        "all                     28           4       8\n",
        "AP of the truth     1.0000      1.0000  1.0000\n",
        "layout      CSV of boxes\n",
        "test        a fifth of the pictures\n",
        "queries     more than 2, the most objects in a picture\n",
        "problems    none\n",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    for (from, to) in [("boxes", "voc"), ("voc", "coco"), ("coco", "yolo"), ("yolo", "csv")] {
        let stdout = run(&["data", "convert", from, "--to", to, "-o", to]);
        assert!(stdout.starts_with("20 pictures with 40 boxes"), "{stdout}");
        let checked = run(&["data", "check", to, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&checked).unwrap();
        assert_eq!(json["problems"], 0);
        assert_eq!(json["truth_against_itself"], serde_json::json!([1.0, 1.0, 1.0]), "{to}");
        assert_eq!(json["train"]["most_objects"], 2);
    }
    run(&["data", "browse", "coco", "-o", "sheet.png", "--rows", "2", "--columns", "3"]);
    let sheet = image::open(root.path().join("sheet.png")).unwrap().into_rgb8();
    assert_eq!(sheet.dimensions(), (3 * 328 + 8, 2 * 328 + 8));
    // the pictures are gray, the lines are not
    assert!(sheet.pixels().filter(|pixel| pixel.0[0].abs_diff(pixel.0[2]) > 60).count() > 2000);
}

#[test]
fn what_is_wrong_with_boxes_is_named_and_stops_whoever_would_train() {
    let root = tempfile::tempdir().unwrap();
    boxes(root.path(), "3.png,NaN,1,5,5,cat\nnowhere.png,1,1,5,5,cat\n2.png,1,2,21,12,cat\n2.png,100,2,121,12,cat\n");
    let output = regard(root.path(), &["data", "check", "boxes"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    for line in [
        "boxes.csv: line 42: `x1,y1,x2,y2`: not four finite numbers",
        "boxes.csv: line 43: `image`: no picture `nowhere.png`",
        "boxes that are there twice: 1",
        "boxes outside the picture: 1",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    let output = regard(root.path(), &["data", "convert", "boxes", "--to", "coco", "-o", "out"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr.contains("line 42") && stderr.contains("and 1 more") && stderr.contains("regard data check"),
        "{stderr}"
    );
}

/// A GIF of so many frames that get brighter from a level on.
fn paint_clip(path: &Path, frames: u8, level: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = image::codecs::gif::GifEncoder::new(fs::File::create(path).unwrap());
    for frame in 0..frames {
        let pixels = image::RgbaImage::from_pixel(12, 8, image::Rgba([level + frame, 0, 0, 255]));
        let delay = image::Delay::from_numer_denom_ms(100, 1);
        encoder.encode_frame(image::Frame::from_parts(pixels, 0, 0, delay)).unwrap();
    }
}

#[test]
fn clips_are_checked_and_drawn_as_strips() {
    let root = tempfile::tempdir().unwrap();
    for clip in 0..6 {
        paint_clip(&root.path().join(format!("gestures/wave/{clip}.gif")), 8, 10 * clip);
        paint_clip(&root.path().join(format!("gestures/point/{clip}.gif")), 9, 100 + 10 * clip);
    }
    let output = regard(root.path(), &["data", "check", "gestures"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    insta::assert_snapshot!("data-check-clips", text(&output.stdout));

    let arguments = ["data", "browse", "gestures", "-o", "sheet.png", "--rows", "2", "--columns", "5"];
    let output = regard(root.path(), &arguments);
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("gestures/point/1.gif (point): frames 0 2 4 6 8 of 9, 0.90 s\n"), "{told}");
    assert!(told.contains("clips, 5 frames of 8 x 8: sheet.png"), "{told}");
    let sheet = image::open(root.path().join("sheet.png")).unwrap().into_rgb8();
    assert!(sheet.pixels().any(|pixel| pixel.0[0] > 90 && pixel.0[1] == 0), "the frames are red");

    fs::write(root.path().join("gestures/wave/broken.mp4"), "no video").unwrap();
    fs::create_dir(root.path().join("gestures/val")).unwrap();
    paint_clip(&root.path().join("gestures/point/short.gif"), 3, 200);
    let output = regard(root.path(), &["data", "check", "gestures", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["layout"], &json["short"][0]["reason"]), (&"folder of classes".into(), &"3 frames".into()));
    assert_eq!(json["unreadable"][0]["reason"], "not a video: it begins with `no video`");
    let output = regard(root.path(), &["data", "check", "--clips", "loose"]);
    assert!(text(&output.stderr).contains("`clips-garment`"), "{}", text(&output.stderr));
}
