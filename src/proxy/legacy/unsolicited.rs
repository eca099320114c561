//! A call that becomes a task without its client having asked for one (SEP-2229, draft).
//!
//! Only for clients that the operator named: others would not understand the answer. The call is made
//! as one that is a task already, in the client's own session, but its client waits. What the server
//! says on the way goes to it, its questions as they are; an answer before the threshold is a plain
//! answer, also to a client that did ask for a task. At the threshold it is a task, and the client is
//! given it as the call's result. So it is at once where the client leaves: a departure is no cancel,
//! and it will find its task in `tasks/list`.
//!
//! The answer's events are ours: they have no ids, and cannot be resumed.

use crate::{
    dialect::legacy,
    protocol::{Id, sse},
    proxy::{
        Item, Passage, Passed, Passing, Piece, Then,
        drive::{Driver, Native},
        passage::{document, event_stream},
        session::Key,
        shared::Shared,
        switchboard::{Mail, Request, Waiter},
    },
    task::TaskId,
    upstream::Replies,
};
use bytes::Bytes;
use dashmap::DashMap;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};

/// The calls whose clients wait, by session and the client's own id: a cancel of one names that, which its
/// server has never heard of.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Waiting(DashMap<(Key, Id), TaskId>);

/// One of them, until it is dropped.
struct Waits {
    shared: Arc<Shared>,
    name: (Key, Id),
}

/// Messages that wait for a client that reads slowly, before the server is kept waiting.
const WAITING: usize = 16;

/// Whether the client understands a task that it did not ask for.
pub(super) fn takes(shared: &Shared, passage: &Passage) -> bool {
    is_named(shared, passage) && shared.knows_tasks(passage.principal, &passage.headers)
}

/// Whether the operator has named the client as one that understands an unasked task.
pub(super) fn is_named(shared: &Shared, passage: &Passage) -> bool {
    shared.route.legacy_tasks.unsolicited.holds_for(&passage.headers, || passage.principal.to_string())
}

/// Makes the call, and waits with its client.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    (call, replies): (Native, Replies),
    id: Id,
    after: Duration,
    keep_alive: Duration,
) -> Passed {
    let (items, mut said) = mpsc::channel(WAITING);
    let waiter = Waiter { request: Request::Native(id.detached()), items };
    let session = call.session;
    let driver = Driver::on_stream(shared, call, replies, after, waiter);
    let waits = session.map(|session| Waits::new(shared, session, &id, driver.id()));
    // On its own from the start: whether its client stays must not matter to it.
    shared.stopping.spawn(async move {
        driver.run().await;
        drop(waits);
    });
    let first = match timeout(keep_alive, said.recv()).await {
        Ok(Some(Item::Reply(reply))) => return document(reply.body, reply.account),
        Ok(Some(Item::Notification(message))) => piece(sse::message(&message)),
        Ok(None) => NO_ANSWER,
        Err(_silence) => piece(sse::KEEP_ALIVE),
    };
    let rest = stream::unfold(Some((said, keep_alive)), next);
    let pieces = stream::once(std::future::ready(first)).chain(rest).boxed();
    Passed { status: StatusCode::OK, headers: event_stream(), body: Passing::Pieces(pieces) }
}

/// The client takes requests back (2025-11-25, *Cancellation*). Those of them that wait here end here, and
/// their server is told under the ids that it knows. Whether all of them did.
pub(super) async fn taken_back(shared: &Shared, passage: &Passage) -> bool {
    let Some(session) = Key::of(passage.principal, &passage.headers) else { return false };
    let mut all = true;
    for id in legacy::cancels(&passage.body) {
        let call = shared.waiting.0.get(&(session, id)).map(|call| call.clone());
        all &= match call {
            Some(call) => shared.switchboard.post(&call, Mail::TakenBack).await,
            None => false,
        };
    }
    all
}

// === impl Waiting ===

impl Waiting {
    /// Whether there are any. Cheap.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Waits ===

impl Waits {
    fn new(shared: &Arc<Shared>, session: Key, id: &Id, call: &TaskId) -> Self {
        let name = (session, id.detached());
        shared.waiting.0.insert(name.clone(), call.clone());
        Self { shared: Arc::clone(shared), name }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.shared.waiting.0.remove(&self.name);
    }
}

/// What is still to come, and the next of it.
type Rest = Option<(mpsc::Receiver<Item>, Duration)>;

async fn next(rest: Rest) -> Option<(Piece, Rest)> {
    let (mut said, keep_alive) = rest?;
    Some(match timeout(keep_alive, said.recv()).await {
        Ok(Some(Item::Notification(message))) => (piece(sse::message(&message)), Some((said, keep_alive))),
        Ok(Some(Item::Reply(reply))) => {
            (Piece { bytes: sse::message(&reply.body), account: Some(reply.account), then: Then::End }, None)
        }
        Ok(None) => (NO_ANSWER, None),
        Err(_silence) => (piece(sse::KEEP_ALIVE), Some((said, keep_alive))),
    })
}

/// The end for a client that has taken its request back, and is owed no answer: some take one that they do not
/// wait for amiss.
const NO_ANSWER: Piece = Piece { bytes: Bytes::new(), account: None, then: Then::End };

fn piece(bytes: Bytes) -> Piece {
    Piece { bytes, account: None, then: Then::More }
}
