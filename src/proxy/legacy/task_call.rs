//! Makes `tools/call` requests of clients of 2025-11-25: as a task, or as a call that may become a task.
//!
//! The call is made in the client's own session, without `params.task`, and a runtime task runs it
//! ([`CallDriver`]) from the start: it does not depend on a connection of the client, and a disconnect
//! cancels nothing (2025-11-25, *Sending Messages to the Server*).
//!
//! A call whose client requests a task [becomes a task](start_as_task) before it is sent, and the client gets
//! the task at once. Another call may become a task unsolicited (SEP-2229, draft), only for clients that the
//! operator named: others would not understand the response. Its client [waits](respond_on_stream) and
//! receives the server's messages meanwhile, input requests unchanged. A response before the threshold is a
//! plain response, also for a client that requested a task. At the threshold the call becomes a task, which
//! the client gets as the result; if the client disconnects, it becomes a task at once, which the client
//! finds in `tasks/list`. The events of such a response have no ids, so the client cannot resume it.

use crate::{
    bridge::{
        offer::{self, TaskParam},
        ticket::TicketOptions,
    },
    protocol::{ErrorObject, Frame, Method, RequestId, code, sse},
    proxy::{
        AccessSummary, BodyContinuation, BodyPiece, LegacyRequest, LegacyResponse, ReplyItem, ResponseBody,
        admission::PendingAdmission,
        call_registry::{CallWaiter, ReplyTarget},
        drive::{CallDriver, CallSpan, NativeForm, NativeReplies},
        relay::legacy_http::{self, json_response, stream_response},
        reply::record_call_error,
        route_context::RouteContext,
        session::LegacyClient,
    },
    task::{TaskView, view::experimental::TaskResultFormat},
    telemetry::RequestOutcome,
    upstream::{CallError, Deferral, NativeCall, UpstreamEvent, own_ids},
};
use futures_util::{StreamExt, stream};
use http::header::USER_AGENT;
use std::{future::ready, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::{error::Elapsed, timeout},
};

/// The number of messages buffered for a client that reads slowly; a full buffer blocks the reading from the
/// server.
const MESSAGE_BUFFER: usize = 16;

/// The beginning of the `User-Agent` of the official SDK for Python, which uses httpx.
const PYTHON_SDK_AGENT: &str = "python-httpx/";

/// A call in its client's own session that is ready to run, and its replies, which send the call when they
/// are polled.
type PreparedCall = (NativeForm, NativeReplies);

/// Prepares the call of `message` in its client's own session. The call is sent when the returned replies are
/// polled first.
pub(super) fn prepare_call(
    shared: &Arc<RouteContext>,
    request: &LegacyRequest,
    client: &LegacyClient,
    message: &Frame,
    tool: &str,
    (task_param, ticketing): (Option<TaskParam>, Option<TicketOptions>),
    admission: Option<PendingAdmission>,
) -> PreparedCall {
    // The proxy emulates the session of a client of a stdio server: the client's calls are made in the
    // proxy's sessions.
    let call_id = match shared.server_url() {
        Some(_) => shared.sessions.client_ids.next_proxy_id(client.session),
        None => own_ids::next_in_pool(),
    };
    let deferral = Deferral::new(shared.ledger.is_durable());
    let (target, rpc_id) = ((&Method::ToolsCall, Some(tool)), RequestId::from_number(call_id));
    let span = CallSpan::begin(shared, request.trace.as_deref(), target, Some(&rpc_id));
    let mut session = request.client_session();
    let traced = span.context().and_then(|context| {
        context.write_to_headers(&mut session.headers);
        Frame::parse(context.inject(message)?).ok()
    });
    let body = offer::rewrite_call(traced.as_ref().unwrap_or(message), call_id);
    let call = NativeCall { id: call_id, method: Method::ToolsCall, body, deferral: Some(deferral.clone()) };
    let token = message.params().and_then(offer::progress_token);
    let wants_progress = token.is_some();
    // The token is copied: a slice would keep the whole message in memory.
    let token = token.and_then(RequestId::from_token).map(|token| token.detached());
    let (replies, handle) = match shared.upstream.http_relay() {
        Some(relay) => relay.call_in(session, call),
        None => (stream::iter([UpstreamEvent::Lost(CallError::not_over_http())]).boxed(), None),
    };
    let limits = shared.call_limits(tool, request.principal, Some(&deferral));
    let (replies, dequeued) = match &limits {
        Some(limits) => limits.limit_replies(admission, replies, &shared.clock),
        None => (replies, None),
    };
    let in_flight = &shared.sessions.in_flight;
    let in_flight = client
        .session
        .zip(handle)
        .map(|(key, handle)| in_flight.begin_proxy_call(key, call_id, token, handle));
    let native = NativeForm {
        owner: client.owner(&shared.route),
        session: client.session,
        tool: tool.to_owned(),
        ttl: task_param.and_then(|param| param.ttl),
        wants_progress,
        view: if ticketing.is_some() { TaskView::Ticket } else { TaskView::Experimental },
        result_format: result_format(request, task_param),
        ticket_options: ticketing,
        progress: None,
        deferral,
        needs_credentials: shared.credentials(&request.headers).can_identify_caller(),
        in_flight,
        stream_opening: None,
        began: shared.clock.now(),
        last_status: "working",
    };
    (native, NativeReplies { replies, span, limits, dequeued })
}

