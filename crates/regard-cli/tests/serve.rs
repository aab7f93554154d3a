//! `regard serve` as a user meets it: what it says, what it refuses, and how it ends.

use regard::{device, models, weights};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A server that is ended with the test.
struct Served {
    process: Child,
    address: String,
    /// What it says on stderr after its address.
    lines: Receiver<String>,
}

impl Served {
    fn new(folder: &Path, args: &[&str]) -> Self {
        Self::start(Command::new(env!("CARGO_BIN_EXE_regard")), folder, args)
    }

    fn start(mut command: Command, folder: &Path, args: &[&str]) -> Self {
        command.current_dir(folder).arg("serve").args(args).args(["--port", "0"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut served = Self { process, address: String::new(), lines };
        let line = served.hear();
        served.address = line.strip_prefix("serving at http://").unwrap_or_else(|| panic!("{line}")).to_string();
        served
    }

    fn hear(&self) -> String {
        self.lines.recv_timeout(Duration::from_mins(1)).expect("it says something")
    }

    /// A line of the process's status, in KiB.
    #[cfg(target_os = "linux")]
    fn memory(&self, line: &str) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let found = text.lines().find_map(|found| found.strip_prefix(line)).unwrap();
        found.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status().unwrap().success());
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        ask(&self.address, method, path, headers, body)
    }
}

fn ask(address: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    )
    .unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write_weights(path: &Path) {
    let model = models::preset("vit-nano").unwrap().config.init(&device::cpu()).unwrap();
    weights::write_tensors(path, &weights::tensors(&model)).unwrap();
}

fn picture() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let gradient = |x, y| image::Rgb([(5 * x) as u8, (4 * y) as u8, 90]);
    image::RgbImage::from_fn(40, 50, gradient).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
