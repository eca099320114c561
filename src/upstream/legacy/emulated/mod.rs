//! Emulated sessions of legacy clients (2025-03-26 to 2025-11-25), for a server without HTTP.
//!
//! Such a server has no HTTP requests and session ids, so requests of clients cannot be forwarded. They are
//! answered here as a server with Streamable HTTP would answer them: POST, GET and DELETE
//! ([`EmulatedSessions::serve`]). Code above [`Upstream::forward`](crate::upstream::Upstream::forward) sees
//! no difference.
//!
//! The client's session is kept here (`session`); its calls are made in pooled sessions, shared with clients
//! that declare the same (`call`; `pool` beside this folder selects the session, `attribution` the call of a
//! request). The client sees its own ids and progress tokens, the server the proxy's (`rewrite_ids`).
//! `response` answers a POST, `stream` is the GET stream, `initialize` the handshake.
//!
//! A session outlives its process: the next call starts another with the client's capabilities, and
//! subscriptions are made again. Begin with [`EmulatedSessions::serve`].

mod call;
mod initialize;
mod response;
mod rewrite_ids;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode, header};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

use super::{exchange::CallExchange, pool::SessionPool, request::CallRequest, server::ServerContext};
use crate::{
    dialect::{ExtraHeaders, Principal, legacy},
    protocol::{
        ErrorObject, Frame, FrameError, Kind, MessageReader, Method, RequestId,
        accept::{EVENT_STREAM, JSON, accepts},
        code,
        headers::SESSION_ID,
    },
    runtime::resize_semaphore,
    telemetry::Limit,
    upstream::{
        CallError, CallerIdentity, ClientSession, Deferral, NativeCall, UpstreamLimits,
        forward::{HttpRequest, HttpResponse, HttpResponseBody, ResponseInterest},
        transport::Transport,
    },
};
use response::{EventStreamBody, JsonBody, MessageResponse};
use session::EmulatedSession;

pub(super) use call::EmulatedCall;

/// Emulated sessions with one server.
pub(super) struct EmulatedSessions<W: Transport> {
    server: Arc<ServerContext<W>>,
    table: DashMap<HeaderValue, Arc<EmulatedSession<W>>>,
    /// Permits for calls that continue after their client disconnected.
    departed: Arc<Semaphore>,
}

/// Finds the session pool for the capabilities of a client.
type PoolLookup<'a, W> = &'a (dyn Fn(&CallerIdentity) -> Arc<SessionPool<W>> + Sync);

/// Reason why a request is not served.
enum ServeError {
    /// Response for the client.
    Refused(StatusCode, ErrorObject),
    Lost(CallError),
}

/// Limit of messages in a batch (2025-03-26).
const BATCH: usize = 100;

// === impl EmulatedSessions ===

impl<W: Transport> EmulatedSessions<W> {
    pub(super) fn new(server: Arc<ServerContext<W>>) -> Self {
        let departed = server.config.load().limits.departed.min(Semaphore::MAX_PERMITS);
        Self { server, table: DashMap::new(), departed: Arc::new(Semaphore::new(departed)) }
    }

    /// Applies other limits.
    pub(super) fn set_limits(&self, limits: &UpstreamLimits) {
        resize_semaphore(&self.departed, self.server.config.load().limits.departed, limits.departed);
    }

    /// Answers one HTTP request of a client.
    ///
    /// # Errors
    /// The error of its only call, if no message preceded it, or of a server's start.
    pub(super) async fn serve(
        &self,
        request: HttpRequest,
        pools: PoolLookup<'_, W>,
    ) -> Result<HttpResponse, CallError> {
        if self.server.work.is_closing() {
            return Err(CallError::Closing);
        }
        let answer = match request.method {
            Verb::POST => self.post(request, pools).await,
            Verb::GET => self.listen(&request, pools),
            Verb::DELETE => self.end_session(&request),
            _ => Err(refusal(StatusCode::METHOD_NOT_ALLOWED, "only POST, GET and DELETE are served")),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(ServeError::Refused(status, error)) => {
                Ok(self.json_response(status, legacy::error_responses(&[], &error)))
            }
            Err(ServeError::Lost(lost)) => Err(lost),
        }
    }

