//! A transparent reverse proxy for the Model Context Protocol that turns slow tool calls into tasks.
//!
//! This library is the program, and promises nothing to other programs: what it does is in the
//! README, and why it does so in the [manual]. This page is the map for whoever opens the source.
//!
//! # The way of a call
//!
//! 1. `front` accepts the connection, refuses what may not come in, and finds which face of the proxy
//!    the client speaks to: that of 2026-07-28 or that of the older revisions.
//! 2. `dialect` reads what the client sent, as far as it has to be understood.
//! 3. `policy` says which route it is for, and whether and when it becomes a task; `bridge` plans
//!    from that, and from what the client declared, what is to become of it.
//! 4. `proxy` carries the plan out. A call that is driven is an `Exchange` of `bridge`, which decides
//!    without waiting; what waits and sends is here. The call of an older client to an older server
//!    passes as bytes (`proxy::relay`).
//! 5. `upstream` says it in the server's words, over its transport, and gives what comes back in ours:
//!    notifications, questions, the end.
//! 6. When the threshold passes first, the same call, never a second one, goes on in work of its own;
//!    `task` says what state it may move to, `store` keeps its record, and the client gets a handle.
//!
//! # What is where
//!
//! | folder | |
//! |---|---|
//! | `cli` | what people type, a file for each command, and what they are shown |
//! | `client` | a small client: calls a tool, follows its task, hands on what is asked |
//! | `demo` | the slow server that the demo shows |
//! | `config` | the configuration: read, checked, and given to each part as what it asks for |
//! | `app` | builds every part and joins them; begins here and ends here |
//! | `admin` | the operator's address |
//! | `front` | where clients come in |
//! | `proxy` | what is done with a request; tasks, and who listens to them |
//! | `upstream` | the servers behind: connections, sessions, who is asked what |
//! | `store` | where records of tasks are kept |
//! | `telemetry` | the access line and other happenings; the log, the counts and the traces they go to |
//! | `runtime` | the clock, randomness, the network and its descriptors, and the signal to stop |
//! | `bridge` | one era's messages for a client of the other, and what becomes of a call |
//! | `dialect` | what clients send, read; an older server's words, raised |
//! | `policy` | what the operator wants, as values |
//! | `task` | the states of a task, and how each revision is shown one |
//! | `protocol` | messages, headers, event streams: the words of the specification |
//!
//! The last five are pure: they know no socket, no clock, no store and no randomness. Each folder may
//! name only those below it; `tests/it/architecture/mod.rs` has the table, and holds the tree to it.
//!
//! # Where to begin
//!
//! With [`manual::tenets`], a page long; then the front page (`mod.rs`) of the folder in question.
//! For the whole way at once: `front/stack.rs`, `proxy/endpoint.rs`, `bridge/exchange.rs`.

mod admin;
mod app;
mod bridge;
mod cli;
mod client;
mod config;
mod demo;
mod dialect;
mod front;
#[doc(hidden)]
pub mod internals;
pub mod manual;
mod policy;
mod protocol;
mod proxy;
mod runtime;
mod store;
mod task;
mod telemetry;
mod upstream;

pub use cli::run;
