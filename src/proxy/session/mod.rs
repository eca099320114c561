//! The sessions of legacy clients, as far as they are known here.
//!
//! A session is the server's own; what is kept of it beside is in these files, each with its bound: which
//! sessions are there (`presence`) and of which revision (`revisions`); what is asked in them and has been
//! taken back, and which of them are over (`cancelled_requests`); whose answers broke off and may be come
//! back for (`unfinished`); the calls in flight, and so whose a question is that names no call (`in_flight`);
//! the questions that stand on a call's own stream (`relayed_questions`); and the streams on which a session
//! listens (`streams`).

mod cancelled_requests;
mod in_flight;
mod presence;
pub(super) mod relayed_questions;
mod revisions;
mod streams;
mod unfinished;

pub(super) use cancelled_requests::{Asked, Ended};
pub(super) use in_flight::{Resident, Residents, Theirs};
pub(super) use presence::{Sessions, Watched};
pub(super) use relayed_questions::Plain;
pub(super) use revisions::Revisions;
pub(super) use streams::{Follower, Key, Stream, Streams, next_line};
pub(super) use unfinished::{Left, Place, Unfinished};
