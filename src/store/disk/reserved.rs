//! Bytes that are reserved for large results while their files are written.
//!
//! The writer admits a large result before its file is written, so that a refused result costs the disk
//! nothing. Admitted bytes count towards the bounds at once, so that of many concurrent results no more are
//! written than fit.

use crate::runtime::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Reserved bytes, in all and by principal.
#[derive(Debug, Default)]
pub(super) struct ReservedBytes(Mutex<ReservedTotals>);

#[derive(Debug, Default)]
struct ReservedTotals {
    all: usize,
    /// A principal without reserved bytes has no entry.
    principals: HashMap<[u8; 16], usize>,
}

/// Bytes that are reserved for one result, until released or dropped.
#[derive(Debug)]
pub(super) struct ByteReservation {
    reserved: Arc<ReservedBytes>,
    principal: [u8; 16],
    /// The reserved bytes; 0 once released.
    bytes: AtomicUsize,
}

// === impl ReservedBytes ===

impl ReservedBytes {
    /// Reserves bytes. The caller has checked that they fit.
    pub(super) fn reserve(self: &Arc<Self>, principal: [u8; 16], bytes: usize) -> ByteReservation {
        let mut reserved = self.0.lock();
        reserved.all += bytes;
        *reserved.principals.entry(principal).or_default() += bytes;
        ByteReservation { reserved: Arc::clone(self), principal, bytes: AtomicUsize::new(bytes) }
    }

    /// The reserved bytes in all, and those of this principal.
    pub(super) fn totals(&self, principal: &[u8; 16]) -> (usize, usize) {
        let reserved = self.0.lock();
        (reserved.all, reserved.principals.get(principal).copied().unwrap_or_default())
    }

    /// The reserved bytes in all.
    pub(super) fn all(&self) -> usize {
        self.0.lock().all
    }
}

// === impl ByteReservation ===

impl ByteReservation {
    /// The bytes that are still reserved.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Releases the bytes: the result is counted as stored, or will not be stored.
    pub(super) fn release(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let mut reserved = self.reserved.0.lock();
        reserved.all -= bytes;
        if let Some(of_principal) = reserved.principals.get_mut(&self.principal) {
            *of_principal -= bytes;
            if *of_principal == 0 {
                reserved.principals.remove(&self.principal);
            }
        }
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_counts_until_it_is_released_and_once() {
        let reserved = Arc::new(ReservedBytes::default());
        let first = reserved.reserve([1; 16], 10);
        let second = reserved.reserve([1; 16], 5);
        let other = reserved.reserve([2; 16], 0);
        assert_eq!((reserved.totals(&[1; 16]), reserved.totals(&[2; 16])), ((15, 15), (15, 0)));
        first.release();
        assert_eq!((first.bytes(), second.bytes(), reserved.all()), (0, 5, 5));
        drop((first, second, other));
        assert_eq!((reserved.totals(&[1; 16]), reserved.0.lock().principals.len()), ((0, 0), 0));
    }
}
