//! What attention weights mean: how queries and keys are laid out, how far a query looks, whether its weights sum to one.
//!
//! An operator records the geometry together with its weights, so that analyses need to know neither the operator nor
//! the model. The operator knows reach and normalisation. A model or layer declares once how its tokens are laid out
//! ([`Pass::with_tokens`]). An operator over feature maps takes rows and columns from its input.

use burn::tensor::Tensor;
use serde::Serialize;

use super::Pass;

/// The name under which every operator records its weights, below the path of its layer.
pub const WEIGHTS: &str = "weights";

/// The geometry of attention weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    pub queries: Axes,
    pub keys: Axes,
    pub reach: Reach,
    /// Whether the weights of a query sum to one. False for patchwise attention and some non-local affinities.
    pub sums_to_one: bool,
}

/// How the tokens of one side of attention are laid out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axes {
    /// `prefix` tokens without a position (class, distillation), then an image: rows and columns, row by row.
    Grid { prefix: usize, size: [usize; 2] },
    /// `prefix` tokens without a position, then the frames of a clip, each row by row.
    Clip { prefix: usize, frames: usize, size: [usize; 2] },
    /// Tokens without an order, such as object queries.
    Slots(usize),
    /// The words of a sentence, in order.
    Words(usize),
    /// Several of these, one after the other, such as words and image regions.
    Joined(Vec<Axes>),
}

impl Axes {
    /// Number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            Self::Grid { prefix, size: [rows, columns] } => prefix + rows * columns,
            Self::Clip { prefix, frames, size: [rows, columns] } => prefix + frames * rows * columns,
            Self::Slots(count) | Self::Words(count) => *count,
            Self::Joined(parts) => parts.iter().map(Self::tokens).sum(),
        }
    }

    /// Tokens without a position that come first.
    #[must_use]
    pub const fn prefix(&self) -> usize {
        match self {
            Self::Grid { prefix, .. } | Self::Clip { prefix, .. } => *prefix,
            Self::Slots(_) | Self::Words(_) | Self::Joined(_) => 0,
        }
    }

    /// Rows and columns in which the tokens after the prefix are drawn: an image as it is, the frames of a clip below each
    /// other, anything else as a single row.
    #[must_use]
    pub fn sheet(&self) -> [usize; 2] {
        match self {
            Self::Grid { size, .. } => *size,
            Self::Clip { frames, size: [rows, columns], .. } => [frames * rows, *columns],
            Self::Slots(_) | Self::Words(_) | Self::Joined(_) => [1, self.tokens()],
        }
    }
}

/// Which keys a query can look at, and with it the shape of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// All keys: weights `[B, A, N, M]` or `[B, N, M]`.
    Everywhere,
    /// A window around itself: weights `[B, A, k*k, H*W]`. At the border the image is mirrored, or the window is cut off.
    Window { side: usize, mirrored: bool },
    /// The aligned block that it is in: weights `[B * blocks, A, b*b, b*b]`.
    Block { side: usize },
}

impl Geometry {
    /// Every query attends to every key with weights that sum to one.
    #[must_use]
    pub const fn everywhere(queries: Axes, keys: Axes) -> Self {
        Self { queries, keys, reach: Reach::Everywhere, sums_to_one: true }
    }

    /// Every pixel of a map looks at some pixels of the same map.
    #[must_use]
    pub const fn within_map(size: [usize; 2], reach: Reach) -> Self {
        let prefix = 0;
        let (queries, keys) = (Axes::Grid { prefix, size }, Axes::Grid { prefix, size });
        Self { queries, keys, reach, sums_to_one: true }
    }
}

impl Pass {
    /// Whether the attention weights are recorded at this point of the model.
    #[must_use]
    pub fn wants_weights(&self) -> bool {
        self.attention || self.records(WEIGHTS)
    }

    /// Runs a part of the model whose tokens are laid out like this.
    pub fn with_tokens<T>(&mut self, axes: Axes, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.axes.replace([axes.clone(), axes]);
        let result = run(self);
        self.axes = before;
        result
    }

    /// Runs a part of the model whose keys are laid out like this: cross-attention.
    pub fn with_keys<T>(&mut self, keys: Axes, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.axes.clone();
        let queries = before.as_ref().map_or(Axes::Slots(0), |[queries, _]| queries.clone());
        self.axes = Some([queries, keys]);
        let result = run(self);
        self.axes = before;
        result
    }

