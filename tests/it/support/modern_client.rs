//! A small client of 2026-07-28, on real sockets.
//!
//! A [`Client`] is who asks: where, with which headers, declaring what. Each request it sends has
//! a connection of its own, unless it is [`kept`](Client::kept). What is on its way is a
//! [`Waiting`]: it can be waited for as one [`Answer`] or read as a [`NetworkStream`] of messages, or be
//! left.

use super::{legacy_server::PATIENCE, paused_time::a_moment};
use bytes::Bytes;
use deferral::internals::runtime::{NetworkStream as Socket, PipeNetwork};
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    addr: SocketAddr,
    /// The network of a simulation, else the system's.
    pipes: Option<PipeNetwork>,
    path: &'static str,
    version: Version,
    capabilities: Value,
    /// Besides those every request has; an empty value removes one of those.
    headers: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A request on its way.
pub(crate) struct Waiting {
    response: BoxFuture<'static, hyper::Result<Response<Incoming>>>,
    connection: Open,
}

/// An answer that is read as it comes.
pub(crate) struct Following {
    heard: Arc<Mutex<Heard>>,
    reading: Open,
}

/// What has come of an answer.
#[derive(Default)]
struct Heard {
    status: Option<StatusCode>,
    is_json: bool,
    text: Vec<u8>,
    is_over: bool,
}

/// A client with one connection for all of its requests.
pub(crate) struct Kept {
    client: Client,
    link: Link,
    /// The last is the one in use.
    connections: Vec<Open>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// An event stream that is being read.
pub(crate) struct Stream {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    text: String,
    events: VecDeque<Event>,
    _connection: Open,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Message(Value),
    Comment,
}

enum Link {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A connection, closed when this is dropped.
struct Open(JoinHandle<()>);

pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
const META: &str = "io.modelcontextprotocol/";

// === impl Client ===

impl Client {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            pipes: None,
            path: "/mcp",
            version: Version::Http1,
            capabilities: json!({}),
            headers: Vec::new(),
        }
    }

    /// The same client in a simulation.
    pub(crate) fn piped(&self, pipes: &PipeNetwork) -> Self {
        Self { pipes: Some(pipes.clone()), ..self.clone() }
    }

    /// The same client, declaring something else.
    pub(crate) fn declaring(&self, capabilities: Value) -> Self {
        Self { capabilities, ..self.clone() }
    }

    /// The same client, declaring the tasks extension.
    pub(crate) fn with_tasks(&self) -> Self {
        self.declaring(json!({ "extensions": { TASKS: {} } }))
    }

    /// The same client with one more header; an empty value removes a usual one.
    pub(crate) fn with(&self, name: &'static str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name, value.to_owned()));
        client
    }

