//! Connections: their number, their time limits, and how they end.

use axum::Router;
use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use crate::app::{App, Entry, Error, Server};
use crate::settings::{Event, Settings, Tell};
use crate::stream::{Activity, ClientStream};

/// Idle time of a connection when no more are accepted.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);

/// How often freed memory is returned to the system, and the minimum amount.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
const RELEASE_FROM: usize = 16 << 20;

/// Serves models until SIGINT or SIGTERM, and reloads them on SIGHUP.
///
/// Do not call this on a thread of a rayon pool: it would be blocked until the server ends.
///
/// # Errors
/// When models or limits are invalid, or the address cannot be bound.
pub fn run(entries: Vec<Entry>, address: SocketAddr, settings: Settings, tell: Tell) -> Result<(), Error> {
    let server = Server::new(entries, settings, tell)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Error::System(error.to_string()))?;
    runtime.block_on(async {
        let at = |error: std::io::Error| Error::Address { address: address.to_string(), reason: error.to_string() };
        let listener = TcpListener::bind(address).await.map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let stop = signals(&server).map_err(|error| Error::System(error.to_string()))?;
        server.tell(Event::Ready(address));
        server.serve(listener, stop).await;
        Ok(())
    })
}

/// Waits for SIGINT or SIGTERM; reloads models on every SIGHUP until then.
#[cfg(unix)]
fn signals(server: &Server) -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let [mut interrupt, mut terminate, mut hangup] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let server = server.clone();
    Ok(async move {
        // on a task of its own: a long load does not keep the server from stopping
        let reloads = tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                server.reload().await;
            }
        });
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        reloads.abort();
    })
}

#[cfg(not(unix))]
fn signals(_: &Server) -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // without a handler the process can only be killed
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// A signal to all connections.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Open,
    /// The limit of connections is reached: idle ones close.
    Full,
    /// Answer pending requests, then close.
    Stopping,
}

/// Accepts until `stop`, then answers pending requests and ends.
pub async fn serve(app: &Arc<App>, router: Router, listener: TcpListener, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let most = u32::try_from(app.settings.connections).unwrap_or(u32::MAX >> 3);
    let open = Arc::new(Semaphore::new(most as usize));
    let (phase, _) = watch::channel(Phase::Open);
    let start = |stream: TcpStream, permit: OwnedSemaphorePermit| {
        let connection = connection(Arc::clone(app), router.clone(), stream, phase.subscribe());
        tokio::spawn(async move {
            connection.await;
            drop(permit);
        });
    };
    let releases = tokio::spawn(release_memory(Arc::clone(app)));
    loop {
        let accepted = async {
            let permit = if let Ok(permit) = Arc::clone(&open).try_acquire_owned() {
                permit
            } else {
                phase.send_replace(Phase::Full);
                let permit = Arc::clone(&open).acquire_owned().await.expect("it is never closed");
                phase.send_replace(Phase::Open);
                permit
            };
            (listener.accept().await, permit)
        };
        tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => start(stream, permit),
                // out of file descriptors, for instance: other connections will free some
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            () = &mut stop => break,
        }
    }
    (app.tell)(Event::Stopping);
    // connections in the backlog are served too
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        let Ok(permit) = Arc::clone(&open).try_acquire_owned() else { break };
        start(stream, permit);
    }
    drop(listener);
    // requests already in their sockets are still answered
    tokio::time::sleep(Duration::from_millis(10)).await;
    phase.send_replace(Phase::Stopping);
    // do not wait for a client that does not read its answer
    let longest = app.settings.patience + app.settings.time;
    let _ = tokio::time::timeout(longest, open.acquire_many(most)).await;
    releases.abort();
}

/// Serves one connection to its end.
async fn connection(app: Arc<App>, router: Router, stream: TcpStream, mut phase: watch::Receiver<Phase>) {
    // send small answers at once
    let _ = stream.set_nodelay(true);
    let stream = ClientStream::new(stream, app.settings.patience);
    let activity = stream.activity();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(app.settings.patience).max_headers(64);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let open = app.metrics.open_connection();
    // a client that disconnects is not an error
    let ended = tokio::select! {
        _ = connection.as_mut() => true,
        () = ending(&mut phase, &activity) => false,
    };
    if !ended {
        // pending answers are still sent
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
    drop(open);
}

/// Waits until a connection should close: the server stops, or is full and the connection is idle.
async fn ending(phase: &mut watch::Receiver<Phase>, activity: &Activity) {
    loop {
        let now = *phase.borrow_and_update();
        let idle = activity.last() + IDLE_WHEN_FULL;
        match now {
            Phase::Stopping => return,
            Phase::Full if idle <= Instant::now() => return,
            Phase::Full | Phase::Open => {}
        }
        tokio::select! {
            changed = phase.changed() => if changed.is_err() { return },
            () = sleep_until(idle), if now == Phase::Full => {}
        }
    }
}

/// Returns freed memory to the system after large requests.
async fn release_memory(app: Arc<App>) {
    let mut ticks = tokio::time::interval(RELEASE_EVERY);
    let mut freed = 0;
    loop {
        ticks.tick().await;
        freed += app.budget.take_released();
        if freed >= RELEASE_FROM {
            freed = 0;
            let _ = tokio::task::spawn_blocking(regard::device::release_memory).await;
        }
    }
}
