//! A server of the older era that does what a test tells it, on a real socket.
//!
//! It keeps house by itself: it answers `initialize` and `ping`, hands out sessions, keeps GET streams open,
//! takes notifications and responses. Every other request is handed to the test as a [`Call`].
//! Everything that arrives is remembered, and can be waited for ([`LegacyServer::seen`]).

mod serving;

use self::serving::accept;
use bytes::Bytes;
use deferral::internals::runtime::{NetworkListener, PipeNetwork};
use futures_util::{StreamExt, stream::BoxStream};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::timeout,
};

/// A scripted server. Dropping it closes its sockets.
pub(crate) struct LegacyServer {
    addr: SocketAddr,
    state: Arc<State>,
    calls: tokio::sync::Mutex<mpsc::UnboundedReceiver<Call>>,
    accepting: JoinHandle<()>,
}

/// An address that refuses connections, and that is reserved for this test.
///
/// One that was only free a moment ago may be given to the next who asks for any, as a proxy in front of it does.
pub(crate) struct ReservedPort(TcpSocket);

/// A server that accepts no further connection: its accept queue of one is full.
pub(crate) struct FullBacklog {
    pub(crate) addr: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

/// The system answers no further handshake there.
pub(crate) async fn crowded() -> FullBacklog {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(1).expect("a queue");
    let addr = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    while let Ok(Ok(socket)) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
        waiting.push(socket);
    }
    FullBacklog { addr, _listener: listener, _waiting: waiting }
}

/// How a server keeps house.
pub(crate) struct Options {
    /// What `initialize` is answered with.
    pub(crate) version: &'static str,
    /// Whether it hands out session ids.
    pub(crate) sessions: bool,
    /// What they begin with.
    pub(crate) prefix: &'static str,
    pub(crate) get: Get,
    /// Whether `initialize` is answered by an event stream.
    pub(crate) sse: bool,
    /// What it declares in the handshake.
    pub(crate) capabilities: Value,
    /// The tools it lists by itself; else `tools/list` is the test's to answer.
    pub(crate) tools: Option<Value>,
    /// Whether it answers `ping` by itself; else that is the test's to answer.
    pub(crate) pongs: bool,
    /// Whether the connection breaks on what arrives, without an answer.
    pub(crate) breaks: Fits,
    /// Whether what arrives is never answered.
    pub(crate) ignores: Fits,
    /// Whether what arrives is the test's to answer, which the server would answer by itself.
    pub(crate) asks: Fits,
    /// Asked first about everything that arrives; what it returns is the answer.
    #[expect(clippy::type_complexity, reason = "it is written once")]
    pub(crate) hook: Option<Box<dyn Fn(&Seen) -> Option<Canned> + Send + Sync>>,
}

/// Says whether something that arrived is meant.
pub(crate) type Fits = Box<dyn Fn(&Seen) -> bool + Send + Sync>;

/// What becomes of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Get {
    /// One for a session: the next ends that before it.
    Stream,
    /// One for each event that one is taken up behind.
    StreamEach,
    Refused(u16),
    /// The head never comes.
    Silent,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) http: Method,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The body as JSON, or null.
    pub(crate) json: Value,
    /// Of which connection it came, counted from 1.
    pub(crate) connection: usize,
}

/// A fixed answer.
#[derive(Clone)]
pub(crate) struct Canned {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

/// A request that waits for its answer.
pub(crate) struct Call {
    pub(crate) seen: Seen,
    answer: oneshot::Sender<Response<Body>>,
}

/// The sending half of an event stream. Dropping all clones ends the stream.
#[derive(Clone)]
pub(crate) struct Events {
    chunks: mpsc::UnboundedSender<io::Result<Bytes>>,
}

struct State {
    options: Options,
    log: Mutex<Vec<Seen>>,
    /// How much there is in the log.
    logged: watch::Sender<usize>,
    calls: mpsc::UnboundedSender<Call>,
    /// By the session, or by the event that one was taken up behind ([`Get::StreamEach`]).
    listeners: Mutex<HashMap<String, Events>>,
    sessions: Mutex<usize>,
    /// Held until the server goes: heads that never come.
    silent: Mutex<Vec<oneshot::Sender<Response<Body>>>>,
}

type Body = StreamBody<BoxStream<'static, io::Result<Frame<Bytes>>>>;

/// Nothing in a test takes longer, on the busiest machine. Less than what a proxy waits for where it should not wait:
/// half a minute for a queue, a first byte, or the calls at its end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

// === impl LegacyServer ===

impl LegacyServer {
    pub(crate) async fn start(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, options)
    }

