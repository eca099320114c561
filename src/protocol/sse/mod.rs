//! Event-stream bytes to events and back, a chunk at a time (WHATWG HTML, *Server-sent events*).
//!
//! A stream is lines; a line is a field, a comment, or blank, and a blank line ends an event. Lines
//! end in CR, LF or CRLF, and a chunk may end anywhere, also between the CR and the LF. The
//! [`Decoder`] keeps the one unfinished line and the fields of the one unfinished event; a line
//! that lies within a chunk is a slice of it, so a message in a single `data:` line is not copied.
//!
//! Who passes events on and must not change a byte of them takes a [`Cutter`] instead: it finds where
//! each ends, and reads nothing.

pub mod watch;

use bytes::{Buf, Bytes, BytesMut};
use std::{mem, time::Duration};

/// One event as dispatched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The event's own `id:` field, where it had one (an empty one resets the last id).
    pub id: Option<String>,
    /// `event:`; absent means `message`.
    pub event: Option<String>,
    /// The joined `data:` lines; empty for a priming event.
    pub data: Bytes,
    /// `retry:`, where it had one. An event may consist of nothing else.
    pub retry: Option<Duration>,
}

/// Turns chunks into events.
///
/// A browser drops an event without data. This one hands it on if it has an `id` or a `retry`,
/// because a legacy server primes a stream with such an event (2025-11-25, *Transports*: the client
/// can then resume before the first message). An event that the end of the stream cuts off is
/// dropped, as in a browser.
///
/// Never holds more than `limit` bytes of an unfinished event, counted as the lines that make it
/// up without their ends. Comments and unknown fields are bounded one by one and not summed:
/// a server may keep a silent stream alive with comments alone, for as long as it likes.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// What is left of the last chunk.
    input: Bytes,
    /// The beginning of a line that the chunks so far did not end.
    partial: Vec<u8>,
    /// The fields of the event that the blank line is still to come for.
    pending: Pending,
    /// Bytes of the lines that are held in `pending`.
    held: usize,
    /// A CR has just ended a line; an LF right behind it belongs to it.
    after_cr: bool,
    /// The first line, where a byte order mark may stand, is over.
    past_first_line: bool,
    /// The limit was exceeded. Where the next event begins is unknown.
    failed: bool,
}

/// An event grew beyond the decoder's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server-sent event is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

#[derive(Debug, Default)]
struct Pending {
    id: Option<String>,
    event: Option<String>,
    data: Data,
    retry: Option<Duration>,
}

#[derive(Debug, Default)]
enum Data {
    /// No `data:` line yet. One that is empty is something else: it makes an event.
    #[default]
    Absent,
    /// A single line, which shares the allocation it came in.
    Line(Bytes),
    Joined(Vec<u8>),
}

/// Cuts a stream into its events as they were sent, line ends, comments and all.
///
/// Two things belong to no event, and are pieces of their own: a byte order mark before the first, and the
/// LF of a CRLF whose CR has ended an event already, because no more had come. A reader that takes them for
/// events finds nothing in them.
///
/// Holds what has come of the event that has not ended; bounding it is up to the caller
/// ([`Cutter::held`]). Each byte is looked at once, however small the chunks are.
#[derive(Debug, Default)]
pub struct Cutter {
    /// What has come since the end of the last event.
    held: BytesMut,
    /// Where in it the line begins that has not ended.
    line: usize,
    /// Up to where it is known that this line has no end.
    seen: usize,
    /// The place where a byte order mark may stand is over.
    begun: bool,
    /// A CR has ended the last event; an LF right behind it belongs to it.
    after_cr: bool,
}

/// May stand before the first line of a stream.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A comment, which keeps a silent stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// One message as an event: a single `data:` line. `json` holds no line break
/// ([`super::frame::on_one_line`]).
pub fn message(json: &[u8]) -> Bytes {
    debug_assert!(memchr::memchr2(b'\n', b'\r', json).is_none(), "a message is on one line");
    [b"data: ", json, b"\n\n"].concat().into()
}

// === impl Decoder ===

