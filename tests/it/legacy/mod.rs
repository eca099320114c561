//! The whole proxy between a legacy client and a scripted legacy server, over real sockets: the
//! client meets its own protocol, and the server's bytes.

mod departed;
mod eras;
mod errors;
mod farewells;
mod held;
mod minted;
mod observed;
mod passing;
pub(crate) mod recorded;
mod relayed;
mod repeats;
mod resuming;
mod sessions;
mod shapes;
mod streams;
mod taken_back;
mod tasks;
mod unsolicited;
pub(crate) mod world;
