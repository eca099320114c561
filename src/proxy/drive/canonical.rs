//! A driven call in the words of 2026-07-28: of a client of that revision, in front of a server of another.

use super::{DetachReason, open_requests::OpenRequest};
use crate::{
    bridge::{
        deny, elicit,
        request_state::{RequestBinding, RequestState, RetryTarget},
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
        input_requests::{self, NOT_DECLARED, missing_capability},
        reply::{self, CallEnd, CallVerdict},
        route_context::RouteContext,
        tickets::TicketOptions,
    },
    runtime::random,
    task::{self, Record, TaskId, TaskView},
    telemetry::{Limit, RequestOutcome},
    upstream::{
        CallError, CallerIdentity, Deferral, PendingServerRequest, UpstreamDescription, UpstreamEvent,
    },
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};
use tokio::sync::oneshot;

/// What is known of such a call.
pub(super) struct CanonicalForm {
    /// Once it is held, without its bytes: what is left to know of it after it has been sent.
    pub(super) call: Arc<Call>,
    pub(super) caller: Arc<Caller>,
    pub(super) server: ServerCell,
    /// Ties a retry to this very request of this caller; there once the call is held.
    pub(super) binding: Option<RequestBinding>,
    /// What the server asked and could not have, if anything.
    pub(super) refused: Option<Box<Value>>,
    /// Answers that came with the call itself, before anything was asked.
    pub(super) supplied: InputResponses,
    /// Tells the upstream when the call has become a task, where it may.
    pub(super) deferral: Option<Deferral>,
    /// How its client is given a ticket, if that is how.
    pub(super) ticketing: Option<Box<TicketOptions>>,
    /// What was last said of the progress, where the ticket is to say it.
    pub(super) progress: Option<Box<str>>,
    pub(super) began: Instant,
}

/// The server of a call, once it has spoken.
#[derive(Clone, Default)]
pub(super) struct ServerCell(Arc<OnceLock<Arc<UpstreamDescription>>>);

// === impl Canonical ===

impl CanonicalForm {
    /// From here on the call is held by a runtime task of its own. Its bytes may be megabytes, and have been
    /// sent.
    pub(super) fn detach(&mut self, shared: &RouteContext) {
        self.binding = Some(input_requests::binding(shared, &self.caller, &self.call));
        self.call = Arc::new(self.call.without_bytes());
        self.caller = Arc::new(Caller::clone(&self.caller));
    }

    /// What the server asks where the client is polled in place: for that it must be held, unless there is
    /// nobody who can be asked.
    pub(super) fn detach_reason(&mut self, route: &str, event: UpstreamEvent) -> Option<DetachReason> {
        match event {
            UpstreamEvent::ServerRequest(question)
                if !self.caller.capabilities.can_receive_input_requests() =>
            {
                self.accept_request(route, question);
                None
            }
            asked => Some(DetachReason::InputRequest(asked)),
        }
    }

    /// The question if it can be put to this client. What the client did not declare is refused, and
    /// remembered: a call that fails after that failed for it.
    pub(super) fn accept_request(
        &mut self,
        route: &str,
        question: PendingServerRequest,
    ) -> Option<PendingServerRequest> {
        let request = question.request.canonical();
        let Some(missing) = missing_capability(&self.caller.capabilities, request.into_iter()) else {
            return Some(question);
        };
        self.refused = Some(Box::new(missing));
        question.refuse(route, code::METHOD_NOT_FOUND, NOT_DECLARED);
        None
    }

