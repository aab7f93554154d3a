//! The server as its clients meet it, in one binary.

mod ask;
mod clips;
mod common;
mod detect;
mod embed;
mod robustness;
mod routes;
