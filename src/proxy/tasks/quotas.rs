//! The quotas of tasks, and what counts against them beside the stored tasks: reservations, and results that
//! wait in memory for a failed store.

use super::reservations::{Reservation, Reservations};
use crate::{
    dialect::Principal,
    policy::TaskQuotas,
    runtime::SwapCell,
    store::{StoreError, StoreUsage},
    telemetry::QuotaExceeded,
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The quotas of one [`TaskLedger`](super::TaskLedger).
pub(super) struct QuotaState {
    quotas: SwapCell<TaskQuotas>,
    /// Reservations for parked calls, and for tasks that are being stored.
    reservations: Arc<Reservations>,
    /// Bytes of results that a failed store has not taken.
    unstored_bytes: AtomicUsize,
}

/// Bytes of a result that waits in memory for a failed store; subtracted from the total when dropped.
pub(in crate::proxy) struct UnstoredBytes {
    state: Arc<QuotaState>,
    bytes: usize,
}

/// The reason why a call cannot become a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskAdmissionError {
    /// The name of the limit in the configuration.
    #[error("no space for another task; the limit is {0}")]
    Full(&'static str),
    /// The store does not respond.
    #[error("the task store does not respond; try again")]
    StoreFailed,
}

/// Bytes that every event may have while the store fails: the error that replaces a result without space must
/// fit.
pub(super) const NO_SPACE_EVENT_BYTES: usize = 512;

// === impl QuotaState ===

impl QuotaState {
    pub(super) fn new(quotas: TaskQuotas) -> Self {
        Self { quotas: quotas.into(), reservations: Arc::default(), unstored_bytes: AtomicUsize::new(0) }
    }

    pub(super) fn current(&self) -> TaskQuotas {
        **self.quotas.load()
    }

    pub(super) fn set(&self, quotas: TaskQuotas) {
        self.quotas.set(quotas);
    }

    /// Reserves space for one more task. `usage` returns the usage of the store, and is called while no other
    /// reservation is made.
    ///
    /// # Errors
    /// [`TaskAdmissionError::Full`], which is logged and counted.
    pub(super) fn reserve(
        &self,
        principal: Principal,
        usage: impl FnOnce() -> StoreUsage,
    ) -> Result<Reservation, TaskAdmissionError> {
        let check = |of_principal, total| self.check(principal, usage(), of_principal, total);
        self.reservations.reserve(principal, check)
    }

    /// Checks whether a task fits for which a reservation exists already.
    ///
    /// # Errors
    /// [`TaskAdmissionError::Full`], which is logged and counted.
    pub(super) fn check_reserved(
        &self,
        principal: Principal,
        usage: StoreUsage,
    ) -> Result<(), TaskAdmissionError> {
        let (of_principal, total) = self.reservations.counts(principal);
        self.check(principal, usage, of_principal.saturating_sub(1), total.saturating_sub(1))
    }

    /// Reserves space again for a call whose task was not stored; see [`Reservations::restore`].
    pub(super) fn restore(&self, principal: Principal) -> Reservation {
        self.reservations.restore(principal)
    }

    /// Checks whether a principal may have one more task, in addition to the stored tasks and to the existing
    /// reservations: `reserved_by_principal` of them are the principal's, `reserved` is the number of all.
    fn check(
        &self,
        principal: Principal,
        usage: StoreUsage,
        reserved_by_principal: usize,
        reserved: usize,
    ) -> Result<(), TaskAdmissionError> {
        let quotas = self.current();
        let checks = [
            (
                "limits.tasks_per_principal",
                usage.tasks_of_principal + reserved_by_principal,
                quotas.tasks_per_principal,
            ),
            ("limits.tasks", usage.tasks + reserved, quotas.tasks),
            ("limits.stored_bytes", usage.stored_bytes, quotas.stored_bytes),
            (
                "limits.stored_bytes_per_principal",
                usage.stored_bytes_of_principal,
                quotas.stored_bytes_per_principal,
            ),
        ];
        match checks.into_iter().find(|(_, used, limit)| used >= limit) {
            None => Ok(()),
            Some((limit, ..)) => {
                QuotaExceeded { limit, principal: &principal }.emit();
                Err(TaskAdmissionError::Full(limit))
            }
        }
    }

    /// Counts the bytes of a result that is kept in memory until a failed store takes it. Small events are
    /// always allowed.
    ///
    /// # Errors
    /// [`StoreError::Full`] if all such results together would exceed `limits.stored_bytes`.
    pub(super) fn buffer_result(self: &Arc<Self>, bytes: usize) -> Result<UnstoredBytes, StoreError> {
        let buffered = UnstoredBytes { state: Arc::clone(self), bytes };
        let previous = self.unstored_bytes.fetch_add(bytes, Ordering::Relaxed);
        match bytes > NO_SPACE_EVENT_BYTES && previous.saturating_add(bytes) > self.current().stored_bytes {
            true => Err(StoreError::Full("limits.stored_bytes")),
            false => Ok(buffered),
        }
    }
}

// === impl UnstoredBytes ===

impl Drop for UnstoredBytes {
    fn drop(&mut self) {
        self.state.unstored_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
