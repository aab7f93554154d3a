//! From bytes to tensors.

mod preprocess;

pub use preprocess::{Filter, Preprocess};
