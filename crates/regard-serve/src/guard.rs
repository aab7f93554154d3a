//! Applied to every request: authorisation, the charge of the answer, and an answer even after a panic.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use subtle::ConstantTimeEq as _;

use crate::app::App;
use crate::error::ApiError;
use crate::hosts::AllowedHosts;
use crate::lane::panic_message;
use crate::settings::Event;

/// A secret that clients send as `Authorization: Bearer ..`.
#[derive(Clone)]
pub struct Token {
    digest: [u8; 32],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// # Errors
    /// When it is empty, or invalid in a header.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token has at least one character, all of them visible ASCII".into());
        }
        Ok(Self { digest: Sha256::digest(text).into() })
    }

    /// Compares digests in constant time.
    fn is(&self, shown: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(shown).into();
        self.digest.ct_eq(&digest).into()
    }
}

/// Whether these headers have the secret.
fn shows(token: &Token, headers: &HeaderMap) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = value.and_then(|value| value.split_once(' '));
    bearer.is_some_and(|(scheme, shown)| scheme.eq_ignore_ascii_case("bearer") && token.is(shown.trim()))
}

/// Whether a path needs no token: the page has no secrets, and monitoring has no token.
fn is_open(path: &str) -> bool {
    path == "/" || path.starts_with("/assets/") || path.starts_with("/v2/health/")
}

/// Refuses cross-site requests of browsers.
fn same_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let site = origin.split_once("://").map(|(_, site)| site);
    if site.is_some() && site == text(header::HOST) {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!("the page of another site asks: {origin}")))
}

/// State of the guard.
#[derive(Clone)]
pub struct GuardState {
    pub app: Arc<App>,
    pub hosts: Arc<AllowedHosts>,
}

impl GuardState {
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        self.hosts.check(request)?;
        match &self.app.settings.token {
            Some(token) if !is_open(request.uri().path()) && !shows(token, request.headers()) => {
                Err(ApiError::Unauthorized)
            }
            _ if request.method() == Method::POST => same_site(request.headers()),
            _ => Ok(()),
        }
    }
}

pub async fn guard(State(state): State<GuardState>, request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_string();
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let app = &state.app;
    let response = match state.check(&request) {
        Ok(()) => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|payload| {
            (app.tell)(Event::Panicked { message: panic_message(payload.as_ref()) });
            ApiError::Internal.into_response()
        }),
        Err(error) => error.into_response(),
    };
    let mut response = app.budget.charge_response(response).unwrap_or_else(ApiError::into_response);
    if chunked {
        // heads after a chunked body are not scanned
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    app.metrics.on_response(&route, response.status().as_u16(), begin.elapsed());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_whole_or_not_at_all() {
        let token = Token::new("open-sesame").unwrap();
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(shows(&token, &headers("Bearer open-sesame")));
        assert!(shows(&token, &headers("bearer open-sesame")));
        for wrong in ["Bearer open-sesam", "Bearer open-sesame2", "Bearer ", "Basic open-sesame", "open-sesame"] {
            assert!(!shows(&token, &headers(wrong)), "{wrong}");
        }
        assert!(!shows(&token, &HeaderMap::new()));
        assert!(Token::new("").is_err() && Token::new("two words").is_err() && Token::new("line\n").is_err());
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn a_page_of_another_site_is_refused_and_our_own_is_not() {
        let headers = |origin: &str| {
            HeaderMap::from_iter([
                (header::HOST, "127.0.0.1:8000".parse().unwrap()),
                (header::ORIGIN, origin.parse().unwrap()),
            ])
        };
        assert!(same_site(&HeaderMap::new()).is_ok());
        assert!(same_site(&headers("http://127.0.0.1:8000")).is_ok());
        assert!(same_site(&headers("http://example.org")).is_err());
        assert!(same_site(&headers("null")).is_err());
    }
}
