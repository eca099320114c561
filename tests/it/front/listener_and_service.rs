//! Harness: listeners on real sockets, a scripted service behind them, and small clients.

use bytes::Bytes;
use deferral::internals::{
    dialect::{Call, Caller, Credentials, PrincipalKey},
    front::{self, Config, TlsPaths},
    policy::{DeferPolicy, LegacyTaskPolicy, Mode, PrincipalSource, ResumePolicy, Route, WaitPolicy},
    protocol::RequestId,
    proxy::{
        AccessSummary, CallReply, DeliveryCommit, LegacyRequest, LegacyResponse, ReplyItem, ReplyStream,
        ResponseBody, RouteService,
    },
    runtime::{Drain, DrainWatch, Network, PipeNetwork, SystemClock},
    telemetry,
    upstream::{CallError, OriginResponse},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use std::{
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, oneshot},
};
use tracing_subscriber::layer::SubscriberExt;

type Script = dyn Fn(Call) -> ReplyStream + Send + Sync;

/// A service that answers by a script and remembers what it was asked.
pub(crate) struct ScriptedService {
    route: Arc<Route>,
    script: Box<Script>,
    pub(crate) seen: Mutex<Vec<(Call, Caller)>>,
    pub(crate) passed: Mutex<Vec<LegacyRequest>>,
    pub(crate) document: Mutex<Option<Result<OriginResponse, CallError>>>,
    pub(crate) fetched: Mutex<Vec<String>>,
    /// Whether its server cannot be reached.
    pub(crate) is_down: Mutex<bool>,
}

/// A front, and what stops it.
pub(crate) struct FrontAndService {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) drain: Drain,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

/// One client connection that speaks HTTP.
pub(crate) enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// The methods of what is only read.
pub(crate) const BOTH_METHODS: [&str; 2] = ["GET", "HEAD"];

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// The access lines written on this thread, for as long as it lives.
pub(crate) struct Lines {
    written: Arc<Mutex<String>>,
    _default: tracing::subscriber::DefaultGuard,
}

/// Says when it is dropped.
pub(crate) struct Watch(Option<oneshot::Sender<()>>);

// === impl ScriptedService ===

impl ScriptedService {
    pub(crate) fn new(script: impl Fn(Call) -> ReplyStream + Send + Sync + 'static) -> Arc<Self> {
        Self::on("/mcp", |_| {}, script)
    }

    pub(crate) fn on(
        path: &str,
        change: impl FnOnce(&mut Route),
        script: impl Fn(Call) -> ReplyStream + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut route = Route {
            path: path.into(),
            defer: DeferPolicy {
                mode: Mode::Auto,
                after: Duration::from_secs(5),
                retention: Duration::ZERO,
                rollout: None,
            },
            tools: Vec::new(),
            principal: PrincipalSource::Authorization,
            input_policy: deferral::internals::policy::InputPolicy::default(),
            session_headers: Vec::new(),
            legacy_tasks: LegacyTaskPolicy::default(),
            resume: ResumePolicy::default(),
            // A test that waits says so.
            wait_policy: WaitPolicy {
                progress_after: None,
                comment_after: Duration::from_secs(600),
                deadline: None,
                ticket_after: None,
            },
            tickets: deferral::internals::policy::TicketPolicy::default(),
            limits: Default::default(),
            queue: Default::default(),
            timeout: None,
            response_headers: Vec::new(),
            adds_forwarded_header: false,
            empty_contents_is_error: false,
        };
        change(&mut route);
        Arc::new(Self {
            route: Arc::new(route),
            script: Box::new(script),
            seen: Mutex::default(),
            passed: Mutex::default(),
            document: Mutex::default(),
            fetched: Mutex::default(),
            is_down: Mutex::default(),
        })
    }

    /// As [`ScriptedService::new`], with a comment after so many milliseconds of silence.
    pub(crate) fn paced(
        millis: u64,
        script: impl Fn(Call) -> ReplyStream + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::on("/mcp", |route| route.wait_policy.comment_after = Duration::from_millis(millis), script)
    }

    /// The same desk, whose route is a little different.
    pub(crate) fn with(self: Arc<Self>, change: impl FnOnce(&mut Route)) -> Arc<Self> {
        let mut desk = Arc::into_inner(self).expect("nobody has it yet");
        change(Arc::make_mut(&mut desk.route));
        Arc::new(desk)
    }

    /// Answers everything at once.
    pub(crate) fn prompt() -> Arc<Self> {
        Self::new(|call| once(reply(&call.id, "\"done\"")))
    }

    /// Leaves everything unanswered, and says when a call is given up.
    pub(crate) fn silent(comments: Duration) -> (Arc<Self>, mpsc::UnboundedReceiver<()>) {
        let (told, given_up) = mpsc::unbounded_channel();
        let pace = |route: &mut Route| route.wait_policy.comment_after = comments;
        let desk = Self::on("/mcp", pace, move |_| {
            let (watch, dropped) = Watch::new();
            let told = told.clone();
            tokio::spawn(async move {
                let _ = dropped.await;
                let _ = told.send(());
            });
            stream::once(async move {
                let _watch = watch;
                std::future::pending::<ReplyItem>().await
            })
            .boxed()
        });
        (desk, given_up)
    }
}

