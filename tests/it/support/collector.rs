//! A collector that takes spans over OTLP, over HTTP and gRPC alike, on a real socket. It reads them by OpenTelemetry's own
//! definitions.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::Span as Raw,
};
use prost::Message;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, task::JoinHandle};

/// A collector. Dropping it closes its socket.
pub(crate) struct Collector {
    addr: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    accepting: JoinHandle<()>,
}

/// What it has been sent.
#[derive(Default)]
struct Taken {
    spans: Vec<Span>,
    resource: BTreeMap<String, String>,
    headers: HeaderMap,
    path: String,
    exports: usize,
}

/// A span, as a test looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) is_client: bool,
    /// In hexadecimal digits, like those below.
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty where it has none.
    pub(crate) parent: String,
    pub(crate) links: Vec<String>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) events: Vec<(String, BTreeMap<String, String>)>,
    /// The words of its failure, where it is one.
    pub(crate) failed: Option<String>,
    /// All of it, for what must not be in it.
    pub(crate) raw: Raw,
}

// === impl Collector ===

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::answering(|| 200).await
    }

    /// Each export is answered with this status; by 0, never.
    pub(crate) async fn answering(status: impl Fn() -> u16 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let taken = Arc::<Mutex<Taken>>::default();
        let (kept, status) = (Arc::clone(&taken), Arc::new(status));
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (kept, status) = (Arc::clone(&kept), Arc::clone(&status));
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let (kept, status) = (Arc::clone(&kept), Arc::clone(&status));
                        async move { Ok::<_, Infallible>(take(request, &kept, status()).await) }
                    });
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { addr, taken, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn taken<T>(&self, read: impl FnOnce(&Taken) -> T) -> T {
        read(&self.taken.lock().expect("nobody panics with it"))
    }

    /// Those of this name, in the order in which they ended.
    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        self.taken(|taken| taken.spans.iter().filter(|span| span.name == name).cloned().collect())
    }

    /// The only one of this name and kind.
    pub(crate) fn span(&self, name: &str, is_client: bool) -> Span {
        let mut found = self.spans(name);
        found.retain(|span| span.is_client == is_client);
        let [span] = &found[..] else { panic!("not one {name}: {found:#?}; {:#?}", self.names()) };
        span.clone()
    }

    pub(crate) fn names(&self) -> Vec<(String, bool)> {
        self.taken(|taken| taken.spans.iter().map(|span| (span.name.clone(), span.is_client)).collect())
    }

    pub(crate) fn all(&self) -> Vec<Span> {
        self.taken(|taken| taken.spans.clone())
    }

    pub(crate) fn resource(&self, key: &str) -> Option<String> {
        self.taken(|taken| taken.resource.get(key).cloned())
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.taken(|taken| Some(taken.headers.get(name)?.to_str().expect("text").to_owned()))
    }

    pub(crate) fn path(&self) -> String {
        self.taken(|taken| taken.path.clone())
    }

    /// How many exports have come, whatever they were answered with.
    pub(crate) fn exports(&self) -> usize {
        self.taken(|taken| taken.exports)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Answer = Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

async fn take(request: Request<Incoming>, kept: &Mutex<Taken>, status: u16) -> Answer {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("it comes whole").to_bytes();
    let is_grpc = head.headers.get("content-type").is_some_and(|kind| kind == "application/grpc");
    let message = if is_grpc { body.slice(5..) } else { body };
    let export = ExportTraceServiceRequest::decode(message).expect("it is an export");
    keep(&export, &head, &mut kept.lock().expect("nobody panics with it"), status == 200);
    match status {
        0 => std::future::pending().await,
        200 if is_grpc => over_grpc(0),
        _ if is_grpc => over_grpc(14),
        _ => {
            let nothing = StreamBody::new(futures_util::stream::empty::<Result<Frame<Bytes>, Infallible>>());
            let mut answer = Response::new(BodyExt::boxed(nothing));
            *answer.status_mut() = status.try_into().expect("a status");
            answer
        }
    }
}

fn keep(export: &ExportTraceServiceRequest, head: &Parts, taken: &mut Taken, are_taken: bool) {
    taken.exports += 1;
    if are_taken {
        for of_resource in &export.resource_spans {
            taken.resource = pairs(&of_resource.resource.as_ref().expect("it says whose").attributes);
            for of_scope in &of_resource.scope_spans {
                taken.spans.extend(of_scope.spans.iter().map(Span::of));
            }
        }
    }
    (taken.headers, taken.path) = (head.headers.clone(), head.uri.path().to_owned());
}

/// An empty message, and this status behind it.
fn over_grpc(status: u16) -> Answer {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(status))]);
    let frames = [Frame::data(BytesMut::zeroed(5).freeze()), Frame::trailers(trailers)];
    let frames = futures_util::stream::iter(frames.map(Ok::<_, Infallible>));
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    answer
}

fn pairs(all: &[KeyValue]) -> BTreeMap<String, String> {
    let shown = |pair: &KeyValue| match pair.value.as_ref().and_then(|any| any.value.clone()) {
        Some(Any::StringValue(text)) => text,
        Some(Any::BoolValue(truth)) => truth.to_string(),
        Some(Any::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|pair| (pair.key.clone(), shown(pair))).collect()
}

// === impl Span ===

impl Span {
    fn of(raw: &Raw) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let attributes = pairs(&raw.attributes);
        assert_eq!(attributes.len(), raw.attributes.len(), "each is told once: {raw:#?}");
        Self {
            name: raw.name.clone(),
            is_client: raw.kind == 3,
            trace: hex(&raw.trace_id),
            id: hex(&raw.span_id),
            parent: hex(&raw.parent_span_id),
            links: raw.links.iter().map(|link| hex(&link.span_id)).collect(),
            attributes,
            events: raw.events.iter().map(|event| (event.name.clone(), pairs(&event.attributes))).collect(),
            failed: raw
                .status
                .as_ref()
                .filter(|status| status.code == 2)
                .map(|status| status.message.clone()),
            raw: raw.clone(),
        }
    }

    pub(crate) fn says(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).map(String::as_str)
    }

    pub(crate) fn event(&self, name: &str) -> &BTreeMap<String, String> {
        let found = self.events.iter().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("no {name}: {self:#?}")).1
    }
}
