//! Limits the bytes of requests and answers held at a time.

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::error::ApiError;

/// Answers up to this size are free: the limit on connections bounds their sum.
const FREE: u64 = 16 << 10;

/// The limit in bytes.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<AtomicUsize>,
    /// Bytes freed since last asked.
    released: Arc<AtomicUsize>,
}

/// A charge in bytes, returned to the budget on drop.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    budget: Budget,
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(AtomicUsize::new(bytes)), released: Arc::default() }
    }

    /// # Errors
    /// When fewer bytes are free.
    pub fn charge(&self, bytes: usize) -> Result<Charge, ApiError> {
        let mut charge = Charge { bytes: 0, budget: self.clone() };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Charges the body of an answer until it is sent.
    ///
    /// # Errors
    /// When fewer bytes are free.
    pub fn charge_response(&self, response: Response) -> Result<Response, ApiError> {
        let length = response.body().size_hint().exact().unwrap_or(u64::MAX);
        if length <= FREE {
            return Ok(response);
        }
        let charge = self.charge(usize::try_from(length).unwrap_or(usize::MAX))?;
        Ok(response.map(|body| Body::new(ChargedBody { body, charge: Arc::new(charge) })))
    }

    /// Bytes freed since this was last called.
    pub fn take_released(&self) -> usize {
        self.released.swap(0, Ordering::AcqRel)
    }

    /// Counts freed bytes that were never charged.
    pub fn note_released(&self, bytes: usize) {
        self.released.fetch_add(bytes, Ordering::AcqRel);
    }
}

impl Charge {
    /// # Errors
    /// When fewer bytes are free.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let free = &self.budget.free;
        let taken = free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(bytes));
        taken.map_err(|_| ApiError::OutOfMemory)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.free.fetch_add(self.bytes, Ordering::AcqRel);
        self.budget.note_released(self.bytes);
    }
}

/// The body of an answer with its charge.
struct ChargedBody {
    body: Body,
    charge: Arc<Charge>,
}

/// A piece with a share of the charge: the connection drops a body before its last piece is sent.
struct ChargedPiece {
    piece: Bytes,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for ChargedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let charge = Arc::clone(&self.charge);
        let charged = |piece| Bytes::from_owner(ChargedPiece { piece, _charge: charge });
        Pin::new(&mut self.body).poll_frame(context).map_ok(|frame| frame.map_data(charged))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse as _;

    #[test]
    fn a_large_answer_is_charged_until_it_was_sent_and_keeps_its_length() {
        let budget = Budget::new(100_000);
        let large = || vec![b'x'; 60_000].into_response();
        let first = budget.charge_response(large()).unwrap();
        assert_eq!(first.body().size_hint().exact(), Some(60_000));
        assert_eq!(budget.charge_response(large()).unwrap_err(), ApiError::OutOfMemory);
        assert!(budget.charge_response(vec![b'x'; 100].into_response()).is_ok(), "small answers are free");
        let mut body = first.into_body();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("the body is there")
        };
        drop(body);
        assert_eq!(budget.charge_response(large()).unwrap_err(), ApiError::OutOfMemory, "it is not sent yet");
        drop(frame);
        assert!(budget.charge_response(large()).is_ok());
        assert_eq!(budget.take_released(), 120_000);
        assert_eq!(budget.take_released(), 0);
    }
}
