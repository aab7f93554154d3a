//! Between words and regions of a picture: how much each word attends to each region and each region to each word, by layer and
//! head.
//!
//! In one stream (`VisualBERT`, UNITER) both are in one matrix, and what a word leaves for regions is a share of its attention; in
//! two streams (`ViLBERT`, LXMERT) co-attention has a matrix for each direction. In a `VideoBERT` the tokens of a clip come after
//! the words of a sentence, and take the place of regions.

use burn::tensor::Tensor;
use serde::Serialize;

use super::check::{Check, largest, rows_sum_to_one};
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

    /// One head, `[queries][keys]`.
    #[must_use]
    pub fn head(&self, head: usize) -> Vec<&[f32]> {
        let [queries, keys] = self.sides();
        self.weights[head * queries * keys..][..queries * keys].chunks_exact(keys).collect()
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
                    found.extend(both(name, [words, regions], &trace.get::<4>(name)?));
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

/// Between the words of a sentence, so many with `[CLS]` and `[>]`, and the tokens of its clip, in a model that has both in one
/// sentence (`VideoBERT`): a region is a token of the clip.
///
/// # Errors
/// When the trace has no attention over more tokens than that.
pub fn word_video_attention(trace: &Trace, words: usize) -> Result<Vec<WordRegionAttention>, Error> {
    let mut found = Vec::new();
    for (name, geometry) in trace.attention() {
        if let (Axes::Words(tokens), Axes::Words(keys)) = (&geometry.queries, &geometry.keys)
            && tokens == keys
            && *tokens > words
        {
            found.extend(both(name, [words, tokens - words], &trace.get::<4>(name)?));
        }
    }
    if found.is_empty() {
        let reason = format!("no attention over more than {words} tokens was recorded: the sentence had no clip");
        return Err(Error::analysis("words and frames", reason));
    }
    Ok(found)
}

/// Both directions of a matrix over words and what comes after them.
fn both(name: &str, sizes: [usize; 2], weights: &Tensor<4>) -> [WordRegionAttention; 2] {
    let part = |rows: [usize; 2], columns: [usize; 2]| {
        weights.clone().narrow(2, rows[0], rows[1]).narrow(3, columns[0], columns[1])
    };
    let (text, picture) = ([0, sizes[0]], sizes);
    [
        one(name, Across::WordsToRegions, sizes, part(text, picture), part(text, text)),
        one(name, Across::RegionsToWords, sizes, part(picture, text), part(picture, picture)),
    ]
}

/// The words that a region explains: those that look at it more than at an average region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExplainedWords {
    pub region: usize,
    /// The strongest first.
    pub words: Vec<WordShare>,
}

/// A word by its place, and the share of its attention to regions that goes to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WordShare {
    pub word: usize,
    pub share: f64,
}

/// How each word's attention to regions is shared among them, over all layers and heads: `[words][regions]`, rows sum to one.
#[must_use]
pub fn shares_of_regions(layers: &[WordRegionAttention]) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = Vec::new();
    for layer in layers.iter().filter(|layer| layer.direction == Across::WordsToRegions) {
        let mean = layer.mean();
        sums.resize(sums.len().max(mean.len()), vec![0.0; layer.regions]);
        for (sum, row) in sums.iter_mut().zip(mean) {
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
    for row in &mut sums {
        let whole: f64 = row.iter().sum();
        row.iter_mut().for_each(|share| *share /= whole.max(f64::MIN_POSITIVE));
    }
    sums
}

/// The words that each region explains, by [`shares_of_regions`]; `is_word` leaves out tokens that mean nothing.
#[must_use]
pub fn explained_words(shares: &[Vec<f64>], is_word: &[bool]) -> Vec<ExplainedWords> {
    let regions = shares.first().map_or(0, Vec::len);
    let of_region = |region: usize| {
        let all = shares.iter().enumerate().zip(is_word).filter(|(_, is_word)| **is_word);
        let shares = all.map(|((word, row), _)| WordShare { word, share: row[region] });
        let mut words: Vec<WordShare> = shares.filter(|one| one.share * regions as f64 > 1.0).collect();
        words.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.word.cmp(&b.word)));
        ExplainedWords { region, words }
    };
    (0..regions).map(of_region).collect()
}

/// The plan that moves words onto regions at the least cost (UNITER's alignment), of the first text of a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WordRegionPlan {
    /// The share of each word that goes to each region, `[words][regions]`.
    pub shares: Vec<Vec<f32>>,
    pub check: Check,
}