fn a_model_is_served_swapped_and_stopped_by_signals() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nano.safetensors");
    write_weights(&file);
    let mut served = Served::new(folder.path(), &["--model", "vit-nano=nano.safetensors"]);
    assert!(served.address.starts_with("127.0.0.1:"), "{}", served.address);
    let classify = |served: &Served| served.ask("POST", "/v1/classify", "", &picture());
    let first = classify(&served);
    assert!(first.starts_with("HTTP/1.1 200") && first.contains(r#""model":"vit-nano""#), "{first}");
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_string();

    write_weights(&file);
    assert_eq!(body(&classify(&served)), body(&first), "files are read at the start and when asked for");
    served.signal("HUP");
    assert_eq!(served.hear(), "reloaded: vit-nano");
    let second = classify(&served);
    assert_ne!(body(&second), body(&first));

    fs::write(&file, "broken").unwrap();
    served.signal("HUP");
    let line = served.hear();
    assert!(line.starts_with("error: vit-nano was not reloaded: ") && line.contains("nano.safetensors"), "{line}");
    assert_eq!(body(&classify(&served)), body(&second));

    served.signal("TERM");
    assert_eq!(served.hear(), "stopping: finishing open requests");
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    served.process.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

/// Everything that needs a thread, on a machine that has one.
fn serves_with_one_thread(command: Command) {
    let folder = tempfile::tempdir().unwrap();
    write_weights(&folder.path().join("nano.safetensors"));
    let args = ["--model", "vit-nano=nano.safetensors", "--only", "--allow-reload"];
    let mut served = Served::start(command, folder.path(), &args);
    let count = 17 * 3 * 32 * 32;
    let numbers: Vec<String> = (0..count).map(|i| format!("{}", i % 7)).collect();
    let input = format!(
        r#"{{"inputs":[{{"name":"input","datatype":"FP32","shape":[17,3,32,32],"data":[{}]}}]}}"#,
        numbers.join(",")
    );
    let infer = served.ask("POST", "/v2/models/vit-nano/infer", "", input.as_bytes());
    assert!(infer.starts_with("HTTP/1.1 200") && infer.contains("probabilities"), "{infer}");
    let loaded = served.ask("POST", "/v2/repository/models/vit-nano/load", "", b"");
    assert!(loaded.starts_with("HTTP/1.1 200"), "{loaded}");
    assert_eq!(served.hear(), "reloaded: vit-nano");
    assert!(served.ask("POST", "/v1/explain", "", &picture()).starts_with("HTTP/1.1 200"));
    assert!(served.ask("GET", "/v2/health/live", "", b"").starts_with("HTTP/1.1 200"));
    served.signal("TERM");
    assert_eq!(served.hear(), "stopping: finishing open requests");
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
}

#[test]
fn one_thread_answers_loads_and_stops() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.env("RAYON_NUM_THREADS", "1");
    serves_with_one_thread(command);
}

#[test]
fn one_processor_answers_loads_and_stops() {
    if Command::new("taskset").args(["-c", "0", "true"]).status().is_ok_and(|status| status.success()) {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", env!("CARGO_BIN_EXE_regard")]);
        serves_with_one_thread(command);
    }
}

/// A PNG of 8 x 8 pixels whose profile of colours inflates to about a gigabyte.
#[cfg(target_os = "linux")]
fn bomb() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(8, 8).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let mut bytes = bytes.into_inner();
    // one block with fixed codes: a zero, and then 258 zeros in 13 bits again and again
    let mut bits: Vec<bool> = [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0].map(|bit| bit == 1).to_vec();
    let zeros = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0].map(|bit| bit == 1);
    (0..640_000).for_each(|_| bits.extend(zeros));
    bits.extend([false; 7]);
    let byte = |bits: &[bool]| bits.iter().enumerate().fold(0u8, |byte, (i, bit)| byte | u8::from(*bit) << i);
    let profile: Vec<u8> = b"icc\0\0\x78\x01".iter().copied().chain(bits.chunks(8).map(byte)).collect();
    let mut chunk = b"iCCP".to_vec();
    chunk.extend(profile);
    let crc = !chunk.iter().fold(u32::MAX, |mut crc, byte| {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 });
        crc
    });
    let length = (chunk.len() as u32 - 4).to_be_bytes();
    // after the signature and the header
    bytes.splice(33..33, length.into_iter().chain(chunk).chain(crc.to_be_bytes()));
    bytes
}

