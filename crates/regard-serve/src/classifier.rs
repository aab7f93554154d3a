//! Classifiers: from the bytes of a file to classes and attention.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use regard::PackedModel;
use regard::analyse::{Gram, cka};
use regard::cost::Convention;
use regard::data::{Picture, Preprocess, prepare, to_channels};
use regard::evaluate::{self, ClassProbability};
use regard::function::softmax;
use regard::models::ModelConfig;
use regard::weights;
use std::sync::Arc;

use crate::error::ApiError;
use crate::explain::{self, ExplainOptions, Explanation};
use crate::lane::{Batch, Permit, Served};
use crate::slot::ModelSlot;

/// A classifier with its preprocessing and class names.
#[derive(Debug)]
pub struct Classifier {
    model: PackedModel,
    config: ModelConfig,
    preprocess: Preprocess,
    labels: Vec<String>,
    device: Device,
    multiply_adds: u64,
}

/// Number of parameters, without running statistics of norms.
pub fn count_parameters<M: Module>(model: &M) -> usize {
    let parameters = weights::shapes(model).into_iter().filter(|(name, _)| !name.contains("running_"));
    parameters.map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

impl Classifier {
    /// # Errors
    /// When the number of labels is not the number of classes.
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

    /// A preprocessed picture, `[C, H, W]`.
    pub fn preprocess(&self, picture: &Picture) -> Result<Vec<f32>, ApiError> {
        Ok(to_channels(prepare(picture, &self.preprocess, self.config.image()), self.config.channels())?)
    }

    /// The Gram matrix of each layer for pictures `[B, C, H, W]`.
    pub fn gram_matrices(&self, pixels: Vec<f32>) -> Result<Vec<Gram>, ApiError> {
        Ok(cka::see(self.model.model(), self.tensor(pixels))?.0)
    }

    pub fn parameters(&self) -> usize {
        count_parameters(self.model.model())
    }

    /// Of one picture.
    pub const fn multiply_adds(&self) -> u64 {
        self.multiply_adds
    }

    /// A picture after [`preprocess`](Self::preprocess), as a PNG in a `data:` URL.
    pub fn data_url(&self, pixels: &[f32]) -> String {
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

    /// `[B, C, H, W] -> [B, classes]`, at most `batch` pictures at a time.
    fn logits(&self, pixels: Vec<f32>, batch: usize) -> Vec<f32> {
        let picture: usize = self.shape().iter().product();
        if pixels.len() <= batch * picture {
            return to_vec(self.model.forward(self.tensor(pixels)));
        }
        pixels
            .chunks(batch * picture)
            .flat_map(|piece| to_vec(self.model.forward(self.tensor(piece.to_vec()))))
            .collect()
    }

    fn rows(&self, logits: &[f32]) -> Tensor<2> {
        let classes = self.labels.len();
        let rows = logits.len() / classes;
        Tensor::from_data(TensorData::new(logits.to_vec(), [rows, classes]), &self.device)
    }

    fn tensor(&self, pixels: Vec<f32>) -> Tensor<4> {
        let [channels, rows, columns] = self.shape();
        let count = pixels.len() / (channels * rows * columns);
        Tensor::from_data(TensorData::new(pixels, [count, channels, rows, columns]), &self.device)
    }

    /// The response from the logits of one request.
    fn scores(&self, logits: &[f32], top: Option<usize>) -> Option<ClassScores> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        Some(match top {
            Some(top) => ClassScores::Best(evaluate::top_classes(self.rows(logits), top).pop().unwrap_or_default()),
            None => ClassScores::All { logits: logits.to_vec(), probabilities: to_vec(softmax(self.rows(logits))) },
        })
    }
}

fn to_vec(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("logits are f32")
}

/// A request to a classifier.
pub enum ClassifierRequest {
    /// `pixels` are `[B, C, H, W]`; `top` requests the best classes of one picture, `None` all logits and probabilities.
    Classify { pixels: Vec<f32>, top: Option<usize> },
    /// `pixels` are `[C, H, W]`.
    Explain { pixels: Vec<f32>, options: ExplainOptions },
}

/// Its response; `None` if the model gave infinity or NaN.
pub enum ClassifierResponse {
    Scores(Option<ClassScores>),
    Explanation(Result<Option<Explanation>, ApiError>),
}

/// A response of a classifier; all numbers are finite.
pub enum ClassScores {
    /// The best classes of one picture, the best first.
    Best(Vec<ClassProbability>),
    /// `[B, classes]` each; rows of probabilities sum to one.
    All { logits: Vec<f32>, probabilities: Vec<f32> },
}

impl Served for Classifier {
    type Request = ClassifierRequest;
    type Response = ClassifierResponse;

    /// Classifies all pictures together, and explains them one by one.
    fn answer(&self, requests: &[ClassifierRequest], batch: &Batch<'_>) -> Vec<ClassifierResponse> {
        let mut all = Vec::new();
        for request in requests {
            if let ClassifierRequest::Classify { pixels, .. } = request {
                all.extend_from_slice(pixels);
            }
        }
        let logits = if all.is_empty() { all } else { self.logits(all, batch.max_size) };
        let mut rest = logits.as_slice();
        let picture: usize = self.shape().iter().product();
        let answer = |request: &ClassifierRequest| match request {
            ClassifierRequest::Classify { pixels, top } => {
                let (own, others) = rest.split_at(pixels.len() / picture * self.labels.len());
                rest = others;
                ClassifierResponse::Scores(self.scores(own, *top))
            }
            ClassifierRequest::Explain { pixels, options } => {
                let image = self.tensor(pixels.clone());
                let explanation = explain::explain(self.model.model(), image, options);
                ClassifierResponse::Explanation(explanation.map(|found| Some(found).filter(Explanation::is_finite)))
            }
        };
        requests.iter().map(answer).collect()
    }
}

impl ModelSlot<Classifier> {
    /// `[B, C, H, W]` from a client to logits and probabilities, `[B, classes]` each.
    pub async fn infer(
        &self,
        permit: Permit,
        model: Arc<Classifier>,
        pixels: Vec<f32>,
    ) -> Result<[Vec<f32>; 2], ApiError> {
        let request = ClassifierRequest::Classify { pixels, top: None };
        match self.lane().submit(permit, model, request).await? {
            ClassifierResponse::Scores(Some(ClassScores::All { logits, probabilities })) => Ok([logits, probabilities]),
            ClassifierResponse::Scores(None) => Err(ApiError::Overflow(self.name().into())),
            _ => Err(ApiError::Internal),
        }
    }

    /// The best classes of one picture, `[C, H, W]`.
    pub async fn classify(
        &self,
        permit: Permit,
        model: Arc<Classifier>,
        pixels: Vec<f32>,
        top: usize,
    ) -> Result<Vec<ClassProbability>, ApiError> {
        let request = ClassifierRequest::Classify { pixels, top: Some(top) };
        match self.lane().submit(permit, model, request).await? {
            ClassifierResponse::Scores(Some(ClassScores::Best(answers))) => Ok(answers),
            ClassifierResponse::Scores(None) => Err(ApiError::NotFinite(self.name().into())),
            _ => Err(ApiError::Internal),
        }
    }

    pub async fn explain(
        &self,
        permit: Permit,
        model: Arc<Classifier>,
        pixels: Vec<f32>,
        options: ExplainOptions,
    ) -> Result<Explanation, ApiError> {
        let request = ClassifierRequest::Explain { pixels, options };
        match self.lane().submit(permit, model, request).await? {
            ClassifierResponse::Explanation(explanation) => {
                explanation?.ok_or_else(|| ApiError::NotFinite(self.name().into()))
            }
            ClassifierResponse::Scores(_) => Err(ApiError::Internal),
        }
    }
}
