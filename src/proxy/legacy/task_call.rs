//! A `tools/call` of a client of 2025-11-25 that is made here: as a task, or as one that may become a task.
//!
//! The call is made in the client's own session, without `params.task`, and a runtime task holds it
//! ([`Driver`]) from the start: no connection of the client's matters to it, and no departure cancels
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
    protocol::{ErrorObject, Frame, Id, Method, code, sse},
    proxy::{
        AccessSummary, Item, Passage, Passed, Passing, Piece, Then,
        admission::Turn,
        drive::{CallSpan, Driver, Native, NativeReplies},
        passage::{self, document, events},
        reply::lost_error,
        session::Client,
        shared::Shared,
        switchboard::{CallCancelled, Request, Waiter},
        tickets::Ticketing,
    },
    task::{View, view::experimental::Reader},
    telemetry::Outcome,
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
const WAITING: usize = 16;

/// What requests of the official SDK for Python are sent by.
const PYTHON: &str = "python-httpx/";

/// Whether the client understands a task that it did not ask for.
pub(super) fn takes_unasked(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    client.knows_tasks() && is_named(shared, passage)
}

/// Whether the operator has named the client as one that understands an unasked task.
pub(super) fn is_named(shared: &Shared, passage: &Passage) -> bool {
    shared.route.legacy_tasks.unsolicited.holds_for(&passage.headers, || passage.principal.to_string())
}

/// A call in its client's own session, what comes of it, and its span.
type Begun = (Native, NativeReplies);

/// The call that `message` asks for, made in its client's own session. Nothing is sent before its replies are
/// polled.
pub(super) fn in_session(
    shared: &Arc<Shared>,
    passage: &Passage,
    client: &Client,
    message: &Frame,
    tool: &str,
    (wish, ticketing): (Option<TaskParam>, Option<Ticketing>),
    turn: Option<Turn>,
) -> Begun {
    // The session of a client whose server is a process is kept here: its calls are made in sessions of ours.
    let number = match shared.upstream.address() {
        Some(_) => shared.sessions.client_ids.next_of_ours(client.session),
        None => own_ids::next(),
    };
    let deferral = Deferral::new(shared.ledger.outlives());
    let (called, id) = ((&Method::ToolsCall, Some(tool)), Id::from_number(number));
    let span = CallSpan::begin(shared, passage.trace.as_deref(), called, Some(&id));
    let mut session = passage.session();
    let named = span.context().and_then(|context| {
        context.put_in_headers(&mut session.headers);
        Frame::parse(context.put_in(message)?).ok()
    });
    let body = offer::call(named.as_ref().unwrap_or(message), number);
    let call = NativeCall { id: number, method: Method::ToolsCall, body, deferral: Some(deferral.clone()) };
    let token = message.params().and_then(offer::progress_token);
    let wants_progress = token.is_some();
    // A slice of the message would keep all of it.
    let token = token.and_then(Id::from_token).map(|token| token.detached());
    let (replies, call) = shared.upstream.call_in(session, call);
    let limits = shared.limited(tool, passage.principal, Some(&deferral));
    let (replies, dequeued) = match &limits {
        Some(limits) => limits.limit(turn, replies, &shared.clock),
        None => (replies, None),
    };
    let in_flight = &shared.sessions.in_flight;
    let in_flight = client.session.zip(call).map(|(key, call)| in_flight.begin(key, number, token, call));
    let native = Native {
        owner: client.owner(&shared.route),
        session: client.session,
        tool: tool.to_owned(),
        ttl: wish.and_then(|wish| wish.ttl),
        wants_progress,
        view: if ticketing.is_some() { View::Ticket } else { View::Experimental },
        reader: reader(passage, wish),
        ticketing,
        said: None,
        deferral,
        needs_credentials: shared.credentials(&passage.headers).may_tell_who_calls(),
        _in_flight: in_flight,
        began: shared.clock.now(),
        told: "working",
    };
    (native, NativeReplies { replies, span, limits, dequeued })
}

