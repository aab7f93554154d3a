//! Detectors over HTTP: boxes from pictures and tensors, the evidence for them, and invalid requests.

use crate::common::{self, TestServer, binary_inference, entry, floats, inference, numbers, picture};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::{DetectionPreprocess, Part, detection};
use regard::device;
use regard::weights::{LoadedDetector, resolve_detector};
use regard_serve::{Detector, Service, Settings};
use serde_json::{Value, json};
use std::io::Cursor;
use std::sync::Arc;

fn service_of(loaded: LoadedDetector) -> Service {
    let usual = (0..loaded.config.classes()).map(|class| format!("class {class}")).collect();
    let labels = loaded.labels.clone().unwrap_or(usual);
    Service::Detections(Detector::new(loaded, labels, &device::cpu()).unwrap())
}

fn loaded(name: &str) -> LoadedDetector {
    resolve_detector(name, &mut |_| {}).unwrap().load(&device::cpu()).unwrap()
}

/// The embedded detector as `nano`.
fn server(settings: Settings) -> TestServer {
    TestServer::of(service_of(loaded("scenes-retinanet")), settings)
}

fn png([rows, columns]: [u32; 2], pixel: impl Fn(u32, u32) -> image::Rgb<u8>) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image::RgbImage::from_fn(columns, rows, pixel).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// The file of a test scene.
fn scene(index: usize) -> Vec<u8> {
    let (picture, _) = detection::open("scenes", Part::Test).unwrap().sample(index).unwrap();
    let [rows, columns] = picture.size().map(|side| side as u32);
    let at = |x: u32, y: u32| 3 * (y * columns + x) as usize;
    png([rows, columns], |x, y| image::Rgb(picture.pixels()[at(x, y)..][..3].try_into().unwrap()))
}

fn detections(response: &Value) -> &[Value] {
    response["detections"].as_array().unwrap()
}

#[track_caller]
fn assert_alike(one: &Value, other: &Value) {
    assert_eq!(detections(one).len(), detections(other).len());
    for (a, b) in detections(one).iter().zip(detections(other)) {
        assert_eq!(a["class"], b["class"]);
        let far = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs();
        assert!(far(&a["score"], &b["score"]) < 1e-5);
        assert!(["x", "y", "width", "height"].iter().all(|side| far(&a["box"][side], &b["box"][side]) < 0.02));
    }
}

#[test]
fn most_garments_of_scenes_are_found_where_they_are() {
    let server = server(Settings::default());
    let scenes = detection::open("scenes", Part::Test).unwrap();
    let (mut objects, mut found) = (0, 0);
    for index in 0..10 {
        let answer = server.post("/v1/detect?threshold=0.4", &scene(index)).ok().json();
        assert_eq!(
            (&answer["model"], &answer["size"], &answer["threshold"]),
            (&json!("nano"), &json!([64, 64]), &json!(0.4))
        );
        for detection in detections(&answer) {
            assert!(detection["score"].as_f64().unwrap() >= 0.4);
            assert_eq!(detection["label"], scenes.classes()[detection["class"].as_u64().unwrap() as usize]);
        }
        for object in scenes.annotations(index).unwrap() {
            let [x, y, w, h] = object.bounds;
            let is_near = |detection: &&Value| {
                let sides = ["x", "y", "width", "height"].map(|side| detection["box"][side].as_f64().unwrap());
                let worst = [x, y, w, h].iter().zip(sides).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                detection["class"] == object.class && worst < 4.0
            };
            objects += 1;
            found += usize::from(detections(&answer).iter().any(|detection| is_near(&detection)));
        }
    }
    assert!(3 * found > 2 * objects, "{found} of {objects}");
}

