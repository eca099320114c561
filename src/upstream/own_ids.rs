//! Ids of the requests that the proxy makes itself, which are their progress tokens too.
//!
//! Many small servers keep an id in 32 bits, as their usual clients count from 0 or 1. So do ours: requests in
//! sessions of ours count from 1, and those in a session that a client has opened itself are from 2^30 on, far above
//! what a client counts to. No id has more than 31 bits.
//!
//! All sessions of a process count together: a late message of one can be taken for no other's, and a server that
//! keeps events by the request's id alone, whatever the session (the example stores of SDKs do), gives back none of
//! another's. In a session of a client, which goes on in other processes, each process begins at another id of the
//! range. After 2^30 ids each range begins anew and passes over those of calls that are still [in use](in_use).

use crate::runtime::random;
use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// The ids of one range.
struct IdRange {
    /// Added to each. A range begins where its bits end.
    base: u32,
    /// The next, without the base.
    next: AtomicU32,
    /// How many ids of each segment are in use.
    in_use: [AtomicU32; SEGMENTS],
}

/// Keeps an id from being given again, until this is dropped.
#[derive(Debug)]
pub(super) struct IdInUse(Option<&'static AtomicU32>);

/// Ids of a range.
const SIZE: u32 = 1 << 30;

/// Ids are passed over by the segment that they are in, so that an id costs no look-up. Where more than this many
/// calls that last are spread over all segments, ids of one may be in use twice.
const SEGMENTS: usize = 1 << 16;

const SEGMENT: u32 = SIZE / SEGMENTS as u32;

/// 0 is not given: it stands for a question outside any call.
static POOL_IDS: IdRange = IdRange::new(0, 1);

static CLIENT_SESSION_IDS: IdRange = IdRange::new(SIZE, 0);

/// It is known where this process begins in the sessions of clients: another, before it or beside it, may have requests
/// in flight in the same.
static CLIENT_START: OnceLock<()> = OnceLock::new();

/// An id for a request of ours in a session of ours.
pub fn next() -> u64 {
    POOL_IDS.next()
}

/// An id for a request of ours in a session that a client has opened itself, who may have used it there.
pub fn next_in_client_session() -> u64 {
    CLIENT_START.get_or_init(|| CLIENT_SESSION_IDS.next.store(u32::from_be_bytes(random()) % SIZE, Relaxed));
    CLIENT_SESSION_IDS.next()
}

/// Whether ids of ours in sessions of clients can have this value.
pub fn is_client_session_id(number: u64) -> bool {
    CLIENT_SESSION_IDS.offset(number).is_some()
}

/// A call that a process before this one has made still has this id. Ids that are given in sessions of ours from now on
/// are larger.
pub fn skip_to(number: u64) {
    if let Some(offset) = POOL_IDS.offset(number) {
        POOL_IDS.next.fetch_max((offset + 1) % SIZE, Relaxed);
    }
}

/// The id is that of a call in flight.
pub(super) fn in_use(number: u64) -> IdInUse {
    let segment = [&POOL_IDS, &CLIENT_SESSION_IDS].into_iter().find_map(|range| range.segment(number));
    IdInUse::of(segment)
}

// === impl Range ===

impl IdRange {
    const fn new(base: u32, first: u32) -> Self {
        Self { base, next: AtomicU32::new(first), in_use: [const { AtomicU32::new(0) }; SEGMENTS] }
    }

    fn next(&self) -> u64 {
        let mut at = self.next.load(Relaxed);
        loop {
            let given = self.free_from(at);
            match self.next.compare_exchange_weak(at, (given + 1) % SIZE, Relaxed, Relaxed) {
                Ok(_) => return u64::from(self.base + given),
                Err(now) => at = now,
            }
        }
    }

    /// The first at this place or behind it that may be given. A segment is looked at where it begins: what is in use
    /// in it then is of the round before.
    fn free_from(&self, at: u32) -> u32 {
        if !at.is_multiple_of(SEGMENT) {
            return at;
        }
        let segments = (0..SIZE).step_by(SEGMENT as usize).map(|step| (at + step) % SIZE);
        let free = segments.into_iter().find(|&at| self.in_use[(at / SEGMENT) as usize].load(Relaxed) == 0);
        let free = free.unwrap_or(at);
        if self.base == 0 { free.max(1) } else { free }
    }

    fn offset(&self, number: u64) -> Option<u32> {
        let offset = u32::try_from(number).ok()?.checked_sub(self.base)?;
        (offset < SIZE).then_some(offset)
    }

    fn segment(&self, number: u64) -> Option<&AtomicU32> {
        Some(&self.in_use[(self.offset(number)? / SEGMENT) as usize])
    }
}

// === impl InUse ===

impl IdInUse {
    fn of(segment: Option<&'static AtomicU32>) -> Self {
        if let Some(segment) = segment {
            segment.fetch_add(1, Relaxed);
        }
        Self(segment)
    }
}

impl Drop for IdInUse {
    fn drop(&mut self) {
        if let Some(segment) = self.0 {
            segment.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_up_and_have_31_bits_at_most() {
        static OURS: IdRange = IdRange::new(0, 1);
        static CLIENTS: IdRange = IdRange::new(SIZE, 0);
        assert_eq!([OURS.next(), OURS.next(), OURS.next()], [1, 2, 3]);
        assert_eq!([CLIENTS.next(), CLIENTS.next()], [1 << 30, (1 << 30) + 1]);
        for range in [&OURS, &CLIENTS] {
            range.next.store(SIZE - 1, Relaxed);
        }
        assert_eq!([OURS.next(), OURS.next(), OURS.next()], [(1 << 30) - 1, 1, 2], "it begins anew");
        assert_eq!([CLIENTS.next(), CLIENTS.next()], [(1 << 31) - 1, 1 << 30]);
    }

    #[test]
    fn an_id_that_is_in_use_is_not_given_again() {
        static OURS: IdRange = IdRange::new(0, 1);
        let long = OURS.next();
        let of_first = IdInUse::of(OURS.segment(long));
        let of_third = IdInUse::of(OURS.segment(u64::from(2 * SEGMENT + 7)));
        OURS.next.store(SIZE - 1, Relaxed);
        OURS.next();
        assert_eq!(OURS.next(), u64::from(SEGMENT), "the first segment is passed over");
        OURS.next.store(2 * SEGMENT - 1, Relaxed);
        OURS.next();
        assert_eq!(OURS.next(), u64::from(3 * SEGMENT));
        drop((of_first, of_third));
        OURS.next.store(0, Relaxed);
        assert_eq!(OURS.next(), 1);
        OURS.next.store(2 * SEGMENT, Relaxed);
        assert_eq!(OURS.next(), u64::from(2 * SEGMENT));
    }

    #[test]
    fn ids_of_other_ranges_are_in_no_segment() {
        for number in [0, 1 << 31, 1 << 52, u64::MAX] {
            assert_eq!(CLIENT_SESSION_IDS.offset(number), None, "{number}");
        }
        assert!(!is_client_session_id(7) && is_client_session_id(1 << 30));
        assert!(in_use(1 << 52).0.is_none() && in_use(7).0.is_some());
    }
}
