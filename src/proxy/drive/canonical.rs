//! A driven call in the form of 2026-07-28: between a client of that revision and a server of another.

use super::{DetachReason, open_requests::OpenRequest};
use crate::{
    bridge::{
        deny, elicit,
        request_state::{RequestBinding, RequestState, RetryTarget},
        ticket::TicketOptions,
    },
    dialect::{Call, Caller, modern},
    policy::ToolPolicy,
    protocol::{
        Capabilities, ErrorObject, Frame, InputRequest, InputResponses, Method, Timestamp, code,
        status_message,
    },
    proxy::{
        CallReply, DeliveryCommit,
        call_registry::ReplyTarget,
        input_requests::{self, CAPABILITY_NOT_DECLARED, missing_capability},
        reply::{self, CallEnd, CallVerdict},
        route_context::RouteContext,
        tickets,
    },
    runtime::random,
    task::{self, Record, TaskId, TaskView},
    telemetry::{Limit, RequestOutcome},
    upstream::{CallError, Deferral, PendingServerRequest, UpstreamDescription, UpstreamEvent},
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};
use tokio::sync::oneshot;

/// The state of a driven call whose messages are in the form of 2026-07-28.
pub(super) struct CanonicalForm {
    /// The client's request. Its bytes are dropped once the call is detached, because they have been sent.
    pub(super) call: Arc<Call>,
    pub(super) caller: Arc<Caller>,
    /// The description of the server, once it is known.
    pub(super) server: ServerCell,
    /// The binding of the call's `requestState`, so that only retries of this request by this caller are
    /// accepted; set once the call is detached.
    pub(super) binding: Option<RequestBinding>,
    /// The capability that an input request required and the client lacks, if any.
    pub(super) missing_capability: Option<Box<Value>>,
    /// Input responses that came with the call itself.
    pub(super) supplied: InputResponses,
    /// Signals to the upstream that the call has become a task.
    pub(super) deferral: Option<Deferral>,
    /// The options of the client's ticket; `None` if the client gets a task handle instead.
    pub(super) ticket_options: Option<Box<TicketOptions>>,
    /// The latest progress message, which the ticket's text contains.
    pub(super) progress: Option<Box<str>>,
    /// When the proxy began to serve the client's request.
    pub(super) began: Instant,
}

/// The description of the call's server, set once it is known. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ServerCell(Arc<OnceLock<Arc<UpstreamDescription>>>);

// === impl CanonicalForm ===

impl CanonicalForm {
    /// Prepares the call for a runtime task of its own: drops the bytes, which have been sent and may be
    /// megabytes.
    pub(super) fn detach(&mut self, shared: &RouteContext) {
        self.binding = Some(input_requests::request_binding(shared, &self.caller, &self.call));
        self.call = Arc::new(self.call.without_bytes());
        self.caller = Arc::new(Caller::clone(&self.caller));
    }

    /// Returns the reason to detach a call that is polled in place, when its server sends an input request.
    /// `None` if the request is refused, because the client has no capability for input requests. `route` is
    /// for the log.
    pub(super) fn detach_reason(&mut self, route: &str, event: UpstreamEvent) -> Option<DetachReason> {
        match event {
            UpstreamEvent::ServerRequest(pending)
                if !self.caller.capabilities.can_receive_input_requests() =>
            {
                self.accept_request(route, pending);
                None
            }
            request_event => Some(DetachReason::InputRequest(request_event)),
        }
    }

    /// Returns the input request if the client has the capability for it. Otherwise refuses the request and
    /// remembers the missing capability, because a later failure of the call is attributed to it. `route` is
    /// for the log.
    pub(super) fn accept_request(
        &mut self,
        route: &str,
        pending: PendingServerRequest,
    ) -> Option<PendingServerRequest> {
        let request = pending.request.canonical();
        let Some(missing) = missing_capability(&self.caller.capabilities, request.into_iter()) else {
            return Some(pending);
        };
        self.missing_capability = Some(Box::new(missing));
        pending.refuse(route, code::METHOD_NOT_FOUND, CAPABILITY_NOT_DECLARED);
        None
    }

