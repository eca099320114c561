//! Spans as `ExportTraceServiceRequest` of OTLP 1.x (`opentelemetry/proto/trace/v1/trace.proto`), in the types of
//! `opentelemetry-proto`, and the collector's response.

use crate::{
    protocol::TraceContext,
    telemetry::trace::{
        AttributeValue, SpanKind,
        span::{SpanEvent, SpanRecord},
    },
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{
        ResourceSpans, ScopeSpans, Span, SpanFlags, Status,
        span::{self, Event, Link},
        status::StatusCode,
    },
};
use prost::Message;
use std::time::{SystemTime, UNIX_EPOCH};

/// Schema URL of the semantic conventions that the attribute names follow.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.0";

/// The spans that a collector rejected from an accepted export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartialSuccess {
    pub(super) rejected: u64,
    /// The collector's reason, or a warning if it rejected none.
    pub(super) message: String,
}

/// Encodes an export of these spans with the resource attributes of the process.
pub(super) fn export_request(spans: &[Box<SpanRecord>], resource: &[(String, String)]) -> Vec<u8> {
    let attributes =
        resource.iter().map(|(key, value)| key_value(key, Value::StringValue(value.clone()))).collect();
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.iter().map(|record| span(record)).collect(),
        schema_url: SCHEMA_URL.to_owned(),
    };
    let resource_spans = ResourceSpans {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_spans: vec![scope_spans],
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

fn span(record: &SpanRecord) -> Span {
    let is_remote = record.parent.is_some_and(|parent| parent.is_remote);
    let kind = match record.kind {
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
    };
    let status = record
        .error_message
        .as_ref()
        .map(|message| Status { message: message.to_string(), code: StatusCode::Error.into() });
    Span {
        trace_id: record.context.trace.to_vec(),
        span_id: record.context.span.to_vec(),
        trace_state: trace_state(&record.context),
        parent_span_id: record.parent.map_or_else(Vec::new, |parent| parent.span.to_vec()),
        flags: u32::from(record.context.flags) | remote_flags(is_remote),
        name: record.name.clone(),
        kind: kind.into(),
        start_time_unix_nano: nanos(record.began),
        end_time_unix_nano: nanos(record.ended),
        attributes: attributes(&record.attributes),
        events: record.events.iter().map(event).collect(),
        dropped_events_count: record.events_omitted,
        links: record.links.iter().map(link).collect(),
        status,
        ..Span::default()
    }
}

fn event(event: &SpanEvent) -> Event {
    Event {
        time_unix_nano: nanos(event.at),
        name: event.name.to_owned(),
        attributes: attributes(&event.attributes),
        dropped_attributes_count: 0,
    }
}

fn link(linked: &TraceContext) -> Link {
    Link {
        trace_id: linked.trace.to_vec(),
        span_id: linked.span.to_vec(),
        trace_state: trace_state(linked),
        flags: linked.flags.into(),
        ..Link::default()
    }
}

fn attributes(pairs: &[(&'static str, AttributeValue)]) -> Vec<KeyValue> {
    let value = |value: &AttributeValue| match value {
        AttributeValue::Static(text) => Value::StringValue((*text).to_owned()),
        AttributeValue::Text(text) => Value::StringValue(text.to_string()),
        AttributeValue::Boolean(value) => Value::BoolValue(*value),
        AttributeValue::Integer(number) => Value::IntValue(*number),
    };
    pairs.iter().map(|(key, it)| key_value(key, value(it))).collect()
}

fn key_value(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn trace_state(context: &TraceContext) -> String {
    context.state.as_deref().unwrap_or_default().to_owned()
}

/// The bits that say whether the parent belongs to another process. It is always known.
const fn remote_flags(is_remote: bool) -> u32 {
    let known = SpanFlags::ContextHasIsRemoteMask as u32;
    if is_remote { known | SpanFlags::ContextIsRemoteMask as u32 } else { known }
}

fn nanos(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

// === impl PartialSuccess ===

impl PartialSuccess {
    /// Decodes an `ExportTraceServiceResponse`; `None` if everything was accepted, or if it is malformed.
    pub(super) fn read(response: &[u8]) -> Option<Self> {
        let partial = ExportTraceServiceResponse::decode(response).ok()?.partial_success?;
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
        let it = Self { rejected, message: partial.error_message };
        (it != Self::default()).then_some(it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::trace::span::SpanParent;
    use opentelemetry_proto::tonic::{
        collector::trace::v1::ExportTracePartialSuccess, common::v1::any_value::Value as Any,
    };
    use proptest::prelude::*;
    use smallvec::smallvec;
    use std::time::Duration;

    fn recorded() -> SpanRecord {
        let at = |seconds| UNIX_EPOCH + Duration::new(seconds, 5);
        let context = |byte| TraceContext { trace: [byte; 16], span: [byte; 8], flags: 1, state: None };
        SpanRecord {
            context: TraceContext { state: Some("a=1".into()), ..context(1) },
            parent: Some(SpanParent { span: [3; 8], is_remote: true }),
            kind: SpanKind::Client,
            name: "tools/call überweisen".to_owned(),
            began: at(1_800_000_000),
            ended: at(1_800_000_300),
            attributes: smallvec![
                ("word", "w".into()),
                ("text", String::new().into()),
                ("no", false.into()),
                ("less", AttributeValue::Integer(-7)),
                ("none", 0.into()),
            ],
            events: vec![SpanEvent {
                at: at(1_800_000_007),
                name: "e",
                attributes: smallvec![("k", true.into())],
            }],
            events_omitted: 300,
            links: smallvec![context(9)],
            error_message: Some("no answer".into()),
        }
    }

    #[test]
    fn an_encoded_span_is_decoded_by_open_telemetry() {
        let resource = [("service.name".to_owned(), "x".repeat(200))];
        let bytes = export_request(&[Box::new(recorded()), Box::new(recorded())], &resource);
        let read = ExportTraceServiceRequest::decode(&*bytes).expect("it is one");
        let [of_resource] = &read.resource_spans[..] else { panic!("{read:?}") };
        let about = &of_resource.resource.as_ref().unwrap().attributes;
        assert_eq!(about[0].key, "service.name");
        let [of_scope] = &of_resource.scope_spans[..] else { panic!("{read:?}") };
        assert_eq!(of_scope.scope.as_ref().unwrap().name, "deferral");
        let [first, second] = &of_scope.spans[..] else { panic!("{read:?}") };
        assert_eq!(first, second);
        assert_eq!((&first.trace_id[..], &first.span_id[..]), (&[1; 16][..], &[1; 8][..]));
        assert_eq!((&first.parent_span_id[..], first.trace_state.as_str()), (&[3; 8][..], "a=1"));
        assert_eq!((first.name.as_str(), first.kind, first.flags), ("tools/call überweisen", 3, 0x301));
        let (began, ended) = (first.start_time_unix_nano, first.end_time_unix_nano);
        assert_eq!((began, ended), (1_800_000_000_000_000_005, 1_800_000_300_000_000_005));
        let any = |value| Some(AnyValue { value: Some(value) });
        let found: Vec<_> =
            first.attributes.iter().map(|pair| (pair.key.as_str(), pair.value.clone())).collect();
        assert_eq!(
            found,
            [
                ("word", any(Any::StringValue("w".into()))),
                ("text", any(Any::StringValue(String::new()))),
                ("no", any(Any::BoolValue(false))),
                ("less", any(Any::IntValue(-7))),
                ("none", any(Any::IntValue(0))),
            ]
        );
        assert_eq!((first.events[0].name.as_str(), first.dropped_events_count), ("e", 300));
        assert_eq!(first.events[0].time_unix_nano, 1_800_000_007_000_000_005);
        assert_eq!((&first.links[0].trace_id[..], first.links[0].flags), (&[9; 16][..], 1));
        let status = first.status.as_ref().unwrap();
        assert_eq!((status.message.as_str(), status.code()), ("no answer", StatusCode::Error));
    }

    #[test]
    fn rejected_spans_are_read_from_the_response() {
        let answer = |rejected_spans, error_message: &str| {
            let error_message = error_message.to_owned();
            let partial_success = Some(ExportTracePartialSuccess { rejected_spans, error_message });
            PartialSuccess::read(&ExportTraceServiceResponse { partial_success }.encode_to_vec())
        };
        assert_eq!(answer(7, "full"), Some(PartialSuccess { rejected: 7, message: "full".into() }));
        assert_eq!(answer(0, "slow"), Some(PartialSuccess { rejected: 0, message: "slow".into() }));
        assert_eq!(answer(0, ""), None);
        assert_eq!(PartialSuccess::read(b""), None);
    }

    proptest! {
        #[test]
        fn any_response_of_a_collector_is_read_to_its_end(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = PartialSuccess::read(&bytes);
        }
    }
}
