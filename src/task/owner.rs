//! Access to a task.

use super::Record;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The principal and route that a task belongs to. Any other caller gets the response of an unknown task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskPrincipal {
    /// The digest of what identifies the caller.
    pub principal: [u8; 16],
    /// The path of the route the call came in on.
    pub route: Arc<str>,
    /// Which of the principal's calls share their tasks.
    pub scope: TaskSharing,
}

/// Which of a principal's calls share their tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskSharing {
    /// Calls of 2026-07-28; also those of legacy revisions, if the operator allows access across eras.
    #[default]
    Principal,
    /// Calls of legacy revisions.
    Legacy,
    /// Calls of one session of a legacy revision, named by its digest, if nothing else distinguishes callers.
    /// It restricts lists only; by its id a task is found from other sessions, too.
    Session([u8; 16]),
}

// === impl TaskSharing ===

impl TaskSharing {
    /// Whether only clients of legacy revisions made its tasks.
    fn is_legacy(self) -> bool {
        match self {
            Self::Principal => false,
            Self::Legacy | Self::Session(_) => true,
        }
    }
}

// === impl TaskPrincipal ===

impl TaskPrincipal {
    /// Whether `record` belongs to this principal, which knows its id; the session that made it does not
    /// matter then. If nothing but the session distinguishes callers, the id alone gives access.
    pub fn owns(&self, record: &Record) -> bool {
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
        assert!(owner(1, "/mcp").owns(&record));
        let scoped = |scope| TaskPrincipal { scope, ..owner(1, "/mcp") };
        for other in [
            owner(2, "/mcp"),
            owner(1, "/other"),
            scoped(TaskSharing::Legacy),
            scoped(TaskSharing::Session([1; 16])),
        ] {
            assert!(!other.owns(&record), "{other:?}");
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
            assert!(scopes.into_iter().all(|scope| owner(1, scope).owns(&record)), "{made_in:?}");
            assert!(!owner(2, made_in).owns(&record) && !owner(1, TaskSharing::Principal).owns(&record));
        }
    }
}
