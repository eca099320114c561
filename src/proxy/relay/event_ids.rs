//! Event ids for servers that give none, so that a client can take up an answer where it broke.
//!
//! Off unless a route says `resume: { mint: true }`. The answer is then read by work of its own from the
//! start, and kept, and whoever reads it reads what is kept: the client that called, and after a
//! departure the client that comes back with `Last-Event-ID` (2025-11-25, *Resumability and
//! Redelivery*). Each event gets an id in front of what the server wrote, `deferral-STREAM-NUMBER`.
//! A stream whose server gives ids itself is left as it is: the server redelivers.
//!
//! The bounds are named: `resume.bytes` of an answer, `resume.keep` after its end, and `resume.streams`
//! answers at a time, beyond which answers go without ids.

use crate::{
    dialect::legacy::Answers,
    protocol::{
        ErrorObject, Id,
        accept::{EVENT_STREAM, is_media},
        code,
        headers::LAST_EVENT_ID,
        sse::{EventId, Minter, Numbered},
    },
    proxy::{
        AccessSummary, Passage, Passed, Passing, Piece, Pieces, Then,
        passage::{events, refused},
        session::{Client, Key},
        shared::Shared,
    },
    runtime::{Mutex, random},
    telemetry::Outcome,
};
use dashmap::DashMap;
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode, header::CONTENT_TYPE};
use smallvec::SmallVec;
use std::{collections::VecDeque, sync::Arc};
use tokio::{sync::watch, time::sleep};

/// The answers that are kept, by the names of their streams.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Minted {
    kept: DashMap<[u8; 16], Arc<Kept>>,
}

/// One answer.
#[derive(Debug)]
struct Kept {
    name: [u8; 16],
    /// Whose it is.
    session: Option<Key>,
    /// The requests that it answers.
    waiting: SmallVec<[Id; 1]>,
    /// Bytes that are kept of it.
    limit: usize,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
}

/// What has come of an answer. The lock guards a few lines each time.
#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<Entry>,
    /// How many have been dropped: the place of the first that is kept.
    first: u64,
    bytes: usize,
    /// The last id that was given.
    last_id: Option<u64>,
    /// It has said something without an id, which cannot be given again: an event that is too large, or one for which
    /// the server has an id of its own.
    has_unnumbered: bool,
    /// Where each who reads it is.
    readers: Vec<(u64, u64)>,
    next_reader: u64,
    end: Option<(AccessSummary, Then)>,
}

/// What was told, and with it what is said of the call in the log.
#[derive(Clone, Debug)]
struct Entry {
    told: Numbered,
    account: Option<AccessSummary>,
}

/// Somebody who reads an answer. Dropped, it has left.
struct Reader {
    kept: Arc<Kept>,
    number: u64,
    at: u64,
    /// Up to here only what has an id is given: the client comes back, and comments are of no use to
    /// it any more.
    again_until: u64,
    changed: watch::Receiver<()>,
    over: bool,
}

/// What there is for a client that comes back.
enum Again {
    Rest(Reader),
    /// The event was one of this answer, and what follows is not kept.
    Overflowed,
    /// No event of this answer has that id.
    Unknown,
}

/// How an answer is to be kept, where it is.
pub(in crate::proxy) struct Terms {
    session: Option<Key>,
    waiting: SmallVec<[Id; 1]>,
    primes: bool,
}

/// Whether the answer to this request is to be kept: a route's calls and what else waits for an answer.
pub(in crate::proxy) fn terms(shared: &Shared, client: &Client, passage: &Passage) -> Option<Terms> {
    let waits = shared.route.resume.mint && passage.method == Method::POST && passage.post.may_ask();
    waits.then(|| Terms {
        session: client.session,
        waiting: passage.post.waiting(),
        primes: client.knows_tasks(),
    })
}

