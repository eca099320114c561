//! What a call needs that is held by somebody else than the connection of its client: its questions, who hears of it,
//! and its task.

use super::{
    Happening,
    anchored::Anchored,
    audience::{self, Lines, UnsentItems},
    book::Book,
    record_writes::RecordWrites,
};
use crate::{
    policy::ToolPolicy,
    protocol::InputResponses,
    proxy::{
        Item,
        hub::Listener,
        ledger::Custody,
        reservations::Reservation,
        shared::Shared,
        switchboard::{Hold, Waiter},
    },
    runtime::or_never,
    upstream::{self, Deferral, TurnedOver},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    collections::BTreeMap,
    future::{pending, poll_fn},
    pin::Pin,
    task::Poll,
    time::Instant,
};
use tokio::sync::oneshot;

/// What a held call needs beside.
pub(super) struct Held {
    pub(super) hold: Hold,
    /// Once it is a task.
    pub(super) task: Option<Custody>,
    pub(super) book: Book,
    /// Requests that wait for the call itself.
    pub(super) waiters: Vec<Waiter>,
    /// Where a legacy client hears of the task.
    pub(super) lines: Option<Box<Lines>>,
    /// From its first question until it is a task.
    pub(super) parked: Option<Reservation>,
    pub(super) storing: Option<BoxFuture<'static, Option<Custody>>>,
    /// Changes of its record that are not stored yet.
    pub(super) writes: RecordWrites,
    /// Messages for waiters whose channels are full.
    pub(super) unsent: UnsentItems,
    /// One for each request that was given the handle.
    pub(super) committed: Vec<oneshot::Receiver<()>>,
    pub(super) progress: Progress,
    /// Where it can be taken up, once it is a task that outlives the process.
    pub(super) anchored: Option<Box<Anchored>>,
    /// The record could not take an input request: the call is resumed from before it, which brings it again.
    pub(super) is_place_fixed: bool,
    /// Where the call could be resumed, once the input requests before that place are in the record.
    pub(super) resume_point: Option<Box<upstream::Anchor>>,
    /// How the call is made again, which the server has turned over, and the answers so far.
    pub(super) turned_over: Option<Box<(TurnedOver, BTreeMap<String, Bytes>)>>,
    /// Of the status, where the client is told it.
    pub(super) changes: Option<Box<Listener>>,
}

/// The latest word on progress, and when it may be written.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) message: Option<String>,
    pub(super) not_before: Option<Instant>,
}

// === impl Held ===

impl Held {
    pub(super) fn new(shared: &Shared, policy: &ToolPolicy, supplied: InputResponses) -> Box<Self> {
        Self::with(shared.switchboard.hold(), Book::new(&shared.route.path, &policy.keys, supplied))
    }

    pub(super) fn with(hold: Hold, book: Book) -> Box<Self> {
        Box::new(Self {
            hold,
            task: None,
            book,
            waiters: Vec::new(),
            lines: None,
            parked: None,
            storing: None,
            writes: RecordWrites::default(),
            unsent: UnsentItems::default(),
            committed: Vec::new(),
            progress: Progress::default(),
            anchored: None,
            is_place_fixed: false,
            resume_point: None,
            turned_over: None,
            changes: None,
        })
    }

    /// When something may be written that is not, the first of it.
    pub(super) fn write_due(&self) -> Option<Instant> {
        let progress = self.progress.due().filter(|_| !self.writes.has_progress());
        let anchor = self.anchored.as_ref().and_then(|anchored| anchored.due());
        let anchor = anchor.filter(|_| !self.writes.has_anchor());
        [progress, anchor].into_iter().flatten().min()
    }

    /// Whether every change is stored, and every message is sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.writes.is_empty() && self.unsent.is_empty()
    }

    /// Sends a message of the server to all legacy clients that wait.
    pub(super) fn tell_all(&mut self, message: &Bytes) {
        for waiter in &self.waiters {
            self.unsent.send(waiter, Item::Notification(message.clone()));
        }
    }

    /// Boxed: a call whose client waits in place has nothing of it, and there are many of those. So is what only
    /// some of the held ones wait for.
    pub(super) fn happens<'a>(
        &'a mut self,
        is_attended: bool,
        deferral: Option<&'a Deferral>,
        now: impl FnOnce() -> Instant + Send + 'a,
    ) -> BoxFuture<'a, Happening> {
        Box::pin(async move {
            tokio::select! {
                biased;
                stored = or_never(self.storing.as_mut()) => Happening::Stored(stored),
                (after, result) = self.writes.next() => Happening::Written(after, result),
                committed = any_committed(&mut self.committed) => Happening::Committed(committed),
                who = or_never(is_attended.then(|| Box::pin(audience::any_left(&self.waiters)))) => {
                    Happening::Departed(who)
                }
                () = self.unsent.flush_one() => Happening::Sent,
                told = self.hold.told() => Happening::Told(told),
                happening = or_never(self.lines.as_mut().map(|lines| Box::pin(lines.happens(now)))) => {
                    Happening::Lines(happening)
                }
                _ = or_never(self.changes.as_ref().map(|changes| Box::pin(changes.changed()))) => {
                    Happening::Changed
                }
                anchor = or_never(deferral.filter(|it| it.outlives() && self.task.is_some()).map(|it| Box::pin(it.moved()))) => {
                    Happening::Moved(anchor)
                }
            }
        })
    }
}

// === impl Progress ===

impl Progress {
    /// When it may be written, if there is anything.
    pub(super) fn due(&self) -> Option<Instant> {
        self.message.as_ref().and(self.not_before)
    }
}

/// Whether one of those who were given the handle has it: as soon as one has, or all have left.
async fn any_committed(receivers: &mut Vec<oneshot::Receiver<()>>) -> bool {
    if receivers.is_empty() {
        return pending().await;
    }
    poll_fn(|cx| {
        let mut at = 0;
        while let Some(receiver) = receivers.get_mut(at) {
            match Pin::new(receiver).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(true),
                Poll::Ready(Err(_)) => drop(receivers.swap_remove(at)),
                Poll::Pending => at += 1,
            }
        }
        if receivers.is_empty() { Poll::Ready(false) } else { Poll::Pending }
    })
    .await
}
