//! What a route and its rules of tools allow and add: denied tools, calls at a time, in a minute, and how long; headers.

mod call_rates;
mod concurrency;
mod denied_tools;
mod response_headers;
mod timeouts;
