//! Legacy clients in front of a server that is not spoken to over HTTP: the whole proxy, whose clients' sessions
//! are hosted.

mod calls;
mod input_requests;
pub(crate) mod proxy_and_stdio_server;
mod real_process;
mod sessions;
mod streams;
mod tasks;
