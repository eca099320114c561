//! A legacy client's request on its way to a legacy server, and the beginning of the response.
//!
//! Bytes are relayed as they come; the proxy adds what keeps a client from waiting for ever
//! (`forwarded_request`; for an event stream that ends without the response, `response`).
//!
//! A server may be silent until it is done, and then respond with JSON. The proxy waits as long as a client
//! can be expected to wait in silence; then, if the client accepts event streams, it begins one, and the
//! server's response follows on it (`deferred_head`). Only calls get an early response: the response to a
//! handshake, a list or a notification may be a status.

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

/// A JSON response of at most this length is relayed as a whole, so that one that breaks off is still a clear
/// error. A longer one, or one of unknown length, is streamed.
const MAX_WHOLE: u64 = 64 << 10;

/// The pauses before a server is asked again that takes a stream which the proxy has just closed for open.
const CONFLICT_PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// The context in which a response is relayed.
struct RelayContext {
    request: ForwardedRequest,
    /// The requests that it answers.
    waiting: SmallVec<[RequestId; 1]>,
    edit: Option<ResponseEdit>,
    /// The response may contain a list of tools, some of which are denied.
    hides_tools: bool,
    listener: Option<SessionListener>,
    keep_alive: KeepAlive,
}

/// A session that listens on the response.
struct SessionListener {
    key: SessionKey,
    /// The stream continues a broken one.
    resumed: bool,
    expected: Arc<ExpectedStream>,
}

/// Relays one request, and returns the response for the client. Not an async function: the future that waits
/// for a call does not hold its request.
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
    // A client that only listens can listen elsewhere; shutdown waits for a client that waits for a response.
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

/// The timeout of the calls in a request, if it differs from the server's.
fn call_timeout(route: &Route, post: &LegacyPost) -> Option<Duration> {
    if !route.has_timeouts() || !post.can_request_input() {
        return None;
    }
    let mut calls = post.called_tools().map(|tool| route.call_timeout(tool)).peekable();
    if calls.peek().is_none() {
        return route.timeout;
    }
    // A batch has the longest timeout of its calls.
    calls.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Sends calls once they have their permits, and holds the permits for as long as the server works at them,
/// whether or not the client stays. Calls that are cancelled in the queue are never sent.
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

/// Asks for a session's stream that the proxy has read in place of its client. A server that serves one at a time may
/// take a moment to notice that the other is closed.
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

/// The interest in the response of calls with permits.
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

/// Puts the trace context into the request, and begins the span of the call, if it is traced. Notifications
/// and batches have none.
fn traced(shared: &RouteContext, mut passage: LegacyRequest) -> (CallSpan, LegacyRequest) {
    let span = match &passage.post.messages[..] {
        [ClientMessage::Request { id, method, target }] => {
            // A stdio server is sent an id of the proxy, which is chosen when the message is written.
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

/// Waits for the server to begin its response, or, if `may_begin`, until the proxy begins one.
async fn wait(
    mut forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    mut terms: Box<RelayContext>,
    is_waited_for: bool,
    may_begin: bool,
) -> LegacyResponse {
    let forwarded = tokio::select! {
        // An available response is relayed before anything else that is due.
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

/// Handles cancellations by the client.
fn cancel_requests(shared: &RouteContext, client: &LegacyClient, passage: &LegacyRequest) {
    if let Some(key) = client.session {
        for id in passage.post.cancelled_ids() {
            shared.sessions.pending_requests.cancel(key, id.clone());
            shared.sessions.in_flight.cancel(key);
        }
    }
}

/// Registers the request in its session, if the proxy makes tasks there: they may send messages on it.
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

fn purpose(method: &Method, post: &LegacyPost, waiting: &[RequestId]) -> RequestPurpose {
    match *method {
        Method::GET if waiting.is_empty() => RequestPurpose::Listen,
        Method::GET => RequestPurpose::Resume,
        _ if post.can_request_input() => RequestPurpose::Call,
        _ if !waiting.is_empty() && post.messages.iter().all(is_repeatable) => RequestPurpose::Idempotent,
        _ if !waiting.is_empty() => RequestPurpose::NonIdempotent,
        // Only by itself: other notifications must not be sent twice.
        _ if post.completes_handshake() && post.messages.len() == 1 => RequestPurpose::Initialized,
        _ => RequestPurpose::Notify,
    }
}

/// Whether the response may contain a list of tools: it was requested, or a stream that could carry one is
/// opened.
fn can_list_tools(passage: &LegacyRequest) -> bool {
    let lists = |message: &ClientMessage| {
        matches!(message, ClientMessage::Request { method: protocol::Method::ToolsList, .. })
    };
    passage.method == Method::GET || passage.post.messages.iter().any(lists)
}

fn is_repeatable(message: &ClientMessage) -> bool {
    match message {
        ClientMessage::Request { method, .. } => method.is_repeatable(),
        ClientMessage::Notification(_) | ClientMessage::Cancelled(_) | ClientMessage::Response(_) => false,
    }
}

/// Whether the proxy can begin an event stream before the server does: the client waits for one response, or
/// resumes one, and accepts event streams.
fn can_begin(passage: &LegacyRequest) -> bool {
    // The response to a batch is a batch, which is not a message of an event stream.
    passage.post.messages.len() <= 1 && !passage.post.is_batch && accepts(&passage.headers, EVENT_STREAM)
}

/// The heartbeat of a client that gave its single call a progress token.
fn heartbeat(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
) -> Option<ProgressHeartbeat> {
    shared.route.held.progress?;
    let token = RequestId::from_token(offer::progress_token(passage.params()?)?)?;
    Some(ProgressHeartbeat::new(token.detached().as_bytes().clone(), client.has_progress_messages()))
}

/// Begins a response before its server does.
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
        // The event limit of the server is not known before it has begun.
        relaying.hide_tools(upstream::UpstreamLimits::default().result_bytes);
    }
    stream_response(ResponseBody::Pieces(relaying.boxed()))
}

/// `limit` is for one message of a batch's response, in bytes.
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

/// Relays the response that the server has begun.
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
        // An encoded body cannot be read, and is not edited.
        (terms.edit, terms.hides_tools) = (None, false);
    }
    // A request that is only accepted (202) is answered on the session's own stream.
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

/// Relays a document after reading it completely.
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

/// Relays a response as it comes.
fn relay_stream(forwarded: HttpResponse, is_answer: bool, terms: RelayContext) -> LegacyResponse {
    let is_events = forwarded.is_events();
    let HttpResponse { status, mut headers, body, limit } = forwarded;
    let RelayContext { request: sent, waiting, edit, hides_tools: hides, listener: listens, keep_alive } =
        terms;
    // Until something of it is sent, an error can replace it; the error has another length and no content
    // coding.
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
        // Comments are inserted between its events, and perhaps an error after them.
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

/// Resumes a response for a client. A failure is reported on an event stream: an HTTP error would answer no
/// request, and some clients would wait for ever.
async fn resume_response(
    forwarded: Result<HttpResponse, CallError>,
    mut terms: Box<RelayContext>,
) -> LegacyResponse {
    let lost = match forwarded {
        Ok(forwarded) if forwarded.status.is_success() && forwarded.is_events() => {
            return answer(forwarded, terms).await;
        }
        // It may retry with other credentials.
        Ok(forwarded) if matches!(forwarded.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            terms.waiting.clear();
            return answer(forwarded, terms).await;
        }
        Ok(forwarded) => forwarded.resume_refusal(terms.request.requester.is_in_session()).await,
        // The next process can resume it.
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

/// The deadline has passed before the response began.
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
