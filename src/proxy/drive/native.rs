//! A driven call in its client's own form: both sides are of a legacy revision, so that messages pass
//! unchanged, except for the proxy's ids and tasks.
//!
//! An input request gets an id with its task and key when it is sent in the task. The client's response, a
//! POST of its own, finds the call by that id, without any stored state.

use super::{
    canonical::{failure_event, result_event},
    delivery::TaskStreams,
    open_requests::{InlineRequest, OpenRequest},
};
use crate::{
    bridge::offer,
    dialect::legacy,
    policy::ToolPolicy,
    protocol::{
        ErrorObject, Frame, InputKind, InputRequest, Kind, Method, RequestId, Timestamp,
        frame::to_single_line, splice::BytesPatch, status_message,
    },
    proxy::{
        AccessSummary, CallReply,
        reply::{CallEnd, lost_error, outcome_of},
        route_context::RouteContext,
        session::{ProxyCallGuard, ResponseOwner, SessionKey, StreamOpening},
        tickets::TicketOptions,
    },
    task::{
        self, Record, TaskId, TaskPrincipal, TaskView,
        view::experimental::{self, TaskResultFormat},
    },
    telemetry::RequestOutcome,
    upstream::{CallError, Deferral, ServerRequest},
};
use bytes::Bytes;
use http::StatusCode;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The state of such a call.
pub(in crate::proxy) struct NativeForm {
    pub(in crate::proxy) owner: TaskPrincipal,
    /// The client's session, if it has an id.
    pub(in crate::proxy) session: Option<SessionKey>,
    pub(in crate::proxy) tool: String,
    /// The time to live that the client requested for the task.
    pub(in crate::proxy) ttl: Option<Duration>,
    /// Whether the client requested progress notifications; otherwise the token is the proxy's.
    pub(in crate::proxy) wants_progress: bool,
    /// The view of the task.
    pub(in crate::proxy) view: TaskView,
    /// The result format for the client.
    pub(in crate::proxy) reader: TaskResultFormat,
    /// How the client gets a ticket, if it gets one.
    pub(in crate::proxy) ticketing: Option<TicketOptions>,
    /// The latest progress message, for the ticket.
    pub(in crate::proxy) progress: Option<String>,
    /// Signals to the upstream that the call has become a task.
    pub(in crate::proxy) deferral: Deferral,
    /// Whether the client sends credentials.
    pub(in crate::proxy) needs_credentials: bool,
    /// Dropped after the replies.
    pub(in crate::proxy) in_flight: Option<ProxyCallGuard>,
    /// Of a task, until the call is made.
    pub(in crate::proxy) opening: Option<StreamOpening>,
    pub(in crate::proxy) began: Instant,
    /// The last status that the client was notified of.
    pub(in crate::proxy) last_status: &'static str,
}

// === impl NativeForm ===

impl NativeForm {
    /// Whether the client has the capability for this input request inside a task, if that is known. A ticket
    /// holder does not know tasks, and cannot decline a request that it never receives.
    pub(super) fn can_be_asked(&self, shared: &RouteContext, asked: &ServerRequest) -> bool {
        let ServerRequest::Native(frame) = asked else { return true };
        let Kind::Request { method, params, .. } = frame.kind() else { return true };
        let known = self.session.filter(|_| self.view == TaskView::Ticket);
        let known = known.and_then(|session| shared.sessions.ticket_holders.client(session));
        known.is_none_or(|client| client.can_be_asked(method, params.as_deref()))
    }

    /// A message of the server for a client that waits for the call itself.
    pub(super) fn inline_message(&self, frame: &Frame) -> Option<Bytes> {
        let is_progress = matches!(frame.kind(), Kind::Notification { method: Method::Progress, .. });
        (!is_progress || self.wants_progress).then(|| verbatim(frame))
    }

