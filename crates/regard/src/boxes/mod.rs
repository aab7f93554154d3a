//! Operations on boxes for detectors: formulas without parameters.
//!
//! Boxes are left, top, right and bottom in pixels unless a name says otherwise. Differentiable operations take tensors;
//! selections (matching, sampling, suppression) take slices and have no gradient.

mod anchors;
mod coder;
mod loss;
mod matcher;
mod roi_align;
mod sampler;

pub use anchors::{AnchorRule, Anchors};
pub use coder::{BoxCoder, clip, has_sides};
pub use loss::{binary_cross_entropy, giou, sigmoid_focal, smooth_l1};
pub use matcher::{Match, Matcher};
pub use regard_kernels::boxes::pairwise_iou;
pub use regard_kernels::focal::FocalTarget;
pub use regard_kernels::nms::{nms, nms_by_class};
pub use regard_kernels::roi_align::{RoiAlign, SamplingPoints};
pub use roi_align::{Level, LevelRule, roi_align, roi_align_levels};
pub use sampler::{Balance, DrawId, RandomSampler, Sampler};

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Left, top, right and bottom in pixels.
pub type Corners = [f32; 4];

/// `[N, 4]`
#[must_use]
pub fn to_tensor(boxes: &[Corners], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(boxes.as_flattened().to_vec(), [boxes.len(), 4]), device)
}

/// The rows with these indices, `[N, ..] -> [len, ..]`.
#[must_use]
pub fn rows<const D: usize>(tensor: Tensor<D>, numbers: &[usize]) -> Tensor<D> {
    let numbers: Vec<i64> = numbers.iter().map(|number| *number as i64).collect();
    let count = numbers.len();
    let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, [count]), &tensor.device());
    tensor.select(0, numbers)
}

#[cfg(test)]
mod tests;
