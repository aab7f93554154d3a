//! Parts with parameters that models share.

mod non_local;

pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
