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
//! How a client is asked on the call itself, and what its leaving means, is its [`InputDelivery`]. How a server
//! asks has two shapes: its call goes on and waits for the answer ([`Exchange::handle_input_request`]), or it
//! turns the call over, so that nothing is in flight until the call is made again with all the answers
//! ([`Exchange::handle_input_required`]).
//!
//! `F` is the server's final word; the exchange carries it and never looks inside. Questions are
//! numbers here: what they say is the business of whoever carries the actions out.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeAction<F> {
    /// Answer the client's own request with the server's final word.
    Reply(F),
    /// Answer the client's own request with these questions; it will come back with answers.
    RequestInput(BTreeSet<InputNumber>),
    /// Put a question on the stream that answers the client's own request.
    RequestOnStream(InputNumber),
    /// Store the task, then say whether it worked ([`Exchange::handle_stored`]).
    Store,
    /// Answer the client's own request with the handle of the stored task.
    ReplyTask,
    /// Put a question inside the task.
    RequestInTask(InputNumber),
    /// Take a question back, wherever it has been put.
    Withdraw(InputNumber),
    /// Make the call again, with the answers to all that the server turned it over for.
    RetryUpstream,
    /// Tell the server that nobody answers this question.
    Decline(InputNumber),
    /// The same of one that has been put inside the task, where it is taken back.
    ExpireInput(InputNumber),
    /// Keep the server's final word in the task.
    StoreResult(F),
    /// Forget the task: nobody has its handle.
    RemoveTask,
    /// Tell the server that nobody waits any more.
    CancelUpstream,
}

/// A question of the server, by number within its call.
pub type InputNumber = u32;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadlines {
    /// When a call becomes a task, counted from its start and again from each retry. Where it is
    /// nothing the call is a task at once, whatever arrives meanwhile.
    pub defer_after: Option<Duration>,
    /// How long further questions are waited for after the first.
    pub settle: Duration,
    /// How long an unanswered question may wait for its client.
    pub park: Duration,
    /// How long an unanswered question inside a task may keep the server waiting; for as long as the task
    /// lives where it is nothing. A call that the server has turned over keeps it from nothing.
    pub input_timeout: Option<Duration>,
}

/// How a client is asked before there is a task, and what its leaving means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputDelivery {
    /// Its call is answered with the questions, and it comes back with the answers. One that leaves before
    /// it has an answer cancels its call (2026-07-28, *Multi Round-Trip Requests*; *Cancellation*).
    RoundTrips,
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
    state: ExchangeState<F>,
    manner: InputDelivery,
    deadlines: CallDeadlines,
    /// What must be answered before the call is made again. While there is any, the server has no call.
    awaited_inputs: Option<BTreeSet<InputNumber>>,
    /// When what has been put inside the task lapses, the first first.
    input_expiries: VecDeque<(Instant, InputNumber)>,
    /// A client that is owed its result has left.
    has_disconnected: bool,
    /// Of a call that is only observed.
    observed: Option<Box<DeferObservation>>,
    actions: VecDeque<ExchangeAction<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExchangeState<F> {
    /// The client waits on its own request. A task at `defer_at`, if that is given, unless the
    /// server asks first.
    Inline { defer_at: Option<Instant>, asked: BTreeSet<InputNumber>, settle_at: Option<Instant> },
    /// The client has been asked and will come back. The server's word may come meanwhile.
    Parked { asked: BTreeSet<InputNumber>, word: Option<Box<F>>, expires_at: Instant },
    /// The task is being stored. Questions and the final word may come meanwhile.
    Deferring { asked: BTreeSet<InputNumber>, word: Option<Box<F>> },
    /// The task is being stored and has no use any more: its client has disconnected, or has its answer.
    Abandoned,
    /// The handle is on its way to the client's socket.
    CommittingHandle { settled: bool },
    /// The client has the handle; the call runs on without it.
    Deferred,
    /// There is nothing left to decide.
    Done,
}

/// A call that would become a task if it were not only observed.
#[derive(Clone, Debug)]
struct DeferObservation {
    after: Duration,
    /// When, unless the server asks first. Counts from the start, and again from each retry.
    due: Option<Instant>,
    is_over_threshold: bool,
}

