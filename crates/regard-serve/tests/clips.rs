//! Models of video over HTTP: files, frames and tensors in, classes and attention in space and time out.

use crate::common::TestServer;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::clip::{self, encode_apng};
use regard::data::{Part, Picture};
use regard::device;
use regard::weights::resolve_video;
use regard_serve::{Service, Settings, VideoClassifier};
use serde_json::{Value, json};

fn server() -> TestServer {
    let loaded = resolve_video("timesformer-nano", &mut |_| {}).unwrap().load(&device::cpu()).unwrap();
    let labels = (0..loaded.config.classes()).map(|class| format!("class {class}")).collect();
    let model = VideoClassifier::new(loaded, labels, &device::cpu()).unwrap();
    TestServer::of(Service::Clips(model), Settings::default())
}

fn frames() -> Vec<Picture> {
    let clips = clip::open("clips", Part::Test).unwrap();
    clips.frames(0, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap()
}

/// The frames as pictures in JSON.
fn as_frames(frames: &[Picture]) -> Vec<u8> {
    let file = |frame: &Picture| BASE64_STANDARD.encode(regard::report::png(frame.size(), frame.pixels()));
    serde_json::to_vec(&json!({ "frames": frames.iter().map(file).collect::<Vec<_>>() })).unwrap()
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[test]
fn a_file_and_its_frames_get_the_same_answers() {
    let (server, frames) = (server(), frames());
    let file = server.post("/v1/clips?top=3", &encode_apng(&frames, 10.0).unwrap()).ok().json();
    assert_eq!(file["frames"], json!([0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!((file["model"].as_str(), file["answers"].as_array().unwrap().len()), (Some("nano"), 3));
    let sent = server.request("POST", "/v1/clips?top=3", &JSON, &as_frames(&frames)).ok().json();
    assert_eq!(sent["answers"], file["answers"]);
    let models = server.get("/v1/models").ok().json();
    assert_eq!((&models["models"][0]["task"], &models["models"][0]["frames"]), (&json!("clips"), &json!(8)));
}

#[test]
fn attention_is_that_of_the_class_token_or_of_the_patch_that_was_asked() {
    let server = server();
    let file = encode_apng(&frames(), 10.0).unwrap();
    let class = server.post("/v1/clips/attention", &file).ok().json();
    let layers = class["layers"].as_array().unwrap();
    // attention in time and in space of three blocks
    assert_eq!((layers.len(), class["pictures"].as_array().unwrap().len()), (2 * 3, 8));
    assert!(layers.iter().all(|layer| layer["query"].is_null() && layer["size"] == json!([8, 4, 4])));
    assert_eq!(class["rollout"]["size"], json!([8, 4, 4]));
    let patch = server.post("/v1/clips/attention?frame=2&x=0.9&y=0.3", &file).ok().json();
    for layer in patch["layers"].as_array().unwrap() {
        assert_eq!(layer["query"], json!([2, 1, 3]));
        let head: Vec<f64> = layer["heads"][0].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
        let is_time = layer["layer"].as_str().unwrap().contains("temporal");
        // of time attention every other place of a frame is zero
        let looked_at = head.iter().filter(|weight| **weight > 0.0).count();
        assert_eq!(looked_at, if is_time { 8 } else { 16 }, "{}", layer["layer"]);
    }
}

#[test]
fn tensors_of_clips_go_through_the_open_inference_protocol() {
    let server = server();
    let about = server.get("/v2/models/nano").ok().json();
    assert_eq!(about["inputs"][0]["shape"], json!([-1, 3, 8, 32, 32]));
    let count = 3 * 8 * 32 * 32;
    let values: Vec<f32> = (0..2 * count).map(|at| ((at * 7) % 11) as f32 / 11.0).collect();
    let body =
        json!({ "inputs": [{ "name": "input", "datatype": "FP32", "shape": [2, 3, 8, 32, 32], "data": values }] });
    let answer = server.post("/v2/models/nano/infer", body.to_string().as_bytes()).ok().json();
    let output = |name: &str| -> Value {
        answer["outputs"].as_array().unwrap().iter().find(|output| output["name"] == name).unwrap().clone()
    };
    assert_eq!(output("logits")["shape"], json!([2, 10]));
    let shares: Vec<f64> =
        output("probabilities")["data"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
    assert!((shares.iter().sum::<f64>() - 2.0).abs() < 1e-4);
}

#[test]
fn what_is_no_clip_is_refused_with_the_reason() {
    let server = server();
    let refused = |path: &str, headers: &[(&str, &str)], body: &[u8], status: u16| {
        let response = server.request("POST", path, headers, body);
        assert_eq!(response.status, status, "{path}");
        response.json()["error"].as_str().unwrap().to_string()
    };
    assert!(refused("/v1/clips", &[], b"no video at all", 422).contains("the clip"));
    assert!(refused("/v1/clips", &JSON, b"{\"frames\": []}", 422).contains("0 frames"));
    assert!(refused("/v1/clips", &JSON, b"{\"frames\": [\"!\"]}", 422).contains("frame 0"));
    assert!(refused("/v1/clips", &JSON, b"{", 400).contains("no clip"));
    let file = encode_apng(&frames(), 10.0).unwrap();
    assert!(refused("/v1/clips/attention?frame=8&x=0&y=0", &[], &file, 400).contains("below 8"));
    assert!(refused("/v1/clips/attention?frame=1", &[], &file, 400).contains("together"));
    let body = json!({ "inputs": [{ "name": "input", "datatype": "FP32", "shape": [1, 3, 4, 32, 32], "data": [] }] });
    assert!(refused("/v2/models/nano/infer", &[], body.to_string().as_bytes(), 400).contains("[-1, 3, 8, 32, 32]"));
}
