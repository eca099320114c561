//! Space in the task quotas that is reserved before a task is stored: by parked calls, and by tasks that are
//! being stored. Together with the tasks in the store the reservations never exceed a quota, however slow the
//! store is.

use super::quotas::TaskAdmissionError;
use crate::{dialect::Principal, runtime::Mutex};
use std::{collections::HashMap, sync::Arc};

/// The reservations of all principals.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Reservations(Mutex<ReservationCounts>);

#[derive(Debug, Default)]
struct ReservationCounts {
    /// The number of reservations of each principal; principals without any are absent.
    by_principal: HashMap<Principal, usize>,
    total: usize,
}

/// Space for one task of a principal; released when dropped.
#[derive(Debug)]
pub(in crate::proxy) struct Reservation {
    reservations: Arc<Reservations>,
    principal: Principal,
}

// === impl Reservations ===

impl Reservations {
    /// Reserves space if `check_quota` allows one more, given the reservations of the principal and of all. No
    /// other reservation is made in between.
    ///
    /// # Errors
    /// Those of `check_quota`.
    pub(in crate::proxy) fn reserve(
        self: &Arc<Self>,
        principal: Principal,
        check_quota: impl FnOnce(usize, usize) -> Result<(), TaskAdmissionError>,
    ) -> Result<Reservation, TaskAdmissionError> {
        let mut reserved = self.0.lock();
        check_quota(reserved.count_of(principal), reserved.total)?;
        reserved.add(principal);
        Ok(Reservation { reservations: Arc::clone(self), principal })
    }

    /// Reserves space again for a call whose reservation was consumed by a record that the store did not
    /// take. Does not check the quotas, because the call already runs.
    pub(in crate::proxy) fn restore(self: &Arc<Self>, principal: Principal) -> Reservation {
        self.0.lock().add(principal);
        Reservation { reservations: Arc::clone(self), principal }
    }

    /// Returns the number of reservations of one principal, and of all.
    pub(in crate::proxy) fn counts(&self, principal: Principal) -> (usize, usize) {
        let reserved = self.0.lock();
        (reserved.count_of(principal), reserved.total)
    }
}

// === impl ReservationCounts ===

impl ReservationCounts {
    fn add(&mut self, principal: Principal) {
        *self.by_principal.entry(principal).or_default() += 1;
        self.total += 1;
    }

    fn count_of(&self, principal: Principal) -> usize {
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
