//! One answer as it goes by to a client of its server's own era.
//!
//! The server's bytes go on as they come. Between its events stands what keeps the client waiting
//! ([`KeepAliveTimer`]), and what we have to say on the stream ourselves. A stream that ends without the response
//! would leave released clients waiting (`WIRE`, B 1, rule 20): it gets the error as its last event, unless
//! the client has taken back what it asked. One that the server has ended, and whose events have ids, is the
//! client's to come back for; one that has broken is taken up, because only the server can say whether there
//! is more to come.
//!
//! Things happen to a relay through `handle_*`, with the time passed in, and it says through
//! [`ResponseRelay::poll_action`] what to do. It is drained before the next thing happens to it, so that nothing
//! waits in it.

use crate::{
    dialect::legacy::{self, ResponseTracker, ResumePosition},
    policy::{KeepAliveStep, KeepAliveTimer},
    protocol::{
        ErrorObject, RequestId,
        message_kind::{KindSniffer, MessageKind},
        sse, tool_result,
    },
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::{mem, time::Instant};

/// What to do. `L` is why an answer will not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayAction<L> {
    /// Send this on.
    Send(Bytes),
    /// Send this on: with it all has been answered, and this is what it says.
    SendAnswered(Bytes, ResponseStatus),
    /// Send this on; the body ends with it.
    End(Bytes, RelayOutcome<L>),
    /// Break the body off: what has been sent must not be taken for whole.
    Abort(RelayOutcome<L>),
    /// Find out to which of these an answer is still owed ([`ResponseRelay::handle_unanswered`]).
    ResolveUnanswered(SmallVec<[RequestId; 1]>),
    /// Ask the server for what follows this ([`ResponseRelay::handle_resumed`]).
    Resume(ResumePosition),
    /// Keep for a client that comes back behind this which requests still wait.
    KeepForResume(ResumePosition, SmallVec<[RequestId; 1]>),
    /// Let go of the server's stream without a word: it keeps the rest for the client.
    Release,
    /// Tell the server that nobody waits any more: the proxy stops.
    Cancel,
    /// The same, because the client has waited long enough.
    CancelOverdue,
}

/// What an answer says, as far as can be seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// What its status says.
    Plain,
    /// A JSON-RPC error.
    Error,
    /// That the tool failed.
    ToolError,
}

/// What an answer has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayOutcome<L> {
    /// The server has said what it had to say.
    Completed(ResponseStatus),
    /// The client is to come back for the rest.
    Resumable,
    /// Nothing is owed to the client.
    Cancelled,
    /// No answer will come.
    Lost(L),
    /// The client has waited long enough.
    TimedOut(ErrorObject),
}

/// Why an answer will not come.
pub trait LossReason: Clone {
    /// Whether there may be more of it to ask for.
    fn is_connection_loss(&self) -> bool;
    /// Whether it is our own end, behind which the client goes to the next of us.
    fn is_shutdown(&self) -> bool;
    fn error(&self) -> ErrorObject;
    /// It ended without the response.
    fn unanswered() -> Self;
    /// It ended before it had begun.
    fn empty() -> Self;
    fn shutdown() -> Self;
}

/// One answer.
#[derive(Debug)]
pub struct ResponseRelay<L> {
    kind: RelayBody,
    state: RelayState<L>,
    keep_alive: KeepAliveTimer,
    /// Mostly one, and then it takes no memory of its own.
    actions: SmallVec<[RelayAction<L>; 1]>,
}

#[derive(Debug)]
enum RelayBody {
    Events(ResponseTracker),
    /// `unsaid` wait for it as long as nothing of it has come. It is read only where it may say something
    /// that its status does not.
    Document {
        glance: KindSniffer,
        said: ResponseStatus,
        unsaid: SmallVec<[RequestId; 1]>,
        is_read: bool,
    },
}

