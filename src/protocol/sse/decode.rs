//! Decodes the bytes of an event stream into events.

use super::{EventStreamReader, SseField, StreamToken, byte_joiner::ByteJoiner};
use bytes::Bytes;
use std::{mem, ops::Range, time::Duration};

/// One complete event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The `id:` field of this event; `None` if it has none. An empty id resets the last event id.
    pub id: Option<String>,
    /// The `event:` field; `None` means `message`.
    pub event: Option<String>,
    /// The joined `data:` lines; empty for a priming event.
    pub data: Bytes,
    /// The `retry:` field: the delay before a reconnection. An event may consist of nothing else.
    pub retry: Option<Duration>,
}

/// Decodes chunks of an event stream into events.
///
/// A browser drops an event without data. This decoder returns it if it has an `id` or a `retry`, because a
/// legacy server primes a stream with such an event (2025-11-25, *Transports*: the client can then resume
/// before the first message). An event that the end of the stream cuts off is dropped, as in a browser.
///
/// Buffers at most `limit` bytes of an incomplete event: the sum of its lines without their ends. Comments
/// and unknown fields are bounded one by one and not summed, because a server may keep a silent stream alive
/// with comments for any time.
#[derive(Debug, Default)]
pub struct EventDecoder {
    limit: usize,
    reader: EventStreamReader,
    /// The last chunk.
    input: Bytes,
    /// The number of bytes of `input` that have been read.
    read: usize,
    /// The fields of the incomplete event.
    pending: PendingEvent,
    /// Bytes of the lines in `pending`.
    pending_bytes: usize,
    /// Bytes of the incomplete line.
    line_bytes: usize,
    /// The limit was exceeded, so the position of the next event is unknown.
    has_failed: bool,
}

/// An event exceeded the decoder's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server-sent event is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

/// The fields of an event that is not complete.
#[derive(Debug, Default)]
struct PendingEvent {
    id: Option<String>,
    event: Option<String>,
    /// The joined `data:` lines; `None` before the first. An empty line is different, because it makes an
    /// event.
    data: Option<ByteJoiner>,
    retry: Option<Duration>,
    /// The value of the incomplete line, except for data.
    value: Vec<u8>,
}

// === impl EventDecoder ===

impl EventDecoder {
    /// Creates a decoder that buffers at most `limit` bytes of an incomplete event, plus one chunk.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Takes the next chunk of the body. Call [`EventDecoder::next_event`] until it returns `None` before the
    /// next chunk; otherwise the unread rest of this chunk is copied.
    pub fn feed(&mut self, chunk: Bytes) {
        let unread = &self.input[mem::take(&mut self.read)..];
        self.input = if unread.is_empty() { chunk } else { [unread, &chunk].concat().into() };
    }

    /// The next complete event; `None` if another chunk is needed. Data within one chunk shares its
    /// allocation.
    ///
    /// # Errors
    /// [`EventTooLarge`]; the stream cannot be read further, and every later call returns the same.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, EventTooLarge> {
        while let Some((token, length)) = self.reader.next(&self.input[self.read..]) {
            let from = self.read;
            self.read += length;
            if matches!(token, StreamToken::Name | StreamToken::Field(_) | StreamToken::Value(_)) {
                self.line_bytes += length;
                // Count bytes and not chunks, so that the result does not depend on how the stream is
                // chunked.
                if self.has_failed || self.pending_bytes + self.line_bytes > self.limit {
                    return Err(self.fail());
                }
            }
            match token {
                StreamToken::Mark => self.line_bytes = 0,
                StreamToken::LineFeed | StreamToken::Name => {}
                StreamToken::Field(field) => self.pending.begin_line(field),
                StreamToken::Value(field) => self.pending.extend_value(field, &self.input, from..self.read),
                StreamToken::End(field) => {
                    let line = mem::take(&mut self.line_bytes);
                    if self.pending.end_line(field) {
                        self.pending_bytes += line;
                    }
                }
                StreamToken::Blank => {
                    self.pending_bytes = 0;
                    if let Some(event) = mem::take(&mut self.pending).dispatch() {
                        return Ok(Some(event));
                    }
                }
            }
        }
        (self.input, self.read) = (Bytes::new(), 0);
        if self.has_failed { Err(self.fail()) } else { Ok(None) }
    }

    /// Drops all buffered bytes, and makes every later read fail.
    #[cold]
    fn fail(&mut self) -> EventTooLarge {
        let limit = self.limit;
        *self = Self { has_failed: true, ..Self::new(limit) };
        EventTooLarge { limit }
    }
}

