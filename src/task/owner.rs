//! The callers that have access to a task.

use super::Record;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The principal and the route to which a task belongs. Any other caller gets the response of an unknown
/// task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskPrincipal {
    /// The bytes of the caller's [`Principal`](crate::dialect::Principal).
    pub principal: [u8; 16],
    /// The path of the route on which the call was received.
    pub route: Arc<str>,
    /// The calls of the principal that have access to each other's tasks.
    pub scope: TaskSharing,
}

/// The calls of one principal that have access to each other's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskSharing {
    /// Calls of 2026-07-28; also those of legacy revisions, if the operator allows access across eras.
    #[default]
    Principal,
    /// Calls of legacy revisions.
    Legacy,
    /// Calls of one session of a legacy revision, identified by its digest, if nothing else distinguishes
    /// callers. Only `tasks/list` is restricted to the session; by its id a task is accessible from other
    /// sessions, too.
    Session([u8; 16]),
}

// === impl TaskSharing ===

impl TaskSharing {
    /// Whether only clients of legacy revisions create tasks with this sharing.
    fn is_legacy(self) -> bool {
        match self {
            Self::Principal => false,
            Self::Legacy | Self::Session(_) => true,
        }
    }
}

// === impl TaskPrincipal ===

impl TaskPrincipal {
    /// Whether this caller, which knows the id of the task, has access to `record`. The session that created
    /// the task does not matter; so if nothing but the session distinguishes callers, the id alone gives
    /// access.
    pub fn can_access(&self, record: &Record) -> bool {
        let Self { principal, route, scope } = &record.owner;
        *principal == self.principal && *route == self.route && scope.is_legacy() == self.scope.is_legacy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::Timestamp, task::TaskId};
    use std::time::Duration;

    #[test]
    fn only_the_same_principal_on_the_same_route_owns_a_task() {
        let owner = |principal, route: &str| TaskPrincipal {
            principal: [principal; 16],
            route: route.into(),
            scope: TaskSharing::Principal,
        };
        let id = TaskId::from_entropy([7; 16]);
        let start = Timestamp::from_millis(0);
        let record = Record::new(id, owner(1, "/mcp"), "slow", Duration::ZERO, start);
        assert!(owner(1, "/mcp").can_access(&record));
        let scoped = |scope| TaskPrincipal { scope, ..owner(1, "/mcp") };
        for other in [
            owner(2, "/mcp"),
            owner(1, "/other"),
            scoped(TaskSharing::Legacy),
            scoped(TaskSharing::Session([1; 16])),
        ] {
            assert!(!other.can_access(&record), "{other:?}");
        }
    }

    #[test]
    fn among_older_revisions_a_task_is_found_by_its_id_from_any_session() {
        let owner =
            |principal, scope| TaskPrincipal { principal: [principal; 16], route: "/mcp".into(), scope };
        let scopes = [TaskSharing::Legacy, TaskSharing::Session([1; 16]), TaskSharing::Session([2; 16])];
        for made_in in scopes {
            let (id, start) = (TaskId::from_entropy([7; 16]), Timestamp::from_millis(0));
            let record = Record::new(id, owner(1, made_in), "slow", Duration::ZERO, start);
            assert!(scopes.into_iter().all(|scope| owner(1, scope).can_access(&record)), "{made_in:?}");
            assert!(
                !owner(2, made_in).can_access(&record)
                    && !owner(1, TaskSharing::Principal).can_access(&record)
            );
        }
    }
}
