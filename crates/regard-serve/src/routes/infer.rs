//! The Open Inference Protocol: metadata of models, and inference with tensors.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use regard::data::vision_language::RegionFeatures;
use serde_json::{Value, json};
use std::sync::Arc;

use super::json_response;
use crate::answerer::{Answerer, AnswererRequest, MOST_TOKENS, Seen, Wanted};
use crate::app::App;
use crate::classifier::Classifier;
use crate::detector::{self, Detector};
use crate::embedder::Embedder;
use crate::error::ApiError;
use crate::lane::{Lane, Permit, Served};
use crate::slot::{AnySlot, ModelSlot};
use crate::tensors::{EncodedResponse, HEADER, InferRequest, Input, Output, OutputData};
use crate::translator::{TranslateRequest, Translator};
use crate::video::VideoClassifier;

/// Names and shapes of a model's inputs and outputs; -1 is any size.
pub async fn metadata(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let model = app.model(&name)?;
    let tensor =
        |name: &str, datatype: &str, shape: Value| json!({ "name": name, "datatype": datatype, "shape": shape });
    let (inputs, outputs) = match &model.slot {
        AnySlot::Classifier(slot) => {
            let classifier = slot.current();
            let [channels, rows, columns] = classifier.shape();
            let classes = json!([-1, classifier.labels().len()]);
            (
                vec![tensor("input", "FP32", json!([-1, channels, rows, columns]))],
                vec![tensor("logits", "FP32", classes.clone()), tensor("probabilities", "FP32", classes)],
            )
        }
        AnySlot::Detector(slot) => {
            let rows = slot.current().most_detections();
            (
                vec![tensor("input", "FP32", json!([-1, 3, -1, -1]))],
                vec![
                    tensor("boxes", "FP32", json!([-1, rows, 4])),
                    tensor("scores", "FP32", json!([-1, rows])),
                    tensor("labels", "INT64", json!([-1, rows])),
                    tensor("counts", "INT64", json!([-1])),
                ],
            )
        }
        AnySlot::Video(slot) => {
            let video = slot.current();
            let [channels, frames, rows, columns] = video.shape();
            let classes = json!([-1, video.labels().len()]);
            (
                vec![tensor("input", "FP32", json!([-1, channels, frames, rows, columns]))],
                vec![tensor("logits", "FP32", classes.clone()), tensor("probabilities", "FP32", classes)],
            )
        }
        AnySlot::Translator(_) => {
            (vec![tensor("text", "BYTES", json!([-1]))], vec![tensor("translation", "BYTES", json!([-1]))])
        }
        AnySlot::Answerer(slot) => {
            let answerer = slot.current();
            let mut inputs = vec![tensor("text", "BYTES", json!([-1]))];
            if answerer.bundle().regions().is_some() {
                inputs.push(tensor("features", "FP32", json!([-1, -1, answerer.features()])));
                inputs.push(tensor("boxes", "FP32", json!([-1, -1, 4])));
            }
            let outputs = match answerer.bundle().answers().filter(|_| answerer.answers()) {
                Some(answers) => vec![
                    tensor("answer", "BYTES", json!([-1])),
                    tensor("probabilities", "FP32", json!([-1, answers.len()])),
                ],
                None => vec![tensor("matching", "FP32", json!([-1]))],
            };
            (inputs, outputs)
        }
        AnySlot::Embedder(slot) => {
            let width = slot.current().width();
            (vec![tensor("text", "BYTES", json!([-1]))], vec![tensor("embedding", "FP32", json!([-1, width]))])
        }
    };
    Ok(json_response(&json!({
        "name": model.name,
        "versions": ["1"],
        "platform": "regard",
        "inputs": inputs,
        "outputs": outputs,
    })))
}

/// A known model is always loaded.
pub async fn ready(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let model = app.model(&name)?;
    Ok(json_response(&json!({ "name": model.name, "ready": true })))
}

