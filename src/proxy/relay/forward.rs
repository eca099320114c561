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
    legacy_http::stream_response,
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
        observed_call::ObservedCall,
        reply::{call_error_outcome, record_call_error},
        route_context::RouteContext,
        session::{ClientCall, ExpectedStream, LegacyClient, PendingRequest, SessionKey},
    },
    runtime::Mutex,
    telemetry::{Limit, RequestOutcome},
    upstream::{
        self, BackgroundRead, CallError, HttpRequest, HttpResponse, RequestPurpose, ResponseInterest,
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
const MAX_BUFFERED_BYTES: u64 = 64 << 10;

/// The pauses between the attempts to open a session's GET stream while the server responds 409 or 400: the
/// server has not noticed yet that the proxy has closed its own stream.
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
    request: LegacyRequest,
    edit: Option<ResponseEdit>,
    (admission, observed): (Option<PendingAdmission>, Option<Box<ObservedCall>>),
) -> impl Future<Output = LegacyResponse> {
    cancel_requests(&shared, &client, &request);
    let began = shared.clock.now();
    let is_call = request.post.can_request_input();
    let keep_alive = match is_call {
        true => KeepAlive::new(shared.route.wait_policy, build_heartbeat(&shared, &client, &request), began),
        false => KeepAlive::comments_only(request.keep_alive, began),
    };
    let mut requester = Requester::for_request(&shared.sessions, &client, &request);
    let unanswered = requester.resume(&request);
    let can_begin_early = (is_call && edit.is_none() || unanswered.len() == 1) && can_begin_early(&request);
    let has_deadline = is_call && shared.route.wait_policy.deadline.is_some();
    let cancel_session = has_deadline.then(|| Box::new(request.client_session()));
    let token = request.params().and_then(offer::progress_token).and_then(RequestId::from_token);
    let hides_tools = shared.route.has_denied_tools() && can_list_tools(&request);
    let (span, request) = begin_span(&shared, request);
    let LegacyRequest {
        principal,
        rollout_membership: _,
        method,
        query,
        headers,
        body,
        message: _,
        post,
        keep_alive: _,
        trace: _,
    } = request;
    let waiting = if unanswered.is_empty() { post.request_ids() } else { unanswered };
    // Shutdown closes GET streams at once, because their clients can reconnect to another process; it waits
    // for other requests until their clients have been answered.
    let (stopping, drain_token) = match method {
        Method::GET => (shared.closing.clone(), None),
        _ => (shared.overdue.clone(), Some(shared.stopping.track())),
    };
    let purpose = classify_purpose(&method, &post, &waiting);
    let is_handshake = purpose == RequestPurpose::Initialized
        || matches!(
            &post.messages[..],
            [ClientMessage::Request { method: protocol::Method::Initialize, .. }]
        );
    let resumed = headers.contains_key(&LAST_EVENT_ID);
    let (listener, call) = register_in_session(&shared, &client, purpose, &waiting, &requester, resumed);
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
    let http_request =
        HttpRequest { principal, method, query, headers, body, purpose, calls, interest, timeout };
    let busy_stream = listener
        .as_ref()
        .map(|session_listener| &session_listener.expected)
        .filter(|expected| expected.is_proxy_reading());
    let forwarding = match (admission, requester.pending_reader(), busy_stream.cloned()) {
        (Some(admission), ..) => forward_when_admitted(
            Arc::clone(&shared),
            http_request,
            admission,
            Arc::clone(&requester.pending),
        ),
        (None, None, None) => shared.forward(http_request),
        (None, pending_reader, busy_stream) => {
            let shared = Arc::clone(&shared);
            let forwarding = async move {
                if let Some(pending) = pending_reader {
                    pending.background_read.end().await;
                }
                match busy_stream {
                    Some(expected) => listen_when_free(&shared, http_request, &expected).await,
                    None => shared.forward(http_request).await,
                }
            };
            forwarding.boxed()
        }
    };
    let is_awaited = is_call || requester.resumed_after.is_some();
    let (span, observed) = (Mutex::new(span), Mutex::new(observed));
    let forwarded_request = ForwardedRequest {
        shared,
        began_at: began,
        _drain_token: drain_token,
        requester,
        is_handshake,
        call,
        cancel_session,
        stopping,
        span,
        observed,
    };
    let context = Box::new(RelayContext {
        request: forwarded_request,
        waiting,
        edit,
        hides_tools,
        listener,
        keep_alive,
    });
    await_response(forwarding, context, is_awaited, can_begin_early)
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
fn forward_when_admitted(
    shared: Arc<RouteContext>,
    mut http_request: HttpRequest,
    admission: PendingAdmission,
    pending: Arc<PendingRequest>,
) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
    let is_admitted = admission.is_ready();
    if !is_admitted {
        pending.enter_queue();
    }
    async move {
        let permits = tokio::select! {
            biased;
            () = pending.cancellation().cancelled(), if !is_admitted => return Err(CallError::SessionEnded),
            permits = admission.wait(|| false) => permits?,
        };
        if !is_admitted && !pending.leave_queue() {
            return Err(CallError::SessionEnded);
        }
        let interest: Arc<dyn ResponseInterest> = pending;
        let interest = http_request.interest.take().unwrap_or(interest);
        http_request.interest = Some(Arc::new(PermittedInterest { interest, _permits: permits }));
        shared.forward(http_request).await
    }
    .boxed()
}

