//! What a call needs that is held by somebody else than the connection of its client: its questions, who hears of it,
//! and its task.

use super::{
    DriverEvent,
    anchor_state::AnchorState,
    delivery::{self, TaskStreams, UnsentItems},
    open_requests::OpenRequests,
    record_writes::RecordWrites,
};
use crate::{
    policy::ToolPolicy,
    protocol::InputResponses,
    proxy::{
        ReplyItem,
        call_registry::{CallRegistration, CallWaiter},
        ledger::TaskLease,
        reservations::Reservation,
        route_context::RouteContext,
        task_watchers::TaskWatcher,
    },
    runtime::or_pending,
    upstream::{self, Deferral, InputRequired},
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
pub(super) struct DetachedState {
    pub(super) registration: CallRegistration,
    /// Once it is a task.
    pub(super) lease: Option<TaskLease>,
    pub(super) open_requests: OpenRequests,
    /// Requests that wait for the call itself.
    pub(super) waiters: Vec<CallWaiter>,
    /// Where a legacy client hears of the task.
    pub(super) streams: Option<Box<TaskStreams>>,
    /// From its first question until it is a task.
    pub(super) parked: Option<Reservation>,
    pub(super) storing: Option<BoxFuture<'static, Option<TaskLease>>>,
    /// Changes of its record that are not stored yet.
    pub(super) writes: RecordWrites,
    /// Messages for waiters whose channels are full.
    pub(super) unsent: UnsentItems,
    /// One for each request that was given the handle.
    pub(super) committed: Vec<oneshot::Receiver<()>>,
    pub(super) progress: PendingProgress,
    /// Where it can be taken up, once it is a task that outlives the process.
    pub(super) anchor: Option<Box<AnchorState>>,
    /// The record could not take an input request: the call is resumed from before it, which brings it again.
    pub(super) is_resume_point_fixed: bool,
    /// Where the call could be resumed, once the input requests before that place are in the record.
    pub(super) resume_point: Option<Box<upstream::CallAnchor>>,
    /// How the call is made again, which the server has turned over, and the answers so far.
    pub(super) pending_retry: Option<Box<(InputRequired, BTreeMap<String, Bytes>)>>,
    /// Of the status, where the client is told it.
    pub(super) changes: Option<Box<TaskWatcher>>,
}

/// The latest word on progress, and when it may be written.
#[derive(Default)]
pub(super) struct PendingProgress {
    pub(super) message: Option<String>,
    pub(super) not_before: Option<Instant>,
}

// === impl Held ===

impl DetachedState {
    pub(super) fn new(shared: &RouteContext, policy: &ToolPolicy, supplied: InputResponses) -> Box<Self> {
        Self::with(
            shared.call_registry.register(),
            OpenRequests::new(&shared.route.path, &policy.keys, supplied),
        )
    }

    pub(super) fn with(hold: CallRegistration, book: OpenRequests) -> Box<Self> {
        Box::new(Self {
            registration: hold,
            lease: None,
            open_requests: book,
            waiters: Vec::new(),
            streams: None,
            parked: None,
            storing: None,
            writes: RecordWrites::default(),
            unsent: UnsentItems::default(),
            committed: Vec::new(),
            progress: PendingProgress::default(),
            anchor: None,
            is_resume_point_fixed: false,
            resume_point: None,
            pending_retry: None,
            changes: None,
        })
    }

    /// When something may be written that is not, the first of it.
    pub(super) fn write_due(&self) -> Option<Instant> {
        let progress = self.progress.due().filter(|_| !self.writes.has_progress());
        let anchor = self.anchor.as_ref().and_then(|anchored| anchored.due());
        let anchor = anchor.filter(|_| !self.writes.has_anchor());
        [progress, anchor].into_iter().flatten().min()
    }

    /// Whether every change is stored, and every message is sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.writes.is_empty() && self.unsent.is_empty()
    }

    /// Sends a message of the server to all legacy clients that wait.
    pub(super) fn send_to_waiters(&mut self, message: &Bytes) {
        for waiter in &self.waiters {
            self.unsent.send(waiter, ReplyItem::Notification(message.clone()));
        }
    }

    /// Boxed: a call whose client waits in place has nothing of it, and there are many of those. So is what only
    /// some of the held ones wait for.
    pub(super) fn next_event<'a>(
        &'a mut self,
        is_attended: bool,
        deferral: Option<&'a Deferral>,
        now: impl FnOnce() -> Instant + Send + 'a,
    ) -> BoxFuture<'a, DriverEvent> {
        Box::pin(async move {
            tokio::select! {
                biased;
                stored = or_pending(self.storing.as_mut()) => DriverEvent::Stored(stored),
                (after, result) = self.writes.next() => DriverEvent::Written(after, result),
                committed = any_committed(&mut self.committed) => DriverEvent::Committed(committed),
                who = or_pending(is_attended.then(|| Box::pin(delivery::any_disconnected(&self.waiters)))) => {
                    DriverEvent::ClientDisconnected(who)
                }
                () = self.unsent.flush_one() => DriverEvent::Sent,
                told = self.registration.receive() => DriverEvent::Received(told),
                happening = or_pending(self.streams.as_mut().map(|lines| Box::pin(lines.next_event(now)))) => {
                    DriverEvent::Streams(happening)
                }
                _ = or_pending(self.changes.as_ref().map(|changes| Box::pin(changes.changed()))) => {
                    DriverEvent::RecordChanged
                }
                anchor = or_pending(deferral.filter(|it| it.is_durable() && self.lease.is_some()).map(|it| Box::pin(it.next_anchor()))) => {
                    DriverEvent::ResumePoint(anchor)
                }
            }
        })
    }
}

// === impl Progress ===

impl PendingProgress {
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
