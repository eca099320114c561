//! Where the task engine meets the outside: requests that are dropped, and a store that is slow, full or fails.

mod dropped_requests;
mod full_store;
mod recount;
mod server;
mod slow_store;
mod world;
