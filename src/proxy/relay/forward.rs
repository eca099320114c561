//! A legacy client's request on its way to a legacy server, and the beginning of the response.
//!
//! Bytes are relayed as they arrive. The proxy adds error responses where a client would otherwise wait for
//! ever: `forwarded_request` if the server gives no response, `response` if an event stream ends without the
//! response.
//!
//! A server may be silent until it is done, and then respond with JSON. The proxy waits as long as a client
//! can be expected to wait in silence; then, if the client accepts event streams, the proxy begins an event
//! stream, and the server's response follows on that stream (`deferred_head`). Only calls get an early
//! response: the response to a handshake, a list or a notification may be a status.

use super::{
    deferred_head::{self, UpstreamBody},
    forwarded_request::{ForwardedRequest, outcome_of_status, transport_error},
    requester::Requester,
    response::{EditedStream, RelayedResponse, ResponseEdit, StreamEdits},
    session_stream::SessionStream,
};
use crate::{
    bridge::{ResponseRelay, deny, offer},
    dialect::legacy::{ClientMessage, LegacyPost, ResponseTracker},
    policy::{KeepAliveTimer, Route, keep_alive::ResponseStart},
    protocol::{
        self, Frame, ProgressHeartbeat, RequestId,
        accept::{EVENT_STREAM, accepts},
        headers::{LAST_EVENT_ID, SESSION_ID},
        sse::ResponseEditor,
    },
    proxy::{
        KeepAlive, LegacyRequest, LegacyResponse, ResponseBody,
        admission::{AdmissionPermits, PendingAdmission},
        drive::CallSpan,
        legacy_http::stream_response,
        observed_call::ObservedCall,
        reply::{lost_error, outcome_of},
        route_context::RouteContext,
        session::{ClientCall, ExpectedStream, LegacyClient, PendingRequest, SessionKey},
    },
    runtime::Mutex,
    telemetry::{Limit, RequestOutcome},
    upstream::{
        self, BackgroundRead, CallError, HttpRequest, HttpResponse, RequestPurpose, ResponseInterest,
        Upstream,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use http::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH},
};
use smallvec::SmallVec;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The maximum length, in bytes, of a JSON response that is read completely before it is relayed, so that a
/// response that breaks off becomes a clear error. A longer response, or one of unknown length, is streamed.
const MAX_WHOLE: u64 = 64 << 10;

/// The pauses between the attempts to open a session's GET stream while the server responds 409: the server
/// has not noticed yet that the proxy has closed its own stream.
const CONFLICT_PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The state that is needed to relay the response to a request.
struct RelayContext {
    request: ForwardedRequest,
    /// The JSON-RPC requests that the response answers.
    waiting: SmallVec<[RequestId; 1]>,
    edit: Option<ResponseEdit>,
    /// Whether the response may contain a list of tools, from which denied tools are removed.
    hides_tools: bool,
    listener: Option<SessionListener>,
    keep_alive: KeepAlive,
}

/// The session whose own stream (GET) the response is.
struct SessionListener {
    key: SessionKey,
    /// Whether the stream continues a broken stream (`Last-Event-ID`).
    resumed: bool,
    expected: Arc<ExpectedStream>,
}

