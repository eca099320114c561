//! The server of `deferral demo`: legacy (2025-11-25), synchronous, with sessions.
//!
//! It is like a typical existing server and does not support tasks: the client of a slow tool waits on an
//! event stream for the result. It has three tools: `greet` responds at once; `report` is slow, sends
//! progress to clients that sent a progress token, and stops when it is cancelled; `book_table` sends an
//! input request before it continues (see `booking`).

use super::booking::{self, BookingCall};
use crate::{
    protocol::{Era, Frame, Kind, Method, RequestId, Revision, accept, code, headers, sse},
    runtime::{DrainWatch, Mutex, random},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Body as HttpBody, Frame as BodyFrame},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{collections::HashMap, convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::sync::CancellationToken;

/// The path of the MCP endpoint.
pub const PATH: &str = "/mcp";
/// Maximum bytes of the body of one request.
const MAX_BODY: usize = 1 << 20;
/// Maximum number of sessions; the server is only for demonstrations.
const MAX_SESSIONS: usize = 1_000;
/// Interval of the progress notifications of `report`.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Default duration of `report`, in seconds.
const DEFAULT_SECONDS: f64 = 8.0;
/// Maximum duration of a tool, in seconds.
const MAX_SECONDS: f64 = 3_600.0;

type DemoBody = BoxBody<Bytes, Infallible>;

/// The demo server and its sessions.
#[derive(Debug)]
pub(super) struct DemoServer {
    /// The sessions by id. Locked for a look-up or a change of the map and of the calls in it.
    sessions: Mutex<HashMap<String, DemoSession>>,
    stopping: DrainWatch,
}

/// One session: its active calls and its open input requests.
#[derive(Debug, Default)]
struct DemoSession {
    /// The active calls by the ids of their requests.
    calls: HashMap<RequestId, CancellationToken>,
    /// Whether the client supports elicitation by form.
    supports_elicitation: bool,
    /// The open input requests by their ids.
    pending_requests: HashMap<RequestId, oneshot::Sender<InputOutcome>>,
    /// The number of input requests sent so far, for their ids.
    elicitations: u64,
}

/// An input response: a result, or the text of an error.
pub(super) type InputOutcome = Result<Value, String>;

/// An active call, which is registered in its session until dropped.
pub(super) struct RunningCall {
    server: Arc<DemoServer>,
    session: String,
    id: RequestId,
    cancelled: CancellationToken,
    /// The id of the open input request of the call, if any.
    request: Option<RequestId>,
}

/// One call of the tool `report`.
struct ReportCall {
    running: RunningCall,
    /// The raw progress token, if the client sent one.
    token: Option<Box<RawValue>>,
    elapsed: Duration,
    total: Duration,
}

#[derive(Deserialize)]
struct ToolCallParams {
    name: String,
    #[serde(default)]
    arguments: Value,
    #[serde(rename = "_meta")]
    meta: Option<CallMeta>,
}

#[derive(Deserialize)]
struct CallMeta {
    #[serde(rename = "progressToken")]
    progress_token: Option<Box<RawValue>>,
}

/// Serves clients that connect to `listener`, until the shutdown.
pub async fn serve(listener: TcpListener, stopping: DrainWatch) {
    let server = DemoServer::new(stopping.clone());
    loop {
        let stream = tokio::select! {
            () = stopping.stopped() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // The usual cause is too many open files: wait until some are closed.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let server = Arc::clone(&server);
        let shutdown = stopping.clone();
        stopping.spawn(async move {
            let service = service_fn(move |request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, Infallible>(server.serve(request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection);
            tokio::select! {
                _ = &mut connection => return,
                () = shutdown.stopped() => connection.as_mut().graceful_shutdown(),
            }
            // An error of a connection concerns only its client, and is ignored.
            let _ = connection.await;
        });
    }
}

// === impl DemoServer ===

impl DemoServer {
    fn new(stopping: DrainWatch) -> Arc<Self> {
        Arc::new(Self { sessions: Mutex::default(), stopping })
    }

    async fn serve<B>(self: &Arc<Self>, request: Request<B>) -> Response<DemoBody>
    where
        B: HttpBody<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        if request.uri().path() != PATH {
            return refuse(StatusCode::NOT_FOUND, format!("not found; the MCP endpoint is {PATH}"));
        }
        let (parts, body) = request.into_parts();
        match parts.method {
            http::Method::POST => {}
            http::Method::DELETE => return self.end_session(&parts.headers),
            // There is no GET stream (2025-11-25, *Listening for Messages*).
            _ => {
                let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "use POST or DELETE");
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, DELETE"));
                return response;
            }
        }
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large, or was cut off");
        };
        match Frame::parse(body.to_bytes()) {
            Ok(frame) => self.handle_message(&parts.headers, &frame),
            Err(error) => refuse(StatusCode::BAD_REQUEST, error.to_string()),
        }
    }

    /// Handles one message of a client.
    fn handle_message(self: &Arc<Self>, headers: &HeaderMap, frame: &Frame) -> Response<DemoBody> {
        if let Kind::Request { id, method: Method::Initialize, params } = frame.kind() {
            return self.initialize(id, params.as_deref());
        }
        let Some(session) = headers.get(&headers::SESSION_ID).and_then(|value| value.to_str().ok()) else {
            return refuse(StatusCode::BAD_REQUEST, "no Mcp-Session-Id; send initialize first");
        };
        if !self.sessions.lock().contains_key(session) {
            return refuse(StatusCode::NOT_FOUND, "no such session; send initialize first");
        }
        match frame.kind() {
            Kind::Request { id, method, params } => match method {
                Method::Ping => result_response(id, &json!({})),
                Method::ToolsList => result_response(id, &tools()),
                Method::ToolsCall => self.call_tool(session, id, params.as_deref()),
                _ => error_response(id, code::METHOD_NOT_FOUND, &format!("unknown method {method}")),
            },
            Kind::Notification { method, params } => {
                if *method == Method::Cancelled {
                    self.handle_cancellation(session, params.as_deref());
                }
                empty_response(StatusCode::ACCEPTED)
            }
            Kind::Success { id, result } => {
                self.handle_response(
                    session,
                    id,
                    serde_json::from_slice(result).map_err(|error| error.to_string()),
                );
                empty_response(StatusCode::ACCEPTED)
            }
            Kind::Failure { id, error } => {
                if let Some(id) = id {
                    self.handle_response(session, id, Err(String::from_utf8_lossy(error).into_owned()));
                }
                empty_response(StatusCode::ACCEPTED)
            }
        }
    }

    fn initialize(&self, id: &RequestId, params: Option<&Bytes>) -> Response<DemoBody> {
        #[derive(Deserialize)]
        struct InitializeParams {
            #[serde(rename = "protocolVersion")]
            version: String,
            #[serde(default)]
            capabilities: Value,
        }
        let requested = params.and_then(|params| serde_json::from_slice::<InitializeParams>(params).ok());
        let supports_elicitation = requested.as_ref().is_some_and(|params| {
            let modes = params.capabilities["elicitation"].as_object();
            modes.is_some_and(|modes| modes.is_empty() || modes.contains_key("form"))
        });
        let version = requested
            .and_then(|params| Revision::parse(&params.version))
            .filter(|version| version.era() == Era::Legacy && *version >= Revision::V2025_03_26)
            .unwrap_or(Revision::NEWEST_LEGACY);
        let session: String = random::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.sessions.lock();
        if sessions.len() >= MAX_SESSIONS {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many sessions");
        }
        sessions.insert(session.clone(), DemoSession { supports_elicitation, ..DemoSession::default() });
        let mut response = result_response(
            id,
            &json!({
                "protocolVersion": version.as_str(),
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "deferral-demo", "version": env!("CARGO_PKG_VERSION") },
                "instructions": "greet responds at once, report is slow, book_table requests a date and a number of people.",
            }),
        );
        let session = HeaderValue::from_str(&session).expect("hexadecimal digits are fine");
        response.headers_mut().insert(headers::SESSION_ID.clone(), session);
        response
    }

    fn end_session(&self, headers: &HeaderMap) -> Response<DemoBody> {
        let session = headers.get(&headers::SESSION_ID).and_then(|value| value.to_str().ok());
        match session.and_then(|session| self.sessions.lock().remove(session)) {
            Some(DemoSession { calls, .. }) => {
                calls.values().for_each(CancellationToken::cancel);
                empty_response(StatusCode::OK)
            }
            None => refuse(StatusCode::NOT_FOUND, "no such session"),
        }
    }

    /// Handles a cancellation: stops the call that it names.
    fn handle_cancellation(&self, session: &str, params: Option<&Bytes>) {
        #[derive(Deserialize)]
        struct CancelledParams {
            #[serde(rename = "requestId")]
            request: Box<RawValue>,
        }
        let Some(params) = params.and_then(|params| serde_json::from_slice::<CancelledParams>(params).ok())
        else {
            return;
        };
        let Some(id) = RequestId::from_token(Bytes::from(params.request.get().to_owned())) else { return };
        if let Some(call) = self.sessions.lock().get(session).and_then(|session| session.calls.get(&id)) {
            call.cancel();
        }
    }

    /// Passes an input response to the call that waits for it.
    fn handle_response(&self, session: &str, id: &RequestId, response: InputOutcome) {
        let sender =
            self.sessions.lock().get_mut(session).and_then(|session| session.pending_requests.remove(id));
        // The call may have ended, so a failure to send is ignored.
        sender.map(|sender| sender.send(response));
    }

    fn call_tool(
        self: &Arc<Self>,
        session: &str,
        id: &RequestId,
        params: Option<&Bytes>,
    ) -> Response<DemoBody> {
        let params = match params.map(|params| serde_json::from_slice::<ToolCallParams>(params)) {
            Some(Ok(params)) => params,
            Some(Err(invalid)) => return error_response(id, code::INVALID_PARAMS, &invalid.to_string()),
            None => return error_response(id, code::INVALID_PARAMS, "no params"),
        };
        match params.name.as_str() {
            "greet" => match params.arguments["name"].as_str() {
                Some(name) => result_response(id, &tool_result(&format!("Hello, {name}!"), false)),
                None => result_response(id, &tool_result("name must be a string", true)),
            },
            "report" => {
                let seconds = match &params.arguments["seconds"] {
                    Value::Null => Some(DEFAULT_SECONDS),
                    seconds => seconds.as_f64().filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds)),
                };
                let Some(seconds) = seconds else {
                    return result_response(
                        id,
                        &tool_result("seconds must be a number from 0 to 3600", true),
                    );
                };
                let token = params.meta.and_then(|meta| meta.progress_token);
                let (running, total) = (self.begin_call(session, id), Duration::from_secs_f64(seconds));
                stream_events(ReportCall { running, token, elapsed: Duration::ZERO, total }, ReportCall::next)
            }
            booking::TOOL_NAME => {
                let seconds = params.arguments["seconds"].as_f64().unwrap_or_default();
                if !(0.0..=MAX_SECONDS).contains(&seconds) {
                    return result_response(
                        id,
                        &tool_result("seconds must be a number from 0 to 3600", true),
                    );
                }
                let booking =
                    BookingCall::begin(self.begin_call(session, id), Duration::from_secs_f64(seconds));
                stream_events(booking, BookingCall::next)
            }
            other => error_response(id, code::INVALID_PARAMS, &format!("unknown tool {other}")),
        }
    }

    /// Registers an active call in its session.
    fn begin_call(self: &Arc<Self>, session: &str, id: &RequestId) -> RunningCall {
        let cancelled = CancellationToken::new();
        if let Some(session) = self.sessions.lock().get_mut(session) {
            session.calls.insert(id.clone(), cancelled.clone());
        }
        RunningCall {
            server: Arc::clone(self),
            session: session.to_owned(),
            id: id.clone(),
            cancelled,
            request: None,
        }
    }
}