#[test]
fn a_lower_threshold_only_adds_detections_at_the_end() {
    let server = server(Settings::default());
    let all = server.post("/v1/detect?threshold=0", &scene(0)).ok().json();
    let usual = server.post("/v1/detect", &scene(0)).ok().json();
    let some = server.post("/v1/detect?threshold=0.5", &scene(0)).ok().json();
    assert_eq!(usual, some);
    assert!(detections(&all).len() > detections(&some).len());
    assert_eq!(detections(&all)[..detections(&some).len()], *detections(&some));
    assert!(detections(&all).is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
}

#[test]
fn many_clients_with_pictures_of_several_sizes_get_each_their_own_boxes() {
    let server = Arc::new(server(Settings::default()));
    let large =
        |index: u32| png([48 + 8 * (index % 3), 80], move |x, y| image::Rgb([(x * 3) as u8, (y * index) as u8, 90]));
    let files: Vec<Vec<u8>> = (0..6).map(scene).chain((0..6).map(large)).collect();
    let alone: Vec<Value> =
        files.iter().map(|file| server.post("/v1/detect?threshold=0.1", file).ok().json()).collect();
    let threads: Vec<_> = files
        .into_iter()
        .map(|file| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.post("/v1/detect?threshold=0.1", &file).ok().json())
        })
        .collect();
    for (alone, thread) in alone.iter().zip(threads) {
        assert_alike(alone, &thread.join().unwrap());
    }
    assert_eq!(server.metric("regard_panics_total{model=\"nano\"}").unwrap_or(0.0), 0.0);
    assert!(server.metric("regard_batch_size_count{model=\"nano\"}").unwrap() >= 12.0);
    assert_eq!(server.metric("regard_requests_total{route=\"/v1/detect\",status=\"200\"}"), Some(24.0));
}

#[test]
fn every_family_says_what_a_box_was_read_from() {
    let entries = ["scenes-retinanet", "detr-nano"].map(|name| entry(name, service_of(loaded(name))));
    let server = TestServer::new(entries.into(), Settings::default());
    let file = scene(0);
    let found = server.post("/v1/detect?model=scenes-retinanet&threshold=0", &file).ok().json();
    let cam = server.post("/v1/detect/attention?model=scenes-retinanet&index=1", &file).ok().json();
    assert_eq!((&cam["method"], &cam["index"]), (&json!("grad-cam"), &json!(1)));
    assert_eq!(cam["detection"]["class"], detections(&found)[1]["class"]);
    assert_eq!((&cam["span"], &cam["heads"]), (&json!([64.0, 64.0]), &json!([])));
    let grid: Vec<f32> = floats(&cam["grid"]);
    let values = floats(&cam["values"]);
    assert_eq!(values.len() as f32, grid[0] * grid[1]);
    assert!(values.iter().all(|value| *value >= 0.0) && values.iter().any(|value| *value > 0.0));

    let cross = server.post("/v1/detect/attention?model=detr-nano&index=0", &file).ok().json();
    assert_eq!(cross["method"], "cross-attention");
    assert_eq!(cross["layer"], "transformer.decoder.layers.2.multihead_attn");
    assert_eq!(cross["heads"].as_array().unwrap().len(), 4);
    let sum: f32 = floats(&cross["values"]).iter().sum();
    assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    let all = server.post("/v1/detect?model=detr-nano&threshold=0", &file).ok().json();
    assert_eq!(detections(&all).len(), 16, "one for each query");
    assert_eq!(cross["detection"]["class"], detections(&all)[0]["class"]);
    server.post("/v1/detect/attention?model=detr-nano&index=16", &file).refused(422, "`index` 16: there are 16");
    server.post("/v1/detect/attention?model=detr-nano&index=-1", &file).refused(400, "index");
}

