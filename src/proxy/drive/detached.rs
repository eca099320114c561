//! The state of a detached call: its open input requests, the recipients of its messages, and its task.

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

/// The state that a detached call needs in addition.
pub(super) struct DetachedState {
    pub(super) registration: CallRegistration,
    /// Set once the call is a task.
    pub(super) lease: Option<TaskLease>,
    pub(super) open_requests: OpenRequests,
    /// Requests that wait for the call itself.
    pub(super) waiters: Vec<CallWaiter>,
    /// The streams that carry the task's messages to a legacy client.
    pub(super) streams: Option<Box<TaskStreams>>,
    /// Held from the first input request until the call is a task.
    pub(super) parked: Option<Reservation>,
    pub(super) storing: Option<BoxFuture<'static, Stored>>,
    /// Changes of the record that are not stored yet.
    pub(super) writes: RecordWrites,
    /// Messages for waiters with full channels.
    pub(super) unsent: UnsentItems,
    /// One for each request that was given the handle.
    pub(super) committed: Vec<oneshot::Receiver<()>>,
    pub(super) progress: PendingProgress,
    /// The resume position, once the call is a task that outlives the process.
    pub(super) anchor: Option<Box<AnchorState>>,
    /// The record could not store an input request: the call is resumed from before it, so that the server
    /// sends it again.
    pub(super) is_resume_point_fixed: bool,
    /// A newer resume position, usable once the input requests before it are in the record.
    pub(super) resume_point: Option<Box<upstream::CallAnchor>>,
    /// How to make the call again after an `input_required` result, and the responses so far.
    pub(super) pending_retry: Option<Box<(InputRequired, BTreeMap<String, Bytes>)>>,
    /// Changes of the status, if the client is notified of them.
    pub(super) changes: Option<Box<TaskWatcher>>,
}

/// Whether the task is stored. Where it is not, a call that was parked has its reservation back.
pub(super) type Stored = Result<TaskLease, Option<Reservation>>;

/// The latest progress message, and when it may be written.
#[derive(Default)]
pub(super) struct PendingProgress {
    pub(super) message: Option<String>,
    pub(super) not_before: Option<Instant>,
}

// === impl DetachedState ===

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

    /// The earliest time at which something unwritten may be written.
    pub(super) fn write_due(&self) -> Option<Instant> {
        let progress = self.progress.due().filter(|_| !self.writes.has_progress());
        let anchor = self.anchor.as_ref().and_then(|anchored| anchored.due());
        let anchor = anchor.filter(|_| !self.writes.has_anchor());
        [progress, anchor].into_iter().flatten().min()
    }

    /// Sends a message of the server to all waiting legacy clients.
    pub(super) fn send_to_waiters(&mut self, message: &Bytes) {
        for waiter in &self.waiters {
            self.unsent.send(waiter, ReplyItem::Notification(message.clone()));
        }
    }

    /// Boxed: calls that wait in place do not have this state, and there are many of them. The rare futures
    /// inside are boxed for the same reason.
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
                command = self.registration.receive() => DriverEvent::Received(command),
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

// === impl PendingProgress ===

impl PendingProgress {
    /// When the message may be written, if there is one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.message.as_ref().and(self.not_before)
    }
}

/// Resolves with whether a client has the handle: as soon as one has it, or all have disconnected.
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
