//! The table of routes, and one file per kind of request.

mod ask;
mod boxes;
mod clips;
mod detect;
mod embed;
mod health;
mod infer;
mod openapi;
mod page;
mod pictures;
mod repository;
mod runs;
mod samples;
mod sentences;
mod similarity;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

use crate::app::App;
use crate::error::ApiError;
use crate::guard::{GuardState, guard};
use crate::hosts::AllowedHosts;

/// Method, path and handler.
type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

/// All routes; `/openapi.json` describes each line.
fn table() -> Vec<Route> {
    vec![
        ("get", "/", get(page::index)),
        ("get", "/assets/{*path}", get(page::asset)),
        ("get", "/openapi.json", get(openapi::document)),
        ("get", "/metrics", get(health::metrics)),
        ("get", "/v1/models", get(pictures::models)),
        ("post", "/v1/classify", post(pictures::classify)),
        ("post", "/v1/explain", post(pictures::explain)),
        ("post", "/v1/detect", post(detect::detect)),
        ("post", "/v1/detect/attention", post(detect::attention)),
        ("post", "/v1/clips", post(clips::classify)),
        ("post", "/v1/clips/attention", post(clips::attention)),
        ("post", "/v1/similarity", post(similarity::similarity)),
        ("post", "/v1/translate", post(sentences::translate)),
        ("post", "/v1/attend", post(sentences::attend)),
        ("post", "/v1/ask", post(ask::ask)),
        ("post", "/v1/match", post(ask::matching)),
        ("post", "/v1/embed", post(embed::embed)),
        ("get", "/v1/samples", get(samples::samples)),
        ("get", "/v1/runs", get(runs::list)),
        ("get", "/v1/runs/{*path}", get(runs::curves)),
        ("get", "/v2", get(health::server)),
        ("get", "/v2/health/live", get(health::live)),
        ("get", "/v2/health/ready", get(health::ready)),
        ("get", "/v2/models/{name}", get(infer::metadata)),
        ("get", "/v2/models/{name}/ready", get(infer::ready)),
        ("post", "/v2/models/{name}/infer", post(infer::infer)),
        ("post", "/v2/repository/index", post(repository::index)),
        ("post", "/v2/repository/models/{name}/load", post(repository::load)),
    ]
}

pub fn router(app: Arc<App>, hosts: AllowedHosts) -> Router {
    let mut router = Router::new();
    for (_, path, handler) in table() {
        router = router.route(path, handler);
    }
    router
        .fallback(async |request: Request| ApiError::NotFound(request.uri().path().to_string()))
        .method_not_allowed_fallback(async |request: Request| ApiError::MethodNotAllowed {
            method: request.method().to_string(),
            path: request.uri().path().to_string(),
        })
        .layer(from_fn_with_state(GuardState { app: Arc::clone(&app), hosts: Arc::new(hosts) }, guard))
        .with_state(app)
}

/// 200 with JSON.
pub fn json_response(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut response = body.into_response();
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Err(_) => ApiError::Internal.into_response(),
    }
}

/// The query of a URL.
fn query<T: DeserializeOwned>(request: &Request) -> Result<T, ApiError> {
    let query = axum::extract::Query::try_from_uri(request.uri());
    query.map(|query| query.0).map_err(|error| ApiError::BadRequest(error.body_text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let document = openapi::built();
        let described: Vec<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(move |method| (method.clone(), path.clone()))
            })
            .collect();
        let mut served: Vec<(String, String)> = table()
            .into_iter()
            .map(|(method, path, _)| (method.to_string(), path.replace("{*path}", "{path}")))
            .collect();
        served.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(described, served);
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        fn references(value: &serde_json::Value, found: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(|to| Some(to.as_str()?.to_string())));
                    fields.values().for_each(|value| references(value, found));
                }
                serde_json::Value::Array(all) => all.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = openapi::built();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
