//! What a route and its rules of tools allow: denied tools, calls at a time, in a minute, and how long.

mod concurrency;
mod denied;
mod rates;
mod timeouts;
