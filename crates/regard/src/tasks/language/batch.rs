//! Batches of samples, and the tokens that a model has to predict.

use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::data::Tokens;
use crate::data::text::Tokenizer;
use crate::models::language_model::Direction;
use crate::random::{Purpose, generator};

/// The input for a token to predict (BERT, arXiv:1810.04805, section 3.1): usually the mask token,
/// sometimes a random token, and otherwise the token itself.
const HIDDEN: f64 = 0.8;
const REPLACED: f64 = 0.1;

/// The inputs of a batch, and the tokens to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanguageBatch {
    pub tokens: Tokens,
    /// The positions to predict, as indices into all samples, padding included.
    pub positions: Vec<usize>,
    /// The right token of each position.
    pub targets: Vec<u32>,
}

/// Selects which tokens are masked; causal models predict all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskDraw {
    pub seed: u64,
    pub epoch: u64,
}

impl MaskDraw {
    /// For evaluation: the same tokens are masked in every epoch of every run.
    pub const MEASURED: Self = Self { seed: 0, epoch: u64::MAX };
}

/// How samples become batches.
#[derive(Clone, Copy, Debug)]
pub struct Collate<'a> {
    pub direction: Direction,
    pub tokenizer: &'a Tokenizer,
    /// Fraction of tokens that a masked model has to predict.
    pub mask: f64,
}

/// The input of one sample.
struct TokenSample {
    seen: Vec<u32>,
    /// The positions to predict, and the right tokens.
    predicted: Vec<(usize, u32)>,
}

