//! The life of one task, as a pure function of what has happened to it.
//!
//! One [`Record`] in the shape of the tasks extension (SEP-2663); [`apply`] moves it from one
//! state to the next; [`view`] shows it. Begin with [`record`], then [`machine`].

pub mod id;
pub mod machine;
pub mod owner;
pub mod record;
pub mod retention;
pub mod view;

pub use id::TaskId;
pub use machine::{Effect, Event, Refusal, apply};
pub use owner::Owner;
pub use record::{Record, State};