// === impl PendingEvent ===

impl PendingEvent {
    /// Begins a line of this field.
    fn begin_line(&mut self, field: SseField) {
        self.value.clear();
        if field == SseField::Data {
            match &mut self.data {
                None => self.data = Some(ByteJoiner::Empty),
                Some(lines) => lines.push(Bytes::from_static(b"\n")),
            }
        }
    }

    /// Appends `piece` of the chunk to the value of the line.
    fn extend_value(&mut self, field: SseField, chunk: &Bytes, piece: Range<usize>) {
        match (field, &mut self.data) {
            (SseField::Data, data) => data.get_or_insert_default().push(chunk.slice(piece)),
            (SseField::Event | SseField::Id | SseField::Retry, _) => {
                self.value.extend_from_slice(&chunk[piece])
            }
            (SseField::Other, _) => {}
        }
    }

    /// Ends the line; returns whether the event keeps its value.
    fn end_line(&mut self, field: SseField) -> bool {
        let value = mem::take(&mut self.value);
        match field {
            SseField::Data => {}
            SseField::Event => self.event = Some(to_text_lossy(value)).filter(|name| !name.is_empty()),
            SseField::Id if memchr::memchr(0, &value).is_none() => self.id = Some(to_text_lossy(value)),
            SseField::Retry => match parse_retry(&value) {
                Some(retry) => self.retry = Some(retry),
                None => return false,
            },
            // An id with NUL is ignored.
            SseField::Id | SseField::Other => return false,
        }
        true
    }

    /// The event; `None` if it has neither data nor an id nor a retry delay.
    fn dispatch(self) -> Option<SseEvent> {
        let Self { id, event, data, retry, value: _ } = self;
        if data.is_none() && id.is_none() && retry.is_none() {
            return None;
        }
        Some(SseEvent { id, event, data: data.unwrap_or_default().into(), retry })
    }
}