    /// What it sends as this header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().rev().find(|(sent, _)| *sent == name).map(|(_, value)| &**value)
    }

    /// The same client, with these credentials.
    pub(crate) fn bearing(&self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn at(&self, path: &'static str) -> Self {
        Self { path, ..self.clone() }
    }

    pub(crate) fn over(&self, version: Version) -> Self {
        Self { version, ..self.clone() }
    }

    /// A request of this client, with the id 1.
    pub(crate) fn request(&self, method: &str, params: Value) -> Request<Full<Bytes>> {
        self.request_as(&json!(1), method, params)
    }

    pub(crate) fn request_as(&self, id: &Value, method: &str, mut params: Value) -> Request<Full<Bytes>> {
        let about = params["_meta"].take();
        params["_meta"] = json!({
            format!("{META}protocolVersion"): "2026-07-28",
            format!("{META}clientCapabilities"): self.capabilities,
        });
        for (key, value) in about.as_object().into_iter().flatten() {
            params["_meta"][key] = value.clone();
        }
        let name = ["name", "uri", "taskId"].iter().find_map(|member| params[*member].as_str());
        let name = name.map(str::to_owned);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.spelled(method, name.as_deref(), body.to_string())
    }

    /// A request with this very body.
    pub(crate) fn spelled(&self, method: &str, name: Option<&str>, body: String) -> Request<Full<Bytes>> {
        let host = self.addr.to_string();
        let common = [
            ("host", &*host),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
        ];
        let mut headers = HeaderMap::new();
        let own = self.headers.iter().map(|(name, value)| (*name, &**value));
        for (name, value) in common.into_iter().chain(name.map(|name| ("mcp-name", name))).chain(own) {
            let name = HeaderName::from_static(name);
            match value {
                "" => headers.remove(name),
                value => headers.insert(name, HeaderValue::from_str(value).expect("a header value")),
            };
        }
        let uri = match self.version {
            Version::Http1 => self.path.to_owned(),
            Version::Http2 => format!("http://{host}{}", self.path),
        };
        let mut request = Request::post(uri).body(Full::from(body)).expect("a request");
        *request.headers_mut() = headers;
        request
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, method: &str, params: Value) -> Waiting {
        self.send_request(self.request(method, params)).await
    }

    pub(crate) async fn send_request(&self, request: Request<Full<Bytes>>) -> Waiting {
        let (mut link, connection) = self.connect().await;
        Waiting { response: link.send(request), connection }
    }

    /// Asks, and waits for the whole answer.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Answer {
        self.send(method, params).await.answer().await
    }

    /// Calls a tool.
    pub(crate) async fn call(&self, tool: &str) -> Waiting {
        self.send("tools/call", json!({ "name": tool, "arguments": {} })).await
    }

    /// `tasks/get`, `tasks/cancel`, …
    pub(crate) async fn of_task(&self, method: &str, task: &str) -> Answer {
        let params = match method {
            "tasks/update" => json!({ "taskId": task, "inputResponses": {} }),
            _ => json!({ "taskId": task }),
        };
        self.ask(method, params).await
    }

    /// What `tasks/get` says of a task.
    pub(crate) async fn task(&self, task: &str) -> Value {
        self.of_task("tasks/get", task).await.result()
    }

    /// Asks for a task until it is as wished.
    pub(crate) async fn until(&self, task: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let mut kept = self.kept().await;
        let mut last = Value::Null;
        let asked = async {
            loop {
                last = kept.ask("tasks/get", json!({ "taskId": task })).await.result();
                if wished(&last) {
                    return last.clone();
                }
                a_moment().await;
            }
        };
        match timeout(PATIENCE, asked).await {
            Ok(task) => task,
            Err(_) => panic!("the task did not become what was wished for; it is {last:#}"),
        }
    }

    /// Asks for a task until it has ended.
    pub(crate) async fn ended(&self, task: &str) -> Value {
        let has_ended = |task: &Value| {
            ["completed", "failed", "cancelled"].into_iter().any(|ended| task["status"] == ended)
        };
        self.until(task, has_ended).await
    }

    /// Listens; the acknowledgement is still to be read.
    pub(crate) async fn listen(&self, notifications: Value) -> Stream {
        self.listen_as(&json!(1), notifications).await
    }

    pub(crate) async fn listen_as(&self, id: &Value, notifications: Value) -> Stream {
        let params = json!({ "notifications": notifications });
        self.send_request(self.request_as(id, "subscriptions/listen", params)).await.stream().await
    }

    pub(crate) async fn kept(&self) -> Kept {
        let (link, connection) = self.connect().await;
        Kept { client: self.clone(), link, connections: vec![connection] }
    }

    async fn reach(&self) -> io::Result<Socket> {
        if let Some(pipes) = &self.pipes {
            return Ok(Socket::Right(pipes.connect(self.addr)?));
        }
        let socket = TcpStream::connect(self.addr).await?;
        let _ = socket.set_nodelay(true);
        Ok(Socket::Left(socket))
    }

    async fn connect(&self) -> (Link, Open) {
        let io = TokioIo::new(self.reach().await.expect("the proxy listens"));
        match self.version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("a handshake");
                (Link::Http1(sender), Open(tokio::spawn(connection.map(drop))))
            }
            Version::Http2 => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.expect("a handshake");
                (Link::Http2(sender), Open(tokio::spawn(connection.map(drop))))
            }
        }
    }
}

// === impl Waiting ===

impl Waiting {
    /// The whole answer.
    pub(crate) async fn answer(self) -> Answer {
        self.answer_within(PATIENCE).await
    }

