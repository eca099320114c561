//! The build layer: each key declared once, with its default, range and cross checks, and converted into the
//! `Config` type of the part that uses it.
//!
//! A file has the keys of one section. A check across keys is beside the later of them. Begin with `file`.

mod access;
mod admin;
mod defer;
mod file;
mod header_names;
mod held;
mod limits;
mod listeners;
mod matches;
mod process;
mod request_state;
mod rollout;
mod route;
mod server;
mod store;
mod tasks;
mod telemetry;
mod tickets;
mod tls;
mod tools;
mod upstream_http;

pub use access::host;
pub use defer::{parse_mode, parse_tool_mode};
pub use file::{Config, ConfigWarnings, read_config_file};
pub use listeners::DEFAULT_LISTEN;
pub use matches::parse_pattern;
pub use process::{DrainTimes, LogFormat, parse_log_format, parse_log_level};
pub use route::{DEFAULT_PATH, RouteConfig};
pub use server::parse_instances;
pub use store::{StoreConfig, StoreKeySource, parse_store};
