//! The life of one task, as a pure function of its events.
//!
//! A [`Record`] has the shape of the tasks extension (SEP-2663); [`apply`] moves it from one state to the
//! next; [`view`] writes it for clients. Nothing here waits, reads a clock or depends on where records are
//! stored: the time is an argument, and actions are returned as [`TaskEffect`]s.
//!
//! Begin with [`record`], then [`machine`]. Each other module has one subject:
//!
//! * [`id`]: ids that cannot be guessed
//! * [`history`]: the cause and the history of a task, for operators
//! * [`owner`]: the callers that have access to a task
//! * [`retention`]: the lifetime, poll interval and expiry of a task
//! * [`view`]: the messages that show a record to clients

pub mod history;
pub mod id;
pub mod machine;
pub mod owner;
pub mod record;
pub mod retention;
pub mod view;

pub use history::{HistoryEntry, HistoryKind, TaskCause, TaskHistory, TaskTrigger};
pub use id::TaskId;
pub use machine::{Canceller, EventRefusal, TaskEffect, TaskEvent, apply};
pub use owner::{TaskPrincipal, TaskSharing};
pub use record::{InputAnswer, MAX_SERVER_INFO, Record, TaskState, TaskView};
pub use retention::PollBounds;