    /// A server on a socket that is there already.
    pub(crate) fn on(listener: TcpListener, options: Options) -> Self {
        let addr = listener.local_addr().expect("a bound socket");
        Self::at(addr, listener.into(), options)
    }

    /// A server in a simulation.
    pub(crate) fn piped(pipes: &PipeNetwork, addr: SocketAddr, options: Options) -> Self {
        Self::at(addr, pipes.listen(addr), options)
    }

    fn at(addr: SocketAddr, listener: NetworkListener, options: Options) -> Self {
        let (calls, received) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            options,
            log: Mutex::default(),
            logged: watch::Sender::new(0),
            calls,
            listeners: Mutex::default(),
            sessions: Mutex::default(),
            silent: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, state.clone()));
        Self { addr, state, calls: received.into(), accepting }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its MCP endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// The next request that is the test's to answer.
    pub(crate) async fn call(&self) -> Call {
        let mut calls = self.calls.lock().await;
        timeout(PATIENCE, calls.recv()).await.expect("a call arrives").expect("the server runs")
    }

    /// Whether a request is waiting to be answered right now.
    pub(crate) fn has_call(&self) -> bool {
        !self.calls.try_lock().expect("one reader").is_empty()
    }

    /// The first request that fits, once it has arrived.
    pub(crate) async fn seen(&self, fits: impl Fn(&Seen) -> bool) -> Seen {
        self.last_of(1, fits).await
    }

    /// The last of so many requests that fit, once they have arrived.
    pub(crate) async fn last_of(&self, count: usize, fits: impl Fn(&Seen) -> bool) -> Seen {
        let mut logged = self.state.logged.subscribe();
        let found = async {
            loop {
                if let Some(seen) = locked(&self.state.log).iter().filter(|seen| fits(seen)).nth(count - 1) {
                    return seen.clone();
                }
                logged.changed().await.expect("the server runs");
            }
        };
        match timeout(PATIENCE, found).await {
            Ok(seen) => seen,
            Err(_) => panic!("what was waited for did not arrive; what did: {:#?}", self.log()),
        }
    }

    /// The first message of this method, once it has arrived.
    pub(crate) async fn message(&self, method: &str) -> Seen {
        self.seen(|seen| seen.method() == method).await
    }

    /// Waits until so many of what has arrived fit.
    pub(crate) async fn sees(&self, count: usize, fits: impl Fn(&Seen) -> bool) {
        let mut logged = self.state.logged.subscribe();
        let enough = async {
            while self.count(&fits) < count {
                logged.changed().await.expect("the server runs");
            }
        };
        if timeout(PATIENCE, enough).await.is_err() {
            panic!("less than {count} arrived of what was waited for; what did: {:#?}", self.log());
        }
    }

    /// All that has arrived so far.
    pub(crate) fn log(&self) -> Vec<Seen> {
        locked(&self.state.log).clone()
    }

    /// How many of what has arrived so far fit.
    pub(crate) fn count(&self, fits: impl Fn(&Seen) -> bool) -> usize {
        locked(&self.state.log).iter().filter(|seen| fits(seen)).count()
    }

    /// How many messages of this method have arrived so far.
    pub(crate) fn messages(&self, method: &str) -> usize {
        self.count(|seen| seen.method() == method)
    }

    /// The GET stream of a session (`""` where there are none), once it is open.
    pub(crate) async fn listener(&self, session: &str) -> Events {
        self.seen(|seen| seen.http == Method::GET && seen.session() == session).await;
        locked(&self.state.listeners).get(session).expect("GET is answered by a stream").clone()
    }

    /// The GET stream of a session, where it is open.
    pub(crate) fn listening(&self, session: &str) -> Option<Events> {
        let events = locked(&self.state.listeners).get(session).cloned();
        events.filter(|events| !events.chunks.is_closed())
    }

    /// The stream that is taken up behind this event, once it is, of a server that has one for each.
    pub(crate) async fn taken_up(&self, event: &str) -> Events {
        self.seen(|seen| seen.header("last-event-id") == Some(event)).await;
        locked(&self.state.listeners).get(event).expect("GET is answered by a stream").clone()
    }

    /// Ends the GET stream of a session.
    pub(crate) fn hang_up(&self, session: &str) {
        locked(&self.state.listeners).remove(session);
    }
}

