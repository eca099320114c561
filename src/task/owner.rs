//! Who may see or touch a task.

use super::Record;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whom a task belongs to: a principal, on a route. Anybody else gets exactly what they would get
/// for a task that does not exist.
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
    /// Those of 2026-07-28; also those of older revisions, where the operator lets the eras meet.
    #[default]
    Principal,
    /// Those of older revisions.
    Legacy,
    /// Those of one session of an older revision, named by its digest: where nothing else tells callers
    /// apart. It is what a list is of; by its id a task is found from other sessions too.
    Session([u8; 16]),
}

// === impl Scope ===

impl TaskSharing {
    /// Whether what it covers was made by clients of older revisions alone.
    fn is_legacy(self) -> bool {
        match self {
            Self::Principal => false,
            Self::Legacy | Self::Session(_) => true,
        }
    }
}

// === impl Owner ===

impl TaskPrincipal {
    /// Whether `record` belongs to this owner, who knows its id: the session it was made in does not
    /// matter then. Where nothing but the session tells callers apart, the id alone must be known.
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