    /// The end of the call if its client lacks a capability that these input requests require; `None`
    /// otherwise.
    pub(super) fn end_if_undeclared<'a>(
        &self,
        requests: impl Iterator<Item = &'a InputRequest>,
    ) -> Option<CallEnd> {
        let missing = missing_capability(&self.caller.capabilities, requests)?;
        Some(CallEnd::Refused(elicit::input_refused_error(&missing), RequestOutcome::Refused))
    }

    /// The record of the task that the call becomes at the time `now`.
    pub(super) fn task_record(
        &self,
        id: TaskId,
        shared: &RouteContext,
        policy: &ToolPolicy,
        now: Timestamp,
    ) -> Record {
        let tool = self.call.target.clone().unwrap_or_default();
        let record = Record::new(id, shared.task_owner(&self.caller), tool, policy.retention, now);
        let waited = shared.clock.now().saturating_duration_since(self.began);
        Record {
            view: self.view(),
            elapsed_before_task: waited,
            message: self.progress.as_deref().map(str::to_owned),
            ..record
        }
    }

    /// Remembers the message of a progress notification, if the client gets a ticket.
    pub(super) fn remember_progress(&mut self, frame: &Frame) {
        if self.ticket_options.is_some()
            && let Some(progress) = status_message::from_progress(frame)
        {
            self.progress = Some(progress.into());
        }
    }

    /// The view of the task that the call may become.
    pub(super) fn view(&self) -> TaskView {
        if self.ticket_options.is_some() { TaskView::Ticket } else { TaskView::Extension }
    }

    /// The reply with the end of the call to the request `call`, which made this call or is a retry.
    pub(super) fn reply(&self, shared: &RouteContext, call: &Call, end: CallEnd) -> CallReply {
        let (server, binding) = (self.server.description(), || self.binding(shared));
        if is_refused_as_unknown(&call.method, &end) && !shared.server_declares(&call.method, &server) {
            return reply::method_not_served(call);
        }
        let url_reply =
            input_requests::url_input_required(shared, &self.caller, call, &server, binding, &end);
        let mut reply = url_reply.unwrap_or_else(|| {
            reply::call_end_reply(call, &shared.route, end, self.missing_capability.as_deref())
        });
        if call.method == Method::ToolsList && shared.route.has_denied_tools() {
            let tool_list = Frame::parse(reply.body.clone()).ok();
            let visible_tools = tool_list.and_then(|tool_list| {
                deny::remove_denied_tools(&tool_list, |tool| shared.route.is_denied(tool))
            });
            reply.body = visible_tools.unwrap_or(reply.body);
        }
        reply
    }

    /// The binding of the call's `requestState`; computed unless it is known.
    fn binding(&self, shared: &RouteContext) -> RequestBinding {
        self.binding.unwrap_or_else(|| input_requests::request_binding(shared, &self.caller, &self.call))
    }

    /// The `input_required` result with these input requests. `id` names the parked call in its
    /// `requestState`.
    pub(super) fn input_required<'a>(
        &self,
        shared: &RouteContext,
        id: &TaskId,
        round: u32,
        open: impl Iterator<Item = &'a OpenRequest>,
    ) -> Vec<u8> {
        let state = RequestState {
            target: RetryTarget::Parked(id.clone()),
            node: shared.ledger.call_registry.node,
            round,
            // Longer than the call is parked, so that a late retry gets a precise error.
            expires: shared.clock.timestamp() + shared.route.input_policy.park * 2,
            binding: self.binding(shared),
        };
        let request_state = shared.keyring.seal(&state, random());
        let requests: Vec<_> =
            open.filter_map(|open| Some((open.key.as_str(), canonical_request(open)?))).collect();
        elicit::input_required_result(requests, &request_state, &self.server.description().server_info)
    }

    /// Signals to the upstream that the call has become a task. Returns the result with the task's handle or
    /// ticket.
    pub(super) fn defer_and_create_result(&mut self, shared: &RouteContext, record: &Record) -> Vec<u8> {
        if let Some(deferral) = &self.deferral {
            deferral.mark_deferred();
        }
        self.task_result(shared, record)
    }

    /// The result with the task's handle, or with the ticket.
    pub(super) fn task_result(&self, shared: &RouteContext, record: &Record) -> Vec<u8> {
        // The call may have become a task before its session was open: another session may have described the
        // server.
        let server =
            if self.server.is_known() { self.server.description() } else { shared.server_description() };
        match &self.ticket_options {
            Some(ticket_options) => modern::complete_result(
                tickets::running_result(shared, record, ticket_options),
                &server.server_info,
            ),
            None => input_requests::create_task_result(shared, record, &server),
        }
    }

    /// The event that ends the task with the end of its call.
    pub(super) fn end_event(&self, shared: &RouteContext, end: CallEnd) -> task::TaskEvent {
        let missing = self.missing_capability.as_deref();
        match reply::call_verdict(&self.call, &shared.route, end, missing) {
            CallVerdict::Result(result) => {
                result_event(result.len(), shared.ledger.quotas().stored_result_bytes, || result)
            }
            CallVerdict::Error(error, _) => failure_event(&error),
        }
    }
}