pub async fn infer(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let model = Arc::clone(app.model(&name)?);
    let json = match request.headers().get(HEADER) {
        None => None,
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            Some(length.ok_or_else(|| ApiError::BadRequest(format!("`{HEADER}` is no number")))?)
        }
    };
    let body = app.read(request).await?;
    let EncodedResponse { body, json } = app
        .in_time(async {
            let read = move || {
                let request = InferRequest::read(&body, json).map_err(ApiError::BadRequest)?;
                // the tensors take as much memory as the bytes
                Ok((request, body.into_charge()))
            };
            let (mut request, _charge) = app.compute(read).await?;
            let outputs = match &model.slot {
                AnySlot::Classifier(slot) => classify(slot, &mut request).await?,
                AnySlot::Detector(slot) => detect(slot, &mut request).await?,
                AnySlot::Video(slot) => classify_clips(slot, &mut request).await?,
                AnySlot::Translator(slot) => translate(&app, slot, &mut request).await?,
                AnySlot::Answerer(slot) => answer(&app, slot, &mut request).await?,
                AnySlot::Embedder(slot) => embed(&app, slot, &mut request).await?,
            };
            app.compute(move || request.encode(&name, &outputs).map_err(ApiError::BadRequest)).await
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

async fn classify(slot: &ModelSlot<Classifier>, request: &mut InferRequest) -> Result<Vec<Output>, ApiError> {
    let model = slot.current();
    let shape = model.shape();
    let (count, numbers, permit) = samples(slot.lane(), request, &shape)?;
    let found = slot.infer(permit, Arc::clone(&model), numbers).await?;
    Ok(classified(found, [count, model.labels().len()]))
}

async fn classify_clips(
    slot: &ModelSlot<VideoClassifier>,
    request: &mut InferRequest,
) -> Result<Vec<Output>, ApiError> {
    let model = slot.current();
    let shape = model.shape();
    let (count, numbers, permit) = samples(slot.lane(), request, &shape)?;
    let found = slot.infer(permit, Arc::clone(&model), numbers).await?;
    Ok(classified(found, [count, model.labels().len()]))
}

/// The numbers of samples of a shape that a classifier takes, how many there are, and the right to queue them.
fn samples<S: Served>(
    lane: &Lane<S>,
    request: &mut InferRequest,
    shape: &[usize],
) -> Result<(usize, Vec<f32>, Permit), ApiError> {
    request.check_outputs(&["logits", "probabilities"]).map_err(ApiError::BadRequest)?;
    let input = request.only("input", "FP32").map_err(ApiError::BadRequest)?;
    let shape: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
    let count = match input.shape.as_slice() {
        [count, rest @ ..] if *rest == shape && *count > 0 => *count,
        other => {
            let sides: Vec<String> = shape.iter().map(u64::to_string).collect();
            let reason = format!("`input` of shape {other:?}, the model takes [-1, {}]", sides.join(", "));
            return Err(ApiError::BadRequest(reason));
        }
    };
    // a permit first: it bounds the count
    let permit = lane.reserve(usize::try_from(count).unwrap_or(usize::MAX))?;
    let numbers = std::mem::take(&mut input.data.numbers);
    let expected = count * shape.iter().product::<u64>();
    if numbers.len() as u64 != expected {
        return Err(ApiError::BadRequest(format!("`input` has {} numbers, its shape {expected}", numbers.len())));
    }
    Ok((count as usize, numbers, permit))
}

fn classified([logits, probabilities]: [Vec<f32>; 2], shape: [usize; 2]) -> Vec<Output> {
    let shape = shape.to_vec();
    vec![
        Output { name: "logits", shape: shape.clone(), data: OutputData::Numbers(logits) },
        Output { name: "probabilities", shape, data: OutputData::Numbers(probabilities) },
    ]
}

/// Detections as tensors with a fixed number of rows per picture: the first `counts` rows are detections, best
/// first, the others are 0 with label -1. Boxes are left, top, right and bottom in pixels of the input.
async fn detect(slot: &ModelSlot<Detector>, request: &mut InferRequest) -> Result<Vec<Output>, ApiError> {
    let model = slot.current();
    request.check_outputs(&["boxes", "scores", "labels", "counts"]).map_err(ApiError::BadRequest)?;
    let input = request.only("input", "FP32").map_err(ApiError::BadRequest)?;
    let sides: Vec<usize> = input.shape.iter().map(|side| usize::try_from(*side).unwrap_or(usize::MAX)).collect();
    let [count, 3, rows, columns] = sides[..] else {
        let reason = format!("`input` of shape {:?}, the model takes [-1, 3, -1, -1]", input.shape);
        return Err(ApiError::BadRequest(reason));
    };
    if [count, rows, columns].contains(&0) {
        return Err(ApiError::BadRequest(format!("`input` of shape {:?} has no pixels", input.shape)));
    }
    // a permit first: it bounds the count
    let permit = slot.lane().reserve(count)?;
    let numbers = std::mem::take(&mut input.data.numbers);
    let pictures = detector::pictures_of(numbers, [count, rows, columns])?;
    let found = slot.detect(permit, Arc::clone(&model), pictures).await?;
    let found = found.ok_or_else(|| ApiError::Overflow(slot.name().into()))?;
    let most = model.most_detections();
    let (mut boxes, mut scores) = (vec![0.0; count * most * 4], vec![0.0; count * most]);
    let (mut labels, mut counts) = (vec![-1; count * most], Vec::new());
    for (picture, detections) in found.iter().enumerate() {
        counts.push(detections.len().min(most) as i64);
        for (place, detection) in detections.iter().take(most).enumerate() {
            let row = picture * most + place;
            let corners = detection.bounds.pixel_corners([rows, columns]).map(|corner| corner as f32);
            boxes[4 * row..][..4].copy_from_slice(&corners);
            scores[row] = detection.score as f32;
            labels[row] = detection.class as i64;
        }
    }
    Ok(vec![
        Output { name: "boxes", shape: vec![count, most, 4], data: OutputData::Numbers(boxes) },
        Output { name: "scores", shape: vec![count, most], data: OutputData::Numbers(scores) },
        Output { name: "labels", shape: vec![count, most], data: OutputData::Integers(labels) },
        Output { name: "counts", shape: vec![count], data: OutputData::Integers(counts) },
    ])
}

async fn translate(
    app: &App,
    slot: &ModelSlot<Translator>,
    request: &mut InferRequest,
) -> Result<Vec<Output>, ApiError> {
    request.check_outputs(&["translation"]).map_err(ApiError::BadRequest)?;
    let texts = texts_of(request.only("text", "BYTES").map_err(ApiError::BadRequest)?)?;
    let permit = slot.lane().reserve(texts.len())?;
    let model = slot.current();
    let beam = model.bundle.search().beam;
    let own = Arc::clone(&model);
    let texts = app.compute(move || own.check_length(&texts, beam).map(|()| texts)).await?;
    let found = slot.translate(permit, model, TranslateRequest { texts, beam }).await?;
    let best: Vec<String> = found.into_iter().filter_map(|all| Some(all.into_iter().next()?.text)).collect();
    Ok(vec![Output { name: "translation", shape: vec![best.len()], data: OutputData::Texts(best) }])
}

/// The texts of a tensor, at least one.
fn texts_of(input: &mut Input) -> Result<Vec<String>, ApiError> {
    let texts = std::mem::take(&mut input.data.texts);
    let count = input.shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side));
    if texts.is_empty() || count != Some(texts.len() as u64) {
        return Err(ApiError::BadRequest(format!("`text` of shape {:?} has {} texts", input.shape, texts.len())));
    }
    Ok(texts)
}