/// Who will read that it is a task. FastMCP 2.14 cannot be told from the official SDK for Python, on which it is built;
/// that reads either, so whatever sends its requests by that SDK's library is answered for both.
fn reader(passage: &Passage, wish: Option<TaskParam>) -> Reader {
    let by = passage.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    match wish.is_some_and(|wish| wish.is_draft) || by.is_some_and(|agent| agent.starts_with(PYTHON)) {
        true => Reader::Draft,
        false => Reader::Published,
    }
}

/// Makes the task, and begins the call.
pub(super) async fn as_task(shared: &Arc<Shared>, (call, replies): Begun, id: &Id) -> Passed {
    let (made, asked) = oneshot::channel();
    let work = Arc::clone(shared);
    // On its own from the start: a client that leaves while the task is stored must not leave a task
    // behind that nobody holds.
    shared.stopping.spawn(async move {
        match Driver::of_a_task(&work, call, replies).await {
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
            let account = AccessSummary { task: Some(task), ..AccessSummary::of(Outcome::Task) };
            passage::success(id, &created, account)
        }
        // Never a plain result instead, which the client could not tell from the task's.
        Ok(Err(no_room)) => passage::refusal(id, &ErrorObject::new(code::BUSY, no_room.to_string())),
        Err(_) => passage::refusal(id, &lost_error(&CallError::Closing)),
    }
}

/// Makes the call, and waits with its client.
pub(super) async fn on_stream(
    shared: &Arc<Shared>,
    (call, replies): Begun,
    id: Id,
    after: Duration,
    keep_alive: Duration,
) -> Passed {
    let (items, mut said) = mpsc::channel(WAITING);
    let waiter = Waiter { request: Request::Native(id.detached()), items };
    let session = call.session;
    let driver = Driver::on_stream(shared, call, replies, after, waiter);
    let waits = session.map(|session| shared.sessions.waiting.register(session, &id, driver.id().clone()));
    // On its own from the start: whether its client stays must not matter to it.
    shared.stopping.spawn(async move {
        driver.run().await;
        drop(waits);
    });
    let first = timeout(keep_alive, said.recv()).await;
    if let Ok(Some(Item::Reply(reply))) = first {
        return document(reply.body, reply.account);
    }
    let first = piece(first);
    let rest = stream::unfold((said, first.then), move |(mut said, before)| async move {
        if before == Then::End {
            return None;
        }
        let piece = piece(timeout(keep_alive, said.recv()).await);
        let then = piece.then;
        Some((piece, (said, then)))
    });
    events(Passing::Pieces(stream::once(ready(first)).chain(rest).boxed()))
}

/// What is said to a client that waits, as it stands on its stream.
fn piece(said: Result<Option<Item>, Elapsed>) -> Piece {
    match said {
        Ok(Some(Item::Notification(message))) => Piece::of(sse::message(&message)),
        Ok(Some(Item::TaskEnd(message, commit))) => {
            Piece { commit: Some(commit), ..Piece::of(sse::message(&message)) }
        }
        Ok(Some(Item::Reply(reply))) => {
            Piece { commit: reply.commit, ..Piece::last(sse::message(&reply.body), reply.account) }
        }
        // The client has taken its request back, and is owed no answer: some take one that they do not
        // wait for amiss.
        Ok(None) => Piece::end(),
        Err(_silence) => Piece::of(sse::KEEP_ALIVE),
    }
}

/// The client takes requests back (2025-11-25, *Cancellation*). Those of them that wait here end here, and
/// their server is told under the ids that it knows. Whether all of them did.
pub(super) fn taken_back(shared: &Shared, client: &Client, passage: &Passage) -> bool {
    let Some(session) = client.session else { return false };
    let mut all = true;
    for id in passage.post.cancels() {
        all &= match shared.sessions.waiting.get(session, id.clone()) {
            Some(call) => shared.switchboard.end(&call, CallCancelled::Request),
            None => false,
        };
    }
    all
}