/// Keeps an answer, and gives its events ids, if it is an event stream.
pub(in crate::proxy) fn keep(shared: &Arc<Shared>, terms: Terms, passed: Passed) -> Passed {
    let is_events = is_media(passed.headers.get(CONTENT_TYPE), EVENT_STREAM);
    let Passed { status, headers, body } = passed;
    let pieces = match body {
        Passing::Pieces(pieces)
            if is_events
                && status == StatusCode::OK
                && shared.minted.kept.len() < shared.route.resume.streams =>
        {
            pieces
        }
        body => return Passed { status, headers, body },
    };
    let name = random();
    let kept = Arc::new(Kept {
        name,
        session: terms.session,
        waiting: terms.waiting,
        limit: shared.route.resume.bytes,
        log: Mutex::default(),
        changed: watch::Sender::new(()),
    });
    shared.minted.kept.insert(name, Arc::clone(&kept));
    let reader = kept.read();
    let minter = Minter::new(name, terms.primes, shared.route.resume.bytes);
    let pump = pump(Arc::clone(shared), kept, pieces, minter);
    shared.closing.spawn(pump);
    Passed { status, headers, body: Passing::Pieces(reader.into_pieces()) }
}

/// Reads an answer to its end, and forgets it after a while.
async fn pump(shared: Arc<Shared>, kept: Arc<Kept>, mut pieces: Pieces, mut minter: Minter) {
    let resume = shared.route.resume;
    // What has been said of the call, until there is something to say it with.
    let mut said = None;
    let mut end = Then::End;
    while let Some(Piece { bytes, account, then, .. }) = pieces.next().await {
        said = account.or(said);
        let told = minter.feed(bytes);
        let entry = |told| Entry { told, account: None };
        let mut entries: Vec<_> = told.into_iter().map(entry).collect();
        if then != Then::More {
            entries.extend(minter.rest().map(entry));
            kept.add(entries, resume.bytes).await;
            end = then;
            break;
        }
        if let Some(last) = entries.last_mut() {
            last.account = said.take();
        }
        kept.add(entries, resume.bytes).await;
    }
    kept.end(said.unwrap_or_default(), end);
    // Whatever it held of the server.
    drop(pieces);
    tokio::select! {
        () = sleep(resume.keep) => {}
        () = shared.closing.stopped() => {}
    }
    shared.minted.kept.remove(&kept.name);
}

/// The answer to a client that comes back to a stream of ours; nothing for any other request.
pub(in crate::proxy) fn resume(shared: &Shared, client: &Client, passage: &Passage) -> Option<Passed> {
    if passage.method != Method::GET || !shared.route.resume.mint {
        return None;
    }
    let id = passage.headers.get(&LAST_EVENT_ID)?.to_str().ok()?;
    let EventId { stream, number } = EventId::parse(id)?;
    let kept = shared.minted.kept.get(&stream).map(|kept| Arc::clone(&kept));
    let kept = kept.filter(|kept| kept.session == client.session);
    let again = kept.as_ref().map_or(Again::Unknown, |kept| kept.read_again(number));
    match (again, kept) {
        (Again::Rest(reader), _) => Some(events(Passing::Pieces(reader.into_pieces()))),
        (Again::Overflowed, Some(kept)) => Some(kept.overflowed()),
        (Again::Overflowed | Again::Unknown, _) => {
            let words =
                "the stream that this event id belongs to is no longer kept (resume.keep, resume.bytes)";
            let error = ErrorObject::new(code::INVALID_REQUEST, words);
            let account = AccessSummary::failed(Outcome::Refused, &error);
            Some(refused(StatusCode::BAD_REQUEST, &[], &error, account))
        }
    }
}

// === impl Kept ===

impl Kept {
    /// Adds what has come. Waits for those who read, but not for those who have left.
    async fn add(&self, entries: Vec<Entry>, limit: usize) {
        let mut changed = self.changed.subscribe();
        {
            let mut log = self.log.lock();
            let is_read = !log.readers.is_empty();
            for entry in entries {
                log.last_id = entry.told.number.or(log.last_id);
                log.has_unnumbered |= entry.told.is_unnumbered_message;
                // A comment to nobody.
                if entry.told.number.is_some() || is_read {
                    log.bytes += entry.told.bytes.len();
                    log.entries.push_back(entry);
                }
            }
        }
        self.changed.send_replace(());
        while !self.log.lock().shrink(limit) {
            let _ = changed.changed().await;
        }
    }

    fn end(&self, account: AccessSummary, then: Then) {
        self.log.lock().end = Some((account, then));
        self.changed.send_replace(());
    }

