//! Every route, as a client that means well sees it.

use crate::common::{
    self, TestServer, assert_close, binary_inference, entry, floats, fresh, inference, numbers, picture, service,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use burn::tensor::{Tensor, TensorData};
use regard::{Pass, device};
use regard_serve::{Settings, Token};
use serde_json::{Value, json};
use std::sync::Arc;

#[test]
fn the_server_says_what_it_is_what_it_has_and_what_it_takes() {
    let server =
        TestServer::new(vec![entry("nano", common::nano()), entry("words", common::translator())], Settings::default());
    assert_eq!(server.get("/v2").ok().json()["name"], "regard");
    assert_eq!(server.get("/v2/health/live").ok().json()["live"], true);
    assert_eq!(server.get("/v2/health/ready").ok().json()["ready"], true);
    assert_eq!(server.get("/v2/models/nano/ready").ok().json()["ready"], true);
    let nano = server.get("/v2/models/nano").ok().json();
    assert_eq!(nano["inputs"][0], json!({ "name": "input", "datatype": "FP32", "shape": [-1, 3, 32, 32] }));
    assert_eq!(nano["outputs"][0]["shape"], json!([-1, 10]));
    assert_eq!(server.get("/v2/models/words").ok().json()["inputs"][0]["datatype"], "BYTES");
    let models = server.get("/v1/models").ok().json();
    assert_eq!(models["models"][0]["family"], "vit");
    assert!(models["models"][0]["multiply_adds"].as_u64() > models["models"][0]["parameters"].as_u64());
    assert_eq!([&models["models"][1]["name"], &models["models"][1]["task"]], ["words", "translate"]);
    assert_eq!(server.post("/v2/repository/index", b"").ok().json()[1]["name"], "words");
    assert!(server.get("/openapi.json").ok().json()["paths"]["/v1/classify"].is_object());
    let page = server.get("/").ok();
    assert!(page.head.contains("text/html") && page.head.contains("content-security-policy"), "{}", page.head);
    assert!(server.get("/assets/app.js").ok().head.contains("text/javascript"));
    let text = String::from_utf8(server.get("/metrics").ok().body).unwrap();
    assert!(text.contains("regard_requests_total{route=\"/v2\",status=\"200\"} 1"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn a_picture_is_classified_and_explained() {
    let server = TestServer::of(common::nano(), Settings::default());
    let classified = server.post("/v1/classify?top=3", &picture(1)).ok().json();
    assert_eq!(classified["model"], "nano");
    let answers = classified["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 3);
    let probability = |i: usize| answers[i]["probability"].as_f64().unwrap();
    assert!(probability(0) >= probability(1) && probability(1) >= probability(2));
    assert_eq!(answers[0]["label"], format!("class {}", answers[0]["class"]));

    let explained = server.post("/v1/explain?x=0.99&y=0&top=3", &picture(1)).ok().json();
    let layers = explained["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 5);
    assert_eq!(layers[0]["query"], json!([0, 7]));
    assert_eq!(layers[0]["reach"], "everywhere");
    assert_eq!(explained["rollout"]["grid"], json!([8, 8]));
    assert_eq!(explained["lens"].as_array().unwrap().len(), 5);
    assert!(explained["picture"].as_str().unwrap().starts_with("data:image/png;base64,"));
    let row = [floats(&layers[0]["prefix"][0]), floats(&layers[0]["heads"][0])].concat();
    assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    // the path that records gives the answers of the one that does not
    for (one, other) in answers.iter().zip(explained["answers"].as_array().unwrap()) {
        assert_eq!(one["class"], other["class"]);
        assert!((one["probability"].as_f64().unwrap() - other["probability"].as_f64().unwrap()).abs() < 1e-5);
    }
    assert_eq!(server.post("/v1/explain", &picture(1)).ok().json()["layers"][0]["query"], Value::Null);
    let one = server.post("/v1/explain?layer=blocks.2.attn", &picture(1)).ok().json();
    assert_eq!(one["layers"].as_array().unwrap().len(), 1);
    server.post("/v1/explain?layer=blocks.7.attn", &picture(1)).refused(422, "blocks.7.attn");
    server.post("/v1/explain?x=2&y=0", &picture(1)).refused(400, "from 0 to 1");
    server.post("/v1/explain?x=0.5", &picture(1)).refused(400, "neither");
}

#[test]
fn batches_are_answered_as_single_pictures_are_in_json_and_in_bytes() {
    let (config, model) = fresh("vit-nano");
    let server = TestServer::of(service(&config, model.clone()), Settings { batch: 4, ..Settings::default() });
    let all = numbers(11 * 3 * 32 * 32, 1);
    let infer = |body: &[u8]| server.post("/v2/models/nano/infer", body).ok().json();
    let together = infer(&inference(&[11, 3, 32, 32], &all));
    assert_eq!(together["outputs"][0]["shape"], json!([11, 10]));
    let logits = floats(&together["outputs"][0]["data"]);
    let single: Vec<f32> = all
        .chunks(3 * 32 * 32)
        .flat_map(|one| floats(&infer(&inference(&[1, 3, 32, 32], one))["outputs"][0]["data"]))
        .collect();
    assert_close(&logits, &single, 1e-5);
    let images = Tensor::<4>::from_data(TensorData::new(all.clone(), [11, 3, 32, 32]), &device::cpu());
    let expected: Vec<f32> = model.forward(images, &mut Pass::silent()).into_data().iter::<f32>().collect();
    assert_close(&logits, &expected, 1e-4);
    for row in floats(&together["outputs"][1]["data"]).chunks(10) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }

    let (length, body) = binary_inference(&[11, 3, 32, 32], &all);
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = server.request("POST", "/v2/models/nano/infer", &headers, &body).ok().json();
    assert_eq!(floats(&bytes["outputs"][0]["data"]), logits);
}

#[test]
fn many_clients_at_once_get_each_their_own_answer() {
    let (config, model) = fresh("vit-nano");
    let server = Arc::new(TestServer::of(service(&config, model), Settings::default()));
    let alone: Vec<Value> = (0..16).map(|seed| server.post("/v1/classify", &picture(seed)).ok().json()).collect();
    let threads: Vec<_> = (0..16)
        .map(|seed| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || {
                (0..4).map(|_| server.post("/v1/classify", &picture(seed)).ok().json()).collect::<Vec<_>>()
            })
        })
        .collect();
    for (alone, thread) in alone.iter().zip(threads) {
        for together in thread.join().unwrap() {
            for (one, other) in alone["answers"].as_array().unwrap().iter().zip(together["answers"].as_array().unwrap())
            {
                assert_eq!(one["class"], other["class"]);
                let difference = one["probability"].as_f64().unwrap() - other["probability"].as_f64().unwrap();
                assert!(difference.abs() < 1e-5, "{difference}");
            }
        }
    }
    let (pictures, batches) = (
        server.metric("regard_batch_size_sum{model=\"nano\"}"),
        server.metric("regard_batch_size_count{model=\"nano\"}"),
    );
    assert_eq!(pictures, Some(80.0));
    assert!(batches.unwrap() < 80.0, "nobody was ever answered together");
}

#[test]
fn sentences_are_translated_by_either_protocol() {
    let server = TestServer::of(common::translator(), Settings::default());
    let ask = |question: Value| server.post("/v1/translate", question.to_string().as_bytes());
    let texts = json!(["the cat sleeps", "", "the street is wide"]);
    let response = ask(json!({ "texts": texts, "beam": 3, "best": 2 })).ok().json();
    let translations = response["translations"].as_array().unwrap();
    assert_eq!(translations.len(), 3);
    assert_eq!(translations[0].as_array().unwrap().len(), 2);
    assert_eq!(translations[1][0]["text"], "");
    let input = json!({ "name": "text", "datatype": "BYTES", "shape": [3], "data": texts });
    let inferred =
        server.post("/v2/models/nano/infer", json!({ "inputs": [input] }).to_string().as_bytes()).ok().json();
    let best = ask(json!({ "texts": texts })).ok().json();
    for (i, text) in inferred["outputs"][0]["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(*text, best["translations"][i][0]["text"]);
    }
    ask(json!({ "texts": [] })).refused(400, "`texts`");
    ask(json!({ "texts": ["a"], "beam": 17 })).refused(400, "`beam`");
    ask(json!({ "texts": ["a"], "bean": 1 })).refused(400, "bean");
    ask(json!({ "texts": ["cat ".repeat(2000)] })).refused(422, "tokens");
    server.post("/v1/classify", &picture(1)).refused(422, "no classifier");
}

#[test]
fn a_token_opens_what_is_not_open_to_all() {
    let settings = Settings { token: Some(Token::new("sesame").unwrap()), ..Settings::default() };
    let server = TestServer::of(common::nano(), settings);
    for open in ["/", "/assets/style.css", "/v2/health/live", "/v2/health/ready"] {
        server.get(open).ok();
    }
    for path in ["/v2", "/v2/models/nano", "/metrics", "/openapi.json", "/v1/models", "/nowhere"] {
        server.get(path).refused(401, "token");
        server.request("GET", path, &[("Authorization", "Bearer sesam")], b"").refused(401, "token");
    }
    assert!(server.post("/v1/classify", &picture(1)).head.contains("www-authenticate: bearer"));
    let shown = [("Authorization", "Bearer sesame")];
    server.request("POST", "/v1/classify", &shown, &picture(1)).ok();
    server.request("GET", "/nowhere", &shown, b"").refused(404, "/nowhere");
}

#[test]
fn models_of_two_names_answer_each_for_itself() {
    let server = TestServer::new(vec![entry("one", common::nano()), entry("two", common::nano())], Settings::default());
    let logits = |name: &str| {
        let body = inference(&[1, 3, 32, 32], &numbers(3 * 32 * 32, 1));
        floats(&server.post(&format!("/v2/models/{name}/infer"), &body).ok().json()["outputs"][0]["data"])
    };
    assert_ne!(logits("one"), logits("two"));
    assert_eq!(server.post("/v1/classify?model=two", &picture(1)).ok().json()["model"], "two");
    server.post("/v1/classify?model=three", &picture(1)).refused(404, "one, two");
}

#[test]
fn layers_of_two_models_are_compared_over_the_samples_and_over_pictures_that_are_sent() {
    let (config, model) = fresh("vit-nano");
    let (other_config, other) = fresh("resnet-nano");
    let entries = vec![entry("vit", service(&config, model)), entry("resnet", service(&other_config, other))];
    let server = TestServer::new(entries, Settings::default());
    let ask = |question: Value| server.post("/v1/similarity", question.to_string().as_bytes());
    let own = ask(json!({ "models": ["vit", "vit"] })).ok().json();
    assert_eq!((own["pictures"].as_u64(), own["rows"][4].as_str()), (Some(96), Some("blocks.4")));
    for layer in 0..5 {
        assert!((own["values"][layer][layer].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    let files: Vec<String> = (0..9).map(|seed| BASE64_STANDARD.encode(picture(seed))).collect();
    let both = ask(json!({ "models": ["vit", "resnet"], "pictures": files })).ok().json();
    assert_eq!((both["rows"].as_array().unwrap().len(), both["columns"].as_array().unwrap().len()), (5, 9));
    assert_eq!(both["pictures"], 9);
    ask(json!({ "models": ["vit", "resnet"], "pictures": files[..3] })).refused(422, "from 4 to 512 pictures, got 3");
    ask(json!({ "models": ["vit", "nobody"] })).refused(404, "`nobody`");
    let broken = [files[..4].to_vec(), vec!["AAAA".into()]].concat();
    ask(json!({ "models": ["vit", "vit"], "pictures": broken })).refused(422, "picture 5: not a JPEG");
    let same = vec![files[0].clone(); 6];
    ask(json!({ "models": ["vit", "vit"], "pictures": same })).refused(422, "gives the same for all 6 pictures");
}

#[test]
fn the_samples_are_pictures_with_names_that_can_be_sent_back() {
    let server = TestServer::of(common::nano(), Settings::default());
    let samples = server.get("/v1/samples").ok().json();
    let samples = samples["samples"].as_array().unwrap();
    assert_eq!((samples.len(), &samples[9]["name"]), (10, &json!("ankle boot")));
    for sample in samples {
        let file = sample["picture"].as_str().unwrap().strip_prefix("data:image/png;base64,").unwrap();
        server.post("/v1/classify", &BASE64_STANDARD.decode(file).unwrap()).ok();
    }
}

#[test]
fn a_sentence_has_its_attention_by_layer_and_head() {
    let server = TestServer::new(vec![entry("words", common::translator())], Settings::default());
    let ask = |question: Value| server.post("/v1/attend", question.to_string().as_bytes());
    let seen = ask(json!({ "text": "a b", "beam": 2 })).ok().json();
    let (source, target) = (seen["source"].as_array().unwrap().len(), seen["target"].as_array().unwrap().len());
    for layer in seen["layers"].as_array().unwrap() {
        let [rows, columns] = match layer["kind"].as_str().unwrap() {
            "encoder" => [source, source],
            "decoder" => [target, target],
            _ => [target, source],
        };
        for head in layer["heads"].as_array().unwrap() {
            assert_eq!(head.as_array().unwrap().len(), rows);
            for row in head.as_array().unwrap() {
                let weights = floats(row);
                assert_eq!(weights.len(), columns);
                assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }
    ask(json!({ "text": "a ".repeat(500) })).refused(422, "the most is 128");
    ask(json!({ "text": "a", "beam": 0 })).refused(400, "`beam`");
    ask(json!({})).refused(400, "text");
}

#[test]
fn a_run_shows_whatever_its_task_reports() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("detector");
    std::fs::create_dir_all(&folder).unwrap();
    let lines = [
        json!({ "kind": "step", "step": 1, "epoch": 1, "loss": 3.0, "parts": { "box": 2.0, "class": 1.0 }, "rate": 0.1, "gradient_norm": 1.0, "items_per_second": 9.0 }),
        json!({ "kind": "epoch", "epoch": 1, "step": 1, "train_loss": 3.0, "seconds": 1.0, "loss": 2.5, "map": 0.4 }),
        json!({ "kind": "epoch", "epoch": 2, "step": 2, "train_loss": 2.0, "seconds": 1.0, "loss": 2.2, "map": 0.3 }),
        json!({ "kind": "test", "epoch": 1, "map": 0.35 }),
    ];
    std::fs::write(folder.join("metrics.jsonl"), lines.map(|line| line.to_string() + "\n").concat()).unwrap();
    let metrics = json!([{ "name": "map", "label": "mAP", "better": "higher", "unit": "percent" }, { "name": "loss", "label": "loss", "better": "lower", "unit": "number" }]);
    let task = json!({ "task": "detect", "primary": "map", "items": "pictures", "metrics": metrics });
    std::fs::write(folder.join("task.json"), task.to_string()).unwrap();
    let server = TestServer::of(common::nano(), Settings { runs: Some(root.path().into()), ..Settings::default() });
    let run = server.get("/v1/runs/detector").ok().json();
    assert_eq!((&run["task"], &run["best"]), (&task, &json!(1)));
    assert_eq!(run["steps"][0]["parts"], json!({ "box": 2.0, "class": 1.0 }));
    assert_eq!(run["epochs"][1]["map"], 0.3);
    assert_eq!(run["test"], json!({ "epoch": 1, "map": 0.35 }));
}

#[test]
fn runs_are_listed_and_followed_by_the_names_of_the_list_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("runs/fashion/seed0");
    std::fs::create_dir_all(&folder).unwrap();
    let step = |step: usize| json!({ "kind": "step", "step": step, "epoch": 1, "loss": 2.0, "rate": 0.1, "gradient_norm": 1.0, "pictures_per_second": 9.0 });
    let records = |count: usize| (1..=count).map(step).map(|line| line.to_string() + "\n").collect::<Vec<_>>().concat();
    std::fs::write(folder.join("metrics.jsonl"), records(3)).unwrap();
    std::fs::write(folder.join("recipe.toml"), "model = \"vit-nano\"\n").unwrap();
    std::fs::write(root.path().join("metrics.jsonl"), "secret").unwrap();
    let settings = Settings { runs: Some(root.path().join("runs")), ..Settings::default() };
    let server = TestServer::of(common::nano(), settings);
    let runs = server.get("/v1/runs").ok().json();
    assert_eq!((runs["runs"].as_array().unwrap().len(), &runs["runs"][0]["name"]), (1, &json!("fashion/seed0")));
    let curves = server.get("/v1/runs/fashion/seed0").ok().json();
    assert_eq!((curves["steps"].as_array().unwrap().len(), &curves["steps"][2]["step"]), (3, &json!(3)));
    assert_eq!(curves["recipe"], "model = \"vit-nano\"\n");
    assert_eq!((&curves["task"], &curves["best"], &curves["test"]), (&Value::Null, &Value::Null, &Value::Null));
    std::fs::write(folder.join("metrics.jsonl"), records(4) + "{\"kind\": \"ste").unwrap();
    let grown = server.get("/v1/runs/fashion/seed0").ok().json();
    assert_eq!(grown["steps"].as_array().unwrap().len(), 4, "a line that is being written is left out");
    for outside in ["..", "%2e%2e", "fashion/..%2f..", "fashion", "fashion%2Fseed1", "/etc"] {
        server.get(&format!("/v1/runs/{outside}")).refused(404, "nothing at");
    }
    std::fs::write(folder.join("metrics.jsonl"), "nonsense\n").unwrap();
    server.get("/v1/runs/fashion/seed0").refused(422, "cannot be read");
    let without = TestServer::of(common::nano(), Settings::default());
    assert_eq!(without.get("/v1/runs").ok().json(), json!({ "runs": [] }));
}
