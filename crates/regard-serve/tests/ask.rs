//! Vision and language over HTTP: questions, texts that match, attention between words and regions, and invalid requests.

use crate::common::{self, TestResponse, TestServer, answerer, entry, file_of, floats, picture};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::vision_language::{OnePicture, RegionFeatures};
use regard::data::{Part, world};
use regard::tasks::vision_language::VisionLanguageBundle;
use regard_serve::{Service, Settings};
use serde_json::{Value, json};

fn server(goals: &str) -> TestServer {
    TestServer::of(Service::Answers(answerer(goals)), Settings::default())
}

/// A test question and the file of its scene, in base64.
fn question(index: usize) -> (String, world::Question) {
    let question = world::question(0, Part::Test, index);
    (BASE64_STANDARD.encode(file_of(&question.scene.picture())), question)
}

fn post(server: &TestServer, path: &str, body: &Value) -> TestResponse {
    server.post(path, body.to_string().as_bytes())
}

fn ask(server: &TestServer, body: &Value) -> TestResponse {
    post(server, "/v1/ask", body)
}

fn box_json([x, y, width, height]: [f64; 4]) -> Value {
    json!({ "x": x, "y": y, "width": width, "height": height })
}

#[test]
fn most_questions_about_scenes_are_answered_rightly() {
    let server = server("");
    let right = (0..16).filter(|index| {
        let (picture, question) = question(*index);
        let found = ask(&server, &json!({ "picture": picture, "question": question.text, "top": 4 })).ok().json();
        let answers = found["answers"].as_array().unwrap();
        assert_eq!((answers.len(), &found["model"], &found["size"]), (4, &json!("nano"), &json!([64, 64])));
        assert!(answers.is_sorted_by(|a, b| a["probability"].as_f64() >= b["probability"].as_f64()));
        assert_eq!((&found["attention"], &found["tokens"][0]), (&Value::Null, &json!("[CLS]")));
        assert_eq!(found["unknown"], json!([]));
        answers[0]["answer"] == world::ANSWERS[question.answer]
    });
    // blind answers would be right for five
    assert!(right.count() >= 12);
    assert_eq!(server.metric("regard_requests_total{route=\"/v1/ask\",status=\"200\"}"), Some(16.0));
    assert!(server.metric("regard_batch_size_count{model=\"nano\"}").unwrap() >= 1.0);
    let models = server.get("/v1/models").ok().json();
    let own = &models["models"][0];
    assert_eq!((&own["task"], &own["matches"], &own["classes"]), (&json!("answer"), &json!(false), &json!(32)));
}

#[test]
fn regions_of_the_client_are_used_instead_of_those_that_are_found() {
    let server = server("");
    let (picture, question) = question(0);
    let corners = question.scene.boxes().into_iter();
    let boxes: Vec<Value> = corners.map(|[x1, y1, x2, y2]| box_json([x1, y1, x2 - x1, y2 - y1])).collect();
    let body = json!({ "picture": picture, "question": question.text, "regions": boxes });
    let found = ask(&server, &body).ok().json();
    assert_eq!(found["regions"].as_array().unwrap().len(), boxes.len());
    for (found, given) in found["regions"].as_array().unwrap().iter().zip(&boxes) {
        for side in ["x", "y", "width", "height"] {
            assert!((found[side].as_f64().unwrap() - given[side].as_f64().unwrap()).abs() < 0.02, "{found} {given}");
        }
    }
    let body = json!({ "picture": picture, "question": question.text, "regions": boxes[..1] });
    assert_eq!(ask(&server, &body).ok().json()["regions"].as_array().unwrap().len(), 1);
}