/// Opens a session's GET stream for its client after the proxy has stopped reading the stream itself. A
/// server that allows one stream at a time may take a moment to notice that the proxy's is closed, and
/// responds 409 or 400 until then.
async fn listen_when_free(
    shared: &RouteContext,
    http_request: HttpRequest,
    expected: &ExpectedStream,
) -> Result<HttpResponse, CallError> {
    expected.wait_until_free().await;
    for pause in CONFLICT_PAUSES {
        let response = shared.forward(http_request.copy_for_stream()).await?;
        if !matches!(response.status, StatusCode::CONFLICT | StatusCode::BAD_REQUEST) {
            return Ok(response);
        }
        sleep(pause).await;
    }
    shared.forward(http_request).await
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
fn begin_span(shared: &RouteContext, mut request: LegacyRequest) -> (CallSpan, LegacyRequest) {
    let span = match &request.post.messages[..] {
        [ClientMessage::Request { id, method, target }] => {
            // The span of a call to a stdio server has no id: the proxy replaces the id when it writes the
            // message.
            let id = shared.server_url().map(|_| id);
            CallSpan::begin(shared, request.trace.as_deref(), (method, target.as_deref()), id)
        }
        _ => CallSpan::default(),
    };
    if let Some(context) = span.context() {
        context.write_to_headers(&mut request.headers);
        if let Some(traced_body) = request.message.as_ref().and_then(|message| context.inject(message)) {
            request.body = traced_body;
        }
    }
    (span, request)
}

/// Waits until the server begins its response. If `is_awaited`, the keep-alive limits the wait: the proxy
/// begins the response itself (only if `can_begin_early`), or ends the request at its deadline.
async fn await_response(
    mut forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    mut context: Box<RelayContext>,
    is_awaited: bool,
    can_begin_early: bool,
) -> LegacyResponse {
    let result = tokio::select! {
        // A response that is available takes precedence over shutdown and the keep-alive timer.
        biased;
        result = &mut forwarding => result,
        () = context.request.stopping.stopped() => Err(CallError::Closing),
        start = context.keep_alive.wait_for_response_start(can_begin_early), if is_awaited => return match start {
            ResponseStart::Due => begin_early(forwarding, *context),
            ResponseStart::Deadline => respond_timed_out(&mut context),
        },
    };
    match result {
        result if context.request.requester.resumed_after.is_some() => {
            Box::pin(resume_response(result, context)).await
        }
        Ok(response) => relay_response(response, context).await,
        Err(error) => {
            context.request.mark_failed(&error);
            Box::pin(context.request.respond_to_failure(&context.waiting, &error)).await
        }
    }
}

/// Records the cancellations of requests in the client's message (`notifications/cancelled`).
fn cancel_requests(shared: &RouteContext, client: &LegacyClient, request: &LegacyRequest) {
    if let Some(key) = client.session {
        for id in request.post.cancelled_ids() {
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
            let expected = Arc::new(shared.sessions.streams.expect_stream(key));
            (Some(SessionListener { key, resumed, expected }), None)
        }
        (Some(key), RequestPurpose::Call | RequestPurpose::Resume) => {
            let (in_flight, is_resumed) = (&shared.sessions.in_flight, purpose == RequestPurpose::Resume);
            (None, Some(in_flight.begin_client_call(key, waiting.clone(), is_resumed, &requester.pending)))
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
fn classify_purpose(method: &Method, post: &LegacyPost, request_ids: &[RequestId]) -> RequestPurpose {
    match *method {
        Method::GET if request_ids.is_empty() => RequestPurpose::Listen,
        Method::GET => RequestPurpose::Resume,
        _ if post.can_request_input() => RequestPurpose::Call,
        _ if !request_ids.is_empty() && post.messages.iter().all(is_repeatable) => RequestPurpose::Idempotent,
        _ if !request_ids.is_empty() => RequestPurpose::NonIdempotent,
        // `notifications/initialized` counts only on its own: other notifications in a batch must not be sent
        // twice.
        _ if post.completes_handshake() && post.messages.len() == 1 => RequestPurpose::Initialized,
        _ => RequestPurpose::Notify,
    }
}

/// Whether the response may contain a list of tools: the request is a `tools/list`, or opens a GET stream, on
/// which the response to one may be redelivered.
fn can_list_tools(request: &LegacyRequest) -> bool {
    let is_tool_list = |message: &ClientMessage| {
        matches!(message, ClientMessage::Request { method: protocol::Method::ToolsList, .. })
    };
    request.method == Method::GET || request.post.messages.iter().any(is_tool_list)
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
fn can_begin_early(request: &LegacyRequest) -> bool {
    // A batch is excluded: the response to a batch is a batch, which is not a message of an event stream.
    request.post.messages.len() <= 1 && !request.post.is_batch && accepts(&request.headers, EVENT_STREAM)
}

/// Builds the progress heartbeat of a call; `None` if the route sends no progress, or the call has no
/// progress token.
fn build_heartbeat(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<ProgressHeartbeat> {
    shared.route.wait_policy.progress_after?;
    let token = RequestId::from_token(offer::progress_token(request.params()?)?)?;
    Some(ProgressHeartbeat::new(token.detached().as_bytes().clone(), client.has_progress_messages()))
}

/// Begins an event stream for the client before the server has responded.
fn begin_early(
    forwarding: BoxFuture<'static, Result<HttpResponse, CallError>>,
    context: RelayContext,
) -> LegacyResponse {
    let RelayContext { request: forwarded_request, waiting, edit: _, hides_tools, listener: _, keep_alive } =
        context;
    let id = waiting.first().expect("a call has an id").clone();
    let body = UpstreamBody::deferred(forwarding, id, forwarded_request.requester.clone());
    let (silence_timer, timer) = keep_alive.into_parts();
    let relay = ResponseRelay::for_events(
        track_responses(waiting, &silence_timer, &forwarded_request.requester, 0),
        silence_timer,
    );
    let mut relayed = RelayedResponse::new(forwarded_request, relay, body, RequestOutcome::Result, timer);
    if hides_tools {
        // The default event limit applies: the server's own is not known before the server has responded.
        relayed.hide_tools(upstream::UpstreamLimits::default().result_bytes);
    }
    stream_response(ResponseBody::Stream(relayed.boxed()))
}

/// Tracks which of the requests in `waiting` the relayed response has answered. `limit` is the maximum length
/// of one message of a batch's response, in bytes.
fn track_responses(
    waiting: SmallVec<[RequestId; 1]>,
    silence_timer: &KeepAliveTimer,
    requester: &Requester,
    limit: usize,
) -> ResponseTracker {
    let mut tracker = ResponseTracker::new(waiting, limit);
    if silence_timer.needs_messages() {
        tracker = tracker.collecting_messages();
    }
    if let Some(last_id) = &requester.resumed_after {
        tracker.resume_after(last_id.as_bytes());
    }
    tracker
}

/// Relays a response of the server whose status and headers have arrived: as a whole, as a stream, or
/// replaced by an error.
async fn relay_response(response: HttpResponse, mut context: Box<RelayContext>) -> LegacyResponse {
    let status = response.status;
    let is_awaited = !context.waiting.is_empty();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED || status.is_server_error() && is_awaited
    {
        context.request.mark_failed(&CallError::Status { status, detail: String::new(), retry_after: None });
        return Box::pin(context.request.respond_to_http_error(response, &context.waiting)).await;
    }
    if response.headers.contains_key(CONTENT_ENCODING) {
        // A body with a content coding cannot be parsed, and so is not edited.
        (context.edit, context.hides_tools) = (None, false);
    }
    // A response of 202 is no answer: the server answers the request on the session's own stream.
    let is_final_response = is_awaited && status.is_success() && status != StatusCode::ACCEPTED;
    if is_final_response && response.body.is_end() && context.request.requester.resumed_after.is_none() {
        return Box::pin(
            context.request.respond_to_failure(&context.waiting, &deferred_head::empty_response_error()),
        )
        .await;
    }
    let limit = match context.edit.is_some() || context.hides_tools {
        true if status.is_success() => Some(response.limit),
        true | false => {
            let is_short = response.body.length().is_some_and(|length| length <= MAX_BUFFERED_BYTES);
            (is_awaited && is_short).then_some(MAX_BUFFERED_BYTES as usize)
        }
    };
    match limit.filter(|_| !response.is_events()) {
        Some(limit) => {
            let (status, headers) = (response.status, response.headers.clone());
            relay_document(status, headers, response.collect(limit), is_final_response, context).await
        }
        None => relay_stream(response, is_final_response, *context),
    }
}

/// Relays a response that is not an event stream, after reading and editing its complete body.
async fn relay_document(
    status: StatusCode,
    mut headers: HeaderMap,
    body: impl Future<Output = Result<Bytes, CallError>>,
    is_final_response: bool,
    mut context: Box<RelayContext>,
) -> LegacyResponse {
    let body = tokio::select! {
        biased;
        body = body => body,
        () = context.request.stopping.stopped() => Err(CallError::Closing),
        _deadline = context.keep_alive.wait_for_response_start(false) => return respond_timed_out(&mut context),
    };
    let body = match body {
        Ok(body) => {
            context.request.mark_server_finished();
            body
        }
        Err(error) => return Box::pin(context.request.respond_to_failure(&context.waiting, &error)).await,
    };
    if body.is_empty() && is_final_response {
        return Box::pin(
            context.request.respond_to_failure(&context.waiting, &deferred_head::empty_response_error()),
        )
        .await;
    }
    if !status.is_success() || context.edit.is_none() && !context.hides_tools {
        return context.request.full_response(status, headers, body);
    }
    let mut body = body;
    if context.hides_tools {
        let route = &context.request.shared.route;
        let list_frame = Frame::parse(body.clone()).ok();
        body = list_frame
            .and_then(|list| deny::remove_denied_tools(&list, |tool| route.is_denied(tool)))
            .unwrap_or(body);
    }
    if let Some(mut edit) = context.edit {
        let session_id = headers.get(&SESSION_ID).cloned();
        let edited = Frame::parse(body.clone()).ok().and_then(|frame| edit(&frame, session_id.as_ref()));
        body = edited.unwrap_or(body);
    }
    headers.insert(CONTENT_LENGTH, body.len().into());
    context.request.full_response(status, headers, body)
}

/// Relays the body of a response as it arrives.
fn relay_stream(response: HttpResponse, is_final_response: bool, context: RelayContext) -> LegacyResponse {
    let is_events = response.is_events();
    let HttpResponse { status, mut headers, body, limit } = response;
    let RelayContext { request: forwarded_request, waiting, edit, hides_tools, listener, keep_alive } =
        context;
    // Before its first bytes are sent, the body can be replaced by an error, which has another length and no
    // content coding: so only a response without these headers can be replaced.
    let may_be_replaced =
        is_final_response && !headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(CONTENT_ENCODING);
    if body.is_end() {
        forwarded_request.mark_server_finished();
        return forwarded_request.full_response(status, headers, Bytes::new());
    }
    let outcome = match outcome_of_status(status) {
        RequestOutcome::ServerError => forwarded_request.requester.error_outcome(),
        outcome => outcome,
    };
    let (silence_timer, timer) = keep_alive.into_parts();
    let relay = match is_events {
        true => ResponseRelay::for_events(
            track_responses(waiting, &silence_timer, &forwarded_request.requester, limit),
            silence_timer,
        ),
        false => {
            let replaceable = if may_be_replaced { waiting } else { SmallVec::new() };
            ResponseRelay::for_document(replaceable, outcome == RequestOutcome::Result, silence_timer)
        }
    };
    let mut relayed =
        RelayedResponse::new(forwarded_request, relay, UpstreamBody::Streaming(body), outcome, timer);
    if is_events {
        // Comments may be inserted between the events, and an error after them, so the length changes.
        headers.remove(CONTENT_LENGTH);
    }
    if is_events && status.is_success() {
        if hides_tools {
            relayed.hide_tools(limit);
        }
        relayed.edits = match (edit, listener) {
            (Some(edit), _) => {
                let session_id = headers.get(&SESSION_ID).cloned();
                StreamEdits::Edited(Box::new(EditedStream {
                    edit,
                    session_id,
                    editor: ResponseEditor::new(limit),
                }))
            }
            (None, Some(SessionListener { key, resumed, expected: _expected })) => {
                let shared = &relayed.request.shared;
                let route_and_sessions = (&shared.route.path, &shared.sessions);
                StreamEdits::SessionStream(Box::new(SessionStream::open(
                    route_and_sessions,
                    key,
                    resumed,
                    limit,
                )))
            }
            (None, None) => StreamEdits::None,
        };
    }
    LegacyResponse { status, headers, body: ResponseBody::Stream(relayed.boxed()) }
}

/// Relays the response to a request that resumes a broken stream. A failure is reported on an event stream:
/// an HTTP error would answer no request, and some clients would wait for ever.
async fn resume_response(
    result: Result<HttpResponse, CallError>,
    mut context: Box<RelayContext>,
) -> LegacyResponse {
    let error = match result {
        Ok(response) if response.status.is_success() && response.is_events() => {
            return relay_response(response, context).await;
        }
        // 401 and 403 are relayed unchanged: the client may retry with other credentials.
        Ok(response) if matches!(response.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            context.waiting.clear();
            return relay_response(response, context).await;
        }
        Ok(response) => response.resume_refusal(context.request.requester.is_in_session()).await,
        // At shutdown the client gets an HTTP error, and can resume the response at the next process.
        Err(error @ CallError::Closing) => {
            return transport_error(&error, context.request.summarize(call_error_outcome(&error)));
        }
        Err(error) => error.into_resume_failure(),
    };
    let RelayContext { request: forwarded_request, waiting, .. } = *context;
    let owed = forwarded_request.requester.pending.still_owed(waiting).await;
    forwarded_request.requester.mark_answered();
    if owed.is_empty() {
        return forwarded_request.empty_stream_response();
    }
    let error_object = record_call_error(&error);
    let summary = forwarded_request.summarize(call_error_outcome(&error)).with_reason(&error_object);
    stream_response(ResponseBody::Complete(
        ResponseTracker::new(owed, 0).closing_errors(&error_object),
        summary,
    ))
}

/// Cancels the calls whose deadline (`held.deadline`) has passed before the response began, and builds the
/// error response.
fn respond_timed_out(context: &mut RelayContext) -> LegacyResponse {
    context.request.cancel_overdue();
    Limit::HeldDeadline.record_hit();
    context.request.error_response(
        &context.waiting,
        &context.keep_alive.deadline_error(),
        RequestOutcome::UpstreamFailed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dialect::Principal, protocol::MessageReader};
    use http::HeaderValue;

    #[test]
    fn an_early_stream_is_begun_for_one_message_and_not_for_a_batch_of_one() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        let can_begin = |body: &str, accept: &'static str| {
            let body = Bytes::copy_from_slice(body.as_bytes());
            can_begin_early(&LegacyRequest {
                rollout_membership: Default::default(),
                principal: Principal::from_bytes([1; 16]),
                method: Method::POST,
                query: None,
                headers: HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]),
                post: LegacyPost::read(&mut MessageReader::new(body.clone())).expect("a message"),
                message: None,
                body,
                keep_alive: Duration::ZERO,
                trace: None,
            })
        };
        let both = "application/json, text/event-stream";
        assert!(can_begin(call, both));
        assert!(!can_begin(call, "application/json"));
        assert!(!can_begin(&format!(" [{call}]"), both), "it is answered with a batch");
        assert!(!can_begin(&format!("[{call},{call}]"), both));
    }
}
