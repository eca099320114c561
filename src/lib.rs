//! A transparent reverse proxy for the Model Context Protocol that turns slow tool calls into tasks.
//!
//! This library is the program, and has no stable API for other crates. The README describes what the program
//! does, and the [manual] explains why. This page is the map of the source.
//!
//! # The path of a call
//!
//! 1. `front` accepts the connection, refuses requests that are not allowed, and selects the face for the
//!    client's era: that of 2026-07-28 or that of the legacy revisions.
//! 2. `dialect` reads the client's message, as far as it must be understood.
//! 3. `policy` selects the route, and whether and when the call becomes a task; `bridge` chooses a plan from
//!    that and from the client's capabilities.
//! 4. `proxy` carries the plan out. A driven call has an `Exchange` of `bridge`, a pure state machine; the
//!    code that waits and sends is here. The call of a legacy client to a legacy server is relayed as bytes
//!    (`proxy::relay`).
//! 5. `upstream` sends the call in the server's era, over its transport, and translates its messages:
//!    notifications, input requests, the end.
//! 6. If the threshold passes first, the same call, never a second one, continues in a runtime task of its
//!    own; `task` determines the states it may enter, `store` keeps its record, and the client gets a handle.
//!
//! # The folders
//!
//! | folder | |
//! |---|---|
//! | `cli` | the commands, a file for each, and their output |
//! | `client` | a small client: calls a tool, follows its task, relays input requests |
//! | `demo` | the slow server of the demo |
//! | `config` | the configuration: read, checked, and converted into the settings of each part |
//! | `app` | builds and joins all parts; starts and stops them |
//! | `admin` | the admin listener |
//! | `front` | the listeners for clients |
//! | `proxy` | the handling of requests; tasks and their watchers |
//! | `upstream` | the upstream servers: connections, sessions, transports |
//! | `store` | the storage of task records |
//! | `telemetry` | the access log and other events; the log, metrics and traces |
//! | `runtime` | the clock, randomness, the network and its descriptors, and the shutdown signal |
//! | `bridge` | translation between the eras, and the outcome of a call |
//! | `dialect` | client messages, read; a legacy server's messages, translated |
//! | `policy` | the operator's settings as values |
//! | `task` | the states of a task, and its view in each revision |
//! | `protocol` | messages, headers, event streams: the terms of the specification |
//!
//! The last five are pure: they know no socket, no clock, no store and no randomness. Each folder may use
//! only those below it; `tests/it/architecture/mod.rs` has the table and checks it.
//!
//! # Where to begin
//!
//! With [`manual::tenets`], a page long; then the front page (`mod.rs`) of the folder in question. For the
//! whole path at once: `front/stack.rs`, `proxy/endpoint.rs`, `bridge/exchange.rs`.

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
