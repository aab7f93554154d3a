//! Clients that mean harm or have bad luck, bugs of ours, and changes while the server runs.

use crate::common::{
    self, TestServer, binary_inference, entry, entry_with, floats, fresh, inference, numbers, picture, raw_request,
    read_response, service,
};
use regard::data::Preprocess;
use regard::{PackedModel, device};
use regard_serve::{Classifier, Event, Service, Settings};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let server = TestServer::of(common::nano(), Settings { body: 100_000, ..Settings::default() });
    let infer = |body: &str| server.post("/v2/models/nano/infer", body.as_bytes());
    let tensor = |name: &str, kind: &str, shape: &str, data: &str| {
        infer(&format!(r#"{{"inputs":[{{"name":"{name}","datatype":"{kind}","shape":{shape},"data":{data}}}]}}"#))
    };
    infer("").refused(400, "not an inference");
    infer("[]").refused(400, "not an inference");
    infer(r#"{"inputs":[]}"#).refused(400, "0 inputs");
    infer(&"[".repeat(50_000)).refused(400, "");
    tensor("input", "FP32", "[1,3,32,32]", "[1,2]").refused(400, "2 numbers");
    tensor("input", "FP32", "[1,3,32]", "[1]").refused(400, "[-1, 3, 32, 32]");
    tensor("input", "FP32", "[0,3,32,32]", "[]").refused(400, "[-1, 3, 32, 32]");
    tensor("input", "FP32", "[18446744073709551615,3,32,32]", "[]").refused(422, "the most is 128");
    tensor("input", "FP32", "[-1,3,32,32]", "[]").refused(400, "not an inference");
    tensor("input", "FP64", "[1,3,32,32]", "[1]").refused(400, "FP64");
    tensor("pixels", "FP32", "[1,3,32,32]", "[1]").refused(400, "`pixels`");
    server
        .request("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", "-1")], b"{}")
        .refused(400, "number");
    server
        .request("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", "9")], b"{}")
        .refused(400, "9 bytes");

    server.post("/v1/classify", b"").refused(422, "not a JPEG");
    server.post("/v1/classify", b"GIF89a, or so it says").refused(422, "");
    server.post("/v1/classify?top=many", &picture(1)).refused(400, "");
    server.post("/v1/classify?size=5", &picture(1)).refused(400, "size");
    server.get("/v1/classify").refused(405, "GET");
    server.get("/v2/models/other").refused(404, "nano");
    server.get("/v2/models/..%2f..%2fetc%2fpasswd").refused(404, "");
    server.get("/assets/../../Cargo.toml").refused(404, "");
    server.get("/assets/..%2f..%2fCargo.toml").refused(404, "");
    server.get("/assets/%2fetc%2fpasswd").refused(404, "");
    server.post("/v2/repository/models/nano/load", b"").refused(403, "does not load");
    server
        .request("POST", "/v1/classify", &[("Origin", "http://example.org")], &picture(1))
        .refused(403, "example.org");

    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    ] {
        let answer = server.send(garbage);
        assert!(answer.status == 400 || answer.status == 0, "{answer:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    assert!(matches!(server.send(long.as_bytes()).status, 0 | 400..=499));
    server.post("/v1/classify", &picture(1)).ok();
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read_or_decoded() {
    let server = TestServer::of(common::nano(), Settings { body: 50_000, pixels: 5_000, ..Settings::default() });
    let announced = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n";
    server.send(announced).refused(413, "50000");
    let mut chunked = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..8 {
        chunked.extend(b"2000\r\n");
        chunked.extend([b'x'; 0x2000]);
        chunked.extend(b"\r\n");
    }
    server.send(&chunked).refused(413, "50000");

    let mut large = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(100, 51).write_to(&mut large, image::ImageFormat::Png).unwrap();
    server.post("/v1/classify", large.get_ref()).refused(422, "100 x 51 pixels are more than 5000");
    server.post("/v1/classify", &picture(1)).ok();
}

#[test]
fn an_output_is_given_once_and_large_answers_are_charged_to_the_budget() {
    let server = TestServer::of(common::nano(), Settings { body: 100_000, ..Settings::default() });
    let outputs = r#"{"name":"probabilities"}"#;
    let numbers = serde_json::to_string(&numbers(3 * 32 * 32, 1)).unwrap();
    let infer = |outputs: &str| {
        let input = format!(r#"{{"name":"input","datatype":"FP32","shape":[1,3,32,32],"data":{numbers}}}"#);
        server.post("/v2/models/nano/infer", format!(r#"{{"inputs":[{input}],"outputs":[{outputs}]}}"#).as_bytes())
    };
    infer(outputs).ok();
    infer(&[outputs; 2].join(",")).refused(400, "output `probabilities` is asked for twice");
    infer(r#"{"name":"boxes"}"#).refused(400, "logits, probabilities");
    // the attention of all layers is more than the budget, that of one layer is not
    let (config, model) = fresh("vit-nano");
    let small =
        TestServer::of(service(&config, model), Settings { body: 17_000, bodies: 17_000, ..Settings::default() });
    small.post("/v1/explain", &picture(1)).refused(429, "bytes");
    small.post("/v1/explain?layer=blocks.2.attn", &picture(1)).ok();
    small.get("/v2/health/live").ok();
}

#[test]
fn numbers_that_overflow_are_an_error_and_never_null() {
    let server = TestServer::of(common::nano(), Settings::default());
    let huge = vec![3e38; 3 * 32 * 32];
    server.post("/v2/models/nano/infer", &inference(&[1, 3, 32, 32], &huge)).refused(422, "infinity or NaN");
    // the others of a batch are answered
    let both: Vec<f32> = [numbers(3 * 32 * 32, 1), huge].concat();
    server.post("/v2/models/nano/infer", &inference(&[2, 3, 32, 32], &both)).refused(422, "infinity or NaN");
    server.post("/v2/models/nano/infer", &inference(&[1, 3, 32, 32], &numbers(3 * 32 * 32, 1))).ok();

    // pixels become infinite by themselves, whatever the fresh weights are
    let (config, model) = fresh("vit-nano");
    let damaged = Preprocess { std: [1e-40; 3], ..Preprocess::WHOLE };
    let labels = (0..config.classes()).map(|class| format!("class {class}")).collect();
    let broken = Classifier::new(PackedModel::new(model), config, damaged, labels, &device::cpu()).unwrap();
    let server = TestServer::of(Service::Pictures(broken), Settings::default());
    server.post("/v1/classify", &picture(1)).refused(500, "infinity or NaN");
    server.post("/v1/explain", &picture(1)).refused(500, "infinity or NaN");
}

#[test]
fn texts_that_would_take_minutes_are_refused_before_they_are_read_as_tokens() {
    let server = TestServer::of(common::translator(), Settings::default());
    let translate = |texts: &[String], beam: usize| {
        let request = serde_json::json!({ "texts": texts, "beam": beam });
        server.post("/v1/translate", request.to_string().as_bytes())
    };
    translate(&["cat ".repeat(2_500_000)], 1).refused(422, "bytes in one sentence");
    let input =
        serde_json::json!({ "name": "text", "datatype": "BYTES", "shape": [1], "data": ["cat ".repeat(99_999)] });
    let infer = serde_json::json!({ "inputs": [input] }).to_string();
    server.post("/v2/models/nano/infer", infer.as_bytes()).refused(422, "bytes in one sentence");
    server.post("/v1/attend", &vec![b' '; 200_000]).refused(413, "bytes");
    translate(&vec!["cat ".repeat(300); 128], 16).refused(422, "the most at a beam of 16");
    translate(&["the cat sleeps".into()], 16).ok();
}

#[test]
fn an_answer_that_nobody_waits_for_leaves_the_translator_free() {
    let server =
        TestServer::of(common::translator(), Settings { time: Duration::from_millis(30), ..Settings::default() });
    let request = serde_json::json!({ "texts": vec!["the cat sleeps ".repeat(30); 40], "beam": 16 });
    server.post("/v1/translate", request.to_string().as_bytes()).refused(504, "no answer");
    while server.metric("regard_queue_places{model=\"nano\"}") != Some(0.0) {
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_request_names_one_host_that_is_ours_and_ends_its_lines_properly() {
    let settings = Settings { hosts: vec!["regard.example".into()], ..Settings::default() };
    let server = TestServer::of(common::nano(), settings);
    let get =
        |head: &str| server.send(format!("GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n{head}").as_bytes());
    for ours in ["Host: localhost", "host: 127.0.0.1:8000", "Host: [::1]", "Host: regard.example"] {
        get(&format!("{ours}\r\n\r\n")).ok();
    }
    get("Host: evil.example\r\n\r\n").refused(421, "`regard serve --host evil.example`");
    get("Host: 10.0.0.1\r\n\r\n").refused(421, "10.0.0.1");
    get("\r\n").refused(400, "`Host` header is missing");
    get("Host: localhost\r\nHost: evil.example\r\n\r\n").refused(400, "more than one `Host`");
    for bare in
        ["Host: localhost\n\r\n", "Host: localhost\n\n", "Host: localhost\r\n\n", "X: y\nHost: localhost\r\n\r\n"]
    {
        assert_eq!(get(bare).status, 400, "{bare:?}");
    }
    let second = "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v2 HTTP/1.1\nHost: localhost\n\n";
    let answers = String::from_utf8(server.exchange(second.as_bytes())).unwrap();
    assert!(answers.starts_with("HTTP/1.1 200") && answers.contains("HTTP/1.1 400"), "{answers}");
    server.send(b"GET /v2 HTTP/1.0\r\n\r\n").ok();
    server.send(b"GET http://evil.example/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").refused(421, "evil.example");
}

#[test]
fn clients_that_never_read_their_answers_are_dropped_and_others_are_served() {
    let settings = Settings { connections: 4, patience: Duration::from_millis(300), ..Settings::default() };
    let server = TestServer::of(common::nano(), settings);
    let requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(3000);
    let deaf: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.set_nonblocking(true).unwrap();
            // as much as the server takes: it reads no further when nobody reads its answers
            let mut rest = requests.as_bytes();
            while let Ok(count) = stream.write(rest) {
                rest = &rest[count..];
                if rest.is_empty() {
                    break;
                }
            }
            stream
        })
        .collect();
    server.get("/v2/health/live").ok();
    drop(deaf);
}

#[test]
fn idle_connections_make_room_when_there_are_too_many() {
    let settings = Settings { connections: 3, patience: Duration::from_mins(1), ..Settings::default() };
    let server = TestServer::of(common::nano(), settings);
    let idle: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut first = [0];
            std::io::Read::read_exact(&mut stream, &mut first).unwrap();
            stream
        })
        .collect();
    server.get("/v2/health/live").ok();
    drop(idle);
}

#[test]
fn slow_clients_are_not_waited_for_and_hinder_nobody() {
    let server =
        TestServer::of(common::nano(), Settings { patience: Duration::from_millis(400), ..Settings::default() });
    let begin = Instant::now();
    let heads: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"POST /v1/classify HTTP/1.1\r\nHo").unwrap();
            stream
        })
        .collect();
    let bodies: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
                .unwrap();
            stream
        })
        .collect();
    server.post("/v1/classify", &picture(1)).ok();
    for stream in heads {
        assert!(matches!(read_response(stream).status, 0 | 408));
    }
    for stream in bodies {
        read_response(stream).refused(408, "not sent");
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn clients_that_leave_take_their_places_with_them() {
    let server = TestServer::of(common::slow(), Settings { batch: 1, queue: 64, ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = raw_request("POST", "/v2/models/nano/infer", &headers, &body);
    let streams: Vec<TcpStream> = (0..24)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    while server.metric("regard_queue_places{model=\"nano\"}") < Some(8.0) {
        thread::sleep(Duration::from_millis(2));
    }
    drop(streams);
    server.send(&bytes).ok();
    assert_eq!(server.metric("regard_queue_places{model=\"nano\"}"), Some(0.0));
    let (gone, computed) = (
        server.metric("regard_given_up_total{model=\"nano\"}"),
        server.metric("regard_batch_size_count{model=\"nano\"}"),
    );
    assert!(gone.unwrap() > 0.0, "all of them were computed for nobody");
    assert!(computed.unwrap() < 25.0);
}

#[test]
fn a_full_queue_says_when_to_come_again_and_loses_nobody_else() {
    let server = Arc::new(TestServer::of(common::slow(), Settings { batch: 1, queue: 2, ..Settings::default() }));
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let bytes =
        Arc::new(raw_request("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", &length)], &body));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let (server, bytes) = (Arc::clone(&server), Arc::clone(&bytes));
            thread::spawn(move || server.send(&bytes))
        })
        .collect();
    let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let (right, busy): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert!(right.len() >= 2, "{}", right.len());
    assert!(!busy.is_empty());
    for answer in busy {
        answer.refused(429, "full");
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    }
    server.send(&bytes).ok();
}

