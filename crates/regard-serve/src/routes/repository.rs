//! The models that there are, and loading one again.

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::refusal::Refusal;

pub async fn index(State(app): State<Arc<App>>) -> Response {
    let models: Vec<_> =
        app.slots().map(|slot| json!({ "name": slot.name, "version": "1", "state": "READY" })).collect();
    json_response(&models)
}

/// Files are read again where the server found them at its start; nothing of the request says where.
pub async fn load(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    if !app.settings.reload {
        return Err(Refusal::Forbidden("this server does not load models for clients".into()));
    }
    let slot = app.slot(&name)?;
    // paths and reasons are told to whoever runs the server
    let kept = |_| Refusal::Unfit(format!("`{name}` could not be loaded again; the old one goes on"));
    app.reload(slot).await.map_err(kept)?;
    Ok(json_response(&json!({ "name": slot.name, "state": "READY" })))
}
