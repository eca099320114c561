//! A transparent reverse proxy for the Model Context Protocol that turns slow tool calls into tasks.

pub mod admin;
pub mod app;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod dialect;
pub mod front;
pub mod manual;
pub mod policy;
pub mod protocol;
pub mod proxy;
pub mod runtime;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod upstream;
