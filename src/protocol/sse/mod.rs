//! Event streams (WHATWG HTML, *Server-sent events*), as they come: a chunk at a time.
//!
//! A stream is lines; a line is a field, a comment, or blank, and a blank line ends an event. Lines end in
//! CR, LF or CR LF, before the first a byte order mark may stand, and a chunk may end anywhere: in a
//! field's name, in the mark, between the CR and the LF. One [`EventStreamReader`] knows all that. It says what the
//! next bytes of a chunk are, holds none of them, and looks at each once; whatever is done with a stream is
//! done with what it says:
//!
//! | file | for whom | what is held |
//! |---|---|---|
//! | `decode` | who wants the events: [`EventDecoder`] | the event that has not ended |
//! | `observer` | who only passes the bytes on, and must know what they say: [`StreamObserver`] | a few bytes of state |
//! | `splitter` | who passes on whole events, or their messages changed: [`EventSplitter`] | the event that has not ended |
//! | `edit` | who changes the response: [`ResponseEditor`] | the same |
//! | `filter` | who takes messages out: [`MessageFilter`] | the same, while there is something to look for |
//! | `event_ids` | who gives events ids: [`EventIdAssigner`] | the same |
//!
//! What lies within one chunk is given as a slice of it ([`byte_joiner`]): a message on a single `data:` line,
//! and an event that is not changed, are not copied.

mod byte_joiner;
mod decode;
mod edit;
mod event_ids;
mod filter;
mod observer;
mod reader;
mod splitter;

pub use decode::{EventDecoder, EventTooLarge, SseEvent};
pub use edit::ResponseEditor;
pub use event_ids::{EventId, EventIdAssigner, NumberedEvent};
pub use filter::MessageFilter;
pub use observer::StreamObserver;
pub use reader::{EventStreamReader, SseField, StreamToken};
pub use splitter::{EventSplitter, StreamPiece};

use bytes::Bytes;

/// May stand before the first line of a stream.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A comment, which keeps a silent stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// An event's data with U+FFFD for each sequence that is no UTF-8, where there is one: so readers decode a stream
/// (WHATWG HTML, *Parsing an event stream*).
pub fn decode_lossy(data: &[u8]) -> Option<Bytes> {
    std::str::from_utf8(data).is_err().then(|| String::from_utf8_lossy(data).into_owned().into())
}

/// One message as an event: a single `data:` line. `json` holds no line break
/// ([`super::frame::to_single_line`]).
pub fn message(json: &[u8]) -> Bytes {
    debug_assert!(memchr::memchr2(b'\n', b'\r', json).is_none(), "a message is on one line");
    [b"data: ", json, b"\n\n"].concat().into()
}

/// The message in an event that [`message`] has made.
pub fn data(event: &Bytes) -> Option<Bytes> {
    let end = event.len().checked_sub(2)?;
    event.starts_with(b"data: ").then(|| event.slice(b"data: ".len()..end))
}
