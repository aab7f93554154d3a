//! Position embeddings: how similar are the learned embeddings of the patches of an image?
//! Dosovitskiy et al. 2020, arXiv:2010.11929, figure 7 (middle).

use burn::tensor::Tensor;
use serde::Serialize;

use super::check::{Check, largest};
use crate::Error;
use crate::models::Model;

/// Cosine similarities between the embeddings of all patches, without prefix tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionSimilarity {
    /// Rows and columns of patches.
    pub grid: [usize; 2],
    /// `[patch][patch]`, patches row by row.
    pub values: Vec<Vec<f32>>,
}

/// # Errors
/// When the model has no learned positions, or one of them is zero.
pub fn positions(model: &Model) -> Result<PositionSimilarity, Error> {
    let transformer = model
        .as_transformer()
        .ok_or_else(|| Error::analysis("positions", "the model learns no embedding of absolute positions"))?;
    similarity(transformer.positions(), transformer.patch_embed().grid())
}

/// `[1, prefix + N, D]`
fn similarity(table: Tensor<3>, grid: [usize; 2]) -> Result<PositionSimilarity, Error> {
    let ([_, tokens, width], patches) = (table.dims(), grid[0] * grid[1]);
    let rows: Vec<f32> = table.into_data().iter::<f32>().collect();
    let rows: Vec<&[f32]> = rows.chunks_exact(width).skip(tokens - patches).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths: Vec<f64> = rows.iter().map(|row| dot(row, row).sqrt()).collect();
    if let Some(zero) = lengths.iter().position(|length| !length.is_finite() || *length == 0.0) {
        return Err(Error::analysis("positions", format!("the embedding of patch {zero} is {}", lengths[zero])));
    }
    let cosine = |a: usize, b: usize| (dot(rows[a], rows[b]) / (lengths[a] * lengths[b])) as f32;
    let values = (0..patches).map(|a| (0..patches).map(|b| cosine(a, b)).collect()).collect();
    Ok(PositionSimilarity { grid, values })
}

impl PositionSimilarity {
    /// Checks that similarity is symmetric, and one for each patch with itself.
    #[must_use]
    pub fn check(&self) -> Check {
        let patches = self.values.len();
        let itself = (0..patches).map(|a| f64::from((self.values[a][a] - 1.0).abs()));
        let mutual = (0..patches).flat_map(|a| (0..a).map(move |b| (a, b)));
        let mutual = mutual.map(|(a, b)| f64::from((self.values[a][b] - self.values[b][a]).abs()));
        Check::new("similarity is one on the diagonal and symmetric", itself.chain(mutual).fold(0.0, largest), 1e-5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::testing::random;

    #[test]
    fn prefix_tokens_are_left_out_and_lengths_do_not_matter() {
        let patches = random::<3>([1, 6, 4], 1);
        let table = Tensor::cat(vec![random([1, 2, 4], 9), patches.clone()], 1);
        let long =
            Tensor::cat(vec![patches.clone().narrow(1, 0, 1).mul_scalar(7.0), patches.clone().narrow(1, 1, 5)], 1);
        let found = similarity(table, [2, 3]).unwrap();
        let other = similarity(long, [2, 3]).unwrap();
        assert_eq!(found.values.len(), 6);
        assert!(found.check().holds() && other.check().holds());
        let flat = |of: &PositionSimilarity| of.values.concat();
        assert!(crate::testing::distance(&flat(&found), &flat(&other)) < 1e-6);
    }

    #[test]
    fn opposite_patches_have_minus_one_and_zeros_are_an_error() {
        let patch = random::<3>([1, 1, 4], 1);
        let opposite = Tensor::cat(vec![patch.clone(), patch.clone().neg()], 1);
        assert!((similarity(opposite, [1, 2]).unwrap().values[0][1] + 1.0).abs() < 1e-6);
        let zero = Tensor::cat(vec![patch.clone(), patch.zeros_like()], 1);
        assert!(similarity(zero, [1, 2]).unwrap_err().to_string().contains("patch 1"));
    }

    #[test]
    fn transformers_have_positions_and_others_say_that_they_have_none() {
        let (vit, _) = model("vit-nano");
        assert_eq!(positions(&vit).unwrap().grid, [8, 8]);
        let (resnet, _) = model("resnet-nano");
        assert!(positions(&resnet).is_err());
    }
}
