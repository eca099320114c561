//! A `tools/call` of a client of 2025-11-25 that is made here: as a task, or as one that may become a task.
//!
//! The call is made in the client's own session, without `params.task`, and a runtime task holds it
//! ([`CallDriver`]) from the start: no connection of the client's matters to it, and no departure cancels
//! anything (2025-11-25, *Sending Messages to the Server*).
//!
//! A call whose client wants a task [is one](as_task) before it is made, and the client has its answer at once:
//! the task. Another may become one without its client having asked for it (SEP-2229, draft), only for
//! clients that the operator named: others would not understand the answer. Its client [waits](on_stream). What the
//! server says on the way goes to it, its questions as they are; an answer before the threshold is a plain
//! answer, also to a client that did ask for a task. At the threshold it is a task, and the client is
//! given it as the call's result. So it is at once where the client leaves: it will find its task in `tasks/list`.
//! The events of such an answer are ours: they have no ids, and cannot be resumed.

use crate::{
    bridge::offer::{self, TaskParam},
    protocol::{ErrorObject, Frame, Method, RequestId, code, sse},
    proxy::{
        AccessSummary, BodyContinuation, BodyPiece, LegacyRequest, LegacyResponse, ReplyItem, ResponseBody,
        admission::PendingAdmission,
        call_registry::{CallWaiter, CancelTarget, ReplyTarget},
        drive::{CallDriver, CallSpan, NativeForm, NativeReplies},
        legacy_http::{self, json_response, stream_response},
        reply::lost_error,
        route_context::RouteContext,
        session::LegacyClient,
        tickets::TicketOptions,
    },
    task::{TaskView, view::experimental::TaskResultFormat},
    telemetry::RequestOutcome,
    upstream::{CallError, Deferral, NativeCall, own_ids},
};
use futures_util::{StreamExt, stream};
use http::header::USER_AGENT;
use std::{future::ready, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::{error::Elapsed, timeout},
};

/// Messages that wait for a client that reads slowly, before the server is kept waiting.
const MESSAGE_BUFFER: usize = 16;

/// What requests of the official SDK for Python are sent by.
const PYTHON_SDK_AGENT: &str = "python-httpx/";

/// Whether the client understands a task that it did not ask for.
pub(super) fn can_take_unsolicited(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
) -> bool {
    client.has_task_support() && is_named_unsolicited(shared, passage)
}

/// Whether the operator has named the client as one that understands an unasked task.
pub(super) fn is_named_unsolicited(shared: &RouteContext, passage: &LegacyRequest) -> bool {
    shared.route.legacy_tasks.unsolicited.applies_to(&passage.headers, || passage.principal.to_string())
}

/// A call in its client's own session, what comes of it, and its span.
type PreparedCall = (NativeForm, NativeReplies);

/// The call that `message` asks for, made in its client's own session. Nothing is sent before its replies are
/// polled.
pub(super) fn prepare_call(
    shared: &Arc<RouteContext>,
    passage: &LegacyRequest,
    client: &LegacyClient,
    message: &Frame,
    tool: &str,
    (wish, ticketing): (Option<TaskParam>, Option<TicketOptions>),
    turn: Option<PendingAdmission>,
) -> PreparedCall {
    // The session of a client whose server is a process is kept here: its calls are made in sessions of ours.
    let number = match shared.upstream.address() {
        Some(_) => shared.sessions.client_ids.next_of_ours(client.session),
        None => own_ids::next(),
    };
    let deferral = Deferral::new(shared.ledger.outlives());
    let (called, id) = ((&Method::ToolsCall, Some(tool)), RequestId::from_number(number));
    let span = CallSpan::begin(shared, passage.trace.as_deref(), called, Some(&id));
    let mut session = passage.session();
    let named = span.context().and_then(|context| {
        context.write_to_headers(&mut session.headers);
        Frame::parse(context.inject(message)?).ok()
    });
    let body = offer::call(named.as_ref().unwrap_or(message), number);
    let call = NativeCall { id: number, method: Method::ToolsCall, body, deferral: Some(deferral.clone()) };
    let token = message.params().and_then(offer::progress_token);
    let wants_progress = token.is_some();
    // A slice of the message would keep all of it.
    let token = token.and_then(RequestId::from_token).map(|token| token.detached());
    let (replies, call) = shared.upstream.call_in(session, call);
    let limits = shared.call_limits(tool, passage.principal, Some(&deferral));
    let (replies, dequeued) = match &limits {
        Some(limits) => limits.limit(turn, replies, &shared.clock),
        None => (replies, None),
    };
    let in_flight = &shared.sessions.in_flight;
    let in_flight =
        client.session.zip(call).map(|(key, call)| in_flight.begin_proxy_call(key, number, token, call));
    let native = NativeForm {
        owner: client.owner(&shared.route),
        session: client.session,
        tool: tool.to_owned(),
        ttl: wish.and_then(|wish| wish.ttl),
        wants_progress,
        view: if ticketing.is_some() { TaskView::Ticket } else { TaskView::Experimental },
        reader: reader(passage, wish),
        ticketing,
        progress: None,
        deferral,
        needs_credentials: shared.credentials(&passage.headers).can_identify_caller(),
        _in_flight: in_flight,
        began: shared.clock.now(),
        last_status: "working",
    };
    (native, NativeReplies { replies, span, limits, dequeued })
}

