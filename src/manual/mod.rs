//! Why things are as they are. Each page is a chapter; the code's own pages say how.
//!
//! Begin with [`tenets`]; [`passthrough`] is the complete list of what the proxy changes,
//! [`limits`] that of its bounds.

#[doc = include_str!("tenets.md")]
pub mod tenets {}

#[doc = include_str!("dialects.md")]
pub mod dialects {}

#[doc = include_str!("passthrough.md")]
pub mod passthrough {}

#[doc = include_str!("engine.md")]
pub mod engine {}

#[doc = include_str!("tasks.md")]
pub mod tasks {}

#[doc = include_str!("durable.md")]
pub mod durable {}

#[doc = include_str!("questions.md")]
pub mod questions {}

#[doc = include_str!("sessions.md")]
pub mod sessions {}

#[doc = include_str!("processes.md")]
pub mod processes {}

#[doc = include_str!("configuration.md")]
pub mod configuration {}

#[doc = include_str!("access.md")]
pub mod access {}

#[doc = include_str!("connections.md")]
pub mod connections {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("log.md")]
pub mod log {}

#[doc = include_str!("operate.md")]
pub mod operate {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

#[doc = include_str!("traces.md")]
pub mod traces {}

#[doc = include_str!("page.md")]
pub mod page {}

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc = include_str!("rollout.md")]
pub mod rollout {}

#[doc = include_str!("tickets.md")]
pub mod tickets {}

#[doc = include_str!("reload.md")]
pub mod reload {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}
