//! A relayed request, and the response to its client if the server gives none.
//!
//! If a server responds with an HTTP error or cannot be reached, released clients would wait for ever
//! (`WIRE`, B 1, rule 19): they get the JSON-RPC error in a 200.

use super::requester::Requester;
use crate::{
    protocol::{
        ErrorObject, Frame, RequestId,
        message_kind::{KindSniffer, MessageKind},
        tool_result,
    },
    proxy::{
        AccessSummary, LegacyResponse, ResponseBody,
        drive::CallSpan,
        legacy_http::{refused, stream_response},
        observed_call::ObservedCall,
        reply::{lost_error, outcome_of, status_of_fault},
        route_context::RouteContext,
        session::ClientCall,
    },
    runtime::{DrainWatch, Mutex, TaskToken},
    telemetry::RequestOutcome,
    upstream::{CallError, ClientSession, HttpResponse, ResponseInterest},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::{sync::Arc, time::Instant};

/// A relayed request.
pub(super) struct ForwardedRequest {
    pub(super) shared: Arc<RouteContext>,
    pub(super) began: Instant,
    /// Delays shutdown; none if the client only listens.
    pub(super) _work: Option<TaskToken>,
    pub(super) requester: Requester,
    /// It belongs to a handshake, so no call can have run because of it.
    pub(super) is_handshake: bool,
    /// The client's own call, if it is one.
    pub(super) call: Option<Arc<ClientCall>>,
    /// The session for the cancellation of a call with a deadline.
    pub(super) cancel_session: Option<Box<ClientSession>>,
    /// When the proxy stops waiting for it.
    pub(super) stopping: DrainWatch,
    /// The span of the call at the server. Locked to record the outcome.
    pub(super) span: Mutex<CallSpan>,
    /// Present if the call is only observed. Locked to record the outcome.
    pub(super) observed: Mutex<Option<Box<ObservedCall>>>,
}

// === impl ForwardedRequest ===

impl ForwardedRequest {
    pub(super) fn summarize(&self, outcome: RequestOutcome) -> AccessSummary {
        self.span.lock().record_outcome(outcome);
        if let Some(observed) = &mut *self.observed.lock() {
            observed.record_outcome(outcome);
        }
        let upstream = self.shared.clock.now().saturating_duration_since(self.began);
        AccessSummary { upstream, ..AccessSummary::of(outcome) }
    }

    /// Records that the server does not work at the request any more.
    pub(super) fn mark_ended(&self) {
        self.call.iter().for_each(|call| call.mark_answered());
    }

    /// The same after a failure, unless the call may still run.
    pub(super) fn mark_lost(&self, lost: &CallError) {
        if !lost.may_still_run() {
            self.mark_ended();
        }
    }

    /// Cancels the calls at the server (2025-11-25, *Cancellation*). Later messages about them are ignored.
    pub(super) fn cancel_overdue(&mut self) {
        let is_queued = self.requester.pending.is_queued();
        if let Some(session) = self.cancel_session.take()
            && self.requester.pending.abandon()
            && !is_queued
        {
            let reason = "it took longer than the proxy lets a client wait";
            self.shared.upstream.cancel_in(*session, &self.requester.pending.ids, reason);
        }
    }

    /// A complete response.
    pub(super) fn full_response(
        &self,
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    ) -> LegacyResponse {
        let outcome = match KindSniffer::sniff(&body) {
            Some(MessageKind::Error) if status.is_success() => RequestOutcome::ServerError,
            Some(MessageKind::Result) if status.is_success() && tool_result::contains_error_flag(&body) => {
                RequestOutcome::ToolError
            }
            Some(_) | None => outcome_of_status(status),
        };
        let (outcome, reason) = match outcome {
            RequestOutcome::ServerError if self.requester.pending.is_cancelled() => {
                (RequestOutcome::Disconnected, None)
            }
            RequestOutcome::ServerError => (outcome, Some(error_numbers(status, &body).into())),
            _ => (outcome, None),
        };
        let account = AccessSummary { reason, ..self.summarize(outcome) };
        LegacyResponse { status, headers, body: ResponseBody::Whole(body, account) }
    }

    /// The response for an HTTP error of the server.
    pub(super) async fn refused_by(&self, forwarded: HttpResponse, waiting: &[RequestId]) -> LegacyResponse {
        let error = match forwarded.read_error().await {
            Ok(error) => error,
            Err(lost) => return self.refused(waiting, &lost).await,
        };
        match &self.requester.pending.owed(waiting.into()).await[..] {
            [] if !waiting.is_empty() => self.unanswered(),
            owed => self.failed(owed, &error, RequestOutcome::UpstreamFailed),
        }
    }

    /// The response for a failure without a response of the server.
    pub(super) async fn refused(&self, waiting: &[RequestId], lost: &CallError) -> LegacyResponse {
        let not_sent = self.is_handshake.then(|| lost.clone().into_not_sent());
        let lost = not_sent.as_ref().unwrap_or(lost);
        if waiting.is_empty() {
            return transport_error(lost, self.summarize(outcome_of(lost)));
        }
        let owed = self.requester.pending.owed(waiting.into()).await;
        if owed.is_empty() {
            return self.unanswered();
        }
        self.failed(&owed, &lost_error(lost), outcome_of(lost))
    }

    /// The error for each waiting request.
    pub(super) fn failed(
        &self,
        waiting: &[RequestId],
        error: &ErrorObject,
        outcome: RequestOutcome,
    ) -> LegacyResponse {
        refused(StatusCode::OK, waiting, error, self.summarize(outcome).with_reason(error))
    }

    /// The client has cancelled its requests: the stream just ends.
    pub(super) fn unanswered(&self) -> LegacyResponse {
        stream_response(ResponseBody::Whole(Bytes::new(), self.summarize(RequestOutcome::Disconnected)))
    }
}

/// No request waits for a response: the HTTP status reports the error.
pub(in crate::proxy) fn transport_error(lost: &CallError, account: AccessSummary) -> LegacyResponse {
    let error = lost_error(lost);
    refused(status_of_fault(lost.fault()), &[], &error, account.with_reason(&error))
}

pub(super) fn outcome_of_status(status: StatusCode) -> RequestOutcome {
    match status {
        _ if status.is_server_error() => RequestOutcome::UpstreamFailed,
        _ if status.is_client_error() => RequestOutcome::ServerError,
        _ => RequestOutcome::Result,
    }
}

/// The code and status of a server's error, without its text.
fn error_numbers(status: StatusCode, body: &Bytes) -> String {
    let error = Frame::parse(body.clone()).ok().and_then(|frame| ErrorObject::of(&frame));
    let code = error.map(|error| error.code());
    match (status.is_success(), code) {
        (true, Some(code)) => format!("error {code}"),
        (false, Some(code)) => format!("HTTP {}, error {code}", status.as_u16()),
        (_, None) => format!("HTTP {}", status.as_u16()),
    }
}
