//! Ids of the proxy's own requests, which are their progress tokens as well.
//!
//! Many small servers store an id in 32 bits, because their usual clients count from 0 or 1. Requests in
//! pooled sessions count from 1; requests in a session that a client opened start at 2^30, far above the ids
//! of clients. No id has more than 31 bits.
//!
//! All sessions of a process share the counters: a late message of one session cannot match another's
//! request, and a server that stores events by the request id alone, for all sessions (as the example stores
//! of SDKs do), replays no other session's. A client's session continues in other processes, so each process
//! starts at another id of that range. After 2^30 ids a range starts again and skips ids that are still in
//! use ([`mark_in_use`]).

use crate::{protocol::RequestId, runtime::random};
use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// Ids of one range.
struct IdRange {
    /// First id of the range; a power of two or zero.
    base: u32,
    /// Next id, relative to the base.
    next: AtomicU32,
    /// Number of ids in use, for each segment.
    in_use: [AtomicU32; SEGMENTS],
}

/// Keeps an id in use until it is dropped.
#[derive(Debug)]
pub(super) struct IdInUse(Option<&'static AtomicU32>);

/// Number of ids in a range.
const RANGE_SIZE: u32 = 1 << 30;

/// Segments of a range. Ids in use are skipped by segment, so that an id needs no lookup. If more long calls
/// than this are spread over all segments, an id of a segment may be assigned twice.
const SEGMENTS: usize = 1 << 16;

/// Number of ids in a segment.
const SEGMENT_SIZE: u32 = RANGE_SIZE / SEGMENTS as u32;

/// Ids in pooled sessions. 0 is never assigned: it stands for a request of the server outside calls.
static POOL_IDS: IdRange = IdRange::new(0, 1);

/// Ids in sessions that clients opened.
static CLIENT_SESSION_IDS: IdRange = IdRange::new(RANGE_SIZE, 0);

/// Set once the start in clients' sessions is chosen: another process, earlier or concurrent, may have
/// requests in flight in the same session.
static CLIENT_IDS_STARTED: OnceLock<()> = OnceLock::new();

/// Returns the next id for a request in a pooled session.
pub fn next_in_pool() -> u64 {
    POOL_IDS.next()
}

/// Returns the next id for a request in a session that a client opened. The client may use the same id.
pub fn next_in_client_session() -> u64 {
    CLIENT_IDS_STARTED
        .get_or_init(|| CLIENT_SESSION_IDS.next.store(u32::from_be_bytes(random()) % RANGE_SIZE, Relaxed));
    CLIENT_SESSION_IDS.next()
}

/// Whether the number is in the range of ids for clients' sessions.
pub fn is_client_session_id(number: u64) -> bool {
    CLIENT_SESSION_IDS.offset(number).is_some()
}

/// Reserves the id of a call of the previous process: later ids in pooled sessions are larger.
pub fn skip_past(number: u64) {
    if let Some(offset) = POOL_IDS.offset(number) {
        POOL_IDS.next.fetch_max((offset + 1) % RANGE_SIZE, Relaxed);
    }
}

/// Marks the id as in use until the returned guard is dropped.
pub(super) fn mark_in_use(number: u64) -> IdInUse {
    let segment = [&POOL_IDS, &CLIENT_SESSION_IDS].into_iter().find_map(|range| range.segment(number));
    IdInUse::new(segment)
}

// === impl IdRange ===

impl IdRange {
    const fn new(base: u32, first: u32) -> Self {
        Self { base, next: AtomicU32::new(first), in_use: [const { AtomicU32::new(0) }; SEGMENTS] }
    }

    fn next(&self) -> u64 {
        let mut current = self.next.load(Relaxed);
        loop {
            let free = self.free_from(current);
            match self.next.compare_exchange_weak(current, (free + 1) % RANGE_SIZE, Relaxed, Relaxed) {
                Ok(_) => return u64::from(self.base + free),
                Err(actual) => current = actual,
            }
        }
    }

    /// Returns the first assignable id at or after `start`. A segment is checked at its start: ids in use
    /// there are of the previous round through the range.
    fn free_from(&self, start: u32) -> u32 {
        if !start.is_multiple_of(SEGMENT_SIZE) {
            return start;
        }
        let segments =
            (0..RANGE_SIZE).step_by(SEGMENT_SIZE as usize).map(|offset| (start + offset) % RANGE_SIZE);
        let free = segments
            .into_iter()
            .find(|&candidate| self.in_use[(candidate / SEGMENT_SIZE) as usize].load(Relaxed) == 0);
        let free = free.unwrap_or(start);
        if self.base == 0 { free.max(1) } else { free }
    }

    fn offset(&self, number: u64) -> Option<u32> {
        let offset = u32::try_from(number).ok()?.checked_sub(self.base)?;
        (offset < RANGE_SIZE).then_some(offset)
    }

    fn segment(&self, number: u64) -> Option<&AtomicU32> {
        Some(&self.in_use[(self.offset(number)? / SEGMENT_SIZE) as usize])
    }
}

// === impl IdInUse ===

impl IdInUse {
    fn new(segment: Option<&'static AtomicU32>) -> Self {
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

/// Whether a response with this id answers the proxy's request `call`.
pub(super) fn is_answer_to(id: &RequestId, call: u64) -> bool {
    id.echoed_number() == Some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_up_and_have_31_bits_at_most() {
        static OURS: IdRange = IdRange::new(0, 1);
        static CLIENTS: IdRange = IdRange::new(RANGE_SIZE, 0);
        assert_eq!([OURS.next(), OURS.next(), OURS.next()], [1, 2, 3]);
        assert_eq!([CLIENTS.next(), CLIENTS.next()], [1 << 30, (1 << 30) + 1]);
        for range in [&OURS, &CLIENTS] {
            range.next.store(RANGE_SIZE - 1, Relaxed);
        }
        assert_eq!([OURS.next(), OURS.next(), OURS.next()], [(1 << 30) - 1, 1, 2], "it begins anew");
        assert_eq!([CLIENTS.next(), CLIENTS.next()], [(1 << 31) - 1, 1 << 30]);
    }

    #[test]
    fn an_id_that_is_in_use_is_not_given_again() {
        static OURS: IdRange = IdRange::new(0, 1);
        let long = OURS.next();
        let of_first = IdInUse::new(OURS.segment(long));
        let of_third = IdInUse::new(OURS.segment(u64::from(2 * SEGMENT_SIZE + 7)));
        OURS.next.store(RANGE_SIZE - 1, Relaxed);
        OURS.next();
        assert_eq!(OURS.next(), u64::from(SEGMENT_SIZE), "the first segment is passed over");
        OURS.next.store(2 * SEGMENT_SIZE - 1, Relaxed);
        OURS.next();
        assert_eq!(OURS.next(), u64::from(3 * SEGMENT_SIZE));
        drop((of_first, of_third));
        OURS.next.store(0, Relaxed);
        assert_eq!(OURS.next(), 1);
        OURS.next.store(2 * SEGMENT_SIZE, Relaxed);
        assert_eq!(OURS.next(), u64::from(2 * SEGMENT_SIZE));
    }

    #[test]
    fn ids_of_other_ranges_are_in_no_segment() {
        for number in [0, 1 << 31, 1 << 52, u64::MAX] {
            assert_eq!(CLIENT_SESSION_IDS.offset(number), None, "{number}");
        }
        assert!(!is_client_session_id(7) && is_client_session_id(1 << 30));
        assert!(mark_in_use(1 << 52).0.is_none() && mark_in_use(7).0.is_some());
    }
}
