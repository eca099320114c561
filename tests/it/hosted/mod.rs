//! Legacy clients in front of a server that is not spoken to over HTTP: the whole proxy, whose clients' sessions
//! are hosted.

mod calls;
mod process;
mod questions;
mod sessions;
mod streams;
mod tasks;
pub(crate) mod world;
