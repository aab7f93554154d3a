//! What is served: classifiers of pictures and translators, each with its lane.
//!
//! A request keeps the model that it began with. Swapping a model therefore drops nobody: those on their way are answered
//! by the old one, whatever the new one expects of a picture.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use burn::tensor::{Device, Tensor, TensorData};
use rayon::ThreadPool;
use regard::PackedModel;
use regard::analyse::{Gram, cka};
use regard::cost::Convention;
use regard::data::{Picture, Preprocess, prepare, to_channels};
use regard::evaluate::{self, Answer};
use regard::function::softmax;
use regard::models::ModelConfig;
use regard::translate::{Bundle, Search, Translation};
use regard::weights;
use std::sync::{Arc, PoisonError, RwLock};

use crate::lane::{Lane, Place, Rules, Watch};
use crate::look::{self, Looked, View};
use crate::refusal::Refusal;

/// A model of either kind, ready to answer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them, not an array
pub enum Service {
    Pictures(Classifier),
    Sentences { bundle: Bundle, device: Device },
}

/// Loads a model again; the error is told to whoever asked.
pub type Reload = Box<dyn Fn() -> Result<Service, String> + Send + Sync>;

/// A classifier with what it needs to go from a picture to names.
#[derive(Debug)]
pub struct Classifier {
    model: PackedModel,
    config: ModelConfig,
    preprocess: Preprocess,
    labels: Vec<String>,
    device: Device,
    multiply_adds: u64,
}

/// How many numbers a model learned; what norms count along is no part of it.
fn learned<M: burn::module::Module>(model: &M) -> usize {
    let learned = weights::shapes(model).into_iter().filter(|(name, _)| !name.contains("running_"));
    learned.map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

impl Classifier {
    /// # Errors
    /// When there is not a label for each class.
    pub fn new(
        model: PackedModel,
        config: ModelConfig,
        preprocess: Preprocess,
        labels: Vec<String>,
        device: &Device,
    ) -> Result<Self, String> {
        if labels.len() != config.classes() {
            return Err(format!("{} labels for a model of {} classes", labels.len(), config.classes()));
        }
        let ledger = config.ledger(config.image()).map_err(|error| error.to_string())?;
        let multiply_adds = ledger.total(Convention::MultiplyAdds);
        Ok(Self { model, config, preprocess, labels, device: device.clone(), multiply_adds })
    }

    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Channels, rows and columns of a picture.
    pub fn shape(&self) -> [usize; 3] {
        let [rows, columns] = self.config.image();
        [self.config.channels(), rows, columns]
    }

    /// The bytes of a file with a picture as the model wants it, `[C, H, W]`.
    pub fn prepare(&self, bytes: &[u8], pixels: u64) -> Result<Vec<f32>, Refusal> {
        self.fitted(&Picture::decode_at_most(bytes, pixels).map_err(Refusal::Unfit)?)
    }

    /// A picture as the model wants it, `[C, H, W]`.
    pub fn fitted(&self, picture: &Picture) -> Result<Vec<f32>, Refusal> {
        Ok(to_channels(prepare(picture, &self.preprocess, self.config.image()), self.config.channels())?)
    }

    /// Pictures `[B, C, H, W]` as every layer sees them.
    pub fn seen(&self, pixels: Vec<f32>) -> Result<Vec<Gram>, Refusal> {
        Ok(cka::see(self.model.model(), self.tensor(pixels))?.0)
    }

    /// How many numbers it learned.
    pub fn parameters(&self) -> usize {
        learned(self.model.model())
    }

    /// Of one picture.
    pub const fn multiply_adds(&self) -> u64 {
        self.multiply_adds
    }

    /// A picture as [`prepare`](Self::prepare) made it, for people: a PNG as a `data:` address.
    pub fn shown(&self, pixels: &[f32]) -> String {
        let [channels, rows, columns] = self.shape();
        let Preprocess { mean, std, .. } = self.preprocess;
        let plane = rows * columns;
        let byte = |at: usize| {
            let (pixel, channel) = (at / 3, at % 3);
            // grey has one channel for all three
            let value = pixels[channel.min(channels - 1) * plane + pixel];
            ((value * std[channel] + mean[channel]) * 255.0).round().clamp(0.0, 255.0) as u8
        };
        let bytes = regard::report::png([rows, columns], &(0..3 * plane).map(byte).collect::<Vec<_>>());
        format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes))
    }

    /// `[B, C, H, W] -> [B, classes]`, so many pictures at a time.
    fn logits(&self, pixels: Vec<f32>, batch: usize) -> Vec<f32> {
        let picture: usize = self.shape().iter().product();
        if pixels.len() <= batch * picture {
            return numbers(self.model.forward(self.tensor(pixels)));
        }
        pixels
            .chunks(batch * picture)
            .flat_map(|piece| numbers(self.model.forward(self.tensor(piece.to_vec()))))
            .collect()
    }

    /// The best answers of one picture, the best first.
    pub fn answers(&self, logits: Vec<f32>, top: usize) -> Vec<Answer> {
        evaluate::answers(self.rows(logits), top).pop().unwrap_or_default()
    }

    /// `[B, classes]`: rows that sum to one.
    pub fn probabilities(&self, logits: Vec<f32>) -> Vec<f32> {
        numbers(softmax(self.rows(logits)))
    }

    fn rows(&self, logits: Vec<f32>) -> Tensor<2> {
        let classes = self.labels.len();
        let rows = logits.len() / classes;
        Tensor::from_data(TensorData::new(logits, [rows, classes]), &self.device)
    }

    fn tensor(&self, pixels: Vec<f32>) -> Tensor<4> {
        let [channels, rows, columns] = self.shape();
        let count = pixels.len() / (channels * rows * columns);
        Tensor::from_data(TensorData::new(pixels, [count, channels, rows, columns]), &self.device)
    }
}