    pub(crate) async fn answer_within(self, limit: Duration) -> Answer {
        timeout(limit, self.outcome()).await.expect("the proxy answers").expect("an answer")
    }

    /// The same; `Missing` where the connection is closed before it begins.
    pub(crate) async fn answer_if_any(self, limit: Duration) -> Option<Answer> {
        timeout(limit, self.outcome()).await.expect("the proxy answers, or hangs up").ok()
    }

    async fn outcome(self) -> hyper::Result<Answer> {
        let (head, body) = self.response.await?.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("utf-8");
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    /// The answer as it comes.
    pub(crate) async fn stream(self) -> Stream {
        let response = timeout(PATIENCE, self.response).await.expect("the proxy answers").expect("an answer");
        let (head, body) = response.into_parts();
        Stream {
            status: head.status,
            headers: head.headers,
            body,
            text: String::new(),
            events: VecDeque::new(),
            _connection: self.connection,
        }
    }

    /// Reads the answer as it comes, in the background, however long it takes.
    pub(crate) fn follow(self) -> Following {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let told = Arc::clone(&heard);
        let Self { response, connection } = self;
        let reading = async move {
            let _connection = connection;
            if let Ok(response) = response.await {
                let (head, mut body) = response.into_parts();
                {
                    let mut heard = told.lock().expect("nothing panics with it");
                    heard.status = Some(head.status);
                    heard.is_json =
                        head.headers.get("content-type").is_some_and(|kind| kind == "application/json");
                }
                while let Some(Ok(frame)) = body.frame().await {
                    let data = frame.into_data().expect("data");
                    told.lock().expect("nothing panics with it").text.extend_from_slice(&data);
                }
            }
            told.lock().expect("nothing panics with it").is_over = true;
        };
        Following { heard, reading: Open(tokio::spawn(reading)) }
    }

    /// Closes the connection, whatever was still to come.
    pub(crate) fn leave(self) {
        drop(self);
    }
}

// === impl Following ===

impl Following {
    /// Every message that is there so far.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let heard = self.heard.lock().expect("nothing panics with it");
        let text = String::from_utf8(heard.text.clone()).expect("utf-8");
        let message = |text: &str| serde_json::from_str(text).expect("JSON on one line");
        match heard.is_json {
            true => Some(text).filter(|_| heard.is_over).iter().map(|text| message(text)).collect(),
            false => {
                let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
                lines.filter_map(|line| line.trim_end().strip_prefix("data: ")).map(message).collect()
            }
        }
    }

    /// Whether nothing more will come.
    pub(crate) fn is_over(&self) -> bool {
        self.heard.lock().expect("nothing panics with it").is_over
    }

    /// Closes the connection, whatever was still to come.
    pub(crate) fn leave(self) {
        drop(self.reading);
    }
}

// === impl Kept ===

impl Kept {
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Answer {
        self.ask_as(&json!(1), method, params).await
    }

    pub(crate) async fn ask_as(&mut self, id: &Value, method: &str, params: Value) -> Answer {
        let request = self.client.request_as(id, method, params);
        loop {
            let answered = self.begin(request.clone()).await.outcome();
            match timeout(PATIENCE, answered).await.expect("the proxy answers") {
                // The connection had been ended by the time: nothing was sent.
                Err(error) if error.is_canceled() => {}
                answered => return answered.expect("an answer"),
            }
        }
    }

    /// Sends a request, on a new connection where the proxy has ended this one; giving it up leaves an HTTP/2
    /// connection as it is.
    pub(crate) async fn begin(&mut self, request: Request<Full<Bytes>>) -> Waiting {
        if !self.link.is_ready().await {
            let (link, connection) = self.client.connect().await;
            self.link = link;
            self.connections.push(connection);
        }
        Waiting { response: self.link.send(request), connection: Open(tokio::spawn(async {})) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// How often the proxy has ended the connection.
    pub(crate) fn ended(&self) -> usize {
        self.connections.len() - 1
    }
}

// === impl Link ===

impl Link {
    fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'static, hyper::Result<Response<Incoming>>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).boxed(),
            Self::Http2(sender) => {
                let sending = sender.send_request(request);
                // The sender is kept: a connection without one closes when it is idle.
                let sender = sender.clone();
                sending.inspect(move |_| drop(sender)).boxed()
            }
        }
    }

