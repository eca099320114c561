//! One answer on its way, of which one message is changed.
//!
//! All other bytes are those of the server: its comments, ids, event names and line ends. An event is
//! held until its end, for it cannot be known before what it says; most come in one chunk.

use crate::protocol::{Frame, Kind, sse::Cutter};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;

/// What a response becomes, or nothing where it stays as it is. The second is the session that the
/// answer names.
pub type Edit = Box<dyn FnMut(&Frame, Option<&HeaderValue>) -> Option<Bytes> + Send>;

/// Changes the response in an event stream as it goes by.
pub struct Edited {
    edit: Edit,
    in_session: Option<HeaderValue>,
    events: Cutter,
    /// For one event, in bytes. A larger one goes by unread, and what follows too.
    limit: usize,
    over: bool,
}

/// The response as it goes to the client, where it is one document.
pub(in crate::proxy) fn document(body: Bytes, edit: &mut Edit, in_session: Option<&HeaderValue>) -> Bytes {
    match Frame::parse(body.clone()) {
        Ok(frame) => edit(&frame, in_session).unwrap_or(body),
        Err(_) => body,
    }
}

// === impl Edited ===

impl Edited {
    pub fn new(edit: Edit, in_session: Option<HeaderValue>, limit: usize) -> Self {
        Self { edit, in_session, events: Cutter::default(), limit, over: false }
    }

    /// Takes the next chunk; gives what can go on. Nothing is not the end of it.
    pub fn feed(&mut self, chunk: Bytes) -> Bytes {
        if self.over {
            return chunk;
        }
        self.events.feed(&chunk);
        let mut out = BytesMut::new();
        while !self.over
            && let Some(event) = self.events.next_event()
        {
            match self.event(&event) {
                Some(edited) => {
                    self.over = true;
                    out.extend_from_slice(&edited);
                }
                None => out.extend_from_slice(&event),
            }
        }
        // What follows does not wait for its end.
        if self.over || self.events.held() > self.limit {
            self.over = true;
            out.extend_from_slice(&self.events.rest());
        }
        out.freeze()
    }

    /// The stream has ended: what was held of it.
    pub fn rest(&mut self) -> Bytes {
        self.events.rest()
    }

    /// The stream goes on elsewhere, where the event comes again that has not ended.
    pub(in crate::proxy) fn forget(&mut self) {
        drop(self.events.rest());
    }

    /// The event with its response changed, or nothing.
    fn event(&mut self, event: &Bytes) -> Option<Vec<u8>> {
        let frame = message(event)?;
        if !matches!(frame.kind(), Kind::Success { .. }) {
            return None;
        }
        let Some(edited) = (self.edit)(&frame, self.in_session.as_ref()) else {
            // The response has gone by.
            self.over = true;
            return None;
        };
        let mut out =
            Vec::with_capacity(event.len() + edited.len() - frame.as_bytes().len().min(edited.len()));
        let mut edited = Some(edited);
        for (line, end) in lines(event) {
            if data(line).is_none() {
                out.extend_from_slice(line);
                out.extend_from_slice(end);
            } else if let Some(edited) = edited.take() {
                // A line break in it was one between its data lines.
                for part in edited.split(|&byte| byte == b'\n') {
                    out.extend_from_slice(b"data: ");
                    out.extend_from_slice(part);
                    out.extend_from_slice(end);
                }
            }
        }
        Some(out)
    }
}

/// The message in an event, where there is one. In memory of its own: it may outlive the event.
pub(in crate::proxy) fn message(event: &[u8]) -> Option<Frame> {
    let said: Vec<&[u8]> = lines(event).filter_map(|(line, _)| data(line)).collect();
    Frame::parse(Bytes::from(said.join(&b'\n'))).ok()
}

/// The lines in `bytes`, each with its end. The last may have none.
pub(in crate::proxy) fn lines(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let at = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        let (line, rest) = bytes.split_at(at);
        let end = match rest {
            [b'\r', b'\n', ..] => 2,
            [] => 0,
            _ => 1,
        };
        let (end, rest) = rest.split_at(end);
        bytes = rest;
        Some((line, end))
    })
}

