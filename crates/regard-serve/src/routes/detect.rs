//! Object detection: the bytes of a file in, boxes and the evidence for them out.

use axum::extract::{Request, State};
use axum::response::Response;
use regard::data::{Detection, Picture};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::boxes::BoxJson;
use super::{json_response, query};
use crate::app::App;
use crate::body::RequestBody;
use crate::box_attention::{BoxAttention, Method};
use crate::detector::{Detector, PreprocessedPicture};
use crate::error::ApiError;
use crate::slot::ModelSlot;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DetectQuery {
    model: Option<String>,
    /// The lowest score.
    #[serde(default = "half")]
    threshold: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttentionQuery {
    model: Option<String>,
    /// Index of a detection, best first.
    #[serde(default)]
    index: usize,
}

const fn half() -> f64 {
    0.5
}

#[derive(Serialize)]
struct DetectResponse<'a> {
    model: &'a str,
    /// Rows and columns of the picture, upright.
    size: [usize; 2],
    threshold: f64,
    detections: Vec<DetectionJson<'a>>,
}

#[derive(Serialize)]
struct AttentionResponse<'a> {
    model: &'a str,
    size: [usize; 2],
    index: usize,
    detection: DetectionJson<'a>,
    method: Method,
    layer: String,
    grid: [usize; 2],
    /// Rows and columns of the grid's extent in pixels; padding reaches beyond the picture.
    span: [f64; 2],
    values: Vec<f32>,
    heads: Vec<Vec<f32>>,
}

#[derive(Serialize)]
struct DetectionJson<'a> {
    class: usize,
    label: &'a str,
    score: f64,
    #[serde(rename = "box")]
    bounds: BoxJson,
}

impl<'a> DetectionJson<'a> {
    fn new(model: &'a Detector, Detection { class, score, bounds }: Detection, size: [usize; 2]) -> Self {
        Self { class, label: &model.labels()[class], score, bounds: BoxJson::new(&bounds, size) }
    }
}

pub async fn detect(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let DetectQuery { model, threshold } = query(&request)?;
    if !(0.0..=1.0).contains(&threshold) {
        return Err(ApiError::BadRequest(format!("`threshold` is from 0 to 1, got {threshold}")));
    }
    let slot = app.detector(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, preprocessed) = preprocessed(&app, slot, body).await?;
        let PreprocessedPicture { picture, size, charge: _charge } = preprocessed;
        let found = slot.detect(permit, Arc::clone(&model), vec![picture]).await?;
        let found = found.ok_or_else(|| ApiError::NotFinite(slot.name().into()))?.into_iter().flatten();
        let shown = found.filter(|detection| detection.score >= threshold);
        let detections = shown.map(|detection| DetectionJson::new(&model, detection, size)).collect();
        Ok(json_response(&DetectResponse { model: slot.name(), size, threshold, detections }))
    })
    .await
}

pub async fn attention(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let AttentionQuery { model, index } = query(&request)?;
    let slot = app.detector(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, preprocessed) = preprocessed(&app, slot, body).await?;
        let PreprocessedPicture { picture, size, charge: _charge } = preprocessed;
        let found = slot.attention(permit, Arc::clone(&model), picture, index).await?;
        let name = slot.name().to_string();
        // serialise large responses off the threads that serve connections
        app.compute(move || {
            let BoxAttention { detection, method, layer, grid, span, values, heads } = found;
            Ok(json_response(&AttentionResponse {
                model: &name,
                size,
                index,
                detection: DetectionJson::new(&model, detection, size),
                method,
                layer,
                grid,
                span: [span[0] * size[0] as f64, span[1] * size[1] as f64],
                values,
                heads,
            }))
        })
        .await
    })
    .await
}

/// The current detector and the preprocessed picture.
async fn preprocessed(
    app: &App,
    slot: &ModelSlot<Detector>,
    body: RequestBody,
) -> Result<(Arc<Detector>, PreprocessedPicture), ApiError> {
    let model = slot.current();
    let (own, budget, name) = (Arc::clone(&model), app.budget.clone(), slot.name().to_string());
    let preprocess = move |picture: &Picture| {
        let made = own.preprocess(picture, &budget)?;
        // an overflow would look like no detections
        let is_finite = made.picture.values.iter().all(|level| level.is_finite());
        if is_finite { Ok(made) } else { Err(ApiError::NotFinite(name)) }
    };
    Ok((model, app.decode(body, preprocess).await?))
}
