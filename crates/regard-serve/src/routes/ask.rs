//! Vision and language: a picture and texts in; answers, how well texts match, and attention between words and regions out.

use axum::extract::{Request, State};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::analyse::{Across, ExplainedWords};
use regard::data::Bounds;
use regard::data::text::Encoded;
use regard::data::vision_language::RegionFeatures;
use regard::tasks::vision_language::{CrossModal, LONGEST_BYTES, SaidAnswer, VisionLanguageBundle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::boxes::BoxJson;
use super::json_response;
use crate::answerer::{Answerer, AnswererRequest, Found, Seen, SentPicture, Wanted, path};
use crate::app::App;
use crate::budget::Charge;
use crate::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskRequest {
    model: Option<String>,
    /// A file in base64.
    picture: String,
    /// The second picture, for statements about two.
    second: Option<String>,
    question: String,
    /// Boxes in the picture, instead of those that the model finds itself.
    #[serde(default)]
    regions: Vec<BoxJson>,
    #[serde(default = "three")]
    top: usize,
    #[serde(default)]
    attention: bool,
    /// The path of one layer of the attention; `None` means all.
    layer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchRequest {
    model: Option<String>,
    picture: String,
    texts: Vec<String>,
    #[serde(default)]
    regions: Vec<BoxJson>,
}

const fn three() -> usize {
    3
}

#[derive(Serialize)]
struct AskResponse<'a> {
    model: &'a str,
    question: &'a str,
    /// The likeliest first.
    answers: Vec<SaidAnswer>,
    /// The question as the model reads it.
    tokens: Vec<String>,
    /// Words that the model does not know.
    unknown: Vec<String>,
    #[serde(flatten)]
    picture: PictureJson,
    second: Option<PictureJson>,
    attention: Option<AttentionJson<'a>>,
}

#[derive(Serialize)]
struct PictureJson {
    /// Rows and columns, upright.
    size: [usize; 2],
    regions: Vec<BoxJson>,
}

#[derive(Serialize)]
struct AttentionJson<'a> {
    layers: Vec<LayerJson<'a>>,
    /// How each word's attention to regions is shared among them, over all layers and heads.
    shares: &'a [Vec<f64>],
    explained: &'a [ExplainedWords],
    plan: Option<PlanJson<'a>>,
    relevance: Option<RelevanceJson<'a>>,
}

#[derive(Serialize)]
struct LayerJson<'a> {
    layer: &'a str,
    direction: Across,
    /// `[head][query][key]`
    heads: Vec<Vec<&'a [f32]>>,
}

#[derive(Serialize)]
struct PlanJson<'a> {
    /// The share of each word that goes to each region.
    shares: &'a [Vec<f32>],
    /// Whether the model was trained to align words with regions.
    trained: bool,
}

#[derive(Serialize)]
struct RelevanceJson<'a> {
    words: &'a [f32],
    regions: &'a [f32],
}

#[derive(Serialize)]
struct MatchResponse<'a> {
    model: &'a str,
    #[serde(flatten)]
    picture: PictureJson,
    /// In the order of the texts.
    scores: Vec<ScoreJson>,
    /// Index of the text with the highest score.
    best: usize,
    meaning: &'static str,
}

#[derive(Serialize)]
struct ScoreJson {
    text: String,
    probability: f32,
}

/// What a score of `/v1/match` is.
const MEANING: &str = "the probability that the text is about the picture, by the model's head for matching; each text is \
                       judged alone, so that these do not sum to one";

pub async fn ask(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read(request).await?;
    app.in_time(async {
        let (request, _charge): (AskRequest, _) = parse(&app, body).await?;
        let AskRequest { model, picture, second, question, regions, top, attention, layer } = request;
        if layer.is_some() && !attention {
            return Err(ApiError::BadRequest("`layer` needs `\"attention\": true`".into()));
        }
        let missing = |model: &Answerer| model.bundle().missing_for_answers();
        let slot = app.answerer(model.as_deref(), "answer", missing)?;
        let permit = slot.lane().reserve(1)?;
        let model = slot.current();
        check_pictures(&model, second.is_some())?;
        let text = read(&app, &model, "question", vec![question.clone()], regions.len()).await?;
        let mut pictures = vec![decoded(&app, &model, picture, regions).await?];
        if let Some(second) = second {
            pictures.push(decoded(&app, &model, second, Vec::new()).await?);
        }
        let wanted = if attention { Wanted::Attention { layer } } else { Wanted::Answers };
        let sizes: Vec<[usize; 2]> = pictures.iter().map(SentPicture::size).collect();
        let request = AnswererRequest { texts: text.clone(), seen: Seen::Pictures(pictures), wanted };
        let Found { rows, regions, cross } = slot.run(permit, Arc::clone(&model), request).await?;
        let name = slot.name().to_string();
        // many numbers become text: not on a thread that serves connections
        app.compute(move || {
            let (bundle, text) = (model.bundle(), &text[0]);
            let mut pictures = pictures_json(bundle, &sizes, &regions).into_iter();
            Ok(json_response(&AskResponse {
                model: &name,
                question: &question,
                answers: bundle.likeliest(&rows[0], top),
                tokens: bundle.tokens(text),
                unknown: bundle.unknown_words(&question, text),
                picture: pictures.next().ok_or(ApiError::Internal)?,
                second: pictures.next(),
                attention: cross.as_ref().map(AttentionJson::new),
            }))
        })
        .await
    })
    .await
}

