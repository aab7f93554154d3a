//! Sentences to vectors.

use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::embedder::ReadTexts;
use crate::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbedRequest {
    model: Option<String>,
    texts: Vec<String>,
    /// Whether a text that is too long is cut off; it is an error otherwise.
    #[serde(default)]
    truncate: bool,
}

#[derive(Serialize)]
struct EmbedResponse<'a> {
    model: &'a str,
    dimensions: usize,
    /// Tokens of each text, those that were cut off included.
    tokens: &'a [usize],
    /// Of length one each: the dot product of two is their cosine.
    vectors: &'a [Vec<f32>],
}

pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| ApiError::BadRequest(error.to_string()));
        let EmbedRequest { model, texts, truncate }: EmbedRequest = app.compute(read).await?;
        if texts.is_empty() {
            return Err(ApiError::BadRequest("`texts` is empty".into()));
        }
        let slot = app.embedder(model.as_deref())?;
        let permit = slot.lane().reserve(texts.len())?;
        let model = slot.current();
        let own = Arc::clone(&model);
        let ReadTexts { texts, tokens } = app.compute(move || own.read(&texts, truncate)).await?;
        let dimensions = model.width();
        let vectors = slot.embed(permit, model, texts).await?;
        let name = slot.name().to_string();
        // many numbers become text: not on a thread that serves connections
        app.compute(move || {
            Ok(json_response(&EmbedResponse { model: &name, dimensions, tokens: &tokens, vectors: &vectors }))
        })
        .await
    })
    .await
}