/// Where an exchange stands, for those who print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangePhase {
    Inline,
    Parked,
    Deferring,
    Abandoned,
    CommittingHandle,
    Deferred,
    Done,
}

// === impl Deadlines ===

impl CallDeadlines {
    /// Whether the call is a task at once, and not only if it turns out to be slow.
    fn is_at_once(&self) -> bool {
        self.defer_after == Some(Duration::ZERO)
    }
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// A call that is sent at `now`.
    pub fn new(manner: InputDelivery, deadlines: CallDeadlines, now: Instant) -> Self {
        let state = ExchangeState::Inline {
            defer_at: deadlines.defer_after.map(|after| now + after),
            asked: BTreeSet::new(),
            settle_at: None,
        };
        Self::with_state(manner, deadlines, state)
    }

    /// A call that is stored as a task before it is sent, and whose client has the handle.
    pub fn stored_task(manner: InputDelivery, deadlines: CallDeadlines) -> Self {
        Self::with_state(manner, deadlines, ExchangeState::Deferred)
    }

    fn with_state(manner: InputDelivery, deadlines: CallDeadlines, state: ExchangeState<F>) -> Self {
        Self {
            state,
            manner,
            deadlines,
            awaited_inputs: None,
            input_expiries: VecDeque::new(),
            has_disconnected: false,
            observed: None,
            actions: VecDeque::new(),
        }
    }

    /// The call becomes no task; it is observed whether it would have with this threshold
    /// ([`Exchange::would_defer`]).
    pub fn observe(&mut self, after: Duration, since: Instant) {
        let observed = DeferObservation { after, due: Some(since + after), is_over_threshold: false };
        self.observed = Some(Box::new(observed));
    }

