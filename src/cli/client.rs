//! A small client of revision 2026-07-28: one request at a time, tasks followed to their end.
//!
//! It keeps what a server sends as it came: results are raw JSON, numbers included. A call that
//! waits for answers is a [`Turn`] of its own, with everything that is needed to [`Client::answer`]
//! it; whoever calls knows whom to ask.

use crate::protocol::{
    Frame, FrameError, InputRequest, Kind, Method, Revision, accept, code,
    headers::{self, ParamHeader},
    meta,
    splice::Object,
    sse::Decoder,
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Bytes of one message of a server; a larger one is an error.
const MAX_MESSAGE: usize = 256 << 20;
/// Pages of `tools/list` that are looked through for a tool.
const MAX_PAGES: usize = 1_000;
/// How often a task is polled whose server does not say.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A server that asks to be polled more often than this is not taken at its word.
const LEAST_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polls in a row that may fail to reach the server before the task is given up.
const LOST_POLLS: u32 = 5;
/// How long to wait where a server only asks to come back.
const COME_BACK_AFTER: Duration = Duration::from_millis(500);

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    /// Sent with each request, beside those of the protocol.
    headers: HeaderMap,
    declared: Declared,
    next_id: Arc<AtomicU64>,
}

/// What a client says it can do, with each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The tasks extension.
    pub tasks: bool,
    /// Elicitation, by form and at an address.
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
}

/// One call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub tool: &'a str,
    /// A JSON object.
    pub arguments: &'a RawValue,
    /// What of it goes into headers too, see [`Client::mirrored`].
    pub mirrored: &'a [ParamHeader],
}

/// Answers, raw, by the keys of their questions.
pub type Answers = BTreeMap<String, Box<RawValue>>;

