//! A bounded queue and the thread that processes it in batches.
//!
//! A request takes a permit before it is decoded and returns it when answered or abandoned, so that permits
//! bound the memory of all requests. A batch waits only for requests that hold a permit but are not in the queue
//! yet: a lone request is answered at once.

use rayon::ThreadPool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::ApiError;

/// A model that answers requests in batches.
pub trait Served: Send + Sync + 'static {
    type Request: Send + Sync + 'static;
    type Response: Send + 'static;

    /// One response for each request, in their order.
    fn answer(&self, requests: &[Self::Request], batch: &Batch<'_>) -> Vec<Self::Response>;
}

/// A batch of requests, as a model sees it.
pub struct Batch<'a> {
    /// Maximum number of samples per forward pass.
    pub max_size: usize,
    is_wanted: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Batch<'a> {
    pub fn new(max_size: usize, is_wanted: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { max_size, is_wanted }
    }

    /// Whether any client is still waiting. Long work checks this before each step, and stops if not.
    pub fn is_wanted(&self) -> bool {
        (self.is_wanted)()
    }
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// Maximum number of samples per batch.
    pub max_batch: usize,
    /// How long the first request of a batch waits for others.
    pub max_delay: Duration,
    /// Maximum number of samples with a permit.
    pub capacity: usize,
}

/// Observes a lane.
pub trait LaneObserver: Send + 'static {
    /// A batch of this many samples starts.
    fn on_batch(&self, size: usize);
    /// The client of a request disconnected before its turn.
    fn on_abandoned(&self);
    /// The model panicked.
    fn on_panic(&self, message: String);
}

/// The queue of a model.
pub struct Lane<S: Served> {
    name: String,
    jobs: Sender<Job<S>>,
    permits: Arc<Semaphore>,
    capacity: usize,
}

/// A permit for a number of samples in a queue.
#[derive(Debug)]
pub struct Permit {
    permit: OwnedSemaphorePermit,
}

struct Job<S: Served> {
    /// The model of the request; it may have been replaced since.
    model: Arc<S>,
    request: S::Request,
    size: usize,
    since: Instant,
    reply: Reply<S>,
}

struct Reply<S: Served> {
    sender: oneshot::Sender<Result<S::Response, ApiError>>,
    permit: Permit,
}

impl<S: Served> Lane<S> {
    /// Starts the thread, which ends with the lane and runs the model in the pool.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(
        name: &str,
        config: LaneConfig,
        pool: Arc<ThreadPool>,
        observer: impl LaneObserver,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = channel();
        let permits = Arc::new(Semaphore::new(config.capacity));
        let worker = Worker { queue, permits: Arc::clone(&permits), config, pool, observer };
        thread::Builder::new().name(format!("lane {name}")).spawn(move || worker.run())?;
        Ok(Self { name: name.into(), jobs, permits, capacity: config.capacity })
    }

    /// Takes a permit for a number of samples.
    ///
    /// # Errors
    /// When the queue is full, or is too small for this many.
    pub fn reserve(&self, size: usize) -> Result<Permit, ApiError> {
        if size > self.capacity {
            return Err(ApiError::Unprocessable(format!("{size} in one request, the most is {}", self.capacity)));
        }
        let permit = Arc::clone(&self.permits).try_acquire_many_owned(size as u32);
        permit.map(|permit| Permit { permit }).map_err(|_| ApiError::QueueFull(self.name.clone()))
    }

    /// Number of samples with a permit.
    pub fn in_use(&self) -> usize {
        self.capacity - self.permits.available_permits()
    }

    /// The response, in its turn. Dropping this abandons the request.
    ///
    /// # Errors
    /// When the model failed.
    pub async fn submit(&self, permit: Permit, model: Arc<S>, request: S::Request) -> Result<S::Response, ApiError> {
        let (sender, response) = oneshot::channel();
        let size = permit.permit.num_permits();
        let job = Job { model, request, size, since: Instant::now(), reply: Reply { sender, permit } };
        self.jobs.send(job).map_err(|_| ApiError::Internal)?;
        response.await.unwrap_or(Err(ApiError::Internal))
    }
}

