//! The state machine of a response that is relayed to a client of its server's era.
//!
//! The server's bytes are forwarded as they arrive. Between its events the relay inserts keep-alive messages
//! ([`KeepAliveTimer`]) and other events of the proxy. A client whose stream ends without the response would
//! wait forever, so the stream gets the error as its last event, unless the client has
//! cancelled its requests. If the server ended a stream whose events have ids, the client resumes the stream
//! itself. If the connection of such a stream broke, the relay resumes it, because only the server knows
//! whether more events follow.
//!
//! Events enter through `handle_*`, with the time passed in; actions come from
//! [`ResponseRelay::poll_action`], and must be drained before the next event is passed in, so that no action
//! is queued.

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

/// An action for the caller to carry out. `L` is the reason why no response will arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayAction<L> {
    /// Forward these bytes.
    Send(Bytes),
    /// Forward these bytes, which complete the responses to all requests; the last response has this status.
    SendAnswered(Bytes, ResponseStatus),
    /// Forward these bytes, and end the body after them.
    End(Bytes, RelayOutcome<L>),
    /// Abort the body, so that the client does not take the bytes sent so far for a complete body.
    Abort(RelayOutcome<L>),
    /// Determine which of these requests still need a response, and report them
    /// ([`ResponseRelay::handle_unanswered`]).
    ResolveUnanswered(SmallVec<[RequestId; 1]>),
    /// Resume the server's stream from this position, and report the outcome
    /// ([`ResponseRelay::handle_resumed`]).
    Resume(ResumePosition),
    /// Store these unanswered requests for a client that resumes the stream from this position.
    KeepForResume(ResumePosition, SmallVec<[RequestId; 1]>),
    /// Drop the server's stream without cancelling the requests: the server keeps the remaining events for
    /// the client.
    Release,
    /// Cancel the requests at the server, because the proxy shuts down.
    Cancel,
    /// Cancel the requests at the server, because the deadline for the client has passed.
    CancelOverdue,
}

/// The kind of result of a response, as far as the relay can recognise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// No error was recognised; the HTTP status decides.
    Plain,
    /// The response is a JSON-RPC error.
    Error,
    /// The response is a tool result with `isError: true`.
    ToolError,
}

/// The outcome of a relayed response. `L` is the reason why no response arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayOutcome<L> {
    /// The server has sent the whole response.
    Completed(ResponseStatus),
    /// The stream has ended before the response; the client will resume it.
    Resumable,
    /// The client has cancelled all its requests.
    Cancelled,
    /// No response will arrive, for this reason; the client has been sent an error where possible.
    Lost(L),
    /// The deadline for the client has passed; the client has been sent this error where possible.
    TimedOut(ErrorObject),
}

/// The reason why no response will arrive from the server.
pub trait LossReason: Clone {
    /// Whether the connection broke, so that the stream may be resumed.
    fn is_connection_loss(&self) -> bool;
    /// Whether the proxy shuts down, so that the client resumes at the next process.
    fn is_shutdown(&self) -> bool;
    /// The JSON-RPC error that the client gets.
    fn error(&self) -> ErrorObject;
    /// The reason for a stream that ended without the responses to all requests.
    fn unanswered() -> Self;
    /// The reason for a response with an empty body.
    fn empty() -> Self;
    /// The reason for requests that are unanswered when the proxy shuts down.
    fn shutdown() -> Self;
}

/// A response that is being relayed. `L` is the reason why no response will arrive.
#[derive(Debug)]
pub struct ResponseRelay<L> {
    kind: RelayBody,
    state: RelayState<L>,
    keep_alive: KeepAliveTimer,
    /// The actions that have not been polled yet; mostly a single one, which needs no allocation.
    actions: SmallVec<[RelayAction<L>; 1]>,
}

#[derive(Debug)]
enum RelayBody {
    Events(ResponseTracker),
    /// A body that is not an event stream. The requests in `unanswered` can be answered by an error until the
    /// first byte has been forwarded. The body is inspected for errors only if `needs_inspection`, because
    /// its HTTP status does not determine the result.
    Document {
        sniffer: KindSniffer,
        status: ResponseStatus,
        unanswered: SmallVec<[RequestId; 1]>,
        needs_inspection: bool,
    },
}

