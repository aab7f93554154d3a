//! Attention models for vision, and the text, video and vision-language models around them.
//!
//! The folders are the data flow; a stage imports only earlier stages:
//!
//! 1. [`pass`]: what a forward pass may record, and how operators reach the CPU kernels;
//! 2. [`attention`]: the operators of the literature, formulas on Burn tensors;
//! 3. [`layers`]: operators with their parameters, ready for a model.
//!
//! Shapes use one legend everywhere:
//! `B` batch · `N` query tokens · `M` key tokens · `D` width · `A` heads · `K` = D/A head width ·
//! `C` channels · `T` frames · `H`×`W` rows×columns · `k` side of a window.
#![forbid(unsafe_code)]

pub mod attention;
pub mod device;
pub mod error;
mod fused;
pub mod layers;
pub mod pass;
#[cfg(test)]
mod testing;

pub use error::Error;
pub use pass::{Pass, Trace};
