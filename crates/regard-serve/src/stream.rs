//! The byte stream of a connection: drops clients that do not read their answer, and requires CR LF in heads.

use std::future::Future as _;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::head::{BareLineFeed, HeadScanner};

/// Minimum reading speed of a client in bytes per second, in addition to the time that it may pause.
const SLOWEST: u64 = 16 << 10;

/// The last activity of a connection.
#[derive(Clone, Debug)]
pub struct Activity {
    start: Instant,
    last: Arc<AtomicU64>,
}

impl Activity {
    fn new() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }

    fn touch(&self) {
        self.last.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// The time of the last read or write.
    pub fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// A stream that fails if the client does not read.
pub struct ClientStream<S> {
    stream: S,
    scanner: HeadScanner,
    activity: Activity,
    write_timeout: Duration,
    /// An answer that is still being written.
    stalled: Option<Stalled>,
}

struct Stalled {
    since: Instant,
    written: u64,
    timer: Pin<Box<Sleep>>,
}

impl<S> ClientStream<S> {
    pub fn new(stream: S, write_timeout: Duration) -> Self {
        Self { stream, scanner: HeadScanner::default(), activity: Activity::new(), write_timeout, stalled: None }
    }

    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Tracks how much was written, or how long nothing could be.
    fn limit_write(&mut self, context: &mut Context<'_>, result: Poll<Result<usize>>) -> Poll<Result<usize>> {
        let timeout = self.write_timeout;
        if let Poll::Ready(result) = result {
            self.activity.touch();
            if let (Some(stalled), Ok(count)) = (&mut self.stalled, &result) {
                stalled.written += *count as u64;
            }
            return Poll::Ready(result);
        }
        let now = Instant::now();
        let stalled = self.stalled.get_or_insert_with(|| Stalled {
            since: now,
            written: 0,
            timer: Box::pin(sleep_until(now + timeout)),
        });
        let deadline = stalled.since + timeout + Duration::from_millis(stalled.written * 1000 / SLOWEST);
        if stalled.timer.deadline() != deadline {
            stalled.timer.as_mut().reset(deadline);
        }
        ready!(stalled.timer.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.activity.touch();
        let read = &mut buffer.filled_mut()[before..];
        if let Err(BareLineFeed { offset }) = self.scanner.feed(read) {
            // no head may contain zeros, so that the parser answers with 400
            read[offset..].fill(0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit_write(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit_write(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        // everything was written
        self.stalled = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::{TcpListener, TcpStream};

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Our end of a connection, and the client's.
    async fn connected() -> (ClientStream<TcpStream>, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ClientStream::new(listener.accept().await.unwrap().0, Duration::from_millis(50)), client)
    }

    async fn write_all(stream: &mut ClientStream<TcpStream>, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes)).await?;
            bytes = &bytes[count..];
        }
        poll_fn(|context| Pin::new(&mut *stream).poll_flush(context)).await
    }

    #[test]
    fn a_client_that_does_not_read_is_given_up_and_one_that_reads_is_not() {
        // more than the buffers of the system take
        let answer = vec![b'x'; 64 << 20];
        block_on(async {
            let (mut stream, _deaf) = connected().await;
            assert_eq!(write_all(&mut stream, &answer).await.unwrap_err().kind(), ErrorKind::TimedOut);
            let (mut stream, mut client) = connected().await;
            let reader = std::thread::spawn(move || std::io::copy(&mut client, &mut std::io::sink()).unwrap());
            write_all(&mut stream, &answer).await.unwrap();
            drop(stream);
            assert_eq!(reader.join().unwrap(), 64 << 20);
        });
    }
}
