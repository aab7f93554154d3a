//! The server as its clients meet it, in one binary.

mod clips;
mod common;
mod detect;
mod robustness;
mod routes;