#[derive(Debug)]
enum RelayState<L> {
    /// The server's bytes go by.
    Flowing,
    /// They have ended, and it is found out to whom an answer is owed. It is asked for from here, if it can
    /// be; else this is why there is none.
    Resolving(Option<ResumePosition>, L),
    /// The server is asked for the rest.
    Resuming,
    Ended,
}

/// Where a relay stands, and so what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPhase {
    Flowing,
    Resolving,
    Resuming,
    Ended,
}

// === impl Relay ===

impl<L: LossReason> ResponseRelay<L> {
    /// An event stream.
    pub fn of_events(answers: ResponseTracker, silence: KeepAliveTimer) -> Self {
        Self::new(RelayBody::Events(answers), silence)
    }

    /// A document for which these wait. `is_read` is whether its status leaves something to be said.
    pub fn of_document(unsaid: SmallVec<[RequestId; 1]>, is_read: bool, silence: KeepAliveTimer) -> Self {
        let glance = KindSniffer::default();
        Self::new(RelayBody::Document { glance, said: ResponseStatus::Plain, unsaid, is_read }, silence)
    }

    fn new(kind: RelayBody, silence: KeepAliveTimer) -> Self {
        Self { kind, state: RelayState::Flowing, keep_alive: silence, actions: SmallVec::new() }
    }

    /// The next bytes of the server, as they are to go on; `is_last` is whether it is known that there will
    /// be no more.
    pub fn handle_chunk(&mut self, bytes: Bytes, is_last: bool) {
        match (&self.state, bytes.is_empty(), is_last) {
            (RelayState::Flowing, false, _) => {}
            (RelayState::Flowing, true, true) => return self.handle_end(None),
            (RelayState::Flowing, true, false)
            | (RelayState::Resolving(..) | RelayState::Resuming | RelayState::Ended, ..) => {
                return;
            }
        }
        self.keep_alive.record_bytes();
        let (said, is_answered) = match &mut self.kind {
            RelayBody::Events(answers) => {
                let waited = answers.has_unanswered();
                answers.observe(&bytes);
                answers.take_messages().iter().for_each(|message| self.keep_alive.record_message(message));
                if answers.has_unanswered() {
                    return self.actions.push(RelayAction::Send(bytes));
                }
                let said = match answers.last_response() {
                    Some(MessageKind::Error) if waited => ResponseStatus::Error,
                    // Most write it last, so that this piece has it.
                    Some(_) | None if waited && tool_result::contains_error_flag(&bytes) => {
                        ResponseStatus::ToolError
                    }
                    Some(_) | None => ResponseStatus::Plain,
                };
                (said, waited)
            }
            RelayBody::Document { glance, said, unsaid, is_read } => {
                unsaid.clear();
                if *is_read && *said == ResponseStatus::Plain {
                    glance.feed(&bytes);
                    *said = match glance.kind() {
                        Some(MessageKind::Error) => ResponseStatus::Error,
                        Some(_) | None if tool_result::contains_error_flag(&bytes) => {
                            ResponseStatus::ToolError
                        }
                        Some(_) | None => ResponseStatus::Plain,
                    };
                }
                (*said, false)
            }
        };
        if is_answered {
            self.keep_alive.stop_waiting();
        }
        // Who writes a body of known length does not ask for more once it is there.
        match (is_last, is_answered) {
            (true, _) => self.end(bytes, RelayOutcome::Completed(said)),
            (false, true) => self.actions.push(RelayAction::SendAnswered(bytes, said)),
            (false, false) => self.actions.push(RelayAction::Send(bytes)),
        }
    }

