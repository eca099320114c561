//! A request that was sent on, and what its client is told where the server gives no answer to pass.
//!
//! A server that fails a request with an HTTP error, or that cannot be reached, would leave released clients
//! waiting (`WIRE`, B 1, rule 19): they get the JSON-RPC error in a 200.

use super::requester::Requester;
use crate::{
    protocol::{
        ErrorObject, Frame, Id,
        glance::{Gist, Glance},
        tool_result,
    },
    proxy::{
        AccessSummary, Passed, Passing,
        drive::CallSpan,
        observed_call::ObservedCall,
        passage::{events, refused},
        reply::{lost_error, outcome_of, status_of_fault},
        session::TheirCall,
        shared::Shared,
    },
    runtime::{Mutex, Stopping, Work},
    telemetry::Outcome,
    upstream::{CallError, ClientSession, Forwarded, Interest},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::{sync::Arc, time::Instant};

/// A request that was sent on.
pub(super) struct Sent {
    pub(super) shared: Arc<Shared>,
    pub(super) began: Instant,
    /// A stopping proxy waits for it; not where the client only listens.
    pub(super) _work: Option<Work>,
    pub(super) requester: Requester,
    /// It belongs to a handshake, so no call can have run because of it.
    pub(super) is_handshake: bool,
    /// The client's own call that it is.
    pub(super) call: Option<Arc<TheirCall>>,
    /// Where the server is told that a call is given up which has a deadline.
    pub(super) giving_up: Option<Box<ClientSession>>,
    /// When it is not waited for any longer.
    pub(super) stopping: Stopping,
    /// Of the server's call that it is. The lock is held to say how it has ended.
    pub(super) span: Mutex<CallSpan>,
    /// Where it is a call that is only observed. The lock is held likewise.
    pub(super) observed: Mutex<Option<Box<ObservedCall>>>,
}

// === impl Sent ===

impl Sent {
    pub(super) fn account(&self, outcome: Outcome) -> AccessSummary {
        self.span.lock().passes(outcome);
        if let Some(observed) = &mut *self.observed.lock() {
            observed.answered(outcome);
        }
        let upstream = self.shared.clock.now().saturating_duration_since(self.began);
        AccessSummary { upstream, ..AccessSummary::of(outcome) }
    }

    /// The server is at it no more, or never was.
    pub(super) fn is_over(&self) {
        self.call.iter().for_each(|call| call.answered());
    }

    /// The same, where this is what came of it.
    pub(super) fn is_lost(&self, lost: &CallError) {
        if !lost.leaves_it_running() {
            self.is_over();
        }
    }

    /// Tells the server that the calls are cancelled (2025-11-25, *Cancellation*). What it still says
    /// of them is not waited for.
    pub(super) fn give_up(&mut self) {
        let is_queued = self.requester.asked.is_queued();
        if let Some(session) = self.giving_up.take()
            && self.requester.asked.lose()
            && !is_queued
        {
            let reason = "it took longer than the proxy lets a client wait";
            self.shared.upstream.cancel_in(*session, &self.requester.asked.ids, reason);
        }
    }

    /// An answer that is there.
    pub(super) fn whole(&self, status: StatusCode, headers: HeaderMap, body: Bytes) -> Passed {
        let outcome = match Glance::of(&body) {
            Some(Gist::Error) if status.is_success() => Outcome::ServerError,
            Some(Gist::Result) if status.is_success() && tool_result::shows_error(&body) => {
                Outcome::ToolError
            }
            Some(_) | None => outcome(status),
        };
        let (outcome, reason) = match outcome {
            Outcome::ServerError if self.requester.asked.is_taken_back() => (Outcome::Departed, None),
            Outcome::ServerError => (outcome, Some(in_numbers(status, &body).into())),
            _ => (outcome, None),
        };
        let account = AccessSummary { reason, ..self.account(outcome) };
        Passed { status, headers, body: Passing::Whole(body, account) }
    }

    /// The server has refused, by an HTTP error.
    pub(super) async fn refused_by(&self, forwarded: Forwarded, waiting: &[Id]) -> Passed {
        let error = match forwarded.error().await {
            Ok(error) => error,
            Err(lost) => return self.refused(waiting, &lost).await,
        };
        match &self.requester.asked.owed(waiting.into()).await[..] {
            [] if !waiting.is_empty() => self.unanswered(),
            owed => self.failed(owed, &error, Outcome::UpstreamFailed),
        }
    }

    /// There will be no answer, and this is why.
    pub(super) async fn refused(&self, waiting: &[Id], lost: &CallError) -> Passed {
        let not_sent = self.is_handshake.then(|| lost.clone().before_sending());
        let lost = not_sent.as_ref().unwrap_or(lost);
        if waiting.is_empty() {
            return untold(lost, self.account(outcome_of(lost)));
        }
        let owed = self.requester.asked.owed(waiting.into()).await;
        if owed.is_empty() {
            return self.unanswered();
        }
        self.failed(&owed, &lost_error(lost), outcome_of(lost))
    }

    /// The error for each request that waits.
    pub(super) fn failed(&self, waiting: &[Id], error: &ErrorObject, outcome: Outcome) -> Passed {
        refused(StatusCode::OK, waiting, error, self.account(outcome).because(error))
    }

    /// The client has taken back what it asked: its stream just ends.
    pub(super) fn unanswered(&self) -> Passed {
        events(Passing::Whole(Bytes::new(), self.account(Outcome::Departed)))
    }
}

/// Nothing waits for a response: it is the transport's to tell.
pub(in crate::proxy) fn untold(lost: &CallError, account: AccessSummary) -> Passed {
    let error = lost_error(lost);
    refused(status_of_fault(lost.fault()), &[], &error, account.because(&error))
}

pub(super) fn outcome(status: StatusCode) -> Outcome {
    match status {
        _ if status.is_server_error() => Outcome::UpstreamFailed,
        _ if status.is_client_error() => Outcome::ServerError,
        _ => Outcome::Result,
    }
}

/// What an error of the server is, without its words.
fn in_numbers(status: StatusCode, body: &Bytes) -> String {
    let error = Frame::parse(body.clone()).ok().and_then(|frame| ErrorObject::of(&frame));
    let code = error.map(|error| error.code());
    match (status.is_success(), code) {
        (true, Some(code)) => format!("error {code}"),
        (false, Some(code)) => format!("HTTP {}, error {code}", status.as_u16()),
        (_, None) => format!("HTTP {}", status.as_u16()),
    }
}
