//! Models of video: clips in, logits out.

pub mod i3d;
pub mod resnet3d;
pub mod timesformer;

use crate::data::Preprocess;

/// A named configuration of a model of video.
#[derive(Clone, Copy, Debug)]
pub struct ClipPreset<C> {
    /// What users call it.
    pub name: &'static str,
    /// Its source, such as `arXiv:2102.05095`.
    pub paper: &'static str,
    /// How each frame is prepared.
    pub preprocess: Preprocess,
    pub config: fn() -> C,
}
