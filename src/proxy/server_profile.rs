//! Properties of a legacy server, from its last handshake.
//!
//! The properties are recorded from each relayed handshake. A server without a handshake since the start of
//! the proxy is initialized in a session of the proxy.

use crate::{
    protocol::Revision,
    runtime::Mutex,
    upstream::{CallError, CallerIdentity, Upstream},
};

/// The known properties of a route's legacy server; each is `None` until known.
#[derive(Debug, Default)]
pub(super) struct ServerProfile {
    /// Whether the server supports the tasks of 2025-11-25 itself.
    has_tasks: Mutex<Option<bool>>,
    /// Whether the server keeps serving after a DELETE of a session.
    survives_delete: Mutex<Option<bool>>,
}

// === impl ServerProfile ===

impl ServerProfile {
    /// Whether the server supports the tasks of 2025-11-25 itself. Initializes a session if that is unknown.
    /// A server that does not respond counts as one with tasks: the client then gets the error of its relayed
    /// call.
    pub(super) async fn has_tasks(
        &self,
        server: &dyn Upstream,
        caller: impl FnOnce() -> CallerIdentity,
    ) -> bool {
        if let Some(known) = *self.has_tasks.lock() {
            return known;
        }
        match self.describe_server(server, caller()).await {
            Ok(()) => self.has_tasks.lock().unwrap_or(true),
            Err(_) => true,
        }
    }

    /// Whether the server keeps serving after a DELETE of a session. Initializes a session if that is
    /// unknown, because all clients so far requested older revisions. If the server does not respond, the
    /// result is false.
    ///
    /// # Errors
    /// [`CallError`] if the server cannot be reached.
    pub(super) async fn survives_delete(
        &self,
        server: &dyn Upstream,
        caller: impl FnOnce() -> CallerIdentity,
    ) -> Result<bool, CallError> {
        if let Some(known) = *self.survives_delete.lock() {
            return Ok(known);
        }
        match self.describe_server(server, caller()).await {
            Ok(()) => Ok(self.survives_delete.lock().unwrap_or(false)),
            Err(error @ (CallError::Unreachable(_) | CallError::ConnectTimeout(_) | CallError::Closing)) => {
                Err(error)
            }
            Err(_) => Ok(false),
        }
    }

    /// Describes the server with the newest legacy revision, unless it has been described already, and
    /// records its properties.
    async fn describe_server(&self, server: &dyn Upstream, caller: CallerIdentity) -> Result<(), CallError> {
        let server = match server.status().description {
            Some(description) => description,
            None => server.describe(&caller).await?,
        };
        self.record_tasks(server.has_tasks);
        self.record_revision(Some(Revision::NEWEST_LEGACY), Revision::parse(&server.version));
        Ok(())
    }

    /// Records whether the server supports the tasks of 2025-11-25 itself.
    pub(super) fn record_tasks(&self, has_tasks: bool) {
        *self.has_tasks.lock() = Some(has_tasks);
    }

    /// Records the revision with which the server responded to a client that requested `requested`. A server
    /// responds with the client's revision if it supports that, otherwise with its newest. So a response
    /// older than `requested` is the server's newest revision; an equal one may not be.
    pub(super) fn record_revision(&self, requested: Option<Revision>, negotiated: Option<Revision>) {
        // An unknown revision is newer than all known ones.
        let survives = negotiated.is_none_or(Revision::survives_delete);
        if survives || requested.is_some_and(Revision::survives_delete) {
            *self.survives_delete.lock() = Some(survives);
        }
    }
}
