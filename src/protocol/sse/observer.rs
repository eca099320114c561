//! Observes an event stream that is relayed, without buffering it.
//!
//! A relay needs three facts about a stream: whether the response has passed, from which event the stream can
//! be resumed after a break, and whether a comment can be inserted here. A [`StreamObserver`] derives them
//! from a few bytes of state and the last event's id, however the stream is chunked and however large its
//! messages are. It reads a message only until a top-level member determines its kind; servers write that
//! member first.

use super::{EventStreamReader, SseField, StreamToken, decode::parse_retry};
use crate::protocol::message_kind::{KindSniffer, MessageKind};
use std::{collections::VecDeque, mem, time::Duration};

/// Observes an event stream that is relayed, and remembers what the relay needs to know of it.
#[derive(Clone, Debug, Default)]
pub struct StreamObserver {
    reader: EventStreamReader,
    /// Detects the kind of the current event's message.
    sniffer: KindSniffer,
    /// The ids for resumption; `None` until an event has an id or the server sends `retry`.
    event_ids: Option<Box<EventIdTracker>>,
    /// The kind of the first response; see [`StreamObserver::response`].
    response: Option<MessageKind>,
    /// A message has passed since [`StreamObserver::take_has_message`] was last called.
    has_message: bool,
    /// The notifications and requests of the server, if they are collected.
    collector: Option<Box<MessageCollector>>,
}

/// The ids and the delay for the resumption of a stream.
#[derive(Clone, Debug, Default)]
struct EventIdTracker {
    /// The id of the last event that had one; `None` before the first, and after an event that reset the id.
    last: Option<Vec<u8>>,
    /// The ids before `last`, the oldest first.
    earlier: VecDeque<Vec<u8>>,
    /// The id of the current event, if it has one.
    current: Option<Vec<u8>>,
    /// The value of the current `id:` or `retry:` line.
    value: PartialValue,
    /// The server's delay before a resumption.
    retry: Option<Duration>,
}

/// The value of an `id:` or `retry:` line, as far as it has arrived.
#[derive(Clone, Debug, Default)]
struct PartialValue {
    value: Vec<u8>,
    has_nul: bool,
}

/// Collects the messages of a stream that are no responses.
#[derive(Clone, Debug, Default)]
struct MessageCollector {
    /// The data of the current event so far.
    data: Vec<u8>,
    messages: Vec<Vec<u8>>,
}

/// Maximum bytes of a collected message; of a longer one, an empty message is collected.
const MAX_COLLECTED_BYTES: usize = 16 << 10;

/// Maximum number of earlier ids that are remembered: a client may have lost the last events and resume
/// before them.
const MAX_EARLIER_IDS: usize = 8;

/// Maximum bytes of an id from which the proxy can resume. A longer id is truncated, so only the client can
/// resume from it.
const MAX_ID_BYTES: usize = 1 << 10;

// === impl StreamObserver ===

impl StreamObserver {
    /// Creates an observer that also collects the server's notifications and requests, for
    /// [`StreamObserver::take_messages`].
    pub fn collecting_messages() -> Self {
        Self { collector: Some(Box::default()), ..Self::default() }
    }

    /// Returns the server's notifications and requests whose events have ended since the last call, if they
    /// are collected. A message of more than 16 KiB is returned empty.
    pub fn take_messages(&mut self) -> Vec<Vec<u8>> {
        self.collector.as_mut().map(|collector| mem::take(&mut collector.messages)).unwrap_or_default()
    }

