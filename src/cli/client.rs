//! A small client of revision 2026-07-28: one request at a time, tasks followed to their end.
//!
//! It keeps what a server sends as it came: results are raw JSON, numbers included.

use crate::protocol::{
    Frame, FrameError, Kind, Method, Revision, accept, code,
    headers::{self, ParamHeader},
    meta,
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
    collections::BTreeMap,
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

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    /// Sent with each request, beside those of the protocol.
    headers: HeaderMap,
    /// Whether the tasks extension is declared.
    tasks: bool,
    next_id: Arc<AtomicU64>,
}

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

/// How a call ended.
#[derive(Debug)]
pub enum Ending {
    /// A result, raw. A tool's own error is one too.
    Result(Box<RawValue>),
    /// A JSON-RPC error, raw.
    Error(Box<RawValue>),
    /// Its task was cancelled.
    Cancelled(Task),
    /// The server waits for answers; these are its questions. The task still exists, if it is one.
    Asked { questions: Vec<Asked>, task: Option<Task> },
}

/// A question of the server.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: String,
    pub method: String,
    /// What it says to a person, where it says something.
    pub message: Option<String>,
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
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a RawValue,
    _meta: Value,
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
    input_requests: Option<BTreeMap<String, InputRequest>>,
}

#[derive(Deserialize)]
struct InputRequest {
    method: String,
    params: Option<InputParams>,
}

#[derive(Deserialize)]
struct InputParams {
    message: Option<String>,
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
    /// `tasks` declares the tasks extension with each request.
    pub fn new(url: Uri, headers: HeaderMap, tasks: bool) -> Self {
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
        Self { http, url, headers, tasks, next_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Calls a tool, and follows its task if it becomes one. What happens on the way is told to
    /// `watch`. Dropped before its end it leaves the task, if there is one, at work.
    ///
    /// # Errors
    /// [`Error`]; a JSON-RPC error is an [`Ending`].
    pub async fn call(
        &self,
        tool: &str,
        arguments: &RawValue,
        mirrored: &[ParamHeader],
        watch: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Ending, Error> {
        let id = self.next_id();
        let mut meta = self.meta();
        meta[meta::PROGRESS_TOKEN] = id.into();
        let params = CallParams { name: tool, arguments, _meta: meta };
        let mut extra = param_headers(mirrored, arguments);
        extra.insert(headers::NAME.clone(), headers::encode(tool));
        let result = match self.request(id, Method::ToolsCall.as_str(), params, extra, watch).await? {
            Answer::Result(result) => result,
            Answer::Error(error) => return Ok(Ending::Error(error)),
        };
        let outline = outline(&result)?;
        match outline.result_type.as_deref() {
            Some("task") => {
                let task = outline.task()?;
                watch(Step::Handle(&task));
                let id = task.id.clone();
                self.follow(task, watch)
                    .await
                    .map_err(|source| Error::Task { task: id, source: Box::new(source) })
            }
            Some("input_required") => Ok(Ending::Asked { questions: outline.questions(), task: None }),
            // Older servers name no type; others may come, and are shown as they are.
            Some(_) | None => Ok(Ending::Result(result)),
        }
    }

    async fn follow(
        &self,
        mut task: Task,
        watch: &mut (dyn FnMut(Step<'_>) + Send),
    ) -> Result<Ending, Error> {
        let mut lost = 0;
        loop {
            if task.status == Status::Working {
                tokio::time::sleep(task.poll_interval.max(LEAST_POLL_INTERVAL)).await;
            }
            let result = match self.about_task(Method::TasksGet, &task.id).await {
                Ok(Answer::Result(result)) => result,
                Ok(Answer::Error(error)) => return Ok(Ending::Error(error)),
                Err(error) if error.is_passing() && lost < LOST_POLLS => {
                    lost += 1;
                    watch(Step::Lost(&error));
                    tokio::time::sleep(task.poll_interval.max(LEAST_POLL_INTERVAL)).await;
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
                    return Ok(Ending::Asked { questions: outline.questions(), task: Some(task) });
                }
                Status::Completed => {
                    let missing = || Error::Invalid("a completed task without its result".to_owned());
                    return outline.result.take().map(Ending::Result).ok_or_else(missing);
                }
                Status::Failed => {
                    let missing = || Error::Invalid("a failed task without its error".to_owned());
                    return outline.error.take().map(Ending::Error).ok_or_else(missing);
                }
                Status::Cancelled => return Ok(Ending::Cancelled(task)),
            }
        }
    }

    /// Asks for a task to be cancelled. The server need not obey.
    ///
    /// # Errors
    /// Where the server cannot be reached or refuses to listen.
    pub async fn cancel(&self, task: &str) -> Result<(), Error> {
        match self.about_task(Method::TasksCancel, task).await? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => Err(Error::Invalid(error.get().to_owned())),
        }
    }

    async fn about_task(&self, method: Method, task: &str) -> Result<Answer, Error> {
        let mut extra = HeaderMap::new();
        extra.insert(headers::NAME.clone(), headers::encode(task));
        let params = serde_json::json!({ "taskId": task, "_meta": self.meta() });
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
        let capabilities = if self.tasks {
            serde_json::json!({ "extensions": { meta::TASKS_EXTENSION: {} } })
        } else {
            serde_json::json!({})
        };
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
            Self::Invalid(_) | Self::TooLarge | Self::Task { .. } => false,
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

    fn questions(&self) -> Vec<Asked> {
        let asked = |(key, request): (&String, &InputRequest)| Asked {
            key: key.clone(),
            method: request.method.clone(),
            message: request.params.as_ref().and_then(|params| params.message.clone()),
        };
        self.input_requests.iter().flatten().map(asked).collect()
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
            let client = Client::new(self.url.clone(), HeaderMap::new(), true);
            let mut steps = Vec::new();
            let arguments = super::arguments(arguments).unwrap();
            let ending =
                client.call("tool", &arguments, &[], &mut |step| steps.push(format!("{step:?}"))).await;
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
        let asked = task(
            "input_required",
            r#","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"Who?"}}}"#,
        );
        for (last, expected) in [
            (failed, r#"Error(RawValue({"code":-32603,"message":"no"}))"#),
            (task("cancelled", ""), "Cancelled(Task { id: \"t1\", status: Cancelled"),
            (
                asked,
                r#"Asked { questions: [Asked { key: "who", method: "elicitation/create", message: Some("Who?") }], task: Some("#,
            ),
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

    #[tokio::test]
    async fn a_call_that_is_asked_something_or_refused_says_so() {
        let server = Script::new(&[
            (200, JSON, r#"{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}"#),
            (400, JSON, r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32021,"message":"no"}}"#),
            (502, "text/html", "<h1>Bad gateway</h1>"),
            (200, JSON, r#"{"jsonrpc":"2.0","id":99,"result":{}}"#),
            (200, JSON, "not JSON"),
        ])
        .await;
        let ending = server.call("{}").await.0.unwrap();
        assert!(
            matches!(ending, Ending::Asked { ref questions, task: None } if questions[0].method == "roots/list"),
            "{ending:?}"
        );
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
        let client = Client::new(server.url.clone(), HeaderMap::new(), false);
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
        let client = Client::new(url.clone(), HeaderMap::new(), true);
        let error = client.mirrored("x").await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{url} cannot be reached: ")), "{error}");
    }
}
