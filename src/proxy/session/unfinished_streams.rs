//! Requests whose response stream ended before their response, and whose clients may resume the stream.
//!
//! A server may end a stream whose events have ids, and its client resumes the stream with `Last-Event-ID`
//! (2025-11-25, *Resumability and Redelivery*). If the server is gone meanwhile, some clients wait forever,
//! because an HTTP error answers no request. Therefore the unanswered requests of such a stream are stored
//! with the ids of its last events, so that a client that resumes gets an error for each request
//! ([`UnfinishedStreams::get`]).

use super::{SessionKey, bounded_map::BoundedMap, pending_requests::PendingRequest};
use crate::{dialect::Principal, protocol::RequestId, runtime::Mutex};
use smallvec::SmallVec;
use std::sync::Arc;

/// The unanswered requests of a route's streams, the last [`MAX_EVENTS`] of them.
#[derive(Debug, Default)]
pub(in crate::proxy) struct UnfinishedStreams {
    /// The unanswered requests after each event. Never locked across an await.
    streams: Mutex<BoundedMap<EventKey, UnfinishedStream, MAX_EVENTS>>,
}

/// Identifies an event of a client's stream: the digest of the session, or of the principal without one, and
/// of the event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct EventKey([u8; 16]);

/// The unanswered requests of a stream that has ended.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct UnfinishedStream {
    /// The ids of the unanswered requests.
    pub(in crate::proxy) unanswered: SmallVec<[RequestId; 1]>,
    /// The registration of the requests, so that the client can still cancel them.
    pub(in crate::proxy) pending: Arc<PendingRequest>,
}

/// Events of such streams that are stored, of each stream the last nine. Each costs about 200 bytes. If one
/// is evicted too early, its client may wait forever after its server has died.
const MAX_EVENTS: usize = 16 << 10;

/// The maximum total length of a stream's request ids, in bytes; requests with longer ids are not stored.
const MAX_ID_BYTES: usize = 256;

// === impl EventKey ===

impl EventKey {
    /// The key of the event with this id in the client's session.
    pub(in crate::proxy) fn new(
        principal: Principal,
        session: Option<SessionKey>,
        last_event_id: &[u8],
    ) -> Self {
        let scope = session.map_or(*principal.as_bytes(), SessionKey::digest);
        Self(*Principal::derive(&[&scope, last_event_id]).as_bytes())
    }
}

// === impl UnfinishedStreams ===

impl UnfinishedStreams {
    /// Stores the requests that a stream left unanswered after this event.
    pub(in crate::proxy) fn insert(
        &self,
        event: EventKey,
        unanswered: SmallVec<[RequestId; 1]>,
        pending: Arc<PendingRequest>,
    ) {
        if pending.ids.iter().map(|id| id.as_bytes().len()).sum::<usize>() > MAX_ID_BYTES {
            return;
        }
        self.streams.lock().insert(event, UnfinishedStream { unanswered, pending });
    }

    /// The unanswered requests after this event; mostly none.
    pub(in crate::proxy) fn get(&self, event: EventKey) -> Option<UnfinishedStream> {
        self.streams.lock().get(&event).cloned()
    }

    /// Removes the requests after this event, because they have been answered.
    pub(in crate::proxy) fn remove(&self, event: EventKey) {
        self.streams.lock().remove(&event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use smallvec::smallvec;

    fn event_key(last_id: &str) -> EventKey {
        let principal = Principal::from_bytes([1; 16]);
        let session = SessionKey::from_id(principal, &HeaderValue::from_static("s"));
        EventKey::new(principal, Some(session), last_id.as_bytes())
    }

    fn leave(unfinished: &UnfinishedStreams, last_id: &str, id: &RequestId) {
        let waiting = smallvec![id.clone()];
        unfinished.insert(
            event_key(last_id),
            waiting,
            PendingRequest::new(&Arc::default(), None, smallvec![id.clone()]),
        );
    }

    #[test]
    fn unanswered_requests_are_stored_until_they_are_answered() {
        let unfinished = UnfinishedStreams::default();
        leave(&unfinished, "e1", &RequestId::from_number(7));
        let left = unfinished.get(event_key("e1")).expect("it is known");
        assert_eq!(left.unanswered[..], [RequestId::from_number(7)]);
        assert!(unfinished.get(event_key("e2")).is_none());
        let other = EventKey::new(Principal::from_bytes([2; 16]), None, b"e1");
        assert!(unfinished.get(other).is_none(), "it is another's");
        unfinished.remove(event_key("e1"));
        assert!(unfinished.get(event_key("e1")).is_none());
    }

    #[test]
    fn only_so_much_is_remembered() {
        let unfinished = UnfinishedStreams::default();
        for number in 0..=MAX_EVENTS {
            leave(&unfinished, &number.to_string(), &RequestId::from_number(7));
        }
        assert!(unfinished.get(event_key("0")).is_none() && unfinished.get(event_key("1")).is_some());
        let long = RequestId::from_token(format!("\"{}\"", "x".repeat(MAX_ID_BYTES)).into()).expect("an id");
        leave(&unfinished, "long", &long);
        assert!(unfinished.get(event_key("long")).is_none());
        assert_eq!(unfinished.streams.lock().sizes(), (MAX_EVENTS, MAX_EVENTS));
    }
}