#[test]
fn tensors_have_a_row_for_every_detection_and_say_how_many_there_are() {
    let server = server(Settings { batch: 2, ..Settings::default() });
    let metadata = server.get("/v2/models/nano").ok().json();
    assert_eq!(metadata["inputs"][0]["shape"], json!([-1, 3, -1, -1]));
    let names: Vec<&str> =
        metadata["outputs"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["boxes", "scores", "labels", "counts"]);
    let rows = metadata["outputs"][0]["shape"][1].as_u64().unwrap() as usize;
    assert_eq!(rows, 300);

    // a scene normalised by the client gives the boxes of /v1/detect
    let (picture, _) = detection::open("scenes", Part::Test).unwrap().sample(0).unwrap();
    let one = DetectionPreprocess::as_it_is(16).normalised(&picture).values;
    let both: Vec<f32> = [one.clone(), numbers(3 * 64 * 64, 1), one].concat();
    let shape = [3, 3, 64, 64];
    let answer = server.post("/v2/models/nano/infer", &inference(&shape, &both)).ok().json();
    let output = |name: &str| {
        let all = answer["outputs"].as_array().unwrap();
        all.iter().find(|output| output["name"] == name).unwrap().clone()
    };
    assert_eq!((&output("boxes")["shape"], &output("labels")["datatype"]), (&json!([3, rows, 4]), &json!("INT64")));
    let (boxes, scores, labels) =
        (floats(&output("boxes")["data"]), floats(&output("scores")["data"]), floats(&output("labels")["data"]));
    let counts = floats(&output("counts")["data"]);
    let expected = server.post("/v1/detect?threshold=0", &scene(0)).ok().json();
    assert_eq!((counts.len(), counts[0] as usize, counts[0]), (3, detections(&expected).len(), counts[2]));
    for (row, detection) in detections(&expected).iter().enumerate() {
        assert!((f64::from(scores[row]) - detection["score"].as_f64().unwrap()).abs() < 1e-5);
        assert!((f64::from(boxes[4 * row]) - detection["box"]["x"].as_f64().unwrap()).abs() < 0.02);
        assert_eq!(f64::from(labels[row]), detection["class"].as_f64().unwrap());
    }
    let padding = counts[0] as usize..rows;
    assert!(padding.clone().all(|row| scores[row] == 0.0 && labels[row] == -1.0));
    assert_eq!(scores[..rows], scores[2 * rows..]);

    let (length, body) = binary_inference(&shape, &both);
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = server.request("POST", "/v2/models/nano/infer", &headers, &body).ok().json();
    assert_eq!(floats(&bytes["outputs"][1]["data"]), scores);
}

#[test]
fn what_is_no_picture_no_threshold_and_no_detector_is_refused_by_name() {
    let service = service_of(loaded("scenes-retinanet"));
    let server = TestServer::new(
        vec![entry("nano", service), entry("vit", common::nano())],
        Settings { pixels: 3_000_000, ..Settings::default() },
    );
    for route in ["/v1/detect", "/v1/detect/attention"] {
        let post = |query: &str, body: &[u8]| server.post(&format!("{route}?{query}"), body);
        post("", b"a text, and no picture").refused(422, "not a JPEG");
        post("", b"").refused(422, "not a JPEG");
        post("model=other", &picture(1)).refused(404, "`other`");
        post("model=vit", &picture(1)).refused(422, "`vit` is a classifier, not a detector");
        post("size=5", &picture(1)).refused(400, "size");
        server.get(route).refused(405, "GET");
        let huge = png([2000, 2000], |_, _| image::Rgb([7; 3]));
        post("", &huge).refused(422, "2000 x 2000 pixels are more than 3000000");
        let large = png([1500, 1500], |_, _| image::Rgb([7; 3]));
        post("", &large).refused(422, "1500 x 1500 pixels, the most is 2097152; send a smaller picture");
    }
    for threshold in ["-0.1", "1.1", "NaN", "inf", "-inf"] {
        server
            .post(&format!("/v1/detect?threshold={threshold}"), &picture(1))
            .refused(400, "`threshold` is from 0 to 1, got");
    }
    server.post("/v1/detect?threshold=high", &picture(1)).refused(400, "threshold");
    server.post("/v1/classify?model=nano", &picture(1)).refused(422, "`nano` is a detector, not a classifier");
    server.post("/v1/detect/attention?index=100000", &picture(1)).refused(422, "`index` 100000");
    let server = TestServer::of(common::nano(), Settings::default());
    server.post("/v1/detect", &picture(1)).refused(422, "no detector is served here");
    server.get("/v1/samples?task=read").refused(400, "read");
}

