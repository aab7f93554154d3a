//! Clients that mean harm or have bad luck, bugs of ours, and changes while the server runs.

mod place;

use place::{
    Place, binary_inference, entry, entry_with, floats, fresh, hear, inference, message, numbers, picture, service,
};
use regard_serve::{Event, Settings};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let place = Place::of(place::nano(), Settings { body: 100_000, ..Settings::default() });
    let infer = |body: &str| place.post("/v2/models/nano/infer", body.as_bytes());
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
    place
        .ask("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", "-1")], b"{}")
        .refused(400, "number");
    place
        .ask("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", "9")], b"{}")
        .refused(400, "9 bytes");

    place.post("/v1/classify", b"").refused(422, "not a JPEG");
    place.post("/v1/classify", b"GIF89a, or so it says").refused(422, "");
    place.post("/v1/classify?top=many", &picture(1)).refused(400, "");
    place.post("/v1/classify?size=5", &picture(1)).refused(400, "size");
    place.get("/v1/classify").refused(405, "GET");
    place.get("/v2/models/other").refused(404, "nano");
    place.get("/v2/models/..%2f..%2fetc%2fpasswd").refused(404, "");
    place.get("/assets/../../Cargo.toml").refused(404, "");
    place.get("/assets/..%2f..%2fCargo.toml").refused(404, "");
    place.get("/assets/%2fetc%2fpasswd").refused(404, "");
    place.post("/v2/repository/models/nano/load", b"").refused(403, "does not load");
    place.ask("POST", "/v1/classify", &[("Origin", "http://example.org")], &picture(1)).refused(403, "example.org");

    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    ] {
        let answer = place.say(garbage);
        assert!(answer.status == 400 || answer.status == 0, "{answer:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    assert!(matches!(place.say(long.as_bytes()).status, 0 | 400..=499));
    place.post("/v1/classify", &picture(1)).ok();
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read_or_decoded() {
    let place = Place::of(place::nano(), Settings { body: 50_000, pixels: 5_000, ..Settings::default() });
    let announced = b"POST /v1/classify HTTP/1.1\r\nHost: test\r\nContent-Length: 10000000000\r\n\r\n";
    place.say(announced).refused(413, "50000");
    let mut chunked = b"POST /v1/classify HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..8 {
        chunked.extend(b"2000\r\n");
        chunked.extend([b'x'; 0x2000]);
        chunked.extend(b"\r\n");
    }
    place.say(&chunked).refused(413, "50000");

    let mut large = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(100, 51).write_to(&mut large, image::ImageFormat::Png).unwrap();
    place.post("/v1/classify", large.get_ref()).refused(422, "100 x 51 pixels are more than 5000");
    place.post("/v1/classify", &picture(1)).ok();
}

#[test]
fn slow_clients_are_not_waited_for_and_hinder_nobody() {
    let place = Place::of(place::nano(), Settings { patience: Duration::from_millis(400), ..Settings::default() });
    let begin = Instant::now();
    let heads: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = place.connect();
            stream.write_all(b"POST /v1/classify HTTP/1.1\r\nHo").unwrap();
            stream
        })
        .collect();
    let bodies: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = place.connect();
            stream.write_all(b"POST /v1/classify HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nhalf").unwrap();
            stream
        })
        .collect();
    place.post("/v1/classify", &picture(1)).ok();
    for stream in heads {
        assert!(matches!(hear(stream).status, 0 | 408));
    }
    for stream in bodies {
        hear(stream).refused(408, "not sent");
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
}

