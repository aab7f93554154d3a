//! Attention rollout: how much of each token of the first layer has reached each token of the last one.
//! Abnar, Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv:2005.00928.
//!
//! Heads are fused, the identity is added for the residual connection, rows are normalised, and the matrices of
//! the layers are multiplied, later layers on the left. Maximum, minimum and discarding small weights are as in
//! Gildenblat's vit-explain (2020), which never discards the weight of the class token to itself; here the
//! identity prevents empty rows.
//!
//! For a class, a layer's weights are first multiplied by their gradients, and negative products are
//! dropped, as there; Chefer et al. (arXiv:2103.15679) do so without normalising rows.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::check::{Check, rows_sum_to_one};
use crate::{Error, device};

/// How the heads of a layer are fused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fusion {
    #[default]
    Mean,
    Max,
    Min,
}

/// How the weights of a layer are prepared for the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutOptions {
    pub fusion: Fusion,
    /// The fraction of each layer's fused weights that is set to zero, smallest first.
    pub discard: f64,
}

/// How much of each token of the first layer has reached each token of the last one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rollout {
    /// Prefix tokens.
    pub prefix: usize,
    /// Rows and columns of the other tokens.
    pub grid: [usize; 2],
    /// `[N, N]`
    pub values: Vec<f32>,
}

/// The rollout of one sample through layers in which every token attends to every token.
///
/// # Errors
/// When there is no such layer, the layers do not fit together, or the fraction to discard is out of range.
pub fn rollout(layers: &[Attention], sample: usize, options: RolloutOptions) -> Result<Rollout, Error> {
    let fused = |layer: &Attention| fuse(heads(layer, sample), options);
    multiply(layers, options, fused)
}

/// The same for a class; `gradients` `[A, N, N]` are those of its logit with respect to the weights of each layer.
///
/// # Errors
/// As [`rollout`], and when a weight has no gradient.
pub fn class_rollout(
    layers: &[Attention],
    gradients: &[Vec<f32>],
    sample: usize,
    options: RolloutOptions,
) -> Result<Rollout, Error> {
    let weights: usize = layers.iter().map(|layer| heads(layer, sample).map(<[f32]>::len).sum::<usize>()).sum();
    if gradients.len() != layers.len() || gradients.iter().map(Vec::len).sum::<usize>() != weights {
        return Err(Error::analysis("rollout of a class", "there is not a gradient for every weight"));
    }
    let mut gradients = gradients.iter();
    multiply(layers, options, |layer| {
        let gradients = gradients.next().expect("as many as layers");
        let weighted: Vec<Vec<f32>> = heads(layer, sample)
            .zip(gradients.chunks_exact((gradients.len() / layer.heads).max(1)))
            .map(|(head, slopes)| head.iter().zip(slopes).map(|(weight, slope)| (weight * slope).max(0.0)).collect())
            .collect();
        fuse(weighted.iter().map(Vec::as_slice), options)
    })
}

fn heads(layer: &Attention, sample: usize) -> impl Iterator<Item = &[f32]> {
    (0..layer.heads).filter_map(move |head| layer.matrix(sample, head))
}

/// Fuses several matrices and discards the smallest weights.
fn fuse<'a>(mut heads: impl Iterator<Item = &'a [f32]>, options: RolloutOptions) -> Vec<f32> {
    let mut fused = heads.next().map(<[f32]>::to_vec).unwrap_or_default();
    let mut count = 1;
    for head in heads {
        count += 1;
        for (fused, weight) in fused.iter_mut().zip(head) {
            *fused = match options.fusion {
                Fusion::Mean => *fused + weight,
                Fusion::Max => fused.max(*weight),
                Fusion::Min => fused.min(*weight),
            };
        }
    }
    if options.fusion == Fusion::Mean {
        fused.iter_mut().for_each(|weight| *weight /= count as f32);
    }
    let discarded = (options.discard * fused.len() as f64) as usize;
    let mut order: Vec<usize> = (0..fused.len()).collect();
    order.sort_by(|a, b| fused[*a].total_cmp(&fused[*b]));
    order[..discarded].iter().for_each(|index| fused[*index] = 0.0);
    fused
}