/// Told what happens on the way.
type Watch<'a> = &'a mut (dyn FnMut(Step<'_>) + Send);

/// Something heard of a call before its end.
#[derive(Debug)]
pub enum Step<'a> {
    /// `notifications/progress`, while the call is no task yet.
    Progress(Progress),
    /// The call became a task.
    Handle(&'a Task),
    /// A poll, and what it found.
    Polled(&'a Task),
    /// A poll that did not reach the server; it is made again.
    Lost(&'a Error),
}

/// What a request came to.
#[derive(Debug)]
pub enum Turn {
    Ended(Ending),
    /// The server waits for answers.
    Asked(Pause),
}

/// How a call ended.
#[derive(Debug)]
pub enum Ending {
    /// A result, raw. A tool's own error is one too.
    Result(Box<RawValue>),
    /// A JSON-RPC error, raw.
    Error(Box<RawValue>),
    /// Its task was cancelled.
    Cancelled(Task),
}

/// A call that waits for its client's answers.
#[derive(Debug)]
pub struct Pause {
    /// In the order of the server; never empty.
    pub questions: Vec<Asked>,
    whence: Whence,
}

/// Who waits for the answers.
#[derive(Debug)]
enum Whence {
    /// The call itself, to be made again with this, if the server gave it.
    Call { state: Option<Box<RawValue>> },
    /// Its task. What was answered before may be shown a moment longer, and is not asked again
    /// (tasks extension, *Task Update Requests*).
    Task { task: Task, answered: BTreeSet<String> },
}

/// A question of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub key: String,
    pub method: String,
    /// The question, if it is one that the protocol knows.
    pub request: Option<InputRequest>,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub done: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

/// A task as its server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: String,
    pub status: Status,
    pub message: Option<String>,
    pub poll_interval: Duration,
    /// From its creation; `None` for ever.
    pub ttl: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Working,
    InputRequired,
    Completed,
    Failed,
    Cancelled,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{url} cannot be reached: {detail}")]
    Unreachable { url: Uri, detail: String },
    #[error("the connection to {url} was lost: {detail}")]
    Broken { url: Uri, detail: String },
    #[error("HTTP {status}{detail}")]
    Status { status: StatusCode, detail: String },
    #[error("the answer is not valid: {0}")]
    Invalid(String),
    #[error("the answer is larger than {MAX_MESSAGE} bytes")]
    TooLarge,
    /// A limit was reached, and the request was not served.
    #[error("busy: {0}")]
    Busy(String),
    #[error("the answers were refused: {0}")]
    Refused(String),
    #[error("task {task}: {source}")]
    Task { task: String, source: Box<Self> },
}

/// A response to one request.
enum Answer {
    Result(Box<RawValue>),
    Error(Box<RawValue>),
}

#[derive(Serialize)]
pub(super) struct Message<'a, P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_responses: Option<&'a Answers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_state: Option<&'a RawValue>,
    #[serde(rename = "_meta")]
    meta: Value,
}

/// The members of a result that say what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline<'a> {
    #[serde(default, borrow)]
    result_type: Option<Cow<'a, str>>,
    task_id: Option<String>,
    status: Option<Status>,
    status_message: Option<String>,
    poll_interval_ms: Option<u64>,
    ttl_ms: Option<u64>,
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
    input_requests: Option<Box<RawValue>>,
    request_state: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Tools {
    tools: Vec<ToolOutline>,
    #[serde(rename = "nextCursor")]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolOutline {
    name: String,
    input_schema: Option<Box<RawValue>>,
}

// === impl Client ===

impl Client {
    /// `declared` goes with each request.
    pub fn new(url: Uri, headers: HeaderMap, declared: Declared) -> Self {
        // Certificates that cannot be read make each HTTPS server unknown, which the connection's
        // error says; HTTP needs none.
        let mut roots = rustls::RootCertStore::empty();
        if url.scheme_str() == Some("https") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring has the default versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .build();
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Self { http, url, headers, declared, next_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Calls a tool, and follows its task if it becomes one. What happens on the way is told to
    /// `watch`. Dropped before its end it leaves the task, if there is one, at work.
    ///
    /// # Errors
    /// [`Error`]; a JSON-RPC error is an [`Ending`].
    pub async fn call(&self, call: &Call<'_>, watch: Watch<'_>) -> Result<Turn, Error> {
        self.make(call, None, None, watch).await
    }

    /// Gives a call the answers it waits for, and goes on with it. Questions without an answer here
    /// are asked again.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn answer(
        &self,
        call: &Call<'_>,
        pause: Pause,
        answers: &Answers,
        watch: Watch<'_>,
    ) -> Result<Turn, Error> {
        match pause.whence {
            Whence::Call { state } => self.make(call, Some(answers), state, watch).await,
            Whence::Task { task, mut answered } => {
                let id = task.id.clone();
                answered.extend(answers.keys().cloned());
                let ending = async {
                    self.update(&task, answers, watch).await?;
                    self.follow(task, answered, watch).await
                };
                ending.await.map_err(|source| Error::Task { task: id, source: Box::new(source) })
            }
        }
    }

    /// Makes the call, for the first time or again with what it waits for: as a request of its own,
    /// with an id of its own (2026-07-28, *Multi Round-Trip Requests, Client Requirements*).
    async fn make(
        &self,
        call: &Call<'_>,
        mut answers: Option<&Answers>,
        mut state: Option<Box<RawValue>>,
        watch: Watch<'_>,
    ) -> Result<Turn, Error> {
        loop {
            let id = self.next_id();
            let mut meta = self.meta();
            meta[meta::PROGRESS_TOKEN] = id.into();
            let params = CallParams {
                name: call.tool,
                arguments: call.arguments,
                input_responses: answers,
                request_state: state.as_deref(),
                meta,
            };
            let mut extra = param_headers(call.mirrored, call.arguments);
            extra.insert(headers::NAME.clone(), headers::encode(call.tool));
            let result = match self.request(id, Method::ToolsCall.as_str(), params, extra, watch).await? {
                Answer::Result(result) => result,
                Answer::Error(error) => return Ok(Ending::Error(error).into()),
            };
            let mut outline = outline(&result)?;
            match outline.result_type.as_deref() {
                Some("task") => {
                    let task = outline.task()?;
                    watch(Step::Handle(&task));
                    let id = task.id.clone();
                    return self
                        .follow(task, BTreeSet::new(), watch)
                        .await
                        .map_err(|source| Error::Task { task: id, source: Box::new(source) });
                }
                Some("input_required") => {
                    let questions = outline.questions()?;
                    let next = outline.request_state.take();
                    if !questions.is_empty() {
                        return Ok(Turn::Asked(Pause { questions, whence: Whence::Call { state: next } }));
                    }
                    if next.is_none() {
                        return Err(Error::Invalid(
                            "it asks for nothing, and gives nothing to come back with".to_owned(),
                        ));
                    }
                    (answers, state) = (None, next);
                    tokio::time::sleep(COME_BACK_AFTER).await;
                }
                // Older servers name no type; others may come, and are shown as they are.
                Some(_) | None => return Ok(Ending::Result(result).into()),
            }
        }
    }

    async fn follow(
        &self,
        mut task: Task,
        answered: BTreeSet<String>,
        watch: Watch<'_>,
    ) -> Result<Turn, Error> {
        let mut lost = 0;
        let mut wait = task.status == Status::Working;
        loop {
            if wait {
                tokio::time::sleep(task.poll_interval.max(LEAST_POLL_INTERVAL)).await;
            }
            wait = true;
            let result = match self.about_task(Method::TasksGet, &task.id, None).await {
                Ok(Answer::Result(result)) => result,
                Ok(Answer::Error(error)) => return Ok(Ending::Error(error).into()),
                Err(error) if error.is_passing() && lost < LOST_POLLS => {
                    lost += 1;
                    watch(Step::Lost(&error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            lost = 0;
            let mut outline = outline(&result)?;
            task = outline.task()?;
            watch(Step::Polled(&task));
            match task.status {
                Status::Working => {}
                Status::InputRequired => {
                    let mut questions = outline.questions()?;
                    questions.retain(|question| !answered.contains(&question.key));
                    if !questions.is_empty() {
                        return Ok(Turn::Asked(Pause { questions, whence: Whence::Task { task, answered } }));
                    }
                }
                Status::Completed => {
                    let missing = || Error::Invalid("a completed task without its result".to_owned());
                    return outline
                        .result
                        .take()
                        .map(|result| Ending::Result(result).into())
                        .ok_or_else(missing);
                }
                Status::Failed => {
                    let missing = || Error::Invalid("a failed task without its error".to_owned());
                    return outline.error.take().map(|error| Ending::Error(error).into()).ok_or_else(missing);
                }
                Status::Cancelled => return Ok(Ending::Cancelled(task).into()),
            }
        }
    }

    /// Gives a task its answers. Sent again where they may not have arrived: what has been answered
    /// already is ignored (tasks extension, *Task Update Requests*).
    async fn update(&self, task: &Task, answers: &Answers, watch: Watch<'_>) -> Result<(), Error> {
        let mut lost = 0;
        loop {
            match self.about_task(Method::TasksUpdate, &task.id, Some(answers)).await {
                Ok(Answer::Result(_)) => return Ok(()),
                Ok(Answer::Error(error)) => return Err(Error::Refused(super::call::error_text(&error))),
                Err(error) if error.is_passing() && lost < LOST_POLLS => {
                    lost += 1;
                    watch(Step::Lost(&error));
                    tokio::time::sleep(task.poll_interval.max(LEAST_POLL_INTERVAL)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks for a task to be cancelled. The server need not obey.
    ///
    /// # Errors
    /// Where the server cannot be reached or refuses to listen.
    pub async fn cancel(&self, task: &str) -> Result<(), Error> {
        match self.about_task(Method::TasksCancel, task, None).await? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => Err(Error::Invalid(error.get().to_owned())),
        }
    }

    async fn about_task(
        &self,
        method: Method,
        task: &str,
        answers: Option<&Answers>,
    ) -> Result<Answer, Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            task_id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            input_responses: Option<&'a Answers>,
            #[serde(rename = "_meta")]
            meta: Value,
        }
        let mut extra = HeaderMap::new();
        extra.insert(headers::NAME.clone(), headers::encode(task));
        let params = Params { task_id: task, input_responses: answers, meta: self.meta() };
        match self.request(self.next_id(), method.as_str(), params, extra, &mut |_| {}).await? {
            Answer::Error(error) if is_busy(&error) => Err(Error::Busy(super::call::error_text(&error))),
            answer => Ok(answer),
        }
    }

    /// The parameters of a tool that are to be mirrored into headers; none for a tool that the
    /// server does not list, or where it lists nothing.
    ///
    /// # Errors
    /// Where the server cannot be reached.
    pub async fn mirrored(&self, tool: &str) -> Result<Vec<ParamHeader>, Error> {
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut params = serde_json::json!({ "_meta": self.meta() });
            if let Some(cursor) = cursor.take() {
                params["cursor"] = cursor.into();
            }
            let answer = self
                .request(self.next_id(), Method::ToolsList.as_str(), params, HeaderMap::new(), &mut |_| {})
                .await?;
            let Answer::Result(page) = answer else { break };
            let page: Tools = read(&page)?;
            if let Some(found) = page.tools.into_iter().find(|known| known.name == tool) {
                let schema =
                    found.input_schema.map_or_else(Bytes::new, |raw| Bytes::from(raw.get().to_owned()));
                return Ok(headers::param_headers(&schema));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok(Vec::new())
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// What each request says of its client (2026-07-28, *Per-request metadata*).
    fn meta(&self) -> Value {
        let Declared { tasks, elicitation, sampling, roots } = self.declared;
        let empty = || serde_json::json!({});
        let mut capabilities = empty();
        if tasks {
            capabilities["extensions"] = serde_json::json!({ meta::TASKS_EXTENSION: {} });
        }
        if elicitation {
            capabilities["elicitation"] = serde_json::json!({ "form": {}, "url": {} });
        }
        if sampling {
            capabilities["sampling"] = empty();
        }
        if roots {
            capabilities["roots"] = empty();
        }
        serde_json::json!({
            meta::PROTOCOL_VERSION: Revision::V2026_07_28.as_str(),
            meta::CLIENT_INFO: { "name": "deferral-call", "version": env!("CARGO_PKG_VERSION") },
            meta::CLIENT_CAPABILITIES: capabilities,
        })
    }

    async fn request(
        &self,
        id: u64,
        method: &str,
        params: impl Serialize,
        extra: HeaderMap,
        watch: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Answer, Error> {
        let body = Message::new(id, method, params).to_json();
        let mut request = Request::post(self.url.clone()).body(Full::from(body)).expect("the URL was parsed");
        let map = request.headers_mut();
        map.extend(self.headers.clone());
        map.insert(header::CONTENT_TYPE, HeaderValue::from_static(accept::JSON));
        map.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        map.insert(
            headers::PROTOCOL_VERSION.clone(),
            HeaderValue::from_static(Revision::V2026_07_28.as_str()),
        );
        map.insert(headers::METHOD.clone(), headers::encode(method));
        map.extend(extra);
        let response = self.http.request(request).await.map_err(|error| self.unreachable(&error))?;
        let content_type = response.headers().get(header::CONTENT_TYPE);
        if accept::is_media(content_type, accept::EVENT_STREAM) {
            self.events(id, response, watch).await
        } else {
            self.json(id, response).await
        }
    }

    async fn json(&self, id: u64, response: Response<Incoming>) -> Result<Answer, Error> {
        let status = response.status();
        let (mut body, mut bytes) = (response.into_body(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > MAX_MESSAGE {
                return Err(Error::TooLarge);
            }
            bytes.extend_from_slice(&data);
        }
        let bytes = bytes.freeze();
        match Frame::parse(bytes.clone()) {
            Ok(frame) => match answer(&frame, id) {
                // The status says more than the error can: that asking again may help.
                Some(Ok(Answer::Error(error))) if is_passing(status) => {
                    Err(Error::Status { status, detail: format!(": {}", super::call::error_text(&error)) })
                }
                Some(answer) => answer,
                None => Err(Error::Invalid("it is not the response to this request".to_owned())),
            },
            // An error of HTTP need not carry JSON-RPC.
            Err(_) if !status.is_success() => {
                let text = String::from_utf8_lossy(&bytes);
                let detail = match text.trim() {
                    "" => String::new(),
                    text => format!(": {}", text.chars().take(500).collect::<String>()),
                };
                Err(Error::Status { status, detail })
            }
            Err(error) => Err(invalid(&error)),
        }
    }

    async fn events(
        &self,
        id: u64,
        response: Response<Incoming>,
        watch: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Answer, Error> {
        let (mut body, mut decoder) = (response.into_body(), Decoder::new(MAX_MESSAGE));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            decoder.feed(data);
            while let Some(event) = decoder.next_event().map_err(|_| Error::TooLarge)? {
                if event.data.is_empty() {
                    continue;
                }
                let frame = Frame::parse(event.data).map_err(|error| invalid(&error))?;
                if let Some(answer) = answer(&frame, id) {
                    return answer;
                }
                if let Some(progress) = progress(&frame, id) {
                    watch(Step::Progress(progress));
                }
            }
        }
        Err(Error::Broken {
            url: self.url.clone(),
            detail: "the stream ended without the response".to_owned(),
        })
    }

    fn unreachable(&self, error: &legacy::Error) -> Error {
        let (url, detail) = (self.url.clone(), causes(error));
        if error.is_connect() { Error::Unreachable { url, detail } } else { Error::Broken { url, detail } }
    }

    fn broken(&self, error: &hyper::Error) -> Error {
        Error::Broken { url: self.url.clone(), detail: causes(error) }
    }
}

// === impl Message ===

impl<'a, P: Serialize> Message<'a, P> {
    pub(super) const fn new(id: u64, method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", id, method, params }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and raw JSON are JSON")
    }
}

// === impl Error ===

impl Error {
    /// Whether asking again could help, where asking again is harmless.
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Busy(_) => true,
            Self::Status { status, .. } => is_passing(*status),
            Self::Invalid(_) | Self::TooLarge | Self::Refused(_) | Self::Task { .. } => false,
        }
    }
}

const fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Whether an error is this proxy's word for a limit that was reached.
fn is_busy(error: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Code {
        code: i64,
    }
    serde_json::from_str::<Code>(error.get()).is_ok_and(|Code { code }| code == code::BUSY)
}

/// The last cause says most: `connection refused`, not `client error (Connect)`.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn invalid(error: &FrameError) -> Error {
    Error::Invalid(error.to_string())
}

// === impl Outline ===

impl Outline<'_> {
    fn task(&self) -> Result<Task, Error> {
        let missing = |what: &str| Error::Invalid(format!("a task without `{what}`"));
        Ok(Task {
            id: self.task_id.clone().ok_or_else(|| missing("taskId"))?,
            status: self.status.ok_or_else(|| missing("status"))?,
            message: self.status_message.clone(),
            poll_interval: self.poll_interval_ms.map_or(POLL_INTERVAL, Duration::from_millis),
            ttl: self.ttl_ms.map(Duration::from_millis),
        })
    }

    fn questions(&self) -> Result<Vec<Asked>, Error> {
        let odd = || Error::Invalid("`inputRequests` is not an object of questions".to_owned());
        let Some(raw) = &self.input_requests else { return Ok(Vec::new()) };
        let requests = Object::read(&Bytes::from(raw.get().to_owned())).map_err(|_| odd())?;
        let asked = |(key, raw): (Cow<'_, str>, Bytes)| {
            let method = Object::read(&raw).ok()?.string("method")?;
            Some(Asked { key: key.into_owned(), method, request: InputRequest::from_raw(raw) })
        };
        requests.members().map(|member| asked(member).ok_or_else(odd)).collect()
    }
}

// === impl Turn ===

impl From<Ending> for Turn {
    fn from(ending: Ending) -> Self {
        Self::Ended(ending)
    }
}

// === impl Asked ===

impl Asked {
    /// What it says to a person, where it says something.
    pub fn message(&self) -> Option<String> {
        Object::read(&self.request.as_ref()?.params()?).ok()?.string("message")
    }
}

// === impl Pause ===

impl Pause {
    /// The task that waits, where the call has become one.
    pub const fn task(&self) -> Option<&Task> {
        match &self.whence {
            Whence::Call { .. } => None,
            Whence::Task { task, .. } => Some(task),
        }
    }
}

// === impl Status ===

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

// === impl Progress ===

impl Progress {
    /// What a proxy or server wrote into a task's status message: `half way (2.5/4)`, `2.5/4`.
    pub fn from_status(message: &str) -> Option<Self> {
        let (words, counts) = match message.strip_suffix(')').and_then(|rest| rest.rsplit_once('(')) {
            Some((words, counts)) => (words.trim_end(), counts),
            None => ("", message),
        };
        let (done, total) = counts.split_once('/')?;
        Some(Self {
            done: done.trim().parse().ok()?,
            total: Some(total.trim().parse().ok()?),
            message: (!words.is_empty()).then(|| words.to_owned()),
        })
    }
}

fn outline(result: &RawValue) -> Result<Outline<'_>, Error> {
    serde_json::from_str(result.get()).map_err(|error| Error::Invalid(error.to_string()))
}

fn read<T: for<'de> Deserialize<'de>>(result: &RawValue) -> Result<T, Error> {
    serde_json::from_str(result.get()).map_err(|error| Error::Invalid(error.to_string()))
}

/// What a frame answers to the request of this id; `None` for another message.
fn answer(frame: &Frame, id: u64) -> Option<Result<Answer, Error>> {
    let raw = |bytes: &Bytes| {
        serde_json::from_slice::<Box<RawValue>>(bytes).map_err(|error| Error::Invalid(error.to_string()))
    };
    match frame.kind() {
        Kind::Success { id: theirs, result } if theirs.as_number() == Some(id) => {
            Some(raw(result).map(Answer::Result))
        }
        // A server that could not read the id leaves it out.
        Kind::Failure { id: theirs, error }
            if theirs.as_ref().is_none_or(|theirs| theirs.as_number() == Some(id)) =>
        {
            Some(raw(error).map(Answer::Error))
        }
        Kind::Success { .. } | Kind::Failure { .. } | Kind::Request { .. } | Kind::Notification { .. } => {
            None
        }
    }
}

/// The progress a notification tells, if it is of this token.
fn progress(frame: &Frame, token: u64) -> Option<Progress> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        progress_token: u64,
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    }
    let Kind::Notification { method: Method::Progress, params: Some(params) } = frame.kind() else {
        return None;
    };
    let params: Params = serde_json::from_slice(params).ok()?;
    (params.progress_token == token).then_some(Progress {
        done: params.progress,
        total: params.total,
        message: params.message,
    })
}

/// The headers that mirror arguments (2026-07-28, *Custom Headers from Tool Parameters*).
fn param_headers(mirrored: &[ParamHeader], arguments: &RawValue) -> HeaderMap {
    let mut map = HeaderMap::new();
    if mirrored.is_empty() {
        return map;
    }
    let Ok(arguments) = serde_json::from_str::<Value>(arguments.get()) else { return map };
    for param in mirrored {
        let value = param.path.iter().try_fold(&arguments, |value, name| value.get(name));
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(truth)) => truth.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        map.insert(param.header.clone(), headers::encode(&text));
    }
    map
}

/// A JSON object from what somebody typed.
///
/// # Errors
/// Says what is wrong with it.
pub fn arguments(text: &str) -> Result<Box<RawValue>, String> {
    let hint = "write the tool's arguments as a JSON object, as in '{\"name\":\"Ada\"}'";
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error}; {hint}"))?;
    if !value.is_object() {
        return Err(format!("not an object; {hint}"));
    }
    // Numbers stay as they were typed.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// No arguments at all.
pub fn no_arguments() -> Box<RawValue> {
    to_raw_value(&serde_json::json!({})).expect("an object is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use std::{collections::VecDeque, convert::Infallible, sync::Mutex};
    use tokio::net::TcpListener;

    /// A server that says what it was told to say, one answer a request.
    struct Script {
        url: Uri,
        heard: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    }

    const ALL: Declared = Declared { tasks: true, elicitation: true, sampling: true, roots: true };
    const JSON: &str = accept::JSON;
    const SSE: &str = accept::EVENT_STREAM;

    impl Script {
        async fn new(answers: &[(u16, &'static str, &str)]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
            let answers: VecDeque<_> =
                answers.iter().map(|(status, media, body)| (*status, *media, (*body).to_owned())).collect();
            let answers = Arc::new(Mutex::new(answers));
            let heard = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&heard);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
                        async move {
                            let (parts, body) = request.into_parts();
                            let body = body.collect().await.unwrap().to_bytes();
                            let body: Value = serde_json::from_slice(&body).unwrap();
                            let (status, media, text) =
                                answers.lock().unwrap().pop_front().expect("an answer is left");
                            let text = text.replace("$ID", &body["id"].to_string());
                            log.lock().unwrap().push((parts.headers, body));
                            Ok::<_, Infallible>(
                                Response::builder()
                                    .status(status)
                                    .header("content-type", media)
                                    .body(Full::new(Bytes::from(text)))
                                    .unwrap(),
                            )
                        }
                    });
                    tokio::spawn(async move {
                        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
            Self { url, heard }
        }

        async fn call(&self, arguments: &str) -> (Result<Ending, Error>, Vec<String>) {
            self.call_and_answer(arguments, &[]).await
        }

        /// A call whose questions are answered with these, a round each.
        async fn call_and_answer(
            &self,
            arguments: &str,
            answers: &[&str],
        ) -> (Result<Ending, Error>, Vec<String>) {
            let client = Client::new(self.url.clone(), HeaderMap::new(), ALL);
            let mut steps = Vec::new();
            let arguments = super::arguments(arguments).unwrap();
            let call = Call { tool: "tool", arguments: &arguments, mirrored: &[] };
            let mut turn = client.call(&call, &mut |step| steps.push(format!("{step:?}"))).await;
            let mut answers = answers.iter();
            while let Ok(Turn::Asked(pause)) = turn {
                let keys: Vec<_> = pause.questions.iter().map(|question| &*question.key).collect();
                let whence = if pause.task().is_some() { "in a task: " } else { "" };
                steps.push(format!("Asked({whence}{})", keys.join(" ")));
                let answers = answers.next().expect("an answer is left");
                let answers: Answers = serde_json::from_str(answers).unwrap();
                turn =
                    client.answer(&call, pause, &answers, &mut |step| steps.push(format!("{step:?}"))).await;
            }
            let ending = turn.map(|turn| match turn {
                Turn::Ended(ending) => ending,
                Turn::Asked(pause) => unreachable!("{pause:?}"),
            });
            (ending, steps)
        }

        fn heard(&self) -> Vec<(HeaderMap, Value)> {
            self.heard.lock().unwrap().clone()
        }
    }

    fn result(ending: Result<Ending, Error>) -> String {
        match ending {
            Ok(Ending::Result(result)) => result.get().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn task(status: &str, more: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"complete","taskId":"t1","status":"{status}","createdAt":"","lastUpdatedAt":"","ttlMs":null,"pollIntervalMs":300{more}}}}}"#
        )
    }

    fn handle() -> String {
        task("working", "").replace(r#""complete""#, r#""task""#)
    }

    #[tokio::test]
    async fn a_result_comes_back_as_it_was_sent_and_the_request_says_what_it_must() {
        let server =
            Script::new(&[(200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"result":{"n": 9007199254740993}}"#)])
                .await;
        let (ending, steps) = server.call(r#"{"x": 1.50}"#).await;
        assert_eq!(result(ending), r#"{"n": 9007199254740993}"#);
        assert!(steps.is_empty());
        let (headers, body) = server.heard().remove(0);
        assert_eq!(headers["mcp-method"], "tools/call");
        assert_eq!(headers["mcp-name"], "tool");
        assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
        assert_eq!(headers["accept"], "application/json, text/event-stream");
        let meta = &body["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert!(
            meta["io.modelcontextprotocol/clientCapabilities"]["extensions"][meta::TASKS_EXTENSION]
                .is_object()
        );
        assert_eq!(meta["progressToken"], body["id"]);
    }

    #[tokio::test]
    async fn an_event_stream_tells_progress_and_then_the_result() {
        let server = Script::new(&[(
            200,
            SSE,
            ": hello\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":$ID,\"progress\":1,\"total\":4,\"message\":\"m\"}}\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/other\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n\n",
        )])
        .await;
        let (ending, steps) = server.call("{}").await;
        assert_eq!(result(ending), "{}");
        assert_eq!(steps, [r#"Progress(Progress { done: 1.0, total: Some(4.0), message: Some("m") })"#]);
    }

    #[tokio::test]
    async fn a_stream_that_ends_early_is_a_lost_connection() {
        let server = Script::new(&[(200, SSE, ":\n\n")]).await;
        let (ending, _) = server.call("{}").await;
        assert!(matches!(ending, Err(Error::Broken { .. })), "{ending:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_polled_to_its_end_even_if_a_poll_is_lost() {
        let server = Script::new(&[
            (200, JSON, &handle()),
            (200, JSON, &task("working", r#","statusMessage":"half way (2/4)""#)),
            (503, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
            (200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
            (200, JSON, &task("completed", r#","result":{"content":[]}"#)),
        ])
        .await;
        let (ending, steps) = server.call("{}").await;
        assert_eq!(result(ending), r#"{"content":[]}"#);
        let kinds: Vec<_> = steps.iter().map(|step| step.split('(').next().unwrap()).collect();
        assert_eq!(kinds, ["Handle", "Polled", "Lost", "Lost", "Polled"]);
        let heard = server.heard();
        assert_eq!(
            (&heard[1].0["mcp-method"], &heard[1].0["mcp-name"]),
            (&"tasks/get".parse().unwrap(), &"t1".parse().unwrap())
        );
        assert_eq!(heard[1].1["params"]["taskId"], "t1");
    }

    #[tokio::test(start_paused = true)]
    async fn every_end_of_a_task_is_told_apart() {
        let failed = task("failed", r#","error":{"code":-32603,"message":"no"}"#);
        for (last, expected) in [
            (failed, r#"Error(RawValue({"code":-32603,"message":"no"}))"#),
            (task("cancelled", ""), "Cancelled(Task { id: \"t1\", status: Cancelled"),
            (
                r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"Task not found"}}"#.to_owned(),
                r#"Error(RawValue({"code":-32602,"message":"Task not found"}))"#,
            ),
        ] {
            let server = Script::new(&[(200, JSON, &handle()), (200, JSON, &last)]).await;
            let (ending, _) = server.call("{}").await;
            let ending = format!("{:?}", ending.expect("it ended"));
            assert!(ending.starts_with(expected), "{ending}");
        }
        let server = Script::new(&[(200, JSON, &handle()), (200, JSON, &task("completed", ""))]).await;
        let error = server.call("{}").await.0.unwrap_err().to_string();
        assert_eq!(error, "task t1: the answer is not valid: a completed task without its result");
    }

    fn asks(questions: &str, state: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"input_required","inputRequests":{{{questions}}}{state}}}}}"#
        )
    }

    const DONE: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#;

    #[tokio::test]
    async fn a_call_is_made_again_with_answers_and_the_state_that_came_with_the_question() {
        let server = Script::new(&[
            (
                200,
                JSON,
                &asks(
                    r#""z":{"method":"roots/list"},"a":{"method":"vendor/ask"}"#,
                    r#","requestState":"s\u0041/1""#,
                ),
            ),
            (200, JSON, &asks(r#""b":{"method":"roots/list"}"#, "")),
            (200, JSON, DONE),
        ])
        .await;
        let answers = [r#"{"z":{"roots": [1.0]},"a":{}}"#, r#"{"b":{"roots":[]}}"#];
        let (ending, steps) = server.call_and_answer(r#"{"x": 1.50}"#, &answers).await;
        assert_eq!(result(ending), "{}");
        assert_eq!(steps, ["Asked(z a)", "Asked(b)"], "in the order of the server");
        let heard: Vec<_> = server.heard().into_iter().map(|(_, body)| body).collect();
        assert_eq!(heard[0]["params"].get("requestState"), None);
        assert_eq!(heard[0]["params"].get("inputResponses"), None);
        assert_eq!(heard[1]["params"]["requestState"], "sA/1");
        assert_eq!(heard[1]["params"]["inputResponses"]["z"]["roots"][0], 1.0);
        assert_eq!(heard[2]["params"].get("requestState"), None, "none came with the second question");
        assert_eq!(heard[2]["params"]["inputResponses"]["b"], serde_json::json!({ "roots": [] }));
        let empty = serde_json::json!({});
        for body in &heard {
            assert_eq!(body["params"]["name"], "tool");
            assert_eq!(body["params"]["arguments"]["x"], 1.5);
            assert_eq!(body["params"]["_meta"]["progressToken"], body["id"]);
            let declared = &body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
            assert_eq!(declared["elicitation"], serde_json::json!({ "form": {}, "url": {} }));
            assert_eq!((&declared["sampling"], &declared["roots"]), (&empty, &empty));
        }
        assert!(heard[0]["id"] != heard[1]["id"] && heard[1]["id"] != heard[2]["id"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_only_asks_to_come_back_is_come_back_to() {
        let server = Script::new(&[
            (200, JSON, &asks("", r#","requestState":"s1""#)),
            (200, JSON, &asks("", r#","requestState":"s2""#)),
            (200, JSON, DONE),
            (200, JSON, &asks("", "")),
        ])
        .await;
        let (ending, steps) = server.call("{}").await;
        assert_eq!((result(ending), steps.len()), ("{}".to_owned(), 0));
        let states: Vec<_> =
            server.heard().iter().map(|(_, body)| body["params"]["requestState"].clone()).collect();
        assert_eq!(states, [Value::Null, "s1".into(), "s2".into()]);
        let error = server.call("{}").await.0.unwrap_err().to_string();
        assert!(error.contains("gives nothing to come back with"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_given_its_answers_and_followed_and_nothing_is_asked_twice() {
        let question = |keys: &str| {
            let questions: Vec<_> =
                keys.split(' ').map(|key| format!(r#""{key}":{{"method":"roots/list"}}"#)).collect();
            task("input_required", &format!(r#","inputRequests":{{{}}}"#, questions.join(",")))
        };
        let server = Script::new(&[
            (200, JSON, &handle()),
            (200, JSON, &question("a b")),
            (503, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-31006,"message":"busy"}}"#),
            (200, JSON, DONE),
            // The answer to `a` has not arrived everywhere yet.
            (200, JSON, &question("a b")),
            (200, JSON, DONE),
            (200, JSON, &question("a b")),
            (200, JSON, &task("completed", r#","result":{}"#)),
        ])
        .await;
        let answers = [r#"{"a":{"n": 1.0}}"#, r#"{"b":{}}"#];
        let (ending, steps) = server.call_and_answer("{}", &answers).await;
        assert_eq!(result(ending), "{}");
        let kinds: Vec<_> =
            steps.iter().filter(|step| !step.starts_with("Polled")).map(|step| &step[..5]).collect();
        assert_eq!(kinds, ["Handl", "Asked", "Lost(", "Asked"]);
        let asked: Vec<_> = steps.iter().filter(|step| step.starts_with("Asked")).collect();
        assert_eq!(asked, ["Asked(in a task: a b)", "Asked(in a task: b)"]);
        let heard = server.heard();
        let updates: Vec<_> = heard.iter().filter(|(_, body)| body["method"] == "tasks/update").collect();
        assert_eq!(updates.len(), 3);
        assert_eq!(updates[0].0["mcp-name"], "t1");
        assert_eq!(updates[0].1["params"]["taskId"], "t1");
        assert_eq!(updates[1].1["params"]["inputResponses"], serde_json::json!({ "a": { "n": 1.0 } }));
        assert_eq!(updates[2].1["params"]["inputResponses"], serde_json::json!({ "b": {} }));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_refused_say_why() {
        let asked = task("input_required", r#","inputRequests":{"a":{"method":"roots/list"}}"#);
        let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"no"}}"#;
        let server = Script::new(&[(200, JSON, &handle()), (200, JSON, &asked), (200, JSON, refused)]).await;
        let error = server.call_and_answer("{}", &["{}"]).await.0.unwrap_err().to_string();
        assert_eq!(error, "task t1: the answers were refused: no (-32602)");
        let server = Script::new(&[(200, JSON, &asks(r#""a":1"#, ""))]).await;
        assert!(matches!(server.call("{}").await.0, Err(Error::Invalid(_))));
    }

    #[tokio::test]
    async fn a_call_that_is_refused_says_so() {
        let server = Script::new(&[
            (400, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32021,"message":"no"}}"#),
            (502, "text/html", "<h1>Bad gateway</h1>"),
            (200, JSON, r#"{"jsonrpc":"2.0","id":99,"result":{}}"#),
            (200, JSON, "not JSON"),
        ])
        .await;
        assert!(
            matches!(server.call("{}").await.0.unwrap(), Ending::Error(error) if error.get().contains("-32021"))
        );
        assert_eq!(
            server.call("{}").await.0.unwrap_err().to_string(),
            "HTTP 502 Bad Gateway: <h1>Bad gateway</h1>"
        );
        for _ in 0..2 {
            assert!(matches!(server.call("{}").await.0, Err(Error::Invalid(_))));
        }
    }

    #[tokio::test]
    async fn arguments_are_mirrored_where_the_tool_asks_for_it_on_whatever_page_it_is() {
        let schema = r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"on":{"type":"boolean","x-mcp-header":"On"}}}"#;
        let second = format!(
            r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{{"name":"tool","inputSchema":{schema}}}]}}}}"#
        );
        let server = Script::new(&[
            (
                200,
                JSON,
                r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"other"}],"nextCursor":"c2"}}"#,
            ),
            (200, JSON, &second),
        ])
        .await;
        let client = Client::new(server.url.clone(), HeaderMap::new(), Declared::default());
        let mirrored = client.mirrored("tool").await.unwrap();
        assert_eq!(server.heard()[1].1["params"]["cursor"], "c2");
        let arguments = arguments(r#"{"region":"Zürich","deep":{"n":42}}"#).unwrap();
        let headers = param_headers(&mirrored, &arguments);
        assert_eq!(headers["mcp-param-n"], "42");
        assert_eq!(headers["mcp-param-region"], headers::encode("Zürich"));
        assert!(!headers.contains_key("mcp-param-on"));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        let client = Client::new(url.clone(), HeaderMap::new(), ALL);
        let error = client.mirrored("x").await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{url} cannot be reached: ")), "{error}");
    }
}
