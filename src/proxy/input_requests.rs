//! Checks of input requests against a client's capabilities, and retries of parked calls.

use super::{
    CallReply, ReplyItem,
    call_registry::{CallWaiter, LocalRequest, MailboxFull, ReplyTarget, RetryRequest},
    reply::{self, CallEnd},
    route_context::RouteContext,
};
use crate::{
    bridge::{
        elicit, plan,
        request_state::{RequestBinding, RequestState, RetryTarget},
    },
    dialect::{Call, Caller, modern::server_info_meta},
    protocol::{
        Capabilities, ErrorObject, code,
        input::{InputRequest, InputResponses, request_state},
        splice::JsonObject,
    },
    runtime::random,
    task::{Record, TaskId, view},
    upstream::{CallerIdentity, UpstreamDescription},
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// The text of the error that refuses a server's input request for which the client lacks the capability.
pub(super) const CAPABILITY_NOT_DECLARED: &str =
    "the client did not declare the capability for this input request";

/// Whether a call is a first attempt or a retry, as its `requestState` and input responses say.
pub(super) enum CallAttempt {
    /// A new call, perhaps with input responses given in advance.
    Fresh(InputResponses),
    /// A retry of a parked call.
    Retry(ParkedCall, InputResponses),
    /// A retry after URL elicitation: the call is made again at the server, because no call is parked.
    Repeat,
}

/// The parked call that a client's `requestState` names.
pub(super) struct ParkedCall {
    id: TaskId,
    /// Whether this process parked the call. If not, another process did, and this process cannot know
    /// whether the call has run.
    is_local: bool,
}

/// The first capability that a client lacks for these input requests, as the `data` of the error; `None` if
/// the client has declared all.
pub(super) fn missing_capability<'a>(
    capabilities: &Capabilities,
    mut requests: impl Iterator<Item = &'a InputRequest>,
) -> Option<Value> {
    requests.find_map(|request| capabilities.missing_for(&request.kind().method(), request.params().as_ref()))
}

/// Computes the binding of a `requestState`: a digest of the caller, the route and the request, so that the
/// state is valid for retries of this request only.
pub(super) fn request_binding(shared: &RouteContext, caller: &Caller, call: &Call) -> RequestBinding {
    let target = call.target.as_deref();
    RequestBinding::for_request(
        caller.principal,
        &shared.route.path,
        &call.method,
        target,
        call.params.as_ref(),
    )
}

/// Determines whether a call is a first attempt or a retry, from its `requestState` and its input responses,
/// which may both be absent.
///
/// # Errors
/// The refusal, an error `-32602` that says whether the state or a response is invalid.
pub(super) fn read_attempt(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
) -> Result<CallAttempt, Box<CallReply>> {
    let invalid = |error: &dyn std::fmt::Display| Box::new(reply::invalid_params(call, error.to_string()));
    let responses =
        InputResponses::read(call.params.as_ref()).map_err(|error| invalid(&error))?.unwrap_or_default();
    let Some(state) = request_state(call.params.as_ref()).map_err(|error| invalid(&error))? else {
        return Ok(CallAttempt::Fresh(responses));
    };
    let binding = || request_binding(shared, caller, call);
    let RequestState { target, node, .. } =
        shared.keyring.open(&state, binding, shared.clock.timestamp()).map_err(|error| invalid(&error))?;
    match target {
        RetryTarget::Parked(id) => Ok(CallAttempt::Retry(
            ParkedCall { id, is_local: node == shared.ledger.call_registry.node },
            responses,
        )),
        RetryTarget::Restart if responses.iter().any(|(_, answer)| is_declined(answer)) => {
            Err(invalid(&"the server requires a visit to an address first, and the client declined it"))
        }
        // Also without responses, which carry no information: only the server knows whether the user has
        // visited the address, and an unsatisfied server returns the addresses again, which are still valid
        // (2026-07-28, *Elicitation, URL Mode*; *Multi Round-Trip Requests, Error Handling*).
        RetryTarget::Restart => Ok(CallAttempt::Repeat),
    }
}

/// Whether an input response declines or cancels the request.
fn is_declined(answer: &Bytes) -> bool {
    JsonObject::read(answer)
        .ok()
        .and_then(|answer| answer.string("action"))
        .is_some_and(|action| action != "accept")
}

