//! `regard detect` with the detector that comes along.

use crate::common::{assert_refused, regard, stdout_of, text};
use image::RgbImage;
use regard::data::detection;
use regard::data::{Bounds, Part};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A test scene as a file, and its objects.
fn scene(folder: &Path, index: usize) -> (String, Vec<detection::Annotation>) {
    let scenes = detection::open("scenes", Part::Test).unwrap();
    let (picture, objects) = scenes.sample(index).unwrap();
    let [rows, columns] = picture.size().map(|side| side as u32);
    let path = folder.join(format!("scene{index}.png"));
    RgbImage::from_raw(columns, rows, picture.pixels().to_vec()).unwrap().save(&path).unwrap();
    (path.display().to_string(), objects)
}

#[test]
fn garments_of_scenes_are_found_drawn_and_written_in_the_formats_of_coco_and_yolo() {
    let folder = tempfile::tempdir().unwrap();
    let scenes: Vec<_> = (0..8).map(|index| scene(folder.path(), index)).collect();
    let out = folder.path().join("out").display().to_string();
    let mut args = vec!["detect", "--json", "--yolo", "-o", &out];
    args.extend(scenes.iter().map(|(picture, _)| picture.as_str()));
    let json = stdout_of(folder.path(), &args);
    let out = folder.path().join("out");
    let found: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&fs::read(out.join("detections.json")).unwrap()).unwrap(), found);
    let lines = |index: usize| fs::read_to_string(out.join(format!("scene{index}.txt"))).unwrap().lines().count();
    assert_eq!((0..8).map(lines).sum::<usize>(), found.len());
    assert!((0..8).all(|index| image::open(out.join(format!("scene{index}.png"))).unwrap().width() >= 320));
    let names = detection::open("scenes", Part::Test).unwrap().classes().to_vec();
    let (mut right, mut all) = (0, 0);
    for (picture, objects) in scenes {
        for object in objects {
            let truth = Bounds::from_coco(object.bounds, [64, 64]);
            let fits = |one: &Value| {
                let bounds: [f64; 4] = serde_json::from_value(one["bbox"].clone()).unwrap();
                let same = one["picture"] == picture.as_str() && one["category"] == names[object.class].as_str();
                same && Bounds::from_coco(bounds, [64, 64]).iou(&truth) > 0.5
            };
            right += usize::from(found.iter().any(fits));
            all += 1;
        }
    }
    assert!(10 * right >= 8 * all, "{right} of {all} in {json}");
}

#[test]
fn tiles_find_what_is_small_on_a_large_picture() {
    let folder = tempfile::tempdir().unwrap();
    let mut large = RgbImage::new(192, 128);
    let (picture, objects) = scene(folder.path(), 3);
    image::imageops::replace(&mut large, &image::open(&picture).unwrap().to_rgb8(), 64, 64);
    let path = folder.path().join("large.png");
    large.save(&path).unwrap();
    let json = stdout_of(folder.path(), &["detect", &path.display().to_string(), "--json", "--tile", "64"]);
    let found: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert!(found.len() >= objects.len(), "{json}");
}

#[test]
fn what_is_no_picture_and_no_detector_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (picture, _) = scene(folder.path(), 0);
    let broken = folder.path().join("broken.png");
    fs::write(&broken, "text").unwrap();
    let output = regard(folder.path(), &["detect", &broken.display().to_string(), &picture]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("broken.png"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("scene0.png"), "the others are answered");
    assert_refused(folder.path(), &["detect", &picture, "--model", "fashion-vit"], &["classifier"]);
    let output = regard(folder.path(), &["detect", &picture, "--threshold", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("from 0 to 1"), "{}", text(&output.stderr));
    let point = folder.path().join("point.png");
    RgbImage::new(1, 1).save(&point).unwrap();
    assert!(stdout_of(folder.path(), &["detect", &point.display().to_string()]).contains("nothing"));
}

/// Validation scenes as COCO files in `coco`, with mistakes of an annotator: classes of the first are wrong, the second has
/// no box.
fn coco(folder: &Path, count: usize) {
    let folder = folder.join("coco");
    fs::create_dir(&folder).unwrap();
    let scenes = detection::open("scenes", Part::Validation).unwrap();
    let categories: Vec<Value> =
        scenes.classes().iter().enumerate().map(|(id, name)| json!({ "id": id + 1, "name": name })).collect();
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (picture, objects) = scenes.sample(index).unwrap();
        let [rows, columns] = picture.size().map(|side| side as u32);
        let file = format!("{index}.png");
        RgbImage::from_raw(columns, rows, picture.pixels().to_vec()).unwrap().save(folder.join(&file)).unwrap();
        images.push(json!({ "id": index + 1, "file_name": file, "width": columns, "height": rows }));
        for object in objects.into_iter().filter(|_| index != 1) {
            let class = if index == 0 { (object.class + 1) % 8 } else { object.class };
            annotations.push(json!({ "id": annotations.len() + 1, "image_id": index + 1, "category_id": class + 1,
                "bbox": object.bounds, "area": object.area, "iscrowd": 0 }));
        }
    }
    let all = json!({ "images": images, "annotations": annotations, "categories": categories });
    fs::write(folder.join("annotations.json"), all.to_string()).unwrap();
}

