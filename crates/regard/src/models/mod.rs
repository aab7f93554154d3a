//! The models: one paper, one file.

pub mod deit;
pub mod deit3;
pub mod vit;

use crate::data::Preprocess;

/// A named configuration of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset<C> {
    /// What users call it.
    pub name: &'static str,
    /// Where it comes from, such as `arXiv:2010.11929`.
    pub paper: &'static str,
    /// What it expects of a picture.
    pub preprocess: Preprocess,
    /// Its configuration.
    pub config: fn() -> C,
}