impl Decoder {
    /// `limit` is in bytes. The worst case is this and one chunk for each open stream.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            input: Bytes::new(),
            partial: Vec::new(),
            pending: Pending::default(),
            held: 0,
            after_cr: false,
            past_first_line: false,
            failed: false,
        }
    }

    /// Takes a chunk of the body. Then [`Decoder::next_event`] until it gives `None`: what is left
    /// of an earlier chunk would be copied.
    pub fn feed(&mut self, chunk: Bytes) {
        self.input = match self.input.is_empty() {
            true => chunk,
            false => [&self.input[..], &chunk].concat().into(),
        };
    }

    /// The next whole event. Where an event's data lies within one chunk it shares its allocation.
    ///
    /// # Errors
    /// [`EventTooLarge`]; the stream cannot be read on, and every further call says the same.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, EventTooLarge> {
        while let Some(line) = self.next_line()? {
            if !line.is_empty() {
                let length = line.len();
                if self.pending.take_field(line) {
                    self.held += length;
                }
                continue;
            }
            self.held = 0;
            if let Some(event) = mem::take(&mut self.pending).dispatch() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next whole line, without its end.
    fn next_line(&mut self) -> Result<Option<Bytes>, EventTooLarge> {
        if let Some(&first) = self.input.first()
            && mem::take(&mut self.after_cr)
            && first == b'\n'
        {
            self.input.advance(1);
        }
        let end = memchr::memchr2(b'\n', b'\r', &self.input);
        self.check(end.unwrap_or(self.input.len()))?;
        let Some(end) = end else {
            self.partial.extend_from_slice(&self.input);
            self.input = Bytes::new();
            return Ok(None);
        };
        let mut line = self.input.split_to(end);
        self.after_cr = self.input.get_u8() == b'\r';
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&line);
            line = mem::take(&mut self.partial).into();
        }
        if !mem::replace(&mut self.past_first_line, true) && line.starts_with(BYTE_ORDER_MARK) {
            line.advance(BYTE_ORDER_MARK.len());
        }
        Ok(Some(line))
    }

    /// Refuses to let the current line grow by `more` bytes where that is beyond the limit. The
    /// outcome depends on the line alone, not on how it was cut into chunks.
    fn check(&mut self, more: usize) -> Result<(), EventTooLarge> {
        let limit = self.limit;
        if !self.failed && self.held + self.partial.len() + more <= limit {
            return Ok(());
        }
        *self = Self { failed: true, ..Self::new(limit) };
        Err(EventTooLarge { limit })
    }
}

// === impl Cutter ===

impl Cutter {
    /// Takes a chunk of the body. Then [`Cutter::next_event`] until it gives `None`.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.held.extend_from_slice(chunk);
    }

    /// The next event that has ended, up to the end of its blank line. A CR ends it whatever follows:
    /// perhaps nothing does, and somebody waits for the event.
    pub fn next_event(&mut self) -> Option<Bytes> {
        if !self.begun {
            let is_mark = self.held.starts_with(BYTE_ORDER_MARK);
            if !is_mark && BYTE_ORDER_MARK.starts_with(&self.held) {
                return None;
            }
            self.begun = true;
            if is_mark {
                return Some(self.held.split_to(BYTE_ORDER_MARK.len()).freeze());
            }
        }
        if let Some(&first) = self.held.first()
            && mem::take(&mut self.after_cr)
            && first == b'\n'
        {
            return Some(self.held.split_to(1).freeze());
        }
        while let Some(step) = memchr::memchr2(b'\n', b'\r', &self.held[self.seen..]) {
            let at = self.seen + step;
            let is_blank = at == self.line;
            let end = match &self.held[at..] {
                // The line goes on in this event, so its end can be waited for.
                [b'\r'] if !is_blank => {
                    self.seen = at;
                    return None;
                }
                [b'\r', b'\n', ..] => at + 2,
                _ => at + 1,
            };
            (self.line, self.seen) = (end, end);
            if is_blank {
                (self.line, self.seen) = (0, 0);
                self.after_cr = self.held[end - 1] == b'\r';
                return Some(self.held.split_to(end).freeze());
            }
        }
        self.seen = self.held.len();
        None
    }

    /// Bytes of the event that has not ended.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// What has come of the event that has not ended.
    pub fn unfinished(&self) -> &[u8] {
        &self.held
    }

    /// Gives away what has come of the event that has not ended. What comes next begins one.
    pub fn rest(&mut self) -> Bytes {
        (self.line, self.seen, self.after_cr) = (0, 0, false);
        self.held.split().freeze()
    }
}

// === impl Pending ===

impl Pending {
    /// Interprets a line that is not blank. Whether anything of it is held.
    fn take_field(&mut self, line: Bytes) -> bool {
        let colon = memchr::memchr(b':', &line);
        let name = &line[..colon.unwrap_or(line.len())];
        let value = match colon {
            None => Bytes::new(),
            // At most one space is taken off; further ones are the value's.
            Some(colon) if line.get(colon + 1) == Some(&b' ') => line.slice(colon + 2..),
            Some(colon) => line.slice(colon + 1..),
        };
        match name {
            b"data" => self.data.append(value),
            b"event" => self.event = Some(text(&value)).filter(|name| !name.is_empty()),
            b"id" if memchr::memchr(0, &value).is_none() => self.id = Some(text(&value)),
            b"retry" => match milliseconds(&value) {
                Some(retry) => self.retry = Some(retry),
                None => return false,
            },
            // A comment (its name is empty), a field of the future, or an id with NUL.
            _ => return false,
        }
        true
    }