    /// It is this time. Said of an observed call before each event that does not say it: a threshold that has passed
    /// was there first.
    pub fn observe_time(&mut self, now: Instant) {
        if let (Some(observed), ExchangeState::Inline { settle_at: None, .. }) =
            (&mut self.observed, &self.state)
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
        self.awaited_inputs = None;
        match &mut self.state {
            ExchangeState::Inline { defer_at: Some(_), asked, .. }
                if self.deadlines.is_at_once() && asked.is_empty() =>
            {
                self.state = ExchangeState::Deferring { asked: BTreeSet::new(), word: Some(Box::new(word)) };
                self.actions.push_back(ExchangeAction::Store);
            }
            ExchangeState::Inline { .. } => {
                self.actions.push_back(ExchangeAction::Reply(word));
                self.state = ExchangeState::Done;
            }
            // The client is not kept waiting for the store: its task is forgotten once that is stored.
            ExchangeState::Deferring { word: pending, .. } => {
                if self.deadlines.is_at_once()
                    || self.has_disconnected && self.manner == InputDelivery::Stream
                {
                    *pending = Some(Box::new(word));
                } else {
                    self.actions.push_back(ExchangeAction::Reply(word));
                    self.state = ExchangeState::Abandoned;
                }
            }
            // Kept for the retry: a server that gave up waiting has said so in its answer.
            ExchangeState::Parked { word: pending, .. } => *pending = Some(Box::new(word)),
            ExchangeState::CommittingHandle { settled } => {
                if !*settled {
                    self.actions.push_back(ExchangeAction::StoreResult(word));
                    *settled = true;
                }
            }
            ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::StoreResult(word));
                self.state = ExchangeState::Done;
            }
            ExchangeState::Abandoned | ExchangeState::Done => {}
        }
    }

    /// The server asks something that may be put to the client.
    pub fn handle_input_request(&mut self, ask: InputNumber, now: Instant) {
        self.observe_time(now);
        if !self.request_input(&BTreeSet::from([ask]), now) {
            self.actions.push_back(ExchangeAction::Decline(ask));
        }
    }

    /// The server asks these, and ends the call with that: it is made again once all of them are answered.
    pub fn handle_input_required(&mut self, asks: BTreeSet<InputNumber>, now: Instant) {
        self.observe_time(now);
        self.awaited_inputs = Some(asks.clone());
        if !self.request_input(&asks, now) {
            self.awaited_inputs = None;
            return;
        }
        // No more will come that could be waited for.
        if self.manner == InputDelivery::RoundTrips
            && matches!(&self.state, ExchangeState::Inline { asked, .. } if !asked.is_empty())
        {
            self.park(now);
        }
        self.retry_if_answered();
    }

    /// The client is to be asked this. Not where nobody waits for what it says.
    fn request_input(&mut self, asks: &BTreeSet<InputNumber>, now: Instant) -> bool {
        match &mut self.state {
            ExchangeState::Inline { .. } if self.has_disconnected && self.manner == InputDelivery::Ticket => {
                return false;
            }
            // Too late for the call itself, though nobody has looked at the time yet.
            ExchangeState::Inline { asked, defer_at: Some(at), .. } if asked.is_empty() && *at <= now => {
                self.state = ExchangeState::Deferring { asked: asks.clone(), word: None };
                self.actions.push_back(ExchangeAction::Store);
            }
            ExchangeState::Inline { asked, settle_at, .. } => {
                asked.extend(asks);
                match self.manner {
                    InputDelivery::RoundTrips if asked.is_empty() => {}
                    InputDelivery::RoundTrips => drop(settle_at.get_or_insert(now + self.deadlines.settle)),
                    InputDelivery::Stream | InputDelivery::Ticket => {
                        self.actions.extend(asks.iter().copied().map(ExchangeAction::RequestOnStream))
                    }
                }
            }
            // Put with the next round, when the client comes back.
            ExchangeState::Parked { asked, .. } | ExchangeState::Deferring { asked, .. } => {
                asked.extend(asks)
            }
            ExchangeState::CommittingHandle { settled: false } | ExchangeState::Deferred => {
                asks.iter().for_each(|ask| self.request_input_in_task(*ask, now));
            }
            ExchangeState::CommittingHandle { settled: true }
            | ExchangeState::Abandoned
            | ExchangeState::Done => return false,
        }
        true
    }

    /// A question is answered that was put inside the task or on the stream.
    pub fn handle_input_answered(&mut self, ask: InputNumber) {
        match &mut self.state {
            ExchangeState::Inline { asked, .. }
            | ExchangeState::Parked { asked, .. }
            | ExchangeState::Deferring { asked, .. } => {
                asked.remove(&ask);
            }
            ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { .. }
            | ExchangeState::Deferred
            | ExchangeState::Done => {}
        }
        if let Some(asks) = &mut self.awaited_inputs {
            asks.remove(&ask);
        }
        self.input_expiries.retain(|(_, lapses)| *lapses != ask);
        self.retry_if_answered();
    }

    fn request_input_in_task(&mut self, ask: InputNumber, now: Instant) {
        self.actions.push_back(ExchangeAction::RequestInTask(ask));
        if let Some(turn) = self.deadlines.input_timeout.filter(|_| self.awaited_inputs.is_none()) {
            self.input_expiries.push_back((now + turn, ask));
        }
    }

    /// Where nothing is unanswered any more for which the server turned the call over, it is made again.
    fn retry_if_answered(&mut self) {
        if self.awaited_inputs.take_if(|asks| asks.is_empty()).is_some() && !self.is_done() {
            self.actions.push_back(ExchangeAction::RetryUpstream);
        }
    }

    /// The client is asked, and comes back.
    fn park(&mut self, now: Instant) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        let asked = std::mem::take(asked);
        self.actions.push_back(ExchangeAction::RequestInput(asked.clone()));
        self.state = ExchangeState::Parked { asked, word: None, expires_at: now + self.deadlines.park };
    }

    /// The server took a question back.
    pub fn handle_input_withdrawn(&mut self, ask: InputNumber) {
        self.input_expiries.retain(|(_, lapses)| *lapses != ask);
        match &mut self.state {
            ExchangeState::Inline { asked, settle_at, .. } => {
                if asked.remove(&ask) {
                    self.actions.push_back(ExchangeAction::Withdraw(ask));
                }
                if asked.is_empty() {
                    *settle_at = None;
                }
            }
            ExchangeState::Parked { asked, .. } | ExchangeState::Deferring { asked, .. } => {
                if asked.remove(&ask) {
                    self.actions.push_back(ExchangeAction::Withdraw(ask));
                }
            }
            ExchangeState::CommittingHandle { settled: false } | ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::Withdraw(ask));
            }
            ExchangeState::CommittingHandle { settled: true }
            | ExchangeState::Abandoned
            | ExchangeState::Done => {}
        }
    }

    /// The client came back and answered some questions; they have been given to the server.
    /// Where the client is still here from an earlier time, it is one more who waits.
    ///
    /// `defer_after` is the threshold as it is for this request: a client may not declare tasks on
    /// each.
    pub fn handle_retry(
        &mut self,
        answered: &BTreeSet<InputNumber>,
        defer_after: Option<Duration>,
        now: Instant,
    ) {
        self.deadlines.defer_after = defer_after;
        if let Some(asks) = &mut self.awaited_inputs {
            asks.retain(|ask| !answered.contains(ask));
        }
        match &mut self.state {
            ExchangeState::Parked { asked, word, .. } => {
                if let (Some(observed), None) = (&mut self.observed, &word) {
                    observed.due = Some(now + observed.after);
                }
                if let Some(word) = word.take() {
                    self.actions.push_back(ExchangeAction::Reply(*word));
                    self.state = ExchangeState::Done;
                    return;
                }
                asked.retain(|ask| !answered.contains(ask));
                let asked = std::mem::take(asked);
                // What is left is asked again, together with what the server asks next.
                let settle_at = (!asked.is_empty()).then(|| now + self.deadlines.settle);
                let defer_at = self.deadlines.defer_after.map(|after| now + after);
                self.state = ExchangeState::Inline { defer_at, asked, settle_at };
            }
            ExchangeState::Inline { asked, settle_at, .. } => {
                asked.retain(|ask| !answered.contains(ask));
                if asked.is_empty() {
                    *settle_at = None;
                }
            }
            ExchangeState::Deferring { asked, .. } => asked.retain(|ask| !answered.contains(ask)),
            ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { .. }
            | ExchangeState::Deferred
            | ExchangeState::Done => {}
        }
        self.retry_if_answered();
    }

    /// The proxy is to stop, and its tasks outlive it: a call that may become one does so now, so that its
    /// client can have from the next process what this one has no time for.
    pub fn handle_drain(&mut self, now: Instant) {
        if let ExchangeState::Inline { defer_at: Some(at), settle_at: None, .. } = &mut self.state {
            *at = now.min(*at);
            self.handle_timeout(now);
        }
    }

    /// No task is made any more: the proxy is to stop, and its tasks end with it. The call stays synchronous, as the
    /// result of a task could not be fetched from the next process.
    pub fn handle_tasks_disabled(&mut self) {
        self.deadlines.defer_after = None;
        if let ExchangeState::Inline { defer_at, .. } = &mut self.state {
            *defer_at = None;
        }
        if let Some(observed) = &mut self.observed {
            observed.due = None;
        }
    }

    /// The proxy stops: a client that has been asked can no longer come back.
    pub fn handle_shutdown(&mut self, now: Instant) {
        if let ExchangeState::Parked { expires_at, .. } = &mut self.state {
            *expires_at = now;
            self.handle_timeout(now);
        }
    }

    /// The time has come that [`Exchange::poll_timeout`] named, or has not.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ask)) = self.input_expiries.front().copied().filter(|(at, _)| *at <= now) {
            self.input_expiries.pop_front();
            if matches!(
                self.state,
                ExchangeState::CommittingHandle { settled: false } | ExchangeState::Deferred
            ) {
                self.actions.push_back(ExchangeAction::ExpireInput(ask));
            }
        }
        match &mut self.state {
            // A question wins over the threshold: it is still on the call itself.
            ExchangeState::Inline { settle_at: Some(at), .. } => {
                if *at <= now {
                    self.park(now);
                }
            }
            ExchangeState::Inline { defer_at: Some(at), .. } if *at <= now => self.defer(),
            ExchangeState::Parked { asked, word, expires_at } if *expires_at <= now => {
                let asked = std::mem::take(asked);
                let spoke = word.is_some();
                self.actions.extend(asked.into_iter().map(ExchangeAction::Decline));
                if !spoke {
                    self.actions.push_back(ExchangeAction::CancelUpstream);
                }
                self.state = ExchangeState::Done;
            }
            ExchangeState::Inline { .. }
            | ExchangeState::Parked { .. }
            | ExchangeState::Deferring { .. }
            | ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { .. }
            | ExchangeState::Deferred
            | ExchangeState::Done => {}
        }
    }

    /// The call is to be a task.
    fn defer(&mut self) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        self.state = ExchangeState::Deferring { asked: std::mem::take(asked), word: None };
        self.actions.push_back(ExchangeAction::Store);
    }

    /// The store has the task, or could not take it (it failed, or a quota is full): then the call
    /// stays synchronous.
    pub fn handle_stored(&mut self, stored: bool, now: Instant) {
        match (std::mem::replace(&mut self.state, ExchangeState::Done), stored) {
            (ExchangeState::Deferring { word: None, asked }, true) => {
                self.actions.push_back(ExchangeAction::ReplyTask);
                asked.into_iter().for_each(|ask| self.request_input_in_task(ask, now));
                self.commit_handle(false);
            }
            (ExchangeState::Deferring { word: None, asked }, false) => {
                let settle_at = match self.manner {
                    InputDelivery::RoundTrips => (!asked.is_empty()).then_some(now),
                    InputDelivery::Stream | InputDelivery::Ticket => {
                        self.actions.extend(asked.iter().copied().map(ExchangeAction::RequestOnStream));
                        None
                    }
                };
                self.state = ExchangeState::Inline { defer_at: None, asked, settle_at };
            }
            (ExchangeState::Deferring { word: Some(word), asked }, true)
                if self.deadlines.is_at_once()
                    || self.has_disconnected && self.manner == InputDelivery::Stream =>
            {
                self.actions.push_back(ExchangeAction::ReplyTask);
                self.actions.extend(asked.into_iter().map(ExchangeAction::Decline));
                self.actions.push_back(ExchangeAction::StoreResult(*word));
                self.commit_handle(true);
            }
            (ExchangeState::Deferring { word: Some(word), .. }, stored) => {
                if stored {
                    self.actions.push_back(ExchangeAction::RemoveTask);
                }
                self.actions.push_back(ExchangeAction::Reply(*word));
            }
            (ExchangeState::Abandoned, true) => self.actions.push_back(ExchangeAction::RemoveTask),
            (ExchangeState::Abandoned, false) => {}
            (other, _) => self.state = other,
        }
    }

    /// The handle goes to the client. One whose leaving cancels nothing need not have taken it.
    fn commit_handle(&mut self, settled: bool) {
        self.state = ExchangeState::CommittingHandle { settled };
        if self.manner != InputDelivery::RoundTrips {
            self.handle_committed();
        }
    }

    /// The client's socket has taken the handle. From here on the task lives without the client.
    pub fn handle_committed(&mut self) {
        if let ExchangeState::CommittingHandle { settled } = self.state {
            self.state = if settled { ExchangeState::Done } else { ExchangeState::Deferred };
        }
    }

    /// The client's connection is gone. Once it has been asked, or has the handle, this means
    /// nothing: it will come back. Nor does it where leaving cancels nothing; but nobody is left to wait,
    /// so that the call is a task at once where it may be one.
    pub fn handle_disconnect(&mut self) {
        match self.manner {
            InputDelivery::RoundTrips => self.abandon(),
            InputDelivery::Stream => {
                self.has_disconnected = true;
                if matches!(self.state, ExchangeState::Inline { defer_at: Some(_), .. }) {
                    self.defer();
                }
            }
            InputDelivery::Ticket => {
                self.has_disconnected = true;
                // Nobody is left to be given one, or to be asked.
                if let ExchangeState::Inline { defer_at, asked, .. } = &mut self.state {
                    *defer_at = None;
                    self.actions.extend(std::mem::take(asked).into_iter().map(ExchangeAction::Decline));
                }
            }
        }
    }

    /// The client has taken its own request back (2025-11-25, *Cancellation*). A task is not ended by that.
    pub fn handle_request_cancelled(&mut self) {
        if matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. }) {
            self.abandon();
        }
    }

    /// Nobody wants the call any more that is none of a task yet, or whose handle nobody has.
    fn abandon(&mut self) {
        match &self.state {
            ExchangeState::Inline { .. } => {
                self.actions.push_back(ExchangeAction::CancelUpstream);
                self.state = ExchangeState::Done;
            }
            ExchangeState::Deferring { word, .. } => {
                if word.is_none() {
                    self.actions.push_back(ExchangeAction::CancelUpstream);
                }
                self.state = ExchangeState::Abandoned;
            }
            ExchangeState::CommittingHandle { settled } => {
                if !settled {
                    self.actions.push_back(ExchangeAction::CancelUpstream);
                }
                self.actions.push_back(ExchangeAction::RemoveTask);
                self.state = ExchangeState::Done;
            }
            ExchangeState::Parked { .. }
            | ExchangeState::Abandoned
            | ExchangeState::Deferred
            | ExchangeState::Done => {}
        }
    }

    /// The task was cancelled, and its record says so already. Whoever did that had the handle.
    pub fn handle_task_cancelled(&mut self) {
        match self.state {
            ExchangeState::CommittingHandle { settled: false } | ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::CancelUpstream);
                self.state = ExchangeState::Done;
            }
            ExchangeState::CommittingHandle { settled: true } => self.state = ExchangeState::Done,
            ExchangeState::Inline { .. }
            | ExchangeState::Parked { .. }
            | ExchangeState::Deferring { .. }
            | ExchangeState::Abandoned
            | ExchangeState::Done => {}
        }
    }

    /// The task goes on without this process.
    pub fn handle_released(&mut self) {
        if matches!(self.state, ExchangeState::Deferred) {
            self.actions.clear();
            self.state = ExchangeState::Done;
        }
    }

    pub fn poll_action(&mut self) -> Option<ExchangeAction<F>> {
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
            ExchangeState::Inline { settle_at: Some(at), .. } => Some(at),
            ExchangeState::Inline { defer_at, .. } => defer_at,
            ExchangeState::Parked { expires_at, .. } => Some(expires_at),
            ExchangeState::CommittingHandle { settled: false } | ExchangeState::Deferred => {
                self.input_expiries.front().map(|(at, _)| *at)
            }
            ExchangeState::Deferring { .. }
            | ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { settled: true }
            | ExchangeState::Done => None,
        }
    }

    /// How long the call runs before it becomes a task, where it may.
    pub fn threshold(&self) -> Option<Duration> {
        self.deadlines.defer_after
    }

    /// Whether it may become a task, and waits for that.
    pub fn can_defer(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { defer_at: Some(_), settle_at: None, .. })
    }

    /// Whether a client whose leaving cancels nothing has left.
    pub fn has_disconnected(&self) -> bool {
        self.has_disconnected
    }

    /// Whether what the call comes to is still to be known, by whomever.
    pub fn is_unsettled(&self) -> bool {
        match &self.state {
            ExchangeState::Inline { .. } | ExchangeState::Deferred => true,
            ExchangeState::Deferring { word, .. } | ExchangeState::Parked { word, .. } => word.is_none(),
            ExchangeState::CommittingHandle { settled } => !settled,
            ExchangeState::Abandoned | ExchangeState::Done => false,
        }
    }

    /// Whether a client waits on its own request, so that what the server says on the way is for it.
    pub fn has_waiting_client(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. })
    }

    /// Whether nothing is left to decide. Actions may still be waiting.
    pub fn is_done(&self) -> bool {
        matches!(self.state, ExchangeState::Done)
    }

    /// Whether the server has the call, and its final word is still waited for.
    pub fn awaits_server(&self) -> bool {
        self.awaited_inputs.is_none() && self.is_unsettled()
    }

    pub fn phase(&self) -> ExchangePhase {
        match self.state {
            ExchangeState::Inline { .. } => ExchangePhase::Inline,
            ExchangeState::Parked { .. } => ExchangePhase::Parked,
            ExchangeState::Deferring { .. } => ExchangePhase::Deferring,
            ExchangeState::Abandoned => ExchangePhase::Abandoned,
            ExchangeState::CommittingHandle { .. } => ExchangePhase::CommittingHandle,
            ExchangeState::Deferred => ExchangePhase::Deferred,
            ExchangeState::Done => ExchangePhase::Done,
        }
    }
}