/// Relays one request to the server, and resolves to the response for the client. Not an async function, so
/// that the future, which may wait for a long call, does not hold the client's request.
pub(in crate::proxy) fn forward(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    passage: LegacyRequest,
    edit: Option<ResponseEdit>,
    (turn, observed): (Option<PendingAdmission>, Option<Box<ObservedCall>>),
) -> impl Future<Output = LegacyResponse> {
    cancel_requests(&shared, &client, &passage);
    let began = shared.clock.now();
    let is_call = passage.post.can_request_input();
    let keep_alive = match is_call {
        true => KeepAlive::new(shared.route.held, heartbeat(&shared, &client, &passage), began),
        false => KeepAlive::comments_only(passage.keep_alive, began),
    };
    let mut requester = Requester::of(&shared.sessions, &client, &passage);
    let left = requester.resume(&passage);
    let may_begin = (is_call && edit.is_none() || left.len() == 1) && can_begin(&passage);
    let has_deadline = is_call && shared.route.held.deadline.is_some();
    let giving_up = has_deadline.then(|| Box::new(passage.session()));
    let token = passage.params().and_then(offer::progress_token).and_then(RequestId::from_token);
    let hides = shared.route.denies_tools() && can_list_tools(&passage);
    let (span, passage) = traced(&shared, passage);
    let LegacyRequest {
        principal,
        standing: _,
        method,
        query,
        headers,
        body,
        message: _,
        post,
        keep_alive: _,
        trace: _,
    } = passage;
    let waiting = if left.is_empty() { post.request_ids() } else { left };
    // Shutdown closes GET streams at once, because their clients can reconnect to another process; it waits
    // for other requests until their clients have been answered.
    let (stopping, work) = match method {
        Method::GET => (shared.closing.clone(), None),
        _ => (shared.overdue.clone(), Some(shared.stopping.track())),
    };
    let purpose = purpose(&method, &post, &waiting);
    let is_handshake = purpose == RequestPurpose::Initialized
        || matches!(
            &post.messages[..],
            [ClientMessage::Request { method: protocol::Method::Initialize, .. }]
        );
    let resumed = headers.contains_key(&LAST_EVENT_ID);
    let (listens, call) = register_in_session(&shared, &client, purpose, &waiting, &requester, resumed);
    if let Some(key) = client.session {
        waiting.iter().chain(&token).for_each(|id| shared.sessions.client_ids.mark_used(key, id));
    }
    let is_answered = method == Method::POST && !waiting.is_empty();
    let interest = is_answered.then(|| -> Arc<dyn ResponseInterest> {
        match &call {
            Some(call) => call.clone(),
            None => requester.pending.clone(),
        }
    });
    let calls = if is_call { waiting.clone() } else { SmallVec::new() };
    let timeout = call_timeout(&shared.route, &post);
    let forward = HttpRequest { principal, method, query, headers, body, purpose, calls, interest, timeout };
    let taken = listens.as_ref().map(|listens| &listens.expected).filter(|expected| expected.is_taken());
    let forwarding = match (turn, requester.pending_reader(), taken.cloned()) {
        (Some(turn), ..) => {
            in_turn(Arc::clone(&shared.upstream), forward, turn, Arc::clone(&requester.pending))
        }
        (None, None, None) => shared.upstream.forward(forward),
        (None, reader, taken) => {
            let upstream = Arc::clone(&shared.upstream);
            let forwarding = async move {
                if let Some(pending) = reader {
                    pending.reading_on.end().await;
                }
                match taken {
                    Some(expected) => listen_alone(&*upstream, forward, &expected).await,
                    None => upstream.forward(forward).await,
                }
            };
            forwarding.boxed()
        }
    };
    let is_waited_for = is_call || requester.resumed.is_some();
    let (span, observed) = (Mutex::new(span), Mutex::new(observed));
    let sent = ForwardedRequest {
        shared,
        began,
        _work: work,
        requester,
        is_handshake,
        call,
        cancel_session: giving_up,
        stopping,
        span,
        observed,
    };
    let terms = Box::new(RelayContext {
        request: sent,
        waiting,
        edit,
        hides_tools: hides,
        listener: listens,
        keep_alive,
    });
    wait(forwarding, terms, is_waited_for, may_begin)
}

/// Returns the timeout of the calls in a request; `None` if the server's timeout applies.
fn call_timeout(route: &Route, post: &LegacyPost) -> Option<Duration> {
    if !route.has_timeouts() || !post.can_request_input() {
        return None;
    }
    let mut calls = post.called_tools().map(|tool| route.call_timeout(tool)).peekable();
    if calls.peek().is_none() {
        return route.timeout;
    }
    // A batch gets the longest timeout of its calls; if a call has none, the server's timeout applies.
    calls.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Sends calls once they have their concurrency permits, and holds the permits for as long as the server
/// works at the calls, whether or not the client stays connected. Calls that are cancelled in the queue are
/// never sent.
fn in_turn(
    upstream: Arc<dyn Upstream>,
    mut forward: HttpRequest,
    turn: PendingAdmission,
    pending: Arc<PendingRequest>,
) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
    let is_through = turn.is_ready();
    if !is_through {
        pending.enter_queue();
    }
    async move {
        let permits = tokio::select! {
            biased;
            () = pending.cancellation().cancelled(), if !is_through => return Err(CallError::SessionEnded),
            permits = turn.wait(|| false) => permits?,
        };
        if !is_through && !pending.leave_queue() {
            return Err(CallError::SessionEnded);
        }
        let interest: Arc<dyn ResponseInterest> = pending;
        let interest = forward.interest.take().unwrap_or(interest);
        forward.interest = Some(Arc::new(PermittedInterest { interest, _permits: permits }));
        upstream.forward(forward).await
    }
    .boxed()
}

