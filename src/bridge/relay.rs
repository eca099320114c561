//! One answer as it goes by to a client of its server's own era.
//!
//! The server's bytes go on as they come. Between its events stands what keeps the client waiting
//! ([`Silence`]), and what we have to say on the stream ourselves. A stream that ends without the response
//! would leave released clients waiting (`WIRE`, B 1, rule 20): it gets the error as its last event, unless
//! the client has taken back what it asked. One that the server has ended, and whose events have ids, is the
//! client's to come back for; one that has broken is taken up, because only the server can say whether there
//! is more to come.
//!
//! Things happen to a relay through `handle_*`, with the time passed in, and it says through
//! [`Relay::poll_action`] what to do. It is drained before the next thing happens to it, so that nothing
//! waits in it.

use crate::{
    dialect::legacy::{self, Anchor, Answers},
    policy::{KeepAliveStep, Silence},
    protocol::{
        ErrorObject, Id,
        glance::{Gist, Glance},
        sse, tool_result,
    },
};
use bytes::Bytes;
use smallvec::SmallVec;
use std::{mem, time::Instant};

/// What to do. `L` is why an answer will not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<L> {
    /// Send this on.
    Send(Bytes),
    /// Send this on: with it all has been answered, and this is what it says.
    Answered(Bytes, Said),
    /// Send this on; the body ends with it.
    End(Bytes, Verdict<L>),
    /// Break the body off: what has been sent must not be taken for whole.
    Break(Verdict<L>),
    /// Find out to which of these an answer is still owed ([`Relay::handle_owed`]).
    Settle(SmallVec<[Id; 1]>),
    /// Ask the server for what follows this ([`Relay::handle_taken_up`]).
    TakeUp(Anchor),
    /// Keep for a client that comes back behind this which requests still wait.
    Leave(Anchor, SmallVec<[Id; 1]>),
    /// Let go of the server's stream without a word: it keeps the rest for the client.
    Release,
    /// Tell the server that nobody waits any more: the proxy stops.
    Cancel,
    /// The same, because the client has waited long enough.
    GiveUp,
}

/// What an answer says, as far as can be seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// What its status says.
    Plain,
    /// A JSON-RPC error.
    Error,
    /// That the tool failed.
    ToolError,
}

/// What an answer has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<L> {
    /// The server has said what it had to say.
    Said(Said),
    /// The client is to come back for the rest.
    Left,
    /// Nothing is owed to the client.
    Departed,
    /// No answer will come.
    Lost(L),
    /// The client has waited long enough.
    Overdue(ErrorObject),
}

/// Why an answer will not come.
pub trait Loss: Clone {
    /// Whether there may be more of it to ask for.
    fn is_break(&self) -> bool;
    /// Whether it is our own end, behind which the client goes to the next of us.
    fn is_closing(&self) -> bool;
    fn error(&self) -> ErrorObject;
    /// It ended without the response.
    fn unanswered() -> Self;
    /// It ended before it had begun.
    fn empty() -> Self;
    fn closing() -> Self;
}

/// One answer.
#[derive(Debug)]
pub struct Relay<L> {
    kind: Kind,
    state: State<L>,
    silence: Silence,
    /// Mostly one, and then it takes no memory of its own.
    actions: SmallVec<[Action<L>; 1]>,
}

#[derive(Debug)]
enum Kind {
    Events(Answers),
    /// `unsaid` wait for it as long as nothing of it has come. It is read only where it may say something
    /// that its status does not.
    Document {
        glance: Glance,
        said: Said,
        unsaid: SmallVec<[Id; 1]>,
        is_read: bool,
    },
}

#[derive(Debug)]
enum State<L> {
    /// The server's bytes go by.
    Flowing,
    /// They have ended, and it is found out to whom an answer is owed. It is asked for from here, if it can
    /// be; else this is why there is none.
    Settling(Option<Anchor>, L),
    /// The server is asked for the rest.
    TakingUp,
    Over,
}

/// Where a relay stands, and so what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Flowing,
    Settling,
    TakingUp,
    Over,
}

// === impl Relay ===

impl<L: Loss> Relay<L> {
    /// An event stream.
    pub fn of_events(answers: Answers, silence: Silence) -> Self {
        Self::new(Kind::Events(answers), silence)
    }

    /// A document for which these wait. `is_read` is whether its status leaves something to be said.
    pub fn of_document(unsaid: SmallVec<[Id; 1]>, is_read: bool, silence: Silence) -> Self {
        let glance = Glance::default();
        Self::new(Kind::Document { glance, said: Said::Plain, unsaid, is_read }, silence)
    }

