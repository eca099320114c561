//! What bounds the proxy: each limit driven to its end, and the time that reading takes.
//!
//! A limit is looked at from three sides: what the process keeps in memory, its descriptors, and
//! whether other callers are served while somebody else has used it up.
//!
//! | file | |
//! |---|---|
//! | `program.rs` | the program itself, to look at what it takes |
//! | `growth.rs` | twice the bytes take at most about twice the time |
//! | `bodies.rs` | bodies of requests, unfinished ones too |
//! | `identities.rs` | what callers declare and are known by |
//! | `listed.rs` | the manual's list of all bounds is true, and complete |
//! | `driven.rs` | which test drives which bound to its end |
//! | `counted.rs` | which test looks at the count of which limit |
//! | `clients.rs` | what clients may take |
//! | `settings.rs` | what a configuration may take |
//! | `log.rs` | a log that nobody reads |
//! | `loops.rs` | a proxy in front of itself |

mod bodies;
mod clients;
mod counted;
mod driven;
mod growth;
mod identities;
mod listed;
mod log;
mod loops;
mod program;
mod settings;
