//! Emulated sessions of legacy clients (2025-03-26 to 2025-11-25), for a server without HTTP.
//!
//! Such a server has no HTTP requests and session ids, so requests of clients cannot be forwarded. They are
//! answered here as a server with Streamable HTTP would answer them: POST, GET and DELETE
//! ([`EmulatedSessions::serve`]). Code above [`HttpRelay::forward`](crate::upstream::HttpRelay::forward) sees
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

/// Emulated sessions of legacy clients with one server, by session id.
pub(super) struct EmulatedSessions<W: Transport> {
    server: Arc<ServerContext<W>>,
    sessions: DashMap<HeaderValue, Arc<EmulatedSession<W>>>,
    /// Permits for calls that continue after their clients disconnected.
    disconnected_permits: Arc<Semaphore>,
}

/// Returns the session pool for a client's identity.
type PoolLookup<'a, W> = &'a (dyn Fn(&CallerIdentity) -> Arc<SessionPool<W>> + Sync);

/// Reason why a request is not served.
enum ServeError {
    /// Response for the client.
    Refused(StatusCode, ErrorObject),
    /// The call failed.
    Lost(CallError),
}

/// Limit of messages in a JSON-RPC batch (2025-03-26).
const MAX_BATCH: usize = 100;

// === impl EmulatedSessions ===

impl<W: Transport> EmulatedSessions<W> {
    pub(super) fn new(server: Arc<ServerContext<W>>) -> Self {
        let permits = server.config.load().limits.departed.min(Semaphore::MAX_PERMITS);
        Self { server, sessions: DashMap::new(), disconnected_permits: Arc::new(Semaphore::new(permits)) }
    }

    /// Applies new limits after a reload.
    pub(super) fn set_limits(&self, limits: &UpstreamLimits) {
        resize_semaphore(
            &self.disconnected_permits,
            self.server.config.load().limits.departed,
            limits.departed,
        );
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
        let response = match request.method {
            Verb::POST => self.serve_post(request, pools).await,
            Verb::GET => self.serve_get(&request, pools),
            Verb::DELETE => self.serve_delete(&request),
            _ => Err(refusal(StatusCode::METHOD_NOT_ALLOWED, "only POST, GET and DELETE are served")),
        };
        match response {
            Ok(response) => Ok(response),
            Err(ServeError::Refused(status, error)) => {
                Ok(self.json_response(status, legacy::error_responses(&[], &error)))
            }
            Err(ServeError::Lost(lost)) => Err(lost),
        }
    }

