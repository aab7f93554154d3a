//! Translation: text in, translations and attention out.

use axum::extract::{Request, State};
use axum::response::Response;
use regard::report::AttentionReport;
use regard::translate::{LONGEST_BYTES, Translation};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::error::ApiError;
use crate::translator;

/// Maximum beam size: work grows with it.
const WIDEST: usize = 16;

/// Bytes of a body besides its texts.
const FIELDS: usize = 4 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TranslateBody {
    model: Option<String>,
    /// Independent sentences.
    texts: Vec<String>,
    #[serde(default = "four")]
    beam: usize,
    /// Number of translations per sentence.
    #[serde(default = "one")]
    best: usize,
}

const fn four() -> usize {
    4
}

const fn one() -> usize {
    1
}

#[derive(Serialize)]
struct TranslateResponse<'a> {
    model: &'a str,
    /// For each sentence, best first.
    translations: Vec<Vec<Translation>>,
}

/// Maximum number of tokens of a sentence, or of its translation, with attention: a response grows with their square.
const MOST_SHOWN: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttendRequest {
    model: Option<String>,
    text: String,
    #[serde(default = "four")]
    beam: usize,
}

/// The best translation of a sentence, with the attention of each layer and head.
pub async fn attend(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read_at_most(request, longest_body(1)).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| ApiError::BadRequest(error.to_string()));
        let AttendRequest { model, text, beam }: AttendRequest = app.compute(read).await?;
        let slot = app.translator(model.as_deref())?;
        check_beam(beam)?;
        let permit = slot.lane().reserve(1)?;
        let model = slot.current();
        let (own, first) = (Arc::clone(&model), text.clone());
        app.compute(move || check_shown(own.bundle.count_tokens(&first)?)).await?;
        let request = translator::TranslateRequest { texts: vec![text.clone()], beam };
        let found = slot.translate(permit, Arc::clone(&model), request).await?;
        let best = found.into_iter().flatten().next().ok_or(ApiError::Internal)?;
        let name = slot.name().to_string();
        app.compute(move || {
            check_shown(best.tokens.len())?;
            let report = AttentionReport::of(&text, &best.text, model.bundle.attend(&text, &best)?)?;
            let weights = report.layers.iter().flat_map(|layer| layer.heads.iter().flatten().flatten());
            if weights.into_iter().any(|weight| !weight.is_finite()) {
                return Err(ApiError::NotFinite(name));
            }
            Ok(json_response(&report))
        })
        .await
    })
    .await
}

fn check_shown(tokens: usize) -> Result<(), ApiError> {
    if tokens <= MOST_SHOWN {
        return Ok(());
    }
    Err(ApiError::Unprocessable(format!("attention of {tokens} tokens, the most is {MOST_SHOWN}")))
}

/// Maximum size of a body with this many bytes of text.
const fn longest_body(texts: usize) -> usize {
    // JSON may write a byte as `\u0000`
    texts.saturating_mul(6 * LONGEST_BYTES).saturating_add(FIELDS)
}

fn check_beam(beam: usize) -> Result<(), ApiError> {
    if (1..=WIDEST).contains(&beam) {
        return Ok(());
    }
    Err(ApiError::BadRequest(format!("`beam` is from 1 to {WIDEST}, got {beam}")))
}

pub async fn translate(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read_at_most(request, longest_body(app.settings.queue)).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| ApiError::BadRequest(error.to_string()));
        let TranslateBody { model, texts, beam, best }: TranslateBody = app.compute(read).await?;
        let slot = app.translator(model.as_deref())?;
        check_beam(beam)?;
        if best > beam {
            return Err(ApiError::BadRequest(format!("the {best} best of a beam of {beam}: `best` is at most `beam`")));
        }
        if texts.is_empty() {
            return Err(ApiError::BadRequest("`texts` is empty".into()));
        }
        let permit = slot.lane().reserve(texts.len())?;
        let model = slot.current();
        let own = Arc::clone(&model);
        let texts = app.compute(move || own.check_length(&texts, beam).map(|()| texts)).await?;
        let request = translator::TranslateRequest { texts, beam };
        let mut translations = slot.translate(permit, model, request).await?;
        translations.iter_mut().for_each(|all| all.truncate(best));
        Ok(json_response(&TranslateResponse { model: slot.name(), translations }))
    })
    .await
}
