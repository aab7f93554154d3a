use super::*;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// What was asked of the server.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    path: String,
    range: Option<u64>,
    if_range: Option<String>,
}

/// What it answers; `cut` is how many bytes of the body are sent before the connection is dropped.
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    cut: Option<usize>,
}

impl Reply {
    fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None }
    }

    /// The content, or its end when that was asked for.
    fn content(asked: &Asked, content: &[u8]) -> Self {
        let headers = vec![("ETag", "\"one\"".to_string())];
        match asked.range {
            None => Self { status: 200, headers, body: content.to_vec(), cut: None },
            Some(start) if start as usize >= content.len() => {
                let headers = vec![("Content-Range", format!("bytes */{}", content.len()))];
                Self { status: 416, headers, body: Vec::new(), cut: None }
            }
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
                let headers = [headers, vec![("Content-Range", range)]].concat();
                Self { status: 206, headers, body: content[start as usize..].to_vec(), cut: None }
            }
        }
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }
}

/// A server on this machine that ends with the process.
struct Server {
    root: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { continue };
                let mut request = Asked {
                    path: first.split(' ').nth(1).unwrap_or_default().to_string(),
                    range: None,
                    if_range: None,
                };
                for line in lines.by_ref().take_while(|line| !line.is_empty()) {
                    let (name, value) = line.split_once(": ").unwrap();
                    match name.to_ascii_lowercase().as_str() {
                        "range" => {
                            let start = value.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
                            request.range = Some(start.unwrap().parse().unwrap());
                        }
                        "if-range" => request.if_range = Some(value.to_string()),
                        _ => {}
                    }
                }
                let reply = answer(&request, log.lock().unwrap().len());
                log.lock().unwrap().push(request);
                let status = format!("HTTP/1.1 {} x", reply.status);
                let length = format!("Connection: close\r\nContent-Length: {}", reply.body.len());
                let others = reply.headers.iter().map(|(name, value)| format!("{name}: {value}"));
                let lines: Vec<String> = [status, length].into_iter().chain(others).collect();
                let head = lines.join("\r\n") + "\r\n\r\n";
                let sent = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
                _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
            }
        });
        Self { root, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn starts(&self) -> Vec<Option<u64>> {
        self.asked().iter().map(|asked| asked.range).collect()
    }

    fn fetcher(&self, cache: &Path) -> Fetcher {
        Fetcher { cache: cache.into(), endpoint: self.root.clone(), pause: Duration::ZERO }
    }
}

fn content() -> Vec<u8> {
    (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hash() -> String {
    format!("{:x}", Sha256::digest(content()))
}

fn quiet() -> impl FnMut(Progress) {
    |_| {}
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_fetched_once_with_progress_and_nothing_left_beside_it() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    let address: Address = format!("{}/a/b.bin", server.root).parse().unwrap();
    let mut seen = Vec::new();
    let file = server.fetcher(cache.path()).fetch(&address, &mut |progress| seen.push(progress)).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), content());
    assert_eq!(seen.first(), Some(&Progress { done: 0, total: Some(300_000) }));
    assert_eq!(seen.last(), Some(&Progress { done: 300_000, total: Some(300_000) }));
    assert!(seen.is_sorted_by_key(|progress| progress.done));
    assert_eq!(files(file.parent().unwrap()), ["b.bin"]);

    assert_eq!(server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap(), file);
    assert_eq!(server.asked().len(), 1, "the second time it is in the cache");
}

#[test]
fn a_dropped_connection_is_continued_where_it_ended() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, count| match count {
        0 => Reply::content(asked, &content()).cut(100_000),
        _ => Reply::content(asked, &content()),
    });
    let address = format!("{}/b.bin#sha256={}", server.root, hash()).parse().unwrap();
    let file = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    assert_eq!(server.starts(), [None, Some(100_000)]);
    assert_eq!(server.asked()[1].if_range.as_deref(), Some("\"one\""), "only if the file is still the same");
}

