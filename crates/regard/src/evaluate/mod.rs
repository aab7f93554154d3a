//! How good a model is.

mod accuracy;

pub use accuracy::{Accuracy, Answer, answers};