#[test]
fn a_point_and_a_line_are_pictures_too() {
    for name in ["scenes-retinanet", "detr-nano"] {
        let server = TestServer::of(service_of(loaded(name)), Settings::default());
        for size in [[1, 1], [1, 300], [300, 1], [2, 2]] {
            let file = png(size, |_, _| image::Rgb([200, 30, 90]));
            let answer = server.post("/v1/detect?threshold=0", &file).ok().json();
            assert_eq!(answer["size"], json!(size), "{name}");
            if !detections(&answer).is_empty() {
                server.post("/v1/detect/attention", &file).ok();
            }
        }
        assert_eq!(server.metric("regard_panics_total{model=\"nano\"}").unwrap_or(0.0), 0.0, "{name}");
    }
}

#[test]
fn tensors_that_are_no_pictures_are_refused_by_name() {
    let server = server(Settings::default());
    let infer = |shape: &str, data: &str| {
        let input = format!(r#"{{"name":"input","datatype":"FP32","shape":{shape},"data":{data}}}"#);
        server.post("/v2/models/nano/infer", format!(r#"{{"inputs":[{input}]}}"#).as_bytes())
    };
    infer("[1,3,4]", "[1]").refused(400, "[-1, 3, -1, -1]");
    infer("[1,1,4,4]", "[1]").refused(400, "[-1, 3, -1, -1]");
    infer("[1,3,0,4]", "[]").refused(400, "has no pixels");
    infer("[0,3,4,4]", "[]").refused(400, "has no pixels");
    infer("[1,3,4,4]", "[1,2]").refused(400, "2 numbers, its shape 48");
    infer("[1,3,18446744073709551615,18446744073709551615]", "[]").refused(422, "the most is 2097152");
    infer("[18446744073709551615,3,4,4]", "[]").refused(422, "the most is 128");
    infer("[1,3,4,4]", "[NaN]").refused(400, "not an inference");
    let huge = vec![3e38; 3 * 32 * 32];
    server.post("/v2/models/nano/infer", &inference(&[1, 3, 32, 32], &huge)).refused(422, "at most 10000");
    let (length, body) = binary_inference(&[1, 3, 1, 1], &[0.0, f32::NAN, 0.0]);
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    server.request("POST", "/v2/models/nano/infer", &headers, &body).refused(400, "infinite or none");
    server.post("/v2/models/nano/infer", &inference(&[1, 3, 32, 32], &numbers(3 * 32 * 32, 1))).ok();

    // the preprocessing itself gives infinite pixels: the detector is at fault
    let damaged = DetectionPreprocess { std: [1e-40; 3], ..DetectionPreprocess::as_it_is(16) };
    let broken = service_of(LoadedDetector { preprocess: damaged, ..loaded("scenes-retinanet") });
    let server = TestServer::of(broken, Settings::default());
    server.post("/v1/detect", &picture(1)).refused(500, "infinity or NaN");
    server.post("/v1/detect/attention", &picture(1)).refused(500, "infinity or NaN");
}

#[test]
fn pictures_that_wait_are_charged_to_the_budget() {
    let server = server(Settings { body: 20_000, bodies: 20_000, ..Settings::default() });
    // a small file with many pixels
    let file = png([200, 200], |_, _| image::Rgb([7; 3]));
    assert!(file.len() < 20_000);
    server.post("/v1/detect", &file).refused(429, "bytes");
    server.post("/v1/detect", &png([32, 32], |_, _| image::Rgb([7; 3]))).ok();
}

#[test]
fn the_sample_scenes_are_pictures_that_can_be_sent_back() {
    let server = server(Settings::default());
    let samples = server.get("/v1/samples?task=detect").ok().json();
    let samples = samples["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 10);
    let file = samples[0]["picture"].as_str().unwrap().strip_prefix("data:image/png;base64,").unwrap();
    let answer = server.post("/v1/detect", &BASE64_STANDARD.decode(file).unwrap()).ok().json();
    assert_alike(&answer, &server.post("/v1/detect", &scene(0)).ok().json());
    let models = server.get("/v1/models").ok().json();
    assert_eq!((&models["models"][0]["task"], &models["models"][0]["classes"]), (&json!("detect"), &json!(8)));
}