    /// Observes the next chunk of the stream.
    pub fn observe(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((token, length)) = self.reader.next(rest) {
            let (piece, after) = rest.split_at(length);
            rest = after;
            match token {
                StreamToken::Value(SseField::Data) => self.observe_data(piece),
                // A line break between two data lines.
                StreamToken::End(SseField::Data) => self.observe_data(b"\n"),
                StreamToken::Field(SseField::Id | SseField::Retry) => {
                    self.event_ids_mut().value = PartialValue::default()
                }
                StreamToken::Value(SseField::Id | SseField::Retry) => {
                    self.event_ids_mut().value.append(piece)
                }
                StreamToken::End(SseField::Id) => {
                    let ids = self.event_ids_mut();
                    // Readers ignore an id with NUL, and keep an id before it in the same event.
                    if !ids.value.has_nul {
                        ids.current = Some(mem::take(&mut ids.value.value));
                    }
                }
                StreamToken::End(SseField::Retry) => {
                    let ids = self.event_ids_mut();
                    ids.retry = parse_retry(&ids.value.value).or(ids.retry);
                }
                StreamToken::Blank => self.dispatch(),
                StreamToken::Mark
                | StreamToken::LineFeed
                | StreamToken::Name
                | StreamToken::Field(_)
                | StreamToken::Value(_)
                | StreamToken::End(SseField::Event | SseField::Other) => {}
            }
        }
    }

    /// The kind of the first response whose event has ended: a result or an error; `None` before that.
    pub fn response(&self) -> Option<MessageKind> {
        self.response
    }

    /// Whether the stream can be resumed: an event had an id, and no later event reset it.
    pub fn is_resumable(&self) -> bool {
        self.event_ids.as_ref().is_some_and(|ids| ids.last.is_some())
    }

    /// The id of the event after which the proxy can resume the stream; `None` if no event had an id, or if
    /// the id is longer than 1 KiB.
    pub fn last_id(&self) -> Option<&[u8]> {
        let last = self.event_ids.as_ref()?.last.as_deref()?;
        (last.len() <= MAX_ID_BYTES).then_some(last)
    }

    /// The ids of up to eight events before the last one with an id, the oldest first.
    pub fn earlier_ids(&self) -> impl Iterator<Item = &[u8]> {
        self.event_ids.iter().flat_map(|ids| ids.earlier.iter().map(Vec::as_slice))
    }

    /// The delay before a resumption that the server requested with `retry:`, if any.
    pub fn retry(&self) -> Option<Duration> {
        self.event_ids.as_ref()?.retry
    }

    /// Sets the last event id: the stream continues after this event.
    pub fn resume_after(&mut self, id: &[u8]) {
        self.event_ids_mut().last = Some(id[..id.len().min(MAX_ID_BYTES + 1)].to_vec());
    }

    fn event_ids_mut(&mut self) -> &mut EventIdTracker {
        self.event_ids.get_or_insert_default()
    }

    /// Whether the stream is between two events, so that the proxy can insert an event of its own.
    pub fn is_between_events(&self) -> bool {
        self.reader.is_between_events()
    }

    /// Abandons an event that was cut off and will not be completed. The returned bytes, mostly none, must be
    /// sent before anything else: they end the event with an event name that no reader knows, so that readers
    /// drop it. If the event had an id, they set the id back to the last complete event, so that the reader
    /// resumes before the abandoned one.
    pub fn abandon_event(&mut self) -> Vec<u8> {
        let mut ending = Vec::new();
        if self.is_between_events() {
            return ending;
        }
        let line = self.reader.unfinished_line();
        if line.is_some() {
            ending.push(b'\n');
        }
        let current_id = self.event_ids.as_mut().and_then(|ids| ids.current.take());
        let last = self.event_ids.as_ref().and_then(|ids| ids.last.as_deref()).unwrap_or_default();
        // A truncated last id cannot be restored.
        if (current_id.is_some() || line == Some(SseField::Id)) && last.len() <= MAX_ID_BYTES {
            ending.extend_from_slice(&[b"id: ", last, b"\n"].concat());
        }
        ending.extend_from_slice(b"event: incomplete\n\n");
        self.reader.restart_event();
        self.sniffer = KindSniffer::default();
        if let Some(collector) = &mut self.collector {
            collector.data.clear();
        }
        ending
    }

    /// Whether the event of a message has ended since the last call.
    pub fn take_has_message(&mut self) -> bool {
        mem::take(&mut self.has_message)
    }