    /// Waits until it takes a request. Whether it ever will.
    async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// Whether it is one JSON document.
    pub(crate) fn is_json(&self) -> bool {
        self.header("content-type") == "application/json"
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ascii"))
    }

    /// All messages of the answer in their order; the response is the last.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let one = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        match self.is_json() {
            true => vec![one(&self.body)],
            false => self.body.lines().filter_map(|line| line.strip_prefix("data: ")).map(one).collect(),
        }
    }

    /// The response.
    pub(crate) fn json(&self) -> Value {
        self.messages().pop().unwrap_or_else(|| panic!("no response: {self:?}"))
    }

    pub(crate) fn result(&self) -> Value {
        let result = self.json()["result"].take();
        assert!(result.is_object(), "no result: {self:?}");
        result
    }

    /// The result without what is said with every one: who the server is.
    pub(crate) fn apart_from_meta(&self) -> Value {
        let mut result = self.result();
        result.as_object_mut().expect("an object").remove("_meta");
        result
    }

    pub(crate) fn error(&self) -> Value {
        let error = self.json()["error"].take();
        assert!(error.is_object(), "no error: {self:?}");
        error
    }

    /// Status and code of an error.
    pub(crate) fn refusal(&self) -> (u16, i64) {
        (self.status.as_u16(), self.error()["code"].as_i64().expect("a code"))
    }

    /// The text of a tool's result.
    pub(crate) fn text(&self) -> String {
        self.result()["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {self:?}")).to_owned()
    }

    /// The id of the task that was made of the call.
    pub(crate) fn task(&self) -> String {
        let result = self.result();
        assert_eq!(result["resultType"], "task", "no handle: {self:?}");
        result["taskId"].as_str().expect("an id").to_owned()
    }
}

// === impl Stream ===

impl Stream {
    /// The next message.
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            match self.event().await {
                Some(Event::Message(message)) => return message,
                Some(Event::Comment) => {}
                None => panic!("the stream has ended"),
            }
        }
    }

    /// The next message must be this notification; gives its params.
    pub(crate) async fn notice(&mut self, method: &str) -> Value {
        let mut message = self.next().await;
        assert_eq!(message["method"], method, "{message:#}");
        message["params"].take()
    }

    /// The next event; `Missing` at the end.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("the proxy says something")?;
            let data = frame.expect("a frame").into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("ascii"));
            while let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                self.events.push_back(match block.trim_end().strip_prefix("data: ") {
                    Some(data) => Event::Message(serde_json::from_str(data).expect("JSON on one line")),
                    None => {
                        assert!(block.starts_with(':'), "neither data nor a comment: {block:?}");
                        Event::Comment
                    }
                });
            }
        }
    }

    /// The next piece as it comes; `Missing` at the end, an error where it breaks off.
    pub(crate) async fn piece(&mut self) -> Option<hyper::Result<String>> {
        let frame = timeout(PATIENCE, self.body.frame()).await.expect("the proxy says something")?;
        Some(frame.map(|frame| String::from_utf8(frame.into_data().expect("data").to_vec()).expect("utf-8")))
    }

    /// All that is still to come, as it comes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = String::new();
        while let Some(piece) = self.piece().await {
            rest.push_str(&piece.expect("it does not break off"));
        }
        rest
    }

    /// As [`NetworkStream::rest`], and it may take this long.
    pub(crate) async fn rest_within(self, limit: Duration) -> String {
        let rest =
            timeout(limit, self.body.collect()).await.expect("it ends").expect("it does not break off");
        String::from_utf8(rest.to_bytes().to_vec()).expect("utf-8")
    }

    /// Closes the connection.
    pub(crate) fn leave(self) {
        drop(self);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether two responses differ in anything but their ids.
pub(crate) fn indistinguishable(one: &Answer, other: &Answer) -> bool {
    let told = |answer: &Answer| {
        let mut headers = answer.headers.clone();
        headers.remove("date");
        (answer.status, headers, answer.body.clone())
    };
    told(one) == told(other)
}

/// Waits, but not for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} in vain"))
}