/// Opens a session's GET stream for its client after the proxy has stopped reading the stream itself. A
/// server that allows one stream at a time may take a moment to notice that the proxy's is closed, and
/// responds 409 until then.
async fn listen_alone(
    upstream: &dyn Upstream,
    forward: HttpRequest,
    expected: &ExpectedStream,
) -> Result<HttpResponse, CallError> {
    expected.is_free().await;
    for pause in CONFLICT_PAUSES {
        let forwarded = upstream.forward(forward.of_same_stream()).await?;
        if forwarded.status != StatusCode::CONFLICT {
            return Ok(forwarded);
        }
        sleep(pause).await;
    }
    upstream.forward(forward).await
}

/// A response interest that also holds the concurrency permits of the calls until the response has been read.
struct PermittedInterest {
    interest: Arc<dyn ResponseInterest>,
    _permits: AdmissionPermits,
}

impl ResponseInterest for PermittedInterest {
    fn cancellation(&self) -> &CancellationToken {
        self.interest.cancellation()
    }

    fn mark_answered(&self) {
        self.interest.mark_answered();
    }

    fn background_read(&self) -> &BackgroundRead {
        self.interest.background_read()
    }
}

/// Adds the trace context to the request, and begins the span of a single JSON-RPC request, if tracing is on.
/// Notifications and batches have no span.
fn traced(shared: &RouteContext, mut passage: LegacyRequest) -> (CallSpan, LegacyRequest) {
    let span = match &passage.post.messages[..] {
        [ClientMessage::Request { id, method, target }] => {
            // The span of a call to a stdio server has no id: the proxy replaces the id when it writes the
            // message.
            let id = shared.upstream.address().map(|_| id);
            CallSpan::begin(shared, passage.trace.as_deref(), (method, target.as_deref()), id)
        }
        _ => CallSpan::default(),
    };
    if let Some(context) = span.context() {
        context.write_to_headers(&mut passage.headers);
        if let Some(named) = passage.message.as_ref().and_then(|message| context.inject(message)) {
            passage.body = named;
        }
    }
    (span, passage)
}

/// Waits until the server begins its response. If `is_awaited`, the keep-alive limits the wait: the proxy
/// begins the response itself (only if `can_begin_early`), or ends the request at its deadline.
async fn wait(
    mut forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    mut terms: Box<RelayContext>,
    is_waited_for: bool,
    may_begin: bool,
) -> LegacyResponse {
    let forwarded = tokio::select! {
        // A response that is available takes precedence over shutdown and the keep-alive timer.
        biased;
        forwarded = &mut forwarding => forwarded,
        () = terms.request.stopping.stopped() => Err(CallError::Closing),
        beginning = terms.keep_alive.response_due(may_begin), if is_waited_for => return match beginning {
            ResponseStart::Due => begin_early(forwarding, *terms),
            ResponseStart::Deadline => time_out(&mut terms),
        },
    };
    match forwarded {
        forwarded if terms.request.requester.resumed.is_some() => {
            Box::pin(resume_response(forwarded, terms)).await
        }
        Ok(forwarded) => answer(forwarded, terms).await,
        Err(lost) => {
            terms.request.mark_lost(&lost);
            Box::pin(terms.request.refused(&terms.waiting, &lost)).await
        }
    }
}

/// Records the cancellations of requests in the client's message (`notifications/cancelled`).
fn cancel_requests(shared: &RouteContext, client: &LegacyClient, passage: &LegacyRequest) {
    if let Some(key) = client.session {
        for id in passage.post.cancelled_ids() {
            shared.sessions.pending_requests.cancel(key, id.clone());
            shared.sessions.in_flight.cancel(key);
        }
    }
}

