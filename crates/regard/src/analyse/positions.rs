//! Position embeddings: how alike are the places of a picture to a transformer that has learned them?
//! Dosovitskiy et al. 2020, arXiv:2010.11929, figure 7 (middle).

use burn::module::Param;
use burn::tensor::Tensor;
use serde::Serialize;

use super::check::{Check, largest};
use crate::Error;
use crate::models::{Model, ModelConfig};

/// The cosine of every place's embedding with every other's; those of tokens before places are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionSimilarity {
    /// Rows and columns of places.
    pub grid: [usize; 2],
    /// `[place][place]`, places row by row.
    pub values: Vec<Vec<f32>>,
}

/// # Errors
/// When the model learns no positions, or one of them is zero.
pub fn positions(model: &Model, config: &ModelConfig) -> Result<PositionSimilarity, Error> {
    let table = match model {
        Model::Vit(vit) => &vit.pos_embed,
        Model::Deit(deit) => &deit.pos_embed,
        Model::Deit3(deit) => &deit.pos_embed,
        Model::Resnet(_) | Model::Regnet(_) | Model::NonLocalResnet(_) | Model::San(_) | Model::Sasa(_) => {
            return Err(Error::analysis("positions", "the model learns no embedding of absolute positions"));
        }
    };
    let grid = config.grid().expect("models with a table have a grid");
    similarity(table, grid)
}

/// `[1, prefix + N, D]`
fn similarity(table: &Param<Tensor<3>>, grid: [usize; 2]) -> Result<PositionSimilarity, Error> {
    let table = table.val();
    let ([_, tokens, width], places) = (table.dims(), grid[0] * grid[1]);
    let rows: Vec<f32> = table.into_data().iter::<f32>().collect();
    let rows: Vec<&[f32]> = rows.chunks_exact(width).skip(tokens - places).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths: Vec<f64> = rows.iter().map(|row| dot(row, row).sqrt()).collect();
    if let Some(zero) = lengths.iter().position(|length| !length.is_finite() || *length == 0.0) {
        return Err(Error::analysis("positions", format!("the embedding of place {zero} is {}", lengths[zero])));
    }
    let cosine = |a: usize, b: usize| (dot(rows[a], rows[b]) / (lengths[a] * lengths[b])) as f32;
    let values = (0..places).map(|a| (0..places).map(|b| cosine(a, b)).collect()).collect();
    Ok(PositionSimilarity { grid, values })
}

impl PositionSimilarity {
    /// Whether every place is like itself, and as much like another as that is like it.
    #[must_use]
    pub fn check(&self) -> Check {
        let places = self.values.len();
        let itself = (0..places).map(|a| f64::from((self.values[a][a] - 1.0).abs()));
        let mutual = (0..places).flat_map(|a| (0..a).map(move |b| (a, b)));
        let mutual = mutual.map(|(a, b)| f64::from((self.values[a][b] - self.values[b][a]).abs()));
        Check::new("a place is like itself, and likeness is mutual", itself.chain(mutual).fold(0.0, largest), 1e-5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::testing::random;

    #[test]
    fn tokens_before_places_are_left_out_and_lengths_do_not_matter() {
        let places = random::<3>([1, 6, 4], 1);
        let table = Tensor::cat(vec![random([1, 2, 4], 9), places.clone()], 1);
        let long = Tensor::cat(vec![places.clone().narrow(1, 0, 1).mul_scalar(7.0), places.clone().narrow(1, 1, 5)], 1);
        let found = similarity(&Param::from_tensor(table), [2, 3]).unwrap();
        let other = similarity(&Param::from_tensor(long), [2, 3]).unwrap();
        assert_eq!(found.values.len(), 6);
        assert!(found.check().holds() && other.check().holds());
        let flat = |of: &PositionSimilarity| of.values.concat();
        assert!(crate::testing::distance(&flat(&found), &flat(&other)) < 1e-6);
    }

    #[test]
    fn opposite_places_have_minus_one_and_zeros_are_an_error() {
        let place = random::<3>([1, 1, 4], 1);
        let opposite = Tensor::cat(vec![place.clone(), place.clone().neg()], 1);
        assert!((similarity(&Param::from_tensor(opposite), [1, 2]).unwrap().values[0][1] + 1.0).abs() < 1e-6);
        let zero = Tensor::cat(vec![place.clone(), place.zeros_like()], 1);
        assert!(similarity(&Param::from_tensor(zero), [1, 2]).unwrap_err().to_string().contains("place 1"));
    }

    #[test]
    fn transformers_have_positions_and_others_say_that_they_have_none() {
        let (vit, config) = model("vit-nano");
        assert_eq!(positions(&vit, &config).unwrap().grid, [8, 8]);
        let (resnet, config) = model("resnet-nano");
        assert!(positions(&resnet, &config).is_err());
    }
}
