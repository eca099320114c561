//! Where the task engine meets the outside: requests that are dropped, and a store that is slow, full or fails.

mod dropped_requests;
mod engine_and_server;
mod full_store;
mod memory_server;
mod recount;
mod slow_store;
