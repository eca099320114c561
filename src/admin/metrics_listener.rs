//! The listener for scrapers: metrics over plain HTTP, without a token, and nothing else.
//!
//! What is shown there names routes and tools, and holds nothing that callers sent. Any `Host` is answered, as scrapers
//! call by names that nobody configured here; a page that a browser shows is not.

use super::{
    listener::{self, ListenerBounds, ListenerService, PeerAddress, RequestScope},
    metrics,
    processes::RouteServers,
    response::{AdminResponse, problem, text},
    server::Error,
};
use crate::{
    protocol::headers::{self, forwarded_for},
    proxy::TaskLedger,
    runtime::{IncompleteBody, Network, NetworkListener, SwapCell},
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
pub struct MetricsListener {
    /// What is really listened on: port 0 has become a number.
    pub address: SocketAddr,
    /// Serves until it is aborted, and takes its connections with it.
    pub task: JoinHandle<()>,
    sources: SwapCell<MetricsSources>,
}

/// What the metrics are about.
struct MetricsSources {
    servers: RouteServers,
    ledger: Arc<TaskLedger>,
}

/// Connections at a time.
const CONNECTIONS: usize = 8;

const PATH: &str = "/metrics";

/// Begins to serve metrics. Must be called within a runtime.
///
/// # Errors
/// [`Error`] names the address.
pub fn serve_metrics(
    address: SocketAddr,
    servers: RouteServers,
    ledger: Arc<TaskLedger>,
) -> Result<MetricsListener, Error> {
    let listener = Network::System.listen(address).map_err(|source| Error::Metrics { address, source })?;
    let address = listener.address().unwrap_or(address);
    let shown = SwapCell::new(MetricsSources { servers, ledger });
    let task = tokio::spawn(accept(listener, shown.clone()));
    Ok(MetricsListener { address, task, sources: shown })
}

async fn accept(listener: NetworkListener, shown: SwapCell<MetricsSources>) {
    let bounds = ListenerBounds { connections: CONNECTIONS, probes: 0, name: "metrics" };
    listener::accept(listener, shown, bounds).await;
}

impl ListenerService for SwapCell<MetricsSources> {
    fn tls(&self) -> Option<TlsAcceptor> {
        None
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        _serves: RequestScope,
        receiving: IncompleteBody<'_>,
    ) -> AdminResponse {
        // A body is not read: it means nothing here.
        drop(receiving);
        let shown = self.load_full();
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
            let client = request.extensions().get().and_then(|PeerAddress(address)| *address);
            let (forwarded, origin) = (forwarded_for(request.headers()), headers::text(origin));
            let (forwarded, origin) = (forwarded.as_deref(), Some(&*origin));
            AccessDenied { listener: "metrics", client, forwarded, host: None, origin }.emit();
            return problem(StatusCode::FORBIDDEN, "requests from web pages are refused");
        }
        let written = metrics::prometheus_text(&shown.servers, &shown.ledger).await;
        text(StatusCode::OK, telemetry::metrics::TEXT, written)
    }
}

// === impl Scrape ===

impl MetricsListener {
    /// From the next request on, these servers are shown.
    pub fn set_servers(&self, servers: RouteServers) {
        let ledger = Arc::clone(&self.sources.load().ledger);
        self.sources.set(MetricsSources { servers, ledger });
    }
}
