//! One call in flight, from its start to its one outcome.
//!
//! An [`Exchange`] decides and never waits: what happens is told to it by `handle_*`, what is to be
//! done comes out of [`Exchange::poll_action`], and [`Exchange::poll_timeout`] says when it wants to
//! hear of the time. It holds what must be true of every call, whatever comes first:
//!
//! - there is one outcome, and it is answered once;
//! - a task's handle is given only after the task is stored;
//! - a call whose client has left before it had an answer, a question or a handle is cancelled,
//!   once, unless the server had already answered;
//! - a question is put on the call itself before a task exists, and inside the task afterwards.
//!
//! `F` is the server's final word; the exchange carries it and never looks inside. Questions are
//! numbers here: what they say is the business of whoever carries the actions out.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<F> {
    /// Answer the client's own request with the server's final word.
    Reply(F),
    /// Answer the client's own request with these questions; it will come back with answers.
    Ask(BTreeSet<Ask>),
    /// Store the task, then say whether it worked ([`Exchange::handle_stored`]).
    Store,
    /// Answer the client's own request with the handle of the stored task.
    ReplyTask,
    /// Put a question inside the task.
    AskInTask(Ask),
    /// Take a question off the task again.
    WithdrawInTask(Ask),
    /// Tell the server that nobody answers this question.
    Decline(Ask),
    /// Keep the server's final word in the task.
    Settle(F),
    /// Forget the task: nobody has its handle.
    Forget,
    /// Tell the server that nobody waits any more.
    CancelUpstream,
}

/// A question of the server, by number within its call.
pub type Ask = u32;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// When a call becomes a task, counted from its start and again from each retry. Where it is
    /// nothing the call is a task at once, whatever arrives meanwhile.
    pub defer_after: Option<Duration>,
    /// How long further questions are waited for after the first.
    pub settle: Duration,
    /// How long an unanswered question may wait for its client.
    pub park: Duration,
}

/// One call in flight.
#[derive(Clone, Debug)]
pub struct Exchange<F> {
    state: State<F>,
    patience: Patience,
    actions: VecDeque<Action<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State<F> {
    /// The client waits on its own request. A task at `defer_at`, if that is given, unless the
    /// server asks first.
    Inline { defer_at: Option<Instant>, asked: BTreeSet<Ask>, settle_at: Option<Instant> },
    /// The client has been asked and will come back. The server's word may come meanwhile.
    Parked { asked: BTreeSet<Ask>, word: Option<F>, expires_at: Instant },
    /// The task is being stored. Questions and the final word may come meanwhile.
    Deferring { asked: BTreeSet<Ask>, word: Option<F> },
    /// The client left while the task was being stored.
    Abandoned,
    /// The handle is on its way to the client's socket.
    Handing { settled: bool },
    /// The client has the handle; the call runs on without it.
    Deferred,
    /// There is nothing left to decide.
    Done,
}

/// Where an exchange stands, for those who print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Inline,
    Parked,
    Deferring,
    Abandoned,
    Handing,
    Deferred,
    Done,
}

// === impl Patience ===

impl Patience {
    /// Whether the call is a task at once, and not only if it turns out to be slow.
    fn is_at_once(&self) -> bool {
        self.defer_after == Some(Duration::ZERO)
    }
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// A call that is sent at `now`.
    pub fn new(patience: Patience, now: Instant) -> Self {
        let state = State::Inline {
            defer_at: patience.defer_after.map(|after| now + after),
            asked: BTreeSet::new(),
            settle_at: None,
        };
        Self { state, patience, actions: VecDeque::new() }
    }

    /// The server's final word: its response, or that there will be none.
    pub fn handle_final(&mut self, word: F) {
        match &mut self.state {
            State::Inline { defer_at: Some(_), asked, .. }
                if self.patience.is_at_once() && asked.is_empty() =>
            {
                self.state = State::Deferring { asked: BTreeSet::new(), word: Some(word) };
                self.actions.push_back(Action::Store);
            }
            State::Inline { .. } => {
                self.actions.push_back(Action::Reply(word));
                self.state = State::Done;
            }
            // Kept for the retry: a server that gave up waiting has said so in its answer.
            State::Parked { word: pending, .. }
            // Returned plainly once the store has answered, where a handle would only cost a poll.
            | State::Deferring { word: pending, .. } => *pending = Some(word),
            State::Handing { settled } => {
                if !*settled {
                    self.actions.push_back(Action::Settle(word));
                    *settled = true;
                }
            }
            State::Deferred => {
                self.actions.push_back(Action::Settle(word));
                self.state = State::Done;
            }
            State::Abandoned | State::Done => {}
        }
    }

