//! Models over HTTP: the Open Inference Protocol, plain pictures and sentences, and the page.
//!
//! A request passes through these modules, in order:
//!
//! - `connections`, `stream`: accept, limit the number and slowness of connections, stop gracefully;
//! - `guard`, `hosts`: token and allowed hosts; a panic of a handler becomes an error response;
//! - `routes`: the table of routes, one file per kind of request;
//! - `body`, `budget`: bytes in and out, within limits of size, time and memory;
//! - `lane`: a bounded queue per model and the thread that processes it in batches;
//! - `slot`: a model that can be replaced while serving; `classifier`, `detector`, `video`, `translator`, `answerer` and
//!   `embedder` are the kinds of models.
//!
//! Only this crate knows HTTP. It never prints: it reports [`Event`]s.
#![forbid(unsafe_code)]

mod answerer;
mod app;
mod body;
mod box_attention;
mod budget;
mod classifier;
mod connections;
mod detector;
mod embedder;
mod error;
mod explain;
mod guard;
mod head;
mod hosts;
mod lane;
mod metrics;
mod passes;
mod pixels;
mod routes;
mod settings;
mod slot;
mod stream;
pub mod tensors;
mod translator;
mod video;

pub use answerer::Answerer;
pub use app::{Entry, Error, Server};
pub use classifier::Classifier;
pub use connections::run;
pub use detector::Detector;
pub use embedder::Embedder;
pub use guard::Token;
pub use settings::{Event, Settings, Tell};
pub use slot::{Reload, Service};
pub use video::VideoClassifier;
