//! Passing a legacy client's request on to a legacy server, and the answer back, as the bytes that came.
//!
//! `forward` sends the request and begins the answer; `response` is the answer on its way, of which
//! [`bridge::ResponseRelay`](crate::bridge::ResponseRelay) decides; `deferred_head` begins one without its server. `forwarded_request` is the
//! request while it is under way, and `requester` knows to whom its answer is owed. What is changed of the bytes: one
//! message by an [`ResponseEdit`]; `session_stream` takes out what is said of calls of ours, and `event_ids` gives events
//! ids where the server gives none.

mod deferred_head;
pub(super) mod event_ids;
mod forward;
mod forwarded_request;
mod requester;
mod response;
mod session_stream;

pub(super) use event_ids::ReplayBuffers;
pub(super) use forward::forward;
pub(super) use forwarded_request::transport_error;
pub(super) use response::ResponseEdit;
