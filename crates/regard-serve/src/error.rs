//! Errors of requests: the only place that knows status codes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::routes::json_response;

/// An error response: a status and `{"error": ".."}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    #[error("{0}")]
    BadRequest(String),
    #[error("a bearer token is needed")]
    Unauthorized,
    #[error("{0}")]
    Forbidden(String),
    #[error("no model `{name}`; there are: {known}")]
    UnknownModel { name: String, known: String },
    #[error("nothing at `{0}`; `/openapi.json` lists what there is")]
    NotFound(String),
    #[error("`{path}` does not take {method}")]
    MethodNotAllowed { method: String, path: String },
    #[error("the request was not sent within {0} s")]
    RequestTimeout(u64),
    #[error("more than {0} bytes")]
    BodyTooLarge(usize),
    #[error("this server does not answer for host `{0}`; `regard serve --host {0}` allows it")]
    UnknownHost(String),
    /// Well-formed, but the model cannot work with it.
    #[error("{0}")]
    Unprocessable(String),
    /// The numbers came from the client.
    #[error("`{0}` gives infinity or NaN for this input: are its numbers too large?")]
    Overflow(String),
    /// The numbers came from the server, so the model is at fault.
    #[error("`{0}` gives infinity or NaN: are its weights damaged?")]
    NotFinite(String),
    #[error("the queue of `{0}` is full; try again")]
    QueueFull(String),
    #[error("too many bytes are in use; try again")]
    OutOfMemory,
    #[error("internal failure; the server goes on")]
    Internal,
    #[error("no answer within {0} s")]
    Timeout(u64),
}

impl ApiError {
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::UnknownModel { .. } | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Unprocessable(_) | Self::Overflow(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::QueueFull(_) | Self::OutOfMemory => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal | Self::NotFinite(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// Errors of the library about a client's input.
impl From<regard::Error> for ApiError {
    fn from(error: regard::Error) -> Self {
        use regard::Error;
        match &error {
            Error::Config { .. } | Error::Field { .. } | Error::NotRecorded { .. } | Error::Analysis { .. } => {
                Self::Unprocessable(error.to_string())
            }
            // do not reveal files and devices of the server
            Error::Device { .. }
            | Error::Plan { .. }
            | Error::Weights { .. }
            | Error::File { .. }
            | Error::Fetch { .. }
            | Error::Diverged { .. }
            | Error::Rank { .. } => Self::Internal,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(&json!({ "error": self.to_string() }));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        match self {
            Self::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::QueueFull(_) | Self::OutOfMemory => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // the rest of the body is not read
            Self::RequestTimeout(_) | Self::BodyTooLarge(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
