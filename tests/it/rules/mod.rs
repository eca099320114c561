//! Settings of a route and its tool rules: denied tools, concurrency, rates, timeouts, headers.

mod call_rates;
mod concurrency;
mod denied_tools;
mod response_headers;
mod timeouts;
