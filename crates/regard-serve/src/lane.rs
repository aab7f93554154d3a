//! A bounded queue and the thread that answers it in batches.
//!
//! A place in the queue is taken before a request is decoded and given back when it was answered or given up, so that
//! places bound the memory of all requests. A batch waits for others only while some have a place and are not there
//! yet: a request that comes alone is answered at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::refusal::Refusal;

/// How a queue is answered.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The most of one batch.
    pub batch: usize,
    /// How long the first of a batch waits for others.
    pub wait: Duration,
    /// The most that have a place.
    pub queue: usize,
}

/// What a lane tells about itself.
pub trait Watch: Send + 'static {
    /// So many were answered together.
    fn batch(&self, size: usize);
    /// A request was given up before its turn.
    fn given_up(&self);
    /// Answering failed by a bug.
    fn panicked(&self, message: String);
}

/// The queue of a model.
pub struct Lane<I, O> {
    name: String,
    jobs: Sender<Job<I, O>>,
    places: Arc<Semaphore>,
    queue: usize,
}

/// Room in a queue.
#[derive(Debug)]
pub struct Place {
    permit: OwnedSemaphorePermit,
}

struct Job<I, O> {
    input: I,
    size: usize,
    since: Instant,
    answer: oneshot::Sender<Result<O, Refusal>>,
    place: Place,
}

impl<I: Send + 'static, O: Send + 'static> Lane<I, O> {
    /// Starts the thread, which ends with the lane.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(
        name: &str,
        rules: Rules,
        watch: impl Watch,
        run: impl Fn(&[I]) -> Vec<O> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = channel();
        let places = Arc::new(Semaphore::new(rules.queue));
        let worker = Worker { queue, places: Arc::clone(&places), rules, watch, run };
        thread::Builder::new().name(format!("lane {name}")).spawn(move || worker.work())?;
        Ok(Self { name: name.into(), jobs, places, queue: rules.queue })
    }

    /// Takes room for so many.
    ///
    /// # Errors
    /// When the queue is full now, or can never hold so many.
    pub fn reserve(&self, size: usize) -> Result<Place, Refusal> {
        if size > self.queue {
            return Err(Refusal::Unfit(format!("{size} in one request, the most is {}", self.queue)));
        }
        let permit = Arc::clone(&self.places).try_acquire_many_owned(size as u32);
        permit.map(|permit| Place { permit }).map_err(|_| Refusal::Full(self.name.clone()))
    }

    /// How many have a place.
    pub fn taken(&self) -> usize {
        self.queue - self.places.available_permits()
    }

    /// The answer, in its turn. Whoever drops this gives the question up.
    ///
    /// # Errors
    /// When answering failed.
    pub async fn ask(&self, place: Place, input: I) -> Result<O, Refusal> {
        let (answer, answered) = oneshot::channel();
        let size = place.permit.num_permits();
        let job = Job { input, size, since: Instant::now(), answer, place };
        self.jobs.send(job).map_err(|_| Refusal::Panicked)?;
        answered.await.unwrap_or(Err(Refusal::Panicked))
    }
}

struct Worker<I, O, W, R> {
    queue: Receiver<Job<I, O>>,
    places: Arc<Semaphore>,
    rules: Rules,
    watch: W,
    run: R,
}

impl<I, O, W: Watch, R: Fn(&[I]) -> Vec<O>> Worker<I, O, W, R> {
    fn work(&self) {
        let mut left = None;
        while let Some(first) = left.take().or_else(|| self.queue.recv().ok()) {
            let mut batch = Vec::new();
            left = self.gather(first, &mut batch);
            // some may be gone since they were gathered
            batch.retain(|job| self.is_wanted(job));
            if !batch.is_empty() {
                self.watch.batch(batch.iter().map(|job| job.size).sum());
                self.answer(batch);
            }
        }
    }

    /// Fills a batch; what does not fit into it is given back.
    fn gather(&self, first: Job<I, O>, batch: &mut Vec<Job<I, O>>) -> Option<Job<I, O>> {
        let deadline = first.since + self.rules.wait;
        let mut size = first.size;
        batch.push(first);
        while size < self.rules.batch {
            // all who have a place are here: nobody is on the way
            let alone = self.rules.queue - self.places.available_permits() <= size;
            let rest = if alone { Duration::ZERO } else { deadline.saturating_duration_since(Instant::now()) };
            let next = if rest.is_zero() { self.queue.try_recv().ok() } else { self.queue.recv_timeout(rest).ok() };
            let next = next?;
            if !self.is_wanted(&next) {
                continue;
            }
            if size + next.size > self.rules.batch {
                return Some(next);
            }
            size += next.size;
            batch.push(next);
        }
        None
    }

    /// Whether somebody still waits for the answer.
    fn is_wanted(&self, job: &Job<I, O>) -> bool {
        let wanted = !job.answer.is_closed();
        if !wanted {
            self.watch.given_up();
        }
        wanted
    }

    fn answer(&self, batch: Vec<Job<I, O>>) {
        let (inputs, waiting): (Vec<I>, Vec<_>) =
            batch.into_iter().map(|job| (job.input, (job.answer, job.place))).unzip();
        let answers: Vec<Result<O, Refusal>> = match self.attempt(&inputs) {
            Some(answers) => answers.into_iter().map(Ok).collect(),
            // one of them is at fault, the others have their answers
            None if inputs.len() > 1 => inputs
                .chunks(1)
                .map(|one| self.attempt(one).and_then(|mut answers| answers.pop()).ok_or(Refusal::Panicked))
                .collect(),
            None => vec![Err(Refusal::Panicked)],
        };
        for ((sender, place), answer) in waiting.into_iter().zip(answers) {
            // the next one may come as soon as this one hears
            drop(place);
            // nobody listens when the client is gone
            let _ = sender.send(answer);
        }
    }

    /// The answers to all, or none after a panic.
    fn attempt(&self, inputs: &[I]) -> Option<Vec<O>> {
        match catch_unwind(AssertUnwindSafe(|| (self.run)(inputs))) {
            Ok(answers) if answers.len() == inputs.len() => Some(answers),
            Ok(answers) => {
                self.watch.panicked(format!("{} answers to {} questions", answers.len(), inputs.len()));
                None
            }
            Err(payload) => {
                self.watch.panicked(panic_message(payload.as_ref()));
                None
            }
        }
    }
}

/// What a panic said.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown reason").to_string()
}

#[cfg(test)]
mod tests;
