//! The life of one task, as a pure function of what has happened to it.
//!
//! One [`Record`] in the shape of the tasks extension (SEP-2663); [`apply`] moves it from one
//! state to the next; [`view`] shows it. Nothing here waits, reads a clock or knows where records
//! are kept: time comes in as an argument, and what is to be done comes out as [`TaskEffect`]s.
//!
//! Begin with [`record`], then [`machine`]. The rest is one idea each:
//!
//! * [`id`]: names nobody can guess
//! * [`history`]: how it came to be and what has become of it, for operators
//! * [`owner`]: who may see or touch a task
//! * [`retention`]: how long a task lives, how often to ask for it, when to forget it
//! * [`view`]: a record as a client sees it

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
