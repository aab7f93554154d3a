//! Threads that make batches ahead, and the batches in their order.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::{EpochLoader, Samples};
use crate::Error;

/// Capacity of a thread's queue, in batches.
const AHEAD: usize = 2;

/// Batches in order; dropping this ends the threads.
pub(super) struct Batches<S: Samples> {
    maker: Option<Arc<EpochLoader<S>>>,
    steps: Range<usize>,
    /// What is reported instead of a batch.
    error: Option<Error>,
    queues: Vec<Receiver<Result<S::Batch, Error>>>,
    threads: Vec<JoinHandle<()>>,
    /// Batches taken.
    taken: usize,
}

impl<S: Samples> fmt::Debug for Batches<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl<S: Samples> Batches<S> {
    /// Only an error.
    pub(super) const fn failed(error: Error) -> Self {
        Self { maker: None, steps: 0..0, error: Some(error), queues: Vec::new(), threads: Vec::new(), taken: 0 }
    }

    pub(super) fn new(maker: Arc<EpochLoader<S>>, steps: Range<usize>, workers: usize) -> Self {
        let mut batches = Self {
            maker: Some(Arc::clone(&maker)),
            steps: steps.clone(),
            error: None,
            queues: Vec::new(),
            threads: Vec::new(),
            taken: 0,
        };
        let workers = workers.min(steps.len());
        for worker in 0..workers {
            let (sender, queue) = sync_channel(AHEAD);
            let (maker, steps) = (Arc::clone(&maker), steps.clone());
            let work = move || {
                for step in steps.skip(worker).step_by(workers) {
                    let batch = maker.batch(step);
                    let last = batch.is_err();
                    let Some(batch) = batch.transpose() else { return };
                    if sender.send(batch).is_err() || last {
                        return;
                    }
                }
            };
            match Builder::new().name(format!("loader {worker}")).spawn(work) {
                Ok(thread) => {
                    batches.queues.push(queue);
                    batches.threads.push(thread);
                }
                Err(error) => {
                    batches.error = Some(Error::config("workers", format!("no thread {worker}: {error}")));
                    break;
                }
            }
        }
        batches
    }

    /// Ends the threads; no batch follows.
    fn end(&mut self) {
        if let Some(maker) = self.maker.take() {
            maker.stop.store(true, Ordering::Relaxed);
        }
        self.steps = 0..0;
        // wakes threads that wait for space in their queue
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // a thread that panicked was reported as an error
            let _ = thread.join();
        }
    }
}

impl<S: Samples> Iterator for Batches<S> {
    type Item = Result<S::Batch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            self.end();
            return Some(Err(error));
        }
        let step = self.steps.next()?;
        let batch = if self.queues.is_empty() {
            self.maker.as_ref()?.batch(step).transpose()?
        } else {
            let ended = || Err(Error::config("workers", format!("a thread ended before step {step}")));
            self.queues[self.taken % self.queues.len()].recv().unwrap_or_else(|_| ended())
        };
        self.taken += 1;
        if batch.is_err() {
            self.end();
        }
        Some(batch)
    }
}

impl<S: Samples> Drop for Batches<S> {
    fn drop(&mut self) {
        self.end();
    }
}
