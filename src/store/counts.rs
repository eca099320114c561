//! How much there is, in all and of each principal, counted as it changes.

use super::Usage;
use std::collections::HashMap;

/// What is kept, in numbers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    all: Share,
    /// One that has no task is not in it.
    principals: HashMap<[u8; 16], Share>,
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

    /// A principal has so much more.
    pub(super) fn add(&mut self, principal: [u8; 16], more: Share) {
        for share in [&mut self.all, self.principals.entry(principal).or_default()] {
            share.tasks += more.tasks;
            share.stored_bytes += more.stored_bytes;
        }
    }

    /// A principal has so much less.
    pub(super) fn subtract(&mut self, principal: &[u8; 16], less: Share) {
        let Some(theirs) = self.principals.get_mut(principal) else { return };
        for share in [&mut self.all, &mut *theirs] {
            share.tasks -= less.tasks;
            share.stored_bytes -= less.stored_bytes;
        }
        if theirs.tasks == 0 {
            self.principals.remove(principal);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all == Share::default() && self.principals.is_empty()
    }
}

// === impl Share ===

impl Share {
    /// That of one task.
    pub(super) const fn of_one(stored_bytes: usize) -> Self {
        Self { tasks: 1, stored_bytes }
    }
}
