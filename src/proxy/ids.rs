//! Ids of our own hop: unique in the process, so that a late message can be taken for no other's.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The ids of our requests in sessions of clients: far above what a client counts to, and still
/// exact in a double.
const IN_SESSION: u64 = 1 << 51;

pub(super) fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// For a request of ours in a client's session.
pub(super) fn next_in_session() -> u64 {
    IN_SESSION + next()
}

/// Whether a call of ours in a client's session has this number, or had it. A client's own tokens may be
/// as large.
pub(super) fn is_of_session(number: u64) -> bool {
    number.checked_sub(IN_SESSION).is_some_and(|id| id < NEXT.load(Ordering::Relaxed))
}