fn multiply(
    layers: &[Attention],
    options: RolloutOptions,
    mut fused: impl FnMut(&Attention) -> Vec<f32>,
) -> Result<Rollout, Error> {
    let wrong = |reason: &str| Error::analysis("rollout", reason);
    if !(0.0..1.0).contains(&options.discard) {
        return Err(wrong(&format!("the share to discard is at least 0 and less than 1, got {}", options.discard)));
    }
    let first =
        layers.first().ok_or_else(|| wrong("the model has no layer in which every token attends to every token"))?;
    let (axes, tokens) = (&first.geometry.queries, first.queries());
    let mut product: Option<Tensor<2>> = None;
    for layer in layers {
        let same = layer.geometry.queries == *axes && layer.geometry.keys == *axes;
        if !same || layer.matrix(0, 0).is_none() {
            return Err(wrong(&format!(
                "in `{}` not every token attends to every token of the layer before",
                layer.layer
            )));
        }
        let mut matrix = fused(layer);
        for (row, weights) in matrix.chunks_exact_mut(tokens).enumerate() {
            weights[row] += 1.0;
            let sum = weights.iter().sum::<f32>();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let matrix = Tensor::from_data(TensorData::new(matrix, [tokens, tokens]), &device::cpu());
        product = Some(match product {
            Some(before) => matrix.matmul(before),
            None => matrix,
        });
    }
    let values = product.expect("there is a first layer").into_data().iter::<f32>().collect();
    Ok(Rollout { prefix: axes.prefix(), grid: axes.sheet(), values })
}

impl Rollout {
    /// The row of the class token, or the mean over all rows if there is none: `[H, W]`.
    #[must_use]
    pub fn map(&self) -> Vec<f32> {
        let tokens = self.prefix + self.grid[0] * self.grid[1];
        let rows = if self.prefix > 0 { 1 } else { tokens };
        let mut map = vec![0.0; tokens - self.prefix];
        for row in self.values.chunks_exact(tokens).take(rows) {
            map.iter_mut().zip(&row[self.prefix..]).for_each(|(mean, value)| *mean += value / rows as f32);
        }
        map
    }

    /// Checks that rows sum to one.
    #[must_use]
    pub fn check(&self) -> Check {
        let tokens = self.prefix + self.grid[0] * self.grid[1];
        Check::new("rows of the rollout sum to one", rows_sum_to_one(self.values.chunks_exact(tokens)), 1e-4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::of_tokens;
    use crate::testing::{Fixture, distance};

    fn layers(fixture: &Fixture) -> Vec<Attention> {
        let attention = fixture.values("io/attention").chunks(3 * 100);
        attention.map(|weights| of_tokens(3, 1, [3, 3], [48, 48], weights.to_vec())).collect()
    }

    fn with(fusion: Fusion, discard: f64) -> RolloutOptions {
        RolloutOptions { fusion, discard }
    }

    #[test]
    fn it_is_that_of_the_reference() {
        let fixture = Fixture::load("analysis");
        let found = rollout(&layers(&fixture), 0, RolloutOptions::default()).unwrap();
        assert!(distance(&found.values, fixture.values("io/rollout")) < 1e-5);
        let expected = fixture.values("io/rollout_cls_to_patches");
        assert!(distance(&found.map(), expected) < 1e-5, "{:?} {expected:?}", found.map());
        assert!(found.check().holds());
    }

    #[test]
    fn tokens_that_look_at_themselves_keep_themselves() {
        let identity: Vec<f32> = (0..100).map(|i| f32::from(i % 11 == 0)).collect();
        let layer = of_tokens(1, 1, [3, 3], [48, 48], identity.clone());
        for fusion in [Fusion::Mean, Fusion::Max, Fusion::Min] {
            let found = rollout(&[layer.clone(), layer.clone()], 0, with(fusion, 0.0)).unwrap();
            assert_eq!(found.values, identity);
        }
    }

    #[test]
    fn rows_sum_to_one_whatever_is_fused_and_discarded() {
        let layers = layers(&Fixture::load("analysis"));
        let mut seen: Vec<Vec<f32>> = Vec::new();
        for fusion in [Fusion::Mean, Fusion::Max, Fusion::Min] {
            for discard in [0.0, 0.5, 0.9] {
                let found = rollout(&layers, 0, with(fusion, discard)).unwrap();
                assert!(found.check().holds(), "{fusion:?} {discard}: {}", found.check());
                assert!(!seen.contains(&found.values), "{fusion:?} {discard} is like another");
                seen.push(found.values);
            }
        }
    }

    #[test]
    fn discarding_all_but_one_weight_leaves_that_one() {
        let weights = vec![0.1, 0.9, 0.4, 0.6];
        let layer = of_tokens(1, 0, [1, 2], [1, 2], weights);
        let found = rollout(&[layer], 0, with(Fusion::Mean, 0.75)).unwrap();
        assert!(distance(&found.values, &[1.0 / 1.9, 0.9 / 1.9, 0.0, 1.0]) < 1e-6);
    }

    #[test]
    fn gradients_of_one_change_nothing_and_of_minus_one_leave_the_identity() {
        let layers = layers(&Fixture::load("analysis"));
        let slopes = |slope: f32| vec![vec![slope; 300]; layers.len()];
        let plain = rollout(&layers, 0, RolloutOptions::default()).unwrap();
        let by = |slope: f32| class_rollout(&layers, &slopes(slope), 0, RolloutOptions::default()).unwrap();
        assert!(distance(&by(1.0).values, &plain.values) < 1e-6);
        assert_eq!(by(-1.0).values, (0..100).map(|i| f32::from(i % 11 == 0)).collect::<Vec<_>>());
        assert!(class_rollout(&layers, &slopes(1.0)[1..], 0, RolloutOptions::default()).is_err());
    }

    #[test]
    fn what_cannot_be_rolled_out_is_an_error_that_says_why() {
        let layers = layers(&Fixture::load("analysis"));
        let error = rollout(&layers, 0, with(Fusion::Mean, 1.0)).unwrap_err().to_string();
        assert!(error.contains("got 1"), "{error}");
        assert!(rollout(&[], 0, RolloutOptions::default()).is_err());
        let mut other = of_tokens(1, 0, [1, 2], [1, 2], vec![0.5; 4]);
        other.layer = "other".into();
        assert!(
            rollout(&[layers[0].clone(), other], 0, RolloutOptions::default())
                .unwrap_err()
                .to_string()
                .contains("`other`")
        );
    }
}
