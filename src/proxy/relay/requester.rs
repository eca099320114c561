//! To whom an answer is owed.

use crate::{
    dialect::{Principal, legacy::Anchor},
    protocol::{Id, headers::LAST_EVENT_ID},
    proxy::{
        Passage,
        session::{Asked, Client, Left, Place, Sessions, Unfinished},
    },
    telemetry::Outcome,
};
use http::{HeaderValue, Method};
use smallvec::SmallVec;
use std::sync::Arc;

/// Who asked, in which session.
#[derive(Clone)]
pub(super) struct Requester {
    pub(super) asked: Arc<Asked>,
    unfinished: Arc<Unfinished>,
    principal: Principal,
    /// The client has come back for it, behind this event.
    pub(super) resumed: Option<HeaderValue>,
}

// === impl Requester ===

impl Requester {
    pub(super) fn of(sessions: &Sessions, client: &Client, passage: &Passage) -> Self {
        Self {
            asked: Asked::new(&sessions.ended, client.session, passage.post.waiting()),
            unfinished: Arc::clone(&sessions.unfinished),
            principal: client.principal,
            resumed: None,
        }
    }

    /// What the request comes back for, where it does, and where that is known: what a stream has left
    /// unanswered.
    pub(super) fn comes_back(&mut self, passage: &Passage) -> SmallVec<[Id; 1]> {
        let last_id = passage.headers.get(&LAST_EVENT_ID).filter(|_| passage.method == Method::GET);
        let left = last_id.and_then(|last_id| self.unfinished.left(self.place(last_id.as_bytes())));
        let Some(Left { waiting, asked }) = left else { return SmallVec::new() };
        self.resumed = last_id.cloned();
        self.asked = asked;
        waiting
    }

    pub(super) fn is_in_session(&self) -> bool {
        self.asked.key.is_some()
    }

    /// The stream ends here, or its client leaves, and these are not answered. The client may have lost the last
    /// events, and come back behind an `earlier` one.
    pub(super) fn leave<'a>(
        &self,
        behind: &'a Anchor,
        earlier: impl Iterator<Item = &'a [u8]>,
        waiting: &SmallVec<[Id; 1]>,
    ) {
        for last_id in earlier.chain([behind.last_id.as_bytes()]) {
            self.unfinished.leave(self.place(last_id), waiting.clone(), Arc::clone(&self.asked));
        }
    }

    /// Whose reading of the answer has to end before the server is asked for the rest, as it may give that to one
    /// connection alone.
    pub(super) fn reader(&self) -> Option<Arc<Asked>> {
        self.resumed.is_some().then(|| Arc::clone(&self.asked))
    }

    /// All has been answered.
    pub(super) fn answered(&self) {
        if let Some(last_id) = &self.resumed {
            self.unfinished.finish(self.place(last_id.as_bytes()));
        }
    }

    fn place(&self, last_id: &[u8]) -> Place {
        Place::of(self.principal, self.asked.key, last_id)
    }

    /// What an error of the server means.
    pub(super) fn of_error(&self) -> Outcome {
        if self.asked.is_taken_back() { Outcome::Departed } else { Outcome::ServerError }
    }
}
