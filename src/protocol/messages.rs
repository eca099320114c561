//! The messages in a body: one, or those of a batch.

use super::{
    Frame, FrameError,
    frame::{MessageIndex, bracket_depth, parse_error, strip_byte_order_mark},
    scan::JsonScanner,
};
use bytes::Bytes;

/// Iterates over the messages of an HTTP body, an event or a line, in order: one message, or those of a batch
/// (2025-03-26, *Batching*). A message is parsed when the iterator reaches it; all together are read in one
/// pass.
///
/// The default value has no messages. A batch element that is no message yields an error in its place; after
/// a [`FrameError::Syntax`] the iterator ends.
#[derive(Debug, Default)]
pub struct MessageReader {
    bytes: Bytes,
    is_batch: bool,
    /// The position of the next message; `None` at the end.
    next: Option<usize>,
    depth: usize,
}

// === impl MessageReader ===

impl MessageReader {
    /// Starts before the first message of `bytes`. A leading byte order mark is removed.
    pub fn new(bytes: Bytes) -> Self {
        let bytes = strip_byte_order_mark(bytes);
        let start = JsonScanner::new(&bytes).at();
        if bytes.get(start) != Some(&b'[') {
            return Self { bytes, is_batch: false, next: Some(start), depth: 0 };
        }
        let first = start + 1 + JsonScanner::new(&bytes[start + 1..]).at();
        let is_empty = bytes.get(first) == Some(&b']')
            && JsonScanner::new(&bytes[first + 1..]).at() == bytes.len() - first - 1;
        Self { bytes, is_batch: true, next: (!is_empty).then_some(first), depth: 1 }
    }

    /// Whether the body is a JSON array, not a single message.
    pub fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Whether no message is left; before the first, whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// Copies a message of a batch into an allocation of its own, because a slice would keep the whole batch
    /// in memory. A message that is no part of a batch is returned as it is.
    pub fn detach(&self, frame: Frame) -> Frame {
        if !self.is_batch {
            return frame;
        }
        // These bytes have been parsed before, so parsing them again succeeds.
        Frame::parse(Bytes::copy_from_slice(frame.as_bytes())).unwrap_or(frame)
    }

    /// The whole body, without a byte order mark.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The deepest nesting of the messages read so far; for bytes that are no JSON, the maximum number of
    /// brackets that are open at a time.
    pub fn depth(&self) -> usize {
        self.depth
    }

    fn read_single(&mut self) -> Result<Frame, FrameError> {
        let frame = Frame::parse(self.bytes.clone());
        self.depth = match &frame {
            Ok(frame) => frame.depth(),
            Err(_) => bracket_depth(&self.bytes),
        };
        frame
    }

    /// Reads the element of a batch at `start`.
    fn read_batch_item(&mut self, start: usize) -> Result<Frame, FrameError> {
        let mut scan = JsonScanner::new(&self.bytes[start..]);
        let mut index = MessageIndex::default();
        let is_object = scan.peek() == Some(b'{');
        let read = if is_object { index.read(&mut scan) } else { scan.value() };
        let (end, depth) = (start + scan.at(), scan.deepest() + 1);
        let is_text = scan.is_utf8(&self.bytes[start..end]);
        if read.is_none() || !is_text || !self.advance_past(end) {
            self.depth = bracket_depth(&self.bytes);
            return Err(parse_error(&self.bytes));
        }
        self.depth = self.depth.max(depth);
        match is_object {
            true => Frame::from_index(self.bytes.slice(start..end), &mut index),
            false => Err(FrameError::Shape { id: None }),
        }
    }

    /// Finds the beginning of the next element behind `end`; returns whether the batch is well-formed there.
    fn advance_past(&mut self, end: usize) -> bool {
        let skip_whitespace = |at: usize| at + JsonScanner::new(&self.bytes[at..]).at();
        let at = skip_whitespace(end);
        match self.bytes.get(at) {
            Some(b',') => {
                self.next = Some(skip_whitespace(at + 1));
                true
            }
            Some(b']') => skip_whitespace(at + 1) == self.bytes.len(),
            _ => false,
        }
    }
}

impl Iterator for MessageReader {
    type Item = Result<Frame, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.next.take()?;
        Some(if self.is_batch { self.read_batch_item(start) } else { self.read_single() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    fn read(text: &str) -> (MessageReader, Vec<Result<Frame, FrameError>>) {
        let mut messages = MessageReader::new(Bytes::copy_from_slice(text.as_bytes()));
        let read = messages.by_ref().collect();
        (messages, read)
    }

    #[test]
    fn the_parts_of_a_batch_are_read_in_their_order() {
        let (messages, read) = read("\n[ {\"method\":\"a\"} ,\t{\"id\":1,\"result\":{\"b\":[]}}\n]\n");
        let texts: Vec<_> =
            read.iter().map(|frame| frame.as_ref().expect("a message").as_bytes().clone()).collect();
        assert_eq!(texts, [&br#"{"method":"a"}"#[..], br#"{"id":1,"result":{"b":[]}}"#]);
        assert_eq!((messages.is_batch(), messages.depth()), (true, 4));
    }

    #[test]
    fn what_is_no_message_stands_in_its_place() {
        let (messages, read) = read(r#"[1,{"method":"a"},[[[]]],{"id":{}}]"#);
        assert!(matches!(
            &read[..],
            [
                Err(FrameError::Shape { id: None }),
                Ok(_),
                Err(FrameError::Shape { id: None }),
                Err(FrameError::Shape { .. })
            ]
        ));
        assert_eq!(messages.depth(), 4);
    }

    #[test]
    fn the_depth_of_what_is_no_json_is_that_of_its_brackets() {
        for (text, depth) in [("[[[[", 4), (r#"{"a":[[}"#, 3), ("[{},x[[[", 4), ("x[\"[[\"", 1)] {
            let (messages, read) = read(text);
            assert!(matches!(read.last(), Some(Err(FrameError::Syntax(_)))), "{text}");
            assert_eq!(messages.depth(), depth, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_batch_is_what_serde_json_takes_for_one(json in "[ \n]?\\[(([ ,\\]]|\\{\\}|1|x|\"a\"|\\{\"method\":\"m\"\\}){0,6})\\]?[ x]?") {
            let parts: Result<Vec<&RawValue>, _> = serde_json::from_str(&json);
            let (_, read) = read(&json);
            let is_broken = matches!(read.last(), Some(Err(FrameError::Syntax(_))));
            prop_assert_eq!(is_broken, parts.is_err(), "{}: {:?}", json, read);
            if let Ok(parts) = parts {
                prop_assert_eq!(parts.len(), read.len(), "{}", json);
            }
        }
    }
}