    /// From the beginning.
    fn read(self: &Arc<Self>) -> Reader {
        self.reader(0, 0)
    }

    /// What follows the event with this id.
    fn read_again(self: &Arc<Self>, id: u64) -> Again {
        let (at, until) = {
            let log = self.log.lock();
            if log.last_id.is_none_or(|last| last < id) {
                return Again::Unknown;
            }
            if log.has_unnumbered {
                return Again::Overflowed;
            }
            let end = log.first + log.entries.len() as u64;
            let found =
                log.entries.iter().zip(log.first..).find_map(|(entry, place)| match entry.told.number {
                    Some(kept) if kept == id => Some(place + 1),
                    // The event itself may be kept no more, but what follows it. Whoever comes back names any
                    // number.
                    Some(kept) if id.checked_add(1) == Some(kept) => Some(place),
                    _ => None,
                });
            match found.or_else(|| (log.last_id == Some(id)).then_some(end)) {
                Some(at) => (at, end),
                None => return Again::Overflowed,
            }
        };
        Again::Rest(self.reader(at, until))
    }

    /// The answer to a client that has come back too late: an HTTP error would answer none of its requests, and it
    /// would wait for ever.
    fn overflowed(&self) -> Passed {
        let words = format!(
            "the rest of this answer cannot be given again, as it is larger than {} bytes (resume.bytes) or has event ids of \
             its server's; the call may have run",
            self.limit
        );
        let error = ErrorObject::new(code::RESULT_TOO_LARGE, words);
        let account = AccessSummary::failed(Outcome::ProxyFailed, &error);
        events(Passing::Whole(Answers::to(self.waiting.clone(), 0).last_words(&error), account))
    }

    fn reader(self: &Arc<Self>, at: u64, again_until: u64) -> Reader {
        let mut log = self.log.lock();
        let number = log.next_reader;
        log.next_reader += 1;
        log.readers.push((number, at));
        drop(log);
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        Reader { kept: Arc::clone(self), number, at, again_until, changed, over: false }
    }
}

// === impl Log ===

impl Log {
    /// Drops the oldest that everybody has read, while there is too much. Whether it is enough now:
    /// what somebody is still to read is not dropped, but what nobody reads is.
    fn shrink(&mut self, limit: usize) -> bool {
        let unread = self.readers.iter().map(|(_, at)| *at).min();
        while self.bytes > limit {
            if unread.is_some_and(|unread| unread <= self.first) {
                return false;
            }
            let Some(oldest) = self.entries.pop_front() else { return true };
            self.bytes -= oldest.told.bytes.len();
            self.first += 1;
        }
        true
    }
}

// === impl Reader ===

impl Reader {
    fn into_pieces(self) -> Pieces {
        stream::unfold(self, async |mut reader| {
            let piece = reader.next().await?;
            Some((piece, reader))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Piece> {
        if self.over {
            return None;
        }
        loop {
            self.changed.mark_unchanged();
            if let Some(piece) = self.take() {
                return Some(piece);
            }
            // The sender lives in what is kept.
            let _ = self.changed.changed().await;
        }
    }

    /// What there is to read.
    fn take(&mut self) -> Option<Piece> {
        let mut log = self.kept.log.lock();
        let from = self.at;
        let mut found = None;
        while found.is_none() {
            let index = usize::try_from(self.at.saturating_sub(log.first)).unwrap_or(usize::MAX);
            let Some(entry) = log.entries.get(index) else { break };
            if entry.told.number.is_some() || self.at >= self.again_until {
                let Entry { told: Numbered { bytes, .. }, account } = entry.clone();
                found = Some(Piece { account, ..Piece::of(bytes) });
            }
            self.at += 1;
        }
        if let Some((_, at)) = log.readers.iter_mut().find(|(number, _)| *number == self.number) {
            *at = self.at;
        }
        let end = log.end.clone();
        drop(log);
        if self.at != from {
            // Who adds may have waited for it.
            self.kept.changed.send_replace(());
        }
        if found.is_some() {
            return found;
        }
        let (account, then) = end?;
        self.over = true;
        Some(Piece { account: Some(account), then, ..Piece::end() })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.kept.log.lock().readers.retain(|(number, _)| *number != self.number);
        self.kept.changed.send_replace(());
    }
}
