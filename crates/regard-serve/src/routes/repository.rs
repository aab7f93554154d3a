//! The model repository: its index, and reloading a model.

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::error::ApiError;

pub async fn index(State(app): State<Arc<App>>) -> Response {
    let models: Vec<_> =
        app.models().map(|model| json!({ "name": model.name, "version": "1", "state": "READY" })).collect();
    json_response(&models)
}

/// Files are reread from the paths known at start; the request names no paths.
pub async fn load(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    if !app.settings.reload {
        return Err(ApiError::Forbidden("this server does not load models for clients".into()));
    }
    let model = app.model(&name)?;
    // paths and reasons are only in the event, for the operator
    let kept = |_| ApiError::Unprocessable(format!("`{name}` could not be loaded again; the old one goes on"));
    app.reload(model).await.map_err(kept)?;
    Ok(json_response(&json!({ "name": model.name, "state": "READY" })))
}
