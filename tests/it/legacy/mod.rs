//! The whole proxy between a legacy client and a scripted legacy server, over real sockets: the client gets the
//! bytes of the server in its own revision.

mod cancelled_requests;
mod client_disconnects;
mod eras;
mod event_ids;
mod event_streams;
mod message_shapes;
mod observe_mode;
pub(crate) mod proxy_and_client;
pub(crate) mod recorded_session;
mod relayed_messages;
mod relayed_responses;
mod request_retries;
mod server_errors;
mod session_delete;
mod sessions;
mod slow_calls;
mod stream_resumption;
mod tasks;
mod unsolicited_tasks;
