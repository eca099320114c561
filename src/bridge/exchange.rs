//! One call in flight, from its start to its one outcome.
//!
//! An [`Exchange`] is a pure state machine: events enter through `handle_*`, actions come from
//! [`Exchange::poll_action`], and [`Exchange::poll_timeout`] is its next deadline. It guarantees for every
//! order of events:
//!
//! - there is one outcome, and it is answered once;
//! - a task's handle is sent only after the task is stored;
//! - a call whose client disconnected before it received a response, an input request or a handle is
//!   cancelled, once, unless the server had already responded;
//! - an input request is sent on the call itself before a task exists, and placed in the task afterwards.
//!
//! [`InputDelivery`] determines how a client receives input requests on the call itself, and what its
//! disconnect means. A server can request input in two ways: its call continues and waits for the response
//! ([`Exchange::handle_input_request`]), or it ends the call with `input_required`, so that nothing is in
//! flight until the call is retried with all responses ([`Exchange::handle_input_required`]).
//!
//! `F` is the server's final response; the exchange never reads it. Input requests are numbers here; the code
//! that carries out the actions has their contents.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// The actions to carry out, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeAction<F> {
    /// Respond to the client's request with the server's final response.
    Reply(F),
    /// Respond to the client's request with these input requests; it will retry with input responses.
    RequestInput(BTreeSet<InputNumber>),
    /// Send an input request on the response stream of the client's request.
    RequestOnStream(InputNumber),
    /// Store the task, then report the result ([`Exchange::handle_stored`]).
    Store,
    /// Respond to the client's request with the handle of the stored task.
    ReplyTask,
    /// Place an input request in the task.
    RequestInTask(InputNumber),
    /// Withdraw an input request, wherever it was sent.
    Withdraw(InputNumber),
    /// Retry the call at the server with all input responses.
    RetryUpstream,
    /// Decline an input request at the server: no client will answer it.
    Decline(InputNumber),
    /// Decline an input request that was placed in the task, and withdraw it there.
    ExpireInput(InputNumber),
    /// Store the server's final response in the task.
    StoreResult(F),
    /// Remove the task: no client has its handle.
    RemoveTask,
    /// Cancel the call at the server.
    CancelUpstream,
}

/// The number of an input request within its call.
pub type InputNumber = u32;

/// The time limits of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadlines {
    /// When a call becomes a task, counted from its start and again from each retry. At zero the call is a
    /// task immediately, whatever arrives meanwhile.
    pub defer_after: Option<Duration>,
    /// How long to wait for further input requests after the first.
    pub settle: Duration,
    /// How long an unanswered input request may wait for its client.
    pub park: Duration,
    /// How long an unanswered input request in a task may block the server; `None` for the life of the task.
    /// It does not apply to a call that the server ended with `input_required`, which blocks nothing.
    pub input_timeout: Option<Duration>,
}

/// How a client receives input requests before there is a task, and what its disconnect means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputDelivery {
    /// In the response to its request; the client retries with the input responses. A disconnect before the
    /// response cancels the call (2026-07-28, *Multi Round-Trip Requests*; *Cancellation*).
    RoundTrips,
    /// On the response stream of its request, which continues. A disconnect does not cancel the call, and the
    /// client is owed the result: as a task, if the call may become one (2025-11-25, *Sending Messages to the
    /// Server*).
    Stream,
    /// Like `Stream`, but the client could not find its task by itself. After a disconnect the call becomes
    /// no task, and input requests are declined.
    Ticket,
}

