//! The server behind the proxy in `deferral demo`: slow, and legacy.
//!
//! `server` is the server and its tools, `booking` the tool that sends an input request.

mod booking;
mod server;

pub use booking::TOOL_NAME as BOOKING;
pub use server::{PATH, serve};
