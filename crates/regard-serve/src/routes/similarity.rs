//! Similarity of the layers of two models, over uploaded or embedded pictures.

use axum::extract::{Request, State};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::future::try_join_all;
use regard::analyse::{Cka, Similarity, cka};
use regard::data::Picture;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{json_response, samples};
use crate::app::App;
use crate::classifier::Classifier;
use crate::error::ApiError;
use crate::lane::Permit;

/// Pictures per forward pass; all layers of both models are held at once.
const BATCH: usize = 16;

/// Maximum number of pictures per request.
const MOST: usize = 512;

/// Number of embedded pictures that are used if none are sent.
const OWN: usize = 96;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimilarityRequest {
    /// Rows and columns of the response.
    models: [String; 2],
    /// Files in base64; if none, the embedded pictures.
    pictures: Option<Vec<String>>,
}

#[derive(Serialize)]
struct SimilarityResponse {
    models: [String; 2],
    #[serde(flatten)]
    similarity: Similarity,
}

pub async fn similarity(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| ApiError::BadRequest(error.to_string()));
        let SimilarityRequest { models, pictures }: SimilarityRequest = app.compute(read).await?;
        let count = pictures.as_ref().map_or(OWN, Vec::len);
        if !(cka::FEWEST..=MOST).contains(&count) {
            return Err(ApiError::Unprocessable(format!("from {} to {MOST} pictures, got {count}", cka::FEWEST)));
        }
        let (compared, _permits) = classifiers(&app, &models)?;
        let pictures = Arc::new(pictures);
        let mut cka = Cka::default();
        // batch by batch: other requests run in between, and work stops when the client is gone
        for batch in batches(count) {
            let pixels = try_join_all(batch.map(|index| preprocessed(&app, &pictures, &compared, index))).await?;
            let compared = compared.clone();
            cka = app
                .compute(move || {
                    let [rows, columns] =
                        [0, 1].map(|side| pixels.iter().flat_map(|both| both[side].clone()).collect());
                    let rows = compared[0].gram_matrices(rows)?;
                    let alone = Arc::ptr_eq(&compared[0], &compared[1]);
                    let columns = if alone { rows.clone() } else { compared[1].gram_matrices(columns)? };
                    cka.add(&rows, &columns)?;
                    Ok(cka)
                })
                .await?;
        }
        let similarity = app.compute(move || Ok(cka.similarity()?)).await?;
        if similarity.values.iter().flatten().any(|value| !value.is_finite()) {
            return Err(ApiError::NotFinite(models.join("` or `")));
        }
        Ok(json_response(&SimilarityResponse { models, similarity }))
    })
    .await
}

/// Both models, with permits for a batch of each.
fn classifiers(app: &App, models: &[String; 2]) -> Result<([Arc<Classifier>; 2], Vec<Permit>), ApiError> {
    let [rows, columns] = [app.classifier(Some(&models[0]))?, app.classifier(Some(&models[1]))?];
    let size = BATCH.min(app.settings.queue);
    let mut permits = vec![rows.lane().reserve(size)?];
    if models[0] != models[1] {
        permits.push(columns.lane().reserve(size)?);
    }
    Ok(([rows.current(), columns.current()], permits))
}

/// A picture, preprocessed for both models.
async fn preprocessed(
    app: &App,
    pictures: &Arc<Option<Vec<String>>>,
    models: &[Arc<Classifier>; 2],
    index: usize,
) -> Result<[Vec<f32>; 2], ApiError> {
    let models = models.clone();
    let both = move |picture: &Picture| Ok([models[0].preprocess(picture)?, models[1].preprocess(picture)?]);
    if pictures.is_none() {
        return app.compute(move || both(&samples::picture(index))).await;
    }
    let files = Arc::clone(pictures);
    let file = app.compute(move || {
        let file = files.as_ref().as_ref().map_or("", |files| &files[index]);
        BASE64_STANDARD.decode(file).map_err(|error| ApiError::Unprocessable(error.to_string()))
    });
    let decoded = async { app.decode(file.await?, both).await };
    decoded.await.map_err(|error| match error {
        ApiError::Unprocessable(reason) => ApiError::Unprocessable(format!("picture {}: {reason}", index + 1)),
        other => other,
    })
}

/// The ranges of batches; a remainder that is too small joins the last one.
fn batches(count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let whole = (count / BATCH).max(1);
    let rest = count.saturating_sub(whole * BATCH);
    let last = if rest < cka::FEWEST { whole - 1 } else { whole };
    (0..=last).map(move |index| {
        let end = if index == last { count } else { (index + 1) * BATCH };
        index * BATCH..end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_is_in_one_batch_and_no_batch_is_too_small() {
        for count in cka::FEWEST..=100 {
            let cut: Vec<_> = batches(count).collect();
            assert_eq!((cut[0].start, cut[cut.len() - 1].end), (0, count));
            assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start), "{cut:?}");
            assert!(cut.iter().all(|batch| (cka::FEWEST..BATCH + cka::FEWEST).contains(&batch.len())), "{cut:?}");
        }
    }
}
