//! Which samples make the batches of an epoch.
//!
//! A batch is the same for any number of ranks, and a rank takes its part of it: two ranks with 16 samples each see what
//! one with 32 sees.

use rand::seq::SliceRandom as _;
use std::ops::Range;

use crate::Error;
use crate::random::{Purpose, generator};

/// The order of samples: a function of the seed, the epoch and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Samples in the dataset.
    pub samples: usize,
    /// Samples of a batch, over all ranks.
    pub batch: usize,
    /// How many times a sample occurs in a row, each time changed differently: repeated augmentation
    /// (Hoffer et al. 2020). An epoch keeps its length, so that it sees 1 / repeats of the samples.
    pub repeats: usize,
    /// `None` is the order of the dataset with a short last batch, for evaluation; with a seed, shuffled without the short
    /// batch.
    pub seed: Option<u64>,
    /// The rank and the number of ranks; each makes an equal part of every batch.
    pub rank: usize,
    pub ranks: usize,
}

/// The samples of an epoch in their order.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    order: Order,
    /// `None` is the order of the dataset.
    shuffled: Option<Vec<usize>>,
}

impl Order {
    /// # Errors
    /// When no batches can be made; the error names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { samples, batch, repeats, seed, rank, ranks } = *self;
        if samples == 0 {
            return Err(Error::config("samples", "there are none"));
        }
        for (field, value) in [("batch", batch), ("repeats", repeats), ("ranks", ranks)] {
            if value == 0 {
                return Err(Error::config(field, "must be at least 1, got 0"));
            }
        }
        if rank >= ranks {
            return Err(Error::config("rank", format!("must be below the {ranks} ranks, got {rank}")));
        }
        if batch % ranks != 0 {
            return Err(Error::config("batch", format!("must be divisible by {ranks} ranks, got {batch}")));
        }
        if seed.is_some() && samples < batch {
            return Err(Error::config(
                "batch",
                format!("must be at most {samples}, the number of samples, got {batch}"),
            ));
        }
        if seed.is_none() && repeats > 1 {
            return Err(Error::config("repeats", format!("must be 1 without a seed, got {repeats}")));
        }
        Ok(())
    }

    /// Batches of an epoch, the same for every rank.
    #[must_use]
    pub const fn steps(&self) -> usize {
        match (self.batch, self.seed) {
            (0, _) => 0,
            (batch, Some(_)) => self.samples / batch,
            (batch, None) => self.samples.div_ceil(batch),
        }
    }

    /// The part of a batch that this rank makes: each sample, and which of its repeats it is.
    ///
    /// After the last step there is nothing.
    #[must_use]
    pub fn batch(&self, epoch: usize, step: usize) -> Vec<(usize, u64)> {
        let epoch = self.epoch(epoch);
        epoch.samples(step, epoch.own(step)).collect()
    }

    pub(super) fn epoch(&self, epoch: usize) -> Epoch {
        let shuffled = self.seed.map(|seed| {
            let mut samples: Vec<usize> = (0..self.samples).collect();
            samples.shuffle(&mut generator(seed, Purpose::Order, [epoch as u64, 0]));
            samples
        });
        Epoch { order: *self, shuffled }
    }
}

impl Epoch {
    /// The indices within a batch that belong to this rank.
    pub(super) fn own(&self, step: usize) -> Range<usize> {
        let Order { rank, ranks, .. } = self.order;
        let length = self.length(step);
        // a short batch is divided as evenly as possible
        length * rank / ranks..length * (rank + 1) / ranks
    }

    /// The indices of the partners that are mixed with this rank's samples, last with first.
    pub(super) fn mirrored(&self, step: usize) -> Range<usize> {
        let (length, own) = (self.length(step), self.own(step));
        length - own.end..length - own.start
    }

    /// The samples at some indices of a batch, and which of their repeats they are.
    pub(super) fn samples(&self, step: usize, places: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let Order { batch, repeats, .. } = self.order;
        places.map(move |place| {
            let place = step * batch + place;
            let sample = place / repeats;
            (self.shuffled.as_ref().map_or(sample, |samples| samples[sample]), (place % repeats) as u64)
        })
    }