/// One call in flight.
#[derive(Clone, Debug)]
pub struct Exchange<F> {
    state: ExchangeState<F>,
    manner: InputDelivery,
    deadlines: CallDeadlines,
    /// The unanswered input requests of a call that the server ended with `input_required`. While there are
    /// any, the server has no call.
    awaited_inputs: Option<BTreeSet<InputNumber>>,
    /// When input requests in the task expire, in ascending order.
    input_expiries: VecDeque<(Instant, InputNumber)>,
    /// A client that is owed its result has disconnected.
    has_disconnected: bool,
    /// For a call that is observed only.
    observed: Option<Box<DeferObservation>>,
    actions: VecDeque<ExchangeAction<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExchangeState<F> {
    /// The client waits for the response to its request. The call becomes a task at `defer_at`, if set,
    /// unless an input request comes first.
    Inline { defer_at: Option<Instant>, asked: BTreeSet<InputNumber>, settle_at: Option<Instant> },
    /// The client has received input requests and will retry. The final response may arrive meanwhile.
    Parked { asked: BTreeSet<InputNumber>, word: Option<Box<F>>, expires_at: Instant },
    /// The task is being stored. Input requests and the final response may arrive meanwhile.
    Deferring { asked: BTreeSet<InputNumber>, word: Option<Box<F>> },
    /// The task is being stored but no longer needed: its client has disconnected, or has its response.
    Abandoned,
    /// The handle is being written to the client's socket.
    CommittingHandle { settled: bool },
    /// The client has the handle; the call continues without the client.
    Deferred,
    /// Nothing is left to decide.
    Done,
}

/// A call that would become a task if it were not observed only.
#[derive(Clone, Debug)]
struct DeferObservation {
    after: Duration,
    /// When, unless an input request comes first. Counts from the start, and again from each retry.
    due: Option<Instant>,
    is_over_threshold: bool,
}

/// The state of an exchange, for output.
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

// === impl CallDeadlines ===

impl CallDeadlines {
    /// Whether the call is a task immediately, not only once it is slow.
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

    /// Makes the call observed only: it becomes no task, but [`Exchange::would_defer`] reports whether it
    /// would have with this threshold.
    pub fn observe(&mut self, after: Duration, since: Instant) {
        let observed = DeferObservation { after, due: Some(since + after), is_over_threshold: false };
        self.observed = Some(Box::new(observed));
    }

    /// Passes the current time of an observed call, before each event without a time, so that a threshold
    /// that has passed takes precedence.
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

    /// The server's final response, or that there will be none.
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
            // The client does not wait for the store: its task is removed once it is stored.
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
            // Kept for the retry: a server that timed out has reported that in its response.
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

    /// The server sends an input request that the client may receive.
    pub fn handle_input_request(&mut self, ask: InputNumber, now: Instant) {
        self.observe_time(now);
        if !self.request_input(&BTreeSet::from([ask]), now) {
            self.actions.push_back(ExchangeAction::Decline(ask));
        }
    }

    /// The server ends the call with these input requests: it is retried once all of them are answered.
    pub fn handle_input_required(&mut self, asks: BTreeSet<InputNumber>, now: Instant) {
        self.observe_time(now);
        self.awaited_inputs = Some(asks.clone());
        if !self.request_input(&asks, now) {
            self.awaited_inputs = None;
            return;
        }
        // No further input request will follow.
        if self.manner == InputDelivery::RoundTrips
            && matches!(&self.state, ExchangeState::Inline { asked, .. } if !asked.is_empty())
        {
            self.park(now);
        }
        self.retry_if_answered();
    }

    /// Sends input requests to the client; returns false if no client can answer them.
    fn request_input(&mut self, asks: &BTreeSet<InputNumber>, now: Instant) -> bool {
        match &mut self.state {
            ExchangeState::Inline { .. } if self.has_disconnected && self.manner == InputDelivery::Ticket => {
                return false;
            }
            // The threshold has passed, although no timeout was handled yet.
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
            // Sent in the next round, after the client's retry.
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

    /// An input request in the task or on the stream has been answered.
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

    /// Retries the call once all input requests are answered with which the server ended it.
    fn retry_if_answered(&mut self) {
        if self.awaited_inputs.take_if(|asks| asks.is_empty()).is_some() && !self.is_done() {
            self.actions.push_back(ExchangeAction::RetryUpstream);
        }
    }

    /// Sends the input requests to the client and waits for its retry.
    fn park(&mut self, now: Instant) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        let asked = std::mem::take(asked);
        self.actions.push_back(ExchangeAction::RequestInput(asked.clone()));
        self.state = ExchangeState::Parked { asked, word: None, expires_at: now + self.deadlines.park };
    }

    /// The server withdrew an input request.
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

    /// The client's retry answered some input requests; the responses have been sent to the server. If the
    /// client of an earlier request still waits, both wait.
    ///
    /// `defer_after` is the threshold for this request: a client may not declare tasks on each.
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
                // The remaining input requests are sent again, together with the server's next ones.
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

    /// The proxy drains, and its tasks outlive it: a call that may become a task does so now, so that its
    /// client can get the result from the next process.
    pub fn handle_drain(&mut self, now: Instant) {
        if let ExchangeState::Inline { defer_at: Some(at), settle_at: None, .. } = &mut self.state {
            *at = now.min(*at);
            self.handle_timeout(now);
        }
    }

    /// The proxy drains, and its tasks end with it: no task is made any more. The call stays synchronous,
    /// because the next process could not return the result of a task.
    pub fn handle_tasks_disabled(&mut self) {
        self.deadlines.defer_after = None;
        if let ExchangeState::Inline { defer_at, .. } = &mut self.state {
            *defer_at = None;
        }
        if let Some(observed) = &mut self.observed {
            observed.due = None;
        }
    }

    /// The proxy shuts down: a parked call's client can no longer retry.
    pub fn handle_shutdown(&mut self, now: Instant) {
        if let ExchangeState::Parked { expires_at, .. } = &mut self.state {
            *expires_at = now;
            self.handle_timeout(now);
        }
    }

    /// The deadline of [`Exchange::poll_timeout`] may have passed.
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
            // An input request takes precedence over the threshold: it is still on the call itself.
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

    /// Makes the call a task.
    fn defer(&mut self) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        self.state = ExchangeState::Deferring { asked: std::mem::take(asked), word: None };
        self.actions.push_back(ExchangeAction::Store);
    }

