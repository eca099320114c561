//! Room in the task quotas that is taken before a task is stored: by calls that wait for answers of their client, and by
//! tasks that are being stored. Together with what the store counts it never exceeds a quota, however slow the store is.

use super::ledger::TaskAdmissionError;
use crate::{dialect::Principal, runtime::Mutex};
use std::{collections::HashMap, sync::Arc};

/// The reservations of all principals.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<ReservationCounts>);

#[derive(Debug, Default)]
struct ReservationCounts {
    /// A principal without any is not in it.
    by_principal: HashMap<Principal, usize>,
    total: usize,
}

/// Room for one task of a principal; given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    reservations: Arc<Reservations>,
    principal: Principal,
}

// === impl Reservations ===

impl Reservations {
    /// Reserves room where `has_room` allows one more, given the reservations of the principal and of all. No other
    /// reservation is made in between.
    ///
    /// # Errors
    /// Those of `has_room`.
    pub(super) fn reserve(
        self: &Arc<Self>,
        principal: Principal,
        has_room: impl FnOnce(usize, usize) -> Result<(), TaskAdmissionError>,
    ) -> Result<Reservation, TaskAdmissionError> {
        let mut reserved = self.0.lock();
        has_room(reserved.of(principal), reserved.total)?;
        *reserved.by_principal.entry(principal).or_default() += 1;
        reserved.total += 1;
        Ok(Reservation { reservations: Arc::clone(self), principal })
    }

    /// The reservations of one principal, and of all.
    pub(super) fn count(&self, principal: Principal) -> (usize, usize) {
        let reserved = self.0.lock();
        (reserved.of(principal), reserved.total)
    }
}

// === impl Reserved ===

impl ReservationCounts {
    fn of(&self, principal: Principal) -> usize {
        self.by_principal.get(&principal).copied().unwrap_or_default()
    }
}

// === impl Reservation ===

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.reservations.0.lock();
        reserved.total -= 1;
        if let Some(count) = reserved.by_principal.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                reserved.by_principal.remove(&self.principal);
            }
        }
    }
}
