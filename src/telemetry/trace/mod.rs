//! Traces: a span for each request of a client and for each request to a server, exported over OTLP.
//!
//! A [`Tracer`] begins [`Span`]s; a span is exported when it is dropped. Spans of client requests begin in
//! `front::layers::span`, those of requests to servers in `proxy::drive`. Attributes follow the semantic
//! conventions for MCP ([`crate::manual::traces`]) and never contain requests or responses. A
//! [`TraceContext`](crate::protocol::TraceContext) identifies a span to other programs.
//!
//! `mcp` has the common attributes, `settings` the configuration, `span` the recorded data, and `otlp` the
//! export. Only `otlp` knows the protocol; without the feature of that name, `absent` replaces all of it.
//!
//! OTLP is implemented here, because OpenTelemetry's SDK would add eighteen crates, a second version of one,
//! and a batch processor whose thread cannot drive a hyper client. The encoder is a page of protobuf, which
//! tests decode with OpenTelemetry's own definitions.

#[cfg(not(feature = "otlp"))]
mod absent;
pub mod mcp;
#[cfg(feature = "otlp")]
mod otlp;
pub mod settings;
#[cfg(feature = "otlp")]
mod span;

#[cfg(not(feature = "otlp"))]
pub use absent::{ExporterHandle, Span, Tracer, start};
#[cfg(feature = "otlp")]
pub use otlp::{ExporterHandle, start};
pub use settings::ExportSettings;
#[cfg(feature = "otlp")]
pub use span::{Span, Tracer};

use std::time::SystemTime;

/// The kind of a span, as OpenTelemetry defines it from the view of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The proxy handles a request of a client.
    Server,
    /// The proxy sends a request to a server.
    Client,
}

/// The value of a span attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text that is known at compile time.
    Static(&'static str),
    /// A text of a message or of the configuration.
    Text(Box<str>),
    Integer(i64),
    Boolean(bool),
}

/// Clock and randomness for spans.
#[derive(Clone, Copy)]
pub struct TraceSources {
    /// The wall clock, which spans of other programs in the same trace use as well.
    pub now: fn() -> SystemTime,
    /// Random bytes: 16 for a trace id, 8 for a span id.
    pub random: fn() -> [u8; 24],
}

// === impl AttributeValue ===

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}