    /// The server asks something that may be put to the client.
    pub fn handle_question(&mut self, ask: Ask, now: Instant) {
        match &mut self.state {
            // Too late for the call itself, though nobody has looked at the time yet.
            State::Inline { asked, defer_at: Some(at), .. } if asked.is_empty() && *at <= now => {
                self.state = State::Deferring { asked: BTreeSet::from([ask]), word: None };
                self.actions.push_back(Action::Store);
            }
            State::Inline { asked, settle_at, .. } => {
                asked.insert(ask);
                settle_at.get_or_insert(now + self.patience.settle);
            }
            // Put with the next round, when the client comes back.
            State::Parked { asked, .. } | State::Deferring { asked, .. } => {
                asked.insert(ask);
            }
            State::Handing { settled: false } | State::Deferred => {
                self.actions.push_back(Action::AskInTask(ask));
            }
            State::Handing { settled: true } | State::Abandoned | State::Done => {
                self.actions.push_back(Action::Decline(ask));
            }
        }
    }

    /// The server took a question back.
    pub fn handle_withdrawn(&mut self, ask: Ask) {
        match &mut self.state {
            State::Inline { asked, settle_at, .. } => {
                asked.remove(&ask);
                if asked.is_empty() {
                    *settle_at = None;
                }
            }
            State::Parked { asked, .. } | State::Deferring { asked, .. } => {
                asked.remove(&ask);
            }
            State::Handing { settled: false } | State::Deferred => {
                self.actions.push_back(Action::WithdrawInTask(ask));
            }
            State::Handing { settled: true } | State::Abandoned | State::Done => {}
        }
    }

    /// The client came back and answered some questions; they have been given to the server.
    /// Where the client is still here from an earlier time, it is one more who waits.
    ///
    /// `defer_after` is the threshold as it is for this request: a client may not declare tasks on
    /// each.
    pub fn handle_retry(&mut self, answered: &BTreeSet<Ask>, defer_after: Option<Duration>, now: Instant) {
        self.patience.defer_after = defer_after;
        match &mut self.state {
            State::Parked { asked, word, .. } => {
                if let Some(word) = word.take() {
                    self.actions.push_back(Action::Reply(word));
                    self.state = State::Done;
                    return;
                }
                asked.retain(|ask| !answered.contains(ask));
                let asked = std::mem::take(asked);
                // What is left is asked again, together with what the server asks next.
                let settle_at = (!asked.is_empty()).then(|| now + self.patience.settle);
                let defer_at = self.patience.defer_after.map(|after| now + after);
                self.state = State::Inline { defer_at, asked, settle_at };
            }
            State::Inline { asked, settle_at, .. } => {
                asked.retain(|ask| !answered.contains(ask));
                if asked.is_empty() {
                    *settle_at = None;
                }
            }
            State::Deferring { asked, .. } => asked.retain(|ask| !answered.contains(ask)),
            State::Abandoned | State::Handing { .. } | State::Deferred | State::Done => {}
        }
    }

    /// The proxy stops: a client that has been asked can no longer come back.
    pub fn handle_stopping(&mut self, now: Instant) {
        if let State::Parked { expires_at, .. } = &mut self.state {
            *expires_at = now;
            self.handle_timeout(now);
        }
    }

    /// The time has come that [`Exchange::poll_timeout`] named, or has not.
    pub fn handle_timeout(&mut self, now: Instant) {
        match &mut self.state {
            // A question wins over the threshold: it is still on the call itself.
            State::Inline { asked, settle_at: Some(at), .. } => {
                if *at <= now {
                    let asked = std::mem::take(asked);
                    self.actions.push_back(Action::Ask(asked.clone()));
                    self.state = State::Parked { asked, word: None, expires_at: now + self.patience.park };
                }
            }
            State::Inline { defer_at: Some(at), .. } if *at <= now => {
                self.state = State::Deferring { asked: BTreeSet::new(), word: None };
                self.actions.push_back(Action::Store);
            }
            State::Parked { asked, word, expires_at } if *expires_at <= now => {
                let asked = std::mem::take(asked);
                let spoke = word.is_some();
                self.actions.extend(asked.into_iter().map(Action::Decline));
                if !spoke {
                    self.actions.push_back(Action::CancelUpstream);
                }
                self.state = State::Done;
            }
            State::Inline { .. }
            | State::Parked { .. }
            | State::Deferring { .. }
            | State::Abandoned
            | State::Handing { .. }
            | State::Deferred
            | State::Done => {}
        }
    }