    fn observe_data(&mut self, piece: &[u8]) {
        self.sniffer.feed(piece);
        if let Some(collector) = &mut self.collector {
            collector.append(piece, self.sniffer.kind());
        }
    }

    /// Records the end of an event.
    fn dispatch(&mut self) {
        let kind = mem::take(&mut self.sniffer).kind();
        self.has_message |= kind.is_some();
        if let Some(response_kind @ (MessageKind::Result | MessageKind::Error)) = kind {
            self.response.get_or_insert(response_kind);
        }
        if let Some(collector) = &mut self.collector {
            collector.dispatch(kind);
        }
        if let Some(ids) = &mut self.event_ids
            && let Some(id) = ids.current.take()
        {
            let id = Some(id).filter(|id| id.iter().any(|&byte| byte != b' '));
            if let Some(previous) =
                mem::replace(&mut ids.last, id).filter(|previous| previous.len() <= MAX_ID_BYTES)
            {
                if ids.earlier.len() == MAX_EARLIER_IDS {
                    ids.earlier.pop_front();
                }
                ids.earlier.push_back(previous);
            }
        }
    }
}

// === impl PartialValue ===

impl PartialValue {
    fn append(&mut self, piece: &[u8]) {
        self.has_nul |= memchr::memchr(0, piece).is_some();
        // Keep one byte more than the limit, as a mark that the id is longer.
        let capacity = MAX_ID_BYTES + 1 - self.value.len();
        self.value.extend_from_slice(&piece[..piece.len().min(capacity)]);
    }
}

// === impl MessageCollector ===

impl MessageCollector {
    /// Appends data of the current event. `kind` is the kind of its message, if known: data of a response is
    /// not collected.
    fn append(&mut self, piece: &[u8], kind: Option<MessageKind>) {
        if matches!(kind, None | Some(MessageKind::Method)) && self.data.len() <= MAX_COLLECTED_BYTES {
            self.data.extend_from_slice(&piece[..piece.len().min(MAX_COLLECTED_BYTES + 1 - self.data.len())]);
        }
    }