// === impl RunningCall ===

impl RunningCall {
    /// Resolves when the call is cancelled or the server shuts down.
    pub(super) async fn stopped(&self) {
        tokio::select! {
            () = self.cancelled.cancelled() => {}
            () = self.server.stopping.stopped() => {}
        }
    }

    /// Creates an input request. Returns the event with the request, and the channel of the response; `None`
    /// if the client does not support elicitation.
    pub(super) fn elicit(&mut self, params: &Value) -> Option<(Bytes, oneshot::Receiver<InputOutcome>)> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut sessions = self.server.sessions.lock();
            let session = sessions.get_mut(&self.session).filter(|session| session.supports_elicitation)?;
            session.elicitations += 1;
            let raw_id = format!("\"question-{}\"", session.elicitations);
            let id = RequestId::from_token(raw_id.into()).expect("a text is an id");
            session.pending_requests.insert(id.clone(), sender);
            id
        };
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{}","params":{params}}}"#,
            Method::Elicit.as_str()
        );
        self.request = Some(id);
        Some((sse::message(request.as_bytes()), receiver))
    }

    /// The event with the response, which ends the call.
    pub(super) fn response_event(&self, text: &str, is_error: bool) -> Bytes {
        let result = tool_result(text, is_error);
        let response = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id);
        sse::message(response.as_bytes())
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        if let Some(session) = self.server.sessions.lock().get_mut(&self.session) {
            session.calls.remove(&self.id);
            self.request.as_ref().and_then(|request| session.pending_requests.remove(request));
        }
    }
}

