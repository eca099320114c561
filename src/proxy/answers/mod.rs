//! The answers to what clients ask of their tasks, a file for each view of them.
//!
//! Here is what the views share: who may see a task, and how one is cancelled.

pub(super) mod experimental;
pub(super) mod extension;
pub(super) mod ticket;

use super::{Ledger, Switchboard, reply, shared::Shared, switchboard::Mail};
use crate::{
    dialect::Principal,
    protocol::{ErrorObject, Method, code},
    store::{StoreError, Updated},
    task::{Effect, Event, Owner, Record, TaskId, View},
    telemetry::LookupFailed,
};
use std::sync::Arc;

/// Why there is no task to speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFound {
    /// The caller has met this limit.
    TooMany(&'static str),
    /// It is not there, or not the caller's.
    Unknown,
    StoreFailed,
}

/// The task of this name, if it is there and its owner asks.
///
/// # Errors
/// [`NotFound`]: the same for what is not there and for what is not the owner's.
async fn look_up(
    shared: &Shared,
    method: &Method,
    id: Option<&str>,
    owner: &Owner,
    principal: Principal,
) -> Result<Arc<Record>, NotFound> {
    may_poll(shared, principal)?;
    let found = match id.and_then(TaskId::parse) {
        None => None,
        Some(id) => shared.ledger.load(&id).await?,
    };
    let reason = match found {
        Some(record) if !owner.owns(&record) => "foreign",
        // Whoever holds a ticket knows no task, and the other way round.
        Some(record) if (record.view == View::Ticket) != (*method == Method::ToolsCall) => "of another view",
        Some(record) if record.is_expired(shared.clock.timestamp()) => "expired",
        Some(record) => return Ok(shared.ledger.as_it_stands(record)),
        None => "unknown",
    };
    LookupFailed { method: method.as_str(), principal: &principal, reason }.emit();
    Err(match shared.ledger.limits.now().admits_miss(principal) {
        true => NotFound::Unknown,
        false => NotFound::TooMany("limits.misses_per_minute"),
    })
}

/// # Errors
/// [`NotFound::TooMany`] for a principal that has asked too often just now.
fn may_poll(shared: &Shared, principal: Principal) -> Result<(), NotFound> {
    match shared.ledger.limits.now().admits_poll(principal) {
        true => Ok(()),
        false => Err(NotFound::TooMany("limits.polls_per_second")),
    }
}

/// Cancels a task, and tells its call so. Gives the record as it is from now on; none where nothing is
/// changed, as it had ended or is there no longer.
///
/// # Errors
/// [`StoreError`]: what is not kept is not acknowledged and the server not told. The client cancels again.
pub(super) async fn cancel(
    ledger: &Ledger,
    switchboard: &Switchboard,
    id: &TaskId,
) -> Result<Option<Arc<Record>>, StoreError> {
    match ledger.change(id, &Event::Cancelled).await? {
        Updated::Done { after, effects, .. } => {
            if effects.contains(&Effect::CancelUpstream) {
                // Gone only where the call ended in this moment.
                switchboard.post(id, Mail::Cancelled).await;
            }
            Ok(Some(after))
        }
        Updated::Refused(_) | Updated::Unknown => Ok(None),
    }
}

// === impl NotFound ===

impl NotFound {
    /// What the caller hears, `unknown` being its view's words for a task that is not there.
    pub(super) fn error(self, unknown: &str) -> ErrorObject {
        match self {
            Self::TooMany(limit) => reply::too_many(limit),
            Self::Unknown => ErrorObject::new(code::INVALID_PARAMS, unknown),
            Self::StoreFailed => reply::store_error(),
        }
    }
}

impl From<StoreError> for NotFound {
    fn from(_: StoreError) -> Self {
        Self::StoreFailed
    }
}
