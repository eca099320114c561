//! How much there is, in all, of each principal, and of each route and status, counted as it changes.

use super::{StoreUsage, TaskTally};
use crate::task::Record;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// What is kept, in numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoreCounts {
    all: UsageShare,
    /// One that has no task is not in it.
    principals: HashMap<[u8; 16], UsageShare>,
    /// Tasks by route and status. One that has none is not in it.
    census: HashMap<(Arc<str>, &'static str), usize>,
}

/// A task as it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountedTask {
    pub(super) principal: [u8; 16],
    pub(super) route: Arc<str>,
    pub(super) status: &'static str,
    pub(super) bytes: usize,
}

/// What one principal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UsageShare {
    pub(super) tasks: usize,
    pub(super) stored_bytes: usize,
}

/// What the records of a store come to, counted anew, and where the store's counts differ from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recount {
    /// Of each principal that has tasks.
    pub usage: BTreeMap<[u8; 16], StoreUsage>,
    pub census: BTreeSet<TaskTally>,
    /// What is counted otherwise, in words; empty where the counts are right.
    pub differences: Vec<String>,
}

/// By how much counts differ from what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountDifference {
    /// Principals, and pairs of a route and a status, whose counts differ.
    pub(super) counts: usize,
    /// What principals were counted that is not there, and what is there and was not counted.
    pub(super) surplus: UsageShare,
    pub(super) missing: UsageShare,
}

// === impl Counts ===

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

    /// How many tasks there are of each route and status.
    pub(super) fn census(&self) -> Vec<TaskTally> {
        let each = self.census.iter();
        each.map(|((route, status), tasks)| TaskTally { route: Arc::clone(route), status, tasks: *tasks })
            .collect()
    }

    /// There is one more.
    pub(super) fn add(&mut self, one: &CountedTask) {
        self.add_share(one, UsageShare { tasks: 1, stored_bytes: one.bytes });
    }

    /// There are so many more of the same principal, route and status; their bytes are all of them together.
    pub(super) fn add_share(&mut self, of: &CountedTask, more: UsageShare) {
        for share in [&mut self.all, self.principals.entry(of.principal).or_default()] {
            share.add(more);
        }
        *self.census.entry((Arc::clone(&of.route), of.status)).or_default() += more.tasks;
    }

    /// There is one less. Whether there was one: counts that were wrong before stay at nothing, as one below it would be
    /// more than every quota.
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

    /// By how much these differ from `right`.
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

    /// What these come to, which were counted anew, and where `others` differ.
    pub(super) fn compare(&self, others: &Self) -> Recount {
        let differences = match self == others {
            true => Vec::new(),
            false => vec![format!("{others:?} is counted, and there is {self:?}")],
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

// === impl Share ===

impl UsageShare {
    pub(super) fn add(&mut self, more: Self) {
        self.tasks = self.tasks.saturating_add(more.tasks);
        self.stored_bytes = self.stored_bytes.saturating_add(more.stored_bytes);
    }

    /// Whether there was as much.
    pub(super) fn subtract(&mut self, less: Self) -> bool {
        let was_there = self.tasks >= less.tasks && self.stored_bytes >= less.stored_bytes;
        *self = self.less(less);
        was_there
    }

    /// What is left of it without `other`.
    fn less(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_sub(other.tasks),
            stored_bytes: self.stored_bytes.saturating_sub(other.stored_bytes),
        }
    }
}

// === impl Counted ===

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
    fn what_is_subtracted_and_was_not_counted_leaves_nothing_below_zero() {
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
    fn an_error_of_counts_says_what_is_too_much_and_what_is_missing() {
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
