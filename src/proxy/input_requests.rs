//! Whether a server's question can be put to a client, and how a client's retry finds its call.

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

/// What a server is told that asks a client what it did not declare.
pub(super) const NOT_DECLARED: &str = "the client did not declare that it can be asked this";

/// Whether a call is made for the first time, by what came along besides its parameters.
pub(super) enum CallAttempt {
    /// A call of its own, perhaps with answers to what it may be asked.
    Fresh(InputResponses),
    /// A client coming back to a call that is parked.
    Retry(ParkedCall, InputResponses),
    /// A client that has been where the server sent it: the call is to be made again.
    Repeat,
}

/// A call that waits for its client's answers.
pub(super) struct ParkedCall {
    id: TaskId,
    /// It was parked by this process; else by one that holds it no more.
    is_local: bool,
}

/// What a client would have had to declare to be asked all of these.
pub(super) fn missing_capability<'a>(
    capabilities: &Capabilities,
    mut asked: impl Iterator<Item = &'a InputRequest>,
) -> Option<Value> {
    asked.find_map(|request| capabilities.missing_for(&request.kind().method(), request.params().as_ref()))
}

/// Ties a retry to one request of one caller on one route.
pub(super) fn binding(shared: &RouteContext, caller: &Caller, call: &Call) -> RequestBinding {
    let target = call.target.as_deref();
    RequestBinding::of(caller.principal, &shared.route.path, &call.method, target, call.params.as_ref())
}

/// Reads what a client sent with its call: a state of ours, answers, both or neither.
///
/// # Errors
/// The refusal: `-32602` with words that say which of them is wrong.
pub(super) fn read_attempt(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
) -> Result<CallAttempt, Box<CallReply>> {
    let wrong = |error: &dyn std::fmt::Display| Box::new(reply::invalid_params(call, error.to_string()));
    let answers =
        InputResponses::read(call.params.as_ref()).map_err(|error| wrong(&error))?.unwrap_or_default();
    let Some(state) = request_state(call.params.as_ref()).map_err(|error| wrong(&error))? else {
        return Ok(CallAttempt::Fresh(answers));
    };
    let binding = || binding(shared, caller, call);
    let RequestState { target: resumes, node, .. } =
        shared.keyring.open(&state, binding, shared.clock.timestamp()).map_err(|error| wrong(&error))?;
    match resumes {
        RetryTarget::Parked(id) => {
            Ok(CallAttempt::Retry(ParkedCall { id, is_local: node == shared.call_registry.node }, answers))
        }
        RetryTarget::Restart if answers.iter().any(|(_, answer)| is_declined(answer)) => {
            Err(wrong(&"the server asked for an address to be visited first, and that was declined"))
        }
        // Also where answers are missing. They would tell us nothing: whether the user has been there
        // only the server knows, and one that is not satisfied asks again, with addresses that are
        // still good (2026-07-28, *Elicitation, URL Mode*; *Multi Round-Trip Requests, Error Handling*).
        RetryTarget::Restart => Ok(CallAttempt::Repeat),
    }
}

fn is_declined(answer: &Bytes) -> bool {
    JsonObject::read(answer)
        .ok()
        .and_then(|answer| answer.string("action"))
        .is_some_and(|action| action != "accept")
}

/// Brings a client back to its parked call; what comes of it arrives on the returned channel.
///
/// # Errors
/// What there is to say where the call waits for nobody any more.
pub(super) async fn resume_parked(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
    ParkedCall { id, is_local: is_ours }: &ParkedCall,
    answers: InputResponses,
    defer_after: Option<Duration>,
) -> Result<mpsc::Receiver<ReplyItem>, Box<CallReply>> {
    let (items, received) = mpsc::channel(8);
    let declares_tasks = caller.capabilities.declares_tasks();
    let capabilities = Arc::clone(&caller.capabilities);
    let waiter = CallWaiter {
        target: ReplyTarget::Canonical { call: Box::new(call.without_bytes()), capabilities },
        items,
    };
    let retry = RetryRequest { waiter, answers: answers.detached(), defer_after };
    match shared.call_registry.attach(id, LocalRequest::Retry(Box::new(retry))) {
        Ok(true) => return Ok(received),
        Ok(false) => {}
        Err(MailboxFull) => return Err(Box::new(queue_full_reply(call))),
    }
    // Only what a task's handle says of its server depends on it.
    let server = shared.upstream.describe(&CallerIdentity::of(caller)).await;
    let server = server.unwrap_or_else(|_| Arc::new(UpstreamDescription::unknown()));
    Err(Box::new(late_retry_reply(shared, call, &server, (id, *is_ours), declares_tasks).await))
}

