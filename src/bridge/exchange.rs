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
    delivery: InputDelivery,
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
    Inline { defer_at: Option<Instant>, open_inputs: BTreeSet<InputNumber>, settle_at: Option<Instant> },
    /// The client has received input requests and will retry. The final response may arrive meanwhile.
    Parked { open_inputs: BTreeSet<InputNumber>, response: Option<Box<F>>, expires_at: Instant },
    /// The task is being stored. Input requests and the final response may arrive meanwhile.
    Deferring { open_inputs: BTreeSet<InputNumber>, response: Option<Box<F>> },
    /// The task is being stored but no longer needed, because its client has disconnected or has been sent
    /// the response.
    Abandoned,
    /// The handle is being written to the client's socket; `is_settled` tells whether the outcome of the call
    /// is known already.
    CommittingHandle { is_settled: bool },
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
    due_at: Option<Instant>,
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
    fn defers_immediately(&self) -> bool {
        self.defer_after == Some(Duration::ZERO)
    }
}

// === impl Exchange ===

impl<F> Exchange<F> {
    /// Creates the exchange of a call that is sent to the server at `now`.
    pub fn new(delivery: InputDelivery, deadlines: CallDeadlines, now: Instant) -> Self {
        let state = ExchangeState::Inline {
            defer_at: deadlines.defer_after.map(|after| now + after),
            open_inputs: BTreeSet::new(),
            settle_at: None,
        };
        Self::with_state(delivery, deadlines, state)
    }

    /// Creates the exchange of a call that was stored as a task before it is sent, and whose client has the
    /// handle.
    pub fn stored_task(delivery: InputDelivery, deadlines: CallDeadlines) -> Self {
        Self::with_state(delivery, deadlines, ExchangeState::Deferred)
    }

    fn with_state(delivery: InputDelivery, deadlines: CallDeadlines, state: ExchangeState<F>) -> Self {
        Self {
            state,
            delivery,
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
        let observation = DeferObservation { after, due_at: Some(since + after), is_over_threshold: false };
        self.observed = Some(Box::new(observation));
    }

    /// Passes the current time to an observed call. Must precede each event that carries no time, so that a
    /// threshold that has passed takes precedence.
    pub fn observe_time(&mut self, now: Instant) {
        if let (Some(observed), ExchangeState::Inline { settle_at: None, .. }) =
            (&mut self.observed, &self.state)
            && observed.due_at.is_some_and(|due| due <= now)
        {
            observed.is_over_threshold = true;
        }
    }

    /// Whether an observed call has run longer than its threshold, and so would have become a task.
    pub fn would_defer(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.is_over_threshold)
    }

