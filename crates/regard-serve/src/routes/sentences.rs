//! Sentences as they are: text in, translations out.

use axum::extract::{Request, State};
use axum::response::Response;
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

pub async fn translate(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let body = app.read(request).await?;
    app.in_time(async {
        let read = move || serde_json::from_slice(&body).map_err(|error| Refusal::Input(error.to_string()));
        let Asked { model, texts, beam, best }: Asked = app.compute(read).await?;
        let (name, held) = app.sentences(model.as_deref())?;
        if !(1..=WIDEST).contains(&beam) || best > beam {
            return Err(Refusal::Input(format!("`beam` is from 1 to {WIDEST}, and `best` at most as many")));
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
