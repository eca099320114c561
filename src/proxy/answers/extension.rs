//! Answers for the tasks extension of 2026-07-28: `tasks/get`, `tasks/update` and `tasks/cancel`.

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

/// What everybody hears of a task that is not there, or not theirs.
const NOT_FOUND: &str = "Task not found";

/// Answers one of the requests about tasks. Every result says who the server is (2026-07-28, *Base Protocol,
/// `_meta`*).
pub(in crate::proxy) async fn serve(shared: &RouteContext, call: &Call, caller: &Caller) -> CallReply {
    // Before the id is looked at (tasks extension, *Protocol Errors*).
    if !caller.capabilities.declares_tasks() {
        return reply::tasks_required(call);
    }
    let (owner, id) = (shared.task_owner(caller), call.target.as_deref());
    let record = match super::look_up(shared, &call.method, id, &owner, caller.principal).await {
        Ok(record) => record,
        Err(missing) => return refused(call, missing),
    };
    let mut reply = match call.method {
        Method::TasksUpdate => update(shared, call, &record).await,
        Method::TasksCancel => cancel(shared, call, &record).await,
        _ => show(shared, call, &record),
    };
    reply.account.origin = record.trace.clone();
    reply
}

pub(in crate::proxy) fn refused(call: &Call, missing: TaskRefusal) -> CallReply {
    let error = missing.error(NOT_FOUND);
    match missing {
        TaskRefusal::TooMany(_) => reply::refuse(call, StatusCode::TOO_MANY_REQUESTS, &error),
        TaskRefusal::Unknown | TaskRefusal::Busy => reply::refuse(call, StatusCode::OK, &error),
        TaskRefusal::StoreFull(_) => {
            let account = AccessSummary::failed(RequestOutcome::ProxyFailed, &error);
            CallReply { account, ..reply::refuse(call, StatusCode::OK, &error) }
        }
        TaskRefusal::StoreFailed => reply::store_failed(call),
    }
}

/// `tasks/get` (tasks extension, *Task Polling*).
fn show(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    let about = server_info_meta(&shared.server_info_of(record));
    let (now, bounds) = (shared.clock.timestamp(), shared.ledger.quotas().poll_interval);
    let view = view::extension::detailed(record, now, bounds, Some(&about));
    let mut reply = reply::success(call, &to_single_line(view.into()));
    reply.commit = shared.ledger.record_shown(record);
    // The audit trail of retrievals is in the access line.
    reply.account.shown = Some(record.state.status());
    reply
}

/// `tasks/update` (tasks extension, *Task Update Requests*): acknowledged; answers to what is not asked,
/// or no longer, are ignored. One that is no answer to its question leaves it open, and is refused by its
/// key; those beside it are given to the server all the same.
async fn update(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    match receive_responses(shared, call, record).await {
        Ok(()) => acknowledgement(shared, call, record),
        Err(refusal) => *refusal,
    }
}

/// Takes the answers that came with a call about a task.
///
/// # Errors
/// What the client hears of those that were not taken.
pub(in crate::proxy) async fn receive_responses(
    shared: &RouteContext,
    call: &Call,
    record: &Record,
) -> Result<(), Box<CallReply>> {
    let refuse = |error: &ErrorObject| Box::new(reply::refuse(call, StatusCode::OK, error));
    let CheckedResponses { answers, invalid: unfit } =
        check_responses(call, record).map_err(|error| refuse(&error))?;
    let answers = answers.into_iter().map(|(key, answer)| (key, Ok(answer))).collect();
    let answered = super::deliver_responses(shared, &record.id, answers, |answered, room| {
        let answered: Vec<_> =
            answered.into_iter().filter_map(|(key, response)| Some((key, response.ok()?))).collect();
        if !answered.is_empty() {
            room.send(MailboxMessage::Responses(answered));
        }
    });
    // What is not stored is not acknowledged: the client answers again.
    answered.await.map_err(|refusal| Box::new(refused(call, refusal)))?;
    unfit.map_or(Ok(()), |error| Err(refuse(&error)))
}

/// `tasks/cancel` (tasks extension, *Task Cancellation*): acknowledged also where the task has ended; the
/// server is told where it has not.
async fn cancel(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    match super::cancel(&shared.ledger, &shared.call_registry, &record.id, Canceller::Client).await {
        Ok(_) => acknowledgement(shared, call, record),
        Err(error) => refused(call, error.into()),
    }
}

fn acknowledgement(shared: &RouteContext, call: &Call, record: &Record) -> CallReply {
    let about = server_info_meta(&shared.server_info_of(record));
    let result = [br#"{"resultType":"complete","_meta":"#, &*about, b"}"].concat();
    reply::success(call, &to_single_line(result.into()))
}

/// What came with a `tasks/update`.
#[derive(Default)]
struct CheckedResponses {
    /// The answers as the server may have them, without those to what is not asked.
    answers: BTreeMap<String, Bytes>,
    /// What is to be said of those that are no answers to their questions.
    invalid: Option<ErrorObject>,
}

/// The answers of a `tasks/update`.
///
/// # Errors
/// `-32602` where they cannot be read: then nothing is answered.
fn check_responses(call: &Call, record: &Record) -> Result<CheckedResponses, ErrorObject> {
    let wrong = |message: String| ErrorObject::new(code::INVALID_PARAMS, message);
    let answers = InputResponses::read(call.params.as_ref())
        .map_err(|error| wrong(error.to_string()))?
        .ok_or_else(|| wrong("params.inputResponses is required".into()))?;
    let TaskState::InputRequired { outstanding } = &record.state else {
        return Ok(CheckedResponses::default());
    };
    let mut checked = CheckedResponses::default();
    let mut unfit = Vec::new();
    for (key, answer) in answers.iter() {
        let Some(question) = outstanding.get(key).and_then(|raw| InputRequest::from_raw(raw.clone())) else {
            continue;
        };
        match elicit::check_answer(&question, answer) {
            // A slice of the request, which would keep all of it.
            Ok(answer) => {
                checked.answers.insert(key.to_owned(), Bytes::copy_from_slice(&answer));
            }
            Err(error) => unfit.push(format!("the answer under `{key}` does not fit: {error}")),
        }
    }
    if !unfit.is_empty() {
        let rest = if checked.answers.is_empty() { "" } else { "; the other answers were taken" };
        checked.invalid = Some(wrong(format!("{}{rest}", unfit.join("; "))));
    }
    Ok(checked)
}
