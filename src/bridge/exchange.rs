//! The state machine of one call in flight, from its start to its single outcome.
//!
//! An [`Exchange`] is a pure state machine: events enter through `handle_*`, actions come from
//! [`Exchange::poll_action`], and [`Exchange::poll_timeout`] is its next deadline. It guarantees for every
//! order of events:
//!
//! - a call has one outcome, and the client gets one response;
//! - a task's handle is sent only after the task is stored;
//! - a call whose client disconnected before the client received a response, an input request or a handle is
//!   cancelled, once, unless the server had already responded;
//! - an input request is sent on the call itself before a task exists, and placed in the task afterwards.
//!
//! [`InputDelivery`] determines how a client receives input requests on the call itself, and what its
//! disconnect means. A server can request input in two ways: the call continues and waits for the response
//! ([`Exchange::handle_input_request`]), or the server ends the call with `input_required`, so that nothing
//! is in flight until the call is retried with all responses ([`Exchange::handle_input_required`]).
//!
//! `F` is the server's final response; the exchange never reads it. Input requests are represented by
//! numbers; the code that carries out the actions has their contents.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// An action for the caller to carry out. `F` is the server's final response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeAction<F> {
    /// Respond to the client's request with the server's final response.
    Reply(F),
    /// Respond to the client's request with these input requests; the client will retry with input responses.
    RequestInput(BTreeSet<InputNumber>),
    /// Send an input request on the response stream of the client's request.
    RequestOnStream(InputNumber),
    /// Store the task, then report the result ([`Exchange::handle_stored`]).
    Store,
    /// Respond to the client's request with the handle of the stored task.
    ReplyTask,
    /// Place an input request in the task.
    RequestInTask(InputNumber),
    /// Withdraw an input request from the client: from its stream or from the task.
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
    /// The threshold: how long a call runs before it becomes a task, counted from its start and again from
    /// each retry; `None` if it may not become one. At zero the call becomes a task immediately, even if a
    /// response arrives meanwhile.
    pub defer_after: Option<Duration>,
    /// How long to wait for further input requests after the first, before all are sent to the client
    /// together.
    pub settle: Duration,
    /// How long a parked call waits for its client's retry before it is cancelled.
    pub park: Duration,
    /// How long an unanswered input request in a task may block the server before it is declined; `None` for
    /// the life of the task. The limit does not apply to a call that the server ended with `input_required`,
    /// because nothing is blocked.
    pub input_timeout: Option<Duration>,
}

/// How a client receives input requests before there is a task, and what its disconnect means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputDelivery {
    /// Input requests are the response to the client's request, which the client retries with the input
    /// responses. A disconnect before the response cancels the call (2026-07-28, *Multi Round-Trip Requests*;
    /// *Cancellation*).
    RoundTrips,
    /// Input requests are sent on the response stream of the client's request, which continues. A disconnect
    /// does not cancel the call, and the client is owed the result: as a task, if the call may become one
    /// (2025-11-25, *Sending Messages to the Server*).
    Stream,
    /// Like `Stream`, but the client has no task support and could not find a task by itself: after a
    /// disconnect the call becomes no task, and input requests are declined.
    Ticket,
}

/// The state of one call in flight. `F` is the server's final response.
#[derive(Clone, Debug)]
pub struct Exchange<F> {
    state: ExchangeState<F>,
    manner: InputDelivery,
    deadlines: CallDeadlines,
    /// The unanswered input requests of a call that the server ended with `input_required`; `None` while the
    /// server works at the call.
    awaited_inputs: Option<BTreeSet<InputNumber>>,
    /// The times at which input requests in the task expire, in ascending order.
    input_expiries: VecDeque<(Instant, InputNumber)>,
    /// Whether the client has disconnected although it is still owed the result.
    has_disconnected: bool,
    /// Present for a call that is only observed and never becomes a task (`mode: observe`).
    observed: Option<Box<DeferObservation>>,
    actions: VecDeque<ExchangeAction<F>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExchangeState<F> {
    /// The client waits for the response to its request. The call becomes a task at `defer_at`, if set,
    /// unless an input request arrives first; at `settle_at` the open input requests are sent to the client.
    Inline { defer_at: Option<Instant>, asked: BTreeSet<InputNumber>, settle_at: Option<Instant> },
    /// The client has received input requests and will retry. The final response may arrive meanwhile.
    Parked { asked: BTreeSet<InputNumber>, word: Option<Box<F>>, expires_at: Instant },
    /// The task is being stored. Input requests and the final response may arrive meanwhile.
    Deferring { asked: BTreeSet<InputNumber>, word: Option<Box<F>> },
    /// The task is being stored but no longer needed, because its client has disconnected or has been sent
    /// the response.
    Abandoned,
    /// The handle is being written to the client's socket; `is_settled` tells whether the outcome of the call
    /// is known already.
    CommittingHandle { settled: bool },
    /// The client has the handle; the call continues without the client.
    Deferred,
    /// The exchange is complete; no further action will follow.
    Done,
}

/// The observation whether a call would have become a task.
#[derive(Clone, Debug)]
struct DeferObservation {
    after: Duration,
    /// When the threshold passes, unless an input request arrives first; counted from the start and again
    /// from each retry. `None` if the call can no longer become a task.
    due: Option<Instant>,
    is_over_threshold: bool,
}

/// The phase of an exchange, for logs and metrics: its state without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangePhase {
    /// The client waits for the response to its request.
    Inline,
    /// The client has input requests; its retry is awaited.
    Parked,
    /// The task is being stored.
    Deferring,
    /// The task is being stored, but is no longer needed.
    Abandoned,
    /// The handle is being sent to the client.
    CommittingHandle,
    /// The client has the handle; the call continues as a task.
    Deferred,
    /// The exchange is complete.
    Done,
}