impl Drop for LegacyServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl ReservedPort ===

impl ReservedPort {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        Self(socket)
    }

    /// What would be its MCP endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.0.local_addr().expect("a bound socket"))
    }

    pub(crate) fn listens(self) -> TcpListener {
        self.0.listen(64).expect("it is bound")
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            version: "2025-11-25",
            sessions: true,
            prefix: "s",
            get: Get::Stream,
            sse: false,
            capabilities: json!({ "tools": { "listChanged": true } }),
            tools: None,
            pongs: true,
            breaks: Box::new(|_| false),
            ignores: Box::new(|_| false),
            asks: Box::new(|_| false),
            hook: None,
        }
    }
}

impl Options {
    /// Asks `hook` first about everything that arrives.
    pub(crate) fn hook(mut self, hook: impl Fn(&Seen) -> Option<Canned> + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }
}

// === impl Seen ===

impl Seen {
    /// The JSON-RPC method; empty for what has none.
    pub(crate) fn method(&self) -> &str {
        self.json["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a text"))
    }

    /// The session it names, or nothing.
    pub(crate) fn session(&self) -> &str {
        self.header("mcp-session-id").unwrap_or_default()
    }

    /// Whether it is the response to the request whose id is this JSON token, letter for letter.
    pub(crate) fn answers_raw(&self, token: &str) -> bool {
        let opening = format!(r#"{{"jsonrpc":"2.0","id":{token},"#);
        self.method().is_empty() && self.body.starts_with(opening.as_bytes())
    }

    /// Whether it is the response to a request of the server.
    pub(crate) fn answers(&self, id: &Value) -> bool {
        self.method().is_empty() && self.json.get("id") == Some(id)
    }
}

// === impl Canned ===

impl Canned {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::status(status).body(body.to_string()).header("content-type", "application/json")
    }

    pub(crate) fn body(self, body: impl Into<String>) -> Self {
        self.bytes(body.into().into_bytes())
    }

    pub(crate) fn bytes(mut self, body: Vec<u8>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn into_response(self) -> Response<Body> {
        let mut response = respond(self.status, self.body);
        for (name, value) in self.headers {
            response.headers_mut().append(name, value.parse().expect("a header value"));
        }
        response
    }
}

// === impl Call ===

impl Call {
    pub(crate) fn id(&self) -> Value {
        self.seen.json["id"].clone()
    }

    pub(crate) fn session(&self) -> &str {
        self.seen.session()
    }

    pub(crate) fn method(&self) -> &str {
        self.seen.method()
    }

    /// The tool, prompt or resource it is about.
    pub(crate) fn name(&self) -> &str {
        let params = &self.seen.json["params"];
        params["name"].as_str().or_else(|| params["uri"].as_str()).unwrap_or_default()
    }