    fn new(kind: Kind, silence: Silence) -> Self {
        Self { kind, state: State::Flowing, silence, actions: SmallVec::new() }
    }

    /// The next bytes of the server, as they are to go on; `is_last` is whether it is known that there will
    /// be no more.
    pub fn handle_chunk(&mut self, bytes: Bytes, is_last: bool) {
        match (&self.state, bytes.is_empty(), is_last) {
            (State::Flowing, false, _) => {}
            (State::Flowing, true, true) => return self.handle_end(None),
            (State::Flowing, true, false) | (State::Settling(..) | State::TakingUp | State::Over, ..) => {
                return;
            }
        }
        self.silence.bytes();
        let (said, is_answered) = match &mut self.kind {
            Kind::Events(answers) => {
                let waited = answers.are_due();
                answers.see(&bytes);
                answers.take_heard().iter().for_each(|message| self.silence.message(message));
                if answers.are_due() {
                    return self.actions.push(Action::Send(bytes));
                }
                let said = match answers.said() {
                    Some(Gist::Error) if waited => Said::Error,
                    // Most write it last, so that this piece has it.
                    Some(_) | None if waited && tool_result::shows_error(&bytes) => Said::ToolError,
                    Some(_) | None => Said::Plain,
                };
                (said, waited)
            }
            Kind::Document { glance, said, unsaid, is_read } => {
                unsaid.clear();
                if *is_read && *said == Said::Plain {
                    glance.see(&bytes);
                    *said = match glance.gist() {
                        Some(Gist::Error) => Said::Error,
                        Some(_) | None if tool_result::shows_error(&bytes) => Said::ToolError,
                        Some(_) | None => Said::Plain,
                    };
                }
                (*said, false)
            }
        };
        if is_answered {
            self.silence.answered();
        }
        // Who writes a body of known length does not ask for more once it is there.
        match (is_last, is_answered) {
            (true, _) => self.end(bytes, Verdict::Said(said)),
            (false, true) => self.actions.push(Action::Answered(bytes, said)),
            (false, false) => self.actions.push(Action::Send(bytes)),
        }
    }

    /// The server's bytes have ended: in good order, or like this.
    pub fn handle_end(&mut self, lost: Option<L>) {
        if !matches!(self.state, State::Flowing) {
            return;
        }
        let answers = match &mut self.kind {
            Kind::Events(answers) => answers,
            Kind::Document { said, unsaid, .. } => {
                let (said, unsaid) = (*said, mem::take(unsaid));
                return match lost {
                    None if unsaid.is_empty() => self.end(Bytes::new(), Verdict::Said(said)),
                    Some(lost) if unsaid.is_empty() => self.break_off(Verdict::Lost(lost)),
                    lost => {
                        let lost = lost.unwrap_or_else(L::empty);
                        self.end(legacy::refusal(&unsaid, &lost.error()), Verdict::Lost(lost));
                    }
                };
            }
        };
        match lost {
            // Nobody waits on a stream of events.
            lost if !answers.are_due() => {
                let verdict = lost.map_or(Verdict::Said(Said::Plain), Verdict::Lost);
                self.end(Bytes::new(), verdict);
            }
            // The server has ended it, or its client is to go to the next of us: the client goes on where it
            // was.
            lost if answers.is_resumable() && lost.as_ref().is_none_or(L::is_closing) => {
                self.actions.push(Action::Release);
                self.leave();
                self.end(Bytes::new(), Verdict::Left);
            }
            lost => {
                let from = answers.anchor().filter(|_| lost.as_ref().is_some_and(L::is_break));
                self.settle(from, lost.unwrap_or_else(L::unanswered));
            }
        }
    }

    /// To these an answer is still owed.
    pub fn handle_owed(&mut self, owed: SmallVec<[Id; 1]>) {
        let (Kind::Events(answers), State::Settling(from, lost)) = (&mut self.kind, &mut self.state) else {
            return;
        };
        match from.take() {
            // The client has taken all of it back, and does not wait.
            _ if owed.is_empty() => self.end(Bytes::new(), Verdict::Departed),
            Some(from) => {
                answers.taken_up();
                self.actions.push(Action::TakeUp(from));
                self.state = State::TakingUp;
            }
            None => {
                answers.only(owed);
                let (words, lost) = (answers.last_words(&lost.error()), lost.clone());
                self.end(words, Verdict::Lost(lost));
            }
        }
    }