    /// The event, unless nothing was said but at most its name.
    fn dispatch(self) -> Option<SseEvent> {
        let Self { id, event, data, retry } = self;
        let data = match data {
            Data::Absent if id.is_none() && retry.is_none() => return None,
            Data::Absent => Bytes::new(),
            Data::Line(line) => line,
            Data::Joined(lines) => lines.into(),
        };
        Some(SseEvent { id, event, data, retry })
    }
}

// === impl Data ===

impl Data {
    fn append(&mut self, line: Bytes) {
        *self = match mem::take(self) {
            Self::Absent => Self::Line(line),
            Self::Line(first) => Self::Joined([&first[..], b"\n", &line].concat()),
            Self::Joined(mut lines) => {
                lines.push(b'\n');
                lines.extend_from_slice(&line);
                Self::Joined(lines)
            }
        };
    }
}

/// Streams are UTF-8; what is not, is replaced, not refused.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Digits and nothing else. A number beyond 64 bits is no wait anyone means, and is ignored too.
fn milliseconds(value: &[u8]) -> Option<Duration> {
    let digits = value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits)?;
    number.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(data: &'static str) -> SseEvent {
        SseEvent { data: Bytes::from_static(data.as_bytes()), ..SseEvent::default() }
    }

    /// All events of a stream that arrives in these chunks, and whether it ended in an error.
    fn decode<'a>(
        limit: usize,
        chunks: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<SseEvent>, Option<EventTooLarge>) {
        let mut decoder = Decoder::new(limit);
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
            assert!(decoder.held + decoder.partial.len() <= limit, "more than the limit is held");
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
    fn a_field_that_makes_no_sense_is_ignored() {
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
        let mut decoder = Decoder::new(99);
        decoder.feed(chunk.clone());
        let event = decoder.next_event().expect("small").expect("whole");
        assert_eq!(event.data, &b"{\"a\":1}"[..]);
        assert!(chunk.as_ptr_range().contains(&event.data.as_ptr()));
    }

    #[test]
    fn a_chunk_fed_early_loses_nothing() {
        let mut decoder = Decoder::new(99);
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
        let mut decoder = Decoder::new(10);
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

    fn cut(chunks: &[&str]) -> Vec<String> {
        let mut cutter = Cutter::default();
        let mut pieces = Vec::new();
        for chunk in chunks {
            cutter.feed(chunk.as_bytes());
            pieces.extend(std::iter::from_fn(|| cutter.next_event()));
        }
        pieces.into_iter().map(|piece| String::from_utf8(piece.to_vec()).expect("text")).collect()
    }

    #[test]
    fn an_event_that_ends_in_a_cr_does_not_wait_for_what_follows() {
        assert_eq!(cut(&["data: x\r\r"]), ["data: x\r\r"]);
        assert_eq!(cut(&["data: x\r", "\r", "data: y\r\r"]), ["data: x\r\r", "data: y\r\r"]);
        assert_eq!(cut(&["data: x\r\n\r", "\n", "\n"]), ["data: x\r\n\r", "\n", "\n"]);
        assert_eq!(cut(&["data: x\r", "\ndata: y\r", "\n\r\n"]), ["data: x\r\ndata: y\r\n\r\n"]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_an_event() {
        assert_eq!(cut(&["\u{feff}data: x\n\n\u{feff}y\n\n"]), ["\u{feff}", "data: x\n\n", "\u{feff}y\n\n"]);
        assert_eq!(cut(&["\u{feff}\ndata: x\n\n"]), ["\u{feff}", "\n", "data: x\n\n"]);
        assert_eq!(cut(&["", "\n"]), ["\n"]);
    }

    proptest! {
        #[test]
        fn a_stream_is_cut_behind_blank_lines_wherever_its_chunks_end(
            pieces in prop::collection::vec(
                prop::sample::select(vec!["data: x", "id", ":", "\n", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n"]), 0..24,
            ),
            cuts in prop::collection::vec(0usize..9, 0..24),
        ) {
            let stream = pieces.concat();
            let mut cutter = Cutter::default();
            let (mut rest, mut events) = (stream.as_bytes(), Vec::new());
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                rest = after;
                cutter.feed(chunk);
                while let Some(event) = cutter.next_event() {
                    events.push(String::from_utf8(event.to_vec()).expect("text"));
                }
            }
            let held = cutter.held();
            let left = String::from_utf8(cutter.rest().to_vec()).expect("text");
            prop_assert_eq!(left.len(), held);
            prop_assert_eq!(events.concat() + &left, stream);
            let lines = |event: &str| {
                let event = event.replace("\r\n", "\n").replace('\r', "\n");
                event.split('\n').map(str::to_owned).collect::<Vec<_>>()
            };
            for event in &events {
                let lines = lines(event);
                let blank = lines.iter().position(String::is_empty);
                // One blank line, which is the last; behind its end nothing comes.
                prop_assert_eq!(blank, Some(lines.len() - 2), "{:?}", event);
            }
            let lines = lines(&left);
            prop_assert!(!lines[..lines.len() - 1].contains(&String::new()), "{:?}", left);
        }
    }
}
