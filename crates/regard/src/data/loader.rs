//! Batches prefetched by threads, in an order that depends on the seed alone.
//!
//! [`Samples`] defines what a sample is and how samples become a batch. Thread w makes the steps w, w + W, .. into a
//! queue of its own; the iterator takes from the queues in turn.

mod threads;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Order;
use super::order::Epoch;
use crate::Error;
use threads::Batches;

/// Samples by index, prepared for a model, and how they become a batch.
///
/// Random numbers depend on the ids alone: any thread may load any sample, and more than once.
pub trait Samples: Clone + Debug + Send + Sync + 'static {
    type Sample;
    type Batch: Clone + Send + 'static;

    /// Number of samples.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a sample in errors, such as its path.
    fn name(&self, index: usize) -> String;

    /// # Errors
    /// When a setting cannot work; the error names it.
    fn validate(&self) -> Result<(), Error>;

    /// One sample, read and prepared.
    ///
    /// # Errors
    /// When it cannot be read; the error names it.
    fn load(&self, id: SampleId) -> Result<Self::Sample, Error>;

    /// Makes a batch of samples, in order; at least one, unless a rank has no part of a short batch.
    ///
    /// # Errors
    /// When they do not fit together.
    fn collate(&self, samples: Vec<Self::Sample>) -> Result<Self::Batch, Error>;

    /// How a batch is mixed with the batch of its partners; if `None`, partners are not loaded.
    ///
    /// The partner of the first sample of a batch, over all ranks, is the last, and so on; partners are in the order of the
    /// batch.
    fn mix(&self, _id: BatchId) -> Option<Mixing<Self::Batch>> {
        None
    }
}

/// Mixes a batch with its partners.
pub type Mixing<B> = Box<dyn FnOnce(&mut B, &B)>;

/// A sample of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleId {
    pub index: usize,
    pub epoch: u64,
    /// Differs for every repeat of a sample: its random changes are drawn from this and the epoch.
    pub draw_id: u64,
}

/// A batch of an epoch, the same one for every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    pub epoch: u64,
    pub step: u64,
}

/// Makes the batches of any epoch.
#[derive(Clone, Debug)]
pub struct Loader<S> {
    pub samples: S,
    pub order: Order,
    /// Threads that prepare batches; if zero, the calling thread prepares them.
    pub workers: usize,
}

impl<S: Samples> Loader<S> {
    /// # Errors
    /// When no batches can be made; the error names the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.samples.validate()?;
        self.order.validate()?;
        let (ordered, there) = (self.order.samples, self.samples.len());
        if ordered > there {
            return Err(Error::config("samples", format!("must be at most {there}, got {ordered}")));
        }
        Ok(())
    }

    /// Batches of an epoch from a step on, prefetched; dropping this stops the threads.
    ///
    /// A sample that cannot be read is an error that names it. Nothing follows an error.
    pub fn epoch(&self, epoch: usize, step: usize) -> impl Iterator<Item = Result<S::Batch, Error>> + use<S> {
        let steps = match self.validate() {
            Ok(()) => step..self.order.steps(),
            Err(error) => return Batches::failed(error),
        };
        Batches::new(Arc::new(self.epoch_loader(epoch)), steps, self.workers)
    }

    fn epoch_loader(&self, epoch: usize) -> EpochLoader<S> {
        EpochLoader {
            samples: self.samples.clone(),
            order: self.order.epoch(epoch),
            repeats: self.order.repeats as u64,
            epoch: epoch as u64,
            stop: AtomicBool::new(false),
        }
    }
}

/// Makes the batches of one epoch.
#[derive(Debug)]
struct EpochLoader<S> {
    samples: S,
    order: Epoch,
    repeats: u64,
    epoch: u64,
    /// Set when no more batches are needed.
    stop: AtomicBool,
}

impl<S: Samples> EpochLoader<S> {
    /// The batch of a step; `None` if stopped meanwhile.
    fn batch(&self, step: usize) -> Result<Option<S::Batch>, Error> {
        let (own, mirrored) = (self.order.own(step), self.order.mirrored(step));
        let Some(mut batch) = self.part(step, own.clone())? else { return Ok(None) };
        if let Some(mix) = self.samples.mix(BatchId { epoch: self.epoch, step: step as u64 }) {
            // partners may belong to another rank, and are loaded again here
            let partners = if mirrored == own { Some(batch.clone()) } else { self.part(step, mirrored)? };
            let Some(partners) = partners else { return Ok(None) };
            mix(&mut batch, &partners);
        }
        Ok(Some(batch))
    }

    /// The samples at some indices of a batch, not mixed.
    fn part(&self, step: usize, places: std::ops::Range<usize>) -> Result<Option<S::Batch>, Error> {
        let mut samples = Vec::with_capacity(places.len());
        for (index, repeat) in self.order.samples(step, places) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let id = SampleId { index, epoch: self.epoch, draw_id: index as u64 * self.repeats + repeat };
            // a decoder that panics is a broken sample, too
            let sample = catch_unwind(AssertUnwindSafe(|| self.samples.load(id)));
            samples.push(sample.unwrap_or_else(|panic| Err(self.panicked(index, panic.as_ref())))?);
        }
        self.samples.collate(samples).map(Some)
    }

    fn panicked(&self, index: usize, panic: &(dyn std::any::Any + Send)) -> Error {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown reason");
        Error::File { path: self.samples.name(index), reason: format!("preparing it failed: {text}") }
    }
}

#[cfg(test)]
mod tests;
