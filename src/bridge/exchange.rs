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
//! How a client is asked on the call itself, and what its leaving means, is its [`Manner`]. How a server
//! asks has two shapes: its call goes on and waits for the answer ([`Exchange::handle_question`]), or it
//! turns the call over, so that nothing is in flight until the call is made again with all the answers
//! ([`Exchange::handle_turn_over`]).
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
    /// Put a question on the stream that answers the client's own request.
    AskOnStream(Ask),
    /// Store the task, then say whether it worked ([`Exchange::handle_stored`]).
    Store,
    /// Answer the client's own request with the handle of the stored task.
    ReplyTask,
    /// Put a question inside the task.
    AskInTask(Ask),
    /// Take a question back, wherever it has been put.
    Withdraw(Ask),
    /// Make the call again, with the answers to all that the server turned it over for.
    Turn,
    /// Tell the server that nobody answers this question.
    Decline(Ask),
    /// The same of one that has been put inside the task, where it is taken back.
    Lapse(Ask),
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
pub struct Deadlines {
    /// When a call becomes a task, counted from its start and again from each retry. Where it is
    /// nothing the call is a task at once, whatever arrives meanwhile.
    pub defer_after: Option<Duration>,
    /// How long further questions are waited for after the first.
    pub settle: Duration,
    /// How long an unanswered question may wait for its client.
    pub park: Duration,
    /// How long an unanswered question inside a task may keep the server waiting; for as long as the task
    /// lives where it is nothing. A call that the server has turned over keeps it from nothing.
    pub turn: Option<Duration>,
}

/// How a client is asked before there is a task, and what its leaving means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Its call is answered with the questions, and it comes back with the answers. One that leaves before
    /// it has an answer cancels its call (2026-07-28, *Multi Round-Trip Requests*; *Cancellation*).
    Rounds,
    /// It is asked on the stream that answers its call, which goes on. One that leaves cancels nothing, and
    /// is owed what comes of it: as a task, where it may be one (2025-11-25, *Sending Messages to the
    /// Server*).
    Stream,
    /// The same of one that could not find its task by itself, so that what it has left makes none, and asks nobody.
    Ticket,
}

/// One call in flight.
#[derive(Clone, Debug)]
pub struct Exchange<F> {
    state: State<F>,
    manner: Manner,
    deadlines: Deadlines,
    /// What must be answered before the call is made again. While there is any, the server has no call.
    turned_over: Option<BTreeSet<Ask>>,
    /// When what has been put inside the task lapses, the first first.
    lapses: VecDeque<(Instant, Ask)>,
    /// A client that is owed its result has left.
    left: bool,
    /// Of a call that is only observed.
    observed: Option<Box<Observed>>,
    actions: VecDeque<Action<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State<F> {
    /// The client waits on its own request. A task at `defer_at`, if that is given, unless the
    /// server asks first.
    Inline { defer_at: Option<Instant>, asked: BTreeSet<Ask>, settle_at: Option<Instant> },
    /// The client has been asked and will come back. The server's word may come meanwhile.
    Parked { asked: BTreeSet<Ask>, word: Option<Box<F>>, expires_at: Instant },
    /// The task is being stored. Questions and the final word may come meanwhile.
    Deferring { asked: BTreeSet<Ask>, word: Option<Box<F>> },
    /// The task is being stored and has no use any more: its client has disconnected, or has its answer.
    Abandoned,
    /// The handle is on its way to the client's socket.
    Handing { settled: bool },
    /// The client has the handle; the call runs on without it.
    Deferred,
    /// There is nothing left to decide.
    Done,
}

/// A call that would become a task if it were not only observed.
#[derive(Clone, Debug)]
struct Observed {
    after: Duration,
    /// When, unless the server asks first. Counts from the start, and again from each retry.
    due: Option<Instant>,
    is_over_threshold: bool,
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

// === impl Deadlines ===

impl Deadlines {
    /// Whether the call is a task at once, and not only if it turns out to be slow.
    fn is_at_once(&self) -> bool {
        self.defer_after == Some(Duration::ZERO)
    }
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// A call that is sent at `now`.
    pub fn new(manner: Manner, deadlines: Deadlines, now: Instant) -> Self {
        let state = State::Inline {
            defer_at: deadlines.defer_after.map(|after| now + after),
            asked: BTreeSet::new(),
            settle_at: None,
        };
        Self::begun(manner, deadlines, state)
    }

    /// A call that is stored as a task before it is sent, and whose client has the handle.
    pub fn of_a_task(manner: Manner, deadlines: Deadlines) -> Self {
        Self::begun(manner, deadlines, State::Deferred)
    }

