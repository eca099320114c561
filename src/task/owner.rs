//! Who may see or touch a task.

use super::Record;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whom a task belongs to: a principal, on a route. Anybody else gets exactly what they would get
/// for a task that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The digest of what identifies the caller.
    pub principal: [u8; 16],
    /// The path of the route the call came in on.
    pub route: Arc<str>,
    /// Which of the principal's calls share their tasks.
    pub scope: Scope,
}

/// Which of a principal's calls share their tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Those of 2026-07-28; also those of older revisions, where the operator lets the eras meet.
    #[default]
    Principal,
    /// Those of older revisions.
    Legacy,
    /// Those of one session, named by its digest: where nothing else tells callers apart.
    Session([u8; 16]),
}

// === impl Owner ===

impl Owner {
    /// Whether `record` belongs to this owner.
    pub fn owns(&self, record: &Record) -> bool {
        record.owner == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::Timestamp, task::TaskId};
    use std::time::Duration;

    #[test]
    fn only_the_same_principal_on_the_same_route_owns_a_task() {
        let owner = |principal, route: &str| Owner {
            principal: [principal; 16],
            route: route.into(),
            scope: Scope::Principal,
        };
        let id = TaskId::from_entropy([7; 16]);
        let start = Timestamp::from_millis(0);
        let record = Record::new(id, owner(1, "/mcp"), "slow", Duration::ZERO, start);
        assert!(owner(1, "/mcp").owns(&record));
        let scoped = |scope| Owner { scope, ..owner(1, "/mcp") };
        for other in
            [owner(2, "/mcp"), owner(1, "/other"), scoped(Scope::Legacy), scoped(Scope::Session([1; 16]))]
        {
            assert!(!other.owns(&record), "{other:?}");
        }
    }
}
