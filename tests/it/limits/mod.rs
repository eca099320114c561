//! Limits: each is driven to its end, and reading takes time in proportion to the input.
//!
//! Tests of a limit look at the memory of the process, its descriptors, and whether other calls are served while one client
//! has used the limit up.
//!
//! | file | |
//! |---|---|
//! | `program.rs` | harness: the program itself, whose memory and descriptors are read |
//! | `linear_time.rs` | twice the bytes take at most about twice the time |
//! | `request_bodies.rs` | bodies of requests, unfinished ones too |
//! | `identities.rs` | what clients declare, and how they are recognised |
//! | `manual_list.rs` | the manual's list of limits is true and complete |
//! | `test_of_each_limit.rs` | the test that drives each limit to its end |
//! | `hit_counts.rs` | the test that checks the metric of each limit |
//! | `clients.rs` | memory, connections and streams that clients take |
//! | `configuration_size.rs` | configurations without end or bottom |
//! | `stalled_log.rs` | a log whose reader stalls, or whose disk is full |
//! | `proxy_loops.rs` | a proxy in front of itself |
mod clients;
mod configuration_size;
mod hit_counts;
mod identities;
mod linear_time;
mod manual_list;
mod program;
mod proxy_loops;
mod request_bodies;
mod stalled_log;
mod test_of_each_limit;