    /// Answers with a result, as one JSON document.
    pub(crate) fn result(self, result: Value) {
        let body = json!({ "jsonrpc": "2.0", "id": self.id(), "result": result });
        self.canned(Canned::json(200, &body));
    }

    /// Answers with a result that says this text.
    pub(crate) fn says(self, text: &str) {
        self.result(json!({ "content": [{ "type": "text", "text": text }] }));
    }

    /// Answers with a JSON document whose result is spelled like this.
    pub(crate) fn spelled(self, result: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id());
        self.canned(Canned::status(200).body(body).header("content-type", "application/json"));
    }

    /// Answers with a JSON-RPC error.
    pub(crate) fn error(self, error: Value) {
        let body = json!({ "jsonrpc": "2.0", "id": self.id(), "error": error });
        self.canned(Canned::json(200, &body));
    }

    pub(crate) fn canned(self, canned: Canned) {
        // The client may have left.
        let _ = self.answer.send(canned.into_response());
    }

    /// Answers with an event stream.
    pub(crate) fn stream(self) -> Events {
        let (events, body) = events();
        let _ = self.answer.send(event_stream(body));
        events
    }

    /// Answers with an event stream of this length, in bytes.
    pub(crate) fn stream_of(self, length: usize) -> Events {
        let (events, body) = events();
        let mut response = event_stream(body);
        response.headers_mut().insert("content-length", length.into());
        let _ = self.answer.send(response);
        events
    }

    /// Answers with the head of a JSON document whose body is still to come.
    pub(crate) fn document(self) -> Events {
        let (events, body) = events();
        let mut response = event_stream(body);
        response.headers_mut().insert("content-type", "application/json".parse().expect("a header value"));
        let _ = self.answer.send(response);
        events
    }

    /// Answers with the head of a JSON document of this length, in bytes.
    pub(crate) fn document_of(self, length: usize) -> Events {
        let (events, body) = events();
        let mut response = event_stream(body);
        response.headers_mut().insert("content-type", "application/json".parse().expect("a header value"));
        response.headers_mut().insert("content-length", length.into());
        let _ = self.answer.send(response);
        events
    }

    /// Resolves when the client has given up waiting for the head of the answer.
    pub(crate) async fn left(mut self) {
        timeout(PATIENCE, self.answer.closed()).await.expect("the client leaves");
    }
}

// === impl Events ===

impl Events {
    /// Sends one message as an event.
    pub(crate) fn send(&self, message: &Value) {
        self.raw(format!("event: message\ndata: {message}\n\n"));
    }

    /// Sends a response with a result.
    pub(crate) fn result(&self, id: &Value, result: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub(crate) fn raw(&self, bytes: impl Into<Bytes>) {
        let _ = self.chunks.send(Ok(bytes.into()));
    }

    /// Breaks the connection in the middle of the answer.
    pub(crate) fn break_off(self) {
        let _ = self.chunks.send(Err(io::ErrorKind::ConnectionReset.into()));
    }

    /// Resolves when the client has stopped reading.
    pub(crate) async fn left(&self) {
        timeout(PATIENCE, self.chunks.closed()).await.expect("the client stops reading");
    }
}

fn respond(status: u16, body: Bytes) -> Response<Body> {
    let body = match body.is_empty() {
        true => futures_util::stream::empty().boxed(),
        false => futures_util::stream::iter([Ok(Frame::data(body))]).boxed(),
    };
    let mut response = Response::new(StreamBody::new(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

fn events() -> (Events, BoxStream<'static, io::Result<Frame<Bytes>>>) {
    let (chunks, mut received) = mpsc::unbounded_channel();
    let body = futures_util::stream::poll_fn(move |cx| received.poll_recv(cx));
    (Events { chunks }, body.map(|chunk| chunk.map(Frame::data)).boxed())
}

fn event_stream(body: BoxStream<'static, io::Result<Frame<Bytes>>>) -> Response<Body> {
    let mut response = Response::new(StreamBody::new(body));
    response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a header value"));
    response
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics with a lock")
}
