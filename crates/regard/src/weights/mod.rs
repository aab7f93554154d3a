//! Weights in and out: tensors by name, whatever file they come from.

mod names;

pub use names::{Tensors, fill, shapes, tensors};
