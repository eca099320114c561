//! Servers that ask in the middle of a call, and modern clients that answer: the whole proxy
//! between the two, over real sockets.
//!
//! Nothing sleeps. Where time must pass, something that takes that time is waited for; where a test
//! says that something does *not* happen, it waits for what comes after it.

mod abandoned;
mod addresses;
mod attribution;
mod before_a_task;
mod capabilities;
mod crosstalk;
mod in_a_task;
mod leases;
mod rounds;
mod states;
mod talk;
mod threshold;
mod wires;
