//! The page: the embedded files of `web/`.

use axum::extract::Path;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

// `FILES: &[(&str, &[u8])]`, written by build.rs
include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// No external resources: the page works offline and runs only its own scripts.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'";

pub async fn index() -> Result<Response, ApiError> {
    file("index.html", "/")
}

pub async fn asset(Path(path): Path<String>) -> Result<Response, ApiError> {
    file(&format!("assets/{path}"), &format!("/assets/{path}"))
}

/// A file by its name in the table; request paths never reach the file system.
fn file(name: &str, path: &str) -> Result<Response, ApiError> {
    let found = FILES.iter().find(|(known, _)| *known == name);
    let (_, bytes) = found.ok_or_else(|| ApiError::NotFound(path.to_string()))?;
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, content_type(name)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, *bytes).into_response())
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg") => "image/jpeg",
        Some("webp") => "image/webp",
        _ => "application/octet-stream",
    }
}
