//! The whole proxy between a modern client and a scripted legacy server, over real sockets.
//!
//! Nothing sleeps: the server answers when a test says so, and what a test waits for is an event.
//! Where a test says that something does *not* happen, it waits for something that comes after it.

mod cancelling;
mod crashes;
mod crowd;
mod deferring;
mod faults;
mod fetched;
mod gates;
mod held;
mod identified;
mod leaving;
mod listening;
mod mirrored;
mod own_headers;
mod passing;
mod policies;
mod principals;
pub(crate) mod program;
mod questions;
mod quotas;
pub(crate) mod restart;
mod shutdown;
mod sign_in;
mod store;
pub(crate) mod taking_up;
mod tokens;
mod told;
mod transport;
pub(crate) mod world;
