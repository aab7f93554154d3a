//! The server: its models by name, its limits, and the threads that compute.

use axum::Router;
use rayon::{ThreadPool, ThreadPoolBuilder};
use regard::data::Picture;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::answerer::Answerer;
use crate::body::{self, BodyLimits, RequestBody};
use crate::budget::Budget;
use crate::classifier::Classifier;
use crate::connections;
use crate::detector::Detector;
use crate::embedder::Embedder;
use crate::error::ApiError;
use crate::hosts::AllowedHosts;
use crate::lane::{LaneConfig, Served, panic_message};
use crate::metrics::Metrics;
use crate::pixels;
use crate::routes;
use crate::settings::{Event, Settings, Tell};
use crate::slot::{AnySlot, ModelSlot, Reload, Service};
use crate::translator::Translator;
use crate::video::VideoClassifier;

/// A model to serve.
pub struct Entry {
    /// Its name for clients.
    pub name: String,
    pub service: Service,
    /// Reloads it; embedded models never change.
    pub reload: Option<Reload>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no model to serve")]
    Empty,
    #[error("`{0}` is no name for a model")]
    Name(String),
    #[error("two models are called `{0}`")]
    Twice(String),
    #[error("`{field}` must be at least 1")]
    Zero { field: &'static str },
    #[error("cannot listen at {address}: {reason}")]
    Address { address: String, reason: String },
    #[error("{0}")]
    System(String),
}

/// A served model.
pub struct ServedModel {
    pub name: String,
    pub slot: AnySlot,
    reload: Option<Reload>,
    /// One reload at a time.
    reloading: Mutex<()>,
}

/// State shared by all handlers.
pub struct App {
    pub settings: Settings,
    pub tell: Tell,
    pub metrics: Metrics,
    /// Bytes of requests and answers.
    pub budget: Budget,
    /// In the order of the arguments; the first of a kind answers requests that name no model.
    models: Vec<Arc<ServedModel>>,
    pool: Arc<ThreadPool>,
    /// Bounds the number of tasks that wait in the pool.
    tasks: Arc<Semaphore>,
    /// Bounds the memory of decoders, in units of [`pixels::UNIT`].
    decoders: Arc<Semaphore>,
}

/// Models that answer over HTTP.
#[derive(Clone)]
pub struct Server {
    app: Arc<App>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("models", &self.app.names()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Server {
    /// # Errors
    /// When there is no model, a name is used twice or is invalid in a URL, or a limit is zero.
    pub fn new(entries: Vec<Entry>, settings: Settings, tell: Tell) -> Result<Self, Error> {
        let limits = [
            ("batch", settings.batch),
            ("queue", settings.queue),
            ("body", settings.body),
            ("connections", settings.connections),
            ("pixels", settings.pixels as usize),
            ("time", settings.time.as_millis() as usize),
        ];
        if let Some((field, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            return Err(Error::Zero { field });
        }
        if entries.is_empty() {
            return Err(Error::Empty);
        }
        let system = |error: &dyn std::fmt::Display| Error::System(error.to_string());
        let pool = ThreadPoolBuilder::new().thread_name(|i| format!("compute {i}")).build();
        let pool = Arc::new(pool.map_err(|error| system(&error))?);
        let metrics = Metrics::new();
        let config = LaneConfig { max_batch: settings.batch, max_delay: settings.wait, capacity: settings.queue };
        let mut models: Vec<Arc<ServedModel>> = Vec::new();
        for Entry { name, service, reload } in entries {
            if !is_name(&name) {
                return Err(Error::Name(name));
            }
            if models.iter().any(|model| model.name == name) {
                return Err(Error::Twice(name));
            }
            let observer = metrics.observer(&name, Arc::clone(&tell));
            let slot = AnySlot::new(&name, service, config, Arc::clone(&pool), observer);
            let slot = slot.map_err(|error| system(&error))?;
            metrics.on_load(&name);
            models.push(Arc::new(ServedModel { name, slot, reload, reloading: Mutex::default() }));
        }
        // requests of a batch are decoded before it is answered: with fewer tasks than it takes, it would never be full
        let tasks = Arc::new(Semaphore::new(pool.current_num_threads().max(settings.batch)));
        let decoders = Arc::new(Semaphore::new(pixels::units(settings.bodies as u64) as usize));
        let budget = Budget::new(settings.bodies.max(settings.body));
        Ok(Self { app: Arc::new(App { settings, tell, metrics, budget, models, pool, tasks, decoders }) })
    }

    /// Serves until `stop`, then answers pending requests.
    pub async fn serve(&self, listener: tokio::net::TcpListener, stop: impl Future<Output = ()>) {
        let bound = listener.local_addr().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
        let router = self.router(AllowedHosts::new(bound, &self.app.settings.hosts));
        connections::serve(&self.app, router, listener, stop).await;
    }

    /// Reloads all models; one that fails keeps its old version. [`Event`]s say which.
    pub async fn reload(&self) {
        for model in self.app.models() {
            // an event reports the reason
            let _ = self.app.reload(model).await;
        }
    }

    fn router(&self, hosts: AllowedHosts) -> Router {
        routes::router(Arc::clone(&self.app), hosts)
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.app.tell)(event);
    }
}

/// Names are part of URLs and of labels.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 100 && name.bytes().all(plain) && name.bytes().any(|byte| byte != b'.')
}

impl App {
    /// Names of all models.
    pub fn names(&self) -> String {
        self.models().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// All models in the order of the arguments.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.iter()
    }

