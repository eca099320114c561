//! Replacement of tracing in builds without the feature `otlp`: zero-sized types that do nothing.

use super::{AttributeValue, ExportSettings, SpanKind, TraceSources};
use crate::protocol::TraceContext;
use std::time::Duration;

/// Begins spans that record nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(());

/// A span that records nothing.
#[derive(Debug, Default)]
pub struct Span(());

/// The handle of an exporter that exports nothing.
#[derive(Debug)]
pub struct ExporterHandle;

/// Returns a tracer that records nothing.
pub fn start(
    _settings: &ExportSettings,
    TraceSources { now, random }: TraceSources,
) -> (Tracer, ExporterHandle) {
    let _ = (now, random);
    (Tracer(()), ExporterHandle)
}

// === impl ExporterHandle ===

impl ExporterHandle {
    /// Returns at once, because there is nothing to send.
    pub async fn close(self, _limit: Duration) {}
}

// === impl Tracer ===

impl Tracer {
    /// Whether tracing is on: always `false`.
    pub const fn is_on(&self) -> bool {
        false
    }

    /// Begins a span that records nothing.
    pub fn begin(
        &self,
        _kind: SpanKind,
        _parent: Option<&TraceContext>,
        _name: impl FnOnce() -> String,
    ) -> Span {
        Span(())
    }
}

// === impl Span ===

impl Span {
    /// Whether the span is recorded: always `false`.
    pub const fn is_recorded(&self) -> bool {
        false
    }

    /// The context to propagate: always `None`.
    pub const fn context(&self) -> Option<&TraceContext> {
        None
    }

    /// The context of the parent: always `None`.
    pub const fn parent(&self) -> Option<TraceContext> {
        None
    }

    /// Ignores the attribute.
    pub fn set(&mut self, _key: &'static str, _value: impl Into<AttributeValue>) {}

    /// Ignores the event.
    pub fn event<const N: usize>(&mut self, _name: &'static str, _with: [(&'static str, AttributeValue); N]) {
    }

    /// Ignores the link.
    pub fn link(&mut self, _to: &TraceContext) {}

    /// Ignores the failure.
    pub fn fail(&mut self, _kind: impl Into<AttributeValue>, _message: Option<&str>) {}
}