    /// The geometry of attention from `queries` to `keys` tokens, in the layout that the model declared; tokens without a
    /// declared layout are [`Axes::Slots`].
    #[must_use]
    pub fn geometry(&self, queries: usize, keys: usize) -> Geometry {
        let described = |side: usize, tokens: usize| {
            let axes = self.axes.as_ref().map(|axes| axes[side].clone());
            axes.filter(|axes| axes.tokens() == tokens).unwrap_or(Axes::Slots(tokens))
        };
        Geometry::everywhere(described(0, queries), described(1, keys))
    }

    /// Records attention weights with their geometry; costs nothing if the pass does not record them.
    pub fn record_weights<const D: usize>(&mut self, weights: &Tensor<D>, geometry: impl FnOnce(&Self) -> Geometry) {
        if self.wants_weights() {
            let name = self.full_name(WEIGHTS);
            self.trace.geometries.push((name.clone(), geometry(self)));
            self.trace.entries.push((name, weights.clone().into_dispatch()));
        }
    }

    /// Records attention weights and returns what the model continues with, as [`watch`](Self::watch) does.
    #[must_use]
    pub fn watch_weights<const D: usize>(
        &mut self,
        weights: Tensor<D>,
        geometry: impl FnOnce(&Self) -> Geometry,
    ) -> Tensor<D> {
        if !self.wants_weights() {
            return weights;
        }
        let name = self.full_name(WEIGHTS);
        self.trace.geometries.push((name.clone(), geometry(self)));
        self.watch_as(name, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    const GRID: Axes = Axes::Grid { prefix: 1, size: [2, 3] };

    fn weights() -> Tensor<2> {
        Tensor::ones([7, 7], &device::cpu())
    }

    #[test]
    fn weights_are_recorded_with_the_layout_that_the_model_declared() {
        let mut pass = Pass::recording();
        pass.with_tokens(GRID, |pass| {
            pass.within("attn", |pass| pass.record_weights(&weights(), |pass| pass.geometry(7, 7)));
            pass.with_keys(Axes::Words(4), |pass| {
                pass.within("cross", |pass| pass.record_weights(&weights(), |pass| pass.geometry(7, 4)));
            });
        });
        pass.within("after", |pass| pass.record_weights(&weights(), |pass| pass.geometry(7, 7)));
        let trace = pass.into_trace();
        assert_eq!(trace.geometry("attn.weights"), Some(&Geometry::everywhere(GRID, GRID)));
        assert_eq!(trace.geometry("cross.weights"), Some(&Geometry::everywhere(GRID, Axes::Words(4))));
        assert_eq!(trace.geometry("after.weights"), Some(&Geometry::everywhere(Axes::Slots(7), Axes::Slots(7))));
        assert_eq!(trace.geometry("logits"), None);
    }

    #[test]
    fn a_layout_of_another_number_of_tokens_is_not_used() {
        let mut pass = Pass::recording();
        let found = pass.with_tokens(GRID, |pass| pass.geometry(5, 7));
        assert_eq!(found, Geometry::everywhere(Axes::Slots(5), GRID));
    }

    #[test]
    fn a_silent_pass_makes_no_geometry() {
        let mut pass = Pass::silent();
        pass.record_weights(&weights(), |_| unreachable!("nothing is recorded"));
        let _ = pass.watch_weights(weights(), |_| unreachable!("nothing is recorded"));
        assert_eq!(pass.into_trace().names().count(), 0);
    }

    #[test]
    fn a_pass_that_records_attention_records_nothing_else() {
        let mut pass = Pass::recording_attention(["blocks.*"]);
        pass.record("blocks.0", &weights());
        pass.record("norm", &weights());
        pass.within("any.path", |pass| pass.record_weights(&weights(), |pass| pass.geometry(7, 7)));
        assert_eq!(pass.into_trace().names().collect::<Vec<_>>(), ["blocks.0", "any.path.weights"]);
    }

    #[test]
    fn tokens_are_counted_over_all_parts() {
        let clip = Axes::Clip { prefix: 1, frames: 2, size: [3, 4] };
        let joined = Axes::Joined(vec![Axes::Words(5), clip.clone()]);
        assert_eq!((clip.tokens(), clip.prefix(), clip.sheet()), (25, 1, [6, 4]));
        assert_eq!((joined.tokens(), joined.prefix(), joined.sheet()), (30, 0, [1, 30]));
        assert_eq!((GRID.tokens(), Axes::Slots(9).tokens()), (7, 9));
    }
}
