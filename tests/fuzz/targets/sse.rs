//! What is done with event streams against the plainest way to read one: however a stream is cut, each sees
//! the same, and all see what [`Read`] does.
//!
//! They share a reader, which is not used here: [`Read`] takes the stream at once, a line after the other, as
//! the standard has it (WHATWG HTML, *Parsing an event stream*). They differ in what they keep: the cutter
//! keeps all, the decoder gives events, the watch knows what has gone by, the editor changes one message, the
//! sieve takes messages out, the minter puts an id before each event.

use super::cuttings;
use bytes::Bytes;
use deferral::internals::protocol::{
    Frame, Kind,
    glance::MessageKind,
    sse::{
        EventDecoder, EventIdAssigner, EventSplitter, MessageFilter, ResponseEditor, SseEvent, StreamObserver,
    },
};
use std::time::Duration;

/// A stream as the standard reads it.
#[derive(Debug, Default)]
struct Read {
    events: Vec<SseEvent>,
    /// What makes up the stream: a byte order mark, where there is one, each event as it was sent, and last
    /// what has come of one that has not ended.
    pieces: Vec<Vec<u8>>,
}

/// What a watch knows.
#[derive(Debug, PartialEq, Eq)]
struct Watched {
    response: Option<MessageKind>,
    is_resumable: bool,
    is_between_events: bool,
    void: Vec<u8>,
    heard: Vec<Vec<u8>>,
}

const LIMIT: usize = 1 << 20;
/// What the response becomes where one is changed. It takes two lines, as an edited message may.
const CHANGED: &[u8] = b"{\"changed\":\n1}";
const OURS: &[u8] = b"event: message\ndata: {\"ours\":1}\n\n";

/// `stream` is the body of an answer, as a server sends it until the connection ends.
pub fn target(stream: &[u8]) {
    let Read { events, pieces: wanted } = Read::of(stream);
    let watched = watched(&[stream]);
    let [kept, same, changed] = [
        edited(&[stream], None),
        edited(&[stream], Some(Change::ToItself)),
        edited(&[stream], Some(Change::ToAnother)),
    ];
    let [unsieved, sieved] = [sieved(&[stream], false), sieved(&[stream], true)];
    let [minted, primed] = [minted(&[stream], false), minted(&[stream], true)];
    for pieces in cuttings(stream) {
        assert_eq!(cut(&pieces), wanted, "{pieces:?}");
        assert_eq!(decoded(&pieces), events, "{pieces:?}");
        assert_eq!(self::watched(&pieces), watched, "{pieces:?}");
        assert_eq!(edited(&pieces, None), kept, "{pieces:?}");
        assert_eq!(edited(&pieces, Some(Change::ToItself)), same, "{pieces:?}");
        assert_eq!(edited(&pieces, Some(Change::ToAnother)), changed, "{pieces:?}");
        assert_eq!(self::sieved(&pieces, false), unsieved, "{pieces:?}");
        // The other half of a line end may follow what was taken out.
        let after = Read::of(&self::sieved(&pieces, true)).events;
        assert_eq!(after, Read::of(&sieved).events, "{pieces:?}");
        assert_eq!(self::minted(&pieces, false), minted, "{pieces:?}");
        assert_eq!(self::minted(&pieces, true), primed, "{pieces:?}");
    }
    the_watch_knows_what_has_gone_by(stream, &events, &watched);
    only_the_response_is_changed(stream, &events, &kept, &same, &changed);
    assert_eq!(unsieved, stream);
    only_what_is_not_taken_is_left(&events, &sieved);
    ids_are_all_that_is_minted(stream, &events, &minted, &primed);
}

// === impl Read ===

impl Read {
    fn of(stream: &[u8]) -> Self {
        let mut read = Self::default();
        let mut rest = stream;
        if let Some(after) = stream.strip_prefix("\u{feff}".as_bytes()) {
            read.pieces.push("\u{feff}".into());
            rest = after;
        }
        let (mut piece, mut event, mut data) = (Vec::new(), SseEvent::default(), None::<Vec<u8>>);
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
            let (line, after) = rest.split_at(at);
            let end = if after.starts_with(b"\r\n") { 2 } else { 1 };
            piece.extend_from_slice(&rest[..at + end]);
            rest = &after[end..];
            if line.is_empty() {
                read.pieces.push(std::mem::take(&mut piece));
                let is_said = data.is_some() || event.id.is_some() || event.retry.is_some();
                let lines = data.take().map(|lines| lines[..lines.len() - 1].to_vec());
                let event = SseEvent { data: lines.unwrap_or_default().into(), ..std::mem::take(&mut event) };
                read.events.extend(is_said.then_some(event));
                continue;
            }
            let (name, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &b""[..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            let text = String::from_utf8_lossy(value).into_owned();
            match name {
                b"data" => data.get_or_insert_default().extend_from_slice(&[value, b"\n"].concat()),
                b"event" => event.event = Some(text).filter(|name| !name.is_empty()),
                b"id" if !value.contains(&0) => event.id = Some(text),
                b"retry" if value.iter().all(u8::is_ascii_digit) => {
                    event.retry = text.parse().ok().map(Duration::from_millis).or(event.retry);
                }
                _ => {}
            }
        }
        piece.extend_from_slice(rest);
        read.pieces.push(piece);
        read
    }
}

/// The events as they were sent, and last what has come of the one that has not ended.
fn cut(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut cutter = EventSplitter::new(LIMIT);
    let mut events: Vec<Vec<u8>> = Vec::new();
    for piece in pieces {
        cutter.feed(Bytes::copy_from_slice(piece));
        for event in std::iter::from_fn(|| cutter.next_piece()) {
            match events.last_mut() {
                Some(last) if is_rest_of_line_end(last, &event.bytes) => last.extend_from_slice(&event.bytes),
                _ => events.push(event.bytes.to_vec()),
            }
        }
    }
    events.push(cutter.take_buffered().to_vec());
    events
}

/// Whether an LF belongs to the CR before it, which did not wait for it.
fn is_rest_of_line_end(before: &[u8], piece: &[u8]) -> bool {
    piece == b"\n" && before.ends_with(b"\r")
}

fn decoded(pieces: &[&[u8]]) -> Vec<SseEvent> {
    let mut decoder = EventDecoder::new(LIMIT);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        while let Some(event) = decoder.next_event().expect("no event is so large") {
            events.push(event);
        }
    }
    events
}

