//! The recorded data of spans, from their beginning until they are dropped.

use super::{AttributeValue, SpanKind, TraceSources, settings::TraceSampler};
use crate::protocol::{
    TraceContext,
    trace_context::{RANDOM, SAMPLED},
};
use smallvec::SmallVec;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};
use tokio::sync::mpsc;

/// Begins spans; does nothing if tracing is off. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<SpanRecorder>>);

/// The sampler, the clock and the export queue of a tracer.
pub(super) struct SpanRecorder {
    pub(super) sampler: TraceSampler,
    pub(super) sources: TraceSources,
    /// The queue of ended spans, which the exporter reads.
    pub(super) queue: mpsc::Sender<Box<SpanRecord>>,
    /// Number of spans that did not fit into the queue.
    pub(super) dropped: Arc<AtomicU64>,
}

/// A span, which ends when it is dropped. It is empty if tracing is off, and has only a context to propagate
/// if the trace is not sampled.
#[derive(Default)]
pub struct Span(Option<Box<LiveSpan>>);

/// The state of a span while tracing is on.
struct LiveSpan {
    /// The trace context of the span, to be propagated.
    context: TraceContext,
    /// The recorded data, and its recorder; `None` if the trace is not sampled.
    record: Option<(Box<SpanRecord>, Arc<SpanRecorder>)>,
}

/// The data of a span that is exported.
#[derive(Debug)]
pub(super) struct SpanRecord {
    pub(super) context: TraceContext,
    pub(super) parent: Option<SpanParent>,
    pub(super) kind: SpanKind,
    pub(super) name: String,
    pub(super) began: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) attributes: SmallVec<[(&'static str, AttributeValue); 10]>,
    pub(super) events: Vec<SpanEvent>,
    /// The number of events beyond [`MAX_EVENTS`], which are not recorded.
    pub(super) events_omitted: u32,
    pub(super) links: SmallVec<[TraceContext; 1]>,
    /// The error message if the span failed; empty if it has none.
    pub(super) error_message: Option<Box<str>>,
}

/// The parent of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanParent {
    pub(super) span: [u8; 8],
    /// Whether the parent belongs to another process.
    pub(super) is_remote: bool,
}

