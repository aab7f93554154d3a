//! What a server allows itself and others, and what it tells.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::guard::Token;

/// Limits; whatever is beyond one of them is refused by name.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pictures or sentences of one forward pass.
    pub batch: usize,
    /// How long a request waits for others that are on their way, to be answered together.
    pub wait: Duration,
    /// Pictures or sentences of a model that are on their way or being answered; more are refused.
    pub queue: usize,
    /// From the last byte of a request to its answer.
    pub time: Duration,
    /// From the first byte of a head, or of a body, to its last; and how long a client may pause reading its answer.
    pub patience: Duration,
    /// Bytes of a request.
    pub body: usize,
    /// Bytes of all requests and answers that are held at a time; decoders of pictures may take as many again.
    pub bodies: usize,
    /// Pixels of a picture.
    pub pixels: u64,
    /// Open connections; more wait to be accepted, and idle ones are closed for them.
    pub connections: usize,
    /// Names by which clients reach this server, beside loopback names and its address.
    pub hosts: Vec<String>,
    /// What a client has to show.
    pub token: Option<Token>,
    /// Whether clients may have models loaded again.
    pub reload: bool,
    /// Where the folders of training runs are, to be shown.
    pub runs: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 8,
            wait: Duration::from_millis(2),
            queue: 128,
            time: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            body: 32 << 20,
            bodies: 512 << 20,
            pixels: 1 << 25,
            connections: 512,
            hosts: Vec::new(),
            token: None,
            reload: false,
            runs: None,
        }
    }
}

/// What happens while a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It answers at this address.
    Ready(SocketAddr),
    /// A model was loaded again.
    Reloaded { name: String },
    /// A model could not be loaded again; the old one goes on.
    Kept { name: String, reason: String },
    /// Something of ours failed; the request was answered with 500.
    Panicked { message: String },
    /// No more connections are accepted; what was asked is still answered.
    Stopping,
}

/// Who hears of it.
pub type Tell = Arc<dyn Fn(Event) + Send + Sync>;
