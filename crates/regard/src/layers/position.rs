//! Learned positions: a vector for every token, added to it.
//! Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1.
//!
//! Difference from timm: the start is a normal distribution of std 0.02 without the cut at ±2, which is a hundred
//! standard deviations away.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::attention::position::resample;

/// How many positions, and how wide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedPositionConfig {
    /// Tokens, prefix included.
    pub tokens: usize,
    /// `D`
    pub width: usize,
}

/// The table; made by [`LearnedPositionConfig::init`].
#[derive(Module, Debug)]
pub struct LearnedPosition {
    /// `[1, N, D]`
    pub table: Param<Tensor<3>>,
}

impl LearnedPositionConfig {
    /// The table with a fresh start.
    ///
    /// # Errors
    /// When a field is zero; the error names it.
    pub fn init(&self, device: &Device) -> Result<LearnedPosition, Error> {
        for (field, size) in [("tokens", self.tokens), ("width", self.width)] {
            if size == 0 {
                return Err(Error::config(field, "must be at least 1, got 0"));
            }
        }
        let start = Initializer::Normal { mean: 0.0, std: 0.02 };
        Ok(LearnedPosition { table: start.init([1, self.tokens, self.width], device) })
    }
}

impl LearnedPosition {
    /// `[B, N, D] -> [B, N, D]`
    ///
    /// # Panics
    /// When the tokens or their width are not those of the table.
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let table = self.table.val();
        Self::check(&tokens, &table);
        tokens + table
    }

    /// The same for tokens on another grid than the table's: `from` and `to` are `[H, W]`, `prefix` the tokens before the grid.
    ///
    /// # Panics
    /// When the table is not `prefix` and `from`, or the tokens are not `prefix` and `to`.
    pub fn forward_resampled(&self, tokens: Tensor<3>, from: [usize; 2], to: [usize; 2], prefix: usize) -> Tensor<3> {
        let table = resample(self.table.val(), from, to, prefix);
        Self::check(&tokens, &table);
        tokens + table
    }

    fn check(tokens: &Tensor<3>, table: &Tensor<3>) {
        for (axis, name) in [(1, "tokens"), (2, "width")] {
            let (input, own) = (tokens.dims()[axis], table.dims()[axis]);
            assert!(input == own, "learned position: input has {name} {input}, table has {name} {own}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_close, assert_gradients_are_differences, random, values};
    use burn::module::ParamId;

    fn position(table: Tensor<3>) -> LearnedPosition {
        LearnedPosition { table: Param::initialized(ParamId::new(), table) }
    }

    #[test]
    fn every_token_gets_the_vector_of_its_place() {
        let (tokens, table) = (random([2, 5, 3], 1), random([1, 5, 3], 2));
        let out = values(&position(table.clone()).forward(tokens.clone()));
        let (tokens, table) = (values(&tokens), values(&table));
        for (index, out) in out.iter().enumerate() {
            assert_eq!(*out, tokens[index] + table[index % 15]);
        }
    }

    #[test]
    fn a_fresh_table_has_a_small_spread() {
        let config = LearnedPositionConfig { tokens: 64, width: 64 };
        let table = values(&config.init(&cpu()).unwrap().table.val());
        let spread = (table.iter().map(|x| x * x).sum::<f32>() / table.len() as f32).sqrt();
        assert!((0.018..0.022).contains(&spread), "{spread}");
    }

    #[test]
    fn a_table_of_another_grid_is_resampled() {
        let table = random([1, 7, 2], 1);
        let tokens = random([2, 13, 2], 2);
        let out = position(table.clone()).forward_resampled(tokens.clone(), [2, 3], [4, 3], 1);
        assert_close(&out, &(tokens + resample(table, [2, 3], [4, 3], 1)), 0.0);
    }

    #[test]
    fn gradients_are_finite_differences() {
        let named = [("tokens", values(&random::<3>([2, 5, 2], 1))), ("table", values(&random::<3>([1, 7, 2], 2)))];
        assert_gradients_are_differences(&named, |t| {
            let table = position(t[1].clone().reshape([1, 7, 2]));
            table.forward_resampled(t[0].clone().reshape([2, 5, 2]), [2, 3], [1, 4], 1)
        });
    }

    #[test]
    fn a_table_of_nothing_names_its_field() {
        let error = LearnedPositionConfig { tokens: 0, width: 4 }.init(&cpu()).unwrap_err();
        assert_eq!(error.to_string(), "`tokens`: must be at least 1, got 0");
    }

    #[test]
    #[should_panic(expected = "learned position: input has tokens 4, table has tokens 5")]
    fn another_number_of_tokens_is_refused_by_name() {
        position(random([1, 5, 3], 1)).forward(random([2, 4, 3], 1));
    }
}