/// Registers the request in its session if the session may have tasks or tickets of the proxy, whose messages
/// may be sent on the stream of the response. Returns the listener of a GET stream, or the entry of a call.
fn register_in_session(
    shared: &RouteContext,
    client: &LegacyClient,
    purpose: RequestPurpose,
    waiting: &SmallVec<[RequestId; 1]>,
    requester: &Requester,
    resumed: bool,
) -> (Option<SessionListener>, Option<Arc<ClientCall>>) {
    let has_tasks = || shared.route.has_tasks() && client.has_task_support() || shared.route.has_tickets();
    let key = client.session.filter(|_| has_tasks());
    match (key, purpose) {
        (Some(key), RequestPurpose::Listen) => {
            let expected = Arc::new(shared.sessions.streams.expect(key));
            (Some(SessionListener { key, resumed, expected }), None)
        }
        (Some(key), RequestPurpose::Call | RequestPurpose::Resume) => {
            let (in_flight, comes_back) = (&shared.sessions.in_flight, purpose == RequestPurpose::Resume);
            (None, Some(in_flight.begin_client_call(key, waiting.clone(), comes_back, &requester.pending)))
        }
        (
            Some(_),
            RequestPurpose::Initialized
            | RequestPurpose::Idempotent
            | RequestPurpose::NonIdempotent
            | RequestPurpose::Notify,
        )
        | (None, _) => (None, None),
    }
}

/// Classifies a request by how the server's connection is used and whether the request can be repeated.
fn purpose(method: &Method, post: &LegacyPost, waiting: &[RequestId]) -> RequestPurpose {
    match *method {
        Method::GET if waiting.is_empty() => RequestPurpose::Listen,
        Method::GET => RequestPurpose::Resume,
        _ if post.can_request_input() => RequestPurpose::Call,
        _ if !waiting.is_empty() && post.messages.iter().all(is_repeatable) => RequestPurpose::Idempotent,
        _ if !waiting.is_empty() => RequestPurpose::NonIdempotent,
        // `notifications/initialized` counts only on its own: other notifications in a batch must not be sent
        // twice.
        _ if post.completes_handshake() && post.messages.len() == 1 => RequestPurpose::Initialized,
        _ => RequestPurpose::Notify,
    }
}

/// Whether the response may contain a list of tools: the request is a `tools/list`, or opens a GET stream, on
/// which the response to one may be redelivered.
fn can_list_tools(passage: &LegacyRequest) -> bool {
    let lists = |message: &ClientMessage| {
        matches!(message, ClientMessage::Request { method: protocol::Method::ToolsList, .. })
    };
    passage.method == Method::GET || passage.post.messages.iter().any(lists)
}

/// Whether the message can be sent to the server twice without a further effect.
fn is_repeatable(message: &ClientMessage) -> bool {
    match message {
        ClientMessage::Request { method, .. } => method.is_repeatable(),
        ClientMessage::Notification(_) | ClientMessage::Cancelled(_) | ClientMessage::Response(_) => false,
    }
}

/// Whether the proxy can begin an event stream before the server responds: the client waits for one response,
/// or resumes one, and accepts event streams.
fn can_begin(passage: &LegacyRequest) -> bool {
    // A batch is excluded: the response to a batch is a batch, which is not a message of an event stream.
    passage.post.messages.len() <= 1 && !passage.post.is_batch && accepts(&passage.headers, EVENT_STREAM)
}

/// Builds the progress heartbeat of a call; `None` if the route sends no progress, or the call has no
/// progress token.
fn heartbeat(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
) -> Option<ProgressHeartbeat> {
    shared.route.held.progress?;
    let token = RequestId::from_token(offer::progress_token(passage.params()?)?)?;
    Some(ProgressHeartbeat::new(token.detached().as_bytes().clone(), client.has_progress_messages()))
}

/// Begins an event stream for the client before the server has responded.
fn begin_early(
    forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    terms: RelayContext,
) -> LegacyResponse {
    let RelayContext { request: sent, waiting, edit: _, hides_tools: hides, listener: _, keep_alive } = terms;
    let id = waiting.first().expect("a call has an id").clone();
    let body = UpstreamBody::deferred(forwarding, id, sent.requester.clone());
    let (silence, timer) = keep_alive.into_parts();
    let relay = ResponseRelay::of_events(answers(waiting, &silence, &sent.requester, 0), silence);
    let mut relaying = RelayedResponse::new(sent, relay, body, RequestOutcome::Result, timer);
    if hides {
        // The default event limit applies: the server's own is not known before the server has responded.
        relaying.hide_tools(upstream::UpstreamLimits::default().result_bytes);
    }
    stream_response(ResponseBody::Pieces(relaying.boxed()))
}

/// Tracks which of the requests in `waiting` the relayed response has answered. `limit` is the maximum length
/// of one message of a batch's response, in bytes.
fn answers(
    waiting: SmallVec<[RequestId; 1]>,
    silence: &KeepAliveTimer,
    requester: &Requester,
    limit: usize,
) -> ResponseTracker {
    let mut answers = ResponseTracker::new(waiting, limit);
    if silence.wants_messages() {
        answers = answers.collecting_messages();
    }
    if let Some(last_id) = &requester.resumed {
        answers.resume_after(last_id.as_bytes());
    }
    answers
}

