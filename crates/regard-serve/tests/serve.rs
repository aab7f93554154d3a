//! The server as its clients meet it, in one binary.

mod common;
mod detect;
mod robustness;
mod routes;
