//! Event streams (WHATWG HTML, *Server-sent events*), processed chunk by chunk.
//!
//! A stream consists of lines. A line is a field, a comment, or blank, and a blank line ends an event. Lines
//! end in CR, LF or CR LF, a byte order mark may stand before the first, and a chunk may end anywhere: in a
//! field's name, in the mark, between the CR and the LF. One [`EventStreamReader`] implements all that. It
//! classifies the next bytes of a chunk, buffers none of them, and looks at each once. The other types are
//! built on it:
//!
//! | file | purpose | buffers |
//! |---|---|---|
//! | `decode` | reads the events: [`EventDecoder`] | the incomplete event |
//! | `observer` | observes a stream that is relayed: [`StreamObserver`] | a few bytes of state |
//! | `splitter` | splits a stream into whole events: [`EventSplitter`] | the incomplete event |
//! | `edit` | edits the response: [`ResponseEditor`] | the same |
//! | `filter` | removes messages: [`MessageFilter`] | the same, while there is a message to look for |
//! | `event_ids` | assigns ids to events: [`EventIdAssigner`] | the same |
//!
//! Data within one chunk is returned as a slice of it ([`byte_joiner`]): a message on a single `data:` line,
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

/// The UTF-8 byte order mark, an optional prefix of a stream.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A comment and the blank line that ends it, sent to keep a silent stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// The data with U+FFFD for each invalid UTF-8 sequence; `None` if the data is valid. Readers decode a stream
/// this way (WHATWG HTML, *Parsing an event stream*).
pub fn decode_lossy(data: &[u8]) -> Option<Bytes> {
    std::str::from_utf8(data).is_err().then(|| String::from_utf8_lossy(data).into_owned().into())
}

/// Writes one message as an event with a single `data:` line. `json` must contain no line break
/// ([`super::frame::to_single_line`]).
pub fn message(json: &[u8]) -> Bytes {
    debug_assert!(memchr::memchr2(b'\n', b'\r', json).is_none(), "a message is on one line");
    [b"data: ", json, b"\n\n"].concat().into()
}

/// The message in an event that [`message`] has written; `None` for any other event.
pub fn data(event: &Bytes) -> Option<Bytes> {
    let end = event.len().checked_sub(2)?;
    event.starts_with(b"data: ").then(|| event.slice(b"data: ".len()..end))
}