/// Relays a response of the server whose status and headers have arrived: as a whole, as a stream, or
/// replaced by an error.
async fn answer(forwarded: HttpResponse, mut terms: Box<RelayContext>) -> LegacyResponse {
    let status = forwarded.status;
    let is_waited_for = !terms.waiting.is_empty();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_server_error() && is_waited_for
    {
        terms.request.mark_lost(&CallError::Status { status, detail: String::new(), retry_after: None });
        return Box::pin(terms.request.refused_by(forwarded, &terms.waiting)).await;
    }
    if forwarded.headers.contains_key(CONTENT_ENCODING) {
        // A body with a content coding cannot be parsed, and so is not edited.
        (terms.edit, terms.hides_tools) = (None, false);
    }
    // A response of 202 is no answer: the server answers the request on the session's own stream.
    let is_answer = is_waited_for && status.is_success() && status != StatusCode::ACCEPTED;
    if is_answer && forwarded.body.is_end() && terms.request.requester.resumed.is_none() {
        return Box::pin(terms.request.refused(&terms.waiting, &deferred_head::empty_response_error())).await;
    }
    let limit = match terms.edit.is_some() || terms.hides_tools {
        true if status.is_success() => Some(forwarded.limit),
        true | false => {
            let is_short = forwarded.body.length().is_some_and(|length| length <= MAX_WHOLE);
            (is_waited_for && is_short).then_some(MAX_WHOLE as usize)
        }
    };
    match limit.filter(|_| !forwarded.is_events()) {
        Some(limit) => {
            let (status, headers) = (forwarded.status, forwarded.headers.clone());
            document(status, headers, forwarded.collect(limit), is_answer, terms).await
        }
        None => relay_stream(forwarded, is_answer, *terms),
    }
}

/// Relays a response that is not an event stream, after reading and editing its complete body.
async fn document(
    status: StatusCode,
    mut headers: HeaderMap,
    body: impl Future<Output = Result<Bytes, CallError>>,
    is_answer: bool,
    mut terms: Box<RelayContext>,
) -> LegacyResponse {
    let body = tokio::select! {
        biased;
        body = body => body,
        () = terms.request.stopping.stopped() => Err(CallError::Closing),
        _deadline = terms.keep_alive.response_due(false) => return time_out(&mut terms),
    };
    let body = match body {
        Ok(body) => {
            terms.request.mark_ended();
            body
        }
        Err(lost) => return Box::pin(terms.request.refused(&terms.waiting, &lost)).await,
    };
    if body.is_empty() && is_answer {
        return Box::pin(terms.request.refused(&terms.waiting, &deferred_head::empty_response_error())).await;
    }
    if !status.is_success() || terms.edit.is_none() && !terms.hides_tools {
        return terms.request.full_response(status, headers, body);
    }
    let mut body = body;
    if terms.hides_tools {
        let route = &terms.request.shared.route;
        let listed = Frame::parse(body.clone()).ok();
        body = listed.and_then(|list| deny::hide(&list, |tool| route.denies(tool))).unwrap_or(body);
    }
    if let Some(mut edit) = terms.edit {
        let in_session = headers.get(&SESSION_ID).cloned();
        let edited = Frame::parse(body.clone()).ok().and_then(|frame| edit(&frame, in_session.as_ref()));
        body = edited.unwrap_or(body);
    }
    headers.insert(CONTENT_LENGTH, body.len().into());
    terms.request.full_response(status, headers, body)
}

