//! What is kept of a task's call for the process after this one, and how it is left to that process.
//!
//! Only where the store outlives the process, and the server gives its events ids: without them nobody could hear
//! again what it has said meanwhile.

use super::{Driver, Form, Held, record_writes::AfterWrite};
use crate::{
    bridge::exchange::Phase,
    protocol::Id,
    proxy::{
        anchor::{Anchor, Words},
        keep::STORE_PAUSE,
        orphan_report::OrphanFate,
        reply::CallEnd,
    },
    store::Updated,
    task::{self, State},
    upstream::{self, CallError, Deferral},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// Where the call is, as the next process is to know it.
pub(super) struct Anchored {
    call: Box<upstream::Anchor>,
    /// When it is to be written, if it is not.
    due: Option<Instant>,
    not_before: Instant,
    /// What had changed in the book when it was written.
    changes: u32,
    /// It can be taken up from where it was written last.
    is_kept: bool,
    /// What the client has answered, and the server may not have, with the time when it was sent: its id for the
    /// question, and the key.
    answered: Vec<(Instant, Id, String)>,
    /// The keys of what the server has taken back, where the store has not taken that.
    taken_back: Vec<String>,
    /// Of a call of a former process, until it is known what has become of it.
    fate: Option<OrphanFate>,
}

/// It is written at most this often, but for questions: a store write each. What the server says twice because of
/// that is progress.
const PERIOD: Duration = Duration::from_millis(500);

/// How long the changes of a call are waited for that is left to the next process, twice. Less than the process has left.
const RELEASE: Duration = Duration::from_millis(750);

/// How long an answer may be on its way. What the server says within it may have been said before the answer came, or
/// be what it said before the call was taken up.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

// === impl Driver ===

impl Driver {
    /// The call can be taken up from here.
    pub(super) fn moved(&mut self, call: Box<upstream::Anchor>) {
        let now = self.shared.clock.now();
        let held = self.held();
        if held.is_place_fixed {
            return;
        }
        if held.writes.has_input_request() {
            // An anchor behind an input request that the record does not have would lose it.
            held.resume_point = Some(call);
            return;
        }
        let Some(anchored) = &mut held.anchored else {
            held.anchored = Some(Box::new(Anchored {
                call,
                due: Some(now),
                not_before: now,
                changes: 0,
                is_kept: false,
                answered: Vec::new(),
                taken_back: Vec::new(),
                fate: None,
            }));
            return;
        };
        // Its server says more of it.
        anchored.fate.take().into_iter().for_each(OrphanFate::resumed);
        anchored.call = call;
        anchored.due = Some(anchored.not_before);
        // The server has gone on behind them. An answer that it is given twice is nothing to it; one that it is never
        // given is waited for.
        let has_arrived = |sent: Instant| now.saturating_duration_since(sent) >= ON_ITS_WAY;
        let arrived = anchored.answered.iter().filter(|(sent, ..)| has_arrived(*sent));
        let keys: Vec<_> = arrived.map(|(_, _, key)| key.clone()).collect();
        if !held.writes.has_delivered() {
            self.delivered(keys);
        }
    }

    /// An answer is on its way to the server.
    pub(super) fn answers(&mut self, id: Option<Id>, key: String) {
        let now = self.shared.clock.now();
        match (&mut self.held().anchored, id) {
            (Some(anchored), Some(id)) => anchored.answered.push((now, id, key)),
            // Nobody else will have to deliver it.
            _ => self.delivered(vec![key]),
        }
    }

    /// The server has withdrawn an input request of the task.
    pub(super) fn is_taken_back(&mut self, key: String) {
        let event = task::Event::Withdrawn { key: key.clone() };
        self.write(event, AfterWrite::Withdrawn { key });
    }

    /// The same, where the record could not be changed any more: the next process must know.
    pub(super) fn withdrawn_without_record(&mut self, key: String) {
        if let Some(anchored) = &mut self.held().anchored {
            anchored.taken_back.push(key);
        }
    }

    pub(super) fn delivered(&mut self, keys: Vec<String>) {
        if !keys.is_empty() && self.shared.ledger.outlives() {
            let event = task::Event::Delivered { keys: keys.clone() };
            self.write(event, AfterWrite::Delivered { keys });
        }
    }

    /// Whether something is asked, or is not any more, since it was written: the next process must know by which
    /// id the server knows what.
    pub(super) fn has_new_questions(&self) -> bool {
        let Some(held) = &self.held else { return false };
        let is_new = |anchored: &Anchored| anchored.changes != held.book.changes;
        held.anchored.as_deref().is_some_and(is_new) && !held.writes.has_anchor()
    }

    /// Queues the anchor to be written, where there is one.
    pub(super) fn write_anchor(&mut self) {
        let Some(anchor) = self.anchor() else { return };
        let ledger = Arc::clone(&self.shared.ledger);
        let held = self.held();
        let Some(anchored) = &mut held.anchored else { return };
        let has_event = anchored.call.last_event.is_some();
        (anchored.changes, anchored.due) = (held.book.changes, None);
        let id = held.hold.id().clone();
        let anchor = async move { ledger.anchor(&id, &anchor).await.map(|()| Updated::Unknown) };
        held.writes.push(AfterWrite::Anchored { has_event }, Box::pin(anchor));
    }

    /// The anchor is written, or cannot be.
    pub(super) fn anchor_written(&mut self, has_event: bool, is_kept: bool) {
        let now = self.shared.clock.now();
        if let Some(anchored) = &mut self.held().anchored {
            anchored.not_before = now + if is_kept { PERIOD } else { STORE_PAUSE };
            anchored.due = match is_kept {
                // Where the call has gone on meanwhile.
                true => anchored.due.map(|due| due.max(anchored.not_before)),
                false => Some(anchored.not_before),
            };
            anchored.is_kept |= is_kept && has_event;
        }
    }

    /// The call is over. Of one that was cancelled the server has been told by now, or would be again by the next
    /// process.
    pub(super) async fn let_go(&mut self) {
        let shared = self.shared.clone();
        let id = self.id().clone();
        let is_cancelled =
            || shared.ledger.last_kept(&id).is_some_and(|record| record.state == State::Cancelled);
        if self.held().anchored.is_none() || !is_cancelled() {
            return;
        }
        // Nothing works at it any more.
        self.held().task = None;
        tokio::select! {
            () = sleep(PERIOD) => {}
            () = shared.overdue.stopped() => {}
        }
        // Else it is told twice.
        let _ = shared.ledger.let_go(&id).await;
    }

    fn anchor(&self) -> Option<Anchor> {
        let held = self.held.as_ref()?;
        let anchored = held.anchored.as_ref()?;
        let open = held.book.iter().filter(|(_, open)| open.is_recorded);
        let open = open.filter_map(|(_, open)| Some((open.id.as_ref()?.to_string(), open.key.clone())));
        let answered = anchored.answered.iter().map(|(_, id, key)| (id.to_string(), key.clone()));
        let questions = open.chain(answered);
        let (needs_credentials, words) = match &self.form {
            Form::Canonical(canonical) => {
                let declared = String::from_utf8_lossy(canonical.caller.capabilities.as_bytes()).into_owned();
                (canonical.caller.credentials.may_tell_who_calls(), Words::Canonical { declared })
            }
            Form::Native(native) => {
                let session = native.session.map(|session| session.digest());
                (native.needs_credentials, Words::Native { session, wants_progress: native.wants_progress })
            }
        };
        Some(Anchor {
            call: (*anchored.call).clone(),
            needs_credentials,
            words,
            questions: questions.collect(),
            taken_back: anchored.taken_back.clone(),
        })
    }

    /// The call is over, before anything was heard of it again where a former process had made it.
    pub(super) fn settles_fate(&mut self) {
        let anchored = self.held.as_mut().and_then(|held| held.anchored.as_mut());
        if let Some(fate) = anchored.and_then(|anchored| anchored.fate.take())
            && let Some(record) = self.shared.ledger.last_kept(self.id())
        {
            fate.ended(&record.state);
        }
    }

    /// Whether the call could be left to the process after this one.
    pub(super) fn can_be_released(&self) -> bool {
        self.exchange.phase() == Phase::Deferred
            && self.held.as_ref().is_some_and(|held| held.anchored.is_some())
    }

    /// The time of the proxy is over: leaves the call to the process after this one, or ends it.
    pub(super) async fn release_or_end(&mut self) {
        // What its client did in time still happens: it may have cancelled the task, or answered.
        self.flush_for_release().await;
        self.write_anchor();
        self.flush_for_release().await;
        if self.exchange.phase() != Phase::Deferred {
            return;
        }
        if !self.release() {
            self.ends(CallEnd::Lost(CallError::Closing));
        }
    }

    /// Waits for queued changes, but not for a store that does not answer: what it has is good for a resumption. Then
    /// receives what was sent to the call.
    async fn flush_for_release(&mut self) {
        let writes = async {
            while !self.held().writes.is_empty() {
                let (after, result) = self.held().writes.next().await;
                self.written(after, result);
            }
        };
        let _ = timeout(RELEASE, writes).await;
        while let Some(control) = self.held().hold.try_told() {
            self.told(control);
        }
        while let Some(action) = self.exchange.poll_action() {
            self.carry_out(action);
        }
    }

    /// Leaves the call to the process after this one, if that can take it up: it goes on at its server, and what is
    /// asked in it stays asked. Where the store fails now, it is taken up from where it was when it was written last: to
    /// cancel it would leave a task at work whose server works at it no more.
    fn release(&mut self) -> bool {
        if !self.held().anchored.as_deref().is_some_and(|anchored| anchored.is_kept) {
            return false;
        }
        if let Some(deferral) = self.form.deferral() {
            deferral.release();
        }
        self.replies = None;
        self.held().book.close_all().into_iter().for_each(|open| open.way.withdrawn());
        self.span.released();
        self.exchange.handle_released();
        self.shared.ledger.was_released();
        // It is the next process's: a cancel that comes now is told by that one.
        self.held().anchored = None;
        true
    }
}

// === impl Held ===

impl Held {
    /// The call is where the process before this one has left it.
    pub(super) fn restored(
        &mut self,
        call: upstream::Anchor,
        answered: Vec<(Id, String)>,
        now: Instant,
        fate: OrphanFate,
    ) {
        let call = Box::new(call);
        let answered = answered.into_iter().map(|(id, key)| (now, id, key)).collect();
        let is_kept = true;
        let (taken_back, fate) = (Vec::new(), Some(fate));
        let anchored =
            Anchored { call, due: None, not_before: now, changes: 0, is_kept, answered, taken_back, fate };
        self.anchored = Some(Box::new(anchored));
    }
}

// === impl Anchored ===

impl Anchored {
    /// The record does not have the answers under these keys any more.
    pub(super) fn are_delivered(&mut self, keys: &[String]) {
        self.answered.retain(|(_, _, key)| !keys.contains(key));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

// === impl Form ===

impl Form {
    /// Tells the upstream what has become of the call.
    pub(super) fn deferral(&self) -> Option<&Deferral> {
        match self {
            Self::Canonical(canonical) => canonical.deferral.as_ref(),
            Self::Native(native) => Some(&native.deferral),
        }
    }
}
