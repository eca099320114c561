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
    bridge::{offer, ticket::TicketOptions},
    dialect::legacy,
    policy::ToolPolicy,
    protocol::{
        ErrorObject, Frame, InputKind, InputRequest, Kind, Method, RequestId, Timestamp,
        frame::to_single_line, splice::BytesPatch, status_message,
    },
    proxy::{
        AccessSummary, CallReply,
        reply::{CallEnd, call_error_outcome, record_call_error},
        route_context::RouteContext,
        session::{ProxyCallGuard, ResponseOwner, SessionKey, StreamOpening},
        tickets,
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
    pub(in crate::proxy) result_format: TaskResultFormat,
    /// The options of the client's ticket; `None` if the client gets a task handle instead.
    pub(in crate::proxy) ticket_options: Option<TicketOptions>,
    /// The latest progress message, which the ticket's text contains.
    pub(in crate::proxy) progress: Option<String>,
    /// Signals to the upstream that the call has become a task.
    pub(in crate::proxy) deferral: Deferral,
    /// Whether the client sends credentials, without which the next process cannot resume the call.
    pub(in crate::proxy) needs_credentials: bool,
    /// The registration of the call in the client's session. Dropped after the upstream events of the call.
    pub(in crate::proxy) in_flight: Option<ProxyCallGuard>,
    /// For a task whose call is not sent yet: signals that the session's GET stream is open.
    pub(in crate::proxy) stream_opening: Option<StreamOpening>,
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
    pub(super) fn can_receive(&self, shared: &RouteContext, server_request: &ServerRequest) -> bool {
        let ServerRequest::Native(frame) = server_request else { return true };
        let Kind::Request { method, params, .. } = frame.kind() else { return true };
        let ticket_session = self.session.filter(|_| self.view == TaskView::Ticket);
        let declaration =
            ticket_session.and_then(|session| shared.sessions.ticket_holders.client_declaration(session));
        declaration.is_none_or(|client| client.can_receive(method, params.as_deref()))
    }

    /// The message to a client that waits for the call itself, for this message of the server. `None` for
    /// progress that the client did not request.
    pub(super) fn inline_message(&self, frame: &Frame) -> Option<Bytes> {
        let is_progress = matches!(frame.kind(), Kind::Notification { method: Method::Progress, .. });
        (!is_progress || self.wants_progress).then(|| unchanged_message(frame))
    }

    /// The message to the client of a task, for this notification of the server. `None` for progress that the
    /// client did not request.
    pub(super) fn task_message(&self, frame: &Frame, task: &TaskId) -> Option<Bytes> {
        let Kind::Notification { method, .. } = frame.kind() else { return None };
        if self.view == TaskView::Ticket {
            // Progress is dropped: its token belonged to a request that has been answered.
            return status_message::from_progress(frame).is_none().then(|| unchanged_message(frame));
        }
        if status_message::from_progress(frame).is_some() && !self.wants_progress {
            return None;
        }
        Some(match method {
            // These notifications are about the server, not about the call, and do not name the task.
            Method::ToolsListChanged
            | Method::PromptsListChanged
            | Method::ResourcesListChanged
            | Method::ResourceUpdated => unchanged_message(frame),
            _ => offer::with_related_task(frame, task.as_str(), None),
        })
    }

    /// The record of the task that the call becomes at the time `now`.
    pub(super) fn task_record(
        &self,
        id: TaskId,
        shared: &RouteContext,
        policy: &ToolPolicy,
        now: Timestamp,
    ) -> Record {
        let max_ttl = shared.route.legacy_tasks.max_ttl;
        let retention = self.ttl.map_or(policy.retention, |ttl| ttl.min(max_ttl));
        let mut record = Record::new(id, self.owner.clone(), self.tool.clone(), retention, now);
        (record.view, record.is_translated, record.message) = (self.view, false, self.progress.clone());
        record.elapsed_before_task = shared.clock.now().saturating_duration_since(self.began);
        record
    }

    /// The `CreateTaskResult` of a new task.
    pub(super) fn task_result(
        shared: &RouteContext,
        record: &Record,
        result_format: TaskResultFormat,
    ) -> Vec<u8> {
        let immediate = shared.route.legacy_tasks.immediate_response.as_deref();
        let (now, options) = (shared.clock.timestamp(), shared.legacy_view_options());
        experimental::create_task_result(record, now, options, result_format, immediate)
    }

    /// The reply with the task's handle or ticket, to the waiting request with this id.
    pub(super) fn handle_reply(&self, shared: &RouteContext, id: &RequestId, record: &Record) -> CallReply {
        let result = match &self.ticket_options {
            Some(ticket_options) => {
                tickets::running_result(shared, record, ticket_options).to_string().into_bytes()
            }
            None => Self::task_result(shared, record, self.result_format),
        };
        let body = legacy::success_response(id, &result);
        let mut reply = CallReply::new(StatusCode::OK, body, RequestOutcome::Task);
        reply.summary.task = Some(record.id.clone());
        reply
    }

    /// The reply with the end of the call to the client's request with this id: the server's response,
    /// unchanged except for the id, or an error of the proxy. `None` if the server's last message is not a
    /// response.
    pub(super) fn reply(&self, shared: &RouteContext, id: &RequestId, end: &CallEnd) -> Option<CallReply> {
        let with_client_id = |frame: &Frame, server_id: &RequestId| {
            let mut patch = BytesPatch::new(frame.as_bytes().clone());
            patch.replace(server_id.as_bytes(), id.as_bytes().clone());
            patch.apply()
        };
        let refusal = |error: &ErrorObject| legacy::error_responses(std::slice::from_ref(id), error);
        let (body, summary) = match end {
            CallEnd::Response(response) => match response.frame().kind() {
                Kind::Success { id, .. } => (with_client_id(response.frame(), id), AccessSummary::default()),
                Kind::Failure { id: Some(id), .. } => {
                    (with_client_id(response.frame(), id), AccessSummary::new(RequestOutcome::ServerError))
                }
                Kind::Failure { id: None, error } => (
                    refusal(&ErrorObject::from_raw(error.clone())),
                    AccessSummary::new(RequestOutcome::ServerError),
                ),
                Kind::Request { .. } | Kind::Notification { .. } => return None,
            },
            CallEnd::Lost(call_error) => {
                let error = record_call_error(call_error);
                (refusal(&error), AccessSummary::failed(call_error_outcome(call_error), &error))
            }
            CallEnd::Refused(error, outcome) => (refusal(error), AccessSummary::failed(*outcome, error)),
        };
        let upstream_time = shared.clock.now().saturating_duration_since(self.began);
        let mut reply = CallReply::new(StatusCode::OK, to_single_line(body), summary.outcome);
        reply.summary = AccessSummary { upstream_time, ..summary };
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
                    failure_event(&record_call_error(&CallError::Invalid("it is not a response".to_owned())))
                }
            },
            CallEnd::Lost(call_error) => failure_event(&record_call_error(call_error)),
            CallEnd::Refused(error, _) => failure_event(error),
        };
        if matches!(event, task::TaskEvent::Failed { .. }) {
            self.remove_presence(shared);
        }
        event
    }

    /// Removes the session from the known ones after a failed call, because the session may be gone. The next
    /// request is then checked with the server; otherwise a client whose requests are all answered by the
    /// proxy would never learn that its session is gone.
    pub(super) fn remove_presence(&self, shared: &RouteContext) {
        if let Some(session) = self.session {
            shared.sessions.presence.remove(session);
        }
    }

    /// The streams that carry the task's messages to the client.
    pub(super) fn follow_streams(&self, shared: &RouteContext) -> TaskStreams {
        TaskStreams::new(self.session.map(|session| shared.sessions.streams.follow(session)))
    }

    /// Ensures that the session's GET stream is read while the task runs, if the client knows the task.
    /// Returns a handle to wait until the stream is open.
    pub(super) fn ensure_stream_is_read(&self, shared: &RouteContext) -> Option<StreamOpening> {
        let in_flight = self.in_flight.as_ref().filter(|_| self.view == TaskView::Experimental)?;
        Some(in_flight.ensure_stream_is_read(&shared.route.path, &shared.sessions.streams))
    }

    /// The status notification for the client, if the status has changed since the last one (2025-11-25,
    /// *Tasks, Task Status Notification*). `None` for a client with a ticket.
    pub(super) fn status_notification(&mut self, shared: &RouteContext, task: &TaskId) -> Option<Bytes> {
        let record = shared.ledger.last_stored(task).filter(|record| record.view != TaskView::Ticket)?;
        let options = shared.legacy_view_options();
        let status = experimental::task_status(&record, options.tool_errors);
        if std::mem::replace(&mut self.last_status, status) == status {
            return None;
        }
        let shown = experimental::task_object(&record, shared.clock.timestamp(), options);
        Some(legacy::notification(&Method::TaskStatus, &shown))
    }
}

