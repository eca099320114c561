//! How much there is, in all, of each principal, and of each route and status, counted as it changes.

use super::{Tally, Usage};
use crate::task::Record;
use std::{collections::HashMap, sync::Arc};

/// What is kept, in numbers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    all: Share,
    /// One that has no task is not in it.
    principals: HashMap<[u8; 16], Share>,
    /// Tasks by route and status. One that has none is not in it.
    census: HashMap<(Arc<str>, &'static str), usize>,
}

/// A task as it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) principal: [u8; 16],
    pub(super) route: Arc<str>,
    pub(super) status: &'static str,
    pub(super) bytes: usize,
}

/// What one principal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) tasks: usize,
    pub(super) stored_bytes: usize,
}

// === impl Counts ===

impl Counts {
    pub(super) fn usage(&self, principal: &[u8; 16]) -> Usage {
        let share = self.share(principal);
        Usage {
            tasks_of_principal: share.tasks,
            tasks: self.all.tasks,
            stored_bytes: self.all.stored_bytes,
            stored_bytes_of_principal: share.stored_bytes,
        }
    }

    pub(super) fn share(&self, principal: &[u8; 16]) -> Share {
        self.principals.get(principal).copied().unwrap_or_default()
    }

    /// How many tasks there are of each route and status.
    pub(super) fn census(&self) -> Vec<Tally> {
        let each = self.census.iter();
        each.map(|((route, status), tasks)| Tally { route: Arc::clone(route), status, tasks: *tasks })
            .collect()
    }

    /// There is one more.
    pub(super) fn add(&mut self, one: &Counted) {
        self.add_share(one, Share { tasks: 1, stored_bytes: one.bytes });
    }

    /// There are so many more of the same principal, route and status; their bytes are all of them together.
    pub(super) fn add_share(&mut self, of: &Counted, more: Share) {
        for share in [&mut self.all, self.principals.entry(of.principal).or_default()] {
            share.tasks += more.tasks;
            share.stored_bytes += more.stored_bytes;
        }
        *self.census.entry((Arc::clone(&of.route), of.status)).or_default() += more.tasks;
    }

    /// There is one less.
    pub(super) fn subtract(&mut self, one: &Counted) {
        let Some(theirs) = self.principals.get_mut(&one.principal) else { return };
        for share in [&mut self.all, &mut *theirs] {
            share.tasks -= 1;
            share.stored_bytes -= one.bytes;
        }
        if theirs.tasks == 0 {
            self.principals.remove(&one.principal);
        }
        let of = (Arc::clone(&one.route), one.status);
        if let Some(tasks) = self.census.get_mut(&of) {
            *tasks -= 1;
            if *tasks == 0 {
                self.census.remove(&of);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all == Share::default() && self.principals.is_empty() && self.census.is_empty()
    }
}

// === impl Counted ===

impl Counted {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            principal: record.owner.principal,
            route: Arc::clone(&record.owner.route),
            status: record.state.status(),
            bytes: record.stored_bytes(),
        }
    }
}
