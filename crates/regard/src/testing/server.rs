//! A web server, for tests of downloads.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A request to the server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRequest {
    pub path: String,
    pub range: Option<u64>,
    pub if_range: Option<String>,
}

/// A response; `cut` is the number of bytes of the body that are sent before the connection is dropped.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub cut: Option<usize>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None }
    }

    /// The content, or its end for a range request.
    pub fn content(asked: &ServerRequest, content: &[u8]) -> Self {
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

    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }
}

/// A server on this machine that ends with the process.
pub struct Server {
    pub root: String,
    asked: Arc<Mutex<Vec<ServerRequest>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&ServerRequest, usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { continue };
                let mut request = ServerRequest {
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

    pub fn asked(&self) -> Vec<ServerRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub fn starts(&self) -> Vec<Option<u64>> {
        self.asked().iter().map(|asked| asked.range).collect()
    }
}
