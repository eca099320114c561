//! What is told of what happens: one struct a happening, emitted once.

mod events;
mod line;
pub mod log;
pub mod metrics;
pub mod tap;
mod throttle;
pub mod trace;

pub use events::{
    Access, AccessDenied, AnswersDropped, ConfigRefused, ConfigReloaded, ConfigWarning, Drained, Draining,
    EventSkipped, HeadRefused, Leaving, LookupFailed, OperatorCancelled, Outcome, QuestionRefused, QuotaFull,
    ServerEnded, ServerGarbage, ServerNotStarted, ServerOmitsVersion, ServerProcessAdded, ServerSaid,
    Started, StoreBack, StoreCountsMended, StoreCountsUnchecked, StoreFailed, TakenOver, TaskCreated,
    TaskEnd, TaskTransition, Untold, WouldDefer,
};
pub use line::{Format, Lines};
pub use metrics::{CallOrigin, Limit, Taken};