pub async fn matching(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read(request).await?;
    app.in_time(async {
        let (request, _charge): (MatchRequest, _) = parse(&app, body).await?;
        let MatchRequest { model, picture, texts, regions } = request;
        if texts.is_empty() {
            return Err(ApiError::BadRequest("`texts` is empty".into()));
        }
        let missing = |model: &Answerer| model.bundle().missing_for_matching();
        let slot = app.answerer(model.as_deref(), "match texts with pictures", missing)?;
        let permit = slot.lane().reserve(texts.len())?;
        let model = slot.current();
        check_pictures(&model, false)?;
        let encoded = read(&app, &model, "text", texts.clone(), regions.len()).await?;
        let picture = decoded(&app, &model, picture, regions).await?;
        let size = picture.size();
        let request = AnswererRequest { texts: encoded, seen: Seen::Pictures(vec![picture]), wanted: Wanted::Matches };
        let Found { rows, regions, .. } = slot.run(permit, Arc::clone(&model), request).await?;
        let shares: Vec<f32> = rows.into_iter().flatten().collect();
        let better = |a: &usize, b: &usize| shares[*a].total_cmp(&shares[*b]).then(b.cmp(a));
        let best = (0..shares.len()).max_by(better).ok_or(ApiError::Internal)?;
        let score = |(text, probability)| ScoreJson { text, probability };
        Ok(json_response(&MatchResponse {
            model: slot.name(),
            picture: pictures_json(model.bundle(), &[size], &regions).pop().ok_or(ApiError::Internal)?,
            scores: texts.into_iter().zip(shares).map(score).collect(),
            best,
            meaning: MEANING,
        }))
    })
    .await
}

/// A JSON body with its charge, which holds for the strings in it.
async fn parse<T: DeserializeOwned + Send + 'static>(
    app: &App,
    body: crate::body::RequestBody,
) -> Result<(T, Charge), ApiError> {
    app.compute(move || {
        let request = serde_json::from_slice(&body).map_err(|error| ApiError::BadRequest(error.to_string()))?;
        Ok((request, body.into_charge()))
    })
    .await
}

fn check_pictures(model: &Answerer, has_second: bool) -> Result<(), ApiError> {
    match (model.bundle().pictures(), has_second) {
        (1, false) | (2, true) => Ok(()),
        (1, true) => Err(ApiError::Unprocessable("`second`: the model is asked about one picture".into())),
        _ => Err(ApiError::Unprocessable("`second` is missing: the model is asked about two pictures".into())),
    }
}

/// Texts as the model reads them.
async fn read(
    app: &App,
    model: &Arc<Answerer>,
    what: &'static str,
    texts: Vec<String>,
    regions: usize,
) -> Result<Vec<Encoded>, ApiError> {
    // beyond this no text is looked at
    if let Some(text) = texts.iter().find(|text| text.len() > LONGEST_BYTES) {
        let reason = format!("a {what} of {} bytes, the most is {LONGEST_BYTES}", text.len());
        return Err(ApiError::Unprocessable(reason));
    }
    let own = Arc::clone(model);
    app.compute(move || own.read(what, &texts, regions)).await
}

/// A file in base64 as a picture that waits for its turn.
async fn decoded(
    app: &App,
    model: &Arc<Answerer>,
    file: String,
    regions: Vec<BoxJson>,
) -> Result<SentPicture, ApiError> {
    let wrong = |error| ApiError::Unprocessable(format!("`picture` is not a file in base64: {error}"));
    let bytes = app.compute(move || BASE64_STANDARD.decode(file).map_err(wrong)).await?;
    let (own, budget) = (Arc::clone(model), app.budget.clone());
    let boxes: Vec<[f64; 4]> = regions.into_iter().map(BoxJson::sides).collect();
    app.decode(bytes, move |picture| own.picture(picture, &boxes, &budget)).await
}

fn pictures_json(bundle: &VisionLanguageBundle, sizes: &[[usize; 2]], regions: &[RegionFeatures]) -> Vec<PictureJson> {
    let one = |(number, size): (usize, &[usize; 2])| {
        let boxes = regions.get(number).map_or_else(Vec::new, |own| bundle.boxes(own));
        let bounds = boxes.iter().map(|corners| Bounds::from_corners(corners.map(f64::from)));
        PictureJson { size: *size, regions: bounds.map(|bounds| BoxJson::new(&bounds, *size)).collect() }
    };
    sizes.iter().enumerate().map(one).collect()
}

impl<'a> AttentionJson<'a> {
    fn new(cross: &'a CrossModal) -> Self {
        let CrossModal { layers, shares, explained, plan, is_plan_trained, relevance } = cross;
        let layers = layers.iter().map(|layer| LayerJson {
            layer: path(&layer.layer),
            direction: layer.direction,
            heads: (0..layer.heads).map(|head| layer.head(head)).collect(),
        });
        Self {
            layers: layers.collect(),
            shares,
            explained,
            plan: plan.as_ref().map(|plan| PlanJson { shares: &plan.shares, trained: *is_plan_trained }),
            relevance: relevance.as_ref().map(|found| RelevanceJson { words: &found.words, regions: &found.regions }),
        }
    }
}