#[derive(Debug)]
enum RelayState<L> {
    /// The server's bytes are forwarded as they arrive.
    Flowing,
    /// The server's bytes have ended, and the unanswered requests are being determined. Afterwards the stream
    /// is resumed from this position, if present; otherwise the loss is reported to the client.
    Resolving(Option<ResumePosition>, L),
    /// The server's stream is being resumed.
    Resuming,
    Ended,
}

/// The phase of a relay: its state without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayPhase {
    /// The server's bytes are forwarded.
    Flowing,
    /// The server's bytes have ended; the unanswered requests are being determined.
    Resolving,
    /// The server's stream is being resumed.
    Resuming,
    /// The relay has ended; no further action follows.
    Ended,
}

// === impl ResponseRelay ===

impl<L: LossReason> ResponseRelay<L> {
    /// Creates the relay of an event stream.
    pub fn for_events(tracker: ResponseTracker, keep_alive: KeepAliveTimer) -> Self {
        Self::new(RelayBody::Events(tracker), keep_alive)
    }

    /// Creates the relay of a document that answers the requests in `unanswered`. `needs_inspection` tells
    /// whether the document must be inspected for errors, because its status does not determine the result.
    pub fn for_document(
        unanswered: SmallVec<[RequestId; 1]>,
        needs_inspection: bool,
        keep_alive: KeepAliveTimer,
    ) -> Self {
        let sniffer = KindSniffer::default();
        Self::new(
            RelayBody::Document { sniffer, status: ResponseStatus::Plain, unanswered, needs_inspection },
            keep_alive,
        )
    }

    fn new(kind: RelayBody, keep_alive: KeepAliveTimer) -> Self {
        Self { kind, state: RelayState::Flowing, keep_alive, actions: SmallVec::new() }
    }

