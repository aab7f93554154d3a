//! Batches made ahead of time by threads, in an order that depends on the seed alone.
//!
//! Thread w makes the steps w, w + W, .. into a queue of its own; whoever iterates takes from the queues in turn.

mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::order::Epoch;
use super::{Augment, Batch, Dataset, Mix, Order, Preprocess, Target, channels, prepare, to_channels};
use crate::Error;
use crate::random::{Purpose, generator};
use threads::Batches;

/// How pictures become batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// 3, or 1 for gray.
    pub channels: usize,
    pub preprocess: Preprocess,
    /// None is as for a test: resized, and the middle taken.
    pub augment: Option<Augment>,
    pub mix: Mix,
    pub seed: u64,
}

/// Makes the batches of any epoch.
#[derive(Clone, Debug)]
pub struct Loader {
    pub dataset: Arc<dyn Dataset>,
    pub order: Order,
    pub preparation: Preparation,
    /// Threads that prepare batches; with none it happens where they are taken.
    pub workers: usize,
}

impl Preparation {
    /// # Errors
    /// When a field cannot work; the error names it and its value.
    pub fn validate(&self) -> Result<(), Error> {
        let [rows, columns] = self.image;
        if rows == 0 || columns == 0 {
            return Err(Error::config("image", format!("must have pixels, got {rows} x {columns}")));
        }
        channels::check(self.channels)?;
        self.mix.validate()?;
        self.augment.as_ref().map_or(Ok(()), Augment::validate)
    }
}

impl Loader {
    /// # Errors
    /// When no batches can be made; the error names the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.preparation.validate()?;
        self.order.validate()?;
        let (ordered, there) = (self.order.pictures, self.dataset.len());
        if ordered > there {
            return Err(Error::config("pictures", format!("must be at most {there}, got {ordered}")));
        }
        Ok(())
    }

    /// Batches of an epoch from a step on, prepared ahead; dropping them stops the threads.
    ///
    /// A picture that cannot be read is an error that names it. An error is the last thing that comes.
    pub fn epoch(&self, epoch: usize, step: usize) -> impl Iterator<Item = Result<Batch, Error>> + use<> {
        let steps = match self.validate() {
            Ok(()) => step..self.order.steps(),
            Err(error) => return Batches::failed(error),
        };
        Batches::new(Arc::new(self.epoch_loader(epoch)), steps, self.workers)
    }

    fn epoch_loader(&self, epoch: usize) -> EpochLoader {
        EpochLoader {
            dataset: Arc::clone(&self.dataset),
            pictures: self.order.epoch(epoch),
            repeats: self.order.repeats as u64,
            preparation: self.preparation.clone(),
            epoch: epoch as u64,
            stop: AtomicBool::new(false),
        }
    }
}

/// Makes the batches of one epoch.
#[derive(Debug)]
struct EpochLoader {
    dataset: Arc<dyn Dataset>,
    pictures: Epoch,
    repeats: u64,
    preparation: Preparation,
    epoch: u64,
    /// Nobody wants batches any more.
    stop: AtomicBool,
}

impl EpochLoader {
    /// The batch of a step; none when it was stopped meanwhile.
    fn batch(&self, step: usize) -> Result<Option<Batch>, Error> {
        let Preparation { mix, seed, image, .. } = self.preparation;
        let (own, mirrored) = (self.pictures.own(step), self.pictures.mirrored(step));
        let Some(mut batch) = self.part(step, own.clone())? else { return Ok(None) };
        if let Some(blend) = mix.draw(image, &mut generator(seed, Purpose::Mix, [self.epoch, step as u64])) {
            // what is mixed in may be another rank's, and is made here once more
            let others = if mirrored == own { Some(batch.clone()) } else { self.part(step, mirrored)? };
            let Some(others) = others else { return Ok(None) };
            blend.apply(&mut batch, &others);
        }
        Ok(Some(batch))
    }

    /// The pictures at some places of a batch, not mixed.
    fn part(&self, step: usize, places: std::ops::Range<usize>) -> Result<Option<Batch>, Error> {
        let Preparation { image: [rows, columns], channels, .. } = self.preparation;
        let shape = [places.len(), channels, rows, columns];
        let mut batch = Batch {
            images: Vec::with_capacity(shape.iter().product()),
            shape,
            targets: Vec::with_capacity(places.len()),
        };
        for (index, repeat) in self.pictures.pictures(step, places) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            // a decoder that panics is a broken picture, too
            let (image, class) = catch_unwind(AssertUnwindSafe(|| self.picture(index, repeat)))
                .unwrap_or_else(|panic| Err(self.panicked(index, panic.as_ref())))?;
            batch.images.extend_from_slice(&image);
            batch.targets.push(Target::pure(class));
        }
        Ok(Some(batch))
    }

    /// One picture as a model wants it, and its class.
    fn picture(&self, index: usize, repeat: u64) -> Result<(Vec<f32>, usize), Error> {
        let Preparation { image, channels, preprocess, augment, seed, .. } = &self.preparation;
        let picture = self.dataset.picture(index)?;
        let rgb = match augment {
            None => prepare(&picture, preprocess, *image),
            Some(augment) => {
                let place = index as u64 * self.repeats + repeat;
                let mut random = generator(*seed, Purpose::Augment, [self.epoch, place]);
                augment.apply(&picture, preprocess, *image, &mut random)
            }
        };
        Ok((to_channels(rgb, *channels)?, self.dataset.label(index)))
    }

    fn panicked(&self, index: usize, panic: &(dyn std::any::Any + Send)) -> Error {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown reason");
        Error::File { path: self.dataset.name(index), reason: format!("preparing it failed: {text}") }
    }
}

#[cfg(test)]
mod tests;
