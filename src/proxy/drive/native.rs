//! A driven call in its client's own form: client and server are both of a legacy revision, so that messages
//! are relayed unchanged, except for request ids and references to tasks.
//!
//! An input request that is sent in a task gets a request id that contains the task id and the request's key.
//! The client sends its response in a POST of its own, and the proxy finds the call by that id, without
//! stored state.

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

/// The state of a driven call whose messages are in the client's own legacy revision.
pub(in crate::proxy) struct NativeForm {
    /// The owner of the task that the call may become.
    pub(in crate::proxy) owner: TaskPrincipal,
    /// The client's session, if it has an id.
    pub(in crate::proxy) session: Option<SessionKey>,
    /// The name of the called tool.
    pub(in crate::proxy) tool: String,
    /// The time to live that the client requested for the task.
    pub(in crate::proxy) ttl: Option<Duration>,
    /// Whether the client requested progress notifications. If not, the call has a progress token of the
    /// proxy, and progress is used only for the task's status message.
    pub(in crate::proxy) wants_progress: bool,
    /// The form in which the client sees the task.
    pub(in crate::proxy) view: TaskView,
    /// The format of the `CreateTaskResult` for the client.
    pub(in crate::proxy) reader: TaskResultFormat,
    /// The options of the client's ticket; `None` if the client gets a task handle instead.
    pub(in crate::proxy) ticketing: Option<TicketOptions>,
    /// The latest progress message, which the ticket's text contains.
    pub(in crate::proxy) progress: Option<String>,
    /// Signals to the upstream that the call has become a task.
    pub(in crate::proxy) deferral: Deferral,
    /// Whether the client sends credentials, without which the next process cannot resume the call.
    pub(in crate::proxy) needs_credentials: bool,
    /// The registration of the call in the client's session. Dropped after the upstream events of the call.
    pub(in crate::proxy) in_flight: Option<ProxyCallGuard>,
    /// For a task whose call is not sent yet: signals that the session's GET stream is open.
    pub(in crate::proxy) opening: Option<StreamOpening>,
    /// When the proxy began to serve the client's request.
    pub(in crate::proxy) began: Instant,
    /// The last status that the client was notified of.
    pub(in crate::proxy) last_status: &'static str,
}

// === impl NativeForm ===

impl NativeForm {
    /// Whether the client can receive this input request while it waits with a ticket, by its declared
    /// capabilities. True if these are unknown, or if the client does not use tickets: a client with tasks
    /// declines requests itself.
    pub(super) fn can_be_asked(&self, shared: &RouteContext, asked: &ServerRequest) -> bool {
        let ServerRequest::Native(frame) = asked else { return true };
        let Kind::Request { method, params, .. } = frame.kind() else { return true };
        let known = self.session.filter(|_| self.view == TaskView::Ticket);
        let known = known.and_then(|session| shared.sessions.ticket_holders.client(session));
        known.is_none_or(|client| client.can_be_asked(method, params.as_deref()))
    }

    /// The message to a client that waits for the call itself, for this message of the server. `None` for
    /// progress that the client did not request.
    pub(super) fn inline_message(&self, frame: &Frame) -> Option<Bytes> {
        let is_progress = matches!(frame.kind(), Kind::Notification { method: Method::Progress, .. });
        (!is_progress || self.wants_progress).then(|| verbatim(frame))
    }

    /// The message to the client of a task, for this notification of the server. `None` for progress that the
    /// client did not request.
    pub(super) fn task_message(&self, frame: &Frame, task: &TaskId) -> Option<Bytes> {
        let Kind::Notification { method, .. } = frame.kind() else { return None };
        if self.view == TaskView::Ticket {
            // Progress is dropped: its token belonged to a request that has been answered.
            return status_message::of_progress(frame).is_none().then(|| verbatim(frame));
        }
        if status_message::of_progress(frame).is_some() && !self.wants_progress {
            return None;
        }
        Some(match method {
            // These notifications are about the server, not about the call, and do not name the task.
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourceUpdated => verbatim(frame),
            _ => offer::with_related_task(frame, task.as_str(), None),
        })
    }

    /// The record of the task that the call becomes at the time `now`.
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

    /// The reply with the task's handle or ticket, to the waiting request with this id.
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

    /// The reply with the end of the call to the client's request with this id: the server's response,
    /// unchanged except for the id, or an error of the proxy. `None` if the server's last message is not a
    /// response.
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
                        // Copied, because a slice would keep the server's whole message in memory.
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

    /// Removes the session from the known ones after a failed call, because the session may be gone. The next
    /// request is then checked with the server; otherwise a client whose requests are all answered by the
    /// proxy would never learn that its session is gone.
    pub(super) fn forget_presence(&self, shared: &RouteContext) {
        if let Some(session) = self.session {
            shared.sessions.presence.forget(session);
        }
    }

    /// The streams that carry the task's messages to the client.
    pub(super) fn streams(&self, shared: &RouteContext) -> TaskStreams {
        TaskStreams::new(self.session.map(|session| shared.sessions.streams.follow(session)))
    }

    /// Ensures that the session's GET stream is read while the task runs, if the client knows the task.
    /// Returns a handle to wait until the stream is open.
    pub(super) fn read_stream(&self, shared: &RouteContext) -> Option<StreamOpening> {
        let in_flight = self.in_flight.as_ref().filter(|_| self.view == TaskView::Experimental)?;
        Some(in_flight.read_stream(&shared.route.path, &shared.sessions.streams))
    }

    /// The status notification for the client, if the status has changed since the last one (2025-11-25,
    /// *Tasks, Task Status Notification*). `None` for a client with a ticket.
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

/// The bytes of a message of the server, unchanged, on one line.
pub(super) fn verbatim(frame: &Frame) -> Bytes {
    to_single_line(frame.as_bytes().clone())
}

/// Registers an input request that is sent on the stream of the call itself, because the client's response
/// may arrive after the call has become a task.
pub(super) fn register_inline(
    shared: &Arc<RouteContext>,
    session: Option<SessionKey>,
    id: &RequestId,
) -> InlineRequest {
    let questions = &shared.sessions.input_requests;
    InlineRequest { relayed: session.map(|session| questions.register(session, id, ResponseOwner::Call)) }
}

/// The input request as the task record stores it; `None` if the revision does not define its method.
pub(super) fn recordable_request(frame: &Frame) -> Option<Bytes> {
    let Kind::Request { method, params, .. } = frame.kind() else { return None };
    let kind = InputKind::of(method)?;
    Some(InputRequest::new(kind, params.as_deref()).as_bytes().clone())
}

/// The JSON-RPC message that sends an input request in its task. `knows` is whether the client knows the
/// task; then the message names the task.
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