// === impl CallDeadlines ===

impl CallDeadlines {
    /// Whether the call becomes a task immediately, without regard to its duration.
    fn is_at_once(&self) -> bool {
        self.defer_after == Some(Duration::ZERO)
    }
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// Creates the exchange of a call that is sent to the server at `now`.
    pub fn new(manner: InputDelivery, deadlines: CallDeadlines, now: Instant) -> Self {
        let state = ExchangeState::Inline {
            defer_at: deadlines.defer_after.map(|after| now + after),
            asked: BTreeSet::new(),
            settle_at: None,
        };
        Self::with_state(manner, deadlines, state)
    }

    /// Creates the exchange of a call that was stored as a task before it is sent, and whose client has the
    /// handle.
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

    /// Makes the call observed only: the call becomes no task, but [`Exchange::would_defer`] reports whether
    /// it would have become one after the threshold `after`, counted from `since`.
    pub fn observe(&mut self, after: Duration, since: Instant) {
        let observed = DeferObservation { after, due: Some(since + after), is_over_threshold: false };
        self.observed = Some(Box::new(observed));
    }

    /// Passes the current time to an observed call. Must precede each event that carries no time, so that a
    /// threshold that has passed takes precedence.
    pub fn observe_time(&mut self, now: Instant) {
        if let (Some(observed), ExchangeState::Inline { settle_at: None, .. }) =
            (&mut self.observed, &self.state)
            && observed.due.is_some_and(|due| due <= now)
        {
            observed.is_over_threshold = true;
        }
    }

