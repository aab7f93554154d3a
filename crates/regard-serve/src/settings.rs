//! Settings and events of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::guard::Token;

/// Limits; requests beyond one are refused, naming it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum pictures or sentences per forward pass.
    pub batch: usize,
    /// How long a request waits for others that are coming, to form a batch.
    pub wait: Duration,
    /// Maximum pictures or sentences of a model that are queued or processed; more are refused.
    pub queue: usize,
    /// Time limit from the last byte of a request to its answer.
    pub time: Duration,
    /// Time limit for receiving a head or a body, and for a client that pauses reading its answer.
    pub patience: Duration,
    /// Maximum size of a request in bytes.
    pub body: usize,
    /// Maximum total size of all requests and answers in memory; picture decoders may take as much again.
    pub bodies: usize,
    /// Maximum number of pixels of a picture.
    pub pixels: u64,
    /// Maximum number of open connections; more wait, and idle ones are closed for them.
    pub connections: usize,
    /// Additional host names of this server, besides loopback names and its address.
    pub hosts: Vec<String>,
    /// The token that clients must send.
    pub token: Option<Token>,
    /// Whether clients may reload models.
    pub reload: bool,
    /// The folder of the training runs to show.
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

/// Events of a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It listens at this address.
    Ready(SocketAddr),
    /// A model was reloaded.
    Reloaded { name: String },
    /// A model could not be reloaded; the old one stays.
    Kept { name: String, reason: String },
    /// An internal error; the request was answered with 500.
    Panicked { message: String },
    /// No more connections are accepted; pending requests are still answered.
    Stopping,
}

/// The receiver of events.
pub type Tell = Arc<dyn Fn(Event) + Send + Sync>;