    /// # Errors
    /// When there is no model of that name.
    pub fn model(&self, name: &str) -> Result<&Arc<ServedModel>, ApiError> {
        let found = self.models().find(|model| model.name == name);
        found.ok_or_else(|| ApiError::UnknownModel { name: name.into(), known: self.names() })
    }

    /// A classifier by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the model of that name is of another kind.
    pub fn classifier(&self, name: Option<&str>) -> Result<&ModelSlot<Classifier>, ApiError> {
        self.slot(name, "classifier", |slot| if let AnySlot::Classifier(slot) = slot { Some(slot) } else { None })
    }

    /// A detector by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the model of that name is of another kind.
    pub fn detector(&self, name: Option<&str>) -> Result<&ModelSlot<Detector>, ApiError> {
        self.slot(name, "detector", |slot| if let AnySlot::Detector(slot) = slot { Some(slot) } else { None })
    }

    /// A model of video by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the name is that of another kind of model.
    pub fn video(&self, name: Option<&str>) -> Result<&ModelSlot<VideoClassifier>, ApiError> {
        self.slot(name, "model of video", |slot| if let AnySlot::Video(slot) = slot { Some(slot) } else { None })
    }

    /// A translator by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the model of that name is of another kind.
    pub fn translator(&self, name: Option<&str>) -> Result<&ModelSlot<Translator>, ApiError> {
        self.slot(name, "translator", |slot| if let AnySlot::Translator(slot) = slot { Some(slot) } else { None })
    }

    /// A model of vision and language by its name, or the first that lacks nothing for `what` a client wants.
    ///
    /// # Errors
    /// When there is none, the model of that name is of another kind, or it lacks something.
    pub fn answerer(
        &self,
        name: Option<&str>,
        what: &str,
        missing: impl Fn(&Answerer) -> Option<&'static str>,
    ) -> Result<&ModelSlot<Answerer>, ApiError> {
        const fn of_kind(slot: &AnySlot) -> Option<&ModelSlot<Answerer>> {
            if let AnySlot::Answerer(slot) = slot { Some(slot) } else { None }
        }
        let mut slot = self.slot(name, "model of vision and language", of_kind)?;
        if name.is_none() {
            let mut all = self.models().filter_map(|model| of_kind(&model.slot));
            slot = all.find(|slot| missing(&slot.current()).is_none()).unwrap_or(slot);
        }
        match missing(&slot.current()) {
            None => Ok(slot),
            Some(reason) => Err(ApiError::Unprocessable(format!("`{}` cannot {what}: it lacks {reason}", slot.name()))),
        }
    }

    /// A BERT by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the model of that name is of another kind.
    pub fn embedder(&self, name: Option<&str>) -> Result<&ModelSlot<Embedder>, ApiError> {
        self.slot(name, "model of sentences", |slot| if let AnySlot::Embedder(slot) = slot { Some(slot) } else { None })
    }

