//! Accepts connections and finds what is asked for.

use super::{health, metrics, processes, processes::Servers};
use crate::{
    policy::Access,
    proxy::Ledger,
    runtime::{Listener, Net, Stopping, Stream},
    telemetry,
};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// Open connections; further ones wait in the system's queue. Operators are few, and the descriptors
/// that are kept for them are not many.
const CONNECTIONS: usize = 24;

/// For a head, and for the next request on a connection.
const READ_HEADERS: Duration = Duration::from_secs(10);

/// How long to let be after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served, for people.
const PATHS: &str = "/live, /ready, /metrics, /tools, /limits, /processes";

/// How operators are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Default `127.0.0.1:8809`. There is no authentication: whoever reaches it is an operator.
    pub listen: SocketAddr,
    /// Hosts and origins that may come in. Default: this machine and addresses, no names.
    pub access: Access,
}

/// What every connection shares.
struct Shared {
    access: Access,
    servers: Servers,
    ledger: Arc<Ledger>,
    stopping: Stopping,
}

/// A server at work.
#[derive(Debug)]
pub struct Bound {
    /// What is really listened on: port 0 has become a number.
    pub address: SocketAddr,
    /// Serves until it is aborted, and takes its connections with it.
    pub task: JoinHandle<()>,
}

/// Why the server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} (admin): {source}")]
    Bind { address: SocketAddr, source: io::Error },
}

/// Begins to serve operators. Must be called within a runtime, once clients are served: from here
/// on `/ready` says so.
///
/// # Errors
/// [`Error`] names the address.
pub fn serve(
    config: Config,
    servers: Servers,
    ledger: Arc<Ledger>,
    stopping: Stopping,
) -> Result<Bound, Error> {
    let address = config.listen;
    let listener = Net::System.listen(address).map_err(|source| Error::Bind { address, source })?;
    let address = listener.address().unwrap_or(address);
    let shared = Shared { access: config.access, servers, ledger, stopping };
    let task = tokio::spawn(accept(listener, Arc::new(shared)));
    Ok(Bound { address, task })
}

async fn accept(mut listener: Listener, shared: Arc<Shared>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        tokio::select! {
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
                Err(error) => {
                    tracing::warn!(target: "deferral", event = "admin_accept_failed", %error);
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: Stream, shared: Arc<Shared>) {
    let answer = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&request, &shared).await) }
    });
    // What goes wrong here is its client's affair.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_HEADERS)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

async fn answer<B>(request: &Request<B>, shared: &Shared) -> Response<Full<Bytes>> {
    // A web page must not reach an operator's tools through a reader's browser.
    if let Err(denied) = shared.access.check_head(request.uri(), request.headers()) {
        return problem(StatusCode::FORBIDDEN, &denied.to_string());
    }
    let (status, body) = match request.uri().path() {
        "/live" => fixed(health::live()),
        "/ready" => fixed(health::ready(&shared.stopping, &shared.ledger)),
        "/metrics" => (StatusCode::OK, metrics::written(&shared.servers, &shared.ledger).await),
        "/tools" => (StatusCode::OK, metrics::tools()),
        "/limits" => (StatusCode::OK, metrics::limits(&shared.ledger).await),
        "/processes" => (StatusCode::OK, processes::shown(&shared.servers)),
        other => {
            let error = format!("nothing is served at `{other}`; served here: {PATHS}");
            return problem(StatusCode::NOT_FOUND, &error);
        }
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let mut response = json(status, body);
    if request.uri().path() == "/metrics" {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(telemetry::metrics::TEXT));
    }
    response
}

fn fixed((status, body): (StatusCode, &'static str)) -> (StatusCode, Bytes) {
    (status, Bytes::from_static(body.as_bytes()))
}

fn problem(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    json(status, json!({ "error": error }).to_string().into())
}

fn json(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // What was true a moment ago is of no use.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8809)), access: Access::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Drain;
    use crate::{policy::Quotas, runtime::SystemClock, store::Memory};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).await.expect("it listens");
        let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    fn start(stopping: Stopping) -> Bound {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (quotas, clock) = (Quotas::default(), Arc::new(SystemClock::new()));
        let ledger = Ledger::new(Arc::new(Memory::default()), None, quotas, clock);
        serve(Config { listen, ..Config::default() }, Servers::new(), ledger, stopping).expect("a free port")
    }

    #[tokio::test]
    async fn a_stopping_proxy_lives_but_is_not_ready() {
        let (drain, stopping) = Drain::new();
        let admin = start(stopping);
        assert!(ask(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
        let ready = ask(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with(r#"{"status":"ready"}"#), "{ready}");
        assert_eq!(drain.stop(Duration::from_secs(600)).await, 0, "it is not waited for");
        let ready = ask(admin.address, "GET /ready").await;
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with(r#"{"status":"stopping"}"#), "{ready}");
        assert!(ask(admin.address, "GET /live").await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn anything_else_is_refused_with_what_is_served() {
        let (_drain, stopping) = Drain::new();
        let admin = start(stopping);
        let answer = ask(admin.address, "GET /health").await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("/live, /ready"), "{answer}");
        let answer = ask(admin.address, "POST /ready").await;
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
        let answer = ask(admin.address, "GET http://evil.example.com/live").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("access.hosts"), "{answer}");
    }

    #[tokio::test]
    async fn ending_the_task_ends_its_connections() {
        let (_drain, stopping) = Drain::new();
        let admin = start(stopping);
        let mut open = TcpStream::connect(admin.address).await.expect("it listens");
        open.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
        assert!(open.read(&mut [0; 1024]).await.expect("an answer") > 0);
        admin.task.abort();
        let mut rest = Vec::new();
        open.read_to_end(&mut rest).await.expect("it is closed");
    }
}
