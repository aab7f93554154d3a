//! Sentences as they are: text in, translations out.

use axum::extract::{Request, State};
use axum::response::Response;
use regard::report::AttentionReport;
use regard::translate::Translation;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::refusal::Refusal;
use crate::service::Passage;

/// The widest beam that a client may ask for: work grows with it.
const WIDEST: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    model: Option<String>,
    /// Sentences, each for itself.
    texts: Vec<String>,
    #[serde(default = "four")]
    beam: usize,
    /// So many translations of each sentence.
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
struct Translated<'a> {
    model: &'a str,
    /// Of each sentence, the best first.
    translations: Vec<Vec<Translation>>,
}

/// The most tokens of a sentence, or of its translation, whose attention is told: an answer grows with their square.
const SEEN: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Looking {
    model: Option<String>,
    text: String,
    #[serde(default = "four")]
    beam: usize,
}

/// The best translation of a sentence, and where each layer and head looked for it.
pub async fn attend(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| Refusal::Input(error.to_string()));
        let Looking { model, text, beam }: Looking = app.compute(read).await?;
        let (_, held) = app.sentences(model.as_deref())?;
        check_beam(beam)?;
        let place = held.lane().reserve(1)?;
        let model = held.current();
        let passage = Passage { model: Arc::clone(&model), texts: vec![text.clone()], beam };
        let found = held.lane().ask(place, passage).await??;
        let best = found.into_iter().flatten().next().ok_or(Refusal::Panicked)?;
        let report = app.compute(move || {
            let bundle = &model.bundle;
            let longest = best.tokens.len().max(bundle.tokenizers()[0].encode(&text)?.len());
            if longest > SEEN {
                return Err(Refusal::Unfit(format!("attention of {longest} tokens, the most is {SEEN}")));
            }
            Ok(AttentionReport::of(&text, &best.text, bundle.attend(&text, &best)?)?)
        });
        Ok(json_response(&report.await?))
    })
    .await
}

fn check_beam(beam: usize) -> Result<(), Refusal> {
    if (1..=WIDEST).contains(&beam) {
        return Ok(());
    }
    Err(Refusal::Input(format!("`beam` is from 1 to {WIDEST}, got {beam}")))
}

pub async fn translate(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| Refusal::Input(error.to_string()));
        let Asked { model, texts, beam, best }: Asked = app.compute(read).await?;
        let (name, held) = app.sentences(model.as_deref())?;
        check_beam(beam)?;
        if best > beam {
            return Err(Refusal::Input(format!("the {best} best of a beam of {beam}: `best` is at most `beam`")));
        }
        if texts.is_empty() {
            return Err(Refusal::Input("`texts` is empty".into()));
        }
        let place = held.lane().reserve(texts.len())?;
        let mut translations = held.lane().ask(place, Passage { model: held.current(), texts, beam }).await??;
        translations.iter_mut().for_each(|all| all.truncate(best));
        Ok(json_response(&Translated { model: name, translations }))
    })
    .await
}