    /// Handles the next bytes of the server; `is_last` tells whether they are known to be the last.
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
        let (status, is_answered) = match &mut self.kind {
            RelayBody::Events(tracker) => {
                let was_unanswered = tracker.has_unanswered();
                tracker.observe(&bytes);
                tracker.take_messages().iter().for_each(|message| self.keep_alive.record_message(message));
                if tracker.has_unanswered() {
                    return self.actions.push(RelayAction::Send(bytes));
                }
                let status = match tracker.last_response() {
                    Some(MessageKind::Error) if was_unanswered => ResponseStatus::Error,
                    // Most servers write `isError` as the last member, so the last chunk contains it.
                    Some(_) | None if was_unanswered && tool_result::contains_error_flag(&bytes) => {
                        ResponseStatus::ToolError
                    }
                    Some(_) | None => ResponseStatus::Plain,
                };
                (status, was_unanswered)
            }
            RelayBody::Document { sniffer, status, unanswered, needs_inspection } => {
                unanswered.clear();
                if *needs_inspection && *status == ResponseStatus::Plain {
                    sniffer.feed(&bytes);
                    *status = match sniffer.kind() {
                        Some(MessageKind::Error) => ResponseStatus::Error,
                        Some(_) | None if tool_result::contains_error_flag(&bytes) => {
                            ResponseStatus::ToolError
                        }
                        Some(_) | None => ResponseStatus::Plain,
                    };
                }
                (*status, false)
            }
        };
        if is_answered {
            self.keep_alive.stop_waiting();
        }
        // The end is reported with the last bytes: the writer of a body of known length does not poll again
        // after them.
        match (is_last, is_answered) {
            (true, _) => self.end(bytes, RelayOutcome::Completed(status)),
            (false, true) => self.actions.push(RelayAction::SendAnswered(bytes, status)),
            (false, false) => self.actions.push(RelayAction::Send(bytes)),
        }
    }

    /// Handles the end of the server's bytes: regular, or with this loss.
    pub fn handle_end(&mut self, loss: Option<L>) {
        if !matches!(self.state, RelayState::Flowing) {
            return;
        }
        let tracker = match &mut self.kind {
            RelayBody::Events(tracker) => tracker,
            RelayBody::Document { status, unanswered, .. } => {
                let (status, unanswered) = (*status, mem::take(unanswered));
                return match loss {
                    None if unanswered.is_empty() => self.end(Bytes::new(), RelayOutcome::Completed(status)),
                    Some(loss) if unanswered.is_empty() => self.abort(RelayOutcome::Lost(loss)),
                    loss => {
                        let loss = loss.unwrap_or_else(L::empty);
                        self.end(
                            legacy::error_responses(&unanswered, &loss.error()),
                            RelayOutcome::Lost(loss),
                        );
                    }
                };
            }
        };
        match loss {
            // All requests on this stream have been answered.
            loss if !tracker.has_unanswered() => {
                let outcome = loss.map_or(RelayOutcome::Completed(ResponseStatus::Plain), RelayOutcome::Lost);
                self.end(Bytes::new(), outcome);
            }
            // The server ended the stream, or the proxy shuts down: the client resumes the stream itself,
            // then perhaps at another process.
            loss if tracker.is_resumable() && loss.as_ref().is_none_or(L::is_shutdown) => {
                self.actions.push(RelayAction::Release);
                self.store_for_resume();
                self.end(Bytes::new(), RelayOutcome::Resumable);
            }
            loss => {
                let position =
                    tracker.resume_position().filter(|_| loss.as_ref().is_some_and(L::is_connection_loss));
                self.resolve_unanswered(position, loss.unwrap_or_else(L::unanswered));
            }
        }
    }

    /// Handles the result of [`RelayAction::ResolveUnanswered`]: the requests that still need a response.
    pub fn handle_unanswered(&mut self, owed: SmallVec<[RequestId; 1]>) {
        let (RelayBody::Events(tracker), RelayState::Resolving(position, loss)) =
            (&mut self.kind, &mut self.state)
        else {
            return;
        };
        match position.take() {
            // The client has cancelled all its requests and waits for no response.
            _ if owed.is_empty() => self.end(Bytes::new(), RelayOutcome::Cancelled),
            Some(position) => {
                tracker.count_resume();
                self.actions.push(RelayAction::Resume(position));
                self.state = RelayState::Resuming;
            }
            None => {
                tracker.retain_unanswered(owed);
                let (error_events, loss) = (tracker.closing_errors(&loss.error()), loss.clone());
                self.end(error_events, RelayOutcome::Lost(loss));
            }
        }
    }

    /// Handles the result of [`RelayAction::Resume`]: the server's stream was resumed, or failed to resume
    /// for this reason.
    pub fn handle_resumed(&mut self, outcome: Result<(), L>) {
        if !matches!(self.state, RelayState::Resuming) {
            return;
        }
        match outcome {
            Ok(()) => {
                self.state = RelayState::Flowing;
                let event_end = self.abandon_event();
                if !event_end.is_empty() {
                    self.actions.push(RelayAction::Send(event_end));
                }
            }
            Err(loss) => self.resolve_unanswered(None, loss),
        }
    }

    /// Inserts an event of the proxy into the stream, if an insertion is
    /// [possible](ResponseRelay::can_insert); otherwise the event is dropped.
    pub fn handle_own_event(&mut self, bytes: Bytes) {
        if self.can_insert() {
            self.keep_alive.record_bytes();
            self.insert(bytes);
        }
    }

    /// Handles the timeouts that have passed at `now`. Called at the deadline of
    /// [`ResponseRelay::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_waiting() {
            return;
        }
        match self.keep_alive.handle_timeout(now, self.can_insert()) {
            None => {}
            Some(KeepAliveStep::Comment) => self.insert(sse::KEEP_ALIVE),
            Some(KeepAliveStep::Progress(message)) => self.insert(legacy::message_event(&message)),
            Some(KeepAliveStep::Deadline) => {
                self.actions.push(RelayAction::CancelOverdue);
                let error = self.keep_alive.deadline_error();
                match &mut self.kind {
                    RelayBody::Events(tracker) => {
                        let error_events = tracker.closing_errors(&error);
                        self.end(error_events, RelayOutcome::TimedOut(error));
                    }
                    // A document whose first bytes have been sent cannot carry an error any more.
                    RelayBody::Document { unanswered, .. } if unanswered.is_empty() => {
                        self.abort(RelayOutcome::TimedOut(error));
                    }
                    RelayBody::Document { unanswered, .. } => {
                        let refusal = legacy::error_responses(unanswered, &error);
                        self.end(refusal, RelayOutcome::TimedOut(error));
                    }
                }
            }
        }
    }

    /// Handles the shutdown of the proxy: the client resumes the stream at another process, or gets an error.
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

    /// Handles the client's disconnect: stores the unanswered requests for a client that returns.
    pub fn handle_disconnect(&mut self) {
        if !matches!(self.state, RelayState::Ended) {
            self.store_for_resume();
            self.state = RelayState::Ended;
        }
    }

    /// Returns the next action to carry out, in order; `None` if there is none now.
    pub fn poll_action(&mut self) -> Option<RelayAction<L>> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// Returns the next time at which [`ResponseRelay::handle_timeout`] must be called; `None` if no timeout
    /// is pending.
    pub fn poll_timeout(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if !self.is_waiting() {
            return None;
        }
        let can_insert = self.can_insert();
        self.keep_alive.poll_timeout(now, can_insert)
    }

    /// Whether an event of the proxy can be inserted now: the body is an event stream, and the server's
    /// current event has ended or will not be completed.
    pub fn can_insert(&self) -> bool {
        match (&self.kind, &self.state) {
            (RelayBody::Events(tracker), RelayState::Flowing) => tracker.is_between_events(),
            (RelayBody::Events(_), RelayState::Resuming) => true,
            (RelayBody::Events(_), RelayState::Resolving(..) | RelayState::Ended)
            | (RelayBody::Document { .. }, _) => false,
        }
    }

    /// Returns the ids of earlier events, after which a client that lost later ones may resume
    /// ([`ResponseTracker::earlier_ids`]).
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        let tracker = match &self.kind {
            RelayBody::Events(tracker) => Some(tracker),
            RelayBody::Document { .. } => None,
        };
        tracker.into_iter().flat_map(ResponseTracker::earlier_ids)
    }

    /// Returns the current phase.
    pub fn phase(&self) -> RelayPhase {
        match self.state {
            RelayState::Flowing => RelayPhase::Flowing,
            RelayState::Resolving(..) => RelayPhase::Resolving,
            RelayState::Resuming => RelayPhase::Resuming,
            RelayState::Ended => RelayPhase::Ended,
        }
    }

    /// Whether bytes of the server are awaited, so that keep-alive messages apply.
    fn is_waiting(&self) -> bool {
        matches!(self.state, RelayState::Flowing | RelayState::Resuming)
    }

    fn insert(&mut self, bytes: Bytes) {
        let event_end = self.abandon_event();
        let bytes = if event_end.is_empty() { bytes } else { [event_end, bytes].concat().into() };
        self.actions.push(RelayAction::Send(bytes));
    }

    /// Returns the bytes that end an event that was cut off; empty if no event is open.
    fn abandon_event(&mut self) -> Bytes {
        match &mut self.kind {
            RelayBody::Events(tracker) => tracker.abandon_event(),
            RelayBody::Document { .. } => Bytes::new(),
        }
    }

    fn resolve_unanswered(&mut self, position: Option<ResumePosition>, loss: L) {
        if let RelayBody::Events(tracker) = &self.kind {
            self.actions.push(RelayAction::ResolveUnanswered(tracker.unanswered()));
        }
        self.state = RelayState::Resolving(position, loss);
    }

    /// Stores the unanswered requests for a client that resumes the stream; without effect if the stream
    /// cannot be resumed.
    fn store_for_resume(&mut self) {
        if let RelayBody::Events(tracker) = &self.kind
            && tracker.has_unanswered()
            && let Some(position) = tracker.resume_position()
        {
            self.actions.push(RelayAction::KeepForResume(position, tracker.unanswered()));
        }
    }

    fn end(&mut self, bytes: Bytes, outcome: RelayOutcome<L>) {
        self.actions.push(RelayAction::End(bytes, outcome));
        self.state = RelayState::Ended;
    }

    fn abort(&mut self, outcome: RelayOutcome<L>) {
        self.actions.push(RelayAction::Abort(outcome));
        self.state = RelayState::Ended;
    }
}
