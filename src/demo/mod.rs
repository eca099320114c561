//! The server behind the proxy of `deferral demo`: slow, and legacy.
//!
//! `server` is the server and its tools, `booking` the tool with an input request.

mod booking;
mod server;

pub use booking::NAME as BOOKING;
pub use server::{PATH, serve};