#[test]
fn a_download_given_up_is_continued_by_the_next_process() {
    let cache = tempfile::tempdir().unwrap();
    let address = |server: &Server| Address::HuggingFace {
        owner: "o".into(),
        name: "n".into(),
        file: Some(format!("{}.bin", server.root.len())),
    };
    let server = Server::start(|asked, count| match count {
        0 => Reply::content(asked, &content()).cut(50_000),
        _ => Reply::status(503),
    });
    let error = server.fetcher(cache.path()).fetch(&address(&server), &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("status 503") && error.contains("put the file of"), "{error}");
    let next = Server::start(|asked, _| Reply::content(asked, &content()));
    let file = next.fetcher(cache.path()).fetch(&address(&server), &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    assert_eq!(next.starts(), [Some(50_000)]);
}

#[test]
fn a_server_that_sends_everything_again_starts_the_file_again() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, count| {
        let whole = Reply::content(&Asked { range: None, ..asked.clone() }, &content());
        if count == 0 { whole.cut(70_000) } else { whole }
    });
    let address = format!("{}/b.bin", server.root).parse().unwrap();
    let file = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn a_partial_file_longer_than_the_file_is_thrown_away() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    let address: Address = format!("{}/b.bin", server.root).parse().unwrap();
    let file = cache.path().join(address.cached_as());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(beside(&file, ".partial"), vec![7; 400_000]).unwrap();
    server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    // and one that is whole needs no more bytes
    let address: Address = format!("{}/c.bin", server.root).parse().unwrap();
    let file = cache.path().join(address.cached_as());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(beside(&file, ".partial"), content()).unwrap();
    server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn content_with_another_hash_is_refused_and_not_kept() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    for name in ["b-deadbeef.pth".to_string(), format!("b.bin#sha256={}", "0".repeat(64))] {
        let address: Address = format!("{}/{name}", server.root).parse().unwrap();
        let error = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
        assert!(error.contains(&format!("its SHA-256 is {}", hash())), "{error}");
        assert!(!cache.path().join(address.cached_as()).exists());
    }
    let right = format!("{}/b-{}.pth", server.root, &hash()[..8]).parse().unwrap();
    assert!(server.fetcher(cache.path()).fetch(&right, &mut quiet()).is_ok());
}

/// Hugging Face as it answers: a redirection that names the hash, then the content from elsewhere.
fn hugging_face(hash: String) -> Server {
    Server::start(move |asked, _| match asked.path.as_str() {
        "/owner/name/resolve/main/model.safetensors" => Reply::status(302)
            .with("Location", "/elsewhere?signed=1".into())
            .with("X-Linked-Etag", format!("\"{hash}\"")),
        "/elsewhere?signed=1" => Reply::content(asked, &content()),
        "/old/name/resolve/main/pytorch_model.bin" => Reply::content(asked, b"old weights"),
        _ => Reply::status(404),
    })
}

#[test]
fn a_repository_gives_its_safetensors_checked_by_the_hash_of_its_redirection() {
    let cache = tempfile::tempdir().unwrap();
    let address = "hf:owner/name".parse().unwrap();
    let server = hugging_face("0".repeat(64));
    let error = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("hf:owner/name: its SHA-256 is"), "{error}");
    let server = hugging_face(hash());
    let file = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(file, cache.path().join("hf/owner/name/model.safetensors"));
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn a_repository_without_safetensors_gives_what_it_has_or_says_what_was_tried() {
    let cache = tempfile::tempdir().unwrap();
    let server = hugging_face(hash());
    let file = server.fetcher(cache.path()).fetch(&"hf:old/name".parse().unwrap(), &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), b"old weights");
    let error = server.fetcher(cache.path()).fetch(&"hf:no/thing".parse().unwrap(), &mut quiet()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("model.safetensors nor at") && error.contains("pytorch_model.bin"), "{error}");
    assert!(files(&cache.path().join("hf/no/thing")).iter().all(|name| !name.ends_with(".partial")));
}

#[test]
fn without_a_network_the_error_says_which_file_to_put_where_and_putting_it_there_works() {
    let cache = tempfile::tempdir().unwrap();
    // a port that nobody listens on any more
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let fetcher = Fetcher { cache: cache.path().into(), endpoint: endpoint.clone(), pause: Duration::ZERO };
    let address = "hf:owner/name".parse().unwrap();
    let error = fetcher.fetch(&address, &mut quiet()).unwrap_err().to_string();
    let place = cache.path().join("hf/owner/name/model.safetensors");
    let hint = format!(
        "without a network, put the file of {endpoint}/owner/name/resolve/main/model.safetensors at {}",
        place.display()
    );
    assert!(error.contains(&hint), "{error}");
    std::fs::write(&place, b"by hand").unwrap();
    assert_eq!(fetcher.fetch(&address, &mut quiet()).unwrap(), place);
}

#[test]
fn redirections_end_and_never_lose_their_encryption() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|_, _| Reply::status(302).with("Location", "/again".into()));
    let address = format!("{}/a", server.root).parse().unwrap();
    let error = server.fetcher(cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("more than 10 redirections"), "{error}");
    assert!(redirected("https://a/b", "http://c/d").is_err());
    assert!(redirected("https://a/b", "//c/d").is_err());
    assert_eq!(redirected("https://a/b", "https://c/d").ok().as_deref(), Some("https://c/d"));
    assert_eq!(redirected("https://a/b?c=d/e", "/f").ok().as_deref(), Some("https://a/f"));
}

#[test]
fn a_path_is_itself() {
    assert_eq!(fetch("weights/model.pth", &mut quiet()).unwrap(), PathBuf::from("weights/model.pth"));
}
