//! Models of video: from the bytes of a file, or of its frames, to names of classes, and where the model looks.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use burn::tensor::{Device, Tensor, TensorData};
use regard::Pass;
use regard::analyse::{ClipMap, ClipQuery, RolloutOptions, explain_clip};
use regard::cost::Convention;
use regard::data::clip::{ClipLength, FrameSampling, Video};
use regard::data::{Batch as PictureBatch, Clips, Picture, Preprocess, denormalise};
use regard::evaluate::{self, ClassProbability};
use regard::function::softmax;
use regard::models::{VideoConfig, VideoModel};
use regard::tasks::clips::{ClipPreparation, PreparedViews};
use regard::weights::LoadedVideo;
use serde::Serialize;
use std::sync::Arc;

use crate::classifier::count_parameters;
use crate::error::ApiError;
use crate::lane::{Batch, Permit, Served};
use crate::slot::ModelSlot;

/// Frames a second of a clip that was sent as pictures.
const RATE: f64 = 30.0;

/// A model of video with what it needs to go from a file to names.
#[derive(Debug)]
pub struct VideoClassifier {
    model: VideoModel,
    config: VideoConfig,
    preprocess: Preprocess,
    sampling: FrameSampling,
    labels: Vec<String>,
    device: Device,
    multiply_adds: u64,
}

/// What was sent.
#[derive(Debug)]
pub enum SentClip {
    /// The bytes of a video file.
    File(Vec<u8>),
    Frames(Vec<Picture>),
}

impl VideoClassifier {
    /// # Errors
    /// When there is not a label for each class.
    pub fn new(loaded: LoadedVideo, labels: Vec<String>, device: &Device) -> Result<Self, String> {
        let LoadedVideo { model, config, preprocess, sampling, .. } = loaded;
        if labels.len() != config.classes() {
            return Err(format!("{} labels for a model of {} classes", labels.len(), config.classes()));
        }
        let ledger = config.ledger().map_err(|error| error.to_string())?;
        let multiply_adds = ledger.total(Convention::MultiplyAdds);
        Ok(Self { model, config, preprocess, sampling, labels, device: device.clone(), multiply_adds })
    }

    pub const fn config(&self) -> &VideoConfig {
        &self.config
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    pub fn parameters(&self) -> usize {
        count_parameters(&self.model)
    }

    /// Of one clip.
    pub const fn multiply_adds(&self) -> u64 {
        self.multiply_adds
    }

    /// Channels, frames, rows and columns of a clip.
    pub const fn shape(&self) -> [usize; 4] {
        let [rows, columns] = self.config.image();
        [self.config.channels(), self.config.frames(), rows, columns]
    }

    /// The frames that the model sees of what was sent, `[C, T, H, W]`.
    ///
    /// # Errors
    /// When it is no clip.
    pub fn prepare(&self, sent: SentClip) -> Result<PreparedViews, ApiError> {
        let preparation = ClipPreparation::of(&self.config, self.preprocess, self.sampling);
        let prepared = match sent {
            SentClip::File(bytes) => Video::from_bytes("the clip", bytes)
                .and_then(|video| preparation.views(video.length(), |wanted| video.frames(wanted))),
            SentClip::Frames(frames) => {
                let length = ClipLength { frames: frames.len(), rate: RATE };
                preparation.views(length, |wanted| Ok(wanted.iter().map(|index| frames[*index].clone()).collect()))
            }
        };
        prepared.map_err(|error| ApiError::Unprocessable(error.to_string()))
    }

    /// The frames of [`prepare`](Self::prepare) for people: PNGs as `data:` URLs.
    pub fn data_urls(&self, pixels: &[f32]) -> Vec<String> {
        let [channels, frames, rows, columns] = self.shape();
        let area = rows * columns;
        let plane = |frame: usize, channel: usize| &pixels[(channel * frames + frame) * area..][..area];
        let planes = (0..frames).flat_map(|frame| (0..channels).map(move |channel| plane(frame, channel)));
        let images = planes.flatten().copied().collect();
        let batch = PictureBatch { images, shape: [frames, channels, rows, columns], targets: Vec::new() };
        let url = |picture: &Picture| {
            let bytes = regard::report::png(picture.size(), picture.pixels());
            format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes))
        };
        denormalise(&batch, &self.preprocess).iter().map(url).collect()
    }

    fn clips(&self, pixels: &[f32]) -> Clips {
        let [channels, frames, rows, columns] = self.shape();
        let count = pixels.len() / (channels * frames * rows * columns);
        let data = TensorData::new(pixels.to_vec(), [count, channels, frames, rows, columns]);
        Clips { pixels: Tensor::from_data(data, &self.device) }
    }

    /// `[B, C, T, H, W] -> [B, classes]`, at most `batch` clips at a time.
    fn logits(&self, pixels: &[f32], batch: &Batch<'_>) -> Result<Vec<f32>, ApiError> {
        let clip = self.shape().iter().product::<usize>();
        let mut logits = Vec::new();
        for part in pixels.chunks(batch.max_size.max(1) * clip) {
            if !batch.is_wanted() {
                return Err(ApiError::Internal);
            }
            logits.extend(to_vec(self.model.forward(&self.clips(part), &mut Pass::silent())));
        }
        Ok(logits)
    }

    fn rows(&self, logits: &[f32]) -> Tensor<2> {
        let classes = self.labels.len();
        Tensor::from_data(TensorData::new(logits.to_vec(), [logits.len() / classes, classes]), &self.device)
    }

    fn look(&self, pixels: &[f32], query: Option<ClipPoint>) -> Result<ClipAttention, ApiError> {
        let explanation = explain_clip(&self.model, &self.clips(pixels), self.labels.len().min(5))?;
        let query = query.map_or(ClipQuery::Class, |ClipPoint { frame, y, x }| ClipQuery::At { frame, point: [y, x] });
        let rollout = explanation.rollout(RolloutOptions::default()).ok().map(LayerMap::of);
        // models without class tokens show where the middle looks
        let mut maps = explanation.maps(query);
        if maps.is_empty() && query == ClipQuery::Class {
            maps = explanation.maps(ClipQuery::At { frame: self.config.frames() / 2, point: [0.5, 0.5] });
        }
        let layers = maps.into_iter().map(LayerMap::of).collect();
        Ok(ClipAttention { answers: explanation.answers, layers, rollout })
    }
}

