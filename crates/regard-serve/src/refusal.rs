//! Why a request is not answered: the one place that knows statuses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::routes::json_response;

/// What a client hears instead of an answer: `{"error": ".."}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Input(String),
    #[error("a bearer token is needed")]
    Token,
    #[error("{0}")]
    Forbidden(String),
    #[error("no model `{name}`; there are: {known}")]
    Model { name: String, known: String },
    #[error("nothing at `{0}`; `/openapi.json` lists what there is")]
    Path(String),
    #[error("`{path}` does not take {method}")]
    Method { method: String, path: String },
    #[error("the request was not sent within {0} s")]
    Slow(u64),
    #[error("more than {0} bytes")]
    Body(usize),
    /// What was sent is well-formed, and still nothing can be done with it.
    #[error("{0}")]
    Unfit(String),
    #[error("the queue of `{0}` is full; try again")]
    Full(String),
    #[error("too many bytes are on their way; try again")]
    Memory,
    #[error("internal failure; the server goes on")]
    Panicked,
    #[error("no answer within {0} s")]
    Late(u64),
}

impl Refusal {
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Input(_) => StatusCode::BAD_REQUEST,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Model { .. } | Self::Path(_) => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Body(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unfit(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Full(_) | Self::Memory => StatusCode::TOO_MANY_REQUESTS,
            Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// Errors of the library about what a client sent.
impl From<regard::Error> for Refusal {
    fn from(error: regard::Error) -> Self {
        use regard::Error;
        match &error {
            Error::Config { .. } | Error::Field { .. } | Error::NotRecorded { .. } | Error::Analysis { .. } => {
                Self::Unfit(error.to_string())
            }
            // files and devices of the server are none of the client's business
            Error::Device { .. }
            | Error::Weights { .. }
            | Error::File { .. }
            | Error::Fetch { .. }
            | Error::Diverged { .. }
            | Error::Rank { .. } => Self::Panicked,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = json_response(&json!({ "error": self.to_string() }));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        match self {
            Self::Token => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Full(_) | Self::Memory => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // the rest of what is being sent is not read
            Self::Slow(_) | Self::Body(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}
