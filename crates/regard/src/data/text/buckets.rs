//! Batches of sentences of similar length, within a budget of tokens.
//!
//! The batches and their order depend only on the seed and the epoch. Batch boundaries depend only on lengths, so that every
//! epoch has the same number of batches.

use rand::seq::SliceRandom as _;

use crate::Error;
use crate::random::{Purpose, generator};

/// Groups sentences into batches.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Lengths of source and target, in tokens.
    lengths: Vec<[usize; 2]>,
    /// Largest number of tokens of a batch on either side, padding included.
    budget: usize,
    seed: u64,
    batches: usize,
}

impl Buckets {
    /// # Errors
    /// When a single sentence exceeds the budget.
    pub fn new(lengths: Vec<[usize; 2]>, budget: usize, seed: u64) -> Result<Self, Error> {
        if let Some(longest) = lengths.iter().flatten().max().filter(|longest| **longest > budget) {
            let reason = format!("must be at least {longest}, the tokens of the longest sentence, got {budget}");
            return Err(Error::config("tokens", reason));
        }
        let mut buckets = Self { lengths, budget, seed, batches: 0 };
        buckets.batches = buckets.cut(&buckets.sorted((0..buckets.lengths.len()).collect())).len();
        Ok(buckets)
    }

    /// Number of batches per epoch.
    #[must_use]
    pub const fn batches(&self) -> usize {
        self.batches
    }

    /// The sentences of each batch of an epoch.
    #[must_use]
    pub fn epoch(&self, epoch: usize) -> Vec<Vec<usize>> {
        let mut generator = generator(self.seed, Purpose::Order, [epoch as u64, 0]);
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        order.shuffle(&mut generator);
        let mut batches = self.cut(&self.sorted(order));
        batches.shuffle(&mut generator);
        batches
    }

    /// Batches in the order of lengths, for evaluation.
    #[must_use]
    pub fn in_order(&self) -> Vec<Vec<usize>> {
        self.cut(&self.sorted((0..self.lengths.len()).collect()))
    }

    fn sorted(&self, mut order: Vec<usize>) -> Vec<usize> {
        // a stable sort: sentences of the same length stay shuffled
        order.sort_by_key(|&index| {
            let [source, target] = self.lengths[index];
            (target.max(source), target, source)
        });
        order
    }

    fn cut(&self, sorted: &[usize]) -> Vec<Vec<usize>> {
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let mut longest = [0, 0];
        for &index in sorted {
            let lengths = self.lengths[index];
            let wider = [0, 1].map(|side: usize| longest[side].max(lengths[side]));
            match batches.last_mut() {
                Some(batch) if wider[0].max(wider[1]) * (batch.len() + 1) <= self.budget => {
                    batch.push(index);
                    longest = wider;
                }
                _ => {
                    batches.push(vec![index]);
                    longest = lengths;
                }
            }
        }
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;

    fn lengths() -> Vec<[usize; 2]> {
        let mut generator = generator(1, Purpose::Order, [0, 0]);
        (0..500).map(|_| [generator.random_range(1..30), generator.random_range(1..30)]).collect()
    }

    #[test]
    fn every_sentence_comes_once_an_epoch_and_no_batch_is_over_the_budget() {
        let buckets = Buckets::new(lengths(), 200, 7).unwrap();
        for epoch in 0..3 {
            let batches = buckets.epoch(epoch);
            assert_eq!(batches.len(), buckets.batches());
            let mut all: Vec<usize> = batches.concat();
            all.sort_unstable();
            assert_eq!(all, (0..500).collect::<Vec<_>>());
            for batch in batches {
                for side in 0..2 {
                    let longest = batch.iter().map(|&index| lengths()[index][side]).max().unwrap();
                    assert!(longest * batch.len() <= 200);
                }
            }
        }
    }

    #[test]
    fn the_order_depends_on_the_seed_and_the_epoch_alone() {
        let of = |seed| Buckets::new(lengths(), 200, seed).unwrap();
        assert_eq!(of(1).epoch(3), of(1).epoch(3));
        assert_ne!(of(1).epoch(3), of(1).epoch(4));
        assert_ne!(of(1).epoch(3), of(2).epoch(3));
        assert_eq!(of(1).in_order(), of(2).in_order());
    }

    #[test]
    fn there_is_little_padding() {
        let buckets = Buckets::new(lengths().iter().map(|[source, _]| [*source; 2]).collect(), 400, 1).unwrap();
        let padded: usize = buckets
            .in_order()
            .iter()
            .map(|batch| batch.len() * batch.iter().map(|&index| lengths()[index][0]).max().unwrap())
            .sum();
        let real: usize = lengths().iter().map(|[source, _]| source).sum();
        assert!((padded as f64) < 1.1 * real as f64, "{padded} {real}");
    }

    #[test]
    fn a_sentence_over_the_budget_is_told() {
        let error = Buckets::new(vec![[3, 300]], 200, 1).unwrap_err().to_string();
        assert_eq!(error, "`tokens`: must be at least 300, the tokens of the longest sentence, got 200");
    }
}