    /// The same for a client of a task, which no longer waits for the call.
    pub(super) fn task_message(&self, frame: &Frame, task: &TaskId) -> Option<Bytes> {
        let Kind::Notification { method, .. } = frame.kind() else { return None };
        if self.view == TaskView::Ticket {
            // The token belonged to a request that has been answered.
            return status_message::of_progress(frame).is_none().then(|| verbatim(frame));
        }
        if status_message::of_progress(frame).is_some() && !self.wants_progress {
            return None;
        }
        Some(match method {
            // These are about the server, not about the call.
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourceUpdated => verbatim(frame),
            _ => offer::with_related_task(frame, task.as_str(), None),
        })
    }

    pub(super) fn record(
        &self,
        id: TaskId,
        shared: &RouteContext,
        policy: &ToolPolicy,
        now: Timestamp,
    ) -> Record {
        let most = shared.route.legacy_tasks.max_ttl;
        let retention = self.ttl.map_or(policy.retention, |ttl| ttl.min(most));
        let mut record = Record::new(id, self.owner.clone(), self.tool.clone(), retention, now);
        (record.view, record.is_translated, record.message) = (self.view, false, self.progress.clone());
        record.elapsed_before_task = shared.clock.now().saturating_duration_since(self.began);
        record
    }

    /// The `CreateTaskResult` of a new task.
    pub(super) fn create_result(shared: &RouteContext, record: &Record, reader: TaskResultFormat) -> Vec<u8> {
        let immediate = shared.route.legacy_tasks.immediate_response.as_deref();
        let (now, terms) = (shared.clock.timestamp(), shared.legacy_terms());
        experimental::create_task_result(record, now, terms, reader, immediate)
    }

    /// The handle, for a client that waits for the call itself.
    pub(super) fn handle(&self, shared: &RouteContext, id: &RequestId, record: &Record) -> CallReply {
        let result = match &self.ticketing {
            Some(ticketing) => ticketing.running(shared, record).to_string().into_bytes(),
            None => Self::create_result(shared, record, self.reader),
        };
        let body = legacy::success_response(id, &result);
        let mut reply = CallReply::new(StatusCode::OK, body, RequestOutcome::Task);
        reply.account.task = Some(record.id.clone());
        reply
    }

    /// The response with the client's id, unchanged otherwise; or an error of the proxy.
    pub(super) fn reply(&self, shared: &RouteContext, id: &RequestId, end: &CallEnd) -> Option<CallReply> {
        let answer = |frame: &Frame, theirs: &RequestId| {
            let mut patch = BytesPatch::new(frame.as_bytes().clone());
            patch.replace(theirs.as_bytes(), id.as_bytes().clone());
            patch.apply()
        };
        let refusal = |error: &ErrorObject| legacy::error_responses(std::slice::from_ref(id), error);
        let (body, account) = match end {
            CallEnd::Response(response) => match response.frame().kind() {
                Kind::Success { id, .. } => (answer(response.frame(), id), AccessSummary::default()),
                Kind::Failure { id: Some(id), .. } => {
                    (answer(response.frame(), id), AccessSummary::of(RequestOutcome::ServerError))
                }
                Kind::Failure { id: None, error } => (
                    refusal(&ErrorObject::from_raw(error.clone())),
                    AccessSummary::of(RequestOutcome::ServerError),
                ),
                Kind::Request { .. } | Kind::Notification { .. } => return None,
            },
            CallEnd::Lost(lost) => {
                let error = lost_error(lost);
                (refusal(&error), AccessSummary::failed(outcome_of(lost), &error))
            }
            CallEnd::Refused(error, outcome) => (refusal(error), AccessSummary::failed(*outcome, error)),
        };
        let upstream = shared.clock.now().saturating_duration_since(self.began);
        let mut reply = CallReply::new(StatusCode::OK, to_single_line(body), account.outcome);
        reply.account = AccessSummary { upstream, ..account };
        Some(reply)
    }