    /// Whether the client declared that it can be asked all of this; else the end of a call that cannot go
    /// on without.
    pub(super) fn end_if_undeclared<'a>(
        &self,
        asked: impl Iterator<Item = &'a InputRequest>,
    ) -> Option<CallEnd> {
        let missing = missing_capability(&self.caller.capabilities, asked)?;
        Some(CallEnd::Refused(elicit::input_refused(&missing), RequestOutcome::Refused))
    }

    pub(super) fn record(
        &self,
        id: TaskId,
        shared: &RouteContext,
        policy: &ToolPolicy,
        now: Timestamp,
    ) -> Record {
        let tool = self.call.target.clone().unwrap_or_default();
        let record = Record::new(id, shared.task_owner(&self.caller), tool, policy.retention, now);
        let waited = shared.clock.now().saturating_duration_since(self.began);
        Record { view: self.view(), waited, message: self.progress.as_deref().map(str::to_owned), ..record }
    }

    /// What the server tells on the way.
    pub(super) fn note_progress(&mut self, frame: &Frame) {
        if self.ticketing.is_some()
            && let Some(said) = status_message::of_progress(frame)
        {
            self.progress = Some(said.into());
        }
    }

    /// How the task is shown that it may become.
    pub(super) fn view(&self) -> TaskView {
        if self.ticketing.is_some() { TaskView::Ticket } else { TaskView::Extension }
    }

    /// The response to `call`, which is this one or a client's coming back to it.
    pub(super) fn reply(&self, shared: &RouteContext, call: &Call, word: CallEnd) -> CallReply {
        let (server, binding) = (self.server.description(), || self.binding(shared));
        if is_refused_as_unknown(&call.method, &word) && !shared.declares(&call.method, &server) {
            return reply::not_served(call);
        }
        let again = input_requests::url_input_required(shared, &self.caller, call, &server, binding, &word);
        let mut reply =
            again.unwrap_or_else(|| reply::to_client(call, &shared.route, word, self.refused.as_deref()));
        if call.method == Method::ToolsList && shared.route.denies_tools() {
            let answer = Frame::parse(reply.body.clone()).ok();
            let left = answer.and_then(|answer| deny::hide(&answer, |tool| shared.route.denies(tool)));
            reply.body = left.unwrap_or(reply.body);
        }
        reply
    }

    fn binding(&self, shared: &RouteContext) -> RequestBinding {
        self.binding.unwrap_or_else(|| input_requests::binding(shared, &self.caller, &self.call))
    }

    /// The result that sends the client away with these questions.
    pub(super) fn input_required<'a>(
        &self,
        shared: &RouteContext,
        id: &TaskId,
        round: u32,
        open: impl Iterator<Item = &'a OpenRequest>,
    ) -> Vec<u8> {
        let state = RequestState {
            target: RetryTarget::Parked(id.clone()),
            node: shared.call_registry.node,
            round,
            // A little longer than the call is parked, so that a late client hears that it is gone.
            expires: shared.clock.timestamp() + shared.route.questions.park * 2,
            binding: self.binding(shared),
        };
        let sealed = shared.keyring.seal(&state, random());
        let questions: Vec<_> = open.filter_map(|open| Some((open.key.as_str(), request(open)?))).collect();
        elicit::input_required(questions, &sealed, &self.server.description().server_info)
    }

    /// The call has become a task: it is shown as its client first hears of it.
    pub(super) fn create_result(&mut self, shared: &RouteContext, record: &Record) -> Vec<u8> {
        if let Some(deferral) = &self.deferral {
            shared.upstream.mark_deferred(&CallerIdentity::of(&self.caller), deferral);
        }
        self.handle_result(shared, record)
    }

    /// The task as its client first sees it.
    pub(super) fn handle_result(&self, shared: &RouteContext, record: &Record) -> Vec<u8> {
        // A task that was made before its session was open: another may have been.
        let server = if self.server.is_known() { self.server.description() } else { shared.server() };
        match &self.ticketing {
            Some(ticketing) => modern::complete(ticketing.running(shared, record), &server.server_info),
            None => input_requests::created(shared, record, &server),
        }
    }

    /// What the call came to, as the task keeps it.
    pub(super) fn end_event(&self, shared: &RouteContext, word: CallEnd) -> task::TaskEvent {
        let refused = self.refused.as_deref();
        match reply::verdict(&self.call, &shared.route, word, refused) {
            CallVerdict::Result(result) => {
                result_event(result.len(), shared.ledger.quotas().stored_result_bytes, || result)
            }
            CallVerdict::Error(error, _) => failure_event(&error),
        }
    }
}

/// A result of this size as the task keeps it, if it is not too large.
pub(super) fn result_event(size: usize, limit: usize, result: impl FnOnce() -> Bytes) -> task::TaskEvent {
    if size <= limit {
        return task::TaskEvent::Returned { result: result() };
    }
    Limit::StoredResultBytes.record_hit();
    let why =
        format!("the result is {size} bytes; the proxy keeps at most {limit} (limits.stored_result_bytes)");
    failure_event(&ErrorObject::new(code::RESULT_TOO_LARGE, why))
}

pub(super) fn failure_event(error: &ErrorObject) -> task::TaskEvent {
    task::TaskEvent::Failed { error: error.as_bytes().clone(), message: Some(error.message()) }
}

/// Answers a client with questions, if it can be asked them.
pub(super) fn input_required_reply<'a>(
    request: &ReplyTarget,
    open: impl Iterator<Item = &'a OpenRequest>,
    result: &[u8],
) -> Option<CallReply> {
    let ReplyTarget::Canonical { call, capabilities } = request else { return None };
    Some(match missing_capability(capabilities, open.filter_map(self::request)) {
        None => reply::input_required(call, result),
        // 2026-07-28, *MRTR, Server Requirements*: nothing that was not declared.
        Some(missing) => reply::refuse(call, StatusCode::BAD_REQUEST, &elicit::input_refused(&missing)),
    })
}

/// Answers a client with the handle of a task, if it can be given one; and how it is heard that it has it.
pub(super) fn handle_reply(
    call: &Call,
    capabilities: &Capabilities,
    created: &[u8],
    id: &TaskId,
    is_ticket: bool,
) -> (CallReply, Option<oneshot::Receiver<()>>) {
    if !is_ticket && !capabilities.declares_tasks() {
        return (input_requests::tasks_undeclared_reply(call), None);
    }
    let (commit, committed) = DeliveryCommit::channel();
    (reply::handle(call, created, id.clone(), Some(commit)), Some(committed))
}

fn request(open: &OpenRequest) -> Option<&InputRequest> {
    open.asked.canonical()
}

/// Whether the server refuses a method that it did not declare as one that it does not have (2026-07-28, *Discovery*).
/// A server that did not declare a list and answers with any error has none; of a call only an error about its method
/// says so.
fn is_refused_as_unknown(method: &Method, word: &CallEnd) -> bool {
    match word {
        CallEnd::Response(response) => match ErrorObject::of(response.frame()) {
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

/// Whether an error of whatever code says that a method is not there.
fn is_about_method(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let absent = ["not found", "unknown", "not supported", "unsupported", "not implemented"];
    message.contains("method") && absent.iter().any(|absent| message.contains(absent))
}

// === impl Server ===

impl ServerCell {
    /// What the server said of itself; a stand-in until it has.
    pub(super) fn description(&self) -> Arc<UpstreamDescription> {
        self.0.get().map_or_else(|| Arc::new(UpstreamDescription::unknown()), Arc::clone)
    }

    pub(super) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    pub(super) fn set(&self, description: Arc<UpstreamDescription>) {
        // Once: a call has one server.
        let _ = self.0.set(description);
    }
}