fn watched(pieces: &[&[u8]]) -> Watched {
    let mut watch = StreamObserver::collecting_messages();
    let mut heard = Vec::new();
    for piece in pieces {
        watch.observe(piece);
        heard.extend(watch.take_messages());
    }
    Watched {
        response: watch.response(),
        is_resumable: watch.is_resumable(),
        is_between_events: watch.is_between_events(),
        void: watch.abandon_event(),
        heard,
    }
}

#[derive(Clone, Copy)]
enum Change {
    ToItself,
    ToAnother,
}

fn edited(pieces: &[&[u8]], change: Option<Change>) -> Vec<u8> {
    let edit = |frame: &Frame| {
        Some(match change? {
            Change::ToItself => frame.as_bytes().clone(),
            Change::ToAnother => Bytes::from_static(CHANGED),
        })
    };
    let mut editor = ResponseEditor::new(LIMIT);
    let mut out: Vec<u8> =
        pieces.iter().flat_map(|piece| editor.feed(Bytes::copy_from_slice(piece), edit)).collect();
    out.extend_from_slice(&editor.finish());
    out
}

/// What is left when all requests and notifications are `taken`; or when none is, and events are held now and
/// then.
fn sieved(pieces: &[&[u8]], taken: bool) -> Vec<u8> {
    let mut sieve = MessageFilter::new(LIMIT);
    let takes =
        |frame: Frame| taken && matches!(frame.kind(), Kind::Request { .. } | Kind::Notification { .. });
    let mut out = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let left = sieve.feed(Bytes::copy_from_slice(piece), || taken || at.is_multiple_of(3), takes);
        out.extend_from_slice(&left);
    }
    out.extend_from_slice(&sieve.finish());
    out
}

/// What was told, in order: whether it got an id, and the bytes.
fn minted(pieces: &[&[u8]], primes: bool) -> Vec<(Option<u64>, Bytes)> {
    let mut minter = EventIdAssigner::new([7; 16], primes, LIMIT);
    let mut told = Vec::new();
    for piece in pieces {
        told.extend(minter.feed(Bytes::copy_from_slice(piece)));
    }
    told.extend(minter.finish());
    let mut joined: Vec<(Option<u64>, Bytes)> = Vec::new();
    for entry in told {
        match joined.last_mut() {
            Some((_, bytes)) if is_rest_of_line_end(bytes, &entry.bytes) => {
                *bytes = [&bytes[..], &entry.bytes].concat().into();
            }
            // What has no id goes by in whatever pieces it came.
            Some((None, bytes)) if entry.number.is_none() => {
                *bytes = [&bytes[..], &entry.bytes].concat().into();
            }
            _ => joined.push((entry.number, entry.bytes)),
        }
    }
    joined
}

/// What a message is, where both can tell.
fn judged(event: &SseEvent) -> Option<MessageKind> {
    Some(match Frame::parse(event.data.clone()).ok()?.kind() {
        Kind::Success { .. } => MessageKind::Result,
        Kind::Failure { .. } => MessageKind::Error,
        Kind::Request { .. } | Kind::Notification { .. } => MessageKind::Method,
    })
}

/// What is heard of a message: of a long one nothing.
fn meant(message: &[u8]) -> &[u8] {
    if message.len() < 15_000 { message } else { b"" }
}

