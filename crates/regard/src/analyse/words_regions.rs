//! Between words and regions of a picture: how much each word attends to each region and each region to each word, by layer and
//! head.
//!
//! In one stream (`VisualBERT`, UNITER) both are in one matrix, and what a word leaves for regions is a share of its attention; in
//! two streams (`ViLBERT`, LXMERT) co-attention has a matrix for each direction.

use burn::tensor::Tensor;
use serde::Serialize;

use super::check::Check;
use crate::Error;
use crate::pass::{Axes, Trace};

/// Attention across, in one layer and direction, of the first text of a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WordRegionAttention {
    /// The name of the weights.
    pub layer: String,
    pub direction: Across,
    pub heads: usize,
    pub words: usize,
    pub regions: usize,
    /// `[A, queries, keys]`: words and regions, or regions and words.
    pub weights: Vec<f32>,
    pub check: Check,
}

/// Who looks at whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    WordsToRegions,
    RegionsToWords,
}

impl WordRegionAttention {
    /// The mean over heads, `[queries][keys]`.
    #[must_use]
    pub fn mean(&self) -> Vec<Vec<f64>> {
        let [queries, keys] = self.sides();
        let at = |query: usize, key: usize| {
            let heads = (0..self.heads).map(|head| f64::from(self.weights[(head * queries + query) * keys + key]));
            heads.sum::<f64>() / self.heads as f64
        };
        (0..queries).map(|query| (0..keys).map(|key| at(query, key)).collect()).collect()
    }

    const fn sides(&self) -> [usize; 2] {
        match self.direction {
            Across::WordsToRegions => [self.words, self.regions],
            Across::RegionsToWords => [self.regions, self.words],
        }
    }
}

/// Both directions of every layer that has words and regions, in the order of the forward pass.
///
/// # Errors
/// When nothing was recorded that has both.
pub fn word_region_attention(trace: &Trace) -> Result<Vec<WordRegionAttention>, Error> {
    let mut found = Vec::new();
    for (name, geometry) in trace.attention() {
        match (&geometry.queries, &geometry.keys) {
            (Axes::Joined(queries), Axes::Joined(keys)) if queries == keys => {
                if let [Axes::Words(words), Axes::Slots(regions)] = queries[..] {
                    let weights = trace.get::<4>(name)?;
                    let part = |rows: [usize; 2], columns: [usize; 2]| {
                        weights.clone().narrow(2, rows[0], rows[1]).narrow(3, columns[0], columns[1])
                    };
                    let (text, picture) = ([0, words], [words, regions]);
                    found.push(one(
                        name,
                        Across::WordsToRegions,
                        [words, regions],
                        part(text, picture),
                        part(text, text),
                    ));
                    found.push(one(
                        name,
                        Across::RegionsToWords,
                        [words, regions],
                        part(picture, text),
                        part(picture, picture),
                    ));
                }
            }
            (Axes::Words(words), Axes::Slots(regions)) => {
                let weights = trace.get::<4>(name)?;
                let nothing = weights.zeros_like();
                found.push(one(name, Across::WordsToRegions, [*words, *regions], weights, nothing));
            }
            (Axes::Slots(regions), Axes::Words(words)) => {
                let weights = trace.get::<4>(name)?;
                let nothing = weights.zeros_like();
                found.push(one(name, Across::RegionsToWords, [*words, *regions], weights, nothing));
            }
            _ => {}
        }
    }
    if found.is_empty() {
        let reason = "no attention between words and regions was recorded: the text had no picture";
        return Err(Error::analysis("words and regions", reason));
    }
    Ok(found)
}

/// The attention across the two modalities and within one; together they are a query's whole attention.
fn one(
    name: &str,
    direction: Across,
    [words, regions]: [usize; 2],
    across: Tensor<4>,
    own: Tensor<4>,
) -> WordRegionAttention {
    let heads = across.dims()[1];
    let sums = across.clone().narrow(0, 0, 1).sum_dim(3) + own.narrow(0, 0, 1).sum_dim(3);
    let sums: Vec<f32> = sums.into_data().iter::<f32>().collect();
    let deviation = sums.iter().map(|sum| f64::from((sum - 1.0).abs())).fold(0.0, f64::max);
    WordRegionAttention {
        layer: name.into(),
        direction,
        heads,
        words,
        regions,
        weights: across.narrow(0, 0, 1).into_data().iter::<f32>().collect(),
        check: Check::new("the weights of a query sum to one", deviation, 1e-4),
    }
}