/// The plan that a pass recorded under `transport`, `[B, R, N]`; none if it did not.
#[must_use]
pub fn word_region_plan(trace: &Trace) -> Option<WordRegionPlan> {
    let plan = trace.get::<3>("transport").ok()?;
    let [_, regions, words] = plan.dims();
    let plan: Vec<f32> = plan.narrow(0, 0, 1).into_data().iter::<f32>().collect();
    let row = |word: usize| (0..regions).map(|region| plan[region * words + word] * words as f32).collect();
    let shares: Vec<Vec<f32>> = (0..words).map(row).collect();
    let deviation = rows_sum_to_one(shares.iter().map(Vec::as_slice));
    Some(WordRegionPlan { shares, check: Check::new("a plan moves all of each word", deviation, 1e-4) })
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
    let deviation = sums.iter().map(|sum| f64::from((sum - 1.0).abs())).fold(0.0, largest);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use crate::device::cpu;
    use crate::models::vision_language::video_bert::VideoBertConfig;
    use crate::models::vision_language::{VisionLanguageInput, Wanted};

    fn attention(direction: Across, [words, regions]: [usize; 2], weights: &[f32]) -> WordRegionAttention {
        let (layer, check) = ("layer".into(), Check::new("none", 0.0, 1.0));
        let heads = weights.len() / (words * regions);
        WordRegionAttention { layer, direction, heads, words, regions, weights: weights.to_vec(), check }
    }

    #[test]
    fn a_region_explains_the_words_that_look_at_it_more_than_at_others() {
        // the first word looks at the second region, the second at the first, the third at both
        let layers = [
            attention(Across::WordsToRegions, [3, 2], &[0.1, 0.3, 0.4, 0.0, 0.2, 0.2]),
            attention(Across::RegionsToWords, [3, 2], &[1.0; 6]),
        ];
        let shares = shares_of_regions(&layers);
        assert!((shares[0][1] - 0.75).abs() < 1e-6 && shares[1][0] == 1.0 && shares[2][0] == 0.5, "{shares:?}");
        let explained = explained_words(&shares, &[true; 3]);
        let places = |region: usize| explained[region].words.iter().map(|one| one.word).collect::<Vec<_>>();
        assert_eq!((places(0), places(1)), (vec![1], vec![0]));
        assert!(explained_words(&shares, &[false, true, true])[1].words.is_empty());
        assert!(explained_words(&[], &[]).is_empty());
    }

    #[test]
    fn a_head_and_the_mean_are_rows_of_queries() {
        let two = attention(Across::RegionsToWords, [1, 2], &[0.1, 0.2, 0.3, 0.6]);
        assert_eq!(two.head(1), [[0.3], [0.6]]);
        assert!((two.mean()[1][0] - 0.4).abs() < 1e-6);
    }

    #[test]
    fn a_plan_is_told_by_word() {
        let mut pass = Pass::recording();
        // two regions, three words, each of mass one third
        pass.record(
            "transport",
            &Tensor::<3>::from_data([[[0.3, 0.2, 0.0], [0.033_333_3, 0.133_333_3, 0.333_333_3]]], &cpu()),
        );
        let plan = word_region_plan(&pass.into_trace()).unwrap();
        assert_eq!((plan.shares.len(), plan.shares[2][0]), (3, 0.0));
        assert!((plan.shares[0][0] - 0.9).abs() < 1e-6 && (plan.shares[1][1] - 0.4).abs() < 1e-6);
        assert!(plan.check.holds(), "{}", plan.check);
        assert!(word_region_plan(&Pass::recording().into_trace()).is_none());
    }

    #[test]
    fn words_look_at_the_tokens_of_their_clip_and_the_other_way_round() {
        let config = VideoBertConfig {
            words: 10,
            branches: 3,
            levels: 2,
            positions: 12,
            types: 2,
            layers: 2,
            dim: 8,
            heads: 2,
            inner: 16,
            dropout: 0.0,
            epsilon: 1e-12,
        };
        let model = config.init(&cpu()).unwrap();
        let words = config.join(&[vec![1, 5, 6]], &[vec![0, 4, 8, 2]], 3, 2);
        let mut pass = Pass::recording_attention::<String>([]);
        let _ = model.forward(&VisionLanguageInput { words, regions: None, wanted: Wanted::default() }, &mut pass);
        let trace = pass.into_trace();
        // `[CLS]`, two words and `[>]`; four tokens of the clip and `[SEP]`
        let found = word_video_attention(&trace, 4).unwrap();
        let layers: Vec<(Across, usize, usize)> =
            found.iter().map(|one| (one.direction, one.words, one.regions)).collect();
        assert_eq!(layers, [(Across::WordsToRegions, 4, 5), (Across::RegionsToWords, 4, 5)].repeat(2));
        assert!(found.iter().all(|one| one.check.holds()));
        let whole = trace.get::<4>(trace.attention().next().unwrap().0).unwrap();
        let own: Vec<f32> = whole.narrow(1, 1, 1).narrow(2, 2, 1).narrow(3, 4, 5).into_data().iter::<f32>().collect();
        assert_eq!(found[0].head(1)[2], own);
        assert!(word_video_attention(&trace, 9).unwrap_err().to_string().contains("no clip"));
    }
}
