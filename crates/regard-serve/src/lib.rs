//! Models over HTTP: the Open Inference Protocol, pictures and sentences as they are, and the page.
//!
//! A request goes through these, in this order:
//!
//! - `connections`: accepts, bounds the number and the patience, stops gracefully;
//! - `guard`: who may ask; counts; a panic of a handler becomes an answer;
//! - `routes`: the table of what can be asked, one file for each kind of question;
//! - `body`: bytes in, within limits of size, time and memory;
//! - `lane`: a bounded queue for each model and the thread that answers it in batches;
//! - `service`: what is served: classifiers of pictures and translators, each of which can be swapped while it is asked.
//!
//! Only this crate knows HTTP. It never prints: what happens is told as an [`Event`].
#![forbid(unsafe_code)]

mod app;
mod body;
mod connections;
mod guard;
mod lane;
mod look;
mod meters;
mod refusal;
mod routes;
mod service;
mod settings;
pub mod tensors;

pub use app::{Entry, Error, Server};
pub use connections::run;
pub use guard::Token;
pub use service::{Classifier, Reload, Service};
pub use settings::{Event, Settings, Tell};
