//! Parts with parameters that models share.

mod non_local;
mod position;

pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
pub use position::{LearnedPosition, LearnedPositionConfig};