#[test]
fn an_answer_that_takes_too_long_is_given_up() {
    let server = TestServer::of(common::slow(), Settings { time: Duration::from_millis(1), ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    server.request("POST", "/v2/models/nano/infer", &headers, &body).refused(504, "no answer");
    server.get("/v2/health/ready").ok();
}

#[test]
fn a_panic_is_an_answer_and_the_other_model_goes_on() {
    // what the server believes of this model is not true: its forward pass refuses the shape
    let (config, _) = fresh("vit-nano");
    let (_, other) = fresh("deit-tiny");
    let classes = config.classes();
    assert_eq!(classes, 10);
    let broken = service(&config, other);
    let server = TestServer::new(vec![entry("broken", broken), entry("nano", common::nano())], Settings::default());
    for _ in 0..3 {
        server.post("/v1/classify?model=broken", &picture(1)).refused(500, "internal failure");
        server.post("/v1/explain?model=broken", &picture(1)).refused(500, "internal failure");
        server.post("/v1/classify?model=nano", &picture(1)).ok();
    }
    assert!(server.events.lock().unwrap().iter().any(|event| matches!(event, Event::Panicked { .. })));
    assert_eq!(server.metric("regard_panics_total{model=\"broken\"}"), Some(6.0));
}

#[test]
fn stopping_answers_whatever_was_asked() {
    let mut server = TestServer::of(common::slow(), Settings { batch: 2, ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = raw_request("POST", "/v2/models/nano/infer", &headers, &body);
    let asked: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    // all of them are read, and the last are far from their turn
    let count = |line: &str| server.metric(line).unwrap_or(0.0);
    let route = "regard_requests_total{route=\"/v2/models/{name}/infer\",status=\"200\"}";
    while count("regard_queue_places{model=\"nano\"}") + count(route) < 12.0 {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(count("regard_queue_places{model=\"nano\"}") > 0.0);
    server.begin_stop();
    for stream in asked {
        read_response(stream).ok();
    }
    server.wait();
    assert!(TcpStream::connect(server.address).is_err());
    assert!(server.events.lock().unwrap().contains(&Event::Stopping));
}

#[test]
fn models_are_swapped_under_load_and_nobody_is_dropped() {
    let (config, first) = fresh("vit-nano");
    let (_, second) = fresh("vit-nano");
    let body = inference(&[1, 3, 32, 32], &numbers(3 * 32 * 32, 1));
    let (turn, own, models) = (AtomicUsize::new(0), config.clone(), [first.clone(), second.clone()]);
    // the second model, one that fails, the first, one that fails, ..
    let reload = move || match turn.fetch_add(1, Ordering::SeqCst) % 4 {
        0 => Ok(service(&own, models[1].clone())),
        2 => Ok(service(&own, models[0].clone())),
        _ => Err("the file is broken".to_string()),
    };
    let settings = Settings { reload: true, ..Settings::default() };
    let server = Arc::new(TestServer::new(
        vec![entry_with("nano", service(&config, first), Box::new(reload)), entry("other", service(&config, second))],
        settings,
    ));
    let logits = |server: &TestServer, name: &str, body: &[u8]| {
        floats(&server.post(&format!("/v2/models/{name}/infer"), body).ok().json()["outputs"][0]["data"])
    };
    let known = [logits(&server, "nano", &body), logits(&server, "other", &body)];
    assert_ne!(known[0], known[1]);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (server, body, done, known) = (Arc::clone(&server), body.clone(), Arc::clone(&done), known.clone());
            thread::spawn(move || {
                let mut seen = [0, 0];
                while !done.load(Ordering::SeqCst) {
                    let answer = floats(&server.post("/v2/models/nano/infer", &body).ok().json()["outputs"][0]["data"]);
                    let close = |known: &[f32]| known.iter().zip(&answer).all(|(a, b)| (a - b).abs() < 1e-5);
                    let which = known.iter().position(|known| close(known)).expect("neither of the models");
                    seen[which] += 1;
                }
                seen
            })
        })
        .collect();
    for turn in 0..12 {
        let answer = server.post("/v2/repository/models/nano/load", b"");
        if turn % 2 == 0 {
            answer.ok();
        } else {
            answer.refused(422, "the old one goes on");
            assert!(!String::from_utf8_lossy(&answer.body).contains("broken"), "reasons are for the log");
        }
        thread::sleep(Duration::from_millis(30));
    }
    done.store(true, Ordering::SeqCst);
    let seen: Vec<[usize; 2]> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let of = |which: usize| seen.iter().map(|seen| seen[which]).sum::<usize>();
    assert!(of(0) > 0 && of(1) > 0, "{seen:?}");
    let events = server.events.lock().unwrap();
    let kept = Event::Kept { name: "nano".into(), reason: "the file is broken".into() };
    assert_eq!(events.iter().filter(|event| **event == kept).count(), 6);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Reloaded { .. })).count(), 6);
    drop(events);
    assert_eq!(server.metric("regard_loads_total{model=\"nano\"}"), Some(7.0));
}

#[test]
fn servers_that_cannot_be_are_refused_by_name() {
    let tell = || Arc::new(|_| {}) as regard_serve::Tell;
    let attempt = |entries, settings| regard_serve::Server::new(entries, settings, tell()).unwrap_err().to_string();
    assert_eq!(attempt(vec![], Settings::default()), "no model to serve");
    assert!(attempt(vec![entry("a/b", common::nano())], Settings::default()).contains("`a/b`"));
    assert!(attempt(vec![entry("..", common::nano())], Settings::default()).contains("`..`"));
    let twice = vec![entry("a", common::nano()), entry("a", common::nano())];
    assert!(attempt(twice, Settings::default()).contains("two models are called `a`"));
    assert!(
        attempt(vec![entry("a", common::nano())], Settings { batch: 0, ..Settings::default() }).contains("`batch`")
    );
}