fn numbers(logits: Tensor<2>) -> Vec<f32> {
    logits.into_data().try_to_vec().expect("logits are f32")
}

/// A question about pictures.
pub struct Asked {
    pub model: Arc<Classifier>,
    pub question: Question,
}

pub enum Question {
    /// `[B, C, H, W]`: which classes?
    Classes(Vec<f32>),
    /// `[C, H, W]`: where does it look?
    Look { pixels: Vec<f32>, view: View },
}

/// Its answer.
pub enum Answered {
    /// `[B, classes]`
    Logits(Vec<f32>),
    Looked(Result<Looked, Refusal>),
}

/// Answers questions; those about classes of one model together.
fn answer(asked: &[Asked], batch: usize) -> Vec<Answered> {
    let mut answers: Vec<Option<Answered>> = asked
        .iter()
        .map(|Asked { model, question }| match question {
            Question::Classes(_) => None,
            Question::Look { pixels, view } => {
                let image = model.tensor(pixels.clone());
                Some(Answered::Looked(look::look(model.model.model(), image, view)))
            }
        })
        .collect();
    while let Some(first) = answers.iter().position(Option::is_none) {
        let model = &asked[first].model;
        let together: Vec<usize> =
            (first..asked.len()).filter(|i| answers[*i].is_none() && Arc::ptr_eq(&asked[*i].model, model)).collect();
        let pixels = |i: usize| match &asked[i].question {
            Question::Classes(pixels) => pixels.as_slice(),
            Question::Look { .. } => &[],
        };
        let all = together.iter().map(|i| pixels(*i)).collect::<Vec<_>>().concat();
        let logits = model.logits(all, batch);
        let mut rest = logits.as_slice();
        let picture: usize = model.shape().iter().product();
        for i in together {
            let (own, others) = rest.split_at(pixels(i).len() / picture * model.labels.len());
            answers[i] = Some(Answered::Logits(own.to_vec()));
            rest = others;
        }
    }
    answers.into_iter().flatten().collect()
}

/// What a lane is made with.
pub struct Tools<W> {
    pub rules: Rules,
    pub pool: Arc<ThreadPool>,
    pub watch: W,
}

/// A model that can be swapped, and its queue.
pub struct Held<M, I, O> {
    current: RwLock<Arc<M>>,
    lane: Lane<I, O>,
}

impl<M, I: Send + 'static, O: Send + 'static> Held<M, I, O> {
    /// The model of now; whoever holds it may use it as long as needed.
    pub fn current(&self) -> Arc<M> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The model in a lane of its own, where `answer` has what is asked together and how much of it at a time.
    pub fn start(
        name: &str,
        model: M,
        Tools { rules, pool, watch }: Tools<impl Watch>,
        answer: impl Fn(&[I], usize) -> Vec<O> + Send + Sync + 'static,
    ) -> std::io::Result<Self>
    where
        I: Sync,
    {
        let run = move |asked: &[I]| pool.install(|| answer(asked, rules.batch));
        Ok(Self { current: RwLock::new(Arc::new(model)), lane: Lane::new(name, rules, watch, run)? })
    }