    /// The event that ends the task, with the server's result unchanged.
    pub(super) fn end_event(&self, shared: &RouteContext, end: &CallEnd) -> task::TaskEvent {
        let event = match end {
            CallEnd::Response(response) => match response.frame().kind() {
                Kind::Success { result, .. } => {
                    result_event(result.len(), shared.ledger.quotas().stored_result_bytes, || {
                        // Copied: a slice would keep the server's whole message in memory.
                        to_single_line(Bytes::copy_from_slice(result))
                    })
                }
                Kind::Failure { error, .. } => {
                    failure_event(&ErrorObject::from_raw(Bytes::copy_from_slice(error)))
                }
                Kind::Request { .. } | Kind::Notification { .. } => {
                    failure_event(&lost_error(&CallError::Invalid("it is not a response".to_owned())))
                }
            },
            CallEnd::Lost(lost) => failure_event(&lost_error(lost)),
            CallEnd::Refused(error, _) => failure_event(error),
        };
        if matches!(event, task::TaskEvent::Failed { .. }) {
            self.forget_presence(shared);
        }
        event
    }

    /// Marks the session as unconfirmed after a failed call, because it may be gone: a client whose calls are
    /// all answered by the proxy would otherwise never learn that.
    pub(super) fn forget_presence(&self, shared: &RouteContext) {
        if let Some(session) = self.session {
            shared.sessions.presence.forget(session);
        }
    }

    /// The streams that carry the task's messages to the client.
    pub(super) fn streams(&self, shared: &RouteContext) -> TaskStreams {
        TaskStreams::new(self.session.map(|session| shared.sessions.streams.follow(session)))
    }

    /// Sees to it that the session's own stream is read, where the client knows that there is a task.
    pub(super) fn read_stream(&self, shared: &RouteContext) -> Option<StreamOpening> {
        let in_flight = self.in_flight.as_ref().filter(|_| self.view == TaskView::Experimental)?;
        Some(in_flight.read_stream(&shared.route.path, &shared.sessions.streams))
    }

    /// The status notification for the client, if the status has changed (2025-11-25, *Tasks, Task Status
    /// Notification*).
    pub(super) fn status_notification(&mut self, shared: &RouteContext, task: &TaskId) -> Option<Bytes> {
        let record = shared.ledger.last_stored(task).filter(|record| record.view != TaskView::Ticket)?;
        let terms = shared.legacy_terms();
        let status = experimental::task_status(&record, terms.tool_errors);
        if std::mem::replace(&mut self.last_status, status) == status {
            return None;
        }
        let shown = experimental::task_object(&record, shared.clock.timestamp(), terms);
        Some(legacy::notification(&Method::TaskStatus, &shown))
    }
}

/// A message of the server, unchanged.
pub(super) fn verbatim(frame: &Frame) -> Bytes {
    to_single_line(frame.as_bytes().clone())
}

/// Registers an input request on the stream of the call itself: its response may arrive after the call has
/// become a task.
pub(super) fn register_inline(
    shared: &Arc<RouteContext>,
    session: Option<SessionKey>,
    id: &RequestId,
) -> InlineRequest {
    let questions = &shared.sessions.input_requests;
    InlineRequest { relayed: session.map(|session| questions.register(session, id, ResponseOwner::Call)) }
}

/// The input request as the record stores it; none if the revision does not define its method.
pub(super) fn recordable_request(frame: &Frame) -> Option<Bytes> {
    let Kind::Request { method, params, .. } = frame.kind() else { return None };
    let kind = InputKind::of(method)?;
    Some(InputRequest::new(kind, params.as_deref()).as_bytes().clone())
}

/// The input request as it is sent in the task. `knows` is whether the client knows the task.
pub(super) fn task_request(open: &OpenRequest, task: &TaskId, knows: bool) -> Bytes {
    let id = offer::input_request_id(task, &open.key);
    let named = knows.then(|| task.as_str());
    match &open.asked {
        ServerRequest::Canonical(request) => offer::input_request_message(request, &id, named),
        ServerRequest::Native(frame) => match named {
            Some(named) => offer::with_related_task(frame, named, Some(&id)),
            None => offer::with_id(frame, &id),
        },
    }
}
