//! Counts of a store's tasks: in all, of each principal, and of each route and status.

use super::{StoreUsage, TaskTally};
use crate::task::Record;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Tasks and bytes, counted as they change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoreCounts {
    all: UsageShare,
    /// A principal without tasks has no entry.
    principals: HashMap<[u8; 16], UsageShare>,
    /// Tasks by route and status. A pair without tasks has no entry.
    census: HashMap<(Arc<str>, &'static str), usize>,
}

/// The fields of a task that it is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountedTask {
    pub(super) principal: [u8; 16],
    pub(super) route: Arc<str>,
    pub(super) status: &'static str,
    pub(super) bytes: usize,
}

/// Tasks and bytes of one principal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageShare {
    pub(super) tasks: usize,
    pub(super) stored_bytes: usize,
}

/// The counts of a store's records, counted anew, and their differences from the store's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recount {
    /// Of each principal that has tasks.
    pub usage: BTreeMap<[u8; 16], StoreUsage>,
    pub census: BTreeSet<TaskTally>,
    /// Descriptions of the differences; empty where the store's counts are right.
    pub differences: Vec<String>,
}

/// Difference between two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountDifference {
    /// Number of principals, and of pairs of route and status, whose counts differ.
    pub(super) counts: usize,
    /// Tasks and bytes that were counted for principals and do not exist, and those that exist and were not
    /// counted.
    pub(super) surplus: UsageShare,
    pub(super) missing: UsageShare,
}

// === impl StoreCounts ===

impl StoreCounts {
    pub(super) fn usage(&self, principal: &[u8; 16]) -> StoreUsage {
        let share = self.share(principal);
        StoreUsage {
            tasks_of_principal: share.tasks,
            tasks: self.all.tasks,
            stored_bytes: self.all.stored_bytes,
            stored_bytes_of_principal: share.stored_bytes,
        }
    }

    pub(super) fn share(&self, principal: &[u8; 16]) -> UsageShare {
        self.principals.get(principal).copied().unwrap_or_default()
    }

    /// Tasks of each route and status.
    pub(super) fn census(&self) -> Vec<TaskTally> {
        let each = self.census.iter();
        each.map(|((route, status), tasks)| TaskTally { route: Arc::clone(route), status, tasks: *tasks })
            .collect()
    }

    /// Adds a task.
    pub(super) fn add(&mut self, one: &CountedTask) {
        self.add_share(one, UsageShare { tasks: 1, stored_bytes: one.bytes });
    }

    /// Adds several tasks of one principal, route and status, with the sum of their bytes.
    pub(super) fn add_share(&mut self, of: &CountedTask, more: UsageShare) {
        for share in [&mut self.all, self.principals.entry(of.principal).or_default()] {
            share.add(more);
        }
        *self.census.entry((Arc::clone(&of.route), of.status)).or_default() += more.tasks;
    }

    /// Subtracts a task. Returns whether it was counted: wrong counts saturate at zero, because a negative
    /// count would exceed every quota.
    #[must_use]
    pub(super) fn subtract(&mut self, one: &CountedTask) -> bool {
        let less = UsageShare { tasks: 1, stored_bytes: one.bytes };
        let mut was_there = self.all.subtract(less);
        match self.principals.get_mut(&one.principal) {
            Some(theirs) => {
                was_there &= theirs.subtract(less);
                if theirs.tasks == 0 {
                    self.principals.remove(&one.principal);
                }
            }
            None => was_there = false,
        }
        let of = (Arc::clone(&one.route), one.status);
        match self.census.get_mut(&of) {
            Some(1) => drop(self.census.remove(&of)),
            Some(tasks) => *tasks -= 1,
            None => was_there = false,
        }
        was_there
    }

    /// The difference of these counts from `right`.
    pub(super) fn difference(&self, right: &Self) -> CountDifference {
        let mut error = CountDifference::default();
        let principals: BTreeSet<_> = self.principals.keys().chain(right.principals.keys()).collect();
        for principal in principals {
            let (is, should) = (self.share(principal), right.share(principal));
            error.counts += usize::from(is != should);
            error.surplus.add(is.less(should));
            error.missing.add(should.less(is));
        }
        let tallies: BTreeSet<_> = self.census.keys().chain(right.census.keys()).collect();
        error.counts += tallies.into_iter().filter(|of| self.census.get(of) != right.census.get(of)).count();
        error
    }

    /// These counts, counted anew, and the differences of `others`.
    pub(super) fn compare(&self, others: &Self) -> Recount {
        let differences = match self == others {
            true => Vec::new(),
            false => vec![format!("{others:?} is counted, but the rows have {self:?}")],
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
    pub(super) fn add(&mut self, more: Self) {
        self.tasks = self.tasks.saturating_add(more.tasks);
        self.stored_bytes = self.stored_bytes.saturating_add(more.stored_bytes);
    }

    /// Returns whether there was as much.
    pub(super) fn subtract(&mut self, less: Self) -> bool {
        let was_there = self.tasks >= less.tasks && self.stored_bytes >= less.stored_bytes;
        *self = self.less(less);
        was_there
    }

    /// The rest without `other`.
    fn less(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_sub(other.tasks),
            stored_bytes: self.stored_bytes.saturating_sub(other.stored_bytes),
        }
    }
}

// === impl CountedTask ===

impl CountedTask {
    pub(super) fn of(record: &Record) -> Self {
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
