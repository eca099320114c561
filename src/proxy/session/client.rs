//! The legacy client that sent a request: its principal, session and revision.
//!
//! Only this module determines a legacy client's revision, once for each request. Requests in a session name
//! the revision in a header. Without the header, the negotiated revision applies (2025-11-25, *Protocol
//! Version Header*), which is remembered for sessions of 2025-11-25, the only legacy revision with tasks.

use super::{SessionKey, bounded_map::BoundedMap};
use crate::{
    dialect::{Principal, legacy},
    policy::Route,
    protocol::{Revision, headers::PROTOCOL_VERSION},
    runtime::Mutex,
    task::{TaskPrincipal, TaskSharing},
};
use http::HeaderMap;
use std::sync::Arc;

/// The legacy client that sent a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct LegacyClient {
    pub(in crate::proxy) principal: Principal,
    /// The session of the request; `None` if the request has no session id.
    pub(in crate::proxy) session: Option<SessionKey>,
    /// The protocol revision of the request; `None` if it is unknown.
    revision: Option<Revision>,
}

/// The negotiated revisions of sessions, for those sessions whose revision has tasks; the last [`MAX_REVISIONS`]
/// of them.
#[derive(Debug, Default)]
pub(in crate::proxy) struct SessionRevisions {
    /// Locked for one insertion or look-up.
    sessions: Mutex<BoundedMap<SessionKey, Revision, MAX_REVISIONS>>,
}

/// Sessions whose revision is remembered. Each costs about 50 bytes; in an evicted session the revision is
/// known only for requests with the header.
const MAX_REVISIONS: usize = 16 << 10;

// === impl LegacyClient ===

impl LegacyClient {
    /// Identifies the client by the headers of its request.
    pub(in crate::proxy) fn from_headers(
        principal: Principal,
        headers: &HeaderMap,
        revisions: &SessionRevisions,
    ) -> Self {
        let session = SessionKey::from_headers(principal, headers);
        let revision = match headers.contains_key(&PROTOCOL_VERSION) {
            true => legacy::header_revision(headers),
            false => session.and_then(|session| revisions.get(session)),
        };
        Self { principal, session, revision }
    }

    /// Whether the client's revision has tasks (2025-11-25); false if the revision is unknown.
    pub(in crate::proxy) fn has_task_support(&self) -> bool {
        self.revision.is_some_and(Revision::has_tasks)
    }

    /// Whether progress notifications to this client may contain a `message`. True if the revision is
    /// unknown: clients name their revision only since 2025-06-18.
    pub(in crate::proxy) fn has_progress_messages(&self) -> bool {
        self.revision.is_none_or(Revision::progress_has_message)
    }

    /// The owner of the tasks that this client creates and fetches on this route.
    pub(in crate::proxy) fn owner(&self, route: &Route) -> TaskPrincipal {
        let scope = match self.session {
            // Only the session distinguishes anonymous clients.
            Some(session) if self.principal.is_anonymous() => TaskSharing::Session(session.digest()),
            _ if route.legacy_tasks.is_shared_across_eras && !self.principal.is_anonymous() => {
                TaskSharing::Principal
            }
            _ => TaskSharing::Legacy,
        };
        TaskPrincipal { principal: *self.principal.as_bytes(), route: Arc::clone(&route.path), scope }
    }

    /// Whether the client's tasks can be distinguished from those of other clients, so that they can be
    /// listed: the client has a session or is not anonymous.
    pub(in crate::proxy) fn is_identifiable(&self) -> bool {
        self.session.is_some() || !self.principal.is_anonymous()
    }
}

// === impl SessionRevisions ===

impl SessionRevisions {
    /// Records the negotiated revision of a new session. Only revisions with tasks are stored.
    pub(in crate::proxy) fn record(&self, session: SessionKey, revision: Revision) {
        let mut sessions = self.sessions.lock();
        match revision.has_tasks() {
            true => drop(sessions.insert(session, revision)),
            // An earlier session may have had the same id.
            false => drop(sessions.remove(&session)),
        }
    }

    fn get(&self, session: SessionKey) -> Option<Revision> {
        self.sessions.lock().get(&session).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::headers::SESSION_ID;
    use http::HeaderValue;

    fn client(session: usize, named: Option<&'static str>, revisions: &SessionRevisions) -> LegacyClient {
        let mut headers = HeaderMap::from_iter([(SESSION_ID.clone(), session.into())]);
        headers.extend(named.map(|named| (PROTOCOL_VERSION.clone(), HeaderValue::from_static(named))));
        LegacyClient::from_headers(Principal::ANONYMOUS, &headers, revisions)
    }

    #[test]
    fn the_revision_is_that_of_the_header_or_of_the_handshake() {
        let revisions = SessionRevisions::default();
        let key = client(0, None, &revisions).session.expect("it has one");
        revisions.record(key, Revision::V2025_06_18);
        assert!(!client(0, None, &revisions).has_task_support());
        revisions.record(key, Revision::V2025_11_25);
        assert!(client(0, None, &revisions).has_task_support());
        assert!(!client(0, Some("2025-06-18"), &revisions).has_task_support());
        assert!(!client(0, Some("v999.0.0"), &revisions).has_task_support());
        assert!(client(1, Some("2025-11-25"), &revisions).has_task_support());
        assert!(!client(1, None, &revisions).has_task_support());
        assert!(client(1, None, &revisions).has_progress_messages());
        assert!(!client(1, Some("2024-11-05"), &revisions).has_progress_messages());
    }

    #[test]
    fn remembered_sessions_with_tasks_are_bounded() {
        let revisions = SessionRevisions::default();
        for session in 0..=MAX_REVISIONS {
            let key = client(session, None, &revisions).session.expect("it has one");
            revisions.record(key, Revision::V2025_11_25);
        }
        let knows_tasks = |session| client(session, None, &revisions).has_task_support();
        assert!(!knows_tasks(0) && knows_tasks(1) && knows_tasks(MAX_REVISIONS));
    }
}