    /// The server's bytes have ended: in good order, or like this.
    pub fn handle_end(&mut self, lost: Option<L>) {
        if !matches!(self.state, RelayState::Flowing) {
            return;
        }
        let answers = match &mut self.kind {
            RelayBody::Events(answers) => answers,
            RelayBody::Document { said, unsaid, .. } => {
                let (said, unsaid) = (*said, mem::take(unsaid));
                return match lost {
                    None if unsaid.is_empty() => self.end(Bytes::new(), RelayOutcome::Completed(said)),
                    Some(lost) if unsaid.is_empty() => self.abort(RelayOutcome::Lost(lost)),
                    lost => {
                        let lost = lost.unwrap_or_else(L::empty);
                        self.end(legacy::error_responses(&unsaid, &lost.error()), RelayOutcome::Lost(lost));
                    }
                };
            }
        };
        match lost {
            // Nobody waits on a stream of events.
            lost if !answers.has_unanswered() => {
                let verdict = lost.map_or(RelayOutcome::Completed(ResponseStatus::Plain), RelayOutcome::Lost);
                self.end(Bytes::new(), verdict);
            }
            // The server has ended it, or its client is to go to the next of us: the client goes on where it
            // was.
            lost if answers.is_resumable() && lost.as_ref().is_none_or(L::is_shutdown) => {
                self.actions.push(RelayAction::Release);
                self.keep_for_resume();
                self.end(Bytes::new(), RelayOutcome::Resumable);
            }
            lost => {
                let from =
                    answers.resume_position().filter(|_| lost.as_ref().is_some_and(L::is_connection_loss));
                self.resolve_unanswered(from, lost.unwrap_or_else(L::unanswered));
            }
        }
    }

    /// To these an answer is still owed.
    pub fn handle_unanswered(&mut self, owed: SmallVec<[RequestId; 1]>) {
        let (RelayBody::Events(answers), RelayState::Resolving(from, lost)) =
            (&mut self.kind, &mut self.state)
        else {
            return;
        };
        match from.take() {
            // The client has taken all of it back, and does not wait.
            _ if owed.is_empty() => self.end(Bytes::new(), RelayOutcome::Cancelled),
            Some(from) => {
                answers.count_resume();
                self.actions.push(RelayAction::Resume(from));
                self.state = RelayState::Resuming;
            }
            None => {
                answers.retain(owed);
                let (words, lost) = (answers.closing_errors(&lost.error()), lost.clone());
                self.end(words, RelayOutcome::Lost(lost));
            }
        }
    }

