//! Classification: the bytes of a file in, classes or attention out.

use axum::extract::{Request, State};
use axum::response::Response;
use regard::analyse::LensLayer;
use regard::evaluate::ClassProbability;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

use super::{json_response, query};
use crate::app::App;
use crate::body::RequestBody;
use crate::classifier::Classifier;
use crate::error::ApiError;
use crate::explain::{ExplainOptions, Explanation, Heatmap, LayerAttention, Point};
use crate::slot::{AnySlot, ModelSlot};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassifyQuery {
    model: Option<String>,
    #[serde(default = "five")]
    top: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    model: Option<String>,
    #[serde(default = "five")]
    top: usize,
    /// The query patch, from 0 to 1; `None` is the class token, or the centre.
    x: Option<f64>,
    y: Option<f64>,
    /// The path of one layer; `None` means all.
    layer: Option<String>,
}

const fn five() -> usize {
    5
}

#[derive(Serialize)]
struct Prediction<'a> {
    class: usize,
    label: &'a str,
    probability: f32,
}

#[derive(Serialize)]
struct ClassifyResponse<'a> {
    model: &'a str,
    answers: Vec<Prediction<'a>>,
}

#[derive(Serialize)]
struct ExplainResponse<'a> {
    model: &'a str,
    answers: Vec<Prediction<'a>>,
    /// Rows and columns of the preprocessed picture.
    size: [usize; 2],
    /// The preprocessed picture, as a `data:` URL.
    picture: String,
    layers: Vec<LayerAttention>,
    rollout: Option<Heatmap>,
    cam: Option<Heatmap>,
    lens: Vec<LensResponse<'a>>,
}

/// The prediction of one layer.
#[derive(Serialize)]
struct LensResponse<'a> {
    layer: String,
    answers: Vec<Prediction<'a>>,
}

/// The models, and their inputs.
pub async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<_> = app
        .models()
        .map(|model| match &model.slot {
            AnySlot::Classifier(slot) => {
                let classifier = slot.current();
                json!({
                    "name": model.name,
                    "task": "classify",
                    "family": classifier.config().family(),
                    "image": classifier.config().image(),
                    "classes": classifier.config().classes(),
                    "parameters": classifier.parameters(),
                    "multiply_adds": classifier.multiply_adds(),
                })
            }
            AnySlot::Detector(slot) => {
                let detector = slot.current();
                json!({
                    "name": model.name,
                    "task": "detect",
                    "family": detector.config().family(),
                    "image": detector.config().image(),
                    "classes": detector.config().classes(),
                    "parameters": detector.parameters(),
                    "multiply_adds": detector.multiply_adds(),
                })
            }
            AnySlot::Video(slot) => {
                let video = slot.current();
                json!({
                    "name": model.name,
                    "task": "clips",
                    "family": video.config().family(),
                    "frames": video.config().frames(),
                    "image": video.config().image(),
                    "classes": video.config().classes(),
                    "parameters": video.parameters(),
                    "multiply_adds": video.multiply_adds(),
                })
            }
            AnySlot::Translator(slot) => {
                json!({ "name": model.name, "task": "translate", "parameters": slot.current().parameters() })
            }
            AnySlot::Answerer(slot) => {
                let answerer = slot.current();
                let bundle = answerer.bundle();
                json!({
                    "name": model.name,
                    "task": "answer",
                    "family": bundle.config().family(),
                    "answers": bundle.missing_for_answers().is_none(),
                    "matches": bundle.missing_for_matching().is_none(),
                    "pictures": bundle.pictures(),
                    "classes": bundle.answers().map_or(0, <[String]>::len),
                    "parameters": answerer.parameters(),
                })
            }
            AnySlot::Embedder(slot) => {
                let embedder = slot.current();
                json!({
                    "name": model.name,
                    "task": "embed",
                    "family": "bert",
                    "dimensions": embedder.width(),
                    "tokens": embedder.longest(),
                    "parameters": embedder.parameters(),
                })
            }
        })
        .collect();
    json_response(&json!({ "models": models }))
}

pub async fn classify(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let ClassifyQuery { model, top } = query(&request)?;
    let slot = app.classifier(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, pixels) = preprocessed(&app, slot, body).await?;
        let answers = slot.classify(permit, Arc::clone(&model), pixels, top).await?;
        Ok(json_response(&ClassifyResponse { model: slot.name(), answers: predictions(&model, answers) }))
    })
    .await
}

pub async fn explain(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let ExplainQuery { model, top, x, y, layer } = query(&request)?;
    let inside = |share: f64| (0.0..=1.0).contains(&share);
    let point = match (x, y) {
        (None, None) => None,
        (Some(x), Some(y)) if inside(x) && inside(y) => Some(Point { x, y }),
        _ => return Err(ApiError::BadRequest("`x` and `y` are both from 0 to 1, or neither is given".into())),
    };
    let slot = app.classifier(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let permit = slot.lane().reserve(1)?;
        let (model, pixels) = preprocessed(&app, slot, body).await?;
        let picture = model.data_url(&pixels);
        let options = ExplainOptions { query: point, layer, top };
        let Explanation { answers, layers, rollout, cam, lens } =
            slot.explain(permit, Arc::clone(&model), pixels, options).await?;
        let name = slot.name().to_string();
        // serialise megabytes of numbers off the threads that serve connections
        app.compute(move || {
            let lens_response =
                |LensLayer { layer, answers, .. }| LensResponse { layer, answers: predictions(&model, answers) };
            Ok(json_response(&ExplainResponse {
                model: &name,
                answers: predictions(&model, answers),
                size: model.config().image(),
                picture,
                layers,
                rollout,
                cam,
                lens: lens.into_iter().map(lens_response).collect(),
            }))
        })
        .await
    })
    .await
}

/// The current model and the preprocessed picture.
async fn preprocessed(
    app: &App,
    slot: &ModelSlot<Classifier>,
    body: RequestBody,
) -> Result<(Arc<Classifier>, Vec<f32>), ApiError> {
    let model = slot.current();
    let own = Arc::clone(&model);
    let pixels = app.decode(body, move |picture| own.preprocess(picture)).await?;
    Ok((model, pixels))
}

fn predictions(model: &Classifier, answers: Vec<ClassProbability>) -> Vec<Prediction<'_>> {
    let prediction =
        |ClassProbability { class, probability }| Prediction { class, label: &model.labels()[class], probability };
    answers.into_iter().map(prediction).collect()
}