    /// The server goes on behind the last event, or does not, for this reason.
    pub fn handle_taken_up(&mut self, outcome: Result<(), L>) {
        if !matches!(self.state, State::TakingUp) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.state = State::Flowing;
                let void = self.void();
                if !void.is_empty() {
                    self.actions.push(Action::Send(void));
                }
            }
            Err(lost) => self.settle(None, lost),
        }
    }

    /// We have something to say ourselves; only where that [can be](Relay::may_speak).
    pub fn handle_own(&mut self, bytes: Bytes) {
        if self.may_speak() {
            self.silence.bytes();
            self.say(bytes);
        }
    }

    /// The time has come that [`Relay::poll_timeout`] named, or has not.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_waiting() {
            return;
        }
        match self.silence.handle_timeout(now, self.may_speak()) {
            None => {}
            Some(KeepAliveStep::Comment) => self.say(sse::KEEP_ALIVE),
            Some(KeepAliveStep::Progress(message)) => self.say(legacy::event(&message)),
            Some(KeepAliveStep::Deadline) => {
                self.actions.push(Action::GiveUp);
                let error = self.silence.overdue();
                match &mut self.kind {
                    Kind::Events(answers) => {
                        let words = answers.last_words(&error);
                        self.end(words, Verdict::Overdue(error));
                    }
                    // There is no place for an error in a document that has begun.
                    Kind::Document { unsaid, .. } if unsaid.is_empty() => {
                        self.break_off(Verdict::Overdue(error));
                    }
                    Kind::Document { unsaid, .. } => {
                        let refusal = legacy::refusal(unsaid, &error);
                        self.end(refusal, Verdict::Overdue(error));
                    }
                }
            }
        }
    }

    /// The proxy stops.
    pub fn handle_stopping(&mut self) {
        match self.state {
            State::Flowing => self.handle_end(Some(L::closing())),
            State::TakingUp => {
                self.actions.push(Action::Cancel);
                self.settle(None, L::closing());
            }
            State::Settling(..) | State::Over => {}
        }
    }

    /// The client has left, perhaps to come back.
    pub fn handle_departed(&mut self) {
        if !matches!(self.state, State::Over) {
            self.leave();
            self.state = State::Over;
        }
    }

    pub fn poll_action(&mut self) -> Option<Action<L>> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// When the relay wants to hear of the time.
    pub fn poll_timeout(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if !self.is_waiting() {
            return None;
        }
        let may_speak = self.may_speak();
        self.silence.poll_timeout(now, may_speak)
    }

    /// Whether something of ours can be put in here: an event of the server's that is going by has ended, or
    /// will not come to its end.
    pub fn may_speak(&self) -> bool {
        match (&self.kind, &self.state) {
            (Kind::Events(answers), State::Flowing) => answers.is_between_events(),
            (Kind::Events(_), State::TakingUp) => true,
            (Kind::Events(_), State::Settling(..) | State::Over) | (Kind::Document { .. }, _) => false,
        }
    }

    /// The ids of events that a client may come back behind which has lost what followed
    /// ([`Answers::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        let answers = match &self.kind {
            Kind::Events(answers) => Some(answers),
            Kind::Document { .. } => None,
        };
        answers.into_iter().flat_map(Answers::earlier_ids)
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Flowing => Phase::Flowing,
            State::Settling(..) => Phase::Settling,
            State::TakingUp => Phase::TakingUp,
            State::Over => Phase::Over,
        }
    }

    /// Whether the server is waited for.
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Flowing | State::TakingUp)
    }

    fn say(&mut self, bytes: Bytes) {
        let void = self.void();
        let bytes = if void.is_empty() { bytes } else { [void, bytes].concat().into() };
        self.actions.push(Action::Send(bytes));
    }

    /// What ends an event that was cut off.
    fn void(&mut self) -> Bytes {
        match &mut self.kind {
            Kind::Events(answers) => answers.void(),
            Kind::Document { .. } => Bytes::new(),
        }
    }

    fn settle(&mut self, from: Option<Anchor>, lost: L) {
        if let Kind::Events(answers) = &self.kind {
            self.actions.push(Action::Settle(answers.waiting()));
        }
        self.state = State::Settling(from, lost);
    }

    /// Who comes back for what the stream has left unanswered is to hear what becomes of it.
    fn leave(&mut self) {
        if let Kind::Events(answers) = &self.kind
            && answers.are_due()
            && let Some(anchor) = answers.anchor()
        {
            self.actions.push(Action::Leave(anchor, answers.waiting()));
        }
    }

    fn end(&mut self, bytes: Bytes, verdict: Verdict<L>) {
        self.actions.push(Action::End(bytes, verdict));
        self.state = State::Over;
    }

    fn break_off(&mut self, verdict: Verdict<L>) {
        self.actions.push(Action::Break(verdict));
        self.state = State::Over;
    }
}