/// Selects the task result format for the client. FastMCP 2.14 cannot be distinguished from the official SDK
/// for Python, on which it is built; that SDK reads both formats, so all clients with its user agent get the
/// draft format.
fn result_format(request: &LegacyRequest, task_param: Option<TaskParam>) -> TaskResultFormat {
    let user_agent = request.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    match task_param.is_some_and(|param| param.is_draft)
        || user_agent.is_some_and(|agent| agent.starts_with(PYTHON_SDK_AGENT))
    {
        true => TaskResultFormat::Draft,
        false => TaskResultFormat::Published,
    }
}

/// Creates the task, starts the call, and responds with the task.
pub(super) async fn start_as_task(
    shared: &Arc<RouteContext>,
    (call, replies): PreparedCall,
    id: &RequestId,
) -> LegacyResponse {
    let (created_sender, receiver) = oneshot::channel();
    let context = Arc::clone(shared);
    // The driver runs in a task of its own from the start: a client that disconnects while the record is
    // stored must not leave a stored task without a driver.
    shared.stopping.spawn(async move {
        match CallDriver::as_task(&context, call, replies).await {
            Ok((mut driver, created)) => {
                // The send fails if the client has disconnected; it finds the task in `tasks/list`.
                let _ = created_sender.send(Ok((driver.id().clone(), created)));
                driver.wait_until_listening().await;
                driver.run().await;
            }
            Err(limit_error) => drop(created_sender.send(Err(limit_error))),
        }
    });
    match receiver.await {
        Ok(Ok((task, created))) => {
            let summary = AccessSummary { task: Some(task), ..AccessSummary::new(RequestOutcome::Task) };
            legacy_http::result_response(id, &created, summary)
        }
        // A call that cannot become a task is refused, not run plainly: the client could not distinguish a
        // plain result from that of a task.
        Ok(Err(limit_error)) => {
            legacy_http::refusal_response(id, &ErrorObject::new(code::BUSY, limit_error.to_string()))
        }
        Err(_) => legacy_http::refusal_response(id, &record_call_error(&CallError::Closing)),
    }
}

/// Starts the call, and responds when it ends or becomes a task: as a document, or as an event stream if the
/// call takes longer than `keep_alive`.
pub(super) async fn respond_on_stream(
    shared: &Arc<RouteContext>,
    (call, replies): PreparedCall,
    id: RequestId,
    threshold: Duration,
    keep_alive: Duration,
) -> LegacyResponse {
    let (items, mut received) = mpsc::channel(MESSAGE_BUFFER);
    let waiter = CallWaiter { target: ReplyTarget::Native(id.detached()), items };
    let session = call.session;
    let driver = CallDriver::on_stream(shared, call, replies, threshold, waiter);
    let registration =
        session.map(|session| shared.sessions.waiting_calls.register(session, &id, driver.id().clone()));
    // The driver runs in a task of its own from the start: the call does not depend on its client's
    // connection.
    shared.stopping.spawn(async move {
        driver.run().await;
        drop(registration);
    });
    let first = timeout(keep_alive, received.recv()).await;
    if let Ok(Some(ReplyItem::Reply(reply))) = first {
        return json_response(reply.body, reply.summary);
    }
    let first = to_piece(first);
    let remaining =
        stream::unfold((received, first.continuation), move |(mut received, continuation)| async move {
            if continuation == BodyContinuation::End {
                return None;
            }
            let piece = to_piece(timeout(keep_alive, received.recv()).await);
            let continuation = piece.continuation;
            Some((piece, (received, continuation)))
        });
    stream_response(ResponseBody::Stream(stream::once(ready(first)).chain(remaining).boxed()))
}

/// Converts a message for a waiting client to the next piece of its response stream. A timeout (`Elapsed`)
/// becomes an SSE comment.
fn to_piece(received: Result<Option<ReplyItem>, Elapsed>) -> BodyPiece {
    match received {
        Ok(Some(ReplyItem::Notification(message))) => BodyPiece::from_bytes(sse::message(&message)),
        Ok(Some(ReplyItem::TaskEnd(message, commit))) => {
            BodyPiece { commit: Some(commit), ..BodyPiece::from_bytes(sse::message(&message)) }
        }
        Ok(Some(ReplyItem::Reply(reply))) => {
            BodyPiece { commit: reply.commit, ..BodyPiece::last(sse::message(&reply.body), reply.summary) }
        }
        // The channel closes without a reply after the client has cancelled its request: no response is owed,
        // and some clients fail on an unexpected response.
        Ok(None) => BodyPiece::end(),
        Err(_silence) => BodyPiece::from_bytes(sse::KEEP_ALIVE),
    }
}