    /// Handles the server's final response, or the failure that takes its place.
    pub fn handle_final(&mut self, response: F) {
        self.awaited_inputs = None;
        match &mut self.state {
            ExchangeState::Inline { defer_at: Some(_), open_inputs, .. }
                if self.deadlines.defers_immediately() && open_inputs.is_empty() =>
            {
                self.state = ExchangeState::Deferring {
                    open_inputs: BTreeSet::new(),
                    response: Some(Box::new(response)),
                };
                self.actions.push_back(ExchangeAction::Store);
            }
            ExchangeState::Inline { .. } => {
                self.actions.push_back(ExchangeAction::Reply(response));
                self.state = ExchangeState::Done;
            }
            // The client does not wait for the store: it gets the response now, and the task is removed once
            // it is stored.
            ExchangeState::Deferring { response: pending, .. } => {
                if self.deadlines.defers_immediately()
                    || self.has_disconnected && self.delivery == InputDelivery::Stream
                {
                    *pending = Some(Box::new(response));
                } else {
                    self.actions.push_back(ExchangeAction::Reply(response));
                    self.state = ExchangeState::Abandoned;
                }
            }
            // The response is kept for the client's retry: a server whose own timeout passed reports that in
            // its response.
            ExchangeState::Parked { response: pending, .. } => *pending = Some(Box::new(response)),
            ExchangeState::CommittingHandle { is_settled } => {
                if !*is_settled {
                    self.actions.push_back(ExchangeAction::StoreResult(response));
                    *is_settled = true;
                }
            }
            ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::StoreResult(response));
                self.state = ExchangeState::Done;
            }
            ExchangeState::Abandoned | ExchangeState::Done => {}
        }
    }

    /// Handles an input request of the server for a capability that the client declared.
    pub fn handle_input_request(&mut self, input: InputNumber, now: Instant) {
        self.observe_time(now);
        if !self.request_input(&BTreeSet::from([input]), now) {
            self.actions.push_back(ExchangeAction::Decline(input));
        }
    }

    /// Handles the end of the server's call with these input requests (`input_required`); the call is retried
    /// once all of them are answered.
    pub fn handle_input_required(&mut self, inputs: BTreeSet<InputNumber>, now: Instant) {
        self.observe_time(now);
        self.awaited_inputs = Some(inputs.clone());
        if !self.request_input(&inputs, now) {
            self.awaited_inputs = None;
            return;
        }
        // No further input request will follow, so the client gets these without the settle time.
        if self.delivery == InputDelivery::RoundTrips
            && matches!(&self.state, ExchangeState::Inline { open_inputs, .. } if !open_inputs.is_empty())
        {
            self.park(now);
        }
        self.retry_if_answered();
    }

    /// Sends input requests to the client; returns false if no client can answer them.
    fn request_input(&mut self, inputs: &BTreeSet<InputNumber>, now: Instant) -> bool {
        match &mut self.state {
            ExchangeState::Inline { .. }
                if self.has_disconnected && self.delivery == InputDelivery::Ticket =>
            {
                return false;
            }
            // The threshold has passed, although its timeout has not been handled yet.
            ExchangeState::Inline { open_inputs, defer_at: Some(at), .. }
                if open_inputs.is_empty() && *at <= now =>
            {
                self.state = ExchangeState::Deferring { open_inputs: inputs.clone(), response: None };
                self.actions.push_back(ExchangeAction::Store);
            }
            ExchangeState::Inline { open_inputs, settle_at, .. } => {
                open_inputs.extend(inputs);
                match self.delivery {
                    InputDelivery::RoundTrips if open_inputs.is_empty() => {}
                    InputDelivery::RoundTrips => drop(settle_at.get_or_insert(now + self.deadlines.settle)),
                    InputDelivery::Stream | InputDelivery::Ticket => {
                        self.actions.extend(inputs.iter().copied().map(ExchangeAction::RequestOnStream))
                    }
                }
            }
            // The input requests are sent in the next round: after the client's retry, or in the task once it
            // is stored.
            ExchangeState::Parked { open_inputs, .. } | ExchangeState::Deferring { open_inputs, .. } => {
                open_inputs.extend(inputs)
            }
            ExchangeState::CommittingHandle { is_settled: false } | ExchangeState::Deferred => {
                inputs.iter().for_each(|input| self.request_input_in_task(*input, now));
            }
            ExchangeState::CommittingHandle { is_settled: true }
            | ExchangeState::Abandoned
            | ExchangeState::Done => return false,
        }
        true
    }

    /// Handles the response to an input request in the task or on the stream; the response has been sent to
    /// the server.
    pub fn handle_input_answered(&mut self, input: InputNumber) {
        match &mut self.state {
            ExchangeState::Inline { open_inputs, .. }
            | ExchangeState::Parked { open_inputs, .. }
            | ExchangeState::Deferring { open_inputs, .. } => {
                open_inputs.remove(&input);
            }
            ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { .. }
            | ExchangeState::Deferred
            | ExchangeState::Done => {}
        }
        if let Some(inputs) = &mut self.awaited_inputs {
            inputs.remove(&input);
        }
        self.input_expiries.retain(|(_, expiring)| *expiring != input);
        self.retry_if_answered();
    }

    /// Places an input request in the task, and starts its timeout.
    fn request_input_in_task(&mut self, input: InputNumber, now: Instant) {
        self.actions.push_back(ExchangeAction::RequestInTask(input));
        if let Some(timeout) = self.deadlines.input_timeout.filter(|_| self.awaited_inputs.is_none()) {
            self.input_expiries.push_back((now + timeout, input));
        }
    }

    /// Retries the call at the server once all input requests with which the server ended it are answered.
    fn retry_if_answered(&mut self) {
        if self.awaited_inputs.take_if(|inputs| inputs.is_empty()).is_some() && !self.is_done() {
            self.actions.push_back(ExchangeAction::RetryUpstream);
        }
    }

    /// Parks the call: sends the open input requests to the client, and waits for its retry.
    fn park(&mut self, now: Instant) {
        let ExchangeState::Inline { open_inputs, .. } = &mut self.state else { return };
        let open_inputs = std::mem::take(open_inputs);
        self.actions.push_back(ExchangeAction::RequestInput(open_inputs.clone()));
        self.state =
            ExchangeState::Parked { open_inputs, response: None, expires_at: now + self.deadlines.park };
    }

    /// Handles the withdrawal of an input request by the server.
    pub fn handle_input_withdrawn(&mut self, input: InputNumber) {
        self.input_expiries.retain(|(_, expiring)| *expiring != input);
        match &mut self.state {
            ExchangeState::Inline { open_inputs, settle_at, .. } => {
                if open_inputs.remove(&input) {
                    self.actions.push_back(ExchangeAction::Withdraw(input));
                }
                if open_inputs.is_empty() {
                    *settle_at = None;
                }
            }
            ExchangeState::Parked { open_inputs, .. } | ExchangeState::Deferring { open_inputs, .. } => {
                if open_inputs.remove(&input) {
                    self.actions.push_back(ExchangeAction::Withdraw(input));
                }
            }
            ExchangeState::CommittingHandle { is_settled: false } | ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::Withdraw(input));
            }
            ExchangeState::CommittingHandle { is_settled: true }
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
        if let Some(inputs) = &mut self.awaited_inputs {
            inputs.retain(|input| !answered.contains(input));
        }
        match &mut self.state {
            ExchangeState::Parked { open_inputs, response, .. } => {
                if let (Some(observed), None) = (&mut self.observed, &response) {
                    observed.due_at = Some(now + observed.after);
                }
                if let Some(response) = response.take() {
                    self.actions.push_back(ExchangeAction::Reply(*response));
                    self.state = ExchangeState::Done;
                    return;
                }
                open_inputs.retain(|input| !answered.contains(input));
                let open_inputs = std::mem::take(open_inputs);
                // The remaining input requests are sent again, together with the server's next ones.
                let settle_at = (!open_inputs.is_empty()).then(|| now + self.deadlines.settle);
                let defer_at = self.deadlines.defer_after.map(|after| now + after);
                self.state = ExchangeState::Inline { defer_at, open_inputs, settle_at };
            }
            ExchangeState::Inline { open_inputs, settle_at, .. } => {
                open_inputs.retain(|input| !answered.contains(input));
                if open_inputs.is_empty() {
                    *settle_at = None;
                }
            }
            ExchangeState::Deferring { open_inputs, .. } => {
                open_inputs.retain(|input| !answered.contains(input))
            }
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
            observed.due_at = None;
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
        while let Some((_, input)) = self.input_expiries.front().copied().filter(|(at, _)| *at <= now) {
            self.input_expiries.pop_front();
            if matches!(
                self.state,
                ExchangeState::CommittingHandle { is_settled: false } | ExchangeState::Deferred
            ) {
                self.actions.push_back(ExchangeAction::ExpireInput(input));
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
            ExchangeState::Parked { open_inputs, response, expires_at } if *expires_at <= now => {
                let open_inputs = std::mem::take(open_inputs);
                let has_response = response.is_some();
                self.actions.extend(open_inputs.into_iter().map(ExchangeAction::Decline));
                if !has_response {
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
        let ExchangeState::Inline { open_inputs, .. } = &mut self.state else { return };
        self.state = ExchangeState::Deferring { open_inputs: std::mem::take(open_inputs), response: None };
        self.actions.push_back(ExchangeAction::Store);
    }

    /// Handles the result of [`ExchangeAction::Store`]. If the task was not stored (the store failed, or a
    /// quota is full), the call stays synchronous.
    pub fn handle_stored(&mut self, is_stored: bool, now: Instant) {
        match (std::mem::replace(&mut self.state, ExchangeState::Done), is_stored) {
            (ExchangeState::Deferring { response: None, open_inputs }, true) => {
                self.actions.push_back(ExchangeAction::ReplyTask);
                open_inputs.into_iter().for_each(|input| self.request_input_in_task(input, now));
                self.commit_handle(false);
            }
            (ExchangeState::Deferring { response: None, open_inputs }, false) => {
                let settle_at = match self.delivery {
                    InputDelivery::RoundTrips => (!open_inputs.is_empty()).then_some(now),
                    InputDelivery::Stream | InputDelivery::Ticket => {
                        self.actions.extend(open_inputs.iter().copied().map(ExchangeAction::RequestOnStream));
                        None
                    }
                };
                self.state = ExchangeState::Inline { defer_at: None, open_inputs, settle_at };
            }
            (ExchangeState::Deferring { response: Some(response), open_inputs }, true)
                if self.deadlines.defers_immediately()
                    || self.has_disconnected && self.delivery == InputDelivery::Stream =>
            {
                self.actions.push_back(ExchangeAction::ReplyTask);
                self.actions.extend(open_inputs.into_iter().map(ExchangeAction::Decline));
                self.actions.push_back(ExchangeAction::StoreResult(*response));
                self.commit_handle(true);
            }
            (ExchangeState::Deferring { response: Some(response), .. }, is_stored) => {
                if is_stored {
                    self.actions.push_back(ExchangeAction::RemoveTask);
                }
                self.actions.push_back(ExchangeAction::Reply(*response));
            }
            (ExchangeState::Abandoned, true) => self.actions.push_back(ExchangeAction::RemoveTask),
            (ExchangeState::Abandoned, false) => {}
            (other, _) => self.state = other,
        }
    }

    /// Begins to send the handle to the client. Where a disconnect does not cancel the call, the handle
    /// counts as delivered immediately.
    fn commit_handle(&mut self, is_settled: bool) {
        self.state = ExchangeState::CommittingHandle { is_settled };
        if self.delivery != InputDelivery::RoundTrips {
            self.handle_committed();
        }
    }

    /// Handles the delivery of the handle to the client's socket. From then on the task does not depend on
    /// the client's connection.
    pub fn handle_committed(&mut self) {
        if let ExchangeState::CommittingHandle { is_settled } = self.state {
            self.state = if is_settled { ExchangeState::Done } else { ExchangeState::Deferred };
        }
    }

    /// Handles the disconnect of the client. There is no effect once the client has received input requests
    /// or the handle, because it will return. With `InputDelivery::Stream` the call is not cancelled, but
    /// becomes a task immediately if it may, because no client waits any more.
    pub fn handle_disconnect(&mut self) {
        match self.delivery {
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
                if let ExchangeState::Inline { defer_at, open_inputs, .. } = &mut self.state {
                    *defer_at = None;
                    self.actions.extend(std::mem::take(open_inputs).into_iter().map(ExchangeAction::Decline));
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
            ExchangeState::Deferring { response, .. } => {
                if response.is_none() {
                    self.actions.push_back(ExchangeAction::CancelUpstream);
                }
                self.state = ExchangeState::Abandoned;
            }
            ExchangeState::CommittingHandle { is_settled } => {
                if !is_settled {
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
            ExchangeState::CommittingHandle { is_settled: false } | ExchangeState::Deferred => {
                self.actions.push_back(ExchangeAction::CancelUpstream);
                self.state = ExchangeState::Done;
            }
            ExchangeState::CommittingHandle { is_settled: true } => self.state = ExchangeState::Done,
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
            ExchangeState::CommittingHandle { is_settled: false } | ExchangeState::Deferred => {
                self.input_expiries.front().map(|(at, _)| *at)
            }
            ExchangeState::Deferring { .. }
            | ExchangeState::Abandoned
            | ExchangeState::CommittingHandle { is_settled: true }
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
    pub fn is_outcome_open(&self) -> bool {
        match &self.state {
            ExchangeState::Inline { .. } | ExchangeState::Deferred => true,
            ExchangeState::Deferring { response, .. } | ExchangeState::Parked { response, .. } => {
                response.is_none()
            }
            ExchangeState::CommittingHandle { is_settled } => !is_settled,
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
    pub fn is_awaiting_server(&self) -> bool {
        self.awaited_inputs.is_none() && self.is_outcome_open()
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
