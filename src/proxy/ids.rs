//! Ids of our own hop: unique in the process, so that a late message can be taken for no other's.
//!
//! Each process counts from another number on. A server may still keep what it has said to the calls of the one
//! before, or of one beside; and those on the Python SDK keep it by the request's id alone, whatever the session: who
//! takes up the stream of a call is told what they have said to each call of that id.

use crate::runtime::random;
use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

static OURS: LazyLock<Ids> = LazyLock::new(Ids::new);

/// What the ids of our requests in sessions of clients begin with: far above what a client counts to, and still
/// exact in a double.
const IN_SESSION: u64 = 1 << 51;

/// The ids of one process.
struct Ids {
    first: u64,
    next: AtomicU64,
}

pub(super) fn next() -> u64 {
    OURS.next()
}

/// For a request of ours in a client's session.
pub(super) fn next_in_session() -> u64 {
    IN_SESSION + next()
}

/// Whether a call of ours in a client's session has this number, or had it. A client's own tokens may be
/// as large.
pub(super) fn is_of_session(number: u64) -> bool {
    number.checked_sub(IN_SESSION).is_some_and(|id| OURS.has_given(id))
}

// === impl Ids ===

impl Ids {
    /// Below 2^50, and 2^18 away from those of another.
    fn new() -> Self {
        let first = (u64::from(u32::from_be_bytes(random())) << 18) + 1;
        Self { first, next: AtomicU64::new(first) }
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn has_given(&self, id: u64) -> bool {
        (self.first..self.next.load(Ordering::Relaxed)).contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_give_the_same_ids() {
        let (one, other) = (Ids::new(), Ids::new());
        for _ in 0..1000 {
            let id = one.next();
            other.next();
            assert!(one.has_given(id) && !other.has_given(id) && IN_SESSION + id < 1 << 52);
        }
    }
}
