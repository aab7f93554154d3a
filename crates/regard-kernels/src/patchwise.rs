//! Patchwise self-attention of SAN: weights from a small network on the whole patch around a pixel.
//!
//! Two kernels, because what lies between them (a norm and a ReLU on `[B, hidden, H, W]`) is small:
//! [`PatchRelate`] goes from features to the hidden layer, [`PatchAggregate`] from the hidden layer through the
//! weights to the output. Neither stores a patch outside its tile.

mod aggregate;
mod relate;
#[cfg(test)]
mod tests;

pub use aggregate::PatchAggregate;
pub use relate::{PatchRelate, Relation};
