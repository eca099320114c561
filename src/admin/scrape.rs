//! The listener for scrapers: metrics over plain HTTP, without a token, and nothing else.
//!
//! What is shown there names routes and tools, and holds nothing that callers sent. Any `Host` is answered, as scrapers
//! call by names that nobody configured here; a page that a browser shows is not.

use super::{
    answer::{Answer, problem, text},
    listener::{self, Bounds, Peer, Serves, Site},
    metrics,
    processes::Servers,
    server::Error,
};
use crate::{
    protocol::headers::{self, forwarded_for},
    proxy::Ledger,
    runtime::{Listener, Live, Net, Receiving},
    telemetry::{self, AccessDenied},
};
use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{ALLOW, ORIGIN},
};
use hyper::body::Incoming;
use std::{net::SocketAddr, sync::Arc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The listener for scrapers at work.
pub struct Scrape {
    /// What is really listened on: port 0 has become a number.
    pub address: SocketAddr,
    /// Serves until it is aborted, and takes its connections with it.
    pub task: JoinHandle<()>,
    shown: Live<Shown>,
}

/// What the metrics are about.
struct Shown {
    servers: Servers,
    ledger: Arc<Ledger>,
}

/// Connections at a time.
const CONNECTIONS: usize = 8;

const PATH: &str = "/metrics";

/// Begins to serve metrics. Must be called within a runtime.
///
/// # Errors
/// [`Error`] names the address.
pub fn serve_metrics(address: SocketAddr, servers: Servers, ledger: Arc<Ledger>) -> Result<Scrape, Error> {
    let listener = Net::System.listen(address).map_err(|source| Error::Metrics { address, source })?;
    let address = listener.address().unwrap_or(address);
    let shown = Live::new(Shown { servers, ledger });
    let task = tokio::spawn(accept(listener, shown.clone()));
    Ok(Scrape { address, task, shown })
}

async fn accept(listener: Listener, shown: Live<Shown>) {
    let bounds = Bounds { connections: CONNECTIONS, probes: 0, name: "metrics" };
    listener::accept(listener, shown, bounds).await;
}

impl Site for Live<Shown> {
    fn tls(&self) -> Option<TlsAcceptor> {
        None
    }

    async fn answer(&self, request: Request<Incoming>, _serves: Serves, receiving: Receiving<'_>) -> Answer {
        // A body is not read: it means nothing here.
        drop(receiving);
        let shown = self.kept();
        let path = request.uri().path();
        if path != PATH {
            let error = format!("nothing is served at `{path}`; served here: {PATH}");
            return problem(StatusCode::NOT_FOUND, &error);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, "`/metrics` allows only GET, HEAD");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if let Some(origin) = request.headers().get(ORIGIN) {
            let client = request.extensions().get().and_then(|Peer(address)| *address);
            let (forwarded, origin) = (forwarded_for(request.headers()), headers::text(origin));
            let (forwarded, origin) = (forwarded.as_deref(), Some(&*origin));
            AccessDenied { listener: "metrics", client, forwarded, host: None, origin }.emit();
            return problem(StatusCode::FORBIDDEN, "requests from web pages are refused");
        }
        let written = metrics::written(&shown.servers, &shown.ledger).await;
        text(StatusCode::OK, telemetry::metrics::TEXT, written)
    }
}

// === impl Scrape ===

impl Scrape {
    /// From the next request on, these servers are shown.
    pub fn renew(&self, servers: Servers) {
        let ledger = Arc::clone(&self.shown.now().ledger);
        self.shown.set(Shown { servers, ledger });
    }
}
