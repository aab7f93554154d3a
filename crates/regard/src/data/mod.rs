//! From bytes to tensors.

pub mod labels;
mod preprocess;

pub use preprocess::{Filter, Preprocess};
