//! From bytes to tensors.

pub mod labels;
mod picture;
mod preprocess;
mod resample;

pub use picture::{MOST_PIXELS, Picture, prepare};
pub use preprocess::{Filter, Preprocess};
