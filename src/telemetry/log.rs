//! Where what is told goes: standard error, a line each.

use std::io::{self, IsTerminal};
use tracing_subscriber::{EnvFilter, fmt};

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// A JSON object.
    Json,
}

/// Begins to write the log, for the whole process. `DEFERRAL_LOG` chooses what (`info` by default), in
/// the syntax of `tracing`'s filters: `warn,deferral::task=info`.
///
/// Once only: a second call changes nothing.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_env("DEFERRAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let _ = match format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
}
