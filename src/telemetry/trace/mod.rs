//! Traces: a span for each request of a client, one for each call of a server, sent to a collector over OTLP.
//!
//! A [`Tracer`] makes [`Span`]s; a span is sent when it is dropped. Those of requests are made in `front::layers::span`, those of
//! servers' calls in `proxy::drive`. Whoever makes one says what it is about in the
//! names of the semantic conventions for MCP ([`crate::manual::traces`]), and never what was sent or came back. What
//! names a span to others is a [`TraceContext`](crate::protocol::TraceContext).
//!
//! `mcp` is what every one of them says, `settings` what the operator has set, `span` what is recorded, `otlp` the way to the collector. Nobody else
//! knows of OTLP, and without the feature `otlp` there is nothing behind these names (`absent`).
//!
//! OTLP is written here, not by the SDK of OpenTelemetry: that is eighteen crates more, a second version of one we have, and a
//! processor with a thread of its own that no hyper client can be driven by. What is sent is a page of protobuf, read back in
//! the tests by OpenTelemetry's own definitions.

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

/// What a span is asked for, or does itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A client's request is answered.
    Server,
    /// A server is asked.
    Client,
}

/// What something is, beside its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Word(&'static str),
    Text(Box<str>),
    Number(i64),
    Truth(bool),
}

/// What traces need of the world.
#[derive(Clone, Copy)]
pub struct TraceSources {
    /// The wall clock: other programs' spans of the same trace have its times, too.
    pub now: fn() -> SystemTime,
    /// By chance: 16 bytes for a trace, 8 for a span.
    pub random: fn() -> [u8; 24],
}

// === impl Value ===

impl From<&'static str> for AttributeValue {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}
