//! Token embeddings, scaled, with position encodings added.
//! Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 3.5.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::attention::position;
use crate::function;

/// The kinds of position encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionKind {
    /// Alternating sine and cosine, as in the paper.
    #[default]
    Sinusoidal,
    /// All sines, then all cosines, with positions counted from two, as in fairseq.
    Fairseq,
    /// A learned table for so many positions.
    Learned { places: usize },
}

/// A vector for every token of a vocabulary.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[V, D]`
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    /// Normal with deviation `1/sqrt(D)`, so that scaled embeddings have unit variance.
    pub fn new(tokens: usize, dim: usize, device: &Device) -> Self {
        let start = Initializer::Normal { mean: 0.0, std: (dim as f64).powf(-0.5) };
        Self { weight: start.init([tokens, dim], device) }
    }

    /// Normal with deviation 0.02, as in BERT.
    pub fn normal(tokens: usize, dim: usize, device: &Device) -> Self {
        Self { weight: Initializer::Normal { mean: 0.0, std: 0.02 }.init([tokens, dim], device) }
    }

    /// `[B, N] -> [B, N, D]`
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let dim = self.weight.lazy_shape().dims::<2>()[1];
        self.weight.val().select(0, tokens.reshape([batch * length])).reshape([batch, length, dim])
    }

    /// Logits with tied weights, the embeddings as output projection: `[.., D] -> [.., V]`.
    pub fn logits<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        function::linear(x, self.weight.val(), None)
    }
}

/// The tokens at some positions only, `[B, N, D] -> [P, D]`. Positions count through all texts, padding included.
///
/// # Panics
/// When there is no such position.
pub(crate) fn rows_at(x: Tensor<3>, positions: &[usize]) -> Tensor<2> {
    let [batch, length, dim] = x.dims();
    assert!(positions.iter().all(|at| *at < batch * length), "tokens: a position beyond {batch} x {length}");
    let indices: Vec<i64> = positions.iter().map(|at| *at as i64).collect();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [positions.len()]), &x.device());
    x.reshape([batch * length, dim]).select(0, indices)
}

/// Scales embeddings and adds position encodings.
#[derive(Module, Debug)]
pub struct PositionEncoding {
    /// `[places, D]` if learned.
    pub weight: Option<Param<Tensor<2>>>,
    #[module(skip)]
    kind: PositionKind,
}

impl PositionEncoding {
    pub fn new(kind: PositionKind, dim: usize, device: &Device) -> Self {
        let start = Initializer::Normal { mean: 0.0, std: (dim as f64).powf(-0.5) };
        let weight = match kind {
            PositionKind::Learned { places } => Some(start.init([places, dim], device)),
            PositionKind::Sinusoidal | PositionKind::Fairseq => None,
        };
        Self { weight, kind }
    }

    /// The largest number of positions, if there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.weight.as_ref().map(|weight| weight.lazy_shape().dims::<2>()[0])
    }

    /// Scales `[B, N, D]` by `sqrt(D)` and adds the encodings of positions from `first` on.
    ///
    /// # Panics
    /// When there are more positions than the learned table has.
    pub fn forward(&self, x: Tensor<3>, first: usize) -> Tensor<3> {
        let [_, length, dim] = x.dims();
        let device = x.device();
        let places = match (self.kind, &self.weight) {
            (PositionKind::Learned { .. }, Some(weight)) => {
                let there = weight.lazy_shape().dims::<2>()[0];
                assert!(first + length <= there, "positions: {} places, {there} are learned", first + length);
                weight.val().narrow(0, first, length)
            }
            (PositionKind::Fairseq, _) => position::sines_then_cosines(first + 2, length, dim, &device),
            _ => position::sinusoidal_from(first, length, dim, &device),
        };
        x.mul_scalar((dim as f64).sqrt()) + places.unsqueeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_close, random, values};

    fn ids(rows: &[&[i64]]) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), rows[0].len()]), &cpu())
    }

    #[test]
    fn every_token_has_its_row_and_equal_tokens_have_equal_ones() {
        let table = Embedding::new(5, 4, &cpu());
        let out = table.forward(ids(&[&[3, 1], &[1, 4]]));
        let weight = table.weight.val();
        assert_close(&out.clone().slice([0..1, 0..1]).reshape([1, 4]), &weight.narrow(0, 3, 1), 0.0);
        assert_close(&out.clone().slice([0..1, 1..2]), &out.slice([1..2, 0..1]), 0.0);
    }

    #[test]
    fn places_are_added_to_scaled_vectors_and_go_on_from_any_one() {
        for kind in [PositionKind::Sinusoidal, PositionKind::Fairseq, PositionKind::Learned { places: 9 }] {
            let (positions, x) = (PositionEncoding::new(kind, 6, &cpu()), random([2, 5, 6], 1));
            let all = positions.forward(x.clone(), 0);
            let later = positions.forward(x.clone().narrow(1, 3, 2), 3);
            assert_close(&all.clone().narrow(1, 3, 2), &later, 0.0);
            // what was added is the same for both sentences
            let added = all - x.mul_scalar(6f64.sqrt());
            assert_close(&added.clone().narrow(0, 0, 1), &added.narrow(0, 1, 1), 1e-6);
        }
    }

    #[test]
    fn the_first_place_of_fairseq_is_its_third() {
        let out = values(
            &PositionEncoding::new(PositionKind::Fairseq, 4, &cpu()).forward(Tensor::zeros([1, 1, 4], &cpu()), 0),
        );
        // frequencies 1 and 1/10000
        let expected = [2f64.sin(), 2e-4f64.sin(), 2f64.cos(), 2e-4f64.cos()];
        assert!(out.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{out:?}");
    }

    #[test]
    #[should_panic(expected = "positions: 10 places, 9 are learned")]
    fn more_places_than_were_learned_are_refused() {
        PositionEncoding::new(PositionKind::Learned { places: 9 }, 4, &cpu())
            .forward(Tensor::zeros([1, 2, 4], &cpu()), 8);
    }
}
