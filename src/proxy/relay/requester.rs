//! The JSON-RPC requests to which a relayed HTTP request owes responses.

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

/// The JSON-RPC requests of a POST or of a resumed stream, their session and their principal.
#[derive(Clone)]
pub(super) struct Requester {
    /// The registration of the requests, which records their cancellation.
    pub(super) pending: Arc<PendingRequest>,
    unfinished: Arc<UnfinishedStreams>,
    principal: Principal,
    /// The `Last-Event-ID` of a client that resumes a known stream; otherwise `None`.
    pub(super) resumed_after: Option<HeaderValue>,
}

// === impl Requester ===

impl Requester {
    /// Creates the requester for the JSON-RPC requests in this HTTP request.
    pub(super) fn for_request(
        sessions: &LegacySessions,
        client: &LegacyClient,
        request: &LegacyRequest,
    ) -> Self {
        Self {
            pending: PendingRequest::new(
                &sessions.pending_requests,
                client.session,
                request.post.request_ids(),
            ),
            unfinished: Arc::clone(&sessions.unfinished_streams),
            principal: client.principal,
            resumed_after: None,
        }
    }

    /// Takes over the stream that the request resumes (`Last-Event-ID`), and returns the requests that the
    /// stream has not answered; empty if the request resumes no known stream.
    pub(super) fn resume(&mut self, request: &LegacyRequest) -> SmallVec<[RequestId; 1]> {
        let last_id = request.headers.get(&LAST_EVENT_ID).filter(|_| request.method == Method::GET);
        let stream = last_id.and_then(|last_id| self.unfinished.get(self.event_key(last_id.as_bytes())));
        let Some(UnfinishedStream { unanswered: waiting, pending }) = stream else { return SmallVec::new() };
        self.resumed_after = last_id.cloned();
        self.pending = pending;
        waiting
    }

    /// Whether the requests were made in an MCP session.
    pub(super) fn is_in_session(&self) -> bool {
        self.pending.key.is_some()
    }

    /// Stores the unanswered requests of a stream that ends, or whose client disconnects, so that the client
    /// can resume it. The client may have lost the last events, so the stream is stored under the `earlier`
    /// event ids as well.
    pub(super) fn save_unfinished<'a>(
        &self,
        position: &'a ResumePosition,
        earlier_ids: impl Iterator<Item = &'a [u8]>,
        waiting: &SmallVec<[RequestId; 1]>,
    ) {
        for last_id in earlier_ids.chain([position.last_id.as_bytes()]) {
            self.unfinished.insert(self.event_key(last_id), waiting.clone(), Arc::clone(&self.pending));
        }
    }

    /// Returns the requests whose background read must end before the stream is resumed at the server, which
    /// may serve a stream on one connection only. `None` if no stream is resumed.
    pub(super) fn pending_reader(&self) -> Option<Arc<PendingRequest>> {
        self.resumed_after.is_some().then(|| Arc::clone(&self.pending))
    }

    /// Removes the stored stream once all its requests have been answered.
    pub(super) fn mark_answered(&self) {
        if let Some(last_id) = &self.resumed_after {
            self.unfinished.remove(self.event_key(last_id.as_bytes()));
        }
    }

    /// Returns the key under which a stream that is resumable after this event is stored.
    fn event_key(&self, last_id: &[u8]) -> EventKey {
        EventKey::new(self.principal, self.pending.key, last_id)
    }

    /// Returns the outcome for an error of the server: an error after the client's cancellation counts as a
    /// disconnect.
    pub(super) fn error_outcome(&self) -> RequestOutcome {
        if self.pending.is_cancelled() { RequestOutcome::Disconnected } else { RequestOutcome::ServerError }
    }
}