// === impl ReportCall ===

impl ReportCall {
    /// Returns the next event, and the call if more events follow: progress, or the response, which is the
    /// last. A cancelled call has no response (2025-11-25, *Cancellation*).
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        while self.elapsed < self.total {
            let step = PROGRESS_INTERVAL.min(self.total - self.elapsed);
            tokio::select! {
                () = self.running.stopped() => return None,
                () = tokio::time::sleep(step) => self.elapsed += step,
            }
            if let Some(token) = self.token.as_ref().filter(|_| self.elapsed < self.total) {
                return Some((self.progress(token), Some(self)));
            }
        }
        let seconds = self.total.as_secs_f64();
        let text = format!("The report is done. It took {seconds} s.");
        Some((self.running.response_event(&text, false), None))
    }

    fn progress(&self, token: &RawValue) -> Bytes {
        let (done, total) = (self.elapsed.as_secs_f64(), self.total.as_secs_f64());
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{done},"total":{total},"message":"writing the report"}}}}"#
        );
        sse::message(message.as_bytes())
    }
}

fn tools() -> Value {
    json!({ "tools": [
        {
            "name": "greet",
            "description": "Greets a person, at once.",
            "inputSchema": {
                "type": "object",
                "properties": { "name": { "type": "string" } },
                "required": ["name"],
            },
            "annotations": { "readOnlyHint": true },
        },
        {
            "name": "report",
            "description": "Writes a report, slowly.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "seconds": { "type": "number", "minimum": 0, "maximum": MAX_SECONDS, "default": DEFAULT_SECONDS },
                },
            },
            "annotations": { "readOnlyHint": true },
        },
        {
            "name": booking::TOOL_NAME,
            "description": "Books a table; requests a date and a number of people.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "seconds": {
                        "description": "Seconds to look for free tables before requesting input.",
                        "type": "number", "minimum": 0, "maximum": MAX_SECONDS, "default": 0,
                    },
                },
            },
        },
    ] })
}

