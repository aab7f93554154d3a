//! `regard serve` as a user meets it: what it says, what it refuses, and how it ends.
#![cfg(unix)]

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
        let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
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

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status().unwrap().success());
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
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
    assert_eq!(served.hear(), "loaded again: vit-nano");
    let second = classify(&served);
    assert_ne!(body(&second), body(&first));

    fs::write(&file, "broken").unwrap();
    served.signal("HUP");
    let line = served.hear();
    assert!(line.starts_with("error: vit-nano stays as it was: ") && line.contains("nano.safetensors"), "{line}");
    assert_eq!(body(&classify(&served)), body(&second));

    served.signal("TERM");
    assert_eq!(served.hear(), "stopping: what was asked is still answered");
    assert_eq!(served.process.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    served.process.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
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
        (vec!["--runs", "nowhere"], "`nowhere` is no folder"),
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