/// Relays the body of a response as it arrives.
fn relay_stream(forwarded: HttpResponse, is_answer: bool, terms: RelayContext) -> LegacyResponse {
    let is_events = forwarded.is_events();
    let HttpResponse { status, mut headers, body, limit } = forwarded;
    let RelayContext { request: sent, waiting, edit, hides_tools: hides, listener: listens, keep_alive } =
        terms;
    // Before its first bytes are sent, the body can be replaced by an error, which has another length and no
    // content coding: so only a response without these headers can be replaced.
    let may_be_replaced =
        is_answer && !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if body.is_end() {
        sent.mark_ended();
        return sent.full_response(status, headers, Bytes::new());
    }
    let outcome = match outcome_of_status(status) {
        RequestOutcome::ServerError => sent.requester.error_outcome(),
        outcome => outcome,
    };
    let (silence, timer) = keep_alive.into_parts();
    let relay = match is_events {
        true => ResponseRelay::of_events(answers(waiting, &silence, &sent.requester, limit), silence),
        false => {
            let unsaid = if may_be_replaced { waiting } else { SmallVec::new() };
            ResponseRelay::of_document(unsaid, outcome == RequestOutcome::Result, silence)
        }
    };
    let mut relaying = RelayedResponse::new(sent, relay, UpstreamBody::Streaming(body), outcome, timer);
    if is_events {
        // Comments may be inserted between the events, and an error after them, so the length changes.
        headers.remove(CONTENT_LENGTH);
    }
    if is_events && status.is_success() {
        if hides {
            relaying.hide_tools(limit);
        }
        relaying.changes = match (edit, listens) {
            (Some(edit), _) => {
                let in_session = headers.get(&SESSION_ID).cloned();
                StreamEdits::Edited(Box::new(EditedStream {
                    edit,
                    in_session,
                    editor: ResponseEditor::new(limit),
                }))
            }
            (None, Some(SessionListener { key, resumed, expected: _expected })) => {
                let shared = &relaying.request.shared;
                let of = (&shared.route.path, &shared.sessions);
                StreamEdits::SessionStream(Box::new(SessionStream::open(of, key, resumed, limit)))
            }
            (None, None) => StreamEdits::None,
        };
    }
    LegacyResponse { status, headers, body: ResponseBody::Pieces(relaying.boxed()) }
}

/// Relays the response to a request that resumes a broken stream. A failure is reported on an event stream:
/// an HTTP error would answer no request, and some clients would wait for ever.
async fn resume_response(
    forwarded: Result<HttpResponse, CallError>,
    mut terms: Box<RelayContext>,
) -> LegacyResponse {
    let lost = match forwarded {
        Ok(forwarded) if forwarded.status.is_success() && forwarded.is_events() => {
            return answer(forwarded, terms).await;
        }
        // 401 and 403 are relayed unchanged: the client may retry with other credentials.
        Ok(forwarded) if matches!(forwarded.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            terms.waiting.clear();
            return answer(forwarded, terms).await;
        }
        Ok(forwarded) => forwarded.resume_refusal(terms.request.requester.is_in_session()).await,
        // At shutdown the client gets an HTTP error, and can resume the response at the next process.
        Err(lost @ CallError::Closing) => {
            return transport_error(&lost, terms.request.summarize(outcome_of(&lost)));
        }
        Err(lost) => lost.into_resume_failure(),
    };
    let RelayContext { request: sent, waiting, .. } = *terms;
    let owed = sent.requester.pending.owed(waiting).await;
    sent.requester.mark_answered();
    if owed.is_empty() {
        return sent.unanswered();
    }
    let error = lost_error(&lost);
    let account = sent.summarize(outcome_of(&lost)).with_reason(&error);
    stream_response(ResponseBody::Whole(ResponseTracker::new(owed, 0).closing_errors(&error), account))
}

/// Cancels the calls whose deadline (`held.deadline`) has passed before the response began, and builds the
/// error response.
fn time_out(terms: &mut RelayContext) -> LegacyResponse {
    terms.request.cancel_overdue();
    Limit::HeldDeadline.record_hit();
    terms.request.failed(&terms.waiting, &terms.keep_alive.deadline_error(), RequestOutcome::UpstreamFailed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect::Principal, protocol::MessageReader};
    use http::HeaderValue;

    #[test]
    fn an_early_stream_is_begun_for_one_message_and_not_for_a_batch_of_one() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        let begins = |body: &str, accept: &'static str| {
            let body = Bytes::copy_from_slice(body.as_bytes());
            can_begin(&LegacyRequest {
                standing: Default::default(),
                principal: Principal::from_bytes([1; 16]),
                method: Method::POST,
                query: None,
                headers: HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]),
                post: LegacyPost::read(&mut MessageReader::of(body.clone())).expect("a message"),
                message: None,
                body,
                keep_alive: Duration::ZERO,
                trace: None,
            })
        };
        let both = "application/json, text/event-stream";
        assert!(begins(call, both));
        assert!(!begins(call, "application/json"));
        assert!(!begins(&format!(" [{call}]"), both), "it is answered with a batch");
        assert!(!begins(&format!("[{call},{call}]"), both));
    }
}
