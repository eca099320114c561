//! Writes the anchor of a task's call, from which the next process can resume the call, and releases the call
//! to that process at shutdown.
//!
//! A call has an anchor only if the store outlives the process and the server sends event ids: otherwise the
//! next process could not resume the stream.

use super::{CallDriver, CallForm, DetachedState, record_writes::WriteFollowUp};
use crate::{
    bridge::exchange::ExchangePhase,
    protocol::RequestId,
    proxy::{
        reply::CallEnd,
        tasks::{
            anchor::{AnchorForm, TaskAnchor},
            orphan_report::OrphanFate,
            persist::STORE_RETRY_DELAY,
        },
    },
    store::UpdateOutcome,
    task::{self, TaskState},
    upstream::{self, CallError, Deferral},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// The resume position of a call, and the state of its writes to the store.
pub(super) struct AnchorState {
    /// The latest resume position.
    call: Box<upstream::CallAnchor>,
    /// When the anchor is due to be written; `None` if the stored anchor is up to date.
    due: Option<Instant>,
    /// The earliest time of the next write.
    not_before: Instant,
    /// The value of `OpenRequests::change_count` at the last write.
    changes: u32,
    /// Whether an anchor is stored from which the call can be resumed.
    is_stored: bool,
    /// Responses that the server may not have received: when they were sent, the server's id of the input
    /// request, and the key.
    sent_responses: Vec<(Instant, RequestId, String)>,
    /// Keys of input requests that the server has cancelled and that could not be removed from the record.
    withdrawn: Vec<String>,
    /// For a recovered call whose fate is not known yet: records the fate in the log's report.
    fate: Option<OrphanFate>,
}

/// The shortest time between two writes of an anchor, each of which is a write of the store. Changed input
/// requests are written without this delay, so that only progress notifications can be repeated after a
/// restart.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// How long the release of a call waits for queued changes of its record; it waits twice. Less than the time
/// that remains for the process after the drain time.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(750);

/// How long a response to the server may be in flight. An event of the server within this time does not prove
/// that the server has received the response: the event may have been sent before, or be repeated after a
/// resumption.
const DELIVERY_WINDOW: Duration = Duration::from_secs(5);

// === impl CallDriver ===

impl CallDriver {
    /// Updates the position from which the call can be resumed, and schedules its write.
    pub(super) fn set_resume_point(&mut self, call: Box<upstream::CallAnchor>) {
        let now = self.shared.clock.now();
        let detached = self.detached();
        if detached.is_resume_point_fixed {
            return;
        }
        if detached.writes.has_input_request() {
            // A resume position after an input request that is not in the record yet would lose the request.
            detached.resume_point = Some(call);
            return;
        }
        let Some(anchor_state) = &mut detached.anchor else {
            detached.anchor = Some(Box::new(AnchorState {
                call,
                due: Some(now),
                not_before: now,
                changes: 0,
                is_stored: false,
                sent_responses: Vec::new(),
                withdrawn: Vec::new(),
                fate: None,
            }));
            return;
        };
        // An event of the server proves that a recovered call was resumed.
        anchor_state.fate.take().into_iter().for_each(OrphanFate::record_resumed);
        anchor_state.call = call;
        anchor_state.due = Some(anchor_state.not_before);
        // The server has sent an event long after these responses, and so has received them. When in doubt a
        // response stays stored: a duplicate is harmless, and a missing one would block the call.
        let has_arrived = |sent: Instant| now.saturating_duration_since(sent) >= DELIVERY_WINDOW;
        let arrived = anchor_state.sent_responses.iter().filter(|(sent, ..)| has_arrived(*sent));
        let arrived_keys: Vec<_> = arrived.map(|(_, _, key)| key.clone()).collect();
        if !detached.writes.has_delivered() {
            self.queue_delivered(arrived_keys);
        }
    }

    /// Records that a response to the input request `key` was sent to the server; `id` is the server's
    /// request id.
    pub(super) fn record_sent_response(&mut self, id: Option<RequestId>, key: String) {
        let now = self.shared.clock.now();
        match (&mut self.detached().anchor, id) {
            (Some(anchor_state), Some(id)) => anchor_state.sent_responses.push((now, id, key)),
            // Without an anchor no other process can deliver the response again.
            _ => self.queue_delivered(vec![key]),
        }
    }

    /// Queues the removal of a cancelled input request from the task record.
    pub(super) fn queue_withdrawal(&mut self, key: String) {
        let event = task::TaskEvent::InputWithdrawn { key: key.clone() };
        self.queue_write(event, WriteFollowUp::Withdrawn { key });
    }

    /// Keeps the key of a cancelled input request that could not be removed from the record, for the next
    /// process.
    pub(super) fn keep_withdrawal(&mut self, key: String) {
        if let Some(anchor_state) = &mut self.detached().anchor {
            anchor_state.withdrawn.push(key);
        }
    }

    /// Queues the removal of responses that the server has received from the task record.
    pub(super) fn queue_delivered(&mut self, keys: Vec<String>) {
        if !keys.is_empty() && self.shared.ledger.is_durable() {
            let event = task::TaskEvent::InputDelivered { keys: keys.clone() };
            self.queue_write(event, WriteFollowUp::Delivered { keys });
        }
    }

    /// Whether input requests were recorded or closed since the last write of the anchor, which contains the
    /// server's ids of open input requests.
    pub(super) fn has_changed_requests(&self) -> bool {
        let Some(detached) = &self.detached else { return false };
        let is_changed =
            |anchor_state: &AnchorState| anchor_state.changes != detached.open_requests.change_count;
        detached.anchor.as_deref().is_some_and(is_changed) && !detached.writes.has_anchor()
    }

    /// Queues a write of the anchor, if the call has one.
    pub(super) fn queue_anchor(&mut self) {
        let Some(anchor) = self.build_anchor() else { return };
        let ledger = Arc::clone(&self.shared.ledger);
        let detached = self.detached();
        let Some(anchor_state) = &mut detached.anchor else { return };
        let has_event = anchor_state.call.last_event.is_some();
        (anchor_state.changes, anchor_state.due) = (detached.open_requests.change_count, None);
        let id = detached.registration.id().clone();
        let anchor = async move { ledger.store_anchor(&id, &anchor).await.map(|()| UpdateOutcome::Unknown) };
        detached.writes.push(WriteFollowUp::Anchor { has_event }, Box::pin(anchor));
    }

    /// Handles the result of a write of the anchor: `has_event` is whether the call can be resumed from the
    /// anchor, `is_stored` whether the write succeeded.
    pub(super) fn handle_anchor_written(&mut self, has_event: bool, is_stored: bool) {
        let now = self.shared.clock.now();
        if let Some(anchor_state) = &mut self.detached().anchor {
            anchor_state.not_before = now + if is_stored { WRITE_INTERVAL } else { STORE_RETRY_DELAY };
            anchor_state.due = match is_stored {
                // The resume position may have changed during the write.
                true => anchor_state.due.map(|due| due.max(anchor_state.not_before)),
                false => Some(anchor_state.not_before),
            };
            anchor_state.is_stored |= is_stored && has_event;
        }
    }

    /// Removes the stored anchor of a cancelled call after its end, because otherwise the next process would
    /// send the cancellation again. Waits a moment first, so that the cancellation reaches the server.
    pub(super) async fn remove_cancelled_anchor(&mut self) {
        let shared = self.shared.clone();
        let id = self.id().clone();
        let is_cancelled =
            || shared.ledger.last_stored(&id).is_some_and(|record| record.state == TaskState::Cancelled);
        if self.detached().anchor.is_none() || !is_cancelled() {
            return;
        }
        // The call has ended, so the task needs no lease.
        self.detached().lease = None;
        tokio::select! {
            () = sleep(WRITE_INTERVAL) => {}
            () = shared.overdue.stopped() => {}
        }
        // If the removal fails, the next process sends the cancellation again.
        let _ = shared.ledger.remove_anchor(&id).await;
    }

    /// The anchor to write; `None` if the call cannot be resumed.
    fn build_anchor(&self) -> Option<TaskAnchor> {
        let detached = self.detached.as_ref()?;
        let anchor_state = detached.anchor.as_ref()?;
        let open = detached.open_requests.iter().filter(|(_, open)| open.is_recorded);
        let open = open.filter_map(|(_, open)| Some((open.id.as_ref()?.to_string(), open.key.clone())));
        let sent = anchor_state.sent_responses.iter().map(|(_, id, key)| (id.to_string(), key.clone()));
        let requests = open.chain(sent);
        let (needs_credentials, form) = match &self.form {
            CallForm::Canonical(canonical) => {
                let declared = String::from_utf8_lossy(canonical.caller.capabilities.as_bytes()).into_owned();
                (canonical.caller.credentials.can_identify_caller(), AnchorForm::Canonical { declared })
            }
            CallForm::Native(native) => {
                let session = native.session.map(|session| session.digest());
                (
                    native.needs_credentials,
                    AnchorForm::Native { session, wants_progress: native.wants_progress },
                )
            }
        };
        Some(TaskAnchor {
            call: (*anchor_state.call).clone(),
            needs_credentials,
            words: form,
            questions: requests.collect(),
            taken_back: anchor_state.withdrawn.clone(),
        })
    }

    /// Records the fate of a recovered call that ended before any event of its server.
    pub(super) fn record_fate(&mut self) {
        let anchor_state = self.detached.as_mut().and_then(|detached| detached.anchor.as_mut());
        if let Some(fate) = anchor_state.and_then(|anchor_state| anchor_state.fate.take())
            && let Some(record) = self.shared.ledger.last_stored(self.id())
        {
            fate.record_ended(&record.state);
        }
    }

    /// Whether the call can be left to the next process.
    pub(super) fn can_be_released(&self) -> bool {
        self.exchange.phase() == ExchangePhase::Deferred
            && self.detached.as_ref().is_some_and(|detached| detached.anchor.is_some())
    }

    /// Leaves the call to the next process at the end of the drain time, or ends the call if that is
    /// impossible.
    pub(super) async fn release_or_end_call(&mut self) {
        // Changes by the client before the deadline still take effect: a cancellation, or input responses.
        self.flush_for_release().await;
        self.queue_anchor();
        self.flush_for_release().await;
        if self.exchange.phase() != ExchangePhase::Deferred {
            return;
        }
        if !self.release() {
            self.end(CallEnd::Lost(CallError::Closing));
        }
    }

    /// Waits for the queued changes of the record, then handles the messages in the call's mailbox. Does not
    /// wait longer than [`RELEASE_TIMEOUT`]: if the store does not respond, the call is resumed from the last
    /// stored state.
    async fn flush_for_release(&mut self) {
        let writes = async {
            while !self.detached().writes.is_empty() {
                let (follow_up, result) = self.detached().writes.next().await;
                self.handle_written(follow_up, result);
            }
        };
        let _ = timeout(RELEASE_TIMEOUT, writes).await;
        while let Some(command) = self.detached().registration.try_receive() {
            self.receive(command);
        }
        while let Some(action) = self.exchange.poll_action() {
            self.carry_out(action);
        }
    }

    /// Leaves the call to the next process: the call continues at its server, and its input requests stay
    /// open. Returns false if no anchor is stored from which the call can be resumed.
    fn release(&mut self) -> bool {
        if !self.detached().anchor.as_deref().is_some_and(|anchor_state| anchor_state.is_stored) {
            return false;
        }
        if let Some(deferral) = self.form.deferral() {
            deferral.release();
        }
        self.replies = None;
        self.detached().open_requests.close_all().into_iter().for_each(|open| open.target.withdraw());
        self.span.record_release();
        self.exchange.handle_released();
        self.shared.ledger.count_released();
        // From now on the anchor belongs to the next process, which also sends later cancellations.
        self.detached().anchor = None;
        true
    }
}

// === impl DetachedState ===

impl DetachedState {
    /// Restores the resume position at which the former process left the call, and the responses that were
    /// sent to the server again.
    pub(super) fn restore_anchor(
        &mut self,
        call: upstream::CallAnchor,
        sent_responses: Vec<(RequestId, String)>,
        now: Instant,
        fate: OrphanFate,
    ) {
        let call = Box::new(call);
        let sent_responses = sent_responses.into_iter().map(|(id, key)| (now, id, key)).collect();
        let is_stored = true;
        let (withdrawn, fate) = (Vec::new(), Some(fate));
        let anchor_state = AnchorState {
            call,
            due: None,
            not_before: now,
            changes: 0,
            is_stored,
            sent_responses,
            withdrawn,
            fate,
        };
        self.anchor = Some(Box::new(anchor_state));
    }
}

// === impl AnchorState ===

impl AnchorState {
    /// Forgets the responses with these keys, which the record no longer contains.
    pub(super) fn remove_delivered(&mut self, keys: &[String]) {
        self.sent_responses.retain(|(_, _, key)| !keys.contains(key));
    }

    /// When the anchor is due to be written; `None` if the stored anchor is up to date.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

// === impl CallForm ===

impl CallForm {
    /// The handle that signals to the upstream that the call is a task; `None` if the call cannot become one.
    pub(super) fn deferral(&self) -> Option<&Deferral> {
        match self {
            Self::Canonical(canonical) => canonical.deferral.as_ref(),
            Self::Native(native) => Some(&native.deferral),
        }
    }
}
