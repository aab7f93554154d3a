//! The output of a model of vision and language, the same for all families.

use burn::tensor::Tensor;

use crate::attention::Transport;

/// Hidden states, and the outputs of the heads that were wanted and that the model has.
#[derive(Clone, Debug)]
pub struct VisionLanguageOutput {
    /// Of the words, `[B, N, D]`.
    pub text: Tensor<3>,
    /// Of the regions, `[B, R, D]`; none for texts alone.
    pub regions: Option<Tensor<3>>,
    /// Of the whole, `[B, D]`.
    pub pooled: Tensor<2>,
    /// Logits of the wanted words, `[P, V]`.
    pub words: Option<Tensor<2>>,
    /// Features of the wanted regions, `[P, F]`.
    pub region_features: Option<Tensor<2>>,
    /// Logits of the classes of the wanted regions, `[P, C]`.
    pub region_classes: Option<Tensor<2>>,
    /// Logits of the attributes of the wanted regions, `[P, C]`.
    pub region_attributes: Option<Tensor<2>>,
    /// Logits of whether text and picture belong together, `[B, 2]`; which of the two says so is a family's convention.
    pub matching: Option<Tensor<2>>,
    /// Which words are about which regions.
    pub alignment: Option<Transport>,
    /// Logits of answers, `[B, answers]`, or of false and true, `[B, 2]`.
    pub answer: Option<Tensor<2>>,
}

impl VisionLanguageOutput {
    /// Hidden states alone.
    pub(super) const fn of(text: Tensor<3>, regions: Option<Tensor<3>>, pooled: Tensor<2>) -> Self {
        Self {
            text,
            regions,
            pooled,
            words: None,
            region_features: None,
            region_classes: None,
            region_attributes: None,
            matching: None,
            alignment: None,
            answer: None,
        }
    }
}