/// The bytes of a message of the server, unchanged, on one line.
pub(super) fn unchanged_message(frame: &Frame) -> Bytes {
    to_single_line(frame.as_bytes().clone())
}

/// Registers an input request that is sent on the stream of the call itself, because the client's response
/// may arrive after the call has become a task.
pub(super) fn register_inline(
    shared: &Arc<RouteContext>,
    session: Option<SessionKey>,
    id: &RequestId,
) -> InlineRequest {
    let input_requests = &shared.sessions.input_requests;
    InlineRequest {
        relayed: session.map(|session| input_requests.register(session, id, ResponseOwner::Call)),
    }
}

/// The input request as the task record stores it; `None` if the revision does not define its method.
pub(super) fn recordable_request(frame: &Frame) -> Option<Bytes> {
    let Kind::Request { method, params, .. } = frame.kind() else { return None };
    let kind = InputKind::from_method(method)?;
    Some(InputRequest::new(kind, params.as_deref()).as_bytes().clone())
}

/// The JSON-RPC message that sends an input request in its task. `knows_task` is whether the client knows_task the
/// task; then the message names the task.
pub(super) fn task_request(open: &OpenRequest, task: &TaskId, knows_task: bool) -> Bytes {
    let id = offer::input_request_id(task, &open.key);
    let task_id = knows_task.then(|| task.as_str());
    match &open.request {
        ServerRequest::Canonical(request) => offer::input_request_message(request, &id, task_id),
        ServerRequest::Native(frame) => match task_id {
            Some(named) => offer::with_related_task(frame, named, Some(&id)),
            None => offer::with_id(frame, &id),
        },
    }
}
