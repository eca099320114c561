//! The tasks of all routes in the store: their records, quotas, watchers and expiry.
//!
//! [`TaskLedger`] makes every change of a task (`ledger`), within the quotas (`quotas`). `persist` stores the
//! events of a call in spite of a failed or full store. `bus` carries messages to the calls and watchers of tasks,
//! `watchers` notifies those of this process, and `sweep` renews and removes tasks. `restart` recovers the tasks of a former process with their `anchor`s.
//! `operator_tasks` is the view of the admin listener.

pub(super) mod anchor;
pub(super) mod bus;
mod drain_counts;
mod fetch_metrics;
pub(super) mod ledger;
mod operator_tasks;
pub(super) mod orphan_report;
pub(super) mod pending_credentials;
pub(super) mod persist;
pub(super) mod principal_limits;
pub(super) mod quotas;
pub(super) mod reservations;
mod restart;
mod store_clock;
mod store_health;
mod sweep;
pub(super) mod watchers;

pub use anchor::{AnchorSeal, TaskAnchor};
pub use ledger::{LeaseState, TaskLedger};
pub use operator_tasks::{
    CancelOutcome, OperatorTasks, TaskCursor, TaskLookup, TaskSummary, name_and_principal,
};
pub use quotas::TaskAdmissionError;