    /// The server goes on behind the last event, or does not, for this reason.
    pub fn handle_resumed(&mut self, outcome: Result<(), L>) {
        if !matches!(self.state, RelayState::Resuming) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.state = RelayState::Flowing;
                let void = self.abandon_event();
                if !void.is_empty() {
                    self.actions.push(RelayAction::Send(void));
                }
            }
            Err(lost) => self.resolve_unanswered(None, lost),
        }
    }

    /// We have something to say ourselves; only where that [can be](ResponseRelay::can_insert).
    pub fn handle_own_event(&mut self, bytes: Bytes) {
        if self.can_insert() {
            self.keep_alive.record_bytes();
            self.insert(bytes);
        }
    }

    /// The time has come that [`ResponseRelay::poll_timeout`] named, or has not.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_waiting() {
            return;
        }
        match self.keep_alive.handle_timeout(now, self.can_insert()) {
            None => {}
            Some(KeepAliveStep::Comment) => self.insert(sse::KEEP_ALIVE),
            Some(KeepAliveStep::Progress(message)) => self.insert(legacy::event(&message)),
            Some(KeepAliveStep::Deadline) => {
                self.actions.push(RelayAction::CancelOverdue);
                let error = self.keep_alive.deadline_error();
                match &mut self.kind {
                    RelayBody::Events(answers) => {
                        let words = answers.closing_errors(&error);
                        self.end(words, RelayOutcome::TimedOut(error));
                    }
                    // There is no place for an error in a document that has begun.
                    RelayBody::Document { unsaid, .. } if unsaid.is_empty() => {
                        self.abort(RelayOutcome::TimedOut(error));
                    }
                    RelayBody::Document { unsaid, .. } => {
                        let refusal = legacy::error_responses(unsaid, &error);
                        self.end(refusal, RelayOutcome::TimedOut(error));
                    }
                }
            }
        }
    }

    /// The proxy stops.
    pub fn handle_shutdown(&mut self) {
        match self.state {
            RelayState::Flowing => self.handle_end(Some(L::shutdown())),
            RelayState::Resuming => {
                self.actions.push(RelayAction::Cancel);
                self.resolve_unanswered(None, L::shutdown());
            }
            RelayState::Resolving(..) | RelayState::Ended => {}
        }
    }

    /// The client has left, perhaps to come back.
    pub fn handle_disconnect(&mut self) {
        if !matches!(self.state, RelayState::Ended) {
            self.keep_for_resume();
            self.state = RelayState::Ended;
        }
    }

    pub fn poll_action(&mut self) -> Option<RelayAction<L>> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// When the relay wants to hear of the time.
    pub fn poll_timeout(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if !self.is_waiting() {
            return None;
        }
        let may_speak = self.can_insert();
        self.keep_alive.poll_timeout(now, may_speak)
    }

    /// Whether something of ours can be put in here: an event of the server's that is going by has ended, or
    /// will not come to its end.
    pub fn can_insert(&self) -> bool {
        match (&self.kind, &self.state) {
            (RelayBody::Events(answers), RelayState::Flowing) => answers.is_between_events(),
            (RelayBody::Events(_), RelayState::Resuming) => true,
            (RelayBody::Events(_), RelayState::Resolving(..) | RelayState::Ended)
            | (RelayBody::Document { .. }, _) => false,
        }
    }

    /// The ids of events that a client may come back behind which has lost what followed
    /// ([`ResponseTracker::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        let answers = match &self.kind {
            RelayBody::Events(answers) => Some(answers),
            RelayBody::Document { .. } => None,
        };
        answers.into_iter().flat_map(ResponseTracker::earlier_ids)
    }

    pub fn phase(&self) -> RelayPhase {
        match self.state {
            RelayState::Flowing => RelayPhase::Flowing,
            RelayState::Resolving(..) => RelayPhase::Resolving,
            RelayState::Resuming => RelayPhase::Resuming,
            RelayState::Ended => RelayPhase::Ended,
        }
    }

    /// Whether the server is waited for.
    fn is_waiting(&self) -> bool {
        matches!(self.state, RelayState::Flowing | RelayState::Resuming)
    }

    fn insert(&mut self, bytes: Bytes) {
        let void = self.abandon_event();
        let bytes = if void.is_empty() { bytes } else { [void, bytes].concat().into() };
        self.actions.push(RelayAction::Send(bytes));
    }

    /// What ends an event that was cut off.
    fn abandon_event(&mut self) -> Bytes {
        match &mut self.kind {
            RelayBody::Events(answers) => answers.abandon_event(),
            RelayBody::Document { .. } => Bytes::new(),
        }
    }

    fn resolve_unanswered(&mut self, from: Option<ResumePosition>, lost: L) {
        if let RelayBody::Events(answers) = &self.kind {
            self.actions.push(RelayAction::ResolveUnanswered(answers.unanswered()));
        }
        self.state = RelayState::Resolving(from, lost);
    }

    /// Who comes back for what the stream has left unanswered is to hear what becomes of it.
    fn keep_for_resume(&mut self) {
        if let RelayBody::Events(answers) = &self.kind
            && answers.has_unanswered()
            && let Some(anchor) = answers.resume_position()
        {
            self.actions.push(RelayAction::KeepForResume(anchor, answers.unanswered()));
        }
    }

    fn end(&mut self, bytes: Bytes, verdict: RelayOutcome<L>) {
        self.actions.push(RelayAction::End(bytes, verdict));
        self.state = RelayState::Ended;
    }

    fn abort(&mut self, verdict: RelayOutcome<L>) {
        self.actions.push(RelayAction::Abort(verdict));
        self.state = RelayState::Ended;
    }
}
