//! Event ids for servers that send none, so that a client can resume a broken response.
//!
//! Off unless a route has `resume: { mint: true }`. A background task then reads the server's response from
//! the start into a buffer, and readers read the buffer: the client that called, and after a disconnect the
//! client that resumes with `Last-Event-ID` (2025-11-25, *Resumability and Redelivery*). Each event gets an
//! id in front of the server's fields, `deferral-STREAM-NUMBER`. A stream whose server sends ids is left
//! unchanged: the server redelivers.
//!
//! Bounds: `resume.bytes` of a response, `resume.keep` after its end, and `resume.streams` buffered responses
//! at a time, beyond which responses get no ids.

use super::legacy_http::{refuse_requests, stream_response};
use crate::{
    dialect::legacy::ResponseTracker,
    protocol::{
        ErrorObject, RequestId,
        accept::{EVENT_STREAM, is_media},
        code,
        headers::LAST_EVENT_ID,
        sse::{EventId, EventIdAssigner, NumberedEvent},
    },
    proxy::{
        AccessSummary, BodyContinuation, BodyPiece, BodyStream, LegacyRequest, LegacyResponse, ResponseBody,
        route_context::RouteContext,
        session::{LegacyClient, SessionKey},
    },
    runtime::{Mutex, random},
    telemetry::RequestOutcome,
};
use dashmap::DashMap;
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode, header::CONTENT_TYPE};
use smallvec::SmallVec;
use std::{collections::VecDeque, sync::Arc};
use tokio::{sync::watch, time::sleep};

/// The buffered responses of a route, by the random names of their streams (the `STREAM` of an event id).
#[derive(Debug, Default)]
pub(in crate::proxy) struct ReplayBuffers {
    buffers: DashMap<[u8; 16], Arc<ReplayBuffer>>,
}

/// A response that is buffered with event ids, for its client and for clients that resume it.
#[derive(Debug)]
struct ReplayBuffer {
    name: [u8; 16],
    /// The session in which the response may be resumed.
    session: Option<SessionKey>,
    /// The JSON-RPC requests that the response answers.
    waiting: SmallVec<[RequestId; 1]>,
    /// The buffer size in bytes.
    limit: usize,
    log: Mutex<ReplayLog>,
    changed: watch::Sender<()>,
}

/// The events of one response that are buffered, and the positions of their readers. The lock is held
/// briefly: never during an await.
#[derive(Debug, Default)]
struct ReplayLog {
    entries: VecDeque<ReplayEntry>,
    /// The number of events dropped from the front, which is the position of the first buffered event.
    first_position: u64,
    bytes: usize,
    /// The number in the last assigned event id.
    last_id: Option<u64>,
    /// Whether the stream has sent an event without an assigned id, which cannot be sent again: the event is
    /// too large, or has an id of the server.
    has_unnumbered: bool,
    /// The reader number and the position of the next unread event of each reader.
    readers: Vec<(u64, u64)>,
    next_reader: u64,
    end: Option<(AccessSummary, BodyContinuation)>,
}

/// A buffered event, and the access summary of the call if it is known when the event arrives.
#[derive(Clone, Debug)]
struct ReplayEntry {
    event: NumberedEvent,
    account: Option<AccessSummary>,
}

/// A client's reader of a buffer; dropped when the client disconnects.
struct ReplayReader {
    buffer: Arc<ReplayBuffer>,
    number: u64,
    position: u64,
    /// Events before this position are sent only if they have ids: to a client that resumes, old comments are
    /// useless.
    replay_until: u64,
    changed: watch::Receiver<()>,
    is_over: bool,
}

/// The outcome of a lookup of the event after which a client resumes.
enum ReplayLookup {
    /// A reader of the events that follow the requested one.
    Rest(ReplayReader),
    /// The event belongs to this response, but the events that follow are no longer buffered.
    Overflowed,
    /// No event of this response has the requested id.
    Unknown,
}

/// The properties of a request that are needed to buffer its response.
pub(in crate::proxy) struct ReplayParams {
    session: Option<SessionKey>,
    waiting: SmallVec<[RequestId; 1]>,
    /// Whether the stream begins with an empty event that has an id, so that the client can resume before the
    /// first message.
    sends_priming_event: bool,
}

