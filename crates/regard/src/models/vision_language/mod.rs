//! Models of vision and language: texts and regions of pictures in, answers of several heads out.

mod input;
mod output;

pub use input::{Regions, VisionLanguageInput, Wanted, Words};
pub use output::{Transport, VisionLanguageOutput};
