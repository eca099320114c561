//! Input requests during a call: the whole proxy between a server that sends them and modern clients that answer,
//! over real sockets.
//!
//! Nothing sleeps. Where time must pass, something that takes that time is waited for; where a test
//! says that something does *not* happen, it waits for what comes after it.

mod asking_server_and_client;
mod attribution;
mod before_a_task;
mod caller_isolation;
mod capabilities;
mod in_a_task;
mod park_expiry;
mod request_state;
mod retries;
mod session_leases;
mod threshold;
mod transports;
mod url_elicitation;