    async fn post(&self, request: HttpRequest, pools: PoolLookup<'_, W>) -> Result<HttpResponse, ServeError> {
        let messages = parse_messages(&request.body)?;
        if let [message] = &messages[..]
            && let Kind::Request { id, method: Method::Initialize, params } = message.kind()
        {
            return Ok(self.initialize(request.principal, id, params.as_ref(), pools).await?);
        }
        let session = self.find(request.principal, &request.headers)?;
        let pool = session.pool(pools);
        let is_batch = request.body.trim_ascii_start().starts_with(b"[");
        let takes_events = accepts(&request.headers, EVENT_STREAM);
        let mut answers = Vec::new();
        for message in messages {
            answers.extend(self.receive(&session, &pool, message, &request, takes_events).await?);
        }
        match answers.pop() {
            None => Ok(self.empty_response(StatusCode::ACCEPTED)),
            Some(answer) if answers.is_empty() && !is_batch => {
                Ok(self.single_response(answer, takes_events).await?)
            }
            Some(last) => {
                answers.push(last);
                Ok(self.event_stream(EventStreamBody::of(answers)))
            }
        }
    }

    /// Handles one message of a client; returns the response of a request.
    async fn receive(
        &self,
        session: &Arc<EmulatedSession<W>>,
        pool: &Arc<SessionPool<W>>,
        message: Frame,
        request: &HttpRequest,
        takes_events: bool,
    ) -> Result<Option<MessageResponse<W>>, CallError> {
        let (id, method, params) = match message.kind() {
            Kind::Request { id, method, params } => (id, method, params.as_ref()),
            Kind::Notification { method, params } => {
                session.receive_notification(pool, method, params.as_ref(), &message);
                return Ok(None);
            }
            Kind::Success { id, result } => {
                session.receive_response(id, Ok(Bytes::clone(result)));
                return Ok(None);
            }
            Kind::Failure { id, error } => {
                id.iter().for_each(|id| session.receive_response(id, Err(error.clone())));
                return Ok(None);
            }
        };
        let outcome = match method {
            Method::Ping => Ok(()),
            Method::SetLevel => session.set_level(pool, params),
            Method::ResourcesSubscribe => session.subscribe(pool, params).await?,
            Method::ResourcesUnsubscribe => session.unsubscribe(params),
            Method::Initialize => {
                Err(ErrorObject::new(code::INVALID_REQUEST, "the session has been initialized"))
            }
            // None exist: tasks of a server that clients share would be accessible to all of them.
            method if method.is_about_legacy_tasks() => {
                Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server has no tasks of its own"))
            }
            _ => return Ok(Some(self.begin_call(session, pool, &message, request, takes_events))),
        };
        let response = match outcome {
            Ok(()) => legacy::success_response(id, b"{}"),
            Err(error) => legacy::error_responses(std::slice::from_ref(id), &error),
        };
        Ok(Some(MessageResponse::ready(response)))
    }

    fn begin_call(
        &self,
        session: &Arc<EmulatedSession<W>>,
        pool: &Arc<SessionPool<W>>,
        message: &Frame,
        request: &HttpRequest,
        takes_events: bool,
    ) -> MessageResponse<W> {
        let Kind::Request { id, method, .. } = message.kind() else { unreachable!("it is a request") };
        let number = self.server.next_id();
        let (body, token) = rewrite_ids::client_request(message, number);
        let call = CallRequest {
            id: number,
            method: method.clone(),
            body,
            headers: ExtraHeaders::default(),
            deferral: None,
            timeout: request.timeout,
        };
        let call = EmulatedCall::new(session, CallExchange::native(pool.clone(), call), token);
        let interest: Option<Arc<dyn ResponseInterest>> = request.interest.clone();
        MessageResponse::for_call(
            call,
            id.detached(),
            number,
            interest,
            (&self.server, &self.departed),
            takes_events,
        )
    }

