//! A server for tests, models for it, and a client that sends exactly the bytes of a test.
#![allow(dead_code)] // each test file uses its part

use regard::data::text::{Pieces, Tokenizer};
use regard::data::{Picture, Preprocess};
use regard::models::{Model, ModelConfig, preset, translator};
use regard::tasks::vision_language::{DetectedLimits, EMBEDDED_ANSWERERS, EmbeddedAnswerer, RegionCache, RegionRecipe};
use regard::translate::Bundle;
use regard::{PackedModel, device};
use regard_serve::{Answerer, Classifier, Entry, Event, Reload, Server, Service, Settings};
use serde_json::{Value, json};
use std::io::{Cursor, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;

/// A server that stops when this is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub server: Server,
    pub events: Arc<Mutex<Vec<Event>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn new(entries: Vec<Entry>, settings: Settings) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&events);
        let tell = Arc::new(move |event| recorded.lock().unwrap().push(event));
        let server = Server::new(entries, settings, tell).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (send, receive) = std::sync::mpsc::channel();
        let own = server.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                send.send(listener.local_addr().unwrap()).unwrap();
                let stopped = async {
                    let _ = stopped.await;
                };
                own.serve(listener, stopped).await;
            });
        });
        Self { address: receive.recv().unwrap(), server, events, stop: Some(stop), thread: Some(thread) }
    }

    /// One model, `nano`.
    pub fn of(service: Service, settings: Settings) -> Self {
        Self::new(vec![entry("nano", service)], settings)
    }

    /// Tells it to stop.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until it has stopped.
    pub fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &[u8]) -> TestResponse {
        self.request("POST", path, &[], body)
    }

    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TestResponse {
        self.send(&raw_request(method, path, headers, body))
    }

    /// Sends bytes and reads to the end.
    pub fn send(&self, bytes: &[u8]) -> TestResponse {
        let mut stream = self.connect();
        // a server that refuses early closes before it has read everything
        let _ = stream.write_all(bytes);
        read_response(stream)
    }

    /// Sends bytes and returns the whole response.
    pub fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    }

    /// A line of `/metrics`.
    pub fn metric(&self, line: &str) -> Option<f64> {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.begin_stop();
        if !thread::panicking() {
            self.wait();
        }
    }
}

/// A request in bytes, on a connection of its own.
pub fn raw_request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let length = format!("Content-Length: {}\r\n", body.len());
    let others: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    [head.as_bytes(), length.as_bytes(), others.concat().as_bytes(), b"\r\n", body].concat()
}

/// The whole response.
pub fn read_response(mut stream: TcpStream) -> TestResponse {
    let mut bytes = Vec::new();
    // bytes before a reset count
    let _ = stream.read_to_end(&mut bytes);
    TestResponse::of(&bytes)
}

