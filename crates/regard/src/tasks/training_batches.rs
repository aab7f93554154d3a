//! Training batches of the tasks whose samples come through a [`Loader`].

use crate::Error;
use crate::data::{Loader, Order, Samples};
use crate::train::{Common, Share, Steps, grouped};

/// How many samples there are, and how many make a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainingBatches<'a> {
    pub(super) common: &'a Common,
    /// What the samples are called in errors.
    pub(super) items: &'static str,
    pub(super) samples: usize,
    /// Samples of a step, over all ranks.
    pub(super) batch: usize,
    /// How many times a sample occurs in a row.
    pub(super) repeats: usize,
}

impl TrainingBatches<'_> {
    /// The shuffled order of an epoch; with accumulation, a batch is a part of a step.
    pub(super) fn order(&self, Share { rank, ranks }: Share) -> Result<Order, Error> {
        let Self { common, samples, batch, repeats, .. } = *self;
        let accumulate = common.accumulate;
        if !batch.is_multiple_of(accumulate * ranks) {
            let reason = format!("must be divisible by {ranks} ranks x {accumulate} parts of a step, got {batch}");
            return Err(Error::config("batch", reason));
        }
        let order = Order { samples, batch: batch / accumulate, repeats, seed: Some(common.seed), rank, ranks };
        order.validate()?;
        Ok(order)
    }

    /// Steps of an epoch.
    pub(super) fn epoch_steps(&self, ranks: usize) -> Result<usize, Error> {
        let Self { common, items, samples, batch, .. } = self;
        let steps = self.order(Share { rank: 0, ranks })?.steps() / common.accumulate;
        if steps == 0 {
            let reason = format!("{samples} training {items} are fewer than a batch of {batch}");
            return Err(Error::config("batch", reason));
        }
        Ok(steps)
    }

    /// A loader's batches of an epoch from a step on, as many at a time as are accumulated.
    pub(super) fn steps<'a, S: Samples>(
        &self,
        loader: Result<Loader<S>, Error>,
        epoch: usize,
        first: usize,
    ) -> Steps<'a, S::Batch> {
        let accumulate = self.common.accumulate;
        match loader {
            Ok(loader) => grouped(loader.epoch(epoch, first * accumulate), accumulate),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }
}
