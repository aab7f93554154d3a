//! The server: its models by name, its limits, and the threads that compute.

use axum::Router;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::body::{self, Budget, Bytes};
use crate::connections;
use crate::lane::{Rules, panic_message};
use crate::meters::Meters;
use crate::refusal::Refusal;
use crate::routes;
use crate::service::{Kind, Pictures, Reload, Sentences, Service, Tools};
use crate::settings::{Event, Settings, Tell};

/// A model to serve.
pub struct Entry {
    /// What clients call it.
    pub name: String,
    pub service: Service,
    /// Loads it again; one that comes with the program never changes.
    pub reload: Option<Reload>,
}

/// Why there is no server.
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

/// A model in service.
pub struct Slot {
    pub name: String,
    pub kind: Kind,
    reload: Option<Reload>,
    /// One reload at a time.
    reloading: Mutex<()>,
}

/// What handlers share.
pub struct App {
    pub settings: Settings,
    pub tell: Tell,
    pub meters: Meters,
    /// In the order in which they were given: the first of a kind answers requests that name none.
    slots: Vec<Arc<Slot>>,
    budget: Budget,
    pool: Arc<ThreadPool>,
    /// Who is next to decode; as many as there are threads do so at a time, which bounds the pixels in memory.
    turns: Arc<Semaphore>,
}

/// Models that answer over HTTP.
#[derive(Clone)]
pub struct Server {
    app: Arc<App>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("models", &self.app.known()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Server {
    /// # Errors
    /// When there is no model, a name is taken twice or cannot stand in an address, or a limit is zero.
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
        let meters = Meters::new();
        let rules = Rules { batch: settings.batch, wait: settings.wait, queue: settings.queue };
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        for Entry { name, service, reload } in entries {
            if !is_name(&name) {
                return Err(Error::Name(name));
            }
            if slots.iter().any(|slot| slot.name == name) {
                return Err(Error::Twice(name));
            }
            let watch = meters.watch(&name, Arc::clone(&tell));
            let tools = Tools { rules, pool: Arc::clone(&pool), watch };
            let kind = Kind::start(&name, service, tools).map_err(|error| system(&error))?;
            meters.loaded(&name);
            slots.push(Arc::new(Slot { name, kind, reload, reloading: Mutex::default() }));
        }
        // a batch goes behind those who are next: with fewer of them than it takes, it would never be full
        let turns = Arc::new(Semaphore::new(pool.current_num_threads().max(settings.batch)));
        let budget = Budget::new(settings.bodies.max(settings.body));
        let app = App { settings, tell, meters, slots, budget, pool, turns };
        Ok(Self { app: Arc::new(app) })
    }

    /// Answers at a listener until `stop`, and then whatever was asked before.
    pub async fn serve(&self, listener: tokio::net::TcpListener, stop: impl Future<Output = ()>) {
        connections::serve(&self.app, self.router(), listener, stop).await;
    }

    /// Loads every model again; one that fails stays as it is, and both are told.
    pub async fn reload(&self) {
        for slot in self.app.slots() {
            // it was told
            let _ = self.app.reload(slot).await;
        }
    }

    pub(crate) fn router(&self) -> Router {
        routes::router(Arc::clone(&self.app))
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.app.tell)(event);
    }
}

/// Names stand in addresses and in labels.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 100 && name.bytes().all(plain) && name.bytes().any(|byte| byte != b'.')
}

impl App {
    /// Names of all models.
    pub fn known(&self) -> String {
        self.slots().map(|slot| slot.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// All models in the order in which they were given.
    pub fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.slots.iter()
    }

    /// # Errors
    /// When there is no model of that name.
    pub fn slot(&self, name: &str) -> Result<&Arc<Slot>, Refusal> {
        let found = self.slots().find(|slot| slot.name == name);
        found.ok_or_else(|| Refusal::Model { name: name.into(), known: self.known() })
    }

    /// A classifier by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the name is that of a translator.
    pub fn pictures(&self, name: Option<&str>) -> Result<(&str, &Pictures), Refusal> {
        let none = || Refusal::Unfit("no classifier of pictures is served here".into());
        let first = || self.slots().find(|slot| matches!(slot.kind, Kind::Pictures(_))).ok_or_else(none);
        let slot = name.map_or_else(first, |name| self.slot(name))?;
        match &slot.kind {
            Kind::Pictures(held) => Ok((&slot.name, held)),
            Kind::Sentences(_) => Err(Refusal::Unfit(format!("`{}` translates sentences", slot.name))),
        }
    }

    /// A translator by its name, or the first.
    ///
    /// # Errors
    /// When there is none, or the name is that of a classifier.
    pub fn sentences(&self, name: Option<&str>) -> Result<(&str, &Sentences), Refusal> {
        let none = || Refusal::Unfit("no translator is served here".into());
        let first = || self.slots().find(|slot| matches!(slot.kind, Kind::Sentences(_))).ok_or_else(none);
        let slot = name.map_or_else(first, |name| self.slot(name))?;
        match &slot.kind {
            Kind::Sentences(held) => Ok((&slot.name, held)),
            Kind::Pictures(_) => Err(Refusal::Unfit(format!("`{}` classifies pictures", slot.name))),
        }
    }

    /// Reads the body of a request.
    pub async fn read(&self, request: axum::extract::Request) -> Result<Bytes, Refusal> {
        let (parts, body) = request.into_parts();
        body::read(&parts.headers, body, &self.budget, &self.settings).await
    }

    /// Computes on the threads for that, in turn; nothing when the client is gone by then.
    pub async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| Refusal::Panicked)?;
        let (answer, answered) = oneshot::channel();
        let tell = Arc::clone(&self.tell);
        self.pool.spawn(move || {
            // held until the work is done, whoever still waits for it
            let _turn = turn;
            if answer.is_closed() {
                return;
            }
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
                tell(Event::Panicked { message: panic_message(payload.as_ref()) });
                Err(Refusal::Panicked)
            });
            let _ = answer.send(done);
        });
        answered.await.unwrap_or(Err(Refusal::Panicked))
    }

    /// Within the time that an answer may take; what comes too late is given up.
    pub async fn in_time<T>(&self, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let time: Duration = self.settings.time;
        tokio::time::timeout(time, work).await.unwrap_or(Err(Refusal::Late(time.as_secs())))
    }

    /// Loads a model again and puts it in the place of the old one.
    ///
    /// # Errors
    /// When that fails; the old one goes on.
    pub async fn reload(&self, slot: &Arc<Slot>) -> Result<(), String> {
        if slot.reload.is_none() {
            return Ok(());
        }
        let _alone = slot.reloading.lock().await;
        let own = Arc::clone(slot);
        let load = move || {
            let Some(reload) = &own.reload else { return Ok(()) };
            let service = catch_unwind(AssertUnwindSafe(reload));
            own.kind.swap(service.unwrap_or_else(|payload| Err(panic_message(payload.as_ref())))?)
        };
        let loaded = tokio::task::spawn_blocking(load).await.unwrap_or_else(|error| Err(error.to_string()));
        let name = slot.name.clone();
        match &loaded {
            Ok(()) => {
                self.meters.loaded(&name);
                (self.tell)(Event::Reloaded { name });
            }
            Err(reason) => (self.tell)(Event::Kept { name, reason: reason.clone() }),
        }
        loaded
    }
}