/// Decodes UTF-8, in which streams are written; invalid sequences are replaced, not refused.
fn to_text_lossy(value: Vec<u8>) -> String {
    String::from_utf8(value).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Parses the value of `retry`, in milliseconds; `None` if it has anything but digits or exceeds 64 bits.
pub(super) fn parse_retry(value: &[u8]) -> Option<Duration> {
    let is_number = value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    number.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::sse::{KEEP_ALIVE, message};
    use proptest::prelude::*;

    fn data(data: &'static str) -> SseEvent {
        SseEvent { data: Bytes::from_static(data.as_bytes()), ..SseEvent::default() }
    }

    /// All events of a stream in these chunks, and whether it ended in an error.
    fn decode<'a>(
        limit: usize,
        chunks: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<SseEvent>, Option<EventTooLarge>) {
        let mut decoder = EventDecoder::new(limit);
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.feed(Bytes::copy_from_slice(chunk));
            loop {
                match decoder.next_event() {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(error) => return (events, Some(error)),
                }
            }
            assert!(decoder.pending_bytes + decoder.line_bytes <= limit, "more than the limit is held");
        }
        (events, None)
    }

    fn events(text: &str) -> Vec<SseEvent> {
        let (events, error) = decode(1024, [text.as_bytes()]);
        assert_eq!(error, None);
        events
    }

    #[test]
    fn the_examples_of_the_standard_read_as_it_says() {
        assert_eq!(events("data: YHOO\ndata: +2\ndata: 10\n\n"), [data("YHOO\n+2\n10")]);
        assert_eq!(
            events(
                ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
            ),
            [
                SseEvent { id: Some("1".into()), ..data("first event") },
                SseEvent { id: Some("".into()), ..data("second event") },
                data(" third event"),
            ]
        );
        assert_eq!(events("data\n\ndata\ndata\n\ndata:"), [data(""), data("\n")]);
        assert_eq!(events("data:test\n\ndata: test\n\n"), [data("test"), data("test")]);
    }

    #[test]
    fn lines_end_in_cr_lf_or_both() {
        let want = [SseEvent { event: Some("e".into()), ..data("a\nb") }, data("c")];
        for end in ["\n", "\r", "\r\n"] {
            let text = ["event:e", "data:a", "data:b", "", "data:c", "", ""].join(end);
            assert_eq!(events(&text), want, "{end:?}");
        }
        assert_eq!(events("data:a\r\ndata:b\r\r\ndata:c\n\r"), [data("a\nb"), data("c")]);
    }

    #[test]
    fn a_crlf_split_over_chunks_is_one_line_end() {
        let (events, _) = decode(99, [&b"data:a\r"[..], b"", b"\ndata:b\r", b"\n", b"\r\n"]);
        assert_eq!(events, [data("a\nb")]);
    }

    #[test]
    fn a_byte_order_mark_counts_at_the_start_only() {
        let (events, _) = decode(99, [&b"\xef\xbb"[..], b"\xbfdata:a\n\n\xef\xbb\xbfdata:b\n\n"]);
        assert_eq!(events, [data("a")]);
    }

    #[test]
    fn an_event_of_only_an_id_or_a_retry_is_handed_on() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(
            events("id: 7\ndata:\n\nid: 8\n\nretry: 500\n\nevent: x\n\n\n\n:c\n\n"),
            [
                SseEvent { id: Some("7".into()), ..SseEvent::default() },
                SseEvent { id: Some("8".into()), ..SseEvent::default() },
                SseEvent { retry: ms(500), ..SseEvent::default() },
            ]
        );
    }

    #[test]
    fn an_invalid_field_is_ignored() {
        let text = "id: a\0b\nretry: 5s\nretry: -1\nretry:\nretry: 99999999999999999999999\nwhat: x\n";
        assert_eq!(events(&format!("{text}\n{text}Data: y\ndata: x\n\n")), [data("x")]);
    }

    #[test]
    fn the_last_of_a_repeated_field_counts_and_none_outlives_its_event() {
        assert_eq!(
            events("event: a\nevent: b\nid: 1\nid: 2\ndata: x\n\nevent: c\nevent:\ndata: y\n\n"),
            [SseEvent { id: Some("2".into()), event: Some("b".into()), ..data("x") }, data("y")]
        );
    }

    #[test]
    fn text_that_is_not_utf8_is_replaced_in_names_and_kept_in_data() {
        let (events, _) = decode(99, [&b"id:\xff\ndata:\xff\n\n"[..]]);
        assert_eq!(events[0].id.as_deref(), Some("\u{fffd}"));
        assert_eq!(events[0].data, &b"\xff"[..]);
    }

    #[test]
    fn a_line_within_a_chunk_is_not_copied() {
        let chunk = Bytes::from(b"event: message\ndata: {\"a\":1}\n\n".to_vec());
        let mut decoder = EventDecoder::new(99);
        decoder.feed(chunk.clone());
        let event = decoder.next_event().expect("small").expect("whole");
        assert_eq!(event.data, &b"{\"a\":1}"[..]);
        assert!(chunk.as_ptr_range().contains(&event.data.as_ptr()));
    }

    #[test]
    fn a_chunk_fed_early_loses_nothing() {
        let mut decoder = EventDecoder::new(99);
        for chunk in [&b"data:a\n\nda"[..], b"ta:b\n", b"\n"] {
            decoder.feed(Bytes::copy_from_slice(chunk));
        }
        assert_eq!(decoder.next_event(), Ok(Some(data("a"))));
        assert_eq!(decoder.next_event(), Ok(Some(data("b"))));
        assert_eq!(decoder.next_event(), Ok(None));
    }

    #[test]
    fn an_event_beyond_the_limit_ends_the_stream() {
        let too_large = EventTooLarge { limit: 10 };
        let mut decoder = EventDecoder::new(10);
        decoder.feed(Bytes::from_static(b"data:12345\n\ndata:1\ndata:\n\n"));
        assert_eq!(decoder.next_event(), Ok(Some(data("12345"))));
        assert_eq!(decoder.next_event(), Err(too_large));
        decoder.feed(Bytes::from_static(b"data:1\n\n"));
        assert_eq!(decoder.next_event(), Err(too_large));
    }

    #[test]
    fn comments_without_end_are_no_event() {
        let text = ": still here\n".repeat(1000);
        assert_eq!(decode(16, [text.as_bytes(), b"data:x\n\n"]), (vec![data("x")], None));
    }

    #[test]
    fn a_message_reads_back_as_one_event() {
        let (events, _) = decode(99, [&message(b"{\"a\":1}")[..], &KEEP_ALIVE]);
        assert_eq!(events, [data("{\"a\":1}")]);
    }

    proptest! {
        #[test]
        fn how_a_stream_is_cut_does_not_matter(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "data:", "data: ", "data", "id:", "id: 1", "event:e", "retry:25", ":", " ", "x", "é",
                    "\0", "\u{feff}", "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "\n\ndata:longer data\n\n",
                ]),
                0..40,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            limit in 8..80usize,
        ) {
            let stream = pieces.concat().into_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
            prop_assert_eq!(decode(limit, chunks), decode(limit, [&stream[..]]));
        }
    }
}
