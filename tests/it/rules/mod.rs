//! What a route and its rules of tools allow and add: denied tools, calls at a time, in a minute, and how long; headers.

mod concurrency;
mod denied;
mod headers;
mod rates;
mod timeouts;