/// Returns the parameters for buffering the response to this request; `None` if the response is not buffered.
/// Buffered are responses to POSTs that may request input (such as calls), on a route with `resume.mint`.
pub(in crate::proxy) fn replay_params(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<ReplayParams> {
    let is_buffered = shared.route.resume.assigns_event_ids
        && request.method == Method::POST
        && request.post.can_request_input();
    is_buffered.then(|| ReplayParams {
        session: client.session,
        waiting: request.post.request_ids(),
        sends_priming_event: client.has_task_support(),
    })
}

/// Buffers a response and assigns event ids. A response that is not an event stream, or exceeds
/// `resume.streams`, is returned unchanged.
pub(in crate::proxy) fn buffer_response(
    shared: &Arc<RouteContext>,
    params: ReplayParams,
    response: LegacyResponse,
) -> LegacyResponse {
    let is_events = is_media(response.headers.get(CONTENT_TYPE), EVENT_STREAM);
    let LegacyResponse { status, headers, body } = response;
    let pieces = match body {
        ResponseBody::Stream(pieces)
            if is_events
                && status == StatusCode::OK
                && shared.replay_buffers.buffers.len() < shared.route.resume.max_streams =>
        {
            pieces
        }
        body => return LegacyResponse { status, headers, body },
    };
    let name = random();
    let buffer = Arc::new(ReplayBuffer {
        name,
        session: params.session,
        waiting: params.waiting,
        limit: shared.route.resume.max_bytes,
        log: Mutex::default(),
        changed: watch::Sender::new(()),
    });
    shared.replay_buffers.buffers.insert(name, Arc::clone(&buffer));
    let reader = buffer.read_from_start();
    let id_assigner = EventIdAssigner::new(name, params.sends_priming_event, shared.route.resume.max_bytes);
    let filling = fill_buffer(Arc::clone(shared), buffer, pieces, id_assigner);
    shared.closing.spawn(filling);
    LegacyResponse { status, headers, body: ResponseBody::Stream(reader.into_pieces()) }
}

/// Reads a response to its end into its buffer, and removes the buffer after `resume.keep`.
async fn fill_buffer(
    shared: Arc<RouteContext>,
    buffer: Arc<ReplayBuffer>,
    mut pieces: BodyStream,
    mut id_assigner: EventIdAssigner,
) {
    let resume = shared.route.resume;
    // The access summary waits here until an event arrives to which it can be attached.
    let mut summary = None;
    let mut end = BodyContinuation::End;
    while let Some(BodyPiece { bytes, summary: summary_of_piece, continuation, .. }) = pieces.next().await {
        summary = summary_of_piece.or(summary);
        let events = id_assigner.feed(bytes);
        let entry = |event| ReplayEntry { event, account: None };
        let mut entries: Vec<_> = events.into_iter().map(entry).collect();
        if continuation != BodyContinuation::More {
            entries.extend(id_assigner.finish().map(entry));
            buffer.add(entries, resume.max_bytes).await;
            end = continuation;
            break;
        }
        if let Some(last) = entries.last_mut() {
            last.account = summary.take();
        }
        buffer.add(entries, resume.max_bytes).await;
    }
    buffer.mark_ended(summary.unwrap_or_default(), end);
    // Releases the resources of the server's response.
    drop(pieces);
    tokio::select! {
        () = sleep(resume.keep_for) => {}
        () = shared.closing.stopped() => {}
    }
    shared.replay_buffers.buffers.remove(&buffer.name);
}

/// Builds the response to a client that resumes a buffered stream; `None` for any other request. A stream
/// that is no longer buffered gives 400.
pub(in crate::proxy) fn resume(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<LegacyResponse> {
    if request.method != Method::GET || !shared.route.resume.assigns_event_ids {
        return None;
    }
    let id = request.headers.get(&LAST_EVENT_ID)?.to_str().ok()?;
    let EventId { stream, number } = EventId::parse(id)?;
    let buffer = shared.replay_buffers.buffers.get(&stream).map(|buffer| Arc::clone(&buffer));
    let buffer = buffer.filter(|buffer| buffer.session == client.session);
    let lookup = buffer.as_ref().map_or(ReplayLookup::Unknown, |buffer| buffer.find_after(number));
    match (lookup, buffer) {
        (ReplayLookup::Rest(reader), _) => Some(stream_response(ResponseBody::Stream(reader.into_pieces()))),
        (ReplayLookup::Overflowed, Some(buffer)) => Some(buffer.overflow_response()),
        (ReplayLookup::Overflowed | ReplayLookup::Unknown, _) => {
            let message =
                "the stream that this event id belongs to is no longer kept (resume.keep, resume.bytes)";
            let error = ErrorObject::new(code::INVALID_REQUEST, message);
            let summary = AccessSummary::failed(RequestOutcome::Refused, &error);
            Some(refuse_requests(StatusCode::BAD_REQUEST, &[], &error, summary))
        }
    }
}

// === impl ReplayBuffer ===

impl ReplayBuffer {
    /// Adds events, then waits while the buffer is too large and a connected reader has not read the oldest
    /// event.
    async fn add(&self, entries: Vec<ReplayEntry>, limit: usize) {
        let mut changed = self.changed.subscribe();
        {
            let mut log = self.log.lock();
            let is_read = !log.readers.is_empty();
            for entry in entries {
                log.last_id = entry.event.number.or(log.last_id);
                log.has_unnumbered |= entry.event.is_unnumbered_message;
                // A comment without readers is dropped.
                if entry.event.number.is_some() || is_read {
                    log.bytes += entry.event.bytes.len();
                    log.entries.push_back(entry);
                }
            }
        }
        self.changed.send_replace(());
        while !self.log.lock().shrink(limit) {
            let _ = changed.changed().await;
        }
    }

    /// Records the end of the response, with its access summary.
    fn mark_ended(&self, summary: AccessSummary, continuation: BodyContinuation) {
        self.log.lock().end = Some((summary, continuation));
        self.changed.send_replace(());
    }

    /// Returns a reader that starts at the first event.
    fn read_from_start(self: &Arc<Self>) -> ReplayReader {
        self.add_reader(0, 0)
    }

    /// Returns a reader that starts after the event with this number.
    fn find_after(self: &Arc<Self>, id: u64) -> ReplayLookup {
        let (position, replay_until) = {
            let log = self.log.lock();
            if log.last_id.is_none_or(|last| last < id) {
                return ReplayLookup::Unknown;
            }
            if log.has_unnumbered {
                return ReplayLookup::Overflowed;
            }
            let end = log.first_position + log.entries.len() as u64;
            let found = log.entries.iter().zip(log.first_position..).find_map(|(entry, position)| {
                match entry.event.number {
                    Some(number) if number == id => Some(position + 1),
                    // The event itself may have been dropped while the next event is still buffered.
                    // `checked_add`, because a client may send any number.
                    Some(number) if id.checked_add(1) == Some(number) => Some(position),
                    _ => None,
                }
            });
            match found.or_else(|| (log.last_id == Some(id)).then_some(end)) {
                Some(position) => (position, end),
                None => return ReplayLookup::Overflowed,
            }
        };
        ReplayLookup::Rest(self.add_reader(position, replay_until))
    }

    /// Builds the response to a client that resumes too late: an event stream with errors, because an HTTP
    /// error would answer none of its requests and leave it waiting for ever.
    fn overflow_response(&self) -> LegacyResponse {
        let message = format!(
            "the rest of this response cannot be sent again: it is larger than {} bytes (resume.bytes) or has event ids of \
             its server; the call may have run",
            self.limit
        );
        let error = ErrorObject::new(code::RESULT_TOO_LARGE, message);
        let summary = AccessSummary::failed(RequestOutcome::ProxyFailed, &error);
        stream_response(ResponseBody::Complete(
            ResponseTracker::new(self.waiting.clone(), 0).closing_errors(&error),
            summary,
        ))
    }

    /// Registers a reader that starts at this position.
    fn add_reader(self: &Arc<Self>, position: u64, replay_until: u64) -> ReplayReader {
        let mut log = self.log.lock();
        let number = log.next_reader;
        log.next_reader += 1;
        log.readers.push((number, position));
        drop(log);
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        ReplayReader { buffer: Arc::clone(self), number, position, replay_until, changed, is_over: false }
    }
}

// === impl ReplayLog ===

impl ReplayLog {
    /// Drops the oldest events that all readers have read, while the buffer is larger than `limit` bytes.
    /// Returns whether the buffer is small enough: an event that a reader has not read is kept.
    fn shrink(&mut self, limit: usize) -> bool {
        let oldest_unread = self.readers.iter().map(|(_, position)| *position).min();
        while self.bytes > limit {
            if oldest_unread.is_some_and(|unread| unread <= self.first_position) {
                return false;
            }
            let Some(oldest) = self.entries.pop_front() else { return true };
            self.bytes -= oldest.event.bytes.len();
            self.first_position += 1;
        }
        true
    }
}

// === impl ReplayReader ===

impl ReplayReader {
    fn into_pieces(self) -> BodyStream {
        stream::unfold(self, async |mut reader| {
            let piece = reader.next().await?;
            Some((piece, reader))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<BodyPiece> {
        if self.is_over {
            return None;
        }
        loop {
            self.changed.mark_unchanged();
            if let Some(piece) = self.take_next() {
                return Some(piece);
            }
            // The wait cannot fail: the sender is owned by the buffer, which this reader keeps alive.
            let _ = self.changed.changed().await;
        }
    }

    /// Returns the next piece of the response; `None` if no new event is buffered yet.
    fn take_next(&mut self) -> Option<BodyPiece> {
        let mut log = self.buffer.log.lock();
        let start = self.position;
        let mut found = None;
        while found.is_none() {
            let index =
                usize::try_from(self.position.saturating_sub(log.first_position)).unwrap_or(usize::MAX);
            let Some(entry) = log.entries.get(index) else { break };
            if entry.event.number.is_some() || self.position >= self.replay_until {
                let ReplayEntry { event: NumberedEvent { bytes, .. }, account } = entry.clone();
                found = Some(BodyPiece { summary: account, ..BodyPiece::from_bytes(bytes) });
            }
            self.position += 1;
        }
        if let Some((_, position)) = log.readers.iter_mut().find(|(number, _)| *number == self.number) {
            *position = self.position;
        }
        let end = log.end.clone();
        drop(log);
        if self.position != start {
            // `ReplayBuffer::add` may be waiting for this reader to advance.
            self.buffer.changed.send_replace(());
        }
        if found.is_some() {
            return found;
        }
        let (summary, continuation) = end?;
        self.is_over = true;
        Some(BodyPiece { summary: Some(summary), continuation, ..BodyPiece::end() })
    }
}

impl Drop for ReplayReader {
    fn drop(&mut self) {
        self.buffer.log.lock().readers.retain(|(number, _)| *number != self.number);
        self.buffer.changed.send_replace(());
    }
}
