//! One call in flight, from its start to its one outcome.
//!
//! An [`Exchange`] decides and never waits: what happens is told to it by `handle_*`, what is to be
//! done comes out of [`Exchange::poll_action`], and [`Exchange::poll_timeout`] says when it wants to
//! hear of the time. It holds what must be true of every call, whatever comes first:
//!
//! - there is one outcome, and it is answered once;
//! - a task's handle is given only after the task is stored;
//! - a call whose client has left before it had an answer or a handle is cancelled, once, unless
//!   the server had already answered.
//!
//! `F` is the server's final word; the exchange carries it and never looks inside.

use std::{collections::VecDeque, time::Instant};

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<F> {
    /// Answer the client's own request with the server's final word.
    Reply(F),
    /// Store the task, then say whether it worked ([`Exchange::handle_stored`]).
    Store,
    /// Answer the client's own request with the handle of the stored task.
    ReplyTask,
    /// Keep the server's final word in the task.
    Settle(F),
    /// Forget the task: nobody has its handle.
    Forget,
    /// Tell the server that nobody waits any more.
    CancelUpstream,
}

/// One call in flight.
#[derive(Clone, Debug)]
pub struct Exchange<F> {
    state: State<F>,
    actions: VecDeque<Action<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State<F> {
    /// The client waits on its own request. A task at `defer_at`, if that is given.
    Inline { defer_at: Option<Instant> },
    /// The task is being stored. The final word may come meanwhile.
    Deferring { word: Option<F> },
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
    Deferring,
    Abandoned,
    Handing,
    Deferred,
    Done,
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// A call that has been sent, to become a task at `defer_at`.
    pub fn new(defer_at: Option<Instant>) -> Self {
        Self { state: State::Inline { defer_at }, actions: VecDeque::new() }
    }

    /// The server's final word: its response, or that there will be none.
    pub fn handle_final(&mut self, word: F) {
        match &mut self.state {
            State::Inline { .. } => {
                self.actions.push_back(Action::Reply(word));
                self.state = State::Done;
            }
            // Returned plainly once the store has answered: a handle would only cost a poll.
            State::Deferring { word: pending } => *pending = Some(word),
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

    /// The time has come that [`Exchange::poll_timeout`] named, or has not.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Inline { defer_at: Some(at) } = self.state
            && at <= now
        {
            self.state = State::Deferring { word: None };
            self.actions.push_back(Action::Store);
        }
    }

    /// The store has the task, or could not take it (it failed, or a quota is full): then the call
    /// stays synchronous.
    pub fn handle_stored(&mut self, stored: bool) {
        match (std::mem::replace(&mut self.state, State::Done), stored) {
            (State::Deferring { word: None }, true) => {
                self.actions.push_back(Action::ReplyTask);
                self.state = State::Handing { settled: false };
            }
            (State::Deferring { word: None }, false) => self.state = State::Inline { defer_at: None },
            (State::Deferring { word: Some(word) }, stored) => {
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

    /// The client's connection is gone. Once it has the handle this means nothing.
    pub fn handle_departed(&mut self) {
        match &self.state {
            State::Inline { .. } => {
                self.actions.push_back(Action::CancelUpstream);
                self.state = State::Done;
            }
            State::Deferring { word } => {
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
            State::Abandoned | State::Deferred | State::Done => {}
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
            State::Inline { .. } | State::Deferring { .. } | State::Abandoned | State::Done => {}
        }
    }

    pub fn poll_action(&mut self) -> Option<Action<F>> {
        self.actions.pop_front()
    }

    /// When the exchange wants to hear of the time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Inline { defer_at } => defer_at,
            State::Deferring { .. }
            | State::Abandoned
            | State::Handing { .. }
            | State::Deferred
            | State::Done => None,
        }
    }

    /// Whether the client still waits on its own request, so that what the server says on the way
    /// is for it.
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
            State::Deferring { word } => word.is_none(),
            State::Handing { settled } => !settled,
            State::Abandoned | State::Done => false,
        }
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Inline { .. } => Phase::Inline,
            State::Deferring { .. } => Phase::Deferring,
            State::Abandoned => Phase::Abandoned,
            State::Handing { .. } => Phase::Handing,
            State::Deferred => Phase::Deferred,
            State::Done => Phase::Done,
        }
    }
}
