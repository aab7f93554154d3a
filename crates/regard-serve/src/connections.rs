//! Connections: how many, how patient, and how they end.

use axum::Router;
use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::app::{App, Entry, Error, Server};
use crate::settings::{Event, Settings, Tell};

/// Serves models until SIGINT or SIGTERM, and loads them again at SIGHUP.
///
/// # Errors
/// When the models or the limits cannot be served, or nobody can listen at the address.
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

/// Ends when the user wants to stop; until then it loads models again whenever that is asked for.
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
        // without a handler for it there is no way to stop but to be killed
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// Accepts until `stop`; then answers what was asked before, and ends.
pub async fn serve(app: &Arc<App>, router: Router, listener: TcpListener, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let open = Arc::new(Semaphore::new(app.settings.connections));
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(app.settings.patience).max_headers(64);
    let start = |stream: TcpStream, place| {
        // small answers go out at once
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let connections = app.meters.connections.clone();
        connections.inc();
        tokio::spawn(async move {
            // a client that breaks off is no news
            let _ = connection.await;
            connections.dec();
            drop(place);
        });
    };
    loop {
        let accepted = async {
            let place = Arc::clone(&open).acquire_owned().await;
            (listener.accept().await, place.ok())
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => start(stream, place),
                // out of file descriptors, for instance: others will end and give theirs back
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            () = &mut stop => break,
        }
    }
    (app.tell)(Event::Stopping);
    // those who are connected already are served too
    while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
        let place = Arc::clone(&open).try_acquire_owned();
        if place.is_err() {
            break;
        }
        start(stream, place.ok());
    }
    drop(listener);
    // what is in their sockets by now was asked before the end
    tokio::time::sleep(Duration::from_millis(10)).await;
    // a client that does not read its answer is not waited for
    let longest = app.settings.patience + app.settings.time;
    let _ = tokio::time::timeout(longest, graceful.shutdown()).await;
}
