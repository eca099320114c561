//! What several topics need.

pub(crate) mod clients;
#[cfg(feature = "otlp")]
pub(crate) mod collector;
pub(crate) mod connect_proxy;
pub(crate) mod faulty;
pub(crate) mod hits;
pub(crate) mod json;
pub(crate) mod program;
pub(crate) mod servers;
pub(crate) mod time;
