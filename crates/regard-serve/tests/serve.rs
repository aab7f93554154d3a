//! The server as its clients meet it, in one binary.

mod common;
mod robustness;
mod routes;
