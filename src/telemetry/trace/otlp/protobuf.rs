//! Protobuf encoding of spans as `ExportTraceServiceRequest` of OTLP 1.x
//! (`opentelemetry/proto/trace/v1/trace.proto`), and decoding of the response. Numbers are those of the
//! fields there.

use crate::{
    protocol::TraceContext,
    telemetry::trace::{
        AttributeValue, SpanKind,
        span::{SpanEvent, SpanRecord},
    },
};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the semantic conventions.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.41.0";

/// Flags of a span or link: whether it is known that the context is remote, and whether it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Encodes one message.
#[derive(Default)]
struct MessageEncoder(Vec<u8>);

/// The spans that a collector rejected from an accepted export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartialSuccess {
    pub(super) rejected: u64,
    pub(super) message: String,
}

/// Encodes an export of these spans with the resource attributes of the process.
pub(super) fn export_request(spans: &[Box<SpanRecord>], resource: &[(String, String)]) -> Vec<u8> {
    let mut request = MessageEncoder::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |it| {
            for (key, value) in resource {
                it.message(1, |pair| {
                    pair.text(1, key);
                    pair.message(2, |any| any.text(1, value));
                });
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, env!("CARGO_PKG_NAME"));
                scope.text(2, env!("CARGO_PKG_VERSION"));
            });
            for recorded in spans {
                scope_spans.message(2, |it| span(it, recorded));
            }
            scope_spans.text(3, SCHEMA);
        });
        resource_spans.text(3, SCHEMA);
    });
    request.0
}

fn span(it: &mut MessageEncoder, recorded: &SpanRecord) {
    it.bytes(1, &recorded.context.trace);
    it.bytes(2, &recorded.context.span);
    it.text(3, recorded.context.state.as_deref().unwrap_or_default());
    if let Some(parent) = &recorded.parent {
        it.bytes(4, &parent.span);
    }
    it.text(5, &recorded.name);
    it.number(
        6,
        match recorded.kind {
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
    );
    it.fixed64(7, nanos(recorded.began));
    it.fixed64(8, nanos(recorded.ended));
    attributes(it, 9, &recorded.attributes);
    for happened in &recorded.events {
        it.message(11, |it| event(it, happened));
    }
    it.number(12, recorded.events_omitted.into());
    for link in &recorded.links {
        it.message(13, |it| linked(it, link));
    }
    if let Some(words) = &recorded.failed {
        it.message(15, |status| {
            status.text(2, words);
            // STATUS_CODE_ERROR
            status.number(3, 2);
        });
    }
    let whose = if recorded.parent.is_some_and(|parent| parent.is_remote) { IS_REMOTE } else { 0 };
    it.fixed32(16, u32::from(recorded.context.flags) | HAS_IS_REMOTE | whose);
}

fn event(it: &mut MessageEncoder, happened: &SpanEvent) {
    it.fixed64(1, nanos(happened.at));
    it.text(2, happened.name);
    attributes(it, 3, &happened.attributes);
}

fn linked(it: &mut MessageEncoder, link: &TraceContext) {
    it.bytes(1, &link.trace);
    it.bytes(2, &link.span);
    it.text(3, link.state.as_deref().unwrap_or_default());
    it.fixed32(6, link.flags.into());
}

fn attributes(it: &mut MessageEncoder, field: u32, pairs: &[(&'static str, AttributeValue)]) {
    for (key, value) in pairs {
        it.message(field, |pair| {
            pair.text(1, key);
            pair.message(2, |any| match value {
                AttributeValue::Word(word) => any.any_text(1, word),
                AttributeValue::Text(text) => any.any_text(1, text),
                AttributeValue::Truth(truth) => any.any_number(2, (*truth).into()),
                AttributeValue::Number(number) => any.any_number(3, number.cast_unsigned()),
            });
        });
    }
}

fn nanos(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

// === impl MessageEncoder ===

impl MessageEncoder {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Writes field number and wire type.
    fn tag(&mut self, field: u32, form: u32) {
        self.varint(u64::from(field << 3 | form));
    }

    /// Writes a number, unless it is 0, the default.
    fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.any_number(field, value);
        }
    }

    /// Writes a number in a `oneof`, where 0 must be written as well.
    fn any_number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn text(&mut self, field: u32, value: &str) {
        if !value.is_empty() {
            self.bytes(field, value.as_bytes());
        }
    }

    fn any_text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// Writes a nested message. Its length precedes it, but is only known afterwards.
    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        self.tag(field, 2);
        let at = self.0.len();
        fill(self);
        let mut length = Self::default();
        length.varint((self.0.len() - at) as u64);
        self.0.splice(at..at, length.0);
    }
}

// === impl PartialSuccess ===

impl PartialSuccess {
    /// Decodes an `ExportTraceServiceResponse`; `None` if everything was accepted, or if it is malformed.
    pub(super) fn read(mut response: &[u8]) -> Option<Self> {
        let mut partial = None;
        while !response.is_empty() {
            if let (1, FieldValue::Bytes(inside)) = field(&mut response)? {
                partial = Some(inside);
            }
        }
        let (mut inside, mut it) = (partial?, Self::default());
        while !inside.is_empty() {
            match field(&mut inside)? {
                (1, FieldValue::Number(rejected)) => it.rejected = rejected,
                (2, FieldValue::Bytes(text)) => it.message = String::from_utf8_lossy(text).into_owned(),
                _ => {}
            }
        }
        (it != Self::default()).then_some(it)
    }
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

/// Reads the next field of a message; `None` if it is malformed.
fn field<'a>(from: &mut &'a [u8]) -> Option<(u64, FieldValue<'a>)> {
    let tag = read_varint(from)?;
    let mut take = |count: u64| {
        let (taken, rest) = from.split_at_checked(usize::try_from(count).ok()?)?;
        *from = rest;
        Some(taken)
    };
    let value = match tag & 7 {
        0 => FieldValue::Number(read_varint(from)?),
        1 => take(8).map(|_| FieldValue::Other)?,
        5 => take(4).map(|_| FieldValue::Other)?,
        2 => {
            let length = read_varint(from)?;
            let (taken, rest) = from.split_at_checked(usize::try_from(length).ok()?)?;
            *from = rest;
            FieldValue::Bytes(taken)
        }
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for at in 0..10 {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::trace::span::SpanParent;
    use opentelemetry_proto::tonic::{
        collector::trace::v1::{
            ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        },
        common::v1::{AnyValue, any_value::Value as Any},
        trace::v1::status::StatusCode,
    };
    use proptest::prelude::*;
    use prost::Message as _;
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
                ("less", AttributeValue::Number(-7)),
                ("none", 0.into()),
            ],
            events: vec![SpanEvent {
                at: at(1_800_000_007),
                name: "e",
                attributes: smallvec![("k", true.into())],
            }],
            events_omitted: 300,
            links: smallvec![context(9)],
            failed: Some("no answer".into()),
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