#[derive(Clone, Debug)]
pub struct TestResponse {
    /// 0 when the connection was closed without a response.
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl TestResponse {
    fn of(bytes: &[u8]) -> Self {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Self { status: 0, head: String::new(), body: Vec::new() };
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    #[track_caller]
    pub fn refused(&self, status: u16, culprit: &str) {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        let json = self.json();
        let error = json["error"].as_str().unwrap();
        assert!(error.contains(culprit), "no `{culprit}` in: {error}");
    }
}

pub fn entry(name: &str, service: Service) -> Entry {
    entry_with(name, service, Box::new(|| Err("nothing to load".into())))
}

pub fn entry_with(name: &str, service: Service, reload: Reload) -> Entry {
    Entry { name: name.into(), service, reload: Some(reload) }
}

/// A preset with random weights.
pub fn fresh(name: &str) -> (ModelConfig, Model) {
    let config = preset(name).unwrap().config;
    let model = config.init(&device::cpu()).unwrap();
    (config, model)
}

pub fn service(config: &ModelConfig, model: Model) -> Service {
    let labels = (0..config.classes()).map(|class| format!("class {class}")).collect();
    let model = PackedModel::new(model);
    let whole = Preprocess { mean: [0.5; 3], std: [0.5; 3], ..Preprocess::WHOLE };
    Service::Pictures(Classifier::new(model, config.clone(), whole, labels, &device::cpu()).unwrap())
}

pub fn nano() -> Service {
    let (config, model) = fresh("vit-nano");
    service(&config, model)
}

/// A slow one.
pub fn slow() -> Service {
    let (config, model) = fresh("deit-small");
    service(&config, model)
}

/// A translator that knows some words and no grammar.
pub fn translator() -> Service {
    let sentences = ["the cat sleeps", "the street is wide", "il gatto dorme", "la strada è larga"];
    let tokenizer = Tokenizer::train(Pieces::Bpe, 400, sentences.iter().cycle().take(40)).unwrap();
    let fields = [
        ("source_vocabulary", json!(tokenizer.vocabulary())),
        ("target_vocabulary", json!(tokenizer.vocabulary())),
        ("dim", json!(16)),
        ("heads", json!(2)),
        ("inner", json!(32)),
        ("encoder_layers", json!(1)),
        ("decoder_layers", json!(1)),
    ];
    let config = translator::preset("transformer-nano").unwrap().config;
    let config = fields.into_iter().fold(config, |config, (field, value)| config.with(field, value).unwrap());
    let model = config.init(&device::cpu()).unwrap();
    let bundle = Bundle::new(config, model, [tokenizer.clone(), tokenizer]).unwrap();
    Service::Sentences { bundle, device: device::cpu() }
}

/// The embedded model of garments, which finds regions with the embedded detector; its recipe may name other goals.
pub fn answerer(goals: &str) -> Answerer {
    let recipe = EMBEDDED_ANSWERERS[0].recipe.replace("[goals]", &format!("[goals]\n{goals}"));
    let bundle = EmbeddedAnswerer { recipe: recipe.leak(), ..EMBEDDED_ANSWERERS[0] }.load(&device::cpu()).unwrap();
    let limits = DetectedLimits { score: 0.3, ..DetectedLimits::default() };
    let regions = RegionRecipe::Boxes { side: 16, detector: Some("scenes-retinanet".into()), limits };
    Answerer::new(bundle.with_regions(&regions, RegionCache::Off).unwrap()).unwrap()
}

/// A PNG of a picture.
pub fn file_of(picture: &Picture) -> Vec<u8> {
    regard::report::png(picture.size(), picture.pixels())
}

/// A PNG of noise, another one for each seed.
pub fn picture(seed: u32) -> Vec<u8> {
    let noise = |x: u32, y: u32| {
        let mixed = (x + 97 * y + 7919 * seed).wrapping_mul(2_654_435_761);
        image::Rgb([(mixed >> 8) as u8, (mixed >> 16) as u8, (mixed >> 24) as u8])
    };
    let mut bytes = Cursor::new(Vec::new());
    image::RgbImage::from_fn(32, 32, noise).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// Input values for a number of pictures.
pub fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.7).sin()).collect()
}

/// An inference request in JSON.
pub fn inference(shape: &[usize], numbers: &[f32]) -> Vec<u8> {
    let input = json!({ "name": "input", "datatype": "FP32", "shape": shape, "data": numbers });
    json!({ "inputs": [input] }).to_string().into_bytes()
}

/// The same in binary form: header and body.
pub fn binary_inference(shape: &[usize], numbers: &[f32]) -> (String, Vec<u8>) {
    let parameters = json!({ "binary_data_size": 4 * numbers.len() });
    let input = json!({ "name": "input", "datatype": "FP32", "shape": shape, "parameters": parameters });
    let json = json!({ "inputs": [input] }).to_string().into_bytes();
    let length = json.len().to_string();
    (length, json.into_iter().chain(numbers.iter().flat_map(|number| number.to_le_bytes())).collect())
}

pub fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[track_caller]
pub fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().zip(b).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst <= tolerance, "{worst}");
}
