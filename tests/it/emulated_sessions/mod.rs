//! Emulated sessions: legacy clients of the whole proxy, in front of a stdio server.

mod calls;
mod input_requests;
pub(crate) mod proxy_and_stdio_server;
mod real_process;
mod sessions;
mod streams;
mod tasks;
