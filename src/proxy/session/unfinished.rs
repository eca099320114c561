//! Requests whose stream ended before their answer, and whose clients go on elsewhere.
//!
//! A server may end a stream whose events have ids, and its client comes back for the rest with
//! `Last-Event-ID` (2025-11-25, *Resumability and Redelivery*). Where the server has died meanwhile, the
//! client hears nothing that it understands, and some wait for ever: an HTTP error answers no request.
//! So it is remembered what such a stream left unanswered, and behind which event, so that whoever comes
//! back for it can be told ([`Unfinished::left`]).

use super::{Key, cancelled_requests::Asked, latest::Latest};
use crate::{dialect::Principal, protocol::Id, runtime::Mutex};
use smallvec::SmallVec;
use std::sync::Arc;

/// What the streams of a route have left unanswered, the last [`REMEMBERED`] of them.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Unfinished {
    /// Never held while waiting.
    known: Mutex<Latest<Place, Left, REMEMBERED>>,
}

/// An event of a client's session: a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct Place([u8; 16]);

/// What a stream has left unanswered.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct Left {
    pub(in crate::proxy) waiting: SmallVec<[Id; 1]>,
    /// Whoever goes on elsewhere may still take it back.
    pub(in crate::proxy) asked: Arc<Asked>,
}

/// How many events of such streams are remembered, of each stream the last nine. Each costs about 200 bytes; the client of one that is forgotten too
/// early may wait for ever if its server has died.
const REMEMBERED: usize = 16 << 10;

/// Requests with longer ids are not remembered, in bytes.
const IDS: usize = 256;

// === impl Place ===

impl Place {
    pub(in crate::proxy) fn of(principal: Principal, session: Option<Key>, last_id: &[u8]) -> Self {
        let whose = session.map_or(*principal.as_bytes(), Key::digest);
        Self(*Principal::of(&[&whose, last_id]).as_bytes())
    }
}

// === impl Unfinished ===

impl Unfinished {
    /// A stream ended behind this event, and these wait for the rest.
    pub(in crate::proxy) fn leave(&self, place: Place, waiting: SmallVec<[Id; 1]>, asked: Arc<Asked>) {
        if asked.ids.iter().map(|id| id.as_bytes().len()).sum::<usize>() > IDS {
            return;
        }
        self.known.lock().insert(place, Left { waiting, asked });
    }

    /// What still waits for an answer behind this event; mostly nothing.
    pub(in crate::proxy) fn left(&self, place: Place) -> Option<Left> {
        self.known.lock().get(&place).cloned()
    }

    /// What was left there has been answered.
    pub(in crate::proxy) fn finish(&self, place: Place) {
        self.known.lock().remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use smallvec::smallvec;

    fn place(last_id: &str) -> Place {
        let principal = Principal::from_bytes([1; 16]);
        let session = Key::named(principal, &HeaderValue::from_static("s"));
        Place::of(principal, Some(session), last_id.as_bytes())
    }

    fn leave(unfinished: &Unfinished, last_id: &str, id: &Id) {
        let waiting = smallvec![id.clone()];
        unfinished.leave(place(last_id), waiting, Asked::new(&Arc::default(), None, smallvec![id.clone()]));
    }

    #[test]
    fn what_was_left_is_known_behind_its_event_until_it_is_answered() {
        let unfinished = Unfinished::default();
        leave(&unfinished, "e1", &Id::from_number(7));
        let left = unfinished.left(place("e1")).expect("it is known");
        assert_eq!(left.waiting[..], [Id::from_number(7)]);
        assert!(unfinished.left(place("e2")).is_none());
        let other = Place::of(Principal::from_bytes([2; 16]), None, b"e1");
        assert!(unfinished.left(other).is_none(), "it is another's");
        unfinished.finish(place("e1"));
        assert!(unfinished.left(place("e1")).is_none());
    }

    #[test]
    fn only_so_much_is_remembered() {
        let unfinished = Unfinished::default();
        for number in 0..=REMEMBERED {
            leave(&unfinished, &number.to_string(), &Id::from_number(7));
        }
        assert!(unfinished.left(place("0")).is_none() && unfinished.left(place("1")).is_some());
        let long = Id::from_token(format!("\"{}\"", "x".repeat(IDS)).into()).expect("an id");
        leave(&unfinished, "long", &long);
        assert!(unfinished.left(place("long")).is_none());
        assert_eq!(unfinished.known.lock().sizes(), (REMEMBERED, REMEMBERED));
    }
}