    fn begun(manner: Manner, deadlines: Deadlines, state: State<F>) -> Self {
        Self {
            state,
            manner,
            deadlines,
            turned_over: None,
            lapses: VecDeque::new(),
            left: false,
            observed: None,
            actions: VecDeque::new(),
        }
    }

    /// The call becomes no task; it is observed whether it would have with this threshold
    /// ([`Exchange::would_defer`]).
    pub fn observe(&mut self, after: Duration, since: Instant) {
        let observed = Observed { after, due: Some(since + after), is_over_threshold: false };
        self.observed = Some(Box::new(observed));
    }

    /// It is this time. Said of an observed call before each event that does not say it: a threshold that has passed
    /// was there first.
    pub fn pass_time(&mut self, now: Instant) {
        if let (Some(observed), State::Inline { settle_at: None, .. }) = (&mut self.observed, &self.state)
            && observed.due.is_some_and(|due| due <= now)
        {
            observed.is_over_threshold = true;
        }
    }

    /// Whether an observed call would have become a task by now.
    pub fn would_defer(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.is_over_threshold)
    }

    /// The server's final word: its response, or that there will be none.
    pub fn handle_final(&mut self, word: F) {
        self.turned_over = None;
        match &mut self.state {
            State::Inline { defer_at: Some(_), asked, .. }
                if self.deadlines.is_at_once() && asked.is_empty() =>
            {
                self.state = State::Deferring { asked: BTreeSet::new(), word: Some(Box::new(word)) };
                self.actions.push_back(Action::Store);
            }
            State::Inline { .. } => {
                self.actions.push_back(Action::Reply(word));
                self.state = State::Done;
            }
            // The client is not kept waiting for the store: its task is forgotten once that is stored.
            State::Deferring { word: pending, .. } => {
                if self.deadlines.is_at_once() || self.left && self.manner == Manner::Stream {
                    *pending = Some(Box::new(word));
                } else {
                    self.actions.push_back(Action::Reply(word));
                    self.state = State::Abandoned;
                }
            }
            // Kept for the retry: a server that gave up waiting has said so in its answer.
            State::Parked { word: pending, .. } => *pending = Some(Box::new(word)),
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
        self.pass_time(now);
        if !self.ask(&BTreeSet::from([ask]), now) {
            self.actions.push_back(Action::Decline(ask));
        }
    }

    /// The server asks these, and ends the call with that: it is made again once all of them are answered.
    pub fn handle_turn_over(&mut self, asks: BTreeSet<Ask>, now: Instant) {
        self.pass_time(now);
        self.turned_over = Some(asks.clone());
        if !self.ask(&asks, now) {
            self.turned_over = None;
            return;
        }
        // No more will come that could be waited for.
        if self.manner == Manner::Rounds
            && matches!(&self.state, State::Inline { asked, .. } if !asked.is_empty())
        {
            self.park(now);
        }
        self.turn();
    }

    /// The client is to be asked this. Not where nobody waits for what it says.
    fn ask(&mut self, asks: &BTreeSet<Ask>, now: Instant) -> bool {
        match &mut self.state {
            State::Inline { .. } if self.left && self.manner == Manner::Ticket => return false,
            // Too late for the call itself, though nobody has looked at the time yet.
            State::Inline { asked, defer_at: Some(at), .. } if asked.is_empty() && *at <= now => {
                self.state = State::Deferring { asked: asks.clone(), word: None };
                self.actions.push_back(Action::Store);
            }
            State::Inline { asked, settle_at, .. } => {
                asked.extend(asks);
                match self.manner {
                    Manner::Rounds if asked.is_empty() => {}
                    Manner::Rounds => drop(settle_at.get_or_insert(now + self.deadlines.settle)),
                    Manner::Stream | Manner::Ticket => {
                        self.actions.extend(asks.iter().copied().map(Action::AskOnStream))
                    }
                }
            }
            // Put with the next round, when the client comes back.
            State::Parked { asked, .. } | State::Deferring { asked, .. } => asked.extend(asks),
            State::Handing { settled: false } | State::Deferred => {
                asks.iter().for_each(|ask| self.ask_in_task(*ask, now));
            }
            State::Handing { settled: true } | State::Abandoned | State::Done => return false,
        }
        true
    }

    /// A question is answered that was put inside the task or on the stream.
    pub fn handle_answered(&mut self, ask: Ask) {
        match &mut self.state {
            State::Inline { asked, .. } | State::Parked { asked, .. } | State::Deferring { asked, .. } => {
                asked.remove(&ask);
            }
            State::Abandoned | State::Handing { .. } | State::Deferred | State::Done => {}
        }
        if let Some(asks) = &mut self.turned_over {
            asks.remove(&ask);
        }
        self.lapses.retain(|(_, lapses)| *lapses != ask);
        self.turn();
    }

    fn ask_in_task(&mut self, ask: Ask, now: Instant) {
        self.actions.push_back(Action::AskInTask(ask));
        if let Some(turn) = self.deadlines.turn.filter(|_| self.turned_over.is_none()) {
            self.lapses.push_back((now + turn, ask));
        }
    }

    /// Where nothing is unanswered any more for which the server turned the call over, it is made again.
    fn turn(&mut self) {
        if self.turned_over.take_if(|asks| asks.is_empty()).is_some() && !self.is_done() {
            self.actions.push_back(Action::Turn);
        }
    }

    /// The client is asked, and comes back.
    fn park(&mut self, now: Instant) {
        let State::Inline { asked, .. } = &mut self.state else { return };
        let asked = std::mem::take(asked);
        self.actions.push_back(Action::Ask(asked.clone()));
        self.state = State::Parked { asked, word: None, expires_at: now + self.deadlines.park };
    }

    /// The server took a question back.
    pub fn handle_withdrawn(&mut self, ask: Ask) {
        self.lapses.retain(|(_, lapses)| *lapses != ask);
        match &mut self.state {
            State::Inline { asked, settle_at, .. } => {
                if asked.remove(&ask) {
                    self.actions.push_back(Action::Withdraw(ask));
                }
                if asked.is_empty() {
                    *settle_at = None;
                }
            }
            State::Parked { asked, .. } | State::Deferring { asked, .. } => {
                if asked.remove(&ask) {
                    self.actions.push_back(Action::Withdraw(ask));
                }
            }
            State::Handing { settled: false } | State::Deferred => {
                self.actions.push_back(Action::Withdraw(ask));
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
        self.deadlines.defer_after = defer_after;
        if let Some(asks) = &mut self.turned_over {
            asks.retain(|ask| !answered.contains(ask));
        }
        match &mut self.state {
            State::Parked { asked, word, .. } => {
                if let (Some(observed), None) = (&mut self.observed, &word) {
                    observed.due = Some(now + observed.after);
                }
                if let Some(word) = word.take() {
                    self.actions.push_back(Action::Reply(*word));
                    self.state = State::Done;
                    return;
                }
                asked.retain(|ask| !answered.contains(ask));
                let asked = std::mem::take(asked);
                // What is left is asked again, together with what the server asks next.
                let settle_at = (!asked.is_empty()).then(|| now + self.deadlines.settle);
                let defer_at = self.deadlines.defer_after.map(|after| now + after);
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
        self.turn();
    }

    /// The proxy is to stop, and its tasks outlive it: a call that may become one does so now, so that its
    /// client can have from the next process what this one has no time for.
    pub fn handle_draining(&mut self, now: Instant) {
        if let State::Inline { defer_at: Some(at), settle_at: None, .. } = &mut self.state {
            *at = now.min(*at);
            self.handle_timeout(now);
        }
    }

    /// No task is made any more: the proxy is to stop, and its tasks end with it. The call stays synchronous, as the
    /// result of a task could not be fetched from the next process.
    pub fn handle_no_more_tasks(&mut self) {
        self.deadlines.defer_after = None;
        if let State::Inline { defer_at, .. } = &mut self.state {
            *defer_at = None;
        }
        if let Some(observed) = &mut self.observed {
            observed.due = None;
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
        while let Some((_, ask)) = self.lapses.front().copied().filter(|(at, _)| *at <= now) {
            self.lapses.pop_front();
            if matches!(self.state, State::Handing { settled: false } | State::Deferred) {
                self.actions.push_back(Action::Lapse(ask));
            }
        }
        match &mut self.state {
            // A question wins over the threshold: it is still on the call itself.
            State::Inline { settle_at: Some(at), .. } => {
                if *at <= now {
                    self.park(now);
                }
            }
            State::Inline { defer_at: Some(at), .. } if *at <= now => self.defer(),
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

    /// The call is to be a task.
    fn defer(&mut self) {
        let State::Inline { asked, .. } = &mut self.state else { return };
        self.state = State::Deferring { asked: std::mem::take(asked), word: None };
        self.actions.push_back(Action::Store);
    }

    /// The store has the task, or could not take it (it failed, or a quota is full): then the call
    /// stays synchronous.
    pub fn handle_stored(&mut self, stored: bool, now: Instant) {
        match (std::mem::replace(&mut self.state, State::Done), stored) {
            (State::Deferring { word: None, asked }, true) => {
                self.actions.push_back(Action::ReplyTask);
                asked.into_iter().for_each(|ask| self.ask_in_task(ask, now));
                self.hand(false);
            }
            (State::Deferring { word: None, asked }, false) => {
                let settle_at = match self.manner {
                    Manner::Rounds => (!asked.is_empty()).then_some(now),
                    Manner::Stream | Manner::Ticket => {
                        self.actions.extend(asked.iter().copied().map(Action::AskOnStream));
                        None
                    }
                };
                self.state = State::Inline { defer_at: None, asked, settle_at };
            }
            (State::Deferring { word: Some(word), asked }, true)
                if self.deadlines.is_at_once() || self.left && self.manner == Manner::Stream =>
            {
                self.actions.push_back(Action::ReplyTask);
                self.actions.extend(asked.into_iter().map(Action::Decline));
                self.actions.push_back(Action::Settle(*word));
                self.hand(true);
            }
            (State::Deferring { word: Some(word), .. }, stored) => {
                if stored {
                    self.actions.push_back(Action::Forget);
                }
                self.actions.push_back(Action::Reply(*word));
            }
            (State::Abandoned, true) => self.actions.push_back(Action::Forget),
            (State::Abandoned, false) => {}
            (other, _) => self.state = other,
        }
    }

    /// The handle goes to the client. One whose leaving cancels nothing need not have taken it.
    fn hand(&mut self, settled: bool) {
        self.state = State::Handing { settled };
        if self.manner != Manner::Rounds {
            self.handle_committed();
        }
    }

    /// The client's socket has taken the handle. From here on the task lives without the client.
    pub fn handle_committed(&mut self) {
        if let State::Handing { settled } = self.state {
            self.state = if settled { State::Done } else { State::Deferred };
        }
    }

    /// The client's connection is gone. Once it has been asked, or has the handle, this means
    /// nothing: it will come back. Nor does it where leaving cancels nothing; but nobody is left to wait,
    /// so that the call is a task at once where it may be one.
    pub fn handle_departed(&mut self) {
        match self.manner {
            Manner::Rounds => self.give_up(),
            Manner::Stream => {
                self.left = true;
                if matches!(self.state, State::Inline { defer_at: Some(_), .. }) {
                    self.defer();
                }
            }
            Manner::Ticket => {
                self.left = true;
                // Nobody is left to be given one, or to be asked.
                if let State::Inline { defer_at, asked, .. } = &mut self.state {
                    *defer_at = None;
                    self.actions.extend(std::mem::take(asked).into_iter().map(Action::Decline));
                }
            }
        }
    }

    /// The client has taken its own request back (2025-11-25, *Cancellation*). A task is not ended by that.
    pub fn handle_taken_back(&mut self) {
        if matches!(self.state, State::Inline { .. } | State::Deferring { .. }) {
            self.give_up();
        }
    }

    /// Nobody wants the call any more that is none of a task yet, or whose handle nobody has.
    fn give_up(&mut self) {
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

    /// The task goes on without this process.
    pub fn handle_released(&mut self) {
        if matches!(self.state, State::Deferred) {
            self.actions.clear();
            self.state = State::Done;
        }
    }

    pub fn poll_action(&mut self) -> Option<Action<F>> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            // Room for the next ones would be kept for as long as a task takes.
            self.actions = VecDeque::new();
        }
        action
    }

    /// When the exchange wants to hear of the time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Inline { settle_at: Some(at), .. } => Some(at),
            State::Inline { defer_at, .. } => defer_at,
            State::Parked { expires_at, .. } => Some(expires_at),
            State::Handing { settled: false } | State::Deferred => self.lapses.front().map(|(at, _)| *at),
            State::Deferring { .. } | State::Abandoned | State::Handing { settled: true } | State::Done => {
                None
            }
        }
    }

    /// How long the call runs before it becomes a task, where it may.
    pub fn threshold(&self) -> Option<Duration> {
        self.deadlines.defer_after
    }

    /// Whether it may become a task, and waits for that.
    pub fn may_defer(&self) -> bool {
        matches!(self.state, State::Inline { defer_at: Some(_), settle_at: None, .. })
    }

    /// Whether a client whose leaving cancels nothing has left.
    pub fn has_left(&self) -> bool {
        self.left
    }

    /// Whether what the call comes to is still to be known, by whomever.
    pub fn is_unsettled(&self) -> bool {
        match &self.state {
            State::Inline { .. } | State::Deferred => true,
            State::Deferring { word, .. } | State::Parked { word, .. } => word.is_none(),
            State::Handing { settled } => !settled,
            State::Abandoned | State::Done => false,
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

    /// Whether the server has the call, and its final word is still waited for.
    pub fn awaits_server(&self) -> bool {
        self.turned_over.is_none() && self.is_unsettled()
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
