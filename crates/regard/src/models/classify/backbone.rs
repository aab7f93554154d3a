//! A classifier without its head: the maps that a detector or segmenter reads.

use burn::tensor::Tensor;

use crate::Pass;
use crate::cost::Ledger;
use crate::layers::Linear;

/// The feature map of one stage of a network.
#[derive(Clone, Debug)]
pub struct FeatureMap {
    /// The name under which the stage is recorded, such as `layer2`.
    pub name: String,
    /// Pixels of the image from one position to the next, down and to the right.
    pub stride: usize,
    /// `[B, C, H, W]`
    pub map: Tensor<4>,
}

/// A network with several feature maps of an image, from fine to coarse.
pub trait Backbone {
    /// `[B, C, H, W]` to the map of every stage; the classifier reads the last one. Records what `forward` does.
    ///
    /// # Panics
    /// When the images do not fit the model.
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap>;
}

/// A backbone of several stages, each coarser than the one before, which can be the trunk of a detector.
pub trait StagedBackbone: Backbone {
    /// Adds the costs up to the last stage for a picture `[C, H, W]`; returns the shape of every stage's map.
    fn stage_costs(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>>;

    /// The same; returns the shape of the last map.
    fn last_cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        self.stage_costs(shape, ledger).pop().expect("a network has a stage")
    }
}

/// The head of a classifier.
///
/// # Panics
/// When there is none: a trunk gives maps, not logits.
pub(super) fn head(head: Option<&Linear>) -> &Linear {
    head.expect("a trunk has no head: ask it for its features")
}
