//! Log, metrics, traces and taps: one struct for each event, emitted once.

mod events;
mod line;
pub mod log;
mod log_throttle;
pub mod metrics;
pub mod tap;
pub mod trace;

pub use events::{
    AccessDenied, AccessEvent, ConfigRefused, ConfigReloaded, ConfigWarning, DrainCompleted, DrainStarted,
    EventSkipped, InputRequestRefused, MessageUndelivered, OrphanSummary, ProxyStarted, QuotaExceeded,
    RequestHeadRefused, RequestOutcome, ResponsesDropped, ServerNotStarted, ServerOmitsVersion,
    ServerOutputSkipped, ServerProcessAdded, ServerProcessEnded, ServerStderrLine, ShutdownNotice,
    StoreCountsRepaired, StoreCountsUnchecked, StoreFailed, StoreRecovered, TaskCancelledByOperator,
    TaskCreated, TaskEnd, TaskLookupFailed, TaskTransition, WouldDefer,
};
pub use line::{LineFormat, LogLayer};
pub use metrics::{CallOrigin, Limit, UsageGuard};
