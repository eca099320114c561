//! The state of a detached call: its open input requests, the recipients of its messages, and its task.

use super::{
    DetachedEvent,
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
        route_context::RouteContext,
        tasks::{ledger::TaskLease, reservations::Reservation, watchers::TaskWatcher},
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

/// The additional state of a call that is driven by a runtime task of its own.
pub(super) struct DetachedState {
    /// The call's mailbox and id.
    pub(super) registration: CallRegistration,
    /// The lease of the task, once the call is a task.
    pub(super) lease: Option<TaskLease>,
    /// The input requests of the server that have no response yet.
    pub(super) open_requests: OpenRequests,
    /// Client requests that wait for the response of the call.
    pub(super) waiters: Vec<CallWaiter>,
    /// The streams that carry the task's messages to a legacy client.
    pub(super) streams: Option<Box<TaskStreams>>,
    /// The space in the task quotas of a parked call: reserved from its first input request until the call is
    /// a task.
    pub(super) reservation: Option<Reservation>,
    /// The write that stores the new task, while it runs.
    pub(super) storing: Option<BoxFuture<'static, Stored>>,
    /// Changes of the task record that are not stored yet.
    pub(super) writes: RecordWrites,
    /// Messages for waiting requests whose channels are full.
    pub(super) unsent: UnsentItems,
    /// One receiver for each reply with the task's handle: resolves when the handle is delivered.
    pub(super) delivery_receivers: Vec<oneshot::Receiver<()>>,
    /// The latest progress message that is not stored yet.
    pub(super) progress: PendingProgress,
    /// The resume position, once the call is a task that outlives the process.
    pub(super) anchor: Option<Box<AnchorState>>,
    /// Whether the resume position must not advance any more. Set when an input request could not be stored:
    /// the next process resumes the call from before that request, so that the server sends it again.
    pub(super) is_resume_point_fixed: bool,
    /// A newer resume position, usable once the input requests before it are in the record.
    pub(super) resume_point: Option<Box<upstream::CallAnchor>>,
    /// After an `input_required` result of the server: how to make the call again, and the input responses so
    /// far.
    pub(super) pending_retry: Option<Box<(InputRequired, BTreeMap<String, Bytes>)>>,
    /// Watches the task record, if the client is notified of changes of the status.
    pub(super) record_watcher: Option<Box<TaskWatcher>>,
}

/// The outcome of storing a new task: its lease. On failure, a call that was parked gets its reservation
/// back.
pub(super) type Stored = Result<TaskLease, Option<Reservation>>;

/// The latest progress message that is not stored yet, and when it may be stored.
#[derive(Default)]
pub(super) struct PendingProgress {
    /// The message; `None` if the latest one is stored or being stored.
    pub(super) message: Option<String>,
    /// The earliest time of the next write; `None` before the first message.
    pub(super) not_before: Option<Instant>,
}

// === impl DetachedState ===

impl DetachedState {
    /// Registers the call under a new id. `supplied` are the input responses that came with the call itself.
    pub(super) fn new(shared: &RouteContext, policy: &ToolPolicy, supplied: InputResponses) -> Box<Self> {
        Self::from_registration(
            shared.ledger.call_registry.register(),
            OpenRequests::new(&shared.route.path, &policy.keys, supplied),
        )
    }

    /// Creates the state of a call that is registered already.
    pub(super) fn from_registration(
        registration: CallRegistration,
        open_requests: OpenRequests,
    ) -> Box<Self> {
        Box::new(Self {
            registration,
            lease: None,
            open_requests,
            waiters: Vec::new(),
            streams: None,
            reservation: None,
            storing: None,
            writes: RecordWrites::default(),
            unsent: UnsentItems::default(),
            delivery_receivers: Vec::new(),
            progress: PendingProgress::default(),
            anchor: None,
            is_resume_point_fixed: false,
            resume_point: None,
            pending_retry: None,
            record_watcher: None,
        })
    }

    /// The earliest time at which pending progress or a changed anchor may be written; `None` if there is
    /// neither.
    pub(super) fn write_due(&self) -> Option<Instant> {
        let progress = self.progress.due().filter(|_| !self.writes.has_progress());
        let anchor = self.anchor.as_ref().and_then(|anchor_state| anchor_state.due());
        let anchor = anchor.filter(|_| !self.writes.has_anchor());
        [progress, anchor].into_iter().flatten().min()
    }

    /// Sends a message of the server to all waiting legacy clients.
    pub(super) fn send_to_waiters(&mut self, message: &Bytes) {
        for waiter in &self.waiters {
            self.unsent.send(waiter, ReplyItem::Notification(message.clone()));
        }
    }

    /// Waits for the next event of the detached call. `has_waiting_client` is whether a client waits for the call
    /// itself.
    ///
    /// The future is boxed, because calls that are polled in place have no such state, and must not pay for
    /// its size. Rarely used futures within are boxed for the same reason.
    pub(super) fn next_event<'a>(
        &'a mut self,
        has_waiting_client: bool,
        deferral: Option<&'a Deferral>,
        now: impl FnOnce() -> Instant + Send + 'a,
    ) -> BoxFuture<'a, DetachedEvent> {
        Box::pin(async move {
            tokio::select! {
                biased;
                stored = or_pending(self.storing.as_mut()) => DetachedEvent::Stored(stored),
                (follow_up, result) = self.writes.next() => DetachedEvent::Written(follow_up, result),
                is_delivered = any_delivered(&mut self.delivery_receivers) => DetachedEvent::Committed(is_delivered),
                index = or_pending(has_waiting_client.then(|| Box::pin(delivery::any_disconnected(&self.waiters)))) => {
                    DetachedEvent::ClientDisconnected(index)
                }
                () = self.unsent.send_one() => DetachedEvent::Sent,
                command = self.registration.receive() => DetachedEvent::Received(command),
                stream_event = or_pending(self.streams.as_mut().map(|streams| Box::pin(streams.next_event(now)))) => {
                    DetachedEvent::Streams(stream_event)
                }
                _ = or_pending(self.record_watcher.as_ref().map(|watcher| Box::pin(watcher.changed()))) => {
                    DetachedEvent::RecordChanged
                }
                anchor = or_pending(deferral.filter(|it| it.is_durable() && self.lease.is_some()).map(|it| Box::pin(it.next_anchor()))) => {
                    DetachedEvent::ResumePoint(anchor)
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

/// Resolves with true as soon as one client has the task's handle, or with false once all have disconnected.
/// Never resolves without receivers.
async fn any_delivered(receivers: &mut Vec<oneshot::Receiver<()>>) -> bool {
    if receivers.is_empty() {
        return pending().await;
    }
    poll_fn(|cx| {
        let mut index = 0;
        while let Some(receiver) = receivers.get_mut(index) {
            match Pin::new(receiver).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(true),
                Poll::Ready(Err(_)) => drop(receivers.swap_remove(index)),
                Poll::Pending => index += 1,
            }
        }
        if receivers.is_empty() { Poll::Ready(false) } else { Poll::Pending }
    })
    .await
}