struct Worker<S: Served, O> {
    queue: Receiver<Job<S>>,
    permits: Arc<Semaphore>,
    config: LaneConfig,
    pool: Arc<ThreadPool>,
    observer: O,
}

impl<S: Served, O: LaneObserver> Worker<S, O> {
    fn run(&self) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| self.queue.recv().ok()) {
            let mut batch = Vec::new();
            next = self.gather(first, &mut batch);
            // some clients may have disconnected meanwhile
            batch.retain(|job| self.is_wanted(job));
            if !batch.is_empty() {
                self.observer.on_batch(batch.iter().map(|job| job.size).sum());
                self.answer(batch);
            }
        }
    }

    /// Fills a batch; returns the job that no longer fits.
    fn gather(&self, first: Job<S>, batch: &mut Vec<Job<S>>) -> Option<Job<S>> {
        let LaneConfig { max_batch, max_delay, capacity } = self.config;
        let deadline = first.since + max_delay;
        let mut size = first.size;
        batch.push(first);
        while size < max_batch {
            // all permits belong to this batch: no other request is coming
            let alone = capacity - self.permits.available_permits() <= size;
            let rest = if alone { Duration::ZERO } else { deadline.saturating_duration_since(Instant::now()) };
            let next = if rest.is_zero() { self.queue.try_recv().ok() } else { self.queue.recv_timeout(rest).ok() };
            let next = next?;
            if !self.is_wanted(&next) {
                continue;
            }
            if size + next.size > max_batch {
                return Some(next);
            }
            size += next.size;
            batch.push(next);
        }
        None
    }

    /// Whether the client is still waiting.
    fn is_wanted(&self, job: &Job<S>) -> bool {
        let wanted = !job.reply.sender.is_closed();
        if !wanted {
            self.observer.on_abandoned();
        }
        wanted
    }

    /// Processes a batch, grouped by model.
    fn answer(&self, mut batch: Vec<Job<S>>) {
        while !batch.is_empty() {
            let model = Arc::clone(&batch[0].model);
            let (own, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(|job| Arc::ptr_eq(&job.model, &model));
            let (requests, replies): (Vec<_>, Vec<_>) = own.into_iter().map(|job| (job.request, job.reply)).unzip();
            self.answer_with(&model, &requests, replies);
            batch = others;
        }
    }

    fn answer_with(&self, model: &S, requests: &[S::Request], replies: Vec<Reply<S>>) {
        let responses: Vec<Result<S::Response, ApiError>> = match self.attempt(model, requests, &replies) {
            Some(responses) => responses.into_iter().map(Ok).collect(),
            // one of them is at fault: run each request alone
            None if requests.len() > 1 => requests
                .chunks(1)
                .zip(replies.chunks(1))
                .map(|(one, reply)| {
                    self.attempt(model, one, reply).and_then(|mut all| all.pop()).ok_or(ApiError::Internal)
                })
                .collect(),
            None => vec![Err(ApiError::Internal)],
        };
        for (Reply { sender, permit }, response) in replies.into_iter().zip(responses) {
            // a client may send its next request at once
            drop(permit);
            // the client may be gone
            let _ = sender.send(response);
        }
    }

    /// The responses, or `None` after a panic.
    fn attempt(&self, model: &S, requests: &[S::Request], replies: &[Reply<S>]) -> Option<Vec<S::Response>> {
        let is_wanted = || replies.iter().any(|reply| !reply.sender.is_closed());
        let batch = Batch::new(self.config.max_batch, &is_wanted);
        let answer = || self.pool.install(|| model.answer(requests, &batch));
        match catch_unwind(AssertUnwindSafe(answer)) {
            Ok(responses) if responses.len() == requests.len() => Some(responses),
            Ok(responses) => {
                self.observer.on_panic(format!("{} responses to {} requests", responses.len(), requests.len()));
                None
            }
            Err(payload) => {
                self.observer.on_panic(panic_message(payload.as_ref()));
                None
            }
        }
    }
}

/// The message of a panic.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown reason").to_string()
}

#[cfg(test)]
mod tests;