/// Who will read that it is a task. FastMCP 2.14 cannot be told from the official SDK for Python, on which it is built;
/// that reads either, so whatever sends its requests by that SDK's library is answered for both.
fn reader(passage: &LegacyRequest, wish: Option<TaskParam>) -> TaskResultFormat {
    let by = passage.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    match wish.is_some_and(|wish| wish.is_draft)
        || by.is_some_and(|agent| agent.starts_with(PYTHON_SDK_AGENT))
    {
        true => TaskResultFormat::Draft,
        false => TaskResultFormat::Published,
    }
}

/// Makes the task, and begins the call.
pub(super) async fn as_task(
    shared: &Arc<RouteContext>,
    (call, replies): PreparedCall,
    id: &RequestId,
) -> LegacyResponse {
    let (made, asked) = oneshot::channel();
    let work = Arc::clone(shared);
    // On its own from the start: a client that leaves while the task is stored must not leave a task
    // behind that nobody holds.
    shared.stopping.spawn(async move {
        match CallDriver::as_task(&work, call, replies).await {
            Ok((driver, created)) => {
                // Whoever has left finds it in `tasks/list`.
                let _ = made.send(Ok((driver.id().clone(), created)));
                driver.run().await;
            }
            Err(no_room) => drop(made.send(Err(no_room))),
        }
    });
    match asked.await {
        Ok(Ok((task, created))) => {
            let account = AccessSummary { task: Some(task), ..AccessSummary::of(RequestOutcome::Task) };
            legacy_http::success(id, &created, account)
        }
        // Never a plain result instead, which the client could not tell from the task's.
        Ok(Err(no_room)) => legacy_http::refusal(id, &ErrorObject::new(code::BUSY, no_room.to_string())),
        Err(_) => legacy_http::refusal(id, &lost_error(&CallError::Closing)),
    }
}

/// Makes the call, and waits with its client.
pub(super) async fn on_stream(
    shared: &Arc<RouteContext>,
    (call, replies): PreparedCall,
    id: RequestId,
    after: Duration,
    keep_alive: Duration,
) -> LegacyResponse {
    let (items, mut said) = mpsc::channel(MESSAGE_BUFFER);
    let waiter = CallWaiter { target: ReplyTarget::Native(id.detached()), items };
    let session = call.session;
    let driver = CallDriver::on_stream(shared, call, replies, after, waiter);
    let waits =
        session.map(|session| shared.sessions.waiting_calls.register(session, &id, driver.id().clone()));
    // On its own from the start: whether its client stays must not matter to it.
    shared.stopping.spawn(async move {
        driver.run().await;
        drop(waits);
    });
    let first = timeout(keep_alive, said.recv()).await;
    if let Ok(Some(ReplyItem::Reply(reply))) = first {
        return json_response(reply.body, reply.account);
    }
    let first = to_piece(first);
    let rest = stream::unfold((said, first.then), move |(mut said, before)| async move {
        if before == BodyContinuation::End {
            return None;
        }
        let piece = to_piece(timeout(keep_alive, said.recv()).await);
        let then = piece.then;
        Some((piece, (said, then)))
    });
    stream_response(ResponseBody::Pieces(stream::once(ready(first)).chain(rest).boxed()))
}

/// What is said to a client that waits, as it stands on its stream.
fn to_piece(said: Result<Option<ReplyItem>, Elapsed>) -> BodyPiece {
    match said {
        Ok(Some(ReplyItem::Notification(message))) => BodyPiece::of(sse::message(&message)),
        Ok(Some(ReplyItem::TaskEnd(message, commit))) => {
            BodyPiece { commit: Some(commit), ..BodyPiece::of(sse::message(&message)) }
        }
        Ok(Some(ReplyItem::Reply(reply))) => {
            BodyPiece { commit: reply.commit, ..BodyPiece::last(sse::message(&reply.body), reply.account) }
        }
        // The client has taken its request back, and is owed no answer: some take one that they do not
        // wait for amiss.
        Ok(None) => BodyPiece::end(),
        Err(_silence) => BodyPiece::of(sse::KEEP_ALIVE),
    }
}

/// The client takes requests back (2025-11-25, *Cancellation*). Those of them that wait here end here, and
/// their server is told under the ids that it knows. Whether all of them did.
pub(super) fn cancel_waiting(shared: &RouteContext, client: &LegacyClient, passage: &LegacyRequest) -> bool {
    let Some(session) = client.session else { return false };
    let mut all = true;
    for id in passage.post.cancelled_ids() {
        all &= match shared.sessions.waiting_calls.get(session, id.clone()) {
            Some(call) => shared.call_registry.cancel(&call, CancelTarget::Request),
            None => false,
        };
    }
    all
}
