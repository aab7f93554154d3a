//! Models of vision and language: texts and regions of pictures in, answers of several heads out.
//!
//! | | words and regions | position of a region |
//! |---|---|---|
//! | [`visual_bert`] | one stream | unknown |
//! | [`uniter`] | one stream | box, sides and area |
//! | [`vilbert`] | two streams with co-attention | box and area |
//! | [`lxmert`] | two streams, then cross-attention | box |
//! | [`video_bert`] | one stream of words and video tokens | time, by its order |

mod answer;
mod input;
mod joint;
pub mod losses;
pub mod lxmert;
mod model;
mod output;
mod presets;
pub mod uniter;
pub mod video_bert;
pub mod vilbert;
pub mod visual_bert;

pub use crate::data::Words;
pub use answer::AnswerHead;
pub use input::{Regions, VisionLanguageInput, Wanted};
pub use model::{VisionLanguageConfig, VisionLanguageModel};
pub use output::VisionLanguageOutput;
pub use presets::{PRESETS, VisionLanguagePreset, preset};

#[cfg(test)]
mod tests;
