//! What bounds the proxy: each limit driven to its end.
//!
//! | file | |
//! |---|---|
//! | `program.rs` | the program itself, to look at what it takes |
//! | `log.rs` | a log that nobody reads |

mod log;
mod program;