    async fn serve_post(
        &self,
        request: HttpRequest,
        pools: PoolLookup<'_, W>,
    ) -> Result<HttpResponse, ServeError> {
        let messages = parse_messages(&request.body)?;
        if let [message] = &messages[..]
            && let Kind::Request { id, method: Method::Initialize, params } = message.kind()
        {
            return Ok(self.initialize(request.principal, id, params.as_ref(), pools).await?);
        }
        let session = self.find(request.principal, &request.headers)?;
        let pool = session.pool(pools);
        let is_batch = request.body.trim_ascii_start().starts_with(b"[");
        let accepts_events = accepts(&request.headers, EVENT_STREAM);
        let mut responses = Vec::new();
        for message in messages {
            responses.extend(self.receive(&session, &pool, message, &request, accepts_events).await?);
        }
        match responses.pop() {
            None => Ok(self.empty_response(StatusCode::ACCEPTED)),
            Some(response) if responses.is_empty() && !is_batch => {
                Ok(self.single_response(response, accepts_events).await?)
            }
            Some(last) => {
                responses.push(last);
                Ok(self.event_stream(EventStreamBody::new(responses)))
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
        accepts_events: bool,
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
            method if method.is_legacy_task_method() => {
                Err(ErrorObject::new(code::METHOD_NOT_FOUND, "the server has no tasks of its own"))
            }
            _ => return Ok(Some(self.begin_call(session, pool, &message, request, accepts_events))),
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
        accepts_events: bool,
    ) -> MessageResponse<W> {
        let Kind::Request { id, method, .. } = message.kind() else { unreachable!("it is a request") };
        let proxy_id = self.server.next_id();
        let (body, progress_token) = rewrite_ids::with_proxy_id(message, proxy_id);
        let call = CallRequest {
            id: proxy_id,
            method: method.clone(),
            body,
            headers: ExtraHeaders::default(),
            deferral: None,
            client: Some(session.client().clone()),
            timeout: request.timeout,
        };
        let call = EmulatedCall::new(session, CallExchange::native(pool.clone(), call), progress_token);
        let interest: Option<Arc<dyn ResponseInterest>> = request.interest.clone();
        MessageResponse::for_call(
            call,
            id.detached(),
            proxy_id,
            interest,
            (&self.server, &self.disconnected_permits),
            accepts_events,
        )
    }

    /// Returns the HTTP response to one request: JSON if no message precedes the JSON-RPC response, else an
    /// event stream.
    async fn single_response(
        &self,
        mut messages: MessageResponse<W>,
        accepts_events: bool,
    ) -> Result<HttpResponse, CallError> {
        match messages.next().await {
            Some(message) => {
                let message = message?;
                if messages.is_over() || !accepts_events {
                    return Ok(self.json_response(StatusCode::OK, message));
                }
                Ok(self.event_stream(EventStreamBody::with_first(message, messages)))
            }
            // The client cancelled the request.
            None => Ok(self.event_stream(EventStreamBody::<W>::new(Vec::new()))),
        }
    }

    fn serve_get(&self, request: &HttpRequest, pools: PoolLookup<'_, W>) -> Result<HttpResponse, ServeError> {
        let session = self.find(request.principal, &request.headers)?;
        if !accepts(&request.headers, EVENT_STREAM) {
            return Err(refusal(StatusCode::NOT_ACCEPTABLE, "a GET has to accept text/event-stream"));
        }
        Ok(self.event_stream(session.open_get_stream(session.pool(pools), &request.headers)))
    }

    /// Ends a session at the client's request (DELETE).
    fn serve_delete(&self, request: &HttpRequest) -> Result<HttpResponse, ServeError> {
        let session = self.find(request.principal, &request.headers)?;
        self.sessions.remove(&session.id);
        session.end();
        Ok(self.empty_response(StatusCode::OK))
    }

    /// Makes a call of a client's session that is a task, or may become one. It counts as a task. `None` if
    /// the session is unknown.
    pub(super) fn call_in(
        &self,
        session: &ClientSession,
        call: NativeCall,
        pools: PoolLookup<'_, W>,
    ) -> Option<EmulatedCall<W>> {
        let session = self.find(session.principal, &session.headers).ok()?;
        let NativeCall { id, method, body, .. } = call;
        let (body, token) = match Frame::parse(body.clone()) {
            Ok(message) => rewrite_ids::with_proxy_id(&message, id),
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
            client: Some(session.client().clone()),
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
        let min_rounds =
            self.server.config.load().timeouts.idle_session.as_secs().div_ceil(round.as_secs()) + 1;
        // Sessions are handed out under the lock of their shard, so one that only the table holds is unused.
        let evicted = self.evict(|session| u64::from(session.count_idle_round()) >= min_rounds);
        (0..evicted).for_each(|_| Limit::IdleSession.record_hit());
    }

    /// Ends the unused sessions for which `must_evict` returns `true`; returns how many.
    fn evict(&self, must_evict: impl Fn(&EmulatedSession<W>) -> bool) -> usize {
        let mut evicted = Vec::new();
        self.sessions.retain(|_, session| {
            let is_evicted = Arc::strong_count(session) == 1 && must_evict(session);
            if is_evicted {
                evicted.push(session.clone());
            }
            !is_evicted
        });
        evicted.iter().for_each(|session| session.end());
        evicted.len()
    }

    /// Ends all sessions.
    pub(super) fn close(&self) {
        self.sessions.iter().for_each(|session| session.end());
        self.sessions.clear();
    }

    /// Finds the session that the request names, if the principal owns it.
    fn find(&self, principal: Principal, headers: &HeaderMap) -> Result<Arc<EmulatedSession<W>>, ServeError> {
        let unnamed = "the request names no session (Mcp-Session-Id): begin one with initialize";
        let id = headers.get(&SESSION_ID).ok_or_else(|| refusal(StatusCode::BAD_REQUEST, unnamed))?;
        let session = self.sessions.get(id).map(|session| session.clone());
        // A session of another principal is treated as unknown.
        let session = session.filter(|session| session.principal == principal);
        let unknown = "the session is not known: open a new session with initialize";
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

    /// Returns whether one more session may be opened. At the limit, ends an eighth of the sessions, those
    /// idle the longest, in one pass, so that the search is rare.
    fn evict_for_session(&self) -> bool {
        let limit = self.server.config.load().limits.client_sessions;
        if self.sessions.len() < limit {
            return true;
        }
        let mut idle_rounds: Vec<_> =
            self.sessions.iter().map(|session| session.idle_rounds()).filter(|&rounds| rounds > 0).collect();
        idle_rounds.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&min_rounds) = idle_rounds.get((limit / 8).min(idle_rounds.len().saturating_sub(1))) {
            let evicted = self.evict(|session| session.idle_rounds() >= min_rounds);
            (0..evicted).for_each(|_| Limit::ClientSessions.record_hit());
        }
        self.sessions.len() < limit
    }
}

// === impl ServeError ===

impl From<CallError> for ServeError {
    fn from(lost: CallError) -> Self {
        Self::Lost(lost)
    }
}

/// Refusal with a JSON-RPC "invalid request" error.
fn refusal(status: StatusCode, text: &str) -> ServeError {
    ServeError::Refused(status, ErrorObject::new(code::INVALID_REQUEST, text))
}

/// Parses the messages of a POST.
fn parse_messages(body: &Bytes) -> Result<Vec<Frame>, ServeError> {
    let parse_refusal = |error: &FrameError| {
        let code = match error {
            FrameError::Syntax(_) => code::PARSE_ERROR,
            FrameError::Id
            | FrameError::Shape { .. }
            | FrameError::Member { .. }
            | FrameError::Depth { .. } => code::INVALID_REQUEST,
        };
        ServeError::Refused(StatusCode::BAD_REQUEST, ErrorObject::new(code, error.to_string()))
    };
    let messages = MessageReader::new(body.clone()).take(MAX_BATCH + 1).collect::<Result<Vec<_>, _>>();
    let messages = messages.map_err(|error| parse_refusal(&error))?;
    if messages.is_empty() || messages.len() > MAX_BATCH {
        let text = format!("a batch has at least one message, and {MAX_BATCH} at most");
        return Err(refusal(StatusCode::BAD_REQUEST, &text));
    }
    Ok(messages)
}