#[cfg(target_os = "linux")]
#[test]
fn decoders_stay_within_the_budget_and_their_memory_goes_back() {
    const MIB: usize = 1 << 10;
    let folder = tempfile::tempdir().unwrap();
    write_weights(&folder.path().join("nano.safetensors"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.env("RAYON_NUM_THREADS", "8");
    let args = ["--model", "vit-nano=nano.safetensors", "--only", "--time", "10min"];
    let served = Served::start(command, folder.path(), &args);
    assert!(served.ask("POST", "/v1/classify", "", &picture()).starts_with("HTTP/1.1 200"));
    let before = served.memory("VmRSS:");
    let at_once = |file: &[u8], count: usize| {
        std::thread::scope(|scope| {
            for _ in 0..count {
                let address = &served.address;
                scope.spawn(move || {
                    let answer = ask(address, "POST", "/v1/classify", "", file);
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                });
            }
        });
    };
    at_once(&bomb(), 16);
    let peak = served.memory("VmHWM:");
    assert!(peak < before + 256 * MIB, "{before} KiB before, {peak} KiB at most");

    let mut large = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(2000, 2000).write_to(&mut large, image::ImageFormat::Png).unwrap();
    at_once(large.get_ref(), 6);
    let peak = served.memory("VmHWM:");
    assert!(peak < before + 512 * MIB, "{before} KiB before, {peak} KiB at most");
    for _ in 0..200 {
        if served.memory("VmRSS:") < before + 64 * MIB {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{before} KiB before, {} KiB after {peak} KiB", served.memory("VmRSS:"));
}

#[test]
fn a_token_from_a_file_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write_weights(&folder.path().join("nano.safetensors"));
    fs::write(folder.path().join("token"), "sesame\n").unwrap();
    let args = ["--model", "vit-nano=nano.safetensors", "--token-file", "token", "--batch", "2", "--wait", "0ms"];
    let served = Served::new(folder.path(), &args);
    assert!(served.ask("GET", "/v2", "", b"").starts_with("HTTP/1.1 401"));
    assert!(served.ask("GET", "/v2", "Authorization: Bearer sesame\r\n", b"").starts_with("HTTP/1.1 200"));
}

#[test]
fn what_cannot_be_served_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    write_weights(&folder.path().join("nano.safetensors"));
    fs::write(folder.path().join("token"), " \n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let nano = "vit-nano=nano.safetensors";
    for (args, culprit) in [
        (vec!["--only"], "no model to serve"),
        (vec!["--runs", "nowhere"], "`nowhere` is not a folder"),
        (vec!["vit-nanno"], "`vit-nano`"),
        (vec!["--model", "vit-nanno=nano.safetensors"], "`vit-nanno`"),
        (vec!["--model", "vit-nano=nowhere.safetensors"], "nowhere.safetensors"),
        (vec!["--model", "deit-tiny=nano.safetensors"], "do not fit"),
        (vec!["--model", nano, "--model", nano], "two models are called `vit-nano`"),
        (vec!["--run", "it=nowhere"], "nowhere"),
        (vec!["--model", nano, "--token-file", "token"], "token: "),
        (vec!["--model", nano, "--token-file", "nowhere"], "nowhere"),
        (vec!["--model", nano, "--wait", "2"], "2ms"),
        (vec!["--model", nano, "--batch", "0"], "at least 1"),
        (vec!["--model", nano, "--time", "0s"], "`time`"),
        (vec!["--model", nano, "--bind", "nowhere"], "nowhere"),
        (vec!["--model", nano, "--port", &port], &port),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
        let output = command.current_dir(folder.path()).arg("serve").args(&args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("error: ") && stderr.contains(culprit), "{args:?}: {stderr}");
    }
}

#[test]
fn questions_are_answered_and_sentences_embedded_by_models_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regard/fixtures/hf_bert_mlm");
    fs::create_dir(at.join("bert")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(file), at.join("bert").join(file)).unwrap();
    }
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "red", "shirt"];
    fs::write(at.join("bert/vocab.txt"), words.join("\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.env("REGARD_CACHE", at.join("cache"));
    let served = Served::start(command, at, &["-m", "bert"]);
    let models = served.ask("GET", "/v1/models", "", b"");
    for expected in [r#""name":"garments-vqa""#, r#""task":"answer""#, r#""name":"bert""#, r#""task":"embed""#] {
        assert!(models.contains(expected), "{expected}: {models}");
    }
    let embedded = served.ask("POST", "/v1/embed", "", br#"{"texts":["the red shirt"]}"#);
    assert!(embedded.starts_with("HTTP/1.1 200") && embedded.contains(r#""dimensions":32"#), "{embedded}");
    let picture = base64(&picture());
    let body = format!(r#"{{"picture":"{picture}","question":"what colour is the bag ?"}}"#);
    let answered = served.ask("POST", "/v1/ask", "", body.as_bytes());
    assert!(answered.starts_with("HTTP/1.1 200") && answered.contains(r#""model":"garments-vqa""#), "{answered}");
    // of a client's picture nothing stays on the disk
    assert_eq!(fs::read_dir(at).unwrap().count(), 1);
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(*bytes.get(at).unwrap_or(&0)));
        let letter = |at: usize| if at <= bytes.len() { LETTERS[(bits >> (18 - 6 * at) & 63) as usize] } else { b'=' };
        [0, 1, 2, 3].map(|at| letter(at) as char)
    };
    bytes.chunks(3).flat_map(group).collect()
}