    /// Answer to one request: its response, if no message precedes it, else an event stream.
    async fn single_response(
        &self,
        mut answering: MessageResponse<W>,
        takes_events: bool,
    ) -> Result<HttpResponse, CallError> {
        match answering.next().await {
            Some(message) => {
                let message = message?;
                if answering.is_over() || !takes_events {
                    return Ok(self.json_response(StatusCode::OK, message));
                }
                Ok(self.event_stream(EventStreamBody::begun(message, answering)))
            }
            // The client cancelled the request.
            None => Ok(self.event_stream(EventStreamBody::<W>::of(Vec::new()))),
        }
    }

    fn listen(&self, request: &HttpRequest, pools: PoolLookup<'_, W>) -> Result<HttpResponse, ServeError> {
        let session = self.find(request.principal, &request.headers)?;
        if !accepts(&request.headers, EVENT_STREAM) {
            return Err(refusal(StatusCode::NOT_ACCEPTABLE, "a GET has to accept text/event-stream"));
        }
        Ok(self.event_stream(session.listen(session.pool(pools), &request.headers)))
    }

    /// Ends a session at the client's request.
    fn end_session(&self, request: &HttpRequest) -> Result<HttpResponse, ServeError> {
        let session = self.find(request.principal, &request.headers)?;
        self.table.remove(&session.id);
        session.end();
        Ok(self.empty_response(StatusCode::OK))
    }

    /// A call in a client's session that is a task, or may become one. It counts as a task.
    pub(super) fn call_in(
        &self,
        session: &ClientSession,
        call: NativeCall,
        pools: PoolLookup<'_, W>,
    ) -> Option<EmulatedCall<W>> {
        let session = self.find(session.principal, &session.headers).ok()?;
        let NativeCall { id, method, body, .. } = call;
        let (body, token) = match Frame::parse(body.clone()) {
            Ok(message) => rewrite_ids::client_request(&message, id),
            Err(_) => (body, None),
        };
        let deferral = Deferral::default();
        deferral.mark_deferred();
        let request = CallRequest {
            id,
            method,
            body,
            headers: ExtraHeaders::default(),
            deferral: Some(deferral),
            timeout: None,
        };
        Some(EmulatedCall::new(&session, CallExchange::native(session.pool(pools), request), token))
    }

    /// Cancels these calls of a client.
    pub(super) fn cancel_in(&self, session: &ClientSession, calls: &[RequestId]) {
        if let Ok(session) = self.find(session.principal, &session.headers) {
            calls.iter().for_each(|call| session.cancel(call));
        }
    }

    /// Ends sessions without calls or GET stream for `timeouts.idle_session`. Called once a `round`.
    pub(super) fn sweep(&self, round: Duration) {
        // The first round is counted before it has passed completely.
        let enough = self.server.config.load().timeouts.idle_session.as_secs().div_ceil(round.as_secs()) + 1;
        // Sessions are handed out under the lock of their shard, so one that only the table holds is unused.
        let gone = self.evict(|session| u64::from(session.count_idle_round()) >= enough);
        (0..gone).for_each(|_| Limit::IdleSession.record_hit());
    }

    /// Ends the unused sessions that match; returns how many.
    fn evict(&self, is_evicted: impl Fn(&EmulatedSession<W>) -> bool) -> usize {
        let mut gone = Vec::new();
        self.table.retain(|_, session| {
            let is_evicted = Arc::strong_count(session) == 1 && is_evicted(session);
            if is_evicted {
                gone.push(session.clone());
            }
            !is_evicted
        });
        gone.iter().for_each(|session| session.end());
        gone.len()
    }

