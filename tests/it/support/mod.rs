//! Servers, clients, clocks and stores that several topics use.

#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod connect_proxy;
pub(crate) mod faulty_store;
pub(crate) mod legacy_server;
pub(crate) mod limit_hits;
pub(crate) mod modern_client;
pub(crate) mod paused_time;
pub(crate) mod program;
pub(crate) mod random_json;
pub(crate) mod tls_server;
