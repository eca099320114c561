//! Input of a process: one message on each line.
//!
//! A line break inside a message would let its author send additional messages to the process, which reads
//! the text after the break as the next message. The pipe therefore accepts only [`MessageLine`]s, and
//! [`MessageLine::from_message`] is their only constructor.

use bytes::{Buf, Bytes};
use std::{io, pin::Pin};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// A JSON message that every line-based reader reads as one line.
///
/// Line feeds and carriage returns, which JSON allows between tokens only, become spaces. U+0085, U+2028 and
/// U+2029, which JSON allows in strings, become `\u` escapes: Node's `readline` and Java's `Scanner` end a
/// line there. JSON allows no other character at which a reader in use ends a line (Python's `str.splitlines`
/// knows more).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageLine(Bytes);

/// Standard input of a process, which accepts whole lines.
pub struct MessagePipe {
    pipe: Pin<Box<dyn AsyncWrite + Send>>,
    /// Buffer in which short messages are collected for one write.
    short_messages: Vec<u8>,
}

/// Number of messages and bytes of one write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCount {
    pub messages: usize,
    /// Bytes of the messages, without line ends.
    pub bytes: usize,
}

/// Limit of messages that are collected for one write, in bytes; a longer message is written alone.
const MAX_BATCH_BYTES: usize = 16 << 10;

// === impl MessageLine ===

impl MessageLine {
    /// Makes a message one line, by replacing line breaks within it. Copies the message only if it has any.
    pub fn from_message(message: Bytes) -> Self {
        match first_break_at(&message) {
            Some(index) => Self(without_breaks(&message, index)),
            None => Self(message),
        }
    }

    /// Length in bytes, without the line end.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Length and replacement of the line break at the start of `bytes`; `None` if there is none.
fn break_at(bytes: &[u8]) -> Option<(usize, &'static [u8])> {
    match bytes {
        [b'\n' | b'\r', ..] => Some((1, b" ")),
        [0xc2, 0x85, ..] => Some((2, br"\u0085")),
        [0xe2, 0x80, 0xa8, ..] => Some((3, br"\u2028")),
        [0xe2, 0x80, 0xa9, ..] => Some((3, br"\u2029")),
        _ => None,
    }
}

/// Index of the first line break.
fn first_break_at(bytes: &[u8]) -> Option<usize> {
    let ascii_break = memchr::memchr2(b'\n', b'\r', bytes);
    let before = &bytes[..ascii_break.unwrap_or(bytes.len())];
    memchr::memchr2_iter(0xc2, 0xe2, before)
        .find(|index| break_at(&bytes[*index..]).is_some())
        .or(ascii_break)
}

/// Copy of a message with its line breaks replaced; `first` is the index of the first break.
fn without_breaks(message: &[u8], first: usize) -> Bytes {
    let mut line = Vec::with_capacity(message.len() + 16);
    line.extend_from_slice(&message[..first]);
    let mut remaining = &message[first..];
    while let Some(&byte) = remaining.first() {
        let (length, replacement) = break_at(remaining).unwrap_or((1, &[]));
        match replacement {
            [] => line.push(byte),
            _ => line.extend_from_slice(replacement),
        }
        remaining = &remaining[length..];
    }
    line.into()
}

// === impl MessagePipe ===

impl MessagePipe {
    /// Wraps the standard input of a process.
    pub fn new(pipe: impl AsyncWrite + Send + 'static) -> Self {
        Self { pipe: Box::pin(pipe), short_messages: Vec::new() }
    }

    /// Writes a message, and further messages from `next` while they are short. Returns how much was taken
    /// from the queue, and the outcome.
    ///
    /// # Errors
    /// Errors of the pipe. The messages are consumed nevertheless.
    pub async fn write(
        &mut self,
        first: MessageLine,
        mut next: impl FnMut() -> Option<MessageLine>,
    ) -> (WriteCount, io::Result<()>) {
        self.short_messages.clear();
        let (mut long, mut count) = (None, WriteCount::default());
        let mut line = Some(first);
        while let Some(MessageLine(message)) = line.take() {
            count.messages += 1;
            count.bytes += message.len();
            if message.len() > MAX_BATCH_BYTES {
                long = Some(message.chain(&b"\n"[..]));
                break;
            }
            self.short_messages.extend_from_slice(&message);
            self.short_messages.push(b'\n');
            if self.short_messages.len() < MAX_BATCH_BYTES {
                line = next();
            }
        }
        let mut written = self.pipe.write_all(&self.short_messages).await;
        if let (Ok(()), Some(mut long)) = (&written, long) {
            written = self.pipe.write_all_buf(&mut long).await;
        }
        (count, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Frame;
    use proptest::prelude::*;
    use serde_json::Value;

    fn line(message: &str) -> String {
        String::from_utf8(MessageLine::from_message(Bytes::copy_from_slice(message.as_bytes())).0.to_vec())
            .expect("text")
    }

    #[test]
    fn line_breaks_between_tokens_become_spaces_and_those_in_strings_escapes() {
        assert_eq!(line("{\"a\":\r\n1,\n\"b\":\"x\"}\r"), "{\"a\":  1, \"b\":\"x\"} ");
        assert_eq!(
            line("{\"a\u{2028}\":\"\u{85}\u{2029}\u{a9}\u{2014}\"}"),
            "{\"a\\u2028\":\"\\u0085\\u2029\u{a9}\u{2014}\"}"
        );
        // A backslash before one is an escaped backslash.
        assert_eq!(line("[\"\\\\\u{2028}\"]"), r#"["\\\u2028"]"#);
    }

    #[test]
    fn a_message_without_line_breaks_is_not_copied() {
        let message = Bytes::from("{\"a\":\"\u{e9}\u{a9}\u{2014}\u{4e00}\"}");
        assert_eq!(MessageLine::from_message(message.clone()).0.as_ptr(), message.as_ptr());
    }

    /// Other characters at which Python's `str.splitlines` ends a line.
    #[test]
    fn no_message_holds_another_character_that_ends_a_line() {
        for byte in [0x0b, 0x0c, 0x1c, 0x1d, 0x1e] {
            for message in
                [[&br#"{"method":"a"#[..], &[byte], br#""}"#], [br#"{"method":"#, &[byte], br#""a"}"#]]
            {
                assert!(Frame::parse(message.concat().into()).is_err(), "{byte}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_message_is_written_on_one_line(bytes in proptest::collection::vec(
            prop_oneof![Just(b'\n'), Just(b'\r'), Just(0xc2), Just(0x85), Just(0xe2), Just(0x80), Just(0xa8), Just(0xa9), Just(b'\\'), any::<u8>()], 0..40,
        )) {
            let MessageLine(line) = MessageLine::from_message(bytes.into());
            prop_assert_eq!(first_break_at(&line), None, "{}", line.escape_ascii());
        }

        #[test]
        fn a_message_on_one_line_means_the_same(text in "[a\\\\\"\u{85}\u{2028}\u{2029}\u{e9}\u{2014}\n\r]{0,12}", space in "[ \n\r\t]{0,3}") {
            let text = serde_json::to_string(&text).expect("a string");
            let message = format!("{{{space}{text}:{space}[{text}{space}]}}{space}");
            let meant = |message: &str| serde_json::from_str::<Value>(message).expect("JSON");
            let line = line(&message);
            prop_assert_eq!(meant(&line), meant(&message));
            prop_assert_eq!(first_break_at(line.as_bytes()), None);
        }
    }
}
