//! Answers of detectors with anchors as numbers that can be differentiated: what in the picture speaks for this box?

use burn::module::Module;
use burn::tensor::Tensor;

use crate::Pass;
use crate::boxes::Corners;
use crate::data::{Detection, Images};

/// An answer, and what gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxSource {
    pub detection: Detection,
    pub place: BoxPlace,
}

/// What an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BoxPlace {
    /// The number of an anchor.
    Anchor(usize),
    /// A region, in pixels.
    Region(Corners),
}

/// A detector whose answers can be traced back.
pub trait BoxScore: Module {
    /// The answers to the first picture of a batch, the best first.
    fn sources(&self, images: &Images, pass: &mut Pass) -> Vec<BoxSource>;

    /// The logit of an answer's class at its place: `[1]`. The place stays as it is, whatever is perturbed on the way.
    ///
    /// # Panics
    /// When the answer is one of another detector.
    fn score(&self, images: &Images, source: &BoxSource, pass: &mut Pass) -> Tensor<1>;

    /// The names of the maps that boxes are read from, the finest first; each box is read from one of them.
    fn levels(&self) -> Vec<String>;
}
