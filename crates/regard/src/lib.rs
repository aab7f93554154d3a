//! Attention models for vision, and the text, video and vision-language models around them.
//!
//! The folders are the data flow; a stage imports only earlier stages:
//!
//! - [`pass`]: what a forward pass may record; [`function`]: fused row-wise functions; [`device`]: devices by name;
//! - [`attention`]: the operators of the literature, formulas on Burn tensors; [`boxes`]: those of detectors;
//! - [`layers`]: operators with their parameters, ready for a model; [`cost`]: what they cost, from shapes alone;
//! - [`models`]: one paper, one file; [`prepared`]: the same models, packed and fused for inference.
//!
//! Shapes use one legend everywhere:
//! `B` batch · `N` query tokens · `M` key tokens · `D` width · `A` heads · `K` = D/A head width ·
//! `C` channels · `T` frames · `H`×`W` rows×columns · `k` side of a window.
#![forbid(unsafe_code)]

pub mod analyse;
pub mod attention;
pub mod batch_norm;
pub mod boxes;
pub mod convolution;
pub mod convolution3d;
pub mod cost;
pub mod data;
pub mod device;
pub mod download;
pub mod error;
pub mod evaluate;
pub mod file;
pub mod function;
mod fused;
pub mod layers;
pub mod models;
mod nearest;
pub mod pass;
pub mod plan;
pub mod prepared;
pub mod random;
mod recompute;
pub mod report;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod train;
pub mod translate;
pub mod weights;

pub use error::Error;
pub use pass::{Pass, StochasticDepth, Trace};
pub use prepared::{PackedModel, StreamedModel};

/// README's example runs as a doctest; its links are relative to the repository, so it is not the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