/// What a `data:` line says.
pub(in crate::proxy) fn data(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(&[]),
        [b':', b' ', rest @ ..] | [b':', rest @ ..] => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hi\r\nid: 0\r\nretry: 5\r\ndata:\r\n\r\nevent: message\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\nid: 2\revent: message\rdata: {\"jsonrpc\":\"2.0\",\"id\":1,\rdata:\"result\":{\"a\" : 1}}\r\rdata: {\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}\n\n: end";

    const SESSION: HeaderValue = HeaderValue::from_static("s");

    fn edit() -> Edit {
        Box::new(|frame, in_session| {
            assert!(in_session.is_some());
            let text = String::from_utf8(frame.as_bytes().to_vec()).expect("utf-8");
            Some(text.replace("1}", "1,\"b\":2}").into())
        })
    }

    proptest! {
        #[test]
        fn only_the_response_is_changed_however_the_stream_is_cut(cuts in proptest::collection::vec(0..STREAM.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            cuts.push(STREAM.len());
            let mut edited = Edited::new(edit(), Some(SESSION), 1 << 20);
            let (mut out, mut from) = (Vec::new(), 0);
            for cut in cuts {
                out.extend_from_slice(&edited.feed(Bytes::copy_from_slice(&STREAM.as_bytes()[from..cut])));
                from = cut;
            }
            out.extend_from_slice(&edited.rest());
            let wanted = STREAM
                .replace("\rdata:\"result\":{\"a\" : 1}}", "\rdata: \"result\":{\"a\" : 1,\"b\":2}}");
            prop_assert_eq!(String::from_utf8(out).expect("utf-8"), wanted);
        }
    }

    #[test]
    fn what_follows_a_response_that_stays_as_it_is_keeps_its_place() {
        let mut edited = Edited::new(Box::new(|_, _| None), None, 1 << 20);
        let mut out = edited.feed(Bytes::from_static(b"data: {\"id\":1,\"result\":{}}\n\nda")).to_vec();
        out.extend_from_slice(&edited.feed(Bytes::from_static(b"ta: x\n\n")));
        out.extend_from_slice(&edited.rest());
        assert_eq!(out, b"data: {\"id\":1,\"result\":{}}\n\ndata: x\n\n");
    }

    #[test]
    fn a_response_behind_a_byte_order_mark_is_changed_too() {
        let mut edited = Edited::new(edit(), Some(SESSION), 1 << 20);
        let stream = "\u{feff}data: {\"id\":1,\"result\":{\"a\":1}}\n\n".as_bytes();
        let out = edited.feed(Bytes::from_static(stream));
        assert_eq!(out, "\u{feff}data: {\"id\":1,\"result\":{\"a\":1,\"b\":2}}\n\n".as_bytes());
    }

    #[test]
    fn a_response_whose_last_byte_is_a_cr_is_changed_and_does_not_wait() {
        let mut edited = Edited::new(edit(), Some(SESSION), 1 << 20);
        let out = edited.feed(Bytes::from_static(b"data: {\"id\":1,\"result\":{\"a\":1}}\r\r"));
        assert_eq!(out, "data: {\"id\":1,\"result\":{\"a\":1,\"b\":2}}\r\r");
        assert_eq!(edited.rest(), "");
    }

    #[test]
    fn what_is_not_changed_goes_by_as_it_is() {
        let mut edited = Edited::new(Box::new(|_, _| None), None, 1 << 20);
        let out = edited.feed(Bytes::from_static(STREAM.as_bytes()));
        assert_eq!([&out[..], &edited.rest()[..]].concat(), STREAM.as_bytes());
    }

    #[test]
    fn an_event_that_is_too_large_is_not_held() {
        let mut edited = Edited::new(edit(), Some(SESSION), 16);
        let out = edited.feed(Bytes::from_static(b"data: {\"jsonrpc\":\"2.0\""));
        assert_eq!(out, "data: {\"jsonrpc\":\"2.0\"");
        assert_eq!(edited.feed(Bytes::from_static(b"}")), "}");
    }
}