/// Attaches a retry to its parked call. The call's messages for the client arrive on the returned channel.
///
/// # Errors
/// The reply, if the call no longer waits for a retry.
pub(super) async fn resume_parked(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
    ParkedCall { id, is_local }: &ParkedCall,
    responses: InputResponses,
    defer_after: Option<Duration>,
) -> Result<mpsc::Receiver<ReplyItem>, Box<CallReply>> {
    let (items, received) = mpsc::channel(8);
    let declares_tasks = caller.capabilities.declares_tasks();
    let capabilities = Arc::clone(&caller.capabilities);
    let waiter = CallWaiter {
        target: ReplyTarget::Canonical { call: Box::new(call.without_bytes()), capabilities },
        items,
    };
    let retry = RetryRequest { waiter, responses: responses.detached(), defer_after };
    match shared.ledger.call_registry.attach(id, LocalRequest::Retry(Box::new(retry))) {
        Ok(true) => return Ok(received),
        Ok(false) => {}
        Err(MailboxFull) => return Err(Box::new(queue_full_reply(call))),
    }
    // Needed only for the server info in a task's handle.
    let server = shared.upstream.describe(&CallerIdentity::from_caller(caller)).await;
    let server = server.unwrap_or_else(|_| Arc::new(UpstreamDescription::unknown()));
    Err(Box::new(late_retry_reply(shared, call, &server, (id, *is_local), declares_tasks).await))
}

/// The reply to a retry whose call no longer waits. If the call has become a task, the client gets the task:
/// a new call would run twice.
pub(super) async fn late_retry_reply(
    shared: &RouteContext,
    call: &Call,
    server: &UpstreamDescription,
    (id, is_local): (&TaskId, bool),
    declares_tasks: bool,
) -> CallReply {
    let now = shared.clock.timestamp();
    let Ok(found) = shared.ledger.load(id).await else {
        return reply::store_failed_reply(call);
    };
    match found.filter(|record| !record.is_expired(now)) {
        Some(record) if declares_tasks => {
            reply::task_handle_reply(call, &create_task_result(shared, &record, server), id.clone(), None)
        }
        Some(_) => tasks_undeclared_reply(call),
        None => ended_call_reply(call, is_local),
    }
}

/// The refusal of a retry whose call already has the maximum number of waiting requests.
pub(super) fn queue_full_reply(call: &Call) -> CallReply {
    let error = ErrorObject::new(
        code::BUSY,
        "too many requests wait for the call that `requestState` belongs to; try again once they are answered",
    );
    reply::refuse(call, StatusCode::OK, &error)
}

/// The `CreateTaskResult` of a task: the result that gives a client the task's handle.
pub(super) fn create_task_result(
    shared: &RouteContext,
    record: &Record,
    server: &UpstreamDescription,
) -> Vec<u8> {
    let server_meta = server_info_meta(record.server_info.as_ref().unwrap_or(&server.server_info));
    view::extension::create_task_result(
        record,
        shared.clock.timestamp(),
        shared.ledger.quotas().poll_interval,
        Some(&server_meta),
    )
}

/// The refusal of a retry whose call has become a task, by a client without task support.
pub(super) fn tasks_undeclared_reply(call: &Call) -> CallReply {
    let error = ErrorObject::missing_capability(
        "the call that `requestState` belongs to has become a task; repeat the request with the tasks extension declared to get it",
        &plan::tasks_capability(),
    );
    reply::refuse(call, StatusCode::BAD_REQUEST, &error)
}

/// The refusal of a retry whose call is unknown: the call ended a while ago, or its process is gone. The call
/// may have run, so the error warns against a repetition.
fn ended_call_reply(call: &Call, is_local: bool) -> CallReply {
    if is_local {
        return reply::invalid_params(
            call,
            "the call that `requestState` belongs to has ended; it may have run, so make it anew, without `requestState`, only if it may run twice",
        );
    }
    let error = ErrorObject::new(
        code::OUTCOME_UNKNOWN,
        "the call that `requestState` belongs to does not run in this process, and its process may be gone; it may have run, and its outcome is unknown: make it anew, without `requestState`, only if it may run twice",
    );
    reply::refuse(call, StatusCode::OK, &error)
}

/// The reply to a call that the server refused until the user has visited some addresses (URL elicitation):
/// the addresses as input requests, and a `requestState` with which the call is made again. `None` for any
/// other end. `binding` is a function because computing it costs a digest.
pub(super) fn url_input_required(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
    server: &UpstreamDescription,
    binding: impl FnOnce() -> RequestBinding,
    end: &CallEnd,
) -> Option<CallReply> {
    let CallEnd::Response(response) = end else { return None };
    let requests = response.required_urls()?;
    if let Some(missing) =
        missing_capability(&caller.capabilities, requests.iter().map(|(_, request)| request))
    {
        return Some(reply::refuse(call, StatusCode::BAD_REQUEST, &elicit::input_refused_error(&missing)));
    }
    let state = RequestState {
        target: RetryTarget::Restart,
        node: shared.ledger.call_registry.node,
        round: 1,
        expires: shared.clock.timestamp() + shared.route.input_policy.park,
        binding: binding(),
    };
    let request_state = shared.keyring.seal(&state, random());
    let requests = requests.iter().map(|(key, request)| (key.as_str(), request));
    Some(reply::input_required_reply(
        call,
        &elicit::input_required_result(requests, &request_state, &server.server_info),
    ))
}