impl RouteService for ScriptedService {
    fn route(&self) -> &Arc<Route> {
        &self.route
    }

    fn call(&self, call: Arc<Call>, caller: Caller) -> ReplyStream {
        self.seen.lock().unwrap().push((Call::clone(&call), caller));
        (self.script)(Arc::unwrap_or_clone(call))
    }

    fn is_reachable(&self) -> bool {
        !*self.is_down.lock().unwrap()
    }

    fn relay(&self, passage: LegacyRequest) -> BoxFuture<'static, LegacyResponse> {
        let body = format!("{} {}", passage.method, passage.query.as_deref().unwrap_or_default());
        self.passed.lock().unwrap().push(passage);
        let body = ResponseBody::Complete(body.into(), AccessSummary::default());
        std::future::ready(LegacyResponse { status: StatusCode::OK, headers: HeaderMap::new(), body }).boxed()
    }

    fn fetch_metadata<'a>(
        &'a self,
        path: &'a str,
        _credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>> {
        self.fetched.lock().unwrap().push(path.to_owned());
        let document = self.document.lock().unwrap().clone().expect("this desk has metadata");
        std::future::ready(document).boxed()
    }
}

pub(crate) fn once(reply: CallReply) -> ReplyStream {
    items([ReplyItem::Reply(reply)])
}

pub(crate) fn items(items: impl IntoIterator<Item = ReplyItem, IntoIter: Send + 'static>) -> ReplyStream {
    stream::iter(items).boxed()
}

/// Items that become known one by one.
pub(crate) fn channel() -> (mpsc::UnboundedSender<ReplyItem>, ReplyStream) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let items = stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<ReplyItem>| {
        Some((receiver.recv().await?, receiver))
    });
    (sender, items.boxed())
}

pub(crate) fn reply(id: &RequestId, result: &str) -> CallReply {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    CallReply {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: body.into(),
        commit: None,
        summary: AccessSummary::default(),
    }
}

/// A reply that carries a handle, and what becomes of it: `Ok` once given, `Err` if it is not.
pub(crate) fn handle(id: &RequestId, result: &str) -> (CallReply, oneshot::Receiver<()>) {
    let (commit, fate) = DeliveryCommit::channel();
    (CallReply { commit: Some(commit), ..reply(id, result) }, fate)
}

pub(crate) fn notice(text: &str) -> ReplyItem {
    ReplyItem::Notification(
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":"{text}"}}"#).into(),
    )
}

// === impl FrontAndService ===

impl FrontAndService {
    pub(crate) fn new(desks: &[&Arc<ScriptedService>], change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
        change(&mut config);
        let (drain, stopping) = Drain::new();
        Self::start(desks, config, drain, stopping)
    }

    /// On pipes instead of sockets, for tests in which time is paused.
    pub(crate) fn on_pipes(
        desks: &[&Arc<ScriptedService>],
        change: impl FnOnce(&mut Config),
    ) -> (Self, PipeNetwork) {
        let mut config = Config::default();
        change(&mut config);
        let pipes = PipeNetwork::default();
        let (drain, stopping) = Drain::new();
        (Self::start_on(desks, config, drain, stopping, &Network::Pipes(pipes.clone())), pipes)
    }

    /// With what says that clients are to go elsewhere.
    pub(crate) fn leaving(
        desks: &[&Arc<ScriptedService>],
        change: impl FnOnce(&mut Config),
    ) -> (Self, Drain) {
        let mut config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
        change(&mut config);
        let ((drain, stopping), (leaves, leaving)) = (Drain::new(), Drain::new());
        (Self::start_each(desks, config, drain, [leaving, stopping], &Network::System), leaves)
    }

    fn start(desks: &[&Arc<ScriptedService>], config: Config, drain: Drain, stopping: DrainWatch) -> Self {
        Self::start_on(desks, config, drain, stopping, &Network::System)
    }

    fn start_on(
        desks: &[&Arc<ScriptedService>],
        config: Config,
        drain: Drain,
        stopping: DrainWatch,
        net: &Network,
    ) -> Self {
        Self::start_each(desks, config, drain, [stopping.clone(), stopping], net)
    }

    fn start_each(
        desks: &[&Arc<ScriptedService>],
        config: Config,
        drain: Drain,
        signals: [DrainWatch; 2],
        net: &Network,
    ) -> Self {
        let services = desks.iter().map(|&desk| Arc::clone(desk) as Arc<dyn RouteService>).collect();
        let bound = front::serve(
            config,
            services,
            PrincipalKey::default(),
            signals,
            Arc::new(SystemClock::new()),
            telemetry::Tracer::default(),
            net,
        )
        .expect("it starts");
        Self { addresses: bound.addresses, drain, task: bound.task }
    }

    pub(crate) async fn socket(&self) -> TcpStream {
        TcpStream::connect(self.addresses[0]).await.expect("the front listens")
    }