async fn embed(app: &App, slot: &ModelSlot<Embedder>, request: &mut InferRequest) -> Result<Vec<Output>, ApiError> {
    request.check_outputs(&["embedding"]).map_err(ApiError::BadRequest)?;
    let texts = texts_of(request.only("text", "BYTES").map_err(ApiError::BadRequest)?)?;
    let permit = slot.lane().reserve(texts.len())?;
    let model = slot.current();
    let own = Arc::clone(&model);
    let read = app.compute(move || own.read(&texts, false)).await?;
    let shape = vec![read.texts.len(), model.width()];
    let vectors = slot.embed(permit, model, read.texts).await?;
    Ok(vec![Output { name: "embedding", shape, data: OutputData::Numbers(vectors.concat()) }])
}

/// Texts with the regions of a picture each, which the client found itself: as many for every text.
async fn answer(app: &App, slot: &ModelSlot<Answerer>, request: &mut InferRequest) -> Result<Vec<Output>, ApiError> {
    let model = slot.current();
    let answers = model.answers();
    let outputs: &[&str] = if answers { &["answer", "probabilities"] } else { &["matching"] };
    request.check_outputs(outputs).map_err(ApiError::BadRequest)?;
    if model.bundle().pictures() > 1 {
        return Err(ApiError::Unprocessable(format!("`{}` is asked about two pictures; use `/v1/ask`", slot.name())));
    }
    let wanted = if answers { Wanted::Answers } else { Wanted::Matches };
    if !answers && let Some(missing) = model.bundle().missing_for_matching() {
        return Err(ApiError::Unprocessable(format!("`{}` lacks {missing}", slot.name())));
    }
    let (texts, regions) = if model.bundle().regions().is_some() {
        let expected = [("text", "BYTES"), ("features", "FP32"), ("boxes", "FP32")];
        let [text, features, boxes] = request.exactly(expected).map_err(ApiError::BadRequest)?;
        let texts = texts_of(text)?;
        let regions = regions_of(texts.len(), model.features(), features, boxes)?;
        (texts, regions)
    } else {
        let texts = texts_of(request.only("text", "BYTES").map_err(ApiError::BadRequest)?)?;
        let nothing = vec![Vec::new(); texts.len()];
        (texts, nothing)
    };
    let permit = slot.lane().reserve(texts.len())?;
    let per_text = regions[0].first().map_or(0, RegionFeatures::len);
    let own = Arc::clone(&model);
    let texts = app.compute(move || own.read("text", &texts, per_text)).await?;
    let count = texts.len();
    let found = slot.run(permit, Arc::clone(&model), AnswererRequest { texts, seen: Seen::Regions(regions), wanted });
    let rows = found.await?.rows;
    if !answers {
        return Ok(vec![Output { name: "matching", shape: vec![count], data: OutputData::Numbers(rows.concat()) }]);
    }
    let best = rows.iter().filter_map(|row| Some(model.bundle().likeliest(row, 1).pop()?.answer)).collect();
    let shape = vec![count, rows[0].len()];
    Ok(vec![
        Output { name: "answer", shape: vec![count], data: OutputData::Texts(best) },
        Output { name: "probabilities", shape, data: OutputData::Numbers(rows.concat()) },
    ])
}