    fn swap(&self, model: M) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
    }

    pub const fn lane(&self) -> &Lane<I, O> {
        &self.lane
    }
}

/// Classifiers of pictures.
pub type Pictures = Held<Classifier, Asked, Answered>;

impl Pictures {
    /// `[B, C, H, W] -> [B, classes]`
    pub async fn classify(&self, place: Place, model: Arc<Classifier>, pixels: Vec<f32>) -> Result<Vec<f32>, Refusal> {
        match self.lane.ask(place, Asked { model, question: Question::Classes(pixels) }).await? {
            Answered::Logits(logits) => Ok(logits),
            Answered::Looked(_) => Err(Refusal::Panicked),
        }
    }

    pub async fn look(
        &self,
        place: Place,
        model: Arc<Classifier>,
        pixels: Vec<f32>,
        view: View,
    ) -> Result<Looked, Refusal> {
        match self.lane.ask(place, Asked { model, question: Question::Look { pixels, view } }).await? {
            Answered::Looked(looked) => looked,
            Answered::Logits(_) => Err(Refusal::Panicked),
        }
    }
}

/// A translator and where it computes.
#[derive(Debug)]
pub struct Translator {
    pub bundle: Bundle,
    pub device: Device,
}

impl Translator {
    pub fn parameters(&self) -> usize {
        learned(self.bundle.model())
    }
}

/// Texts to translate, and how many beginnings to keep.
pub struct Passage {
    pub model: Arc<Translator>,
    pub texts: Vec<String>,
    pub beam: usize,
}

/// Translations of each text, the best first.
pub type Translated = Result<Vec<Vec<Translation>>, Refusal>;

/// Translators.
pub type Sentences = Held<Translator, Passage, Translated>;

/// Translates the texts of requests that can go together as one batch.
fn translate(asked: &[Passage]) -> Vec<Translated> {
    let alike = |one: &Passage, other: &Passage| Arc::ptr_eq(&one.model, &other.model) && one.beam == other.beam;
    let search = |one: &Passage| Search { beam: one.beam, ..one.model.bundle.search() };
    let mut answers = Vec::new();
    for group in asked.chunk_by(alike) {
        let Translator { bundle, device } = group[0].model.as_ref();
        let of = |texts: &[&String]| bundle.translate(texts, &search(&group[0]), device, &mut |_| {});
        let all: Vec<&String> = group.iter().flat_map(|one| &one.texts).collect();
        if let Ok(mut found) = of(&all) {
            for one in group {
                let rest = found.split_off(one.texts.len());
                answers.push(Ok(std::mem::replace(&mut found, rest)));
            }
        } else {
            // one text is at fault: each request for itself
            let alone = |one: &Passage| of(&one.texts.iter().collect::<Vec<_>>()).map_err(Refusal::from);
            answers.extend(group.iter().map(alone));
        }
    }
    answers
}

/// A name and what answers to it.
pub enum Kind {
    Pictures(Pictures),
    Sentences(Sentences),
}

impl Kind {
    pub fn start(name: &str, service: Service, tools: Tools<impl Watch>) -> std::io::Result<Self> {
        Ok(match service {
            Service::Pictures(model) => Self::Pictures(Pictures::start(name, model, tools, answer)?),
            Service::Sentences { bundle, device } => {
                Self::Sentences(Sentences::start(name, Translator { bundle, device }, tools, |asked, _| {
                    translate(asked)
                })?)
            }
        })
    }

    /// Puts another model of the same kind in its place.
    ///
    /// # Errors
    /// When it is of the other kind.
    pub fn swap(&self, service: Service) -> Result<(), String> {
        match (self, service) {
            (Self::Pictures(held), Service::Pictures(model)) => held.swap(model),
            (Self::Sentences(held), Service::Sentences { bundle, device }) => {
                held.swap(Translator { bundle, device });
            }
            (Self::Pictures(_), Service::Sentences { .. }) => {
                return Err("a translator in the place of a classifier".into());
            }
            (Self::Sentences(_), Service::Pictures(_)) => {
                return Err("a classifier in the place of a translator".into());
            }
        }
        Ok(())
    }

    /// How many have a place in its queue.
    pub fn taken(&self) -> usize {
        match self {
            Self::Pictures(held) => held.lane.taken(),
            Self::Sentences(held) => held.lane.taken(),
        }
    }
}
