//! The task engine with dropped requests, and with stores that are slow, full or fail.

mod dropped_requests;
mod engine_and_server;
mod full_store;
mod memory_server;
mod recount;
mod slow_store;
