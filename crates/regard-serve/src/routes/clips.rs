//! Clips: the bytes of a video file, or its frames, in; names of classes or attention in space and time out.

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::Picture;
use regard::evaluate::ClassProbability;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{json_response, query};
use crate::app::App;
use crate::error::ApiError;
use crate::pixels;
use crate::slot::ModelSlot;
use crate::video::{ClipAttention, ClipPoint, LayerMap, SentClip, VideoClassifier};

/// The most frames of a clip that is sent as pictures.
const MOST_FRAMES: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClipQuery {
    model: Option<String>,
    #[serde(default = "five")]
    top: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttentionQuery {
    model: Option<String>,
    /// Of those that the model sees, from 0; the class token without.
    frame: Option<usize>,
    x: Option<f64>,
    y: Option<f64>,
}

const fn five() -> usize {
    5
}

/// A clip as pictures: files in base64.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frames {
    frames: Vec<String>,
}

#[derive(Serialize)]
struct Prediction<'a> {
    class: usize,
    label: &'a str,
    probability: f32,
}

#[derive(Serialize)]
struct ClipResponse<'a> {
    model: &'a str,
    /// Which frames of the clip the model saw.
    frames: &'a [usize],
    answers: Vec<Prediction<'a>>,
}

#[derive(Serialize)]
struct AttentionResponse<'a> {
    model: &'a str,
    frames: &'a [usize],
    answers: Vec<Prediction<'a>>,
    /// Rows and columns of a frame as the model sees it.
    size: [usize; 2],
    /// The frames that the model saw, as `data:` URLs.
    pictures: Vec<String>,
    layers: Vec<LayerMap>,
    rollout: Option<LayerMap>,
}

pub async fn classify(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let ClipQuery { model, top } = query(&request)?;
    let slot = app.video(model.as_deref())?;
    let (body, is_json) = read(&app, request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, pixels, frames) = prepared(&app, slot, body, is_json).await?;
        let answers = slot.classify(permit, Arc::clone(&model), pixels, top).await?;
        let answers = predictions(&model, &answers);
        Ok(json_response(&ClipResponse { model: slot.name(), frames: &frames, answers }))
    })
    .await
}

pub async fn attention(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let AttentionQuery { model, frame, x, y } = query(&request)?;
    let inside = |share: f64| (0.0..=1.0).contains(&share);
    let point = match (frame, x, y) {
        (None, None, None) => None,
        (Some(frame), Some(x), Some(y)) if inside(x) && inside(y) => Some(ClipPoint { frame, y, x }),
        _ => {
            let reason = "`frame`, `x` and `y` are given together, `x` and `y` from 0 to 1, or none of them";
            return Err(ApiError::BadRequest(reason.into()));
        }
    };
    let slot = app.video(model.as_deref())?;
    let (body, is_json) = read(&app, request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, pixels, frames) = prepared(&app, slot, body, is_json).await?;
        let count = model.config().frames();
        if point.is_some_and(|point| point.frame >= count) {
            return Err(ApiError::BadRequest(format!("`frame` is below {count}, counted from 0")));
        }
        let pictures = model.data_urls(&pixels);
        let ClipAttention { answers, layers, rollout } = slot.look(permit, Arc::clone(&model), pixels, point).await?;
        let name = slot.name().to_string();
        // many numbers become text: not on a thread that serves connections
        app.compute(move || {
            Ok(json_response(&AttentionResponse {
                model: &name,
                frames: &frames,
                answers: predictions(&model, &answers),
                size: model.config().image(),
                pictures,
                layers,
                rollout,
            }))
        })
        .await
    })
    .await
}

/// The body, and whether it is JSON.
async fn read(app: &App, request: Request) -> Result<(crate::body::RequestBody, bool), ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.starts_with("application/json");
    Ok((app.read(request).await?, is_json))
}

/// The current model and the clip as it wants it, with the numbers of its frames.
async fn prepared(
    app: &App,
    slot: &ModelSlot<VideoClassifier>,
    body: crate::body::RequestBody,
    is_json: bool,
) -> Result<(Arc<VideoClassifier>, Vec<f32>, Vec<usize>), ApiError> {
    let model = slot.current();
    let own = Arc::clone(&model);
    let most = app.settings.pixels;
    let work = move || {
        let sent = if is_json { frames_of(body.as_ref(), most)? } else { SentClip::File(body.as_ref().to_vec()) };
        let views = own.prepare(sent)?;
        let indices = views.indices.into_iter().next().unwrap_or_default();
        Ok((views.pixels, indices))
    };
    let (pixels, indices) = app.decode_alone(work).await?;
    Ok((model, pixels, indices))
}

fn frames_of(body: &[u8], most: u64) -> Result<SentClip, ApiError> {
    let Frames { frames } =
        serde_json::from_slice(body).map_err(|error| ApiError::BadRequest(format!("no clip: {error}")))?;
    if frames.is_empty() || frames.len() > MOST_FRAMES {
        return Err(ApiError::Unprocessable(format!("{} frames; a clip has 1 to {MOST_FRAMES}", frames.len())));
    }
    let decode = |(index, frame): (usize, &String)| {
        let wrong = |reason: String| ApiError::Unprocessable(format!("frame {index}: {reason}"));
        let bytes = BASE64_STANDARD.decode(frame).map_err(|error| wrong(error.to_string()))?;
        let size = pixels::Size::read(&bytes, most / frames.len() as u64).map_err(|error| wrong(error.to_string()))?;
        size.decode(&bytes).map_err(|error| wrong(error.to_string()))
    };
    let pictures: Vec<Picture> = frames.iter().enumerate().map(decode).collect::<Result<_, _>>()?;
    Ok(SentClip::Frames(pictures))
}

fn predictions<'a>(model: &'a VideoClassifier, answers: &[ClassProbability]) -> Vec<Prediction<'a>> {
    let prediction = |ClassProbability { class, probability }: &ClassProbability| Prediction {
        class: *class,
        label: &model.labels()[*class],
        probability: *probability,
    };
    answers.iter().map(prediction).collect()
}