    /// The store has the task, or has refused it (it failed, or a quota is full): then the call stays
    /// synchronous.
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

    /// Sends the handle to the client. If a disconnect does not cancel the call, the task is committed
    /// immediately.
    fn commit_handle(&mut self, settled: bool) {
        self.state = ExchangeState::CommittingHandle { settled };
        if self.manner != InputDelivery::RoundTrips {
            self.handle_committed();
        }
    }

    /// The client's socket has accepted the handle. From here on the task lives without the client.
    pub fn handle_committed(&mut self) {
        if let ExchangeState::CommittingHandle { settled } = self.state {
            self.state = if settled { ExchangeState::Done } else { ExchangeState::Deferred };
        }
    }

    /// The client disconnected. This has no effect once it has received input requests or the handle, because
    /// it will return. It also has none if a disconnect does not cancel the call; but then no client waits,
    /// so the call becomes a task immediately if it may.
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
                // No client is left to receive a ticket or an input request.
                if let ExchangeState::Inline { defer_at, asked, .. } = &mut self.state {
                    *defer_at = None;
                    self.actions.extend(std::mem::take(asked).into_iter().map(ExchangeAction::Decline));
                }
            }
        }
    }

    /// The client cancelled its own request (2025-11-25, *Cancellation*). That does not end a task.
    pub fn handle_request_cancelled(&mut self) {
        if matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. }) {
            self.abandon();
        }
    }

    /// Abandons a call that is no task yet, or whose handle no client has.
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

    /// The task was cancelled, and its record is updated. The canceller had the handle.
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

    /// The task continues in another process.
    pub fn handle_released(&mut self) {
        if matches!(self.state, ExchangeState::Deferred) {
            self.actions.clear();
            self.state = ExchangeState::Done;
        }
    }

    pub fn poll_action(&mut self) -> Option<ExchangeAction<F>> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            // An empty queue would keep its capacity as long as a task takes.
            self.actions = VecDeque::new();
        }
        action
    }

    /// The next deadline of the exchange.
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

    /// How long the call runs before it becomes a task, if it may.
    pub fn threshold(&self) -> Option<Duration> {
        self.deadlines.defer_after
    }

    /// Whether it may become a task, and waits for the threshold.
    pub fn can_defer(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { defer_at: Some(_), settle_at: None, .. })
    }

    /// Whether a client has disconnected without cancelling its call.
    pub fn has_disconnected(&self) -> bool {
        self.has_disconnected
    }

    /// Whether the outcome of the call is still open.
    pub fn is_unsettled(&self) -> bool {
        match &self.state {
            ExchangeState::Inline { .. } | ExchangeState::Deferred => true,
            ExchangeState::Deferring { word, .. } | ExchangeState::Parked { word, .. } => word.is_none(),
            ExchangeState::CommittingHandle { settled } => !settled,
            ExchangeState::Abandoned | ExchangeState::Done => false,
        }
    }

    /// Whether a client waits for the response to its request, so that notifications are for it.
    pub fn has_waiting_client(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. })
    }

    /// Whether nothing is left to decide. Actions may still be queued.
    pub fn is_done(&self) -> bool {
        matches!(self.state, ExchangeState::Done)
    }

    /// Whether the server has the call, and its final response is awaited.
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