/// The event that ends a task with a result of `size` bytes: a failure if the size exceeds `limit`. `result`
/// is called only if it does not.
pub(super) fn result_event(size: usize, limit: usize, result: impl FnOnce() -> Bytes) -> task::TaskEvent {
    if size <= limit {
        return task::TaskEvent::Returned { result: result() };
    }
    Limit::StoredResultBytes.record_hit();
    let message =
        format!("the result is {size} bytes; the proxy keeps at most {limit} (limits.stored_result_bytes)");
    failure_event(&ErrorObject::new(code::RESULT_TOO_LARGE, message))
}

/// The event that fails a task with this error.
pub(super) fn failure_event(error: &ErrorObject) -> task::TaskEvent {
    task::TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}

/// The reply to a waiting request with the open input requests, or a refusal if its client lacks a
/// capability. `result` is the `input_required` result. `None` for a legacy request.
pub(super) fn input_required_reply<'a>(
    target: &ReplyTarget,
    open: impl Iterator<Item = &'a OpenRequest>,
    result: &[u8],
) -> Option<CallReply> {
    let ReplyTarget::Canonical { call, capabilities } = target else { return None };
    Some(match missing_capability(capabilities, open.filter_map(canonical_request)) {
        None => reply::input_required_reply(call, result),
        // 2026-07-28, *MRTR, Server Requirements*: only requests for declared capabilities.
        Some(missing) => reply::refuse(call, StatusCode::BAD_REQUEST, &elicit::input_refused_error(&missing)),
    })
}

/// The reply with a task handle or ticket, and a receiver that resolves on its delivery. A client without
/// task support gets an error instead, and no receiver.
pub(super) fn handle_reply(
    call: &Call,
    capabilities: &Capabilities,
    task_result: &[u8],
    id: &TaskId,
    is_ticket: bool,
) -> (CallReply, Option<oneshot::Receiver<()>>) {
    if !is_ticket && !capabilities.declares_tasks() {
        return (input_requests::tasks_undeclared_reply(call), None);
    }
    let (commit, committed) = DeliveryCommit::channel();
    (reply::task_handle_reply(call, task_result, id.clone(), Some(commit)), Some(committed))
}

/// The input request in the form of 2026-07-28.
fn canonical_request(open: &OpenRequest) -> Option<&InputRequest> {
    open.request.canonical()
}

/// Whether the server refused the call because it does not know the method (2026-07-28, *Discovery*). For a
/// list method any error counts; for other methods only an error about the method. Called for undeclared
/// methods.
fn is_refused_as_unknown(method: &Method, end: &CallEnd) -> bool {
    match end {
        CallEnd::Response(response) => match ErrorObject::from_message(response.frame()) {
            Some(error) => {
                method.is_list()
                    || error.code() == code::METHOD_NOT_FOUND
                    || is_about_method(&error.message())
            }
            None => false,
        },
        CallEnd::Lost(CallError::Status { status, .. }) => {
            matches!(status.as_u16(), 400 | 404 | 405 | 501) && method.is_list()
        }
        CallEnd::Lost(_) | CallEnd::Refused(..) => false,
    }
}

/// Whether an error says that a method is unknown, whatever its code.
fn is_about_method(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let phrases = ["not found", "unknown", "not supported", "unsupported", "not implemented"];
    message.contains("method") && phrases.iter().any(|phrase| message.contains(phrase))
}

// === impl ServerCell ===

impl ServerCell {
    /// The description of the server; a placeholder until it is known.
    pub(super) fn description(&self) -> Arc<UpstreamDescription> {
        self.0.get().map_or_else(|| Arc::new(UpstreamDescription::unknown()), Arc::clone)
    }

    /// Whether the description is known.
    pub(super) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Sets the description; ignored if it is known already.
    pub(super) fn set_description(&self, description: Arc<UpstreamDescription>) {
        // The first description stays, because a call has one server.
        let _ = self.0.set(description);
    }
}
