//! What is told of what happens: one struct a happening, emitted once.

mod events;
mod line;
pub mod log;

pub use events::{
    Access, Drained, LookupFailed, Outcome, QuestionRefused, QuotaFull, StoreFailed, TaskTransition,
    WouldDefer,
};
pub use line::{Format, Lines};