    pub(super) fn close(&self) {
        self.table.iter().for_each(|session| session.end());
        self.table.clear();
    }

    fn find(&self, principal: Principal, headers: &HeaderMap) -> Result<Arc<EmulatedSession<W>>, ServeError> {
        let unnamed = "the request names no session (Mcp-Session-Id): begin one with initialize";
        let id = headers.get(&SESSION_ID).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, unnamed))?;
        let session = self.table.get(id).map(|session| session.clone());
        // A session of another principal is treated as unknown.
        let session = session.filter(|session| session.principal == principal);
        let unknown = "the session is not known: begin another with initialize";
        let session = session.ok_or_else(|| refusal(StatusCode::NOT_FOUND, unknown))?;
        session.mark_used();
        Ok(session)
    }

    fn json_response(&self, status: StatusCode, body: Bytes) -> HttpResponse {
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static(JSON)),
            (header::CONTENT_LENGTH, body.len().into()),
        ]);
        self.http_response(status, headers, HttpResponseBody::Generated(Box::new(JsonBody(Some(body)))))
    }

    fn empty_response(&self, status: StatusCode) -> HttpResponse {
        self.http_response(status, HeaderMap::new(), HttpResponseBody::Generated(Box::new(JsonBody(None))))
    }

    fn event_stream(&self, body: impl crate::upstream::forward::StreamedBody + 'static) -> HttpResponse {
        let headers = HeaderMap::from_iter([
            (header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ]);
        self.http_response(StatusCode::OK, headers, HttpResponseBody::Generated(Box::new(body)))
    }

    fn http_response(&self, status: StatusCode, headers: HeaderMap, body: HttpResponseBody) -> HttpResponse {
        HttpResponse { status, headers, body, limit: self.server.config.load().limits.result_bytes }
    }

    /// Makes room for one more session. At the limit, an eighth of the sessions, the longest idle, ends at
    /// once, so that the search is rare.
    fn make_room(&self) -> bool {
        let limit = self.server.config.load().limits.client_sessions;
        if self.table.len() < limit {
            return true;
        }
        let mut quiet: Vec<_> =
            self.table.iter().map(|session| session.idle_rounds()).filter(|&rounds| rounds > 0).collect();
        quiet.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&enough) = quiet.get((limit / 8).min(quiet.len().saturating_sub(1))) {
            let gone = self.evict(|session| session.idle_rounds() >= enough);
            (0..gone).for_each(|_| Limit::ClientSessions.record_hit());
        }
        self.table.len() < limit
    }
}

// === impl ServeError ===

impl From<CallError> for ServeError {
    fn from(lost: CallError) -> Self {
        Self::Lost(lost)
    }
}

fn refusal(status: StatusCode, text: &str) -> ServeError {
    ServeError::Refused(status, ErrorObject::new(code::INVALID_REQUEST, text))
}

/// Parses the messages of a POST.
fn parse_messages(body: &Bytes) -> Result<Vec<Frame>, ServeError> {
    let unread = |error: &FrameError| {
        let code = match error {
            FrameError::Syntax(_) => code::PARSE_ERROR,
            FrameError::Id
            | FrameError::Shape { .. }
            | FrameError::Member { .. }
            | FrameError::Depth { .. } => code::INVALID_REQUEST,
        };
        ServeError::Refused(StatusCode::BAD_REQUEST, ErrorObject::new(code, error.to_string()))
    };
    let messages = MessageReader::of(body.clone()).take(BATCH + 1).collect::<Result<Vec<_>, _>>();
    let messages = messages.map_err(|error| unread(&error))?;
    if messages.is_empty() || messages.len() > BATCH {
        let text = format!("a batch has at least one message, and {BATCH} at most");
        return Err(refusal(StatusCode::BAD_REQUEST, &text));
    }
    Ok(messages)
}
