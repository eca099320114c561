//! The answers to what clients ask of their tasks, a file for each view of them.
//!
//! Here is what the views share: who may see a task, how one is cancelled, and how its input requests are answered.
//! Whatever changes a task runs to its end with all that follows from it ([`TaskLedger::run_to_end`]): a client that
//! disconnects right behind its request must not leave a record that says one thing and a server that does another.

pub(super) mod experimental;
pub(super) mod extension;
pub(super) mod ticket;

use super::{
    CallRegistry, TaskLedger,
    call_registry::{CancelTarget, MailboxPermit},
    reply,
    route_context::RouteContext,
};
use crate::{
    dialect::Principal,
    protocol::{ErrorObject, Method, code},
    store::{StoreError, UpdateOutcome},
    task::{Canceller, InputAnswer, Record, TaskEffect, TaskEvent, TaskId, TaskPrincipal, TaskView},
    telemetry::{TaskCancelledByOperator, TaskLookupFailed},
};
use std::{collections::BTreeMap, sync::Arc};

/// Why a request about a task is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskRefusal {
    /// The caller has met this limit on requests.
    TooMany(&'static str),
    /// There is no such task, or it is not the caller's.
    Unknown,
    /// As many requests or input responses as may wait for the call of the task already.
    Busy,
    /// The store has no room; the name of the limit.
    StoreFull(&'static str),
    /// The store does not answer.
    StoreFailed,
}

/// The task of this name, if it is there and its owner asks.
///
/// # Errors
/// [`TaskRefusal`]: the same for what is not there and for what is not the owner's.
pub(super) async fn look_up(
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
        Some(record) if !owner.owns(&record) => "foreign",
        // Whoever holds a ticket knows no task, and the other way round.
        Some(record) if (record.view == TaskView::Ticket) != (*method == Method::ToolsCall) => {
            "of another view"
        }
        Some(record) if record.is_expired(shared.clock.timestamp()) => "expired",
        Some(record) => return Ok(shared.ledger.with_store_status(record)),
        None => "unknown",
    };
    Err(record_miss(shared, method.as_str(), principal, reason))
}

/// A principal has named a task that it may not see, for this reason. Each counts against the limit on misses.
fn record_miss(shared: &RouteContext, method: &str, principal: Principal, reason: &str) -> TaskRefusal {
    TaskLookupFailed { method, principal: &principal, reason }.emit();
    match shared.ledger.limits.load().try_miss(principal) {
        true => TaskRefusal::Unknown,
        false => TaskRefusal::TooMany("limits.misses_per_minute"),
    }
}

/// # Errors
/// [`TaskRefusal::TooMany`] for a principal that has asked too often just now.
fn check_poll_limit(shared: &RouteContext, principal: Principal) -> Result<(), TaskRefusal> {
    match shared.ledger.limits.load().try_poll(principal) {
        true => Ok(()),
        false => Err(TaskRefusal::TooMany("limits.polls_per_second")),
    }
}

/// Cancels a task, and its call. Gives the record as it is from now on; `Missing` where nothing is changed, as it had
/// ended or is there no longer.
///
/// # Errors
/// [`StoreError`]: what is not stored is not acknowledged, and the server is not told. The client cancels again.
pub(super) async fn cancel(
    ledger: &Arc<TaskLedger>,
    switchboard: &Arc<CallRegistry>,
    id: &TaskId,
    by: Canceller,
) -> Result<Option<Arc<Record>>, StoreError> {
    let (kept, switchboard, id) = (Arc::clone(ledger), Arc::clone(switchboard), id.clone());
    let cancelled = async move {
        let updated = kept.change(&id, &TaskEvent::Cancelled { by }).await.inspect_err(|error| {
            if let StoreError::Full(limit) = error {
                kept.log_quota_full(&id, limit);
            }
        });
        let UpdateOutcome::Applied { after, effects, .. } = updated? else { return Ok(None) };
        if effects.contains(&TaskEffect::CancelUpstream) {
            // Not held only where the call ended in this moment.
            switchboard.cancel(&id, CancelTarget::Task);
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
    ledger.run_to_end(cancelled).await
}

/// Answers input requests of a task, and then runs `deliver` with the answers that were outstanding, and room in the
/// mailbox of the call.
///
/// Answers are stored where another process may have to deliver them. Where there is no room for that, the record
/// forgets them: a quota does not refuse what lets a call go on.
///
/// # Errors
/// [`TaskRefusal`]: nothing is answered.
async fn deliver_responses(
    shared: &RouteContext,
    id: &TaskId,
    answers: BTreeMap<String, InputAnswer>,
    deliver: impl FnOnce(Vec<(String, InputAnswer)>, MailboxPermit) + Send + 'static,
) -> Result<(), TaskRefusal> {
    // Before anything is stored: what is stored can be delivered.
    let room = shared.call_registry.reserve(id).map_err(|_| TaskRefusal::Busy)?;
    let (ledger, id) = (Arc::clone(&shared.ledger), id.clone());
    let answered = async move {
        let event = |are_kept| TaskEvent::InputAnswered { answers: answers.clone(), are_stored: are_kept };
        let are_kept = ledger.outlives();
        let mut updated = ledger.change(&id, &event(are_kept)).await;
        if are_kept && matches!(updated, Err(StoreError::Full(_))) {
            updated = ledger.change(&id, &event(false)).await;
        }
        if let Err(StoreError::Full(limit)) = &updated {
            ledger.log_quota_full(&id, limit);
        }
        let effects = match updated? {
            UpdateOutcome::Applied { effects, .. } => effects,
            UpdateOutcome::Refused(_) | UpdateOutcome::Unknown => Vec::new(),
        };
        let outstanding = effects.into_iter().filter_map(|effect| match effect {
            TaskEffect::AnswerUpstream { key, response } => Some((key, response)),
            TaskEffect::CancelUpstream | TaskEffect::Announce => None,
        });
        deliver(outstanding.collect(), room);
        Ok(())
    };
    Ok(shared.ledger.run_to_end(answered).await?)
}

// === impl TaskRefusal ===

impl TaskRefusal {
    /// The error for the caller; `unknown` is the message of its view for a task that is not there.
    pub(super) fn error(self, unknown: &str) -> ErrorObject {
        match self {
            Self::TooMany(limit) => reply::too_many(limit),
            Self::Unknown => ErrorObject::new(code::INVALID_PARAMS, unknown),
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