    /// The store has the task, or could not take it (it failed, or a quota is full): then the call
    /// stays synchronous.
    pub fn handle_stored(&mut self, stored: bool, now: Instant) {
        match (std::mem::replace(&mut self.state, State::Done), stored) {
            (State::Deferring { word: None, asked }, true) => {
                self.actions.push_back(Action::ReplyTask);
                self.actions.extend(asked.into_iter().map(Action::AskInTask));
                self.state = State::Handing { settled: false };
            }
            (State::Deferring { word: None, asked }, false) => {
                let settle_at = (!asked.is_empty()).then_some(now);
                self.state = State::Inline { defer_at: None, asked, settle_at };
            }
            (State::Deferring { word: Some(word), asked }, true) if self.patience.is_at_once() => {
                self.actions.push_back(Action::ReplyTask);
                self.actions.extend(asked.into_iter().map(Action::Decline));
                self.actions.push_back(Action::Settle(word));
                self.state = State::Handing { settled: true };
            }
            (State::Deferring { word: Some(word), .. }, stored) => {
                if stored {
                    self.actions.push_back(Action::Forget);
                }
                self.actions.push_back(Action::Reply(word));
            }
            (State::Abandoned, true) => self.actions.push_back(Action::Forget),
            (State::Abandoned, false) => {}
            (other, _) => self.state = other,
        }
    }

    /// The client's socket has taken the handle. From here on the task lives without the client.
    pub fn handle_committed(&mut self) {
        if let State::Handing { settled } = self.state {
            self.state = if settled { State::Done } else { State::Deferred };
        }
    }

    /// The client's connection is gone. Once it has been asked, or has the handle, this means
    /// nothing: it will come back.
    pub fn handle_departed(&mut self) {
        match &self.state {
            State::Inline { .. } => {
                self.actions.push_back(Action::CancelUpstream);
                self.state = State::Done;
            }
            State::Deferring { word, .. } => {
                if word.is_none() {
                    self.actions.push_back(Action::CancelUpstream);
                }
                self.state = State::Abandoned;
            }
            State::Handing { settled } => {
                if !settled {
                    self.actions.push_back(Action::CancelUpstream);
                }
                self.actions.push_back(Action::Forget);
                self.state = State::Done;
            }
            State::Parked { .. } | State::Abandoned | State::Deferred | State::Done => {}
        }
    }

    /// The task was cancelled, and its record says so already. Whoever did that had the handle.
    pub fn handle_cancelled(&mut self) {
        match self.state {
            State::Handing { settled: false } | State::Deferred => {
                self.actions.push_back(Action::CancelUpstream);
                self.state = State::Done;
            }
            State::Handing { settled: true } => self.state = State::Done,
            State::Inline { .. }
            | State::Parked { .. }
            | State::Deferring { .. }
            | State::Abandoned
            | State::Done => {}
        }
    }

    pub fn poll_action(&mut self) -> Option<Action<F>> {
        self.actions.pop_front()
    }

    /// When the exchange wants to hear of the time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Inline { settle_at: Some(at), .. } => Some(at),
            State::Inline { defer_at, .. } => defer_at,
            State::Parked { expires_at, .. } => Some(expires_at),
            State::Deferring { .. }
            | State::Abandoned
            | State::Handing { .. }
            | State::Deferred
            | State::Done => None,
        }
    }

    /// Whether a client waits on its own request, so that what the server says on the way is for it.
    pub fn is_attended(&self) -> bool {
        matches!(self.state, State::Inline { .. } | State::Deferring { .. })
    }

    /// Whether nothing is left to decide. Actions may still be waiting.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the server's final word is still waited for.
    pub fn awaits_server(&self) -> bool {
        match &self.state {
            State::Inline { .. } | State::Deferred => true,
            State::Deferring { word, .. } | State::Parked { word, .. } => word.is_none(),
            State::Handing { settled } => !settled,
            State::Abandoned | State::Done => false,
        }
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Inline { .. } => Phase::Inline,
            State::Parked { .. } => Phase::Parked,
            State::Deferring { .. } => Phase::Deferring,
            State::Abandoned => Phase::Abandoned,
            State::Handing { .. } => Phase::Handing,
            State::Deferred => Phase::Deferred,
            State::Done => Phase::Done,
        }
    }
}
