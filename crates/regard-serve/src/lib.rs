//! Models over HTTP: the Open Inference Protocol, pictures and sentences as they are, and the page.
//!
//! A request goes through these, in this order:
//!
//! - `connections`, `stream`: accept, bound the number of connections and how slow they may be, stop gracefully;
//! - `guard`, `hosts`: who may ask; a panic of a handler becomes an answer;
//! - `routes`: the table of routes, one file for each kind of request;
//! - `body`, `budget`: bytes in and out, within limits of size, time and memory;
//! - `lane`: a bounded queue for each model and the thread that answers it in batches;
//! - `slot`: a model that can be swapped while it is asked; `classifier`, `detector`, `video` and `translator` are the kinds
//!   there are.
//!
//! Only this crate knows HTTP. It never prints: an [`Event`] says what happens.
#![forbid(unsafe_code)]

mod app;
mod body;
mod box_attention;
mod budget;
mod classifier;
mod connections;
mod detector;
mod error;
mod explain;
mod guard;
mod head;
mod hosts;
mod lane;
mod metrics;
mod pixels;
mod routes;
mod settings;
mod slot;
mod stream;
pub mod tensors;
mod translator;
mod video;

pub use app::{Entry, Error, Server};
pub use classifier::Classifier;
pub use connections::run;
pub use detector::Detector;
pub use guard::Token;
pub use settings::{Event, Settings, Tell};
pub use slot::{Reload, Service};
pub use video::VideoClassifier;