#[test]
fn a_detector_is_measured_on_scenes_and_its_worst_mistakes_are_drawn_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    coco(folder.path(), 24);
    let args = ["eval", "scenes-retinanet", "--data", "coco", "--json", "-o", "figures"];
    let json: Value = serde_json::from_str(&stdout_of(folder.path(), &args)).unwrap();
    assert!(json["ap50"].as_f64().unwrap() > 0.5, "{json}");
    for (list, file) in [("misses", "misses.svg"), ("false_alarms", "false-alarms.svg")] {
        let listed = json[list].as_array().unwrap();
        assert!((1..=20).contains(&listed.len()), "{list}: {}", listed.len());
        assert!(listed.iter().all(|one| one["class"].is_string() && one["bbox"].as_array().unwrap().len() == 4));
        let svg = fs::read_to_string(folder.path().join("figures").join(file)).unwrap();
        assert_eq!(svg.matches("<image").count(), listed.len());
    }
    assert!(folder.path().join("figures/precision-recall.svg").is_file());
    let refused = ["eval", "scenes-retinanet", "--data", "coco", "--robustness"];
    assert_refused(folder.path(), &refused, &["`--robustness`", "detector"]);
    assert_refused(folder.path(), &["eval", "detr-nano", "--data", "coco"], &["detr-nano", "--labels"]);
    assert_refused(folder.path(), &["eval", "scenes-retinanet"], &["no data"]);
}

/// A COCO file of one picture, with a part of it replaced.
fn broken_coco(folder: &Path, from: &str, to: &str) {
    let text = r#"{"images": [{"id": 7, "file_name": "a.png", "width": 64, "height": 64}],
        "annotations": [{"id": 5, "image_id": 7, "category_id": 3, "bbox": [8, 8, 20, 20], "area": 400, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "bag"}]}"#;
    assert!(text.contains(from), "{from}");
    fs::write(folder.join("boxes.json"), text.replace(from, to)).unwrap();
}

#[test]
fn bad_annotations_are_named_by_file_id_and_field_in_every_command() {
    let folder = tempfile::tempdir().unwrap();
    RgbImage::new(64, 64).save(folder.path().join("a.png")).unwrap();
    let eval = ["eval", "scenes-retinanet", "--data", "boxes.json"];
    let train = ["train", "scenes-retinanet", "--data", "boxes.json", "--epochs", "1"];
    let analyse = ["analyse", "queries", "-m", "detr-nano", "--data", "boxes.json"];
    for (from, to, culprits) in [
        ("a.png", "gone.png", &["boxes.json", "image 7", "`file_name`", "gone.png"][..]),
        (r#", "name": "bag""#, "", &["boxes.json", "category 3", "`name`"]),
        ("[8, 8, 20, 20]", "[NaN, 8, 20, 20]", &["boxes.json", "annotation 5", "`bbox`"]),
        ("[8, 8, 20, 20]", "[8, 8, 20]", &["boxes.json", "annotation 5", "`bbox`"]),
        (r#""image_id": 7"#, r#""image_id": 8"#, &["boxes.json", "annotation 5", "`image_id`", "8"]),
    ] {
        broken_coco(folder.path(), from, to);
        for command in [&eval[..], &train, &analyse] {
            assert_refused(folder.path(), command, culprits);
        }
        // a check tells the same and ends with the status of a check that found something
        let output = regard(folder.path(), &["data", "check", "boxes.json"]);
        assert_eq!(output.status.code(), Some(1), "{to}: {}", text(&output.stderr));
        let stdout = text(&output.stdout);
        assert!(culprits.iter().all(|culprit| stdout.contains(culprit)), "{culprits:?}: {stdout}");
    }
    // a text in place of the picture is found when it is read
    fs::write(folder.path().join("a.png"), "text").unwrap();
    broken_coco(folder.path(), "a.png", "a.png");
    assert_refused(folder.path(), &eval, &["a.png"]);
    assert_refused(folder.path(), &analyse, &["a.png"]);
}

#[test]
fn a_point_and_ten_thousand_objects_are_measured_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    RgbImage::new(1, 1).save(folder.path().join("point.png")).unwrap();
    RgbImage::new(64, 64).save(folder.path().join("crowd.png")).unwrap();
    let mut rows = vec!["image,x1,y1,x2,y2,class".to_string(), "point.png,0,0,1,1,bag".to_string()];
    rows.extend((0..10_000).map(|one| format!("crowd.png,{},{},60,60,bag", one % 50, one / 200)));
    fs::write(folder.path().join("boxes.csv"), rows.join("\n")).unwrap();
    let args = ["eval", "scenes-retinanet", "--data", "boxes.csv", "--part", "all", "--json", "-o", "out"];
    let json: Value = serde_json::from_str(&stdout_of(folder.path(), &args)).unwrap();
    assert_eq!((json["pictures"].as_u64(), json["misses"].as_array().map(Vec::len)), (Some(2), Some(20)));
    assert!(folder.path().join("out/misses.svg").is_file());
    let args = ["analyse", "queries", "-m", "detr-nano", "--data", "boxes.csv", "--pictures", "2", "--batch", "1"];
    stdout_of(folder.path(), &args);
}
