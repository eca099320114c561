//! The whole proxy between a modern client and a scripted legacy server, over real sockets.
//!
//! Nothing sleeps: the server answers when a test says so, and what a test waits for is an event.
//! Where a test says that something does *not* happen, it waits for something that comes after it.

pub(crate) mod call_resumption;
mod client_disconnects;
mod client_headers;
mod concurrent_callers;
mod deferred_calls;
mod log_events;
mod param_headers;
mod principals;
mod process_kills;
pub(crate) mod program;
pub(crate) mod proxy_and_server;
mod quotas;
pub(crate) mod restart;
mod result_delivery;
mod server_faults;
mod server_info;
mod shutdown;
mod sign_in;
mod slow_calls;
mod store_failures;
mod subscriptions;
mod task_cancel;
mod task_policies;
mod tokens;
mod translation;
mod transport;
mod undeclared_capabilities;
mod unsupported_methods;
