//! Pictures as they are: the bytes of a file in, names of classes or attention out.

use axum::extract::{Request, State};
use axum::response::Response;
use regard::analyse::LensLayer;
use regard::evaluate::Answer;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

use super::{json_response, query};
use crate::app::App;
use crate::look::{Layer, Looked, Map, Place, View};
use crate::refusal::Refusal;
use crate::service::{Classifier, Kind, Pictures};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassifyOptions {
    model: Option<String>,
    #[serde(default = "five")]
    top: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainOptions {
    model: Option<String>,
    #[serde(default = "five")]
    top: usize,
    /// The place that looks, from 0 to 1; the class token, or the middle, without.
    x: Option<f64>,
    y: Option<f64>,
    /// The path of one layer; all without.
    layer: Option<String>,
}

const fn five() -> usize {
    5
}

#[derive(Serialize)]
struct Named<'a> {
    class: usize,
    label: &'a str,
    probability: f32,
}

#[derive(Serialize)]
struct Classified<'a> {
    model: &'a str,
    answers: Vec<Named<'a>>,
}

#[derive(Serialize)]
struct Explained<'a> {
    model: &'a str,
    answers: Vec<Named<'a>>,
    /// Rows and columns of the picture as the model sees it.
    size: [usize; 2],
    /// That picture, as a `data:` address.
    picture: String,
    layers: Vec<Layer>,
    rollout: Option<Map>,
    cam: Option<Map>,
    lens: Vec<Opinion<'a>>,
}

/// What one layer would answer.
#[derive(Serialize)]
struct Opinion<'a> {
    layer: String,
    answers: Vec<Named<'a>>,
}

/// What is served, and what it takes.
pub async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<_> = app
        .slots()
        .map(|slot| match &slot.kind {
            Kind::Pictures(held) => {
                let model = held.current();
                json!({
                    "name": slot.name,
                    "task": "classify",
                    "family": model.config().family(),
                    "image": model.config().image(),
                    "classes": model.config().classes(),
                    "parameters": model.parameters(),
                    "multiply_adds": model.multiply_adds(),
                })
            }
            Kind::Sentences(held) => {
                json!({ "name": slot.name, "task": "translate", "parameters": held.current().parameters() })
            }
        })
        .collect();
    json_response(&json!({ "models": models }))
}

pub async fn classify(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let ClassifyOptions { model, top } = query(&request)?;
    let (name, held) = app.pictures(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let place = held.lane().reserve(1)?;
        let (model, pixels) = decoded(&app, held, body).await?;
        let logits = held.classify(place, Arc::clone(&model), pixels).await?;
        Ok(json_response(&Classified { model: name, answers: answers(&model, logits, top) }))
    })
    .await
}

pub async fn explain(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let ExplainOptions { model, top, x, y, layer } = query(&request)?;
    let inside = |share: f64| (0.0..=1.0).contains(&share);
    let from = match (x, y) {
        (None, None) => None,
        (Some(x), Some(y)) if inside(x) && inside(y) => Some(Place { x, y }),
        _ => return Err(Refusal::Input("`x` and `y` are both from 0 to 1, or neither is given".into())),
    };
    let (name, held) = app.pictures(model.as_deref())?;
    let body = app.read(request).await?;
    app.in_time(async {
        let place = held.lane().reserve(1)?;
        let (model, pixels) = decoded(&app, held, body).await?;
        let picture = model.shown(&pixels);
        let view = View { from, layer, top };
        let Looked { answers, layers, rollout, cam, lens } = held.look(place, Arc::clone(&model), pixels, view).await?;
        let opinion = |LensLayer { layer, answers, .. }| Opinion { layer, answers: named(&model, answers) };
        Ok(json_response(&Explained {
            model: name,
            answers: named(&model, answers),
            size: model.config().image(),
            picture,
            layers,
            rollout,
            cam,
            lens: lens.into_iter().map(opinion).collect(),
        }))
    })
    .await
}

/// The model of now and the picture as it wants it.
async fn decoded(app: &App, held: &Pictures, body: crate::body::Bytes) -> Result<(Arc<Classifier>, Vec<f32>), Refusal> {
    let (model, most) = (held.current(), app.settings.pixels);
    let own = Arc::clone(&model);
    let pixels = app.compute(move || own.prepare(&body, most)).await?;
    Ok((model, pixels))
}

fn answers(model: &Classifier, logits: Vec<f32>, top: usize) -> Vec<Named<'_>> {
    named(model, model.answers(logits, top))
}

fn named(model: &Classifier, answers: Vec<Answer>) -> Vec<Named<'_>> {
    let named = |Answer { class, probability }| Named { class, label: &model.labels()[class], probability };
    answers.into_iter().map(named).collect()
}