/// An event of a span.
#[derive(Debug)]
pub(super) struct SpanEvent {
    pub(super) at: SystemTime,
    pub(super) name: &'static str,
    pub(super) attributes: SmallVec<[(&'static str, AttributeValue); 2]>,
}

/// Maximum number of events of a span; further ones are only counted. The OpenTelemetry SDKs use the same
/// number.
const MAX_EVENTS: usize = 128;

/// Maximum number of links of a span.
const MAX_LINKS: usize = 8;

// === impl Tracer ===

impl Tracer {
    pub(super) fn new(recorder: SpanRecorder) -> Self {
        Self(Some(Arc::new(recorder)))
    }

    /// Whether tracing is on.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span. The parent of a `Server` span is the client's span, that of a `Client` span is a
    /// `Server` span; without a parent, a new trace begins. `name` is called only if the span is recorded.
    pub fn begin(
        &self,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        name: impl FnOnce() -> String,
    ) -> Span {
        let Some(recorder) = &self.0 else { return Span::default() };
        let [trace, span] = split_ids((recorder.sources.random)());
        let trace = parent.map_or(trace, |parent| parent.trace);
        let mut context = match parent {
            Some(parent) => parent.with_span(last_eight(span)),
            None => TraceContext { trace, span: last_eight(span), flags: RANDOM, state: None },
        };
        // The sampling decision of the `Server` span applies to its children.
        let is_sampled = match (kind, parent) {
            (SpanKind::Client, Some(parent)) => parent.is_sampled(),
            (SpanKind::Client | SpanKind::Server, _) => recorder.sampler.is_sampled(&trace, parent),
        };
        context.flags = context.flags & !SAMPLED | if is_sampled { SAMPLED } else { 0 };
        let record = is_sampled.then(|| {
            let now = (recorder.sources.now)();
            let parent =
                parent.map(|parent| SpanParent { span: parent.span, is_remote: kind == SpanKind::Server });
            let record = SpanRecord {
                context: context.clone(),
                parent,
                kind,
                name: name(),
                began: now,
                ended: now,
                attributes: SmallVec::new(),
                events: Vec::new(),
                events_omitted: 0,
                links: SmallVec::new(),
                error_message: None,
            };
            (Box::new(record), Arc::clone(recorder))
        });
        Span(Some(Box::new(LiveSpan { context, record })))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

/// Splits random bytes into a trace id and a span id. All zeros are invalid, and are replaced.
fn split_ids(random: [u8; 24]) -> [[u8; 16]; 2] {
    let (mut trace, mut span) = ([0; 16], [0; 16]);
    trace.copy_from_slice(&random[..16]);
    span[8..].copy_from_slice(&random[16..]);
    [trace, span].map(|id| if id == [0; 16] { [1; 16] } else { id })
}

/// The last eight bytes.
fn last_eight([.., a, b, c, d, e, f, g, h]: [u8; 16]) -> [u8; 8] {
    [a, b, c, d, e, f, g, h]
}

// === impl Span ===

impl Span {
    /// The recorded data and its recorder; `None` if the span is not recorded.
    fn record_mut(&mut self) -> Option<(&mut SpanRecord, &SpanRecorder)> {
        let (record, recorder) = self.0.as_mut()?.record.as_mut()?;
        Some((record, recorder))
    }

    /// Whether the span is recorded and will be exported.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.record.is_some())
    }

    /// The trace context to propagate to other programs; `None` if tracing is off.
    pub fn context(&self) -> Option<&TraceContext> {
        self.0.as_ref().map(|live| &live.context)
    }

    /// The trace context of the parent; `None` if the span is not recorded or has no parent.
    pub fn parent(&self) -> Option<TraceContext> {
        let (record, _) = self.0.as_ref()?.record.as_ref()?;
        let parent = record.parent?;
        Some(TraceContext { state: None, ..record.context.with_span(parent.span) })
    }

    /// Sets an attribute. A key must not be set twice.
    pub fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        if let Some((record, _)) = self.record_mut() {
            record.attributes.push((key, value.into()));
        }
    }

    /// Adds an event with the current time.
    pub fn event<const N: usize>(
        &mut self,
        name: &'static str,
        attributes: [(&'static str, AttributeValue); N],
    ) {
        let Some((record, recorder)) = self.record_mut() else { return };
        if record.events.len() >= MAX_EVENTS {
            record.events_omitted = record.events_omitted.saturating_add(1);
            return;
        }
        let at = (recorder.sources.now)();
        record.events.push(SpanEvent { at, name, attributes: SmallVec::from_iter(attributes) });
    }

    /// Links the span to another one that is not its parent. Links beyond [`MAX_LINKS`] are ignored.
    pub fn link(&mut self, target: &TraceContext) {
        if let Some((record, _)) = self.record_mut()
            && record.links.len() < MAX_LINKS
        {
            record.links.push(target.clone());
        }
    }

    /// Marks the span as failed. `kind` is the attribute `error.type`; `message` is in the proxy's own words,
    /// if there is one.
    pub fn fail(&mut self, kind: impl Into<AttributeValue>, message: Option<&str>) {
        if let Some((record, _)) = self.record_mut() {
            record.attributes.push(("error.type", kind.into()));
            record.error_message = Some(message.unwrap_or_default().into());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some((mut record, recorder)) = self.0.take().and_then(|live| live.record) else { return };
        // The wall clock may have been set back, but a span must not end before it began.
        record.ended = (recorder.sources.now)().max(record.began);
        if recorder.queue.try_send(record).is_err() {
            recorder.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context() {
            Some(context) => write!(f, "Span({context})"),
            None => f.write_str("Span(off)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tracer(share: f64, room: usize) -> (Tracer, mpsc::Receiver<Box<SpanRecord>>, Arc<AtomicU64>) {
        static DRAWN: AtomicU64 = AtomicU64::new(1);
        let now = || SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let random = || {
            let mut drawn = [7; 24];
            drawn[16..].copy_from_slice(&DRAWN.fetch_add(1, Ordering::Relaxed).to_be_bytes());
            drawn
        };
        let (ended, received) = mpsc::channel(room);
        let dropped = Arc::<AtomicU64>::default();
        let sampler = TraceSampler { share, ..TraceSampler::default() };
        let recorder = SpanRecorder {
            sampler,
            sources: TraceSources { now, random },
            queue: ended,
            dropped: Arc::clone(&dropped),
        };
        (Tracer::new(recorder), received, dropped)
    }

    fn named() -> String {
        "n".to_owned()
    }

    #[test]
    fn a_span_is_sent_when_it_is_dropped() {
        let (tracer, mut received, _) = tracer(1.0, 8);
        let mut server = tracer.begin(SpanKind::Server, None, named);
        let client = tracer.begin(SpanKind::Client, server.context(), named);
        server.set("k", 1);
        server.event("e", [("a", true.into())]);
        server.fail("timeout", None);
        assert!(received.try_recv().is_err());
        let outer = server.context().expect("it is on").clone();
        drop((client, server));
        let (client, server) = (received.try_recv().unwrap(), received.try_recv().unwrap());
        assert_eq!(client.context.trace, outer.trace);
        assert_eq!(client.parent, Some(SpanParent { span: outer.span, is_remote: false }));
        assert_eq!((server.parent, server.events.len()), (None, 1));
        assert_eq!(server.attributes[..], [("k", 1.into()), ("error.type", "timeout".into())]);
        assert!(server.error_message.is_some());
    }

    #[test]
    fn an_unsampled_span_is_propagated_but_not_recorded() {
        let (tracer, mut received, _) = tracer(0.0, 8);
        let server = tracer.begin(SpanKind::Server, None, || unreachable!("the name is not needed"));
        let context = server.context().expect("it is on").clone();
        assert!(!context.is_sampled() && !server.is_recorded());
        let client = tracer.begin(SpanKind::Client, Some(&context), named);
        assert_eq!(client.context().unwrap().trace, context.trace);
        drop((server, client));
        assert!(received.try_recv().is_err());
    }

    #[test]
    fn spans_that_do_not_fit_are_counted_without_waiting() {
        let (tracer, _received, dropped) = tracer(1.0, 3);
        for _ in 0..10 {
            tracer.begin(SpanKind::Server, None, named);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_span_has_a_limited_number_of_events_and_links() {
        let (tracer, mut received, _) = tracer(1.0, 1);
        let mut span = tracer.begin(SpanKind::Client, None, named);
        let other = span.context().unwrap().clone();
        for _ in 0..MAX_EVENTS + 5 {
            span.event("e", []);
            span.link(&other);
        }
        drop(span);
        let span = received.try_recv().unwrap();
        assert_eq!((span.events.len(), span.events_omitted, span.links.len()), (MAX_EVENTS, 5, MAX_LINKS));
    }

    #[test]
    fn a_disabled_tracer_records_nothing() {
        let mut span = Tracer::default().begin(SpanKind::Server, None, || unreachable!());
        span.set("k", 1);
        assert!(span.context().is_none() && !span.is_recorded());
        assert_eq!(size_of::<Span>(), size_of::<usize>());
    }
}