#[test]
fn attention_goes_both_ways_in_every_layer_and_its_sums_are_right() {
    let server = server("");
    let (picture, question) = question(8);
    let body = json!({ "picture": picture, "question": question.text, "attention": true });
    let found = ask(&server, &body).ok().json();
    let (words, regions) = (found["tokens"].as_array().unwrap().len(), found["regions"].as_array().unwrap().len());
    let attention = &found["attention"];
    let layers = attention["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 8, "four layers, both directions");
    for layer in layers {
        let sides = if layer["direction"] == "words-to-regions" { [words, regions] } else { [regions, words] };
        let heads = layer["heads"].as_array().unwrap();
        assert_eq!((heads.len(), heads[0].as_array().unwrap().len()), (4, sides[0]));
        for row in heads.iter().flat_map(|head| head.as_array().unwrap()) {
            let row = floats(row);
            assert!(row.len() == sides[1] && row.iter().all(|weight| (0.0..=1.0).contains(weight)));
            assert!(row.iter().sum::<f32>() <= 1.0 + 1e-5, "the rest stays on its own side");
        }
    }
    let sum = |row: &Value| floats(row).iter().sum::<f32>();
    for rows in [&attention["shares"], &attention["plan"]["shares"]] {
        let rows = rows.as_array().unwrap();
        assert!(rows.len() == words && rows.iter().all(|row| (sum(row) - 1.0).abs() < 1e-4));
    }
    assert_eq!(attention["plan"]["trained"], json!(false));
    let relevance = &attention["relevance"];
    assert!((sum(&relevance["words"]) + sum(&relevance["regions"]) - 1.0).abs() < 1e-4);
    let explained = attention["explained"].as_array().unwrap();
    assert_eq!(explained.len(), regions);
    let named = explained.iter().flat_map(|region| region["words"].as_array().unwrap());
    let named: Vec<&str> =
        named.map(|one| found["tokens"][one["word"].as_u64().unwrap() as usize].as_str().unwrap()).collect();
    assert!(!named.is_empty() && named.iter().all(|token| token.chars().all(char::is_alphanumeric)), "{named:?}");

    let layer = layers[2]["layer"].as_str().unwrap();
    let one = json!({ "picture": picture, "question": question.text, "attention": true, "layer": layer });
    let one = ask(&server, &one).ok().json();
    assert_eq!(one["attention"]["layers"].as_array().unwrap().len(), 2);
    assert_eq!(one["answers"], found["answers"]);
    let other = json!({ "picture": picture, "question": question.text, "attention": true, "layer": "blocks.0" });
    ask(&server, &other).refused(422, "no layer `blocks.0`; there are: uniter.encoder.layer.0");
}

#[test]
fn texts_are_judged_one_by_one_whatever_comes_with_them() {
    let server = server("matching = 1.0\nanswer = 1.0");
    let (picture, question) = question(3);
    let texts = ["there is a red bag .", "is there a blue tee left of the white dress ?", "two bags"];
    let matched =
        |texts: &[&str]| post(&server, "/v1/match", &json!({ "picture": picture, "texts": texts })).ok().json();
    let all = matched(&texts);
    let scores: Vec<f64> =
        all["scores"].as_array().unwrap().iter().map(|one| one["probability"].as_f64().unwrap()).collect();
    assert!(all["scores"].as_array().unwrap().iter().zip(texts).all(|(one, text)| one["text"] == text));
    let best = (0..3).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
    assert_eq!(all["best"], json!(best));
    assert!(all["meaning"].as_str().unwrap().contains("probability that the text is about the picture"));
    for (text, score) in texts.iter().zip(&scores) {
        let alone = matched(&[text])["scores"][0]["probability"].as_f64().unwrap();
        assert!((alone - score).abs() < 1e-5 && (0.0..=1.0).contains(score), "{alone} {score}");
    }
    ask(&server, &json!({ "picture": picture, "question": question.text })).ok();
}

#[test]
fn a_model_without_a_trained_head_for_matching_says_what_it_lacks() {
    let (picture, _) = question(0);
    let body = json!({ "picture": picture, "texts": ["a red bag"] });
    let plain = server("");
    post(&plain, "/v1/match", &body).refused(422, "`nano` cannot match texts with pictures: it lacks a trained head");
    // the first that can is taken when none is named
    let entries = [("answers", ""), ("both", "matching = 1.0\nanswer = 1.0")];
    let entries = entries.map(|(name, goals)| entry(name, Service::Answers(answerer(goals))));
    let server = TestServer::new(entries.into(), Settings::default());
    assert_eq!(post(&server, "/v1/match", &body).ok().json()["model"], "both");
    let named = json!({ "model": "answers", "picture": picture, "texts": ["a red bag"] });
    post(&server, "/v1/match", &named).refused(422, "`answers` cannot match");
}

#[test]
fn tensors_of_regions_give_what_the_picture_gives() {
    let model = answerer("");
    let (picture, question) = question(16);
    let found = found_regions(model.bundle(), &question);
    let server = TestServer::of(Service::Answers(model), Settings::default());
    let metadata = server.get("/v2/models/nano").ok().json();
    assert_eq!(metadata["inputs"][1], json!({ "name": "features", "datatype": "FP32", "shape": [-1, -1, 768] }));
    assert_eq!(metadata["outputs"][1]["shape"], json!([-1, 32]));
    let count = found.len();
    let tensor = |name: &str, kind: &str, shape: &[usize], data: Value| json!({ "name": name, "datatype": kind, "shape": shape, "data": data });
    let twice = |numbers: &[f32]| json!([numbers, numbers].concat());
    let text = tensor("text", "BYTES", &[2], json!([question.text, "how many things are there ?"]));
    let features = tensor("features", "FP32", &[2, count, 768], twice(&found.features));
    let boxes = tensor("boxes", "FP32", &[2, count, 4], twice(found.boxes.as_flattened()));
    let infer = |inputs: Value| post(&server, "/v2/models/nano/infer", &json!({ "inputs": inputs }));
    // in any order
    let outputs = infer(json!([boxes, text, features])).ok().json()["outputs"].clone();
    let asked = ask(&server, &json!({ "picture": picture, "question": question.text, "top": 32 })).ok().json();
    assert_eq!(outputs[0]["data"][0], asked["answers"][0]["answer"]);
    let best = floats(&outputs[1]["data"])[..32].iter().copied().fold(0.0, f32::max);
    assert!((f64::from(best) - asked["answers"][0]["probability"].as_f64().unwrap()).abs() < 1e-4);

    infer(json!([text, features])).refused(400, "`boxes` is missing");
    infer(json!([text, features, boxes, boxes])).refused(400, "`boxes` is given twice");
    infer(json!([text, features, boxes, { "name": "input", "datatype": "FP32", "shape": [1], "data": [1] }]))
        .refused(400, "no input `input`, the model takes text, features, boxes");
    let narrow = tensor("features", "FP32", &[2, count, 7], json!([]));
    infer(json!([text, narrow, boxes])).refused(400, "wanted is [2, regions, 768]");
    let none = tensor("features", "FP32", &[2, 0, 768], json!([]));
    infer(json!([text, none, boxes])).refused(400, "wanted is [2, regions, 768]");
    let many = tensor("features", "FP32", &[2, usize::MAX, 768], json!([]));
    let many_boxes = tensor("boxes", "FP32", &[2, usize::MAX, 4], json!([]));
    infer(json!([text, many, many_boxes])).refused(422, "regions, the most is");
    let flat = tensor("boxes", "FP32", &[2, count, 4], json!(vec![0.5; 8 * count]));
    infer(json!([text, features, flat])).refused(422, "region 0 of text 0 has no area");
    let huge = tensor("features", "FP32", &[2, count, 768], json!(vec![3e38; 2 * count * 768]));
    infer(json!([text, huge, boxes])).refused(422, "infinity or NaN");
}

fn found_regions(bundle: &VisionLanguageBundle, question: &world::Question) -> RegionFeatures {
    let picture = question.scene.picture();
    bundle.find_regions(&[OnePicture { name: "scene", picture: &picture, boxes: &[] }]).unwrap().remove(0)
}

#[test]
fn what_is_no_question_no_picture_and_no_region_is_refused_by_name() {
    let entries = vec![entry("nano", Service::Answers(answerer(""))), entry("vit", common::nano())];
    let server = TestServer::new(entries, Settings { pixels: 3_000_000, ..Settings::default() });
    let (file, question) = question(0);
    let with = |field: &str, value: Value| {
        let mut body = json!({ "picture": file, "question": question.text });
        body[field] = value;
        ask(&server, &body)
    };
    with("question", json!("")).refused(422, "`question`: is empty");
    with("question", json!(" \n ")).refused(422, "`question`: is empty");
    with("question", json!("bag ".repeat(10_000))).refused(422, "a question of 40000 bytes, the most is 4096");
    with("question", json!("bag ".repeat(100))).refused(422, "102 tokens, the most is 24");
    with("question", json!("qui est le président ?")).refused(422, "none of its words is among the 78 tokens");
    with("question", json!("? ? ?")).refused(422, "none of its words");
    with("question", json!(7)).refused(400, "expected a string");
    with("picture", json!("no base64!")).refused(422, "`picture` is not a file in base64");
    with("picture", json!("")).refused(422, "not a JPEG");
    with("picture", json!(BASE64_STANDARD.encode("a text, and no picture"))).refused(422, "not a JPEG");
    with("regions", json!([{ "x": 1, "y": 1, "width": 0, "height": 5 }])).refused(422, "`regions[0]` has no area");
    with("regions", json!([{ "x": 900, "y": 1, "width": 9, "height": 5 }])).refused(422, "`regions[0]` has no area");
    with("regions", json!([{ "x": 1, "y": 1 }])).refused(400, "width");
    let box_of = box_json([1.0, 1.0, 5.0, 5.0]);
    with("regions", json!(vec![box_of.clone(); 101])).refused(422, "`regions`: 101, the most is 100");
    with("regions", json!(vec![box_of; 100])).ok();
    with("second", json!(file)).refused(422, "the model is asked about one picture");
    with("layer", json!("uniter")).refused(400, "`layer` needs");
    with("model", json!("other")).refused(404, "`other`");
    with("model", json!("vit")).refused(422, "`vit` is a classifier, not a model of vision and language");
    with("size", json!(5)).refused(400, "size");
    server.post("/v1/ask", b"{").refused(400, "EOF");
    server.get("/v1/ask").refused(405, "GET");
    let huge = image::RgbImage::new(2000, 2000);
    let mut bytes = std::io::Cursor::new(Vec::new());
    huge.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    with("picture", json!(BASE64_STANDARD.encode(bytes.get_ref()))).refused(422, "2000 x 2000 pixels");
    let known = with("question", json!("is there a red jabberwock ?")).ok().json();
    assert_eq!(known["unknown"], json!(["jabberwock"]));

    let matched = |texts: Value| post(&server, "/v1/match", &json!({ "picture": file, "texts": texts }));
    matched(json!([])).refused(400, "`texts` is empty");
    let none = TestServer::of(common::nano(), Settings::default());
    ask(&none, &json!({ "picture": file, "question": "what ?" }))
        .refused(422, "no model of vision and language is served");
}

#[test]
fn work_is_bounded_by_tokens_and_pictures_by_the_budget() {
    let service = || Service::Answers(answerer("matching = 1.0\nanswer = 1.0"));
    let many = TestServer::of(service(), Settings { queue: 5000, ..Settings::default() });
    let (file, _) = question(0);
    let texts = vec!["is there a red bag left of the white tee ?"; 2000];
    let body = json!({ "picture": file, "texts": texts });
    post(&many, "/v1/match", &body).refused(422, "more than 16384 words and regions");
    let few = TestServer::of(service(), Settings::default());
    post(&few, "/v1/match", &body).refused(422, "2000 in one request, the most is 128");
    let small = TestServer::of(service(), Settings { body: 20_000, bodies: 20_000, ..Settings::default() });
    let large = image::RgbImage::from_pixel(200, 200, image::Rgb([7; 3]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    large.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let body = json!({ "picture": BASE64_STANDARD.encode(bytes.get_ref()), "question": "what colour is the bag ?" });
    ask(&small, &body).refused(429, "bytes");
    let body = json!({ "picture": BASE64_STANDARD.encode(picture(1)), "question": "what colour is the bag ?" });
    ask(&small, &body).ok();
}