/// The regions of each text of tensors `[B, R, F]` and `[B, R, 4]`; boxes are left, top, right and bottom as shares.
fn regions_of(
    texts: usize,
    width: usize,
    features: &Input,
    boxes: &Input,
) -> Result<Vec<Vec<RegionFeatures>>, ApiError> {
    let wrong = |input: &Input, last: usize| {
        let shape = &input.shape;
        ApiError::BadRequest(format!("`{}` of shape {shape:?}, wanted is [{texts}, regions, {last}]", input.name))
    };
    let count = match features.shape[..] {
        [batch, count, last] if batch == texts as u64 && count > 0 && last == width as u64 => count,
        _ => return Err(wrong(features, width)),
    };
    if boxes.shape != [texts as u64, count, 4] {
        return Err(wrong(boxes, 4));
    }
    if count > MOST_TOKENS as u64 {
        return Err(ApiError::Unprocessable(format!("{count} regions, the most is {MOST_TOKENS}")));
    }
    let count = count as usize;
    for (input, last) in [(features, width), (boxes, 4)] {
        let (numbers, expected) = (input.data.numbers.len(), texts * count * last);
        if numbers != expected {
            return Err(ApiError::BadRequest(format!("`{}` has {numbers} numbers, its shape {expected}", input.name)));
        }
    }
    let (corners, _) = boxes.data.numbers.as_chunks::<4>();
    if let Some(place) = corners.iter().position(|[x1, y1, x2, y2]| x1 >= x2 || y1 >= y2) {
        let reason =
            format!("`boxes`: region {} of text {} has no area: {:?}", place % count, place / count, corners[place]);
        return Err(ApiError::Unprocessable(reason));
    }
    let both = features.data.numbers.chunks_exact(count * width).zip(corners.chunks_exact(count));
    let regions = both.map(|(features, boxes)| {
        vec![RegionFeatures { features: features.to_vec(), boxes: boxes.to_vec(), classes: Vec::new() }]
    });
    Ok(regions.collect())
}
