//! Relays a legacy client's request to a legacy server, and the response back, byte for byte.
//!
//! `forward` sends the request and begins the response; `response` relays the body as
//! [`bridge::ResponseRelay`](crate::bridge::ResponseRelay) decides; `deferred_head` begins a response before
//! its server does. `forwarded_request` is the state of the request in flight, and `requester` records which
//! JSON-RPC requests are owed a response. Bytes are changed only in these ways: one message by a
//! [`ResponseEdit`]; `session_stream` removes messages about the proxy's own calls; `event_ids` adds event
//! ids where the server sends none.

mod deferred_head;
pub(super) mod event_ids;
mod forward;
mod forwarded_request;
pub(super) mod legacy_http;
mod requester;
mod response;
mod session_stream;

pub(super) use event_ids::ReplayBuffers;
pub(super) use forward::forward;
pub(super) use forwarded_request::transport_error;
pub(super) use response::ResponseEdit;
