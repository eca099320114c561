//! Responses to requests about tasks; one file for each view of tasks (2025-11-25, the extension, tickets).
//!
//! This file contains the parts that the views share: task look-up by owner, cancellation, and delivery of
//! input responses. Each change of a task runs to its end with all actions that follow from the change
//! ([`TaskLedger::run_to_end`]): a client that disconnects right after its request must not leave a record
//! and a server in different states.

pub(super) mod experimental;
pub(super) mod extension;

use super::{
    TaskLedger,
    call_registry::{CancelTarget, LocalRequest, MailboxFull, MailboxMessage},
    reply,
    route_context::RouteContext,
    tasks::watchers::InputFilter,
};
use crate::{
    dialect::Principal,
    protocol::{ErrorObject, Method, code},
    store::{LoadedTask, StoreError, UpdateOutcome},
    task::{Canceller, InputAnswer, Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskView},
    telemetry::{TaskCancelledByOperator, TaskLookupFailed},
};
use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::mpsc;

/// The configuration key of the limit on task requests.
pub(super) const POLLS_LIMIT_KEY: &str = "limits.polls_per_second";

/// Messages of a call that are buffered for a client that waits for the result.
const MESSAGE_BUFFER: usize = 64;

/// The reason why a request about a task is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskRefusal {
    /// The caller has reached the rate limit with this configuration key.
    TooMany(&'static str),
    /// The task does not exist, or belongs to another owner.
    Unknown,
    /// The maximum number of requests or input responses already waits for the call of the task.
    Busy,
    /// The store is full; with the configuration key of the limit.
    StoreFull(&'static str),
    /// The store does not respond.
    StoreFailed,
}

/// Loads a task of this owner for a request with this method. Counts as a poll of the principal.
///
/// # Errors
/// [`TaskRefusal`]: the same for a missing task and for a task of another owner, so that ids cannot be
/// probed.
pub(super) async fn look_up_task(
    shared: &RouteContext,
    method: &Method,
    id: Option<&str>,
    owner: &TaskPrincipal,
    principal: Principal,
) -> Result<Arc<Record>, TaskRefusal> {
    check_poll_limit(shared, principal)?;
    let found = match id.and_then(TaskId::parse) {
        None => None,
        Some(id) => shared.ledger.load(&id).await?,
    };
    let reason = match found {
        Some(record) if !owner.can_access(&record) => "foreign",
        // Clients with tickets fetch results with a tool call, clients with tasks by `tasks/*`.
        Some(record) if (record.view == TaskView::Ticket) != (*method == Method::ToolsCall) => {
            "of another view"
        }
        Some(record) if record.is_expired(shared.clock.timestamp()) => "expired",
        Some(record) => return Ok(shared.ledger.with_unstored_message(record)),
        None => "unknown",
    };
    Err(record_miss(shared, method.as_str(), principal, reason))
}

/// Logs a look-up of an unknown task with the reason, and counts it against the principal's limit on misses.
/// Returns the refusal.
fn record_miss(shared: &RouteContext, method: &str, principal: Principal, reason: &str) -> TaskRefusal {
    TaskLookupFailed { method, principal: &principal, reason }.emit();
    match shared.ledger.principal_limits.load().try_miss(principal) {
        true => TaskRefusal::Unknown,
        false => TaskRefusal::TooMany("limits.misses_per_minute"),
    }
}

/// Counts a task request of the principal.
///
/// # Errors
/// [`TaskRefusal::TooMany`] if the principal has reached the limit on polls.
fn check_poll_limit(shared: &RouteContext, principal: Principal) -> Result<(), TaskRefusal> {
    match shared.ledger.principal_limits.load().try_poll(principal) {
        true => Ok(()),
        false => Err(TaskRefusal::TooMany(POLLS_LIMIT_KEY)),
    }
}

/// Attaches a request that waits for the result to the call of its task. Returns the channel for messages of
/// the call (SSE events); `None` if the call does not run in this process, because it has just ended or is
/// yet to be resumed. Waiting requests are notified when it is resumed.
///
/// # Errors
/// [`MailboxFull`].
pub(super) fn attach_waiter(
    shared: &RouteContext,
    id: &TaskId,
    input_filter: Option<InputFilter>,
) -> Result<Option<mpsc::Receiver<Bytes>>, MailboxFull> {
    let (sender, receiver) = mpsc::channel(MESSAGE_BUFFER);
    let waiter = LocalRequest::ResultWaiter(sender, input_filter);
    Ok(shared.ledger.call_registry.attach(id, waiter)?.then_some(receiver))
}

/// Cancels a task and its call; `by` says who requested this. Returns the changed record; `None` if the task
/// had ended or no longer exists.
///
/// # Errors
/// [`StoreError`]: a cancellation that is not stored is not acknowledged, and the server is not notified. The
/// client cancels again.
pub(super) async fn cancel_task(
    ledger: &Arc<TaskLedger>,
    id: &TaskId,
    by: Canceller,
) -> Result<Option<Arc<Record>>, StoreError> {
    let (task_ledger, id) = (Arc::clone(ledger), id.clone());
    let cancellation = async move {
        let updated =
            task_ledger.change(&id, &TaskEvent::Cancelled { canceller: by }).await.inspect_err(|error| {
                if let StoreError::Full(limit) = error {
                    task_ledger.log_quota_full(&id, limit);
                }
            });
        let UpdateOutcome::Applied { after, effects, .. } = updated? else { return Ok(None) };
        let LoadedTask { record: after, ownership, .. } = after;
        let message = MailboxMessage::Cancelled(CancelTarget::Task);
        if effects.contains(&TaskEffect::CancelUpstream)
            && let Err(error) = task_ledger.bus.post(&id, ownership.owner, message)
        {
            // The record is cancelled: a process that resumes the call or takes the task over notifies the
            // server.
            error.log(&id);
        }
        if by == Canceller::Operator {
            let (owner, principal) = (&after.owner, Principal::from_bytes(after.owner.principal));
            TaskCancelledByOperator {
                task: &id.tag(),
                route: &owner.route,
                tool: &after.tool,
                principal: &principal,
            }
            .emit();
        }
        Ok(Some(after))
    };
    ledger.run_to_end(cancellation).await
}

/// Stores responses to input requests of a task by key, and then posts the message to the call that `message`
/// makes of those responses whose requests were outstanding.
///
/// Responses are stored where another process may have to deliver them. If the store has no space for them,
/// they are delivered without being stored: a quota must not block a call.
///
/// # Errors
/// [`TaskRefusal`]: no response was accepted.
async fn deliver_responses(
    shared: &RouteContext,
    id: &TaskId,
    responses: BTreeMap<String, InputAnswer>,
    message: impl FnOnce(Vec<(String, InputAnswer)>) -> Option<MailboxMessage> + Send + 'static,
) -> Result<(), TaskRefusal> {
    // Reserved before the responses are stored, so that stored responses can be delivered.
    let permit = shared.ledger.call_registry.reserve(id).map_err(|_| TaskRefusal::Busy)?;
    let (ledger, id) = (Arc::clone(&shared.ledger), id.clone());
    let delivery = async move {
        let event = |are_stored| TaskEvent::InputAnswered { answers: responses.clone(), are_stored };
        let are_stored = ledger.is_durable();
        let mut updated = ledger.change(&id, &event(are_stored)).await;
        if are_stored && matches!(updated, Err(StoreError::Full(_))) && permit.has_reader() {
            updated = ledger.change(&id, &event(false)).await;
        }
        if let Err(StoreError::Full(limit)) = &updated {
            ledger.log_quota_full(&id, limit);
        }
        let (owner, effects) = match updated? {
            UpdateOutcome::Applied { after, effects, .. } => (after.ownership.owner, effects),
            // A call of this process sent an input request that is not in the record.
            UpdateOutcome::Refused(_) | UpdateOutcome::Unknown => (ledger.process(), Vec::new()),
        };
        let outstanding = effects.into_iter().filter_map(|effect| match effect {
            TaskEffect::AnswerUpstream { key, response } => Some((key, response)),
            TaskEffect::CancelUpstream | TaskEffect::Announce => None,
        });
        if let Some(message) = message(outstanding.collect())
            && let Err(error) = ledger.bus.post(&id, owner, message)
        {
            // The call has ended and needs no response, or the process that resumes it reads the stored one.
            error.log(&id);
        }
        drop(permit);
        Ok(())
    };
    Ok(shared.ledger.run_to_end(delivery).await?)
}

// === impl TaskRefusal ===

impl TaskRefusal {
    /// The JSON-RPC error for the caller; `missing_text` is the error text for a missing task.
    pub(super) fn error(self, missing_text: &str) -> ErrorObject {
        match self {
            Self::TooMany(limit) => reply::rate_limit_error(limit),
            Self::Unknown => ErrorObject::new(code::INVALID_PARAMS, missing_text),
            Self::Busy => ErrorObject::new(
                code::BUSY,
                "too many requests wait for the call of this task; try again once they are answered",
            ),
            Self::StoreFull(limit) => {
                ErrorObject::new(code::BUSY, format!("the task store is full; the limit is {limit}"))
            }
            Self::StoreFailed => reply::store_error(),
        }
    }
}

impl From<StoreError> for TaskRefusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full(limit) => Self::StoreFull(limit),
            StoreError::Exists | StoreError::Unavailable(_) => Self::StoreFailed,
        }
    }
}
