//! Counts of a store's tasks: in all, of each principal, and of each route and status.

use super::{StoreUsage, TaskTally};
use crate::task::Record;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Counts of stored tasks and of their bytes, updated with each change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoreCounts {
    /// The tasks and bytes of all principals.
    all: UsageShare,
    /// A principal without tasks has no entry.
    principals: HashMap<[u8; 16], UsageShare>,
    /// Tasks by route and status. A pair without tasks has no entry.
    census: HashMap<(Arc<str>, &'static str), usize>,
}

/// The fields of a task that the counts depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountedTask {
    pub(super) principal: [u8; 16],
    pub(super) route: Arc<str>,
    pub(super) status: &'static str,
    /// The stored bytes of the task ([`Record::stored_bytes`]).
    pub(super) bytes: usize,
}

/// Tasks and bytes of one principal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageShare {
    pub(super) tasks: usize,
    pub(super) stored_bytes: usize,
}

/// The counts of a store's records, counted anew, and how the counts that the store maintains differ from
/// them. For tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recount {
    /// The usage of each principal that has tasks.
    pub usage: BTreeMap<[u8; 16], StoreUsage>,
    /// The tasks of each route and status.
    pub census: BTreeSet<TaskTally>,
    /// Descriptions of the differences; empty where the store's counts are right.
    pub differences: Vec<String>,
}

/// Difference between two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountDifference {
    /// The number of principals, and of pairs of route and status, whose counts differ.
    pub(super) counts: usize,
    /// Tasks and bytes that were counted and do not exist.
    pub(super) surplus: UsageShare,
    /// Tasks and bytes that exist and were not counted.
    pub(super) missing: UsageShare,
}

// === impl StoreCounts ===

impl StoreCounts {
    /// The usage in all and of one principal.
    pub(super) fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        let share = self.share(principal);
        StoreUsage {
            tasks_of_principal: share.tasks,
            tasks: self.all.tasks,
            stored_bytes: self.all.stored_bytes,
            stored_bytes_of_principal: share.stored_bytes,
        }
    }

    /// The tasks and bytes of one principal.
    pub(super) fn share(&self, principal: &[u8; 16]) -> UsageShare {
        self.principals.get(principal).copied().unwrap_or_default()
    }

    /// Tasks of each route and status.
    pub(super) fn census(&self) -> Vec<TaskTally> {
        let tallies = self.census.iter();
        tallies
            .map(|((route, status), tasks)| TaskTally { route: Arc::clone(route), status, tasks: *tasks })
            .collect()
    }

    /// Adds a task.
    pub(super) fn add(&mut self, task: &CountedTask) {
        self.add_share(task, UsageShare { tasks: 1, stored_bytes: task.bytes });
    }

    /// Adds several tasks of one principal, route and status, with the sum of their bytes.
    pub(super) fn add_share(&mut self, group: &CountedTask, added: UsageShare) {
        for share in [&mut self.all, self.principals.entry(group.principal).or_default()] {
            share.add(added);
        }
        *self.census.entry((Arc::clone(&group.route), group.status)).or_default() += added.tasks;
    }

    /// Subtracts a task; returns whether it had been counted. Wrong counts saturate at zero, because a
    /// negative count would exceed every quota.
    #[must_use]
    pub(super) fn subtract(&mut self, task: &CountedTask) -> bool {
        let removed = UsageShare { tasks: 1, stored_bytes: task.bytes };
        let mut was_counted = self.all.subtract(removed);
        match self.principals.get_mut(&task.principal) {
            Some(share) => {
                was_counted &= share.subtract(removed);
                if share.tasks == 0 {
                    self.principals.remove(&task.principal);
                }
            }
            None => was_counted = false,
        }
        let key = (Arc::clone(&task.route), task.status);
        match self.census.get_mut(&key) {
            Some(1) => drop(self.census.remove(&key)),
            Some(tasks) => *tasks -= 1,
            None => was_counted = false,
        }
        was_counted
    }

    /// The difference of these counts from the correct ones.
    pub(super) fn difference(&self, correct: &Self) -> CountDifference {
        let mut difference = CountDifference::default();
        let principals: BTreeSet<_> = self.principals.keys().chain(correct.principals.keys()).collect();
        for principal in principals {
            let (counted, expected) = (self.share(principal), correct.share(principal));
            difference.counts += usize::from(counted != expected);
            difference.surplus.add(counted.saturating_sub(expected));
            difference.missing.add(expected.saturating_sub(counted));
        }
        let tallies: BTreeSet<_> = self.census.keys().chain(correct.census.keys()).collect();
        difference.counts +=
            tallies.into_iter().filter(|key| self.census.get(key) != correct.census.get(key)).count();
        difference
    }

    /// Returns these counts, which were counted anew, and how the maintained counts differ from them.
    pub(super) fn compare(&self, maintained: &Self) -> Recount {
        let differences = match self == maintained {
            true => Vec::new(),
            false => vec![format!("{maintained:?} is counted, but the rows have {self:?}")],
        };
        Recount {
            usage: self.principals.keys().map(|principal| (*principal, self.usage(principal))).collect(),
            census: self.census().into_iter().collect(),
            differences,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all == UsageShare::default() && self.principals.is_empty() && self.census.is_empty()
    }
}

