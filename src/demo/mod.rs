//! What `deferral demo` puts the proxy in front of: a slow legacy server of its own.
//!
//! `server` is the server and its tools, `booking` the tool that asks its caller something.

mod booking;
mod server;

pub use booking::NAME as BOOKING;
pub use server::{PATH, serve};