    /// Samples of a batch, over all ranks.
    fn length(&self, step: usize) -> usize {
        let Order { samples, batch, .. } = self.order;
        if step < self.order.steps() { batch.min(samples - step * batch) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ORDER: Order = Order { samples: 96, batch: 32, repeats: 1, seed: Some(5), rank: 0, ranks: 1 };

    fn whole(order: Order, epoch: usize) -> Vec<(usize, u64)> {
        (0..order.steps()).flat_map(|step| order.batch(epoch, step)).collect()
    }

    #[test]
    fn every_picture_comes_once_an_epoch_in_another_order_each_time() {
        let epochs: Vec<_> = (0..3).map(|epoch| whole(ORDER, epoch)).collect();
        for epoch in &epochs {
            assert_eq!(epoch.iter().copied().collect::<BTreeSet<_>>(), (0..96).map(|picture| (picture, 0)).collect());
            assert_eq!(epoch.len(), 96);
        }
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
        assert_ne!(epochs[0], whole(Order { seed: Some(6), ..ORDER }, 0));
        assert_eq!(epochs[0], whole(ORDER, 0));
    }

    #[test]
    fn a_short_batch_is_left_out_of_training_and_kept_in_a_test() {
        let train = Order { samples: 100, ..ORDER };
        assert_eq!((train.steps(), whole(train, 0).len()), (3, 96));
        let test = Order { seed: None, ..train };
        assert_eq!(test.steps(), 4);
        assert_eq!(whole(test, 3), (0..100).map(|picture| (picture, 0)).collect::<Vec<_>>());
        assert_eq!(test.batch(0, 3).len(), 4);
        assert!(test.batch(0, 4).is_empty() && train.batch(0, 3).is_empty());
    }

    #[test]
    fn the_parts_of_the_ranks_are_the_batch_of_one() {
        for seed in [Some(5), None] {
            for (ranks, pictures) in [(2, 100), (4, 97), (8, 101)] {
                let one = Order { samples: pictures, seed, ..ORDER };
                for step in 0..one.steps() {
                    let part = |rank| Order { rank, ranks, ..one }.batch(2, step);
                    let parts: Vec<_> = (0..ranks).flat_map(part).collect();
                    assert_eq!(parts, one.batch(2, step), "{ranks} ranks, seed {seed:?}");
                }
                assert!((0..ranks).all(|rank| Order { rank, ranks, ..one }.steps() == one.steps()));
            }
        }
    }

    #[test]
    fn repeats_are_neighbours_and_an_epoch_keeps_its_length() {
        let order = Order { repeats: 3, ..ORDER };
        let pictures = whole(order, 0);
        assert_eq!(pictures.len(), 96);
        assert_eq!(pictures.iter().map(|(picture, _)| picture).collect::<BTreeSet<_>>().len(), 32);
        for three in pictures.chunks(3) {
            let picture = three[0].0;
            assert_eq!(three, [(picture, 0), (picture, 1), (picture, 2)]);
        }
    }

    #[test]
    fn places_mirror_each_other() {
        for (ranks, rank) in [(1, 0), (2, 0), (2, 1), (4, 1)] {
            let order = Order { rank, ranks, ..ORDER };
            let one = ORDER.batch(0, 1);
            let mirrored: Vec<_> = order.epoch(0).samples(1, order.epoch(0).mirrored(1)).collect();
            let expected: Vec<_> = one.iter().rev().skip(rank * 32 / ranks).take(32 / ranks).rev().copied().collect();
            assert_eq!(mirrored, expected);
        }
    }

    #[test]
    fn an_order_that_cannot_work_is_refused() {
        for (order, field, value) in [
            (Order { samples: 0, ..ORDER }, "`samples`", "none"),
            (Order { batch: 0, ..ORDER }, "`batch`", "0"),
            (Order { repeats: 0, ..ORDER }, "`repeats`", "0"),
            (Order { ranks: 0, ..ORDER }, "`ranks`", "0"),
            (Order { rank: 2, ranks: 2, ..ORDER }, "`rank`", "2"),
            (Order { ranks: 3, ..ORDER }, "`batch`", "32"),
            (Order { samples: 31, ..ORDER }, "`batch`", "32"),
            (Order { seed: None, repeats: 3, ..ORDER }, "`repeats`", "3"),
        ] {
            let error = order.validate().unwrap_err().to_string();
            assert!(error.contains(field) && error.ends_with(value), "{error}");
        }
        let few = Order { samples: 31, ..ORDER }.validate().unwrap_err().to_string();
        assert_eq!(few, "`batch`: must be at most 31, the number of samples, got 32");
        assert!(Order { samples: 31, seed: None, ..ORDER }.validate().is_ok() && ORDER.validate().is_ok());
    }
}