    /// Whether an observed call has run longer than its threshold, and so would have become a task.
    pub fn would_defer(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.is_over_threshold)
    }

    /// Handles the server's final response, or the failure that takes its place.
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
            // The client does not wait for the store: it gets the response now, and the task is removed once
            // it is stored.
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
            // The response is kept for the client's retry: a server whose own timeout passed reports that in
            // its response.
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

    /// Handles an input request of the server for a capability that the client declared.
    pub fn handle_input_request(&mut self, ask: InputNumber, now: Instant) {
        self.observe_time(now);
        if !self.request_input(&BTreeSet::from([ask]), now) {
            self.actions.push_back(ExchangeAction::Decline(ask));
        }
    }

    /// Handles the end of the server's call with these input requests (`input_required`); the call is retried
    /// once all of them are answered.
    pub fn handle_input_required(&mut self, asks: BTreeSet<InputNumber>, now: Instant) {
        self.observe_time(now);
        self.awaited_inputs = Some(asks.clone());
        if !self.request_input(&asks, now) {
            self.awaited_inputs = None;
            return;
        }
        // No further input request will follow, so the client gets these without the settle time.
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
            // The threshold has passed, although its timeout has not been handled yet.
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
            // The input requests are sent in the next round: after the client's retry, or in the task once it
            // is stored.
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

    /// Handles the response to an input request in the task or on the stream; the response has been sent to
    /// the server.
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

    /// Places an input request in the task, and starts its timeout.
    fn request_input_in_task(&mut self, ask: InputNumber, now: Instant) {
        self.actions.push_back(ExchangeAction::RequestInTask(ask));
        if let Some(turn) = self.deadlines.input_timeout.filter(|_| self.awaited_inputs.is_none()) {
            self.input_expiries.push_back((now + turn, ask));
        }
    }

    /// Retries the call at the server once all input requests with which the server ended it are answered.
    fn retry_if_answered(&mut self) {
        if self.awaited_inputs.take_if(|asks| asks.is_empty()).is_some() && !self.is_done() {
            self.actions.push_back(ExchangeAction::RetryUpstream);
        }
    }

    /// Parks the call: sends the open input requests to the client, and waits for its retry.
    fn park(&mut self, now: Instant) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        let asked = std::mem::take(asked);
        self.actions.push_back(ExchangeAction::RequestInput(asked.clone()));
        self.state = ExchangeState::Parked { asked, word: None, expires_at: now + self.deadlines.park };
    }

    /// Handles the withdrawal of an input request by the server.
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

    /// Handles a client's retry with responses to the `answered` input requests, which have been sent to the
    /// server. If the client's earlier request still waits for its response, both requests wait.
    ///
    /// `defer_after` is the threshold for this request; `None` if the client did not declare tasks on it.
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

    /// Handles the drain of a proxy whose tasks outlive the process: a call that may become a task becomes
    /// one now, so that its client can get the result from the next process.
    pub fn handle_drain(&mut self, now: Instant) {
        if let ExchangeState::Inline { defer_at: Some(at), settle_at: None, .. } = &mut self.state {
            *at = now.min(*at);
            self.handle_timeout(now);
        }
    }

    /// Handles the drain of a proxy whose tasks end with the process: the call no longer becomes a task,
    /// because the next process could not return the result.
    pub fn handle_tasks_disabled(&mut self) {
        self.deadlines.defer_after = None;
        if let ExchangeState::Inline { defer_at, .. } = &mut self.state {
            *defer_at = None;
        }
        if let Some(observed) = &mut self.observed {
            observed.due = None;
        }
    }

    /// Handles the shutdown of the proxy: a parked call ends, because its client can no longer retry.
    pub fn handle_shutdown(&mut self, now: Instant) {
        if let ExchangeState::Parked { expires_at, .. } = &mut self.state {
            *expires_at = now;
            self.handle_timeout(now);
        }
    }

    /// Handles the timeouts that have passed at `now`. Called at the deadline of [`Exchange::poll_timeout`].
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
            // An open input request takes precedence over the threshold, because it has to be sent on the
            // call itself.
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

    /// Begins to make the call a task: the task has to be stored first.
    fn defer(&mut self) {
        let ExchangeState::Inline { asked, .. } = &mut self.state else { return };
        self.state = ExchangeState::Deferring { asked: std::mem::take(asked), word: None };
        self.actions.push_back(ExchangeAction::Store);
    }

    /// Handles the result of [`ExchangeAction::Store`]. If the task was not stored (the store failed, or a
    /// quota is full), the call stays synchronous.
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

    /// Begins to send the handle to the client. Where a disconnect does not cancel the call, the handle
    /// counts as delivered immediately.
    fn commit_handle(&mut self, settled: bool) {
        self.state = ExchangeState::CommittingHandle { settled };
        if self.manner != InputDelivery::RoundTrips {
            self.handle_committed();
        }
    }

    /// Handles the delivery of the handle to the client's socket. From then on the task does not depend on
    /// the client's connection.
    pub fn handle_committed(&mut self) {
        if let ExchangeState::CommittingHandle { settled } = self.state {
            self.state = if settled { ExchangeState::Done } else { ExchangeState::Deferred };
        }
    }

    /// Handles the disconnect of the client. There is no effect once the client has received input requests
    /// or the handle, because it will return. With `InputDelivery::Stream` the call is not cancelled, but
    /// becomes a task immediately if it may, because no client waits any more.
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

    /// Handles the client's cancellation of its own request (2025-11-25, *Cancellation*), which does not end
    /// a task.
    pub fn handle_request_cancelled(&mut self) {
        if matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. }) {
            self.abandon();
        }
    }

    /// Abandons a call that is not a task yet, or whose handle has not reached the client.
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

    /// Handles the cancellation of the task by a client that has its handle. The task record has been updated
    /// already.
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

    /// Handles the transfer of the task to another process, which continues the call.
    pub fn handle_released(&mut self) {
        if matches!(self.state, ExchangeState::Deferred) {
            self.actions.clear();
            self.state = ExchangeState::Done;
        }
    }

    /// Returns the next action to carry out, in order; `None` if there is none now.
    pub fn poll_action(&mut self) -> Option<ExchangeAction<F>> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            // Replaces the empty queue, which would otherwise keep its capacity for the whole life of the
            // task.
            self.actions = VecDeque::new();
        }
        action
    }

    /// Returns the next time at which [`Exchange::handle_timeout`] must be called; `None` if no timeout is
    /// pending.
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

    /// Returns how long the call runs before it becomes a task; `None` if it may not become one.
    pub fn threshold(&self) -> Option<Duration> {
        self.deadlines.defer_after
    }

    /// Whether the call will become a task when the threshold passes.
    pub fn can_defer(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { defer_at: Some(_), settle_at: None, .. })
    }

    /// Whether a client has disconnected without cancelling its call.
    pub fn has_disconnected(&self) -> bool {
        self.has_disconnected
    }

    /// Whether the server's final response has not arrived, and can still change the outcome.
    pub fn is_unsettled(&self) -> bool {
        match &self.state {
            ExchangeState::Inline { .. } | ExchangeState::Deferred => true,
            ExchangeState::Deferring { word, .. } | ExchangeState::Parked { word, .. } => word.is_none(),
            ExchangeState::CommittingHandle { settled } => !settled,
            ExchangeState::Abandoned | ExchangeState::Done => false,
        }
    }

    /// Whether a client waits for the response to its request, and so can receive notifications on it.
    pub fn has_waiting_client(&self) -> bool {
        matches!(self.state, ExchangeState::Inline { .. } | ExchangeState::Deferring { .. })
    }

    /// Whether the exchange is complete. Actions may still be queued.
    pub fn is_done(&self) -> bool {
        matches!(self.state, ExchangeState::Done)
    }

    /// Whether the server works at the call, and its final response is awaited.
    pub fn awaits_server(&self) -> bool {
        self.awaited_inputs.is_none() && self.is_unsettled()
    }

    /// Returns the current phase.
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