fn the_watch_knows_what_has_gone_by(stream: &[u8], events: &[SseEvent], watched: &Watched) {
    // Of what is no message the watch may think what it likes.
    let messages = || events.iter().filter(|event| !event.data.is_empty());
    if messages().all(|event| judged(event).is_some()) {
        let response = messages().filter_map(judged).find(|gist| *gist != MessageKind::Method);
        assert_eq!(watched.response, response);
        let heard: Vec<_> = messages()
            .filter(|event| judged(event) == Some(MessageKind::Method))
            .map(|event| meant(&event.data))
            .collect();
        // Each line has its end.
        let told = watched.heard.iter().map(|told| meant(told.strip_suffix(b"\n").unwrap_or(told)));
        assert_eq!(told.collect::<Vec<_>>(), heard);
    }
    let last_id = events.iter().rev().find_map(|event| event.id.as_deref());
    // Of spaces alone nothing is left in a header.
    assert_eq!(watched.is_resumable, last_id.is_some_and(|id| !id.trim_matches(' ').is_empty()));
    // An event of ours, put in behind what makes readers drop one that was cut off.
    let ours = Read::of(&[stream, &watched.void, OURS].concat()).events;
    let (last, before) = ours.split_last().expect("at least ours");
    assert_eq!((&last.event.as_deref(), &last.data[..]), (&Some("message"), &b"{\"ours\":1}"[..]));
    let (before, dropped) = before.split_at(events.len());
    assert_eq!(before, events, "what had gone by");
    match dropped {
        [] => {}
        [one] => assert_eq!(one.event.as_deref(), Some("incomplete"), "nobody listens for it"),
        several => panic!("of one event {several:?} was made"),
    }
    if watched.is_resumable && last_id.is_some_and(|id| id.len() < 1024) {
        assert_eq!(ours.iter().rev().find_map(|event| event.id.as_deref()), last_id, "its id is taken back");
    }
    if watched.is_between_events {
        assert_eq!((dropped, &watched.void[..]), (&[][..], &b""[..]));
    }
}

fn only_the_response_is_changed(
    stream: &[u8],
    events: &[SseEvent],
    kept: &[u8],
    same: &[u8],
    changed: &[u8],
) {
    assert_eq!(kept, stream);
    let after = Read::of(same).events;
    assert_eq!(after, events);
    let mut wanted = events.to_vec();
    if let Some(response) = wanted.iter_mut().find(|event| judged(event) == Some(MessageKind::Result)) {
        response.data = Bytes::from_static(CHANGED);
    }
    let after = Read::of(changed).events;
    assert_eq!(after, wanted);
}

/// Of what is taken the id and the pause are left.
fn only_what_is_not_taken_is_left(events: &[SseEvent], sieved: &[u8]) {
    let left = |event: &SseEvent| match judged(event) {
        Some(MessageKind::Method) if event.id.is_none() && event.retry.is_none() => None,
        Some(MessageKind::Method) => Some(SseEvent { event: None, data: Bytes::new(), ..event.clone() }),
        Some(MessageKind::Result | MessageKind::Error) | None => Some(event.clone()),
    };
    assert_eq!(Read::of(sieved).events, events.iter().filter_map(left).collect::<Vec<_>>());
}

fn ids_are_all_that_is_minted(
    stream: &[u8],
    events: &[SseEvent],
    minted: &[(Option<u64>, Bytes)],
    primed: &[(Option<u64>, Bytes)],
) {
    let head = |id: u64| format!("id: deferral-{:032x}-{id}\n", u128::from_be_bytes([7; 16]));
    let bare = |(id, bytes): &(Option<u64>, Bytes)| match id {
        Some(id) => bytes.strip_prefix(head(*id).as_bytes()).expect("an id in front").to_vec(),
        None => bytes.to_vec(),
    };
    assert_eq!(minted.iter().flat_map(bare).collect::<Vec<_>>(), stream);
    let ids: Vec<_> = minted.iter().filter_map(|(id, _)| *id).collect();
    assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>());

    // Up to the first id of the server's own, each event that says something has one of ours.
    let all: Vec<u8> = minted.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    let after = Read::of(&all).events;
    assert_eq!(after.len(), events.len());
    let mut next = 0;
    for (before, after) in events.iter().zip(&after) {
        let mut wanted = before.clone();
        if after.id != before.id {
            wanted.id = Some(head(next)["id: ".len()..].trim_end().to_owned());
            next += 1;
        }
        assert_eq!(*after, wanted);
    }
    assert_eq!(next as usize, ids.len());
    let of_server = events.iter().position(|event| event.id.is_some()).unwrap_or(events.len());
    let has_id = |(event, after): (&SseEvent, &SseEvent)| event.data.is_empty() || after.id.is_some();
    // An id with NUL is none, but a server that writes one gives ids itself, and is left alone.
    let is_left_alone = stream.contains(&0);
    assert!(is_left_alone || events[..of_server].iter().zip(&after).all(has_id));

    // A client that knows events without data gets one first.
    match ids[..] {
        [] => assert_eq!(primed, minted),
        _ => {
            let all: Vec<u8> = primed.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
            let primed = Read::of(&all).events;
            let (prime, rest) = primed
                .iter()
                .position(|event| event.id.as_deref().is_some_and(|id| id.starts_with("deferral-")))
                .map(|at| (&primed[at], primed.len() - 1))
                .expect("an event with our id");
            assert_eq!((prime.data.len(), rest), (0, events.len()));
        }
    }
}
