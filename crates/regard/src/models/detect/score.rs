//! Scores of detectors with anchors for differentiation: which pixels support a box?

use burn::module::Module;
use burn::tensor::Tensor;

use crate::Pass;
use crate::boxes::Corners;
use crate::data::{Detection, Images};

/// A detection and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxSource {
    pub detection: Detection,
    pub place: BoxPlace,
}

/// The source of a detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BoxPlace {
    /// The index of an anchor.
    Anchor(usize),
    /// A region, in pixels.
    Region(Corners),
}

/// A detector whose detections can be traced to their source.
pub trait BoxScore: Module {
    /// The detections in the first picture of a batch, best first.
    fn sources(&self, images: &Images, pass: &mut Pass) -> Vec<BoxSource>;

    /// The logit of a detection's class at its source: `[1]`. The source is fixed, even if tensors are perturbed.
    ///
    /// # Panics
    /// When the detection is one of another detector.
    fn score(&self, images: &Images, source: &BoxSource, pass: &mut Pass) -> Tensor<1>;

    /// The names of the maps that boxes are read from, the finest first; each box is read from one of them.
    fn levels(&self) -> Vec<String>;
}
