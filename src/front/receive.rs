//! A request's body, bounded in bytes and time, and the memory of all bodies.

use super::responses::RefusalReason;
use crate::telemetry::Limit;
use bytes::Bytes;
use futures_util::poll;
use http_body::Body;
use http_body_util::BodyExt;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::time::timeout;

/// Most bytes that are reserved for a body by its announced length alone, before they have arrived.
const TRUSTED_LENGTH: u64 = 64 << 10;

/// A body of at most this many bytes may also use the last eighth of the memory for bodies, so that a few
/// large bodies do not block others.
pub const SMALL_BODY: usize = 64 << 10;

/// The memory of all request bodies.
#[derive(Debug)]
pub(super) struct BodyMemory {
    limit: AtomicUsize,
    taken: AtomicUsize,
}

/// Reserved bytes of the memory for bodies, released when dropped.
#[derive(Debug)]
struct MemoryReservation {
    memory: Arc<BodyMemory>,
    bytes: usize,
}

/// A body and its reservation.
struct ReservedBody {
    bytes: Vec<u8>,
    _reserved: MemoryReservation,
}

/// Receives the whole body, of at most `limit` bytes, within `time_limit`, into memory of its own. The body
/// counts towards [`ClientLimits::body_memory`](super::ClientLimits::body_memory) from its first byte until
/// the last slice of it is dropped: a call may take hours. The value that `begin_wait` returns is held while
/// the body is incomplete.
///
/// The copy is deliberate. hyper returns slices of the connection's read buffer, and a call takes as long as
/// its server: without the copy each waiting call would keep a second buffer of 8 KiB or more, to save
/// copying a few hundred bytes.
///
/// # Errors
/// [`RefusalReason::TooLarge`], as soon as the length is known; [`RefusalReason::TooSlow`];
/// [`RefusalReason::Broken`]; [`RefusalReason::NoMemory`].
pub(super) async fn receive<B: Body<Data = Bytes>, G>(
    memory: &Arc<BodyMemory>,
    body: B,
    limit: usize,
    time_limit: Duration,
    begin_wait: impl FnOnce() -> G,
) -> Result<Bytes, RefusalReason> {
    if body.size_hint().lower() > limit as u64 {
        return Err(RefusalReason::TooLarge { limit });
    }
    let mut whole = pin!(collect(memory, body, limit));
    // Mostly the body has arrived with the head, and no timer is needed.
    if let Poll::Ready(received) = poll!(whole.as_mut()) {
        return received;
    }
    let _waiting = begin_wait();
    timeout(time_limit, whole).await.unwrap_or(Err(RefusalReason::TooSlow { limit: time_limit }))
}

async fn collect<B: Body<Data = Bytes>>(
    memory: &Arc<BodyMemory>,
    body: B,
    limit: usize,
) -> Result<Bytes, RefusalReason> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut reserved = MemoryReservation { memory: Arc::clone(memory), bytes: 0 };
    let mut whole = Vec::new();
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        // Trailers have no meaning here.
        let Ok(data) = frame.map_err(|_| RefusalReason::Broken)?.into_data() else { continue };
        let length = whole.len() + data.len();
        if length > limit {
            return Err(RefusalReason::TooLarge { limit });
        }
        if length > whole.capacity() {
            let capacity = next_capacity(whole.capacity(), length, expected);
            // Reserve before the allocation. An announced length alone reserves at most `MAX_TRUSTED_LENGTH`.
            reserved.grow(capacity)?;
            whole.reserve_exact(capacity - whole.len());
        }
        whole.extend_from_slice(&data);
    }
    if whole.is_empty() {
        return Ok(Bytes::new());
    }
    if whole.capacity() - whole.len() > SMALL_BODY {
        whole.shrink_to_fit();
        reserved.shrink(whole.capacity());
    }
    Ok(Bytes::from_owner(ReservedBody { bytes: whole, _reserved: reserved }))
}

/// Returns the next capacity for `length` bytes, so that few steps are needed: the announced length where
/// that is trusted, else twice the current capacity, and never more than announced.
fn next_capacity(current: usize, length: usize, expected: usize) -> usize {
    let trusted = expected.min(TRUSTED_LENGTH as usize);
    let next = trusted.max(current.saturating_mul(2));
    // A body without an announced length has no bound but the limit.
    let upper_bound = if expected > 0 { expected } else { usize::MAX };
    next.min(upper_bound).max(length)
}

// === impl BodyMemory ===