// === impl UsageShare ===

impl UsageShare {
    /// Adds tasks and bytes.
    pub(super) fn add(&mut self, added: Self) {
        self.tasks = self.tasks.saturating_add(added.tasks);
        self.stored_bytes = self.stored_bytes.saturating_add(added.stored_bytes);
    }

    /// Subtracts tasks and bytes, saturating at zero; returns whether as many had been counted.
    pub(super) fn subtract(&mut self, removed: Self) -> bool {
        let was_counted = self.tasks >= removed.tasks && self.stored_bytes >= removed.stored_bytes;
        *self = self.saturating_sub(removed);
        was_counted
    }

    /// The difference, saturating at zero.
    fn saturating_sub(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_sub(other.tasks),
            stored_bytes: self.stored_bytes.saturating_sub(other.stored_bytes),
        }
    }
}

// === impl CountedTask ===

impl CountedTask {
    /// The fields of this record that the counts depend on.
    pub(super) fn from_record(record: &Record) -> Self {
        Self {
            principal: record.owner.principal,
            route: Arc::clone(&record.owner.route),
            status: record.state.status(),
            bytes: record.stored_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(principal: u8, bytes: usize) -> CountedTask {
        CountedTask { principal: [principal; 16], route: "/mcp".into(), status: "completed", bytes }
    }

    #[test]
    fn counts_never_fall_below_zero() {
        let mut counts = StoreCounts::default();
        counts.add(&counted(1, 10));
        assert!(!counts.subtract(&counted(2, 1)), "the second has none");
        assert!(!counts.subtract(&counted(1, 11)), "it has fewer bytes");
        assert!(!counts.subtract(&counted(1, 1)), "it has none any more");
        assert_eq!(counts.usage(&[1; 16]), StoreUsage::default());
        counts.add(&counted(1, 5));
        assert_eq!(counts.usage(&[1; 16]).stored_bytes_of_principal, 5);
        assert!(counts.subtract(&counted(1, 5)));
        assert!(counts.is_empty());
    }

    #[test]
    fn a_difference_of_counts_has_surplus_and_missing_tasks() {
        let (mut counts, mut right) = (StoreCounts::default(), StoreCounts::default());
        [counted(1, 10), counted(1, 20), counted(2, 5)].iter().for_each(|one| counts.add(one));
        [counted(1, 10), counted(3, 7)].iter().for_each(|one| right.add(one));
        let share = |tasks, stored_bytes| UsageShare { tasks, stored_bytes };
        // Three principals, and the tally of the one route and status.
        let error = CountDifference { counts: 4, surplus: share(2, 25), missing: share(1, 7) };
        assert_eq!(counts.difference(&right), error);
        assert_eq!(right.difference(&right), CountDifference::default());
        assert_eq!(right.compare(&right).differences, [""; 0]);
        assert_eq!(right.compare(&counts).differences.len(), 1);
    }
}
