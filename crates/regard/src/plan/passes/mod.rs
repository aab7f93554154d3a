//! Rewrites of a graph. Each leaves its numbers as they are, up to rounding.

mod chunks;
mod constants;
mod dead;
mod norms;
mod residuals;
#[cfg(test)]
mod tests;
mod views;

use super::graph::Graph;

/// A rewrite.
pub(super) type Rewrite = fn(&mut Graph);

/// All of them, in their order.
pub(super) const ALL: &[Rewrite] =
    &[constants::fold, views::find, norms::fold, residuals::fold, dead::remove, chunks::pack, dead::remove];