impl Collate<'_> {
    /// A batch of these samples; random numbers of a sample depend on its index, not on the batch.
    ///
    /// # Panics
    /// When there are no samples, or a masked model has a tokenizer without a mask.
    pub fn batch(&self, samples: &[Vec<u32>], indices: &[usize], draw: MaskDraw) -> LanguageBatch {
        let rows: Vec<TokenSample> = indices
            .iter()
            .map(|&index| match self.direction {
                Direction::Both => self.masked(&samples[index], index, draw),
                Direction::Forward => self.next(&samples[index]),
            })
            .collect();
        let seen: Vec<&[u32]> = rows.iter().map(|row| row.seen.as_slice()).collect();
        let tokens = Tokens::new(&seen);
        let predicted = rows.iter().enumerate().flat_map(|(number, row)| {
            let first = number * tokens.length();
            row.predicted.iter().map(move |(at, target)| (first + at, *target))
        });
        let (positions, targets) = predicted.unzip();
        LanguageBatch { tokens, positions, targets }
    }

    /// Number of tokens of a sample's input.
    pub const fn length(&self, sample: &[u32]) -> usize {
        match self.direction {
            Direction::Both => sample.len() + 2,
            Direction::Forward => sample.len() + 1,
        }
    }

    /// Causal: every token from those before it, and the end token from all.
    fn next(&self, sample: &[u32]) -> TokenSample {
        let seen = [&[self.tokenizer.begin()], sample].concat();
        let next = sample.iter().copied().chain([self.tokenizer.end()]);
        TokenSample { seen, predicted: next.enumerate().collect() }
    }

    /// Masked: some tokens from all others, at least one per sample.
    fn masked(&self, sample: &[u32], index: usize, draw: MaskDraw) -> TokenSample {
        let mask = self.tokenizer.mask().expect("a masked model has a tokenizer with a mask");
        let mut random = generator(draw.seed, Purpose::Mask, [draw.epoch, index as u64]);
        let mut seen = [&[self.tokenizer.begin()], sample, &[self.tokenizer.end()]].concat();
        let count = ((sample.len() as f64 * self.mask).round() as usize).max(1);
        let mut chosen: Vec<usize> = (1..=sample.len()).collect();
        chosen.shuffle(&mut random);
        chosen.truncate(count);
        chosen.sort_unstable();
        let predicted: Vec<(usize, u32)> = chosen.into_iter().map(|at| (at, seen[at])).collect();
        for (at, _) in &predicted {
            let kind = random.random::<f64>();
            if kind < HIDDEN {
                seen[*at] = mask;
            } else if kind < HIDDEN + REPLACED {
                seen[*at] = random.random_range(0..self.tokenizer.vocabulary() as u32);
            }
        }
        TokenSample { seen, predicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::Pieces;

    fn tokenizer() -> Tokenizer {
        let words: Vec<String> = (0..90).map(|number| format!("word{number}")).collect();
        Tokenizer::train(Pieces::Words, 301, words.iter()).unwrap().with_mask()
    }

    fn samples(count: usize) -> Vec<Vec<u32>> {
        (0..count).map(|sample| (0..20 + sample % 3).map(|at| 5 + ((sample * 7 + at) % 80) as u32).collect()).collect()
    }

    const DRAW: MaskDraw = MaskDraw { seed: 3, epoch: 2 };

    #[test]
    fn a_causal_model_predicts_the_token_after_each_and_the_end() {
        let tokenizer = tokenizer();
        let collate = Collate { direction: Direction::Forward, tokenizer: &tokenizer, mask: 0.15 };
        let batch = collate.batch(&[vec![7, 8, 9], vec![5]], &[0, 1], DRAW);
        let (begin, end) = (tokenizer.begin(), tokenizer.end());
        assert_eq!((batch.tokens.sentence(0), batch.tokens.sentence(1)), (&[begin, 7, 8, 9][..], &[begin, 5][..]));
        assert_eq!(batch.positions, [0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.targets, [7, 8, 9, end, 5, end]);
    }

    #[test]
    fn a_masked_model_predicts_fifteen_of_a_hundred_and_sees_eighty_ten_and_ten() {
        let tokenizer = tokenizer();
        let collate = Collate { direction: Direction::Both, tokenizer: &tokenizer, mask: 0.15 };
        let (samples, indices) = (samples(3000), (0..3000).collect::<Vec<_>>());
        let batch = collate.batch(&samples, &indices, DRAW);
        // 20, 21 and 22 tokens are three of them each
        assert_eq!(batch.positions.len(), 3 * 3000);
        let mut kinds = [0_i32; 3];
        for (at, target) in batch.positions.iter().zip(&batch.targets) {
            let (row, column) = (at / batch.tokens.length(), at % batch.tokens.length());
            let seen = batch.tokens.sentence(row)[column];
            assert_eq!(samples[row][column - 1], *target);
            kinds[if Some(seen) == tokenizer.mask() { 0 } else { 1 + usize::from(seen == *target) }] += 1;
        }
        // four deviations of 9000 draws; one in ninety random tokens is the token itself
        for (count, expected) in kinds.into_iter().zip([7200, 890, 910]) {
            assert!((count - expected).abs() < 155, "{kinds:?}");
        }
        // all other tokens are unchanged
        let predicted: std::collections::HashSet<usize> = batch.positions.iter().copied().collect();
        for (row, sample) in samples.iter().enumerate() {
            let seen = batch.tokens.sentence(row);
            assert_eq!((seen[0], seen[seen.len() - 1]), (tokenizer.begin(), tokenizer.end()));
            for (column, token) in sample.iter().enumerate() {
                assert!(predicted.contains(&(row * batch.tokens.length() + column + 1)) || seen[column + 1] == *token);
            }
        }
    }

    #[test]
    fn what_is_hidden_depends_on_the_seed_the_epoch_and_the_sample_alone() {
        let tokenizer = tokenizer();
        let collate = Collate { direction: Direction::Both, tokenizer: &tokenizer, mask: 0.3 };
        let samples = samples(9);
        let alone = |index, draw| collate.batch(&samples, &[index], draw).tokens.sentence(0).to_vec();
        let together = collate.batch(&samples, &[4, 8, 0], DRAW);
        for (row, index) in [4, 8, 0].into_iter().enumerate() {
            assert_eq!(together.tokens.sentence(row), alone(index, DRAW));
        }
        assert_ne!(alone(4, DRAW), alone(4, MaskDraw { epoch: 3, ..DRAW }));
        assert_ne!(alone(4, DRAW), alone(4, MaskDraw { seed: 4, ..DRAW }));
        assert_eq!(collate.batch(&[vec![5]], &[0], DRAW).targets, [5]);
    }
}