fn to_vec(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("logits are f32")
}

/// A patch of a clip, as shares of the height and width of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipPoint {
    pub frame: usize,
    pub y: f64,
    pub x: f64,
}

/// Where a model looks in a clip.
#[derive(Debug)]
pub struct ClipAttention {
    pub answers: Vec<ClassProbability>,
    pub layers: Vec<LayerMap>,
    pub rollout: Option<LayerMap>,
}

/// Where one layer looks.
#[derive(Debug, Serialize)]
pub struct LayerMap {
    pub layer: String,
    /// Frames, rows and columns.
    pub size: [usize; 3],
    /// Frame, row and column of who looks; none is the class token.
    pub query: Option<[usize; 3]>,
    /// `[head][frame, row, column]`
    pub heads: Vec<Vec<f32>>,
}

impl LayerMap {
    fn of(ClipMap { layer, size, query, heads, .. }: ClipMap) -> Self {
        Self { layer, size, query, heads }
    }

    fn is_finite(&self) -> bool {
        self.heads.iter().flatten().all(|value| value.is_finite())
    }
}

impl ClipAttention {
    fn is_finite(&self) -> bool {
        self.answers.iter().all(|answer| answer.probability.is_finite())
            && self.layers.iter().chain(&self.rollout).all(LayerMap::is_finite)
    }
}

/// A request to a model of video.
pub enum VideoRequest {
    /// `[B, C, T, H, W]`
    Classify { pixels: Vec<f32> },
    /// `[C, T, H, W]`
    Look { pixels: Vec<f32>, query: Option<ClipPoint> },
}

/// Its response.
pub enum VideoResponse {
    /// `[B, classes]`
    Logits(Result<Vec<f32>, ApiError>),
    Attention(Result<ClipAttention, ApiError>),
}

impl Served for VideoClassifier {
    type Request = VideoRequest;
    type Response = VideoResponse;

    /// Classifies all clips together, and explains one after the other.
    fn answer(&self, requests: &[VideoRequest], batch: &Batch<'_>) -> Vec<VideoResponse> {
        let mut all = Vec::new();
        for request in requests {
            if let VideoRequest::Classify { pixels } = request {
                all.extend_from_slice(pixels);
            }
        }
        let logits = self.logits(&all, batch);
        let clip = self.shape().iter().product::<usize>();
        let mut done = 0;
        let answer = |request: &VideoRequest| match request {
            VideoRequest::Classify { pixels } => {
                let (from, count) = (done, pixels.len() / clip * self.labels.len());
                done += count;
                VideoResponse::Logits(logits.clone().map(|logits| logits[from..from + count].to_vec()))
            }
            VideoRequest::Look { pixels, query } => VideoResponse::Attention(self.look(pixels, *query)),
        };
        requests.iter().map(answer).collect()
    }
}

impl ModelSlot<VideoClassifier> {
    /// `[B, C, T, H, W]` to logits and probabilities, `[B, classes]` each.
    pub async fn infer(
        &self,
        permit: Permit,
        model: Arc<VideoClassifier>,
        pixels: Vec<f32>,
    ) -> Result<[Vec<f32>; 2], ApiError> {
        match self.lane().submit(permit, Arc::clone(&model), VideoRequest::Classify { pixels }).await? {
            VideoResponse::Logits(logits) => {
                let logits = logits?;
                if logits.iter().any(|logit| !logit.is_finite()) {
                    return Err(ApiError::Overflow(self.name().into()));
                }
                let probabilities = to_vec(softmax(model.rows(&logits)));
                Ok([logits, probabilities])
            }
            VideoResponse::Attention(_) => Err(ApiError::Internal),
        }
    }

    /// The best classes of one clip.
    pub async fn classify(
        &self,
        permit: Permit,
        model: Arc<VideoClassifier>,
        pixels: Vec<f32>,
        top: usize,
    ) -> Result<Vec<ClassProbability>, ApiError> {
        match self.lane().submit(permit, Arc::clone(&model), VideoRequest::Classify { pixels }).await? {
            VideoResponse::Logits(logits) => {
                let logits = logits?;
                if logits.iter().any(|logit| !logit.is_finite()) {
                    return Err(ApiError::NotFinite(self.name().into()));
                }
                Ok(evaluate::top_classes(model.rows(&logits), top).pop().unwrap_or_default())
            }
            VideoResponse::Attention(_) => Err(ApiError::Internal),
        }
    }

    /// Where the class token, or a patch, looks in one clip.
    pub async fn look(
        &self,
        permit: Permit,
        model: Arc<VideoClassifier>,
        pixels: Vec<f32>,
        query: Option<ClipPoint>,
    ) -> Result<ClipAttention, ApiError> {
        match self.lane().submit(permit, model, VideoRequest::Look { pixels, query }).await? {
            VideoResponse::Attention(found) => {
                Some(found?).filter(ClipAttention::is_finite).ok_or_else(|| ApiError::NotFinite(self.name().into()))
            }
            VideoResponse::Logits(_) => Err(ApiError::Internal),
        }
    }
}
