//! Health and metrics.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

use super::json_response;
use crate::app::App;
use crate::metrics::CONTENT_TYPE;

/// Name and version of the server.
pub async fn server() -> Response {
    json_response(&json!({
        "name": "regard",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data", "model_repository"],
    }))
}

pub async fn live() -> Response {
    json_response(&json!({ "live": true }))
}

/// Models are loaded before the first connection is accepted.
pub async fn ready() -> Response {
    json_response(&json!({ "ready": true }))
}

pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let in_use = app.models().map(|model| (model.name.as_str(), model.slot.in_use()));
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], app.metrics.text(in_use))
}