    pub(crate) async fn client(&self, version: Version) -> Client {
        Client::over(self.socket().await, version).await
    }

    /// A client over TLS that offers only this version.
    pub(crate) async fn secure_client(&self, version: Version) -> Client {
        let mut roots = rustls::RootCertStore::empty();
        for cert in CertificateDer::pem_file_iter(tls_paths().cert).expect("the file is there") {
            roots.add(cert.expect("a certificate")).expect("it is one");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the defaults are fine")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = match version {
            Version::Http1 => vec![b"http/1.1".to_vec()],
            Version::Http2 => vec![b"h2".to_vec()],
        };
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = connector.connect(name, self.socket().await).await.expect("a handshake");
        Client::over(stream, version).await
    }

    /// Sends bytes and reads all that comes back until the front closes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = self.socket().await;
        socket.write_all(bytes).await.expect("the front reads");
        let mut answer = Vec::new();
        // A reset after the answer is as good as an end.
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

pub(crate) fn tls_paths() -> TlsPaths {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/front");
    TlsPaths { cert: folder.join("cert.pem"), key: folder.join("key.pem").into() }
}

// === impl Client ===

impl Client {
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        version: Version,
    ) -> Self {
        let io = TokioIo::new(stream);
        match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("a handshake");
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Version::Http2 => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.expect("a handshake");
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        }
    }

    /// Sends a request; the answer's body is still to be read.
    pub(crate) fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        match self {
            Self::Http1(sender) => {
                // Clients of HTTP/1 name the host in its header alone.
                let path = request.uri().path_and_query().expect("a path").clone();
                *request.uri_mut() = path.into();
                sender.send_request(request).boxed()
            }
            Self::Http2(sender) => sender.send_request(request).boxed(),
        }
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Answer {
        whole(self.send(request).await.expect("an answer")).await
    }
}

pub(crate) async fn whole(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let body = String::from_utf8(body.to_vec()).expect("utf-8");
    Answer { status: head.status, headers: head.headers, body }
}

/// The next frame of a body.
pub(crate) async fn frame(body: &mut Incoming) -> Option<String> {
    let data = body.frame().await?.expect("a frame").into_data().expect("data");
    Some(String::from_utf8(data.to_vec()).expect("utf-8"))
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ascii"))
    }
}

// === impl Lines ===

impl Lines {
    pub(crate) fn record() -> Self {
        let written = Arc::default();
        let taken: Arc<Mutex<String>> = Arc::clone(&written);
        let take = move |_: &tracing::Level, line: &str| taken.lock().unwrap().push_str(line);
        let lines = telemetry::LogLayer::new(telemetry::LineFormat::Json, || UNIX_EPOCH, take);
        let subscriber = tracing_subscriber::registry().with(lines);
        Self { written, _default: tracing::subscriber::set_default(subscriber) }
    }

    /// Waits until there are this many, and gives their fields.
    pub(crate) async fn until(&self, count: usize) -> Vec<serde_json::Value> {
        loop {
            let lines = self.so_far();
            if lines.len() >= count {
                return lines;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn so_far(&self) -> Vec<serde_json::Value> {
        self.all().filter(|line| line["logger"] == "deferral::access").collect()
    }

    /// Those of one event, which are no access lines.
    pub(crate) fn of(&self, event: &str) -> Vec<serde_json::Value> {
        self.all().filter(|line| line["event"] == event).collect()
    }

    fn all(&self) -> impl Iterator<Item = serde_json::Value> {
        let written = self.written.lock().unwrap().clone();
        let lines: Vec<_> = written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        lines.into_iter()
    }
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (told, dropped) = oneshot::channel();
        (Self(Some(told)), dropped)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            let _ = told.send(());
        }
    }
}

/// A call of a tool, as a 2026-07-28 client makes it.
pub(crate) fn call(tool: &str) -> Request<Full<Bytes>> {
    post(
        &message("tools/call", &format!(r#""name":"{tool}","#)),
        &[("mcp-method", "tools/call"), ("mcp-name", tool)],
    )
}

/// A 2026-07-28 request; `params` are its own parameters, each with a comma behind it.
pub(crate) fn message(method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{{params}"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
    )
}

/// A POST with the headers of 2026-07-28, changed by `headers`; an empty value removes one.
pub(crate) fn post(body: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post("http://localhost/mcp").body(Full::from(body.to_owned())).expect("valid");
    let common = [
        ("host", "localhost"),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
    ];
    for (name, value) in common.iter().chain(headers) {
        let name = HeaderName::try_from(*name).expect("a name");
        match *value {
            "" => request.headers_mut().remove(name),
            value => request.headers_mut().insert(name, HeaderValue::try_from(value).expect("a value")),
        };
    }
    request
}

/// A request without a body.
pub(crate) fn bare(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let uri = format!("http://localhost{path}");
    let mut request = Request::builder().method(method).uri(uri).body(Full::default()).expect("valid");
    request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).expect("a name");
        request.headers_mut().insert(name, HeaderValue::try_from(*value).expect("a value"));
    }
    request
}
