//! Assigns ids to the events of a stream that has none.

use super::EventSplitter;
use bytes::Bytes;
use std::fmt;

/// Adds an id to each event with data. From the first event that has an id of the server, the stream is left
/// unchanged.
#[derive(Debug)]
pub struct EventIdAssigner {
    /// The id of the next event.
    next: EventId,
    events: EventSplitter,
    /// A priming event (an id without data) is sent before the first event with data. The client's revision
    /// must have such events.
    sends_priming_event: bool,
}

/// An event with its assigned id, or bytes without one.
#[derive(Clone, Debug)]
pub struct NumberedEvent {
    /// The bytes to send to the client.
    pub bytes: Bytes,
    /// The number in the assigned id, by which the event can be delivered again; `None` without one.
    pub number: Option<u64>,
    /// The bytes have no assigned id but may contain a message, which cannot be delivered again.
    pub is_unnumbered_message: bool,
}

/// An event id of the proxy, written as `deferral-STREAM-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The name of the stream, unique in the proxy; written in hexadecimal digits.
    pub stream: [u8; 16],
    /// The position of the event in the stream, from 0.
    pub number: u64,
}

const PREFIX: &str = "deferral-";

// === impl EventIdAssigner ===

impl EventIdAssigner {
    /// Assigns ids for the stream with this name. `sends_priming_event` is whether to send a priming event
    /// (an id without data) first. An event of more than `limit` bytes, and the rest of the stream after it,
    /// gets no ids.
    pub fn new(stream: [u8; 16], sends_priming_event: bool, limit: usize) -> Self {
        let next = EventId { stream, number: 0 };
        Self { next, events: EventSplitter::new(limit), sends_priming_event }
    }

    /// Takes the next chunk; returns the complete events, and bytes that need no id.
    pub fn feed(&mut self, chunk: Bytes) -> Vec<NumberedEvent> {
        self.events.feed(chunk);
        let mut numbered = Vec::new();
        while let Some(event) = self.events.next_piece() {
            if event.has_id {
                self.events.stop_splitting();
            }
            if event.has_id || !event.has_data() {
                let is_unnumbered_message = event.may_have_data();
                numbered.push(NumberedEvent { bytes: event.bytes, number: None, is_unnumbered_message });
                continue;
            }
            if std::mem::take(&mut self.sends_priming_event) {
                numbered.push(self.assign_id(b"data: \n\n"));
            }
            numbered.push(self.assign_id(&event.bytes));
        }
        numbered
    }

    /// Returns the buffered bytes at the end of the stream.
    pub fn finish(&mut self) -> Option<NumberedEvent> {
        let bytes = self.events.take_buffered();
        // A reader ignores an incomplete event, so it needs no id.
        (!bytes.is_empty()).then_some(NumberedEvent { bytes, number: None, is_unnumbered_message: false })
    }

    /// Adds the next id to an event.
    fn assign_id(&mut self, event: &[u8]) -> NumberedEvent {
        let EventId { number, .. } = self.next;
        let mut bytes = format!("id: {}\n", self.next).into_bytes();
        bytes.extend_from_slice(event);
        self.next.number += 1;
        NumberedEvent { bytes: bytes.into(), number: Some(number), is_unnumbered_message: false }
    }
}

// === impl EventId ===

impl EventId {
    /// Parses an event id of the proxy; `None` for any other id.
    pub fn parse(id: &str) -> Option<Self> {
        let (stream, number) = id.strip_prefix(PREFIX)?.split_once('-')?;
        let stream = u128::from_str_radix(stream, 16).ok()?.to_be_bytes();
        Some(Self { stream, number: number.parse().ok()? })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}-{}", u128::from_be_bytes(self.stream), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(stream: &'static str) -> Vec<Bytes> {
        let minted = EventIdAssigner::new([7; 16], false, 99).feed(Bytes::from_static(stream.as_bytes()));
        minted.into_iter().map(|minted| minted.bytes).collect()
    }

    const ID: &str = "id: deferral-07070707070707070707070707070707-0\n";

    #[test]
    fn an_id_stands_behind_a_byte_order_mark() {
        assert_eq!(numbered("\u{feff}data: x\n\n"), ["\u{feff}".to_owned(), format!("{ID}data: x\n\n")]);
        let apart = ["\u{feff}".to_owned(), "\n".to_owned(), format!("{ID}data: x\n\n")];
        assert_eq!(numbered("\u{feff}\ndata: x\n\n"), apart, "not away from its event");
    }

    #[test]
    fn an_event_whose_last_byte_is_a_cr_gets_its_id_and_does_not_wait() {
        assert_eq!(numbered("data: x\r\r"), [format!("{ID}data: x\r\r")]);
    }

    #[test]
    fn an_id_reads_back() {
        let id = EventId { stream: [7; 16], number: 12 };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        assert_eq!(EventId::parse("deferral-7"), None);
    }
}
