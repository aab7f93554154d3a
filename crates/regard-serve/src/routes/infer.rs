//! The Open Inference Protocol: what a model takes and gives, and tensors through it.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::sync::Arc;

use super::json_response;
use crate::app::{App, Slot};
use crate::refusal::Refusal;
use crate::service::{Kind, Passage, Pictures, Sentences};
use crate::tensors::{HEADER, Inference, Output, Reply, Sent};

/// Names and shapes of what a model takes and gives; -1 is as many as one likes.
pub async fn metadata(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let slot = app.slot(&name)?;
    let tensor =
        |name: &str, datatype: &str, shape: Value| json!({ "name": name, "datatype": datatype, "shape": shape });
    let (inputs, outputs) = match &slot.kind {
        Kind::Pictures(held) => {
            let model = held.current();
            let [channels, rows, columns] = model.shape();
            let classes = json!([-1, model.labels().len()]);
            (
                vec![tensor("input", "FP32", json!([-1, channels, rows, columns]))],
                vec![tensor("logits", "FP32", classes.clone()), tensor("probabilities", "FP32", classes)],
            )
        }
        Kind::Sentences(_) => {
            (vec![tensor("text", "BYTES", json!([-1]))], vec![tensor("translation", "BYTES", json!([-1]))])
        }
    };
    Ok(json_response(&json!({
        "name": slot.name,
        "versions": ["1"],
        "platform": "regard",
        "inputs": inputs,
        "outputs": outputs,
    })))
}

/// A model that has a name was loaded.
pub async fn ready(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let slot = app.slot(&name)?;
    Ok(json_response(&json!({ "name": slot.name, "ready": true })))
}

pub async fn infer(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let slot = Arc::clone(app.slot(&name)?);
    let json = match request.headers().get(HEADER) {
        None => None,
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            Some(length.ok_or_else(|| Refusal::Input(format!("`{HEADER}` is no number")))?)
        }
    };
    let body = app.read(request).await?;
    let Reply { body, json } = app
        .in_time(async {
            let inference = app.compute(move || Inference::read(&body, json).map_err(Refusal::Input)).await?;
            let outputs = match &slot.kind {
                Kind::Pictures(held) => classify(held, &inference).await?,
                Kind::Sentences(held) => translate(held, &inference).await?,
            };
            reply(&slot, &inference, &outputs)
        })
        .await?;
    let mut response = body.into_response();
    let kind = if json.is_some() { "application/octet-stream" } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(json) = json {
        response.headers_mut().insert(HEADER, json.into());
    }
    Ok(response)
}

fn reply(slot: &Slot, inference: &Inference, outputs: &[Output]) -> Result<Reply, Refusal> {
    inference.reply(&slot.name, outputs).map_err(Refusal::Input)
}

async fn classify(held: &Pictures, inference: &Inference) -> Result<Vec<Output>, Refusal> {
    let model = held.current();
    let input = inference.only("input", "FP32").map_err(Refusal::Input)?;
    let shape = model.shape().map(|side| side as u64);
    let count = match input.shape.as_slice() {
        [count, rest @ ..] if rest == shape && *count > 0 => *count,
        other => {
            let [channels, rows, columns] = shape;
            return Err(Refusal::Input(format!(
                "`input` of shape {other:?}, the model takes [-1, {channels}, {rows}, {columns}]"
            )));
        }
    };
    // a place first: it bounds the count
    let place = held.lane().reserve(usize::try_from(count).unwrap_or(usize::MAX))?;
    let numbers = &input.data.numbers;
    let expected = count * shape.iter().product::<u64>();
    if numbers.len() as u64 != expected {
        return Err(Refusal::Input(format!("`input` has {} numbers, its shape {expected}", numbers.len())));
    }
    let logits = held.classify(place, Arc::clone(&model), numbers.clone()).await?;
    let shape = vec![count as usize, model.labels().len()];
    let probabilities = model.probabilities(logits.clone());
    Ok(vec![
        Output { name: "logits", shape: shape.clone(), data: Sent::Numbers(logits) },
        Output { name: "probabilities", shape, data: Sent::Numbers(probabilities) },
    ])
}

async fn translate(held: &Sentences, inference: &Inference) -> Result<Vec<Output>, Refusal> {
    let input = inference.only("text", "BYTES").map_err(Refusal::Input)?;
    let texts = input.data.texts.clone();
    let count = input.shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side));
    if texts.is_empty() || count != Some(texts.len() as u64) {
        return Err(Refusal::Input(format!("`text` of shape {:?} has {} texts", input.shape, texts.len())));
    }
    let place = held.lane().reserve(texts.len())?;
    let model = held.current();
    let beam = model.bundle.search().beam;
    let found = held.lane().ask(place, Passage { model, texts, beam }).await??;
    let best: Vec<String> = found.into_iter().filter_map(|all| Some(all.into_iter().next()?.text)).collect();
    Ok(vec![Output { name: "translation", shape: vec![best.len()], data: Sent::Texts(best) }])
}
