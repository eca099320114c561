//! Responses for the tasks extension of 2026-07-28: `tasks/get`, `tasks/update` and `tasks/cancel`.

use super::TaskRefusal;
use crate::{
    bridge::elicit,
    dialect::{Call, Caller, modern::server_info_meta},
    protocol::{
        ErrorObject, Method, code,
        frame::to_single_line,
        input::{InputRequest, InputResponses},
    },
    proxy::{AccessSummary, CallReply, call_registry::MailboxMessage, reply, route_context::RouteContext},
    task::{Canceller, Record, TaskState, view},
    telemetry::RequestOutcome,
};
use bytes::Bytes;
use http::StatusCode;
use std::collections::BTreeMap;

/// The error text for a task that does not exist or belongs to another owner.
const NOT_FOUND: &str = "Task not found";

/// Serves a `tasks/get`, `tasks/update` or `tasks/cancel` request. Every result contains the server info
/// (2026-07-28, *Base Protocol, `_meta`*).
pub(in crate::proxy) async fn serve(shared: &RouteContext, call: &Call, caller: &Caller) -> CallReply {
    // The declaration is checked before the task id (tasks extension, *Protocol Errors*).
    if !caller.capabilities.declares_tasks() {
        return reply::tasks_required_refusal(call);
    }
    let (owner, id) = (shared.task_owner(caller), call.target.as_deref());
    let record = match super::look_up_task(shared, &call.method, id, &owner, caller.principal).await {
        Ok(record) => record,
        Err(refusal) => return refusal_reply(call, refusal),
    };
    let mut reply = match call.method {
        Method::TasksUpdate => update_task(shared, call, &record).await,
        Method::TasksCancel => cancel_task(shared, call, &record).await,
        _ => task_reply(shared, call, &record),
    };
    reply.summary.origin = record.trace.clone();
    reply
}

/// The reply that refuses a request about a task, for the reason `refusal`.
pub(in crate::proxy) fn refusal_reply(call: &Call, refusal: TaskRefusal) -> CallReply {
    let error = refusal.error(NOT_FOUND);
    match refusal {
        TaskRefusal::TooMany(_) => reply::refuse(call, StatusCode::TOO_MANY_REQUESTS, &error),
        TaskRefusal::Unknown | TaskRefusal::Busy => reply::refuse(call, StatusCode::OK, &error),
        TaskRefusal::StoreFull(_) => {
            let summary = AccessSummary::failed(RequestOutcome::ProxyFailed, &error);
            CallReply { summary, ..reply::refuse(call, StatusCode::OK, &error) }
        }
        TaskRefusal::StoreFailed => reply::store_failed_reply(call),
    }
}

/// Responds to `tasks/get` (tasks extension, *Task Polling*).
fn task_reply(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    let server_meta = server_info_meta(&shared.task_server_info(record));
    let (now, poll_interval) = (shared.clock.timestamp(), shared.ledger.quotas().poll_interval);
    let view = view::extension::get_task_result(record, now, poll_interval, Some(&server_meta));
    let mut reply = reply::result_reply(call, &to_single_line(view.into()));
    reply.commit = shared.ledger.record_shown(record);
    // The access log is the audit trail of retrievals.
    reply.summary.shown_status = Some(record.state.status());
    reply
}

/// Responds to `tasks/update` (tasks extension, *Task Update Requests*) with an acknowledgement. Input
/// responses to unknown or closed input requests are ignored. An invalid input response leaves its input
/// request open, and the error names the key; the valid input responses of the same update are still
/// forwarded to the server.
async fn update_task(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    match receive_responses(shared, call, record).await {
        Ok(()) => acknowledgement(shared, call, record),
        Err(refusal) => *refusal,
    }
}

/// Checks and stores the input responses in `call`, and forwards them to the server.
///
/// # Errors
/// The reply that names the input responses that were not accepted.
pub(in crate::proxy) async fn receive_responses(
    shared: &RouteContext,
    call: &Call,
    record: &Record,
) -> Result<(), Box<CallReply>> {
    let refuse = |error: &ErrorObject| Box::new(reply::refuse(call, StatusCode::OK, error));
    let CheckedResponses { responses, invalid } =
        check_responses(call, record).map_err(|error| refuse(&error))?;
    let responses = responses.into_iter().map(|(key, answer)| (key, Ok(answer))).collect();
    let delivery = super::deliver_responses(shared, &record.id, responses, |delivered| {
        let accepted: Vec<_> =
            delivered.into_iter().filter_map(|(key, response)| Some((key, response.ok()?))).collect();
        (!accepted.is_empty()).then_some(MailboxMessage::Responses(accepted))
    });
    // Responses that are not stored are not acknowledged: the client sends them again.
    delivery.await.map_err(|refusal| Box::new(refusal_reply(call, refusal)))?;
    invalid.map_or(Ok(()), |error| Err(refuse(&error)))
}

/// Responds to `tasks/cancel` (tasks extension, *Task Cancellation*) with an acknowledgement, also if the
/// task has ended. The server is notified if the task has not ended.
async fn cancel_task(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    match super::cancel_task(&shared.ledger, &record.id, Canceller::Client).await {
        Ok(_) => acknowledgement(shared, call, record),
        Err(error) => refusal_reply(call, error.into()),
    }
}

/// The empty result that acknowledges a request about this task.
fn acknowledgement(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    let server_meta = server_info_meta(&shared.task_server_info(record));
    let result = [br#"{"resultType":"complete","_meta":"#, &*server_meta, b"}"].concat();
    reply::result_reply(call, &to_single_line(result.into()))
}

/// The checked input responses of a `tasks/update`.
#[derive(Default)]
struct CheckedResponses {
    /// The valid responses by key, in the form for the server; without those to unknown input requests.
    responses: BTreeMap<String, Bytes>,
    /// The error that names the invalid responses; `None` if there are none.
    invalid: Option<ErrorObject>,
}

/// Reads and checks the input responses of a `tasks/update`.
///
/// # Errors
/// `-32602` if they cannot be read: then none is accepted.
fn check_responses(call: &Call, record: &Record) -> Result<CheckedResponses, ErrorObject> {
    let invalid_params = |message: String| ErrorObject::new(code::INVALID_PARAMS, message);
    let responses = InputResponses::read(call.params.as_ref())
        .map_err(|error| invalid_params(error.to_string()))?
        .ok_or_else(|| invalid_params("params.inputResponses is required".into()))?;
    let TaskState::InputRequired { outstanding } = &record.state else {
        return Ok(CheckedResponses::default());
    };
    let mut checked = CheckedResponses::default();
    let mut invalid = Vec::new();
    for (key, answer) in responses.iter() {
        let Some(request) = outstanding.get(key).and_then(|raw| InputRequest::from_raw(raw.clone())) else {
            continue;
        };
        match elicit::check_input_response(&request, answer) {
            // Copied, because a slice would keep the whole request in memory.
            Ok(answer) => {
                checked.responses.insert(key.to_owned(), Bytes::copy_from_slice(&answer));
            }
            Err(error) => invalid.push(format!("the response under `{key}` is invalid: {error}")),
        }
    }
    if !invalid.is_empty() {
        let note = if checked.responses.is_empty() { "" } else { "; the other responses were accepted" };
        checked.invalid = Some(invalid_params(format!("{}{note}", invalid.join("; "))));
    }
    Ok(checked)
}
