//! The server behind every proxy of this bench: a small legacy MCP server that costs little.
//!
//! It keeps no sessions; it only names one. Its tools are `fast` (one JSON answer), `streamed` (the
//! same as an event stream, as most SDKs answer) and `slow`, which takes `arguments.seconds`. The
//! results have [`RESULT_BYTES`]. `GET /held` says how many calls it is holding.

use super::Failure;
use bytes::Bytes;
use deferral::internals::protocol::{Frame, Kind, Method, RequestId};
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, time::sleep};

/// The size of the result object of each tool.
pub(crate) const RESULT_BYTES: usize = 200;

pub(crate) const INITIALIZED: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1.0.0"}}"#;
pub(crate) const TOOLS: &str = r#"{"tools":[{"name":"fast","inputSchema":{"type":"object"}},{"name":"streamed","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object","properties":{"seconds":{"type":"number"}}}}]}"#;

/// Serves until the process is ended.
pub(crate) async fn serve() -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let server = Arc::new(Server::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            let service = service_fn(move |request| Arc::clone(&server).answer(request));
            // A connection that breaks is its proxy's affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[derive(Default)]
struct Server {
    held: Arc<AtomicUsize>,
    sessions: AtomicUsize,
}

/// One call that is being held.
struct Held(Arc<AtomicUsize>);

#[derive(Deserialize)]
pub(crate) struct Params {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Arguments,
}

#[derive(Default, Deserialize)]
pub(crate) struct Arguments {
    #[serde(default)]
    pub(crate) seconds: f64,
}

// === impl Server ===

impl Server {
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, hyper::Error> {
        if request.method() == http::Method::GET {
            return Ok(match request.uri().path() {
                "/held" => json(self.held.load(Ordering::Relaxed).to_string()),
                _ => empty(StatusCode::METHOD_NOT_ALLOWED),
            });
        }
        if request.method() == http::Method::DELETE {
            return Ok(empty(StatusCode::OK));
        }
        let body = request.into_body().collect().await?.to_bytes();
        let Ok(frame) = Frame::parse(body) else { return Ok(empty(StatusCode::BAD_REQUEST)) };
        Ok(match frame.kind() {
            Kind::Request { id, method: Method::ToolsCall, params } => self.call(id, params.as_deref()).await,
            Kind::Request { id, method, .. } => self.other(id, method),
            Kind::Notification { .. } | Kind::Success { .. } | Kind::Failure { .. } => {
                empty(StatusCode::ACCEPTED)
            }
        })
    }

    async fn call(&self, id: &RequestId, params: Option<&Bytes>) -> Response<Full<Bytes>> {
        let params = params.and_then(|params| serde_json::from_slice::<Params>(params).ok());
        let Some(Params { name, arguments }) = params else { return empty(StatusCode::BAD_REQUEST) };
        match &*name {
            "streamed" => {
                let event = format!("event: message\ndata: {}\n\n", success(id, &result()));
                typed("text/event-stream", event)
            }
            "slow" => {
                let _held = Held::new(&self.held);
                sleep(Duration::from_secs_f64(arguments.seconds)).await;
                json(success(id, &result()))
            }
            _ => json(success(id, &result())),
        }
    }

    fn other(&self, id: &RequestId, method: &Method) -> Response<Full<Bytes>> {
        match method.as_str() {
            "initialize" => {
                let mut response = json(success(id, INITIALIZED));
                let session = self.sessions.fetch_add(1, Ordering::Relaxed);
                let name = HeaderValue::from_str(&format!("session-{session:032x}")).expect("ASCII");
                response.headers_mut().insert("mcp-session-id", name);
                response
            }
            "tools/list" => json(success(id, TOOLS)),
            "ping" => json(success(id, "{}")),
            _ => json(format!(
                r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32601,"message":"Method not found"}}}}"#,
                shown(id)
            )),
        }
    }
}

// === impl Held ===

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn result() -> String {
    let (before, after) = (r#"{"content":[{"type":"text","text":""#, r#""}],"isError":false}"#);
    [before, &".".repeat(RESULT_BYTES - before.len() - after.len()), after].concat()
}

pub(crate) fn success(id: &RequestId, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, shown(id))
}

fn shown(id: &RequestId) -> String {
    String::from_utf8_lossy(id.as_bytes()).into_owned()
}

fn json(body: String) -> Response<Full<Bytes>> {
    typed("application/json", body)
}

fn typed(media: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
