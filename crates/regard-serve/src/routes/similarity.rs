//! How alike the layers of two models are, over pictures that are sent or come with the program.

use axum::extract::{Request, State};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::analyse::{Cka, Similarity, cka};
use regard::data::Picture;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{json_response, samples};
use crate::app::App;
use crate::lane::Place;
use crate::refusal::Refusal;
use crate::service::Classifier;

/// Pictures of one forward pass of each model, whose layers are all held at once.
const BATCH: usize = 16;

/// The most pictures of one question.
const MOST: usize = 512;

/// As many of the program's own pictures are compared when none are sent.
const OWN: usize = 96;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Rows and columns of the answer.
    models: [String; 2],
    /// Files in base64; those that come with the program without.
    pictures: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Compared {
    models: [String; 2],
    #[serde(flatten)]
    similarity: Similarity,
}

pub async fn similarity(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| Refusal::Input(error.to_string()));
        let Asked { models, pictures }: Asked = app.compute(read).await?;
        let count = pictures.as_ref().map_or(OWN, Vec::len);
        if !(cka::FEWEST..=MOST).contains(&count) {
            return Err(Refusal::Unfit(format!("from {} to {MOST} pictures, got {count}", cka::FEWEST)));
        }
        let (compared, _places) = subjects(&app, &models)?;
        let pictures = Arc::new(pictures);
        let mut cka = Cka::default();
        for batch in batches(count) {
            let (pictures, compared) = (Arc::clone(&pictures), compared.clone());
            let most = app.settings.pixels;
            // a turn for each batch: others come in between, and nothing more is done when the client is gone
            let seen = app.compute(move || {
                let mut pixels = [Vec::new(), Vec::new()];
                for index in batch {
                    let picture = match pictures.as_ref() {
                        Some(files) => decoded(&files[index], index, most)?,
                        None => samples::picture(index),
                    };
                    for (pixels, model) in pixels.iter_mut().zip(&compared) {
                        pixels.extend(model.fitted(&picture)?);
                    }
                }
                let [rows, columns] = pixels;
                let rows = compared[0].seen(rows)?;
                let alone = Arc::ptr_eq(&compared[0], &compared[1]);
                let columns = if alone { rows.clone() } else { compared[1].seen(columns)? };
                Ok([rows, columns])
            });
            let [rows, columns] = seen.await?;
            cka.add(&rows, &columns)?;
        }
        Ok(json_response(&Compared { models, similarity: cka.similarity()? }))
    })
    .await
}

/// Both models, with room in their queues for a batch.
fn subjects(app: &App, models: &[String; 2]) -> Result<([Arc<Classifier>; 2], Vec<Place>), Refusal> {
    let [rows, columns] = [app.pictures(Some(&models[0]))?.1, app.pictures(Some(&models[1]))?.1];
    let room = BATCH.min(app.settings.queue);
    let mut places = vec![rows.lane().reserve(room)?];
    if models[0] != models[1] {
        places.push(columns.lane().reserve(room)?);
    }
    Ok(([rows.current(), columns.current()], places))
}

/// Where batches begin and end; the last takes in what would be too few for one.
fn batches(count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let whole = (count / BATCH).max(1);
    let rest = count.saturating_sub(whole * BATCH);
    let last = if rest < cka::FEWEST { whole - 1 } else { whole };
    (0..=last).map(move |index| {
        let end = if index == last { count } else { (index + 1) * BATCH };
        index * BATCH..end
    })
}

fn decoded(file: &str, index: usize, pixels: u64) -> Result<Picture, Refusal> {
    let wrong = |reason: String| Refusal::Unfit(format!("picture {}: {reason}", index + 1));
    let bytes = BASE64_STANDARD.decode(file).map_err(|error| wrong(error.to_string()))?;
    Picture::decode_at_most(&bytes, pixels).map_err(wrong)
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