    /// The model of a name if it is of a kind, or the first of that kind.
    fn slot<'a, S: Served>(
        &'a self,
        name: Option<&str>,
        kind: &str,
        of_kind: impl Fn(&'a AnySlot) -> Option<&'a ModelSlot<S>>,
    ) -> Result<&'a ModelSlot<S>, ApiError> {
        let Some(name) = name else {
            let first = self.models().find_map(|model| of_kind(&model.slot));
            return first.ok_or_else(|| ApiError::Unprocessable(format!("no {kind} is served here")));
        };
        let slot = &self.model(name)?.slot;
        of_kind(slot).ok_or_else(|| ApiError::Unprocessable(format!("`{name}` is a {}, not a {kind}", slot.kind())))
    }

    /// Reads the body of a request.
    pub async fn read(&self, request: axum::extract::Request) -> Result<RequestBody, ApiError> {
        self.read_at_most(request, self.settings.body).await
    }

    /// Reads the body of a request that should be short.
    pub async fn read_at_most(&self, request: axum::extract::Request, most: usize) -> Result<RequestBody, ApiError> {
        let (parts, body) = request.into_parts();
        let limits = BodyLimits { bytes: most.min(self.settings.body), time: self.settings.patience };
        body::read(&parts.headers, body, &self.budget, limits).await
    }

    /// Runs work in the pool, in turn; skipped if the client is gone by then.
    pub async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.tasks).acquire_owned().await.map_err(|_| ApiError::Internal)?;
        let (sender, result) = oneshot::channel();
        let tell = Arc::clone(&self.tell);
        self.pool.spawn(move || {
            // held until the work is done, even if nobody waits for it
            let _permit = permit;
            if sender.is_closed() {
                return;
            }
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
                tell(Event::Panicked { message: panic_message(payload.as_ref()) });
                Err(ApiError::Internal)
            });
            let _ = sender.send(done);
        });
        result.await.unwrap_or(Err(ApiError::Internal))
    }

    /// Decodes pictures in the pool, once there is memory for the largest of them, and runs work on them.
    pub async fn decode<T: Send + 'static>(
        &self,
        files: impl AsRef<[u8]> + Send + 'static,
        work: impl FnOnce(&Picture) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let size = pixels::Size::read(files.as_ref(), self.settings.pixels)?;
        let all = pixels::units(self.settings.bodies as u64);
        let permit = Arc::clone(&self.decoders).acquire_many_owned(pixels::units(size.memory).min(all)).await;
        let permit = permit.map_err(|_| ApiError::Internal)?;
        let budget = self.budget.clone();
        self.compute(move || {
            let picture = size.decode(files.as_ref());
            drop(files);
            let result = picture.and_then(|picture| work(&picture));
            drop(permit);
            budget.note_released(size.memory as usize);
            result
        })
        .await
    }

    /// Computes with what decodes to an unknown size, such as the frames of a clip: one at a time, beside no other decoder.
    pub async fn decode_alone<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let all = pixels::units(self.settings.bodies as u64);
        let permit = Arc::clone(&self.decoders).acquire_many_owned(all).await.map_err(|_| ApiError::Internal)?;
        let (budget, bytes) = (self.budget.clone(), self.settings.bodies);
        self.compute(move || {
            let result = work();
            drop(permit);
            budget.note_released(bytes);
            result
        })
        .await
    }

    /// Applies the time limit of a request; late work is abandoned.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let time: Duration = self.settings.time;
        tokio::time::timeout(time, work).await.unwrap_or(Err(ApiError::Timeout(time.as_secs())))
    }

    /// Reloads a model, in the pool, and replaces the current one.
    ///
    /// # Errors
    /// When that fails; the old model stays.
    pub async fn reload(&self, model: &Arc<ServedModel>) -> Result<(), String> {
        if model.reload.is_none() {
            return Ok(());
        }
        let _alone = model.reloading.lock().await;
        let (own, pool) = (Arc::clone(model), Arc::clone(&self.pool));
        let load = move || {
            let Some(reload) = &own.reload else { return Ok(()) };
            let service = catch_unwind(AssertUnwindSafe(|| pool.install(reload)));
            own.slot.swap(service.unwrap_or_else(|payload| Err(panic_message(payload.as_ref())))?)
        };
        let loaded = tokio::task::spawn_blocking(load).await.unwrap_or_else(|error| Err(error.to_string()));
        let name = model.name.clone();
        match &loaded {
            Ok(()) => {
                self.metrics.on_load(&name);
                (self.tell)(Event::Reloaded { name });
            }
            Err(reason) => (self.tell)(Event::Kept { name, reason: reason.clone() }),
        }
        loaded
    }
}
