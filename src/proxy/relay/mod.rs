//! Passing a legacy client's request on to a legacy server, and the answer back, as the bytes that came.
//!
//! `forward` sends the request and begins the answer; `answer` is the answer on its way, of which
//! [`bridge::Relay`](crate::bridge::Relay) decides; `deferred_head` begins one without its server. `sent` is the
//! request while it is under way, and `requester` knows to whom its answer is owed. What is changed of the bytes: one
//! message by an [`Edit`]; `session_stream` takes out what is said of calls of ours, and `event_ids` gives events
//! ids where the server gives none.

mod answer;
mod deferred_head;
pub(super) mod event_ids;
mod forward;
mod requester;
mod sent;
mod session_stream;

pub(super) use answer::Edit;
pub(super) use event_ids::Minted;
pub(super) use forward::pass;
pub(super) use sent::untold;
