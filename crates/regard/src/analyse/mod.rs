//! What can be found out about models.

pub mod papers;
mod received;

pub use received::{Reach, Received, received};