impl BodyMemory {
    /// Creates a memory of `limit` bytes.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), taken: AtomicUsize::new(0) })
    }

    /// Changes the limit; reserved bytes are kept.
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

// === impl MemoryReservation ===

impl MemoryReservation {
    /// Grows the reservation to this many bytes, if the memory has room.
    fn grow(&mut self, bytes: usize) -> Result<(), RefusalReason> {
        let limit = self.memory.limit.load(Ordering::Relaxed);
        let effective_limit = if bytes > SMALL_BODY { limit - limit / 8 } else { limit };
        let additional = bytes - self.bytes;
        let taken = self.memory.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(additional).filter(|&taken| taken <= effective_limit)
        });
        taken.map_err(|_| RefusalReason::NoMemory { limit })?;
        self.bytes = bytes;
        Limit::BodyMemory.add_used(to_signed(additional));
        Ok(())
    }

    /// Shrinks the reservation to this many bytes.
    fn shrink(&mut self, bytes: usize) {
        self.memory.taken.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        Limit::BodyMemory.add_used(-to_signed(self.bytes - bytes));
        self.bytes = bytes;
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

fn to_signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// === impl ReservedBody ===

impl AsRef<[u8]> for ReservedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};
    use std::convert::Infallible;

    const MIB: usize = 1 << 20;

    /// A body of `count` pieces of `size` bytes, of unknown length.
    fn pieces(count: usize, size: usize) -> impl Body<Data = Bytes, Error = Infallible> {
        let piece = Bytes::from(vec![b'x'; size]);
        StreamBody::new(stream::iter((0..count).map(move |_| Ok(Frame::data(piece.clone())))))
    }

    fn taken(memory: &BodyMemory) -> usize {
        memory.taken.load(Ordering::Relaxed)
    }

    fn collected<B: Body<Data = Bytes>>(memory: &Arc<BodyMemory>, body: B) -> Result<Bytes, RefusalReason> {
        collect(memory, body, 8 * MIB).now_or_never().expect("it is all there")
    }

    #[test]
    fn a_body_counts_until_its_last_slice_is_dropped() {
        let memory = BodyMemory::new(4 * MIB);
        let body = collected(&memory, Full::from(vec![b'x'; MIB])).expect("there is room");
        assert_eq!((body.len(), taken(&memory)), (MIB, MIB));
        let slice = body.slice(7..8);
        drop(body);
        assert_eq!(taken(&memory), MIB, "the slice keeps all of it");
        drop(slice);
        assert_eq!(taken(&memory), 0);
        let body = collected(&memory, pieces(1000, 1000)).expect("there is room");
        assert_eq!(body.len(), 1_000_000);
        assert!((1_000_000..1_000_000 + SMALL_BODY).contains(&taken(&memory)), "{}", taken(&memory));
        drop(body);
        assert!(collected(&memory, Full::<Bytes>::default()).expect("nothing fits").is_empty());
        assert_eq!(taken(&memory), 0);
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused_and_releases_its_bytes() {
        let memory = BodyMemory::new(4 * MIB);
        let first = collected(&memory, Full::from(vec![b'x'; 3 * MIB])).expect("there is room");
        for body in [pieces(1, MIB).boxed(), pieces(1000, 4096).boxed()] {
            let refused = collected(&memory, body).expect_err("it does not fit");
            assert!(matches!(refused, RefusalReason::NoMemory { limit } if limit == 4 * MIB), "{refused:?}");
            assert_eq!(taken(&memory), 3 * MIB);
        }
        // The last eighth is for small bodies.
        let second = collected(&memory, Full::from(vec![b'x'; MIB / 2])).expect("there is room");
        let small: Vec<_> = std::iter::from_fn(|| collected(&memory, pieces(1, SMALL_BODY)).ok()).collect();
        assert_eq!(small.len(), 8);
        drop((first, second, small));
        assert_eq!(taken(&memory), 0);
    }

    #[test]
    fn an_announced_length_reserves_little() {
        for (before, length, expected, wanted) in [
            (0, 10, 300, 300),
            (0, 10, 4 * MIB, SMALL_BODY),
            (SMALL_BODY, SMALL_BODY + 1, 4 * MIB, 2 * SMALL_BODY),
            (3 * MIB, 3 * MIB + 1, 4 * MIB, 4 * MIB),
            (0, 10, 0, 10),
            (10, 20, 0, 20),
            (100, 101, 0, 200),
        ] {
            assert_eq!(next_capacity(before, length, expected), wanted, "{before} {length} {expected}");
        }
    }
}