/// The answer to a retry whose call waits for nobody any more. If it has become a task since, that
/// is what the client is given: a client that were told to make its call anew would have it twice.
pub(super) async fn late_retry_reply(
    shared: &RouteContext,
    call: &Call,
    server: &UpstreamDescription,
    (id, is_ours): (&TaskId, bool),
    declares_tasks: bool,
) -> CallReply {
    let now = shared.clock.timestamp();
    let Ok(found) = shared.ledger.load(id).await else {
        return reply::store_failed(call);
    };
    match found.filter(|record| !record.is_expired(now)) {
        Some(record) if declares_tasks => {
            reply::handle(call, &created(shared, &record, server), id.clone(), None)
        }
        Some(_) => tasks_undeclared_reply(call),
        None => ended_call_reply(call, is_ours),
    }
}

/// The refusal of a retry where as many requests wait for the call as may.
pub(super) fn queue_full_reply(call: &Call) -> CallReply {
    let error = ErrorObject::new(
        code::BUSY,
        "too many requests wait for the call that `requestState` belongs to; try again once they are answered",
    );
    reply::refuse(call, StatusCode::OK, &error)
}

/// A task as its client first hears of it.
pub(super) fn created(shared: &RouteContext, record: &Record, server: &UpstreamDescription) -> Vec<u8> {
    let about = server_info_meta(record.server_info.as_ref().unwrap_or(&server.server_info));
    view::extension::created(
        record,
        shared.clock.timestamp(),
        shared.ledger.quotas().poll_interval,
        Some(&about),
    )
}

/// The refusal of a retry that cannot be given the task its call has become.
pub(super) fn tasks_undeclared_reply(call: &Call) -> CallReply {
    let error = ErrorObject::missing_capability(
        "the call that `requestState` belongs to has become a task; send the same again, declaring the tasks extension, to be given it",
        &plan::tasks(),
    );
    reply::refuse(call, StatusCode::BAD_REQUEST, &error)
}

/// The refusal of a retry whose call is no more. It was sent, and is known no longer: a while after it ended, or
/// as its process is gone. It may well have run, so nobody is told simply to make it again.
fn ended_call_reply(call: &Call, is_ours: bool) -> CallReply {
    if is_ours {
        return reply::invalid_params(
            call,
            "the call that `requestState` belongs to has ended; it may have run, so make it anew, without `requestState`, only if it may run twice",
        );
    }
    let error = ErrorObject::new(
        code::OUTCOME_UNKNOWN,
        "the call that `requestState` belongs to is not held by this process, and its own may be gone; it may have run, and its outcome is unknown: make it anew, without `requestState`, only if it may run twice",
    );
    reply::refuse(call, StatusCode::OK, &error)
}

/// What a call is answered with whose server wants addresses visited first: those, and a state with
/// which the call is made again. `Missing` for any other end. `binding` is asked for only then: it costs
/// a digest.
pub(super) fn url_input_required(
    shared: &RouteContext,
    caller: &Caller,
    call: &Call,
    server: &UpstreamDescription,
    binding: impl FnOnce() -> RequestBinding,
    word: &CallEnd,
) -> Option<CallReply> {
    let CallEnd::Response(response) = word else { return None };
    let questions = response.required_urls()?;
    if let Some(missing) =
        missing_capability(&caller.capabilities, questions.iter().map(|(_, question)| question))
    {
        return Some(reply::refuse(call, StatusCode::BAD_REQUEST, &elicit::input_refused(&missing)));
    }
    let state = RequestState {
        target: RetryTarget::Restart,
        node: shared.call_registry.node,
        round: 1,
        expires: shared.clock.timestamp() + shared.route.questions.park,
        binding: binding(),
    };
    let sealed = shared.keyring.seal(&state, random());
    let questions = questions.iter().map(|(key, question)| (key.as_str(), question));
    Some(reply::input_required(call, &elicit::input_required(questions, &sealed, &server.server_info)))
}
