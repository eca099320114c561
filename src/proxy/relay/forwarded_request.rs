//! A request that is relayed to the server, and the error responses to its client if the server gives no
//! usable response.
//!
//! If a server responds with an HTTP error or cannot be reached, published clients would wait for ever:
//! the proxy sends them the JSON-RPC error with status 200.

use super::{
    legacy_http::{refuse_requests, stream_response},
    requester::Requester,
};
use crate::{
    protocol::{
        ErrorObject, Frame, RequestId,
        message_kind::{KindSniffer, MessageKind},
        tool_result,
    },
    proxy::{
        AccessSummary, LegacyResponse, ResponseBody,
        drive::CallSpan,
        observed_call::ObservedCall,
        reply::{call_error_outcome, origin_status, record_call_error},
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

/// The state of a request while it is relayed, and of its response.
pub(super) struct ForwardedRequest {
    /// The shared state of the route.
    pub(super) shared: Arc<RouteContext>,
    /// When the proxy began to serve the request.
    pub(super) began_at: Instant,
    /// Delays shutdown while the request is in flight; `None` for a GET stream.
    pub(super) _drain_token: Option<TaskToken>,
    /// The JSON-RPC requests to which responses are owed.
    pub(super) requester: Requester,
    /// Whether the request belongs to a handshake: then its failure means that no call has run.
    pub(super) is_handshake: bool,
    /// The entry of the call among the session's calls in flight; `None` if the request is not a call.
    pub(super) call: Option<Arc<ClientCall>>,
    /// The session in which a call is cancelled at its deadline; `None` without a deadline.
    pub(super) cancel_session: Option<Box<ClientSession>>,
    /// Resolves at the stage of shutdown at which the proxy no longer waits for this request.
    pub(super) stopping: DrainWatch,
    /// The span of the call at the server. Locked to record the outcome.
    pub(super) span: Mutex<CallSpan>,
    /// The record of a call on a route that only observes; `None` for other requests. Locked to record the
    /// outcome.
    pub(super) observed: Mutex<Option<Box<ObservedCall>>>,
}

// === impl ForwardedRequest ===

impl ForwardedRequest {
    /// Records the outcome in the span and in the observed call, and returns the access summary.
    pub(super) fn summarize(&self, outcome: RequestOutcome) -> AccessSummary {
        self.span.lock().record_outcome(outcome);
        if let Some(observed) = &mut *self.observed.lock() {
            observed.record_outcome(outcome);
        }
        let upstream = self.shared.clock.now().saturating_duration_since(self.began_at);
        AccessSummary { upstream_time: upstream, ..AccessSummary::new(outcome) }
    }

    /// Records that the server no longer works at the request.
    pub(super) fn mark_server_finished(&self) {
        self.call.iter().for_each(|call| call.mark_answered());
    }

    /// Records after a failure that the server no longer works at the request, unless the call may still run
    /// there.
    pub(super) fn mark_failed(&self, error: &CallError) {
        if !error.may_still_run() {
            self.mark_server_finished();
        }
    }

    /// Cancels calls whose deadline has passed at the server (2025-11-25, *Cancellation*); later messages
    /// about them are ignored. A call in the proxy's queue is dropped without a message.
    pub(super) fn cancel_overdue(&mut self) {
        let is_queued = self.requester.pending.is_queued();
        if let Some(session) = self.cancel_session.take()
            && self.requester.pending.abandon()
            && !is_queued
        {
            let reason = "the client's deadline has passed (held.deadline)";
            if let Some(relay) = self.shared.upstream.http_relay() {
                relay.cancel_in(*session, &self.requester.pending.ids, reason);
            }
        }
    }

    /// Builds a complete response, with the outcome that its status and body show.
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
            RequestOutcome::ServerError => (outcome, Some(describe_error_code(status, &body).into())),
            _ => (outcome, None),
        };
        let summary = AccessSummary { reason, ..self.summarize(outcome) };
        LegacyResponse { status, headers, body: ResponseBody::Complete(body, summary) }
    }

    /// Builds the response to the client after the server responded with an HTTP error.
    pub(super) async fn respond_to_http_error(
        &self,
        response: HttpResponse,
        waiting: &[RequestId],
    ) -> LegacyResponse {
        let error = match response.read_error().await {
            Ok(error) => error,
            Err(error) => return self.respond_to_failure(waiting, &error).await,
        };
        match &self.requester.pending.still_owed(waiting.into()).await[..] {
            [] if !waiting.is_empty() => self.empty_stream_response(),
            owed => self.error_response(owed, &error, RequestOutcome::UpstreamFailed),
        }
    }

    /// Builds the response to the client after a failure without a response of the server.
    pub(super) async fn respond_to_failure(
        &self,
        waiting: &[RequestId],
        call_error: &CallError,
    ) -> LegacyResponse {
        let not_sent = self.is_handshake.then(|| call_error.clone().into_not_sent());
        let call_error = not_sent.as_ref().unwrap_or(call_error);
        if waiting.is_empty() {
            return transport_error(call_error, self.summarize(call_error_outcome(call_error)));
        }
        let owed = self.requester.pending.still_owed(waiting.into()).await;
        if owed.is_empty() {
            return self.empty_stream_response();
        }
        self.error_response(&owed, &record_call_error(call_error), call_error_outcome(call_error))
    }

    /// Builds the response with this error for each of the requests in `waiting`.
    pub(super) fn error_response(
        &self,
        waiting: &[RequestId],
        error: &ErrorObject,
        outcome: RequestOutcome,
    ) -> LegacyResponse {
        refuse_requests(StatusCode::OK, waiting, error, self.summarize(outcome).with_reason(error))
    }

    /// Builds the empty event stream for a client that has cancelled its requests, to which no response is
    /// owed.
    pub(super) fn empty_stream_response(&self) -> LegacyResponse {
        stream_response(ResponseBody::Complete(Bytes::new(), self.summarize(RequestOutcome::Disconnected)))
    }
}

/// Builds the HTTP error response to a message without requests, for which only the status can report an
/// error.
pub(in crate::proxy) fn transport_error(call_error: &CallError, summary: AccessSummary) -> LegacyResponse {
    let error = record_call_error(call_error);
    refuse_requests(origin_status(call_error.origin()), &[], &error, summary.with_reason(&error))
}

/// Returns the outcome that the HTTP status of a response shows: 5xx `UpstreamFailed`, 4xx `ServerError`,
/// otherwise `Result`.
pub(super) fn outcome_of_status(status: StatusCode) -> RequestOutcome {
    match status {
        _ if status.is_server_error() => RequestOutcome::UpstreamFailed,
        _ if status.is_client_error() => RequestOutcome::ServerError,
        _ => RequestOutcome::Result,
    }
}

/// Formats the status and the JSON-RPC code of a server's error for the access log, without the error's text.
fn describe_error_code(status: StatusCode, body: &Bytes) -> String {
    let error = Frame::parse(body.clone()).ok().and_then(|frame| ErrorObject::from_message(&frame));
    let code = error.map(|error| error.code());
    match (status.is_success(), code) {
        (true, Some(code)) => format!("error {code}"),
        (false, Some(code)) => format!("HTTP {}, error {code}", status.as_u16()),
        (_, None) => format!("HTTP {}", status.as_u16()),
    }
}
