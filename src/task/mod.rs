//! The life of one task, as a pure function of what has happened to it.
//!
//! One [`Record`] in the shape of the tasks extension (SEP-2663); [`apply`] moves it from one
//! state to the next; [`view`] shows it. Nothing here waits, reads a clock or knows where records
//! are kept: time comes in as an argument, and what is to be done comes out as [`Effect`]s.
//!
//! Begin with [`record`], then [`machine`]. The rest is one idea each:
//!
//! * [`id`]: names nobody can guess
//! * [`life`]: how it came to be and what has become of it, for operators
//! * [`owner`]: who may see or touch a task
//! * [`retention`]: how long a task lives, how often to ask for it, when to forget it
//! * [`view`]: a record as a client sees it

pub mod id;
pub mod life;
pub mod machine;
pub mod owner;
pub mod record;
pub mod retention;
pub mod view;

pub use id::TaskId;
pub use life::{By, Cause, Life, Moment, What};
pub use machine::{Canceller, Effect, Event, Refusal, apply};
pub use owner::{Owner, Scope};
pub use record::{Answer, MAX_SERVER_INFO, Record, State, View};
pub use retention::PollBounds;
