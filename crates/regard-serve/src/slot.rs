//! A model that can be replaced while it serves requests.
//!
//! A request keeps the model that it began with. So replacing a model drops no request: those in the queue are
//! answered by the old one, even if the new one needs another preprocessing.

use burn::tensor::Device;
use rayon::ThreadPool;
use regard::translate::Bundle;
use std::sync::{Arc, PoisonError, RwLock};

use crate::answerer::Answerer;
use crate::classifier::Classifier;
use crate::detector::Detector;
use crate::embedder::Embedder;
use crate::lane::{Lane, LaneConfig, LaneObserver, Served};
use crate::translator::Translator;
use crate::video::VideoClassifier;

/// A loaded model of any kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them, not an array
pub enum Service {
    Pictures(Classifier),
    Detections(Detector),
    Clips(VideoClassifier),
    Sentences { bundle: Bundle, device: Device },
    Answers(Answerer),
    Embeddings(Embedder),
}

/// Reloads a model; the caller gets the error.
pub type Reload = Box<dyn Fn() -> Result<Service, String> + Send + Sync>;

/// The current model, and its queue.
pub struct ModelSlot<S: Served> {
    name: String,
    current: RwLock<Arc<S>>,
    lane: Lane<S>,
}

impl<S: Served> ModelSlot<S> {
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(
        name: &str,
        model: S,
        config: LaneConfig,
        pool: Arc<ThreadPool>,
        observer: impl LaneObserver,
    ) -> std::io::Result<Self> {
        let lane = Lane::new(name, config, pool, observer)?;
        Ok(Self { name: name.into(), current: RwLock::new(Arc::new(model)), lane })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The current model, which may be used as long as needed.
    pub fn current(&self) -> Arc<S> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub const fn lane(&self) -> &Lane<S> {
        &self.lane
    }

    fn swap(&self, model: S) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
    }
}

/// A slot for any kind of model.
pub enum AnySlot {
    Classifier(ModelSlot<Classifier>),
    Detector(ModelSlot<Detector>),
    Video(ModelSlot<VideoClassifier>),
    Translator(ModelSlot<Translator>),
    Answerer(ModelSlot<Answerer>),
    Embedder(ModelSlot<Embedder>),
}

impl AnySlot {
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(
        name: &str,
        service: Service,
        config: LaneConfig,
        pool: Arc<ThreadPool>,
        observer: impl LaneObserver,
    ) -> std::io::Result<Self> {
        Ok(match service {
            Service::Pictures(model) => Self::Classifier(ModelSlot::new(name, model, config, pool, observer)?),
            Service::Detections(model) => Self::Detector(ModelSlot::new(name, model, config, pool, observer)?),
            Service::Clips(model) => Self::Video(ModelSlot::new(name, model, config, pool, observer)?),
            Service::Sentences { bundle, device } => {
                Self::Translator(ModelSlot::new(name, Translator { bundle, device }, config, pool, observer)?)
            }
            Service::Answers(model) => Self::Answerer(ModelSlot::new(name, model, config, pool, observer)?),
            Service::Embeddings(model) => Self::Embedder(ModelSlot::new(name, model, config, pool, observer)?),
        })
    }

    /// Replaces the current model with another of the same kind.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn swap(&self, service: Service) -> Result<(), String> {
        match (self, service) {
            (Self::Classifier(slot), Service::Pictures(model)) => slot.swap(model),
            (Self::Translator(slot), Service::Sentences { bundle, device }) => {
                slot.swap(Translator { bundle, device });
            }
            (Self::Detector(slot), Service::Detections(model)) => slot.swap(model),
            (Self::Video(slot), Service::Clips(model)) => slot.swap(model),
            (Self::Answerer(slot), Service::Answers(model)) => slot.swap(model),
            (Self::Embedder(slot), Service::Embeddings(model)) => slot.swap(model),
            (current, other) => {
                let other = match other {
                    Service::Pictures(_) => "classifier",
                    Service::Detections(_) => "detector",
                    Service::Clips(_) => "model of video",
                    Service::Sentences { .. } => "translator",
                    Service::Answers(_) => "model of vision and language",
                    Service::Embeddings(_) => "model of sentences",
                };
                return Err(format!("a {other} cannot replace a {}", current.kind()));
            }
        }
        Ok(())
    }

    /// The word for models of this kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Classifier(_) => "classifier",
            Self::Detector(_) => "detector",
            Self::Video(_) => "model of video",
            Self::Translator(_) => "translator",
            Self::Answerer(_) => "model of vision and language",
            Self::Embedder(_) => "model of sentences",
        }
    }

    /// How many samples hold a permit of its queue.
    pub fn in_use(&self) -> usize {
        match self {
            Self::Classifier(slot) => slot.lane().in_use(),
            Self::Detector(slot) => slot.lane().in_use(),
            Self::Video(slot) => slot.lane().in_use(),
            Self::Translator(slot) => slot.lane().in_use(),
            Self::Answerer(slot) => slot.lane().in_use(),
            Self::Embedder(slot) => slot.lane().in_use(),
        }
    }
}
