//! The metrics listener: metrics over plain HTTP, without a token, and nothing else.
//!
//! Metrics contain names of routes and tools, but no data of clients. Any `Host` is accepted, because
//! scrapers use names that are not configured here; requests of web pages are refused.

use super::{
    listener::{self, ListenerBounds, ListenerService, PeerAddress, RequestScope},
    metrics,
    processes::RouteServers,
    response::{AdminResponse, error_response, text_response},
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

/// A running metrics listener.
pub struct MetricsListener {
    /// The bound address, with the actual port.
    pub address: SocketAddr,
    /// The task that serves until it is aborted, together with its connections.
    pub task: JoinHandle<()>,
    sources: SwapCell<MetricsSources>,
}

/// The servers and the task ledger that the metrics read.
struct MetricsSources {
    servers: RouteServers,
    ledger: Arc<TaskLedger>,
}

/// Maximum number of connections of the metrics listener.
const CONNECTIONS: usize = 8;

const METRICS_PATH: &str = "/metrics";

/// Starts to serve metrics. Must be called within a runtime.
///
/// # Errors
/// [`Error::Metrics`] names the address that cannot be listened on.
pub fn serve_metrics(
    address: SocketAddr,
    servers: RouteServers,
    ledger: Arc<TaskLedger>,
) -> Result<MetricsListener, Error> {
    let listener = Network::System.listen(address).map_err(|source| Error::Metrics { address, source })?;
    let address = listener.address().unwrap_or(address);
    let sources = SwapCell::new(MetricsSources { servers, ledger });
    let task = tokio::spawn(accept(listener, sources.clone()));
    Ok(MetricsListener { address, task, sources })
}

async fn accept(listener: NetworkListener, sources: SwapCell<MetricsSources>) {
    let bounds = ListenerBounds { connections: CONNECTIONS, probes: 0, name: "metrics" };
    listener::accept(listener, sources, bounds).await;
}

impl ListenerService for SwapCell<MetricsSources> {
    fn tls(&self) -> Option<TlsAcceptor> {
        None
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        _scope: RequestScope,
        receiving: IncompleteBody<'_>,
    ) -> AdminResponse {
        // The body is not read.
        drop(receiving);
        let sources = self.load_full();
        let path = request.uri().path();
        if path != METRICS_PATH {
            let error = format!("nothing is served at `{path}`; served here: {METRICS_PATH}");
            return error_response(StatusCode::NOT_FOUND, &error);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                error_response(StatusCode::METHOD_NOT_ALLOWED, "`/metrics` allows only GET, HEAD");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        if let Some(origin) = request.headers().get(ORIGIN) {
            let client = request.extensions().get().and_then(|PeerAddress(address)| *address);
            let (forwarded, origin) = (forwarded_for(request.headers()), headers::to_text_lossy(origin));
            let (forwarded, origin) = (forwarded.as_deref(), Some(&*origin));
            AccessDenied { listener: "metrics", client, forwarded, host: None, origin }.emit();
            return error_response(StatusCode::FORBIDDEN, "requests from web pages are refused");
        }
        let body = metrics::prometheus_text(&sources.servers, &sources.ledger).await;
        text_response(StatusCode::OK, telemetry::metrics::TEXT_FORMAT, body)
    }
}

// === impl MetricsListener ===

impl MetricsListener {
    /// Replaces the servers, from the next request on.
    pub fn set_servers(&self, servers: RouteServers) {
        let ledger = Arc::clone(&self.sources.load().ledger);
        self.sources.set(MetricsSources { servers, ledger });
    }
}