/// Builds a tool result with one text.
fn tool_result(text: &str, is_error: bool) -> Value {
    let mut result = json!({ "content": [{ "type": "text", "text": text }] });
    if is_error {
        result["isError"] = true.into();
    }
    result
}

fn result_response(id: &RequestId, result: &Value) -> Response<DemoBody> {
    json_response(StatusCode::OK, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

fn error_response(id: &RequestId, code: i64, message: &str) -> Response<DemoBody> {
    let error = json!({ "code": code, "message": message });
    json_response(StatusCode::OK, format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
}

/// Builds an HTTP error response for a message that was not processed.
fn refuse(status: StatusCode, message: impl Into<String>) -> Response<DemoBody> {
    let error = json!({ "code": code::INVALID_REQUEST, "message": message.into() });
    json_response(status, format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#))
}

fn json_response(status: StatusCode, json: String) -> Response<DemoBody> {
    let mut response = Response::new(Full::new(Bytes::from(json)).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(accept::JSON));
    response
}

fn empty_response(status: StatusCode) -> Response<DemoBody> {
    let mut response = Response::new(Full::default().boxed());
    *response.status_mut() = status;
    response
}

/// Builds a response that streams the events of a call: `next` returns one event, and the call if more
/// follow.
fn stream_events<C, N>(call: C, next: fn(C) -> N) -> Response<DemoBody>
where
    C: Send + Sync + 'static,
    N: Future<Output = Option<(Bytes, Option<C>)>> + Send + Sync + 'static,
{
    let events = stream::unfold(Some(call), move |call| async move { next(call?).await });
    let frames = events.map(|event| Ok(BodyFrame::data(event)));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(accept::EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Drain;

    struct World {
        server: Arc<DemoServer>,
        drain: Drain,
        session: String,
    }

    impl World {
        async fn new() -> Self {
            let (drain, stopping) = Drain::new();
            let server = DemoServer::new(stopping);
            let response = post(
                &server,
                None,
                r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
            )
            .await;
            let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
            assert!(read(response).await.contains(r#""protocolVersion":"2025-06-18""#));
            Self { server, drain, session }
        }

        async fn post(&self, body: &str) -> Response<DemoBody> {
            post(&self.server, Some(&self.session), body).await
        }
    }

    async fn post(server: &Arc<DemoServer>, session: Option<&str>, body: &str) -> Response<DemoBody> {
        let mut request = Request::post(PATH);
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        server.serve(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await
    }

    async fn read(response: Response<DemoBody>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_sends_progress_to_clients_with_a_token_and_then_ends() {
        let world = World::new().await;
        let call = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"report","arguments":{"seconds":1.2},"_meta":{"progressToken":7}}}"#;
        let text = read(world.post(call).await).await;
        let events: Vec<_> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 3, "{text}");
        assert!(events[0].contains(r#""progressToken":7,"progress":0.5,"total":1.2"#), "{text}");
        assert!(events[2].contains(r#""id":"a""#) && events[2].contains("It took 1.2 s."), "{text}");
        assert!(world.server.sessions.lock()[&world.session].calls.is_empty());
        let quiet = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"report"}}"#;
        assert_eq!(read(world.post(quiet).await).await.matches("data:").count(), 1);
    }

    /// A session whose client supports elicitation.
    async fn world_with_elicitation() -> World {
        let world = World::new().await;
        let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}"#;
        let response = post(&world.server, None, initialize).await;
        let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        World { session, ..world }
    }

    const BOOK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"book_table","arguments":{"seconds":2}}}"#;

    /// The next message on an event stream.
    async fn next(body: &mut DemoBody) -> Option<Value> {
        let event = body.frame().await?.unwrap().into_data().unwrap();
        let text = String::from_utf8(event.to_vec()).unwrap();
        Some(serde_json::from_str(text.trim().strip_prefix("data: ").unwrap()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_is_booked_after_the_input_response() {
        let world = world_with_elicitation().await;
        let mut stream = world.post(BOOK).await.into_body();
        let question = next(&mut stream).await.unwrap();
        assert_eq!(question["method"], "elicitation/create");
        let answer = json!({
            "jsonrpc": "2.0", "id": question["id"],
            "result": { "action": "accept", "content": { "date": "2026-08-01", "party": 4 } },
        });
        assert_eq!(world.post(&answer.to_string()).await.status(), StatusCode::ACCEPTED);
        let result = next(&mut stream).await.unwrap();
        assert_eq!(result["result"]["content"][0]["text"], "A table for 4 on 2026-08-01 is yours.");
        assert!(next(&mut stream).await.is_none());
        drop(stream);
        let sessions = world.server.sessions.lock();
        let session = &sessions[&world.session];
        assert!(session.calls.is_empty() && session.pending_requests.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_refuses_or_does_not_support_elicitation_gets_an_error_result() {
        let world = world_with_elicitation().await;
        let mut stream = world.post(BOOK).await.into_body();
        let question = next(&mut stream).await.unwrap();
        let error =
            json!({ "jsonrpc": "2.0", "id": question["id"], "error": { "code": -32601, "message": "no" } });
        world.post(&error.to_string()).await;
        assert_eq!(next(&mut stream).await.unwrap()["result"]["isError"], true);
        let other = World::new().await;
        assert!(read(other.post(BOOK).await).await.contains("does not support elicitation"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_booking_removes_its_input_request() {
        let world = world_with_elicitation().await;
        let mut stream = world.post(BOOK).await.into_body();
        let question = next(&mut stream).await.unwrap();
        world.post(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#).await;
        assert!(next(&mut stream).await.is_none());
        drop(stream);
        assert!(world.server.sessions.lock()[&world.session].pending_requests.is_empty());
        let late = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "cancel" } });
        assert_eq!(world.post(&late.to_string()).await.status(), StatusCode::ACCEPTED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_report_has_no_response_and_others_go_on() {
        let world = World::new().await;
        let call = |id| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"report"}}}}"#)
        };
        let (one, two) = (world.post(&call(1)).await, world.post(&call(2)).await);
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        assert_eq!(world.post(cancel).await.status(), StatusCode::ACCEPTED);
        assert_eq!(read(one).await, "");
        assert!(read(two).await.contains("The report is done."));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_active_calls() {
        let world = World::new().await;
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"report"}}"#;
        let response = world.post(call).await;
        let (lost, text) = tokio::join!(world.drain.stop(Duration::from_secs(1)), read(response));
        assert_eq!((lost, &*text), (0, ""));
    }

    #[tokio::test]
    async fn without_its_session_nothing_is_served() {
        let world = World::new().await;
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert_eq!(post(&world.server, None, list).await.status(), StatusCode::BAD_REQUEST);
        assert_eq!(post(&world.server, Some("x"), list).await.status(), StatusCode::NOT_FOUND);
        assert!(read(world.post(list).await).await.contains(r#""name":"report""#));
        let delete =
            Request::delete(PATH).header("mcp-session-id", &world.session).body(Full::<Bytes>::default());
        assert_eq!(world.server.serve(delete.unwrap()).await.status(), StatusCode::OK);
        assert_eq!(world.post(list).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn mistakes_are_answered_as_what_they_are() {
        let world = World::new().await;
        for (call, part) in [
            (r#"{"id":1,"method":"tools/call","params":{"name":"x"}}"#, "-32602"),
            (r#"{"id":1,"method":"tools/call"}"#, "-32602"),
            (r#"{"id":1,"method":"server/discover"}"#, "-32601"),
            (r#"{"id":1,"method":"tools/call","params":{"name":"greet"}}"#, r#""isError":true"#),
            (
                r#"{"id":1,"method":"tools/call","params":{"name":"report","arguments":{"seconds":-1}}}"#,
                r#""isError":true"#,
            ),
            (
                r#"{"id":1,"method":"tools/call","params":{"name":"greet","arguments":{"name":"Ada"}}}"#,
                "Hello, Ada!",
            ),
            ("{", "-32600"),
        ] {
            let text = read(world.post(call).await).await;
            assert!(text.contains(part), "{call}: {text}");
        }
        let get = Request::get(PATH).body(Full::<Bytes>::default()).unwrap();
        assert_eq!(world.server.serve(get).await.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