#[test]
fn clients_that_leave_take_their_places_with_them() {
    let place = Place::of(place::slow(), Settings { batch: 1, queue: 64, ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = message("POST", "/v2/models/nano/infer", &headers, &body);
    let streams: Vec<TcpStream> = (0..24)
        .map(|_| {
            let mut stream = place.connect();
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    while place.metric("regard_queue_places{model=\"nano\"}") < Some(8.0) {
        thread::sleep(Duration::from_millis(2));
    }
    drop(streams);
    place.say(&bytes).ok();
    assert_eq!(place.metric("regard_queue_places{model=\"nano\"}"), Some(0.0));
    let (gone, computed) = (
        place.metric("regard_given_up_total{model=\"nano\"}"),
        place.metric("regard_batch_size_count{model=\"nano\"}"),
    );
    assert!(gone.unwrap() > 0.0, "all of them were computed for nobody");
    assert!(computed.unwrap() < 25.0);
}

#[test]
fn a_full_queue_says_when_to_come_again_and_loses_nobody_else() {
    let place = Arc::new(Place::of(place::slow(), Settings { batch: 1, queue: 2, ..Settings::default() }));
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let bytes =
        Arc::new(message("POST", "/v2/models/nano/infer", &[("Inference-Header-Content-Length", &length)], &body));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let (place, bytes) = (Arc::clone(&place), Arc::clone(&bytes));
            thread::spawn(move || place.say(&bytes))
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
    place.say(&bytes).ok();
}

#[test]
fn an_answer_that_takes_too_long_is_given_up() {
    let place = Place::of(place::slow(), Settings { time: Duration::from_millis(1), ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    place.ask("POST", "/v2/models/nano/infer", &headers, &body).refused(504, "no answer");
    place.get("/v2/health/ready").ok();
}

#[test]
fn a_panic_is_an_answer_and_the_other_model_goes_on() {
    // what the server believes of this model is not true: its forward pass refuses the shape
    let (config, _) = fresh("vit-nano");
    let (_, other) = fresh("deit-tiny");
    let classes = config.classes();
    assert_eq!(classes, 10);
    let broken = service(&config, other);
    let place = Place::new(vec![entry("broken", broken), entry("nano", place::nano())], Settings::default());
    for _ in 0..3 {
        place.post("/v1/classify?model=broken", &picture(1)).refused(500, "internal failure");
        place.post("/v1/explain?model=broken", &picture(1)).refused(500, "internal failure");
        place.post("/v1/classify?model=nano", &picture(1)).ok();
    }
    assert!(place.events.lock().unwrap().iter().any(|event| matches!(event, Event::Panicked { .. })));
    assert_eq!(place.metric("regard_panics_total{model=\"broken\"}"), Some(6.0));
}

#[test]
fn stopping_answers_whatever_was_asked() {
    let mut place = Place::of(place::slow(), Settings { batch: 2, ..Settings::default() });
    let (length, body) = binary_inference(&[1, 3, 224, 224], &numbers(3 * 224 * 224, 1));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let bytes = message("POST", "/v2/models/nano/infer", &headers, &body);
    let asked: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = place.connect();
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    // all of them are read, and the last are far from their turn
    let count = |line: &str| place.metric(line).unwrap_or(0.0);
    let route = "regard_requests_total{route=\"/v2/models/{name}/infer\",status=\"200\"}";
    while count("regard_queue_places{model=\"nano\"}") + count(route) < 12.0 {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(count("regard_queue_places{model=\"nano\"}") > 0.0);
    place.begin_to_stop();
    for stream in asked {
        hear(stream).ok();
    }
    place.wait();
    assert!(TcpStream::connect(place.address).is_err());
    assert!(place.events.lock().unwrap().contains(&Event::Stopping));
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
    let place = Arc::new(Place::new(
        vec![entry_with("nano", service(&config, first), Box::new(reload)), entry("other", service(&config, second))],
        settings,
    ));
    let logits = |place: &Place, name: &str, body: &[u8]| {
        floats(&place.post(&format!("/v2/models/{name}/infer"), body).ok().json()["outputs"][0]["data"])
    };
    let known = [logits(&place, "nano", &body), logits(&place, "other", &body)];
    assert_ne!(known[0], known[1]);
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (place, body, done, known) = (Arc::clone(&place), body.clone(), Arc::clone(&done), known.clone());
            thread::spawn(move || {
                let mut seen = [0, 0];
                while !done.load(Ordering::SeqCst) {
                    let answer = floats(&place.post("/v2/models/nano/infer", &body).ok().json()["outputs"][0]["data"]);
                    let close = |known: &[f32]| known.iter().zip(&answer).all(|(a, b)| (a - b).abs() < 1e-5);
                    let which = known.iter().position(|known| close(known)).expect("neither of the models");
                    seen[which] += 1;
                }
                seen
            })
        })
        .collect();
    for turn in 0..12 {
        let answer = place.post("/v2/repository/models/nano/load", b"");
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
    let events = place.events.lock().unwrap();
    let kept = Event::Kept { name: "nano".into(), reason: "the file is broken".into() };
    assert_eq!(events.iter().filter(|event| **event == kept).count(), 6);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Reloaded { .. })).count(), 6);
    drop(events);
    assert_eq!(place.metric("regard_loads_total{model=\"nano\"}"), Some(7.0));
}

#[test]
fn servers_that_cannot_be_are_refused_by_name() {
    let tell = || Arc::new(|_| {}) as regard_serve::Tell;
    let attempt = |entries, settings| regard_serve::Server::new(entries, settings, tell()).unwrap_err().to_string();
    assert_eq!(attempt(vec![], Settings::default()), "no model to serve");
    assert!(attempt(vec![entry("a/b", place::nano())], Settings::default()).contains("`a/b`"));
    assert!(attempt(vec![entry("..", place::nano())], Settings::default()).contains("`..`"));
    let twice = vec![entry("a", place::nano()), entry("a", place::nano())];
    assert!(attempt(twice, Settings::default()).contains("two models are called `a`"));
    assert!(attempt(vec![entry("a", place::nano())], Settings { batch: 0, ..Settings::default() }).contains("`batch`"));
}
