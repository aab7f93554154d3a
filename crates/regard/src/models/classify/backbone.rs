//! A classifier without its head: the maps that a detector or segmenter reads.

use burn::tensor::Tensor;

use crate::Pass;

/// What one stage of a network gives.
#[derive(Clone, Debug)]
pub struct FeatureMap {
    /// The name under which the stage is recorded, such as `layer2`.
    pub name: String,
    /// Pixels of the image from one position to the next, down and to the right.
    pub stride: usize,
    /// `[B, C, H, W]`
    pub map: Tensor<4>,
}

/// A network that gives maps of an image, from fine to coarse.
pub trait Backbone {
    /// `[B, C, H, W]` to the map of every stage; the classifier reads the last one. Records what `forward` does.
    ///
    /// # Panics
    /// When the images do not fit the model.
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap>;
}
