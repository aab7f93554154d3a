//! Every kernel by its definition, in plain loops and f64. Slow on purpose; only tests call it.

mod channels;
mod check;
mod detection;
mod dot;
mod linear;
mod pools;
mod rows;
mod windows;

pub use channels::{batch_moments, batch_norm};
pub use check::{assert_close, assert_differences, assert_same_on_threads, noise, wide};
pub use detection::{detr_cost, focal, giou, iou, nms, roi_align};
pub use dot::{Masks, attention};
pub use linear::{convolution, convolution3d, linear};
pub use pools::{average_pool3d, max_pool3d};
pub use rows::{bias_gelu, gelu, layer_norm, log_softmax, log_softmax_backward, softmax, softmax_backward};

pub use windows::{local, pairwise, patch_aggregate, patch_relate};
