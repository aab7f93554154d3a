//! Bytes of requests, within limits of size, time and of what is held at once. They are never written anywhere.

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::refusal::Refusal;
use crate::settings::Settings;

/// How many bytes of requests may be held at a time.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<AtomicUsize>,
}

/// The bytes of a request; the budget has them back when this is dropped.
#[derive(Debug)]
pub struct Bytes {
    bytes: Vec<u8>,
    taken: Taken,
}

#[derive(Debug)]
struct Taken {
    count: usize,
    budget: Budget,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Whether so many more could be had.
    fn take(&self, count: usize) -> bool {
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(count)).is_ok()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.free.fetch_add(self.count, Ordering::AcqRel);
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body. What is on its way counts when it arrives, so that a slow client holds no more than it sent.
///
/// # Errors
/// When it is too long, too slow or broken off, or too much is held already.
pub async fn read(headers: &HeaderMap, body: Body, budget: &Budget, settings: &Settings) -> Result<Bytes, Refusal> {
    let Settings { body: most, patience, .. } = *settings;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > most as u64) {
        return Err(Refusal::Body(most));
    }
    let read = async {
        let mut pieces = body.into_data_stream();
        let mut all = Bytes { bytes: Vec::new(), taken: Taken { count: 0, budget: budget.clone() } };
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Refusal::Input(format!("the body broke off: {error}")))?;
            if all.bytes.len() + piece.len() > most {
                drain(pieces).await;
                return Err(Refusal::Body(most));
            }
            if !budget.take(piece.len()) {
                return Err(Refusal::Memory);
            }
            all.taken.count += piece.len();
            all.bytes.extend_from_slice(&piece);
        }
        Ok(all)
    };
    tokio::time::timeout(patience, read).await.unwrap_or(Err(Refusal::Slow(patience.as_secs())))
}

/// Reads on for a moment: who still sends when the connection is closed would not hear why.
async fn drain(pieces: BodyDataStream) {
    let mut left = 1usize << 20;
    let end = pieces.take_while(|piece| {
        left = left.saturating_sub(piece.as_ref().map_or(usize::MAX, axum::body::Bytes::len));
        std::future::ready(left > 0)
    });
    // whoever sends forever has been heard long enough
    let _ = tokio::time::timeout(Duration::from_secs(1), end.for_each(|_| std::future::ready(()))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn attempt(bytes: &str, budget: &Budget, most: usize) -> Result<Bytes, Refusal> {
        let body = Body::from(bytes.to_string());
        block_on(read(&HeaderMap::new(), body, budget, &Settings { body: most, ..Settings::default() }))
    }

    #[test]
    fn bytes_that_were_held_can_be_had_again() {
        let budget = Budget::new(10);
        let first = attempt("six by", &budget, 100).unwrap();
        assert_eq!(&*first, b"six by");
        assert_eq!(attempt("seven b", &budget, 100).unwrap_err(), Refusal::Memory);
        drop(first);
        assert_eq!(&*attempt("seven b", &budget, 100).unwrap(), b"seven b");
        assert_eq!(budget.free.load(Ordering::Acquire), 10);
    }

    #[test]
    fn what_is_too_long_is_refused_whether_announced_or_not() {
        let budget = Budget::new(1000);
        assert_eq!(attempt("too long", &budget, 7).unwrap_err(), Refusal::Body(7));
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, "18446744073709551615".parse().unwrap())]);
        let settings = Settings { body: 7, ..Settings::default() };
        let announced = read(&headers, Body::empty(), &budget, &settings);
        assert_eq!(block_on(announced).unwrap_err(), Refusal::Body(7));
    }

    #[test]
    fn nobody_is_waited_for_longer_than_the_patience() {
        let body = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let settings = Settings { patience: Duration::from_millis(10), ..Settings::default() };
        let (headers, budget) = (HeaderMap::new(), Budget::new(9));
        let slow = read(&headers, body, &budget, &settings);
        assert_eq!(block_on(slow).unwrap_err(), Refusal::Slow(0));
    }
}
