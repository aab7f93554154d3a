//! Request bodies, within limits of size, time and total memory. They are never written to disk.

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use std::time::Duration;

use crate::budget::{Budget, Charge};
use crate::error::ApiError;

/// The bytes of a request, with their charge to the budget.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Vec<u8>,
    charge: Charge,
}

impl RequestBody {
    /// The charge; keep it as long as data made from the bytes lives.
    pub fn into_charge(self) -> Charge {
        self.charge
    }
}

impl std::ops::Deref for RequestBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for RequestBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Limits of size and time of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
}

/// Reads a body. Bytes are charged on arrival, so that a slow client holds no more than it sent.
///
/// # Errors
/// When it is too long, too slow or interrupted, or the budget is used up.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    budget: &Budget,
    limits: BodyLimits,
) -> Result<RequestBody, ApiError> {
    let BodyLimits { bytes: most, time } = limits;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > most as u64) {
        return Err(ApiError::BodyTooLarge(most));
    }
    let read = async {
        let mut pieces = body.into_data_stream();
        let mut all = RequestBody { bytes: Vec::new(), charge: budget.charge(0)? };
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| ApiError::BadRequest(format!("the body broke off: {error}")))?;
            if all.bytes.len() + piece.len() > most {
                drain(pieces).await;
                return Err(ApiError::BodyTooLarge(most));
            }
            all.charge.grow(piece.len())?;
            all.bytes.extend_from_slice(&piece);
        }
        Ok(all)
    };
    tokio::time::timeout(time, read).await.unwrap_or(Err(ApiError::RequestTimeout(time.as_secs())))
}

/// Keeps reading for a moment: a client that is still sending when the connection is closed would not see the answer.
async fn drain(pieces: BodyDataStream) {
    let mut left = 1usize << 20;
    let end = pieces.take_while(|piece| {
        left = left.saturating_sub(piece.as_ref().map_or(usize::MAX, axum::body::Bytes::len));
        std::future::ready(left > 0)
    });
    let _ = tokio::time::timeout(Duration::from_secs(1), end.for_each(|_| std::future::ready(()))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn limits(bytes: usize) -> BodyLimits {
        BodyLimits { bytes, time: Duration::from_secs(10) }
    }

    fn attempt(bytes: &str, budget: &Budget, most: usize) -> Result<RequestBody, ApiError> {
        let body = Body::from(bytes.to_string());
        block_on(read(&HeaderMap::new(), body, budget, limits(most)))
    }

    #[test]
    fn bytes_that_were_held_can_be_had_again() {
        let budget = Budget::new(10);
        let first = attempt("six by", &budget, 100).unwrap();
        assert_eq!(&*first, b"six by");
        assert_eq!(attempt("seven b", &budget, 100).unwrap_err(), ApiError::OutOfMemory);
        drop(first);
        assert_eq!(&*attempt("seven b", &budget, 100).unwrap(), b"seven b");
        assert!(budget.charge(10).is_ok());
    }

    #[test]
    fn what_is_too_long_is_refused_whether_announced_or_not() {
        let budget = Budget::new(1000);
        assert_eq!(attempt("too long", &budget, 7).unwrap_err(), ApiError::BodyTooLarge(7));
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, "18446744073709551615".parse().unwrap())]);
        let announced = read(&headers, Body::empty(), &budget, limits(7));
        assert_eq!(block_on(announced).unwrap_err(), ApiError::BodyTooLarge(7));
    }

    #[test]
    fn a_body_that_never_comes_is_given_up() {
        let body = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let limits = BodyLimits { bytes: 9, time: Duration::from_millis(10) };
        let (headers, budget) = (HeaderMap::new(), Budget::new(9));
        assert_eq!(block_on(read(&headers, body, &budget, limits)).unwrap_err(), ApiError::RequestTimeout(0));
    }
}