    /// Ends the current event, and collects its message if it is a notification or a request.
    fn dispatch(&mut self, kind: Option<MessageKind>) {
        let mut data = mem::take(&mut self.data);
        if kind == Some(MessageKind::Method) {
            if data.len() > MAX_COLLECTED_BYTES {
                data.clear();
            }
            self.messages.push(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Frame, Kind, sse::EventDecoder};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn watched(stream: &str) -> StreamObserver {
        let mut watch = StreamObserver::default();
        watch.observe(stream.as_bytes());
        watch
    }

    #[test]
    fn a_response_counts_once_its_event_has_ended() {
        assert_eq!(watched("data: {\"id\":1,\"result\":{}}\n").response(), None);
        assert_eq!(watched("data: {\"id\":1,\"result\":{}}\n\n").response(), Some(MessageKind::Result));
        assert_eq!(
            watched("data:{\"id\":1,\ndata:\"error\":{}}\r\n\r\n").response(),
            Some(MessageKind::Error)
        );
        assert_eq!(watched("data: {\"method\":\"a\"}\n\n: result\n\nx: {\"result\":1}\n\n").response(), None);
        assert_eq!(watched("\u{feff}data: {\"result\":1}\n\n").response(), Some(MessageKind::Result));
        assert_eq!(watched("\n\u{feff}data: {\"result\":1}\n\n").response(), None);
    }

    #[test]
    fn the_ids_of_the_last_events_are_known() {
        let text: String = (0..20).map(|n| format!("id: {n}\ndata: x\n\n")).collect();
        let watch = watched(&text);
        let earlier: Vec<_> =
            watch.earlier_ids().map(|id| String::from_utf8_lossy(id).into_owned()).collect();
        assert_eq!(earlier, ["11", "12", "13", "14", "15", "16", "17", "18"]);
        assert_eq!(watch.last_id(), Some(&b"19"[..]));
        assert_eq!(watched("data: x\n\nid: 1\ndata: y\n\n").earlier_ids().count(), 0);
    }

    #[test]
    fn a_stream_with_an_id_is_resumable() {
        assert!(!watched("data: x\n\n").is_resumable());
        assert!(!watched("id: 7\n").is_resumable(), "the event has not ended");
        assert!(watched("id: 7\ndata:\n\n").is_resumable());
        assert!(watched("id: 7\n\ndata: x\n\n").is_resumable(), "it stays the last id");
        assert!(!watched("id: 7\n\nid\n\n").is_resumable(), "an empty id takes it back");
        assert!(!watched("id: 7\n\nid: \n\n").is_resumable());
    }

    #[test]
    fn an_id_with_nul_is_none() {
        assert!(!watched("id: a\0b\ndata: x\n\n").is_resumable());
        let stands = watched("id: 7\nid: a\0b\ndata: x\n\nid: \0\n\n");
        assert_eq!(stands.last_id(), Some(&b"7"[..]));
    }

    #[test]
    fn the_last_id_and_the_retry_delay_of_a_stream_are_known() {
        let of = |stream: &str| {
            let watch = watched(stream);
            (watch.last_id().map(<[u8]>::to_vec), watch.retry().map(|pause| pause.as_millis()))
        };
        assert_eq!(of("id: a b\nretry: 200\ndata:\n\nid: late\n"), (Some(b"a b".to_vec()), Some(200)));
        assert_eq!(of("retry:7\nid:1\nid: 2\ndata: x\n\n"), (Some(b"2".to_vec()), Some(7)));
        assert_eq!(of("id: 1\n\nretry: soon\nretry:  1\nretry: -1\n\n"), (Some(b"1".to_vec()), None));
        assert_eq!(of("retry: 123456789\n"), (None, Some(123_456_789)));
        for colon in [":", ": "] {
            let long = "x".repeat(MAX_ID_BYTES);
            assert_eq!(of(&format!("id{colon}{long}\n\n")).0.map(|id| id.len()), Some(MAX_ID_BYTES));
            let longer = watched(&format!("id{colon}{long}x\n\n"));
            assert!(longer.is_resumable() && longer.last_id().is_none(), "by its client alone");
        }
        let mut watch = StreamObserver::default();
        watch.resume_after(b"7");
        assert_eq!(watch.last_id(), Some(&b"7"[..]));
    }

    #[test]
    fn a_collecting_observer_returns_notifications_and_requests() {
        let long =
            format!("data: {{\"method\":\"l\",\"params\":\"{}\"}}\n\n", "x".repeat(MAX_COLLECTED_BYTES));
        let stream = format!(
            "id: 1\ndata:\n\ndata: {{\"method\":\ndata: \"n\"}}\n\n{long}: c\n\ndata: {{\"id\":1,\"result\":{{}}}}\n\ndata: {{\"method\":\"cut\"}}\n"
        );
        let mut watch = StreamObserver::collecting_messages();
        let mut heard = Vec::new();
        for byte in stream.as_bytes().chunks(1) {
            watch.observe(byte);
            heard.extend(watch.take_messages());
        }
        let heard: Vec<_> =
            heard.iter().map(|note| String::from_utf8_lossy(note).trim().to_owned()).collect();
        assert_eq!(heard, ["{\"method\":\n\"n\"}", ""]);
        let mut quiet = watched(&stream);
        assert!(quiet.take_messages().is_empty());
    }

    #[test]
    fn events_can_be_inserted_only_between_events() {
        for (stream, between) in [
            ("", true),
            ("data: x\n\n", true),
            ("data: x\r\n\r", true),
            (": comment\n\n", true),
            ("data: x\n", false),
            ("d", false),
            (": comment\n", false),
            ("data: x\n\nid: 1", false),
        ] {
            assert_eq!(watched(stream).is_between_events(), between, "{stream:?}");
        }
    }

    #[test]
    fn an_event_that_was_cut_off_is_abandoned() {
        for cut in ["data: {\"id\":1,\"res", "data: {}\n", "dat", "event: message\ndata: {}", "id: 3", ": c"]
        {
            let mut decoder = EventDecoder::new(1024);
            let mut watch = watched(cut);
            let void = watch.abandon_event();
            assert!(
                watch.is_between_events() && watch.response().is_none() && watch.abandon_event().is_empty()
            );
            decoder.feed(Bytes::from([cut.as_bytes(), &void, b"data: y\n\n"].concat()));
            let mut events = Vec::new();
            while let Some(event) = decoder.next_event().expect("small") {
                events.push(event);
            }
            let heard: Vec<_> = events.iter().filter(|event| event.event.is_none()).collect();
            assert_eq!(heard.len(), 1, "{cut:?}: {events:?}");
            assert_eq!(heard[0].data, "y");
        }
    }

    #[test]
    fn the_id_of_an_event_that_was_cut_off_is_reset() {
        for cut in ["id: b", "id", "id:b\ndata: {\"result\":1}\n", "id: b\rdata: {\"result\":1}"] {
            for (before, last) in [("id: a\n\n", Some(&b"a"[..])), ("data: x\n\n", None)] {
                let mut watch = watched(&format!("{before}{cut}"));
                let void = watch.abandon_event();
                let mut decoder = EventDecoder::new(1024);
                decoder.feed(Bytes::from([before.as_bytes(), cut.as_bytes(), &void].concat()));
                let mut id = None;
                while let Some(event) = decoder.next_event().expect("small") {
                    id = event.id.or(id);
                }
                assert_eq!(id.as_deref().unwrap_or_default().as_bytes(), last.unwrap_or_default(), "{cut:?}");
                assert_eq!((watch.last_id(), watch.response()), (last, None), "{cut:?}");
            }
        }
        assert_eq!(watched("id: a\n\ndata: x").abandon_event(), b"\nevent: incomplete\n\n", "it had none");
    }

    proptest! {
        #[test]
        fn the_observer_agrees_with_the_decoder(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "data:", "data: ", "data", "id:", "id: 1", "id", "event:e", ":", "\n", "\n", "\r\n", "\r", "\n\n",
                    r#"{"jsonrpc":"2.0","id":1,"result":{"a":"]}"}}"#, r#"{"error":{"code":1,"message":"\\\""},"id":1}"#,
                    r#"{"method":"m","params":{"result":1}}"#,
                ]),
                0..24,
            ),
            cuts in prop::collection::vec(0usize..40, 0..12),
        ) {
            let stream = pieces.concat();
            let mut watch = StreamObserver::default();
            let mut decoder = EventDecoder::new(1 << 20);
            let (mut rest, mut response, mut last_id) = (stream.as_bytes(), None, None);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                watch.observe(chunk);
                decoder.feed(Bytes::copy_from_slice(chunk));
                while let Some(event) = decoder.next_event().expect("small") {
                    if let Some(id) = event.id {
                        last_id = Some(id).filter(|id| !id.is_empty());
                    }
                    match Frame::parse(event.data).map(|frame| frame.kind().clone()) {
                        Ok(Kind::Success { .. }) => { response.get_or_insert(MessageKind::Result); }
                        Ok(Kind::Failure { .. }) => { response.get_or_insert(MessageKind::Error); }
                        Ok(Kind::Request { .. } | Kind::Notification { .. }) | Err(_) => {}
                    }
                }
            }
            // The decoder's reader refuses bytes that are no JSON, in which a sniffer may still detect a
            // kind.
            if response.is_some() {
                prop_assert!(watch.response().is_some(), "{}", stream);
            }
            prop_assert_eq!(watch.is_resumable(), last_id.is_some(), "{}", stream);
            prop_assert_eq!(watch.last_id(), last_id.as_deref().map(str::as_bytes), "{}", stream);
        }
    }
}
