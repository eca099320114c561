//! What is kept of a task's call for the process after this one, and how it is left to that process.
//!
//! Only where the store outlives the process, and the server gives its events ids: without them nobody could hear
//! again what it has said meanwhile.

use super::{CallDriver, CallForm, DetachedState, record_writes::WriteFollowUp};
use crate::{
    bridge::exchange::ExchangePhase,
    protocol::RequestId,
    proxy::{
        anchor::{AnchorForm, TaskAnchor},
        orphan_report::OrphanFate,
        persist::STORE_RETRY_DELAY,
        reply::CallEnd,
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

/// Where the call is, as the next process is to know it.
pub(super) struct AnchorState {
    call: Box<upstream::CallAnchor>,
    /// When it is to be written, if it is not.
    due: Option<Instant>,
    not_before: Instant,
    /// What had changed in the book when it was written.
    changes: u32,
    /// It can be taken up from where it was written last.
    is_stored: bool,
    /// What the client has answered, and the server may not have, with the time when it was sent: its id for the
    /// question, and the key.
    answered: Vec<(Instant, RequestId, String)>,
    /// The keys of what the server has taken back, where the store has not taken that.
    withdrawn: Vec<String>,
    /// Of a call of a former process, until it is known what has become of it.
    fate: Option<OrphanFate>,
}

/// It is written at most this often, but for questions: a store write each. What the server says twice because of
/// that is progress.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// How long the changes of a call are waited for that is left to the next process, twice. Less than the process has left.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(750);

/// How long an answer may be on its way. What the server says within it may have been said before the answer came, or
/// be what it said before the call was taken up.
const DELIVERY_WINDOW: Duration = Duration::from_secs(5);

// === impl Driver ===

impl CallDriver {
    /// The call can be taken up from here.
    pub(super) fn set_resume_point(&mut self, call: Box<upstream::CallAnchor>) {
        let now = self.shared.clock.now();
        let held = self.detached();
        if held.is_resume_point_fixed {
            return;
        }
        if held.writes.has_input_request() {
            // An anchor behind an input request that the record does not have would lose it.
            held.resume_point = Some(call);
            return;
        }
        let Some(anchored) = &mut held.anchor else {
            held.anchor = Some(Box::new(AnchorState {
                call,
                due: Some(now),
                not_before: now,
                changes: 0,
                is_stored: false,
                answered: Vec::new(),
                withdrawn: Vec::new(),
                fate: None,
            }));
            return;
        };
        // Its server says more of it.
        anchored.fate.take().into_iter().for_each(OrphanFate::record_resumed);
        anchored.call = call;
        anchored.due = Some(anchored.not_before);
        // The server has gone on behind them. An answer that it is given twice is nothing to it; one that it is never
        // given is waited for.
        let has_arrived = |sent: Instant| now.saturating_duration_since(sent) >= DELIVERY_WINDOW;
        let arrived = anchored.answered.iter().filter(|(sent, ..)| has_arrived(*sent));
        let keys: Vec<_> = arrived.map(|(_, _, key)| key.clone()).collect();
        if !held.writes.has_delivered() {
            self.write_delivered(keys);
        }
    }

    /// An answer is on its way to the server.
    pub(super) fn record_sent_response(&mut self, id: Option<RequestId>, key: String) {
        let now = self.shared.clock.now();
        match (&mut self.detached().anchor, id) {
            (Some(anchored), Some(id)) => anchored.answered.push((now, id, key)),
            // Nobody else will have to deliver it.
            _ => self.write_delivered(vec![key]),
        }
    }

    /// The server has withdrawn an input request of the task.
    pub(super) fn write_withdrawal(&mut self, key: String) {
        let event = task::TaskEvent::InputWithdrawn { key: key.clone() };
        self.queue_write(event, WriteFollowUp::Withdrawn { key });
    }

    /// The same, where the record could not be changed any more: the next process must know.
    pub(super) fn keep_withdrawal(&mut self, key: String) {
        if let Some(anchored) = &mut self.detached().anchor {
            anchored.withdrawn.push(key);
        }
    }

    pub(super) fn write_delivered(&mut self, keys: Vec<String>) {
        if !keys.is_empty() && self.shared.ledger.outlives() {
            let event = task::TaskEvent::InputDelivered { keys: keys.clone() };
            self.queue_write(event, WriteFollowUp::Delivered { keys });
        }
    }

    /// Whether something is asked, or is not any more, since it was written: the next process must know by which
    /// id the server knows what.
    pub(super) fn has_new_questions(&self) -> bool {
        let Some(held) = &self.detached else { return false };
        let is_new = |anchored: &AnchorState| anchored.changes != held.open_requests.changes;
        held.anchor.as_deref().is_some_and(is_new) && !held.writes.has_anchor()
    }

    /// Queues the anchor to be written, where there is one.
    pub(super) fn write_anchor(&mut self) {
        let Some(anchor) = self.anchor() else { return };
        let ledger = Arc::clone(&self.shared.ledger);
        let held = self.detached();
        let Some(anchored) = &mut held.anchor else { return };
        let has_event = anchored.call.last_event.is_some();
        (anchored.changes, anchored.due) = (held.open_requests.changes, None);
        let id = held.registration.id().clone();
        let anchor = async move { ledger.store_anchor(&id, &anchor).await.map(|()| UpdateOutcome::Unknown) };
        held.writes.push(WriteFollowUp::Anchor { has_event }, Box::pin(anchor));
    }

    /// The anchor is written, or cannot be.
    pub(super) fn handle_anchor_written(&mut self, has_event: bool, is_kept: bool) {
        let now = self.shared.clock.now();
        if let Some(anchored) = &mut self.detached().anchor {
            anchored.not_before = now + if is_kept { WRITE_INTERVAL } else { STORE_RETRY_DELAY };
            anchored.due = match is_kept {
                // Where the call has gone on meanwhile.
                true => anchored.due.map(|due| due.max(anchored.not_before)),
                false => Some(anchored.not_before),
            };
            anchored.is_stored |= is_kept && has_event;
        }
    }

    /// The call is over. Of one that was cancelled the server has been told by now, or would be again by the next
    /// process.
    pub(super) async fn release_anchor(&mut self) {
        let shared = self.shared.clone();
        let id = self.id().clone();
        let is_cancelled =
            || shared.ledger.last_stored(&id).is_some_and(|record| record.state == TaskState::Cancelled);
        if self.detached().anchor.is_none() || !is_cancelled() {
            return;
        }
        // Nothing works at it any more.
        self.detached().lease = None;
        tokio::select! {
            () = sleep(WRITE_INTERVAL) => {}
            () = shared.overdue.stopped() => {}
        }
        // Else it is told twice.
        let _ = shared.ledger.remove_anchor(&id).await;
    }

    fn anchor(&self) -> Option<TaskAnchor> {
        let held = self.detached.as_ref()?;
        let anchored = held.anchor.as_ref()?;
        let open = held.open_requests.iter().filter(|(_, open)| open.is_recorded);
        let open = open.filter_map(|(_, open)| Some((open.id.as_ref()?.to_string(), open.key.clone())));
        let answered = anchored.answered.iter().map(|(_, id, key)| (id.to_string(), key.clone()));
        let questions = open.chain(answered);
        let (needs_credentials, words) = match &self.form {
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
            call: (*anchored.call).clone(),
            needs_credentials,
            words,
            questions: questions.collect(),
            taken_back: anchored.withdrawn.clone(),
        })
    }

    /// The call is over, before anything was heard of it again where a former process had made it.
    pub(super) fn record_fate(&mut self) {
        let anchored = self.detached.as_mut().and_then(|held| held.anchor.as_mut());
        if let Some(fate) = anchored.and_then(|anchored| anchored.fate.take())
            && let Some(record) = self.shared.ledger.last_stored(self.id())
        {
            fate.record_ended(&record.state);
        }
    }

    /// Whether the call could be left to the process after this one.
    pub(super) fn can_be_released(&self) -> bool {
        self.exchange.phase() == ExchangePhase::Deferred
            && self.detached.as_ref().is_some_and(|held| held.anchor.is_some())
    }

    /// The time of the proxy is over: leaves the call to the process after this one, or ends it.
    pub(super) async fn release_or_end(&mut self) {
        // What its client did in time still happens: it may have cancelled the task, or answered.
        self.flush_for_release().await;
        self.write_anchor();
        self.flush_for_release().await;
        if self.exchange.phase() != ExchangePhase::Deferred {
            return;
        }
        if !self.release() {
            self.end(CallEnd::Lost(CallError::Closing));
        }
    }

    /// Waits for queued changes, but not for a store that does not answer: what it has is good for a resumption. Then
    /// receives what was sent to the call.
    async fn flush_for_release(&mut self) {
        let writes = async {
            while !self.detached().writes.is_empty() {
                let (after, result) = self.detached().writes.next().await;
                self.handle_written(after, result);
            }
        };
        let _ = timeout(RELEASE_TIMEOUT, writes).await;
        while let Some(control) = self.detached().registration.try_receive() {
            self.receive(control);
        }
        while let Some(action) = self.exchange.poll_action() {
            self.carry_out(action);
        }
    }

    /// Leaves the call to the process after this one, if that can take it up: it goes on at its server, and what is
    /// asked in it stays asked. Where the store fails now, it is taken up from where it was when it was written last: to
    /// cancel it would leave a task at work whose server works at it no more.
    fn release(&mut self) -> bool {
        if !self.detached().anchor.as_deref().is_some_and(|anchored| anchored.is_stored) {
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
        // It is the next process's: a cancel that comes now is told by that one.
        self.detached().anchor = None;
        true
    }
}

// === impl Held ===

impl DetachedState {
    /// The call is where the process before this one has left it.
    pub(super) fn restore_anchor(
        &mut self,
        call: upstream::CallAnchor,
        answered: Vec<(RequestId, String)>,
        now: Instant,
        fate: OrphanFate,
    ) {
        let call = Box::new(call);
        let answered = answered.into_iter().map(|(id, key)| (now, id, key)).collect();
        let is_kept = true;
        let (taken_back, fate) = (Vec::new(), Some(fate));
        let anchored = AnchorState {
            call,
            due: None,
            not_before: now,
            changes: 0,
            is_stored: is_kept,
            answered,
            withdrawn: taken_back,
            fate,
        };
        self.anchor = Some(Box::new(anchored));
    }
}

// === impl Anchored ===

impl AnchorState {
    /// The record does not have the answers under these keys any more.
    pub(super) fn remove_delivered(&mut self, keys: &[String]) {
        self.answered.retain(|(_, _, key)| !keys.contains(key));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

// === impl Form ===

impl CallForm {
    /// Tells the upstream what has become of the call.
    pub(super) fn deferral(&self) -> Option<&Deferral> {
        match self {
            Self::Canonical(canonical) => canonical.deferral.as_ref(),
            Self::Native(native) => Some(&native.deferral),
        }
    }
}
