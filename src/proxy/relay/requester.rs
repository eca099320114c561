//! The requests that a response is owed to.

use crate::{
    dialect::{Principal, legacy::ResumePosition},
    protocol::{RequestId, headers::LAST_EVENT_ID},
    proxy::{
        LegacyRequest,
        session::{
            EventKey, LegacyClient, LegacySessions, PendingRequest, UnfinishedStream, UnfinishedStreams,
        },
    },
    telemetry::RequestOutcome,
};
use http::{HeaderValue, Method};
use smallvec::SmallVec;
use std::sync::Arc;

/// The requests of a POST or of a resumed stream, and their session.
#[derive(Clone)]
pub(super) struct Requester {
    pub(super) pending: Arc<PendingRequest>,
    unfinished: Arc<UnfinishedStreams>,
    principal: Principal,
    /// The client resumes the response after this event.
    pub(super) resumed: Option<HeaderValue>,
}

// === impl Requester ===

impl Requester {
    pub(super) fn of(sessions: &LegacySessions, client: &LegacyClient, passage: &LegacyRequest) -> Self {
        Self {
            pending: PendingRequest::new(
                &sessions.pending_requests,
                client.session,
                passage.post.request_ids(),
            ),
            unfinished: Arc::clone(&sessions.unfinished_streams),
            principal: client.principal,
            resumed: None,
        }
    }

    /// The unanswered requests of the stream that the request resumes; empty if it resumes none, or none that
    /// is known.
    pub(super) fn resume(&mut self, passage: &LegacyRequest) -> SmallVec<[RequestId; 1]> {
        let last_id = passage.headers.get(&LAST_EVENT_ID).filter(|_| passage.method == Method::GET);
        let left = last_id.and_then(|last_id| self.unfinished.get(self.event_key(last_id.as_bytes())));
        let Some(UnfinishedStream { waiting, pending }) = left else { return SmallVec::new() };
        self.resumed = last_id.cloned();
        self.pending = pending;
        waiting
    }

    pub(super) fn is_in_session(&self) -> bool {
        self.pending.key.is_some()
    }

    /// Stores the unanswered requests of a stream that ends, or whose client disconnects. The client may have
    /// lost the last events, and may resume after an `earlier` one.
    pub(super) fn save_unfinished<'a>(
        &self,
        behind: &'a ResumePosition,
        earlier: impl Iterator<Item = &'a [u8]>,
        waiting: &SmallVec<[RequestId; 1]>,
    ) {
        for last_id in earlier.chain([behind.last_id.as_bytes()]) {
            self.unfinished.insert(self.event_key(last_id), waiting.clone(), Arc::clone(&self.pending));
        }
    }

    /// The requests whose background read must end before the server is asked for the rest: it may send the
    /// rest to one connection only.
    pub(super) fn pending_reader(&self) -> Option<Arc<PendingRequest>> {
        self.resumed.is_some().then(|| Arc::clone(&self.pending))
    }

    /// Removes the stored stream: all its requests have been answered.
    pub(super) fn mark_answered(&self) {
        if let Some(last_id) = &self.resumed {
            self.unfinished.remove(self.event_key(last_id.as_bytes()));
        }
    }

    fn event_key(&self, last_id: &[u8]) -> EventKey {
        EventKey::of(self.principal, self.pending.key, last_id)
    }

    /// The outcome for an error of the server.
    pub(super) fn error_outcome(&self) -> RequestOutcome {
        if self.pending.is_cancelled() { RequestOutcome::Disconnected } else { RequestOutcome::ServerError }
    }
}
