//! Properties of a legacy server, from its last handshake.
//!
//! This is the only place that knows a server's properties. They are recorded from each relayed handshake; a
//! server without a handshake since the start of the proxy is initialized in a session of the proxy.

use crate::{
    protocol::Revision,
    runtime::Mutex,
    upstream::{CallError, CallerIdentity, Upstream},
};

#[derive(Debug, Default)]
pub(super) struct ServerProfile {
    /// Whether it has tasks of its own.
    tasks: Mutex<Option<bool>>,
    /// Whether it keeps serving after a DELETE of a session.
    survives_delete: Mutex<Option<bool>>,
}

// === impl ServerProfile ===

impl ServerProfile {
    /// Whether the server has tasks of its own. A server that does not respond counts as one with tasks: the
    /// error then comes from the relayed call.
    pub(super) async fn has_tasks(
        &self,
        server: &dyn Upstream,
        caller: impl FnOnce() -> CallerIdentity,
    ) -> bool {
        if let Some(known) = *self.tasks.lock() {
            return known;
        }
        match self.ask(server, caller()).await {
            Ok(()) => self.tasks.lock().unwrap_or(true),
            Err(_) => true,
        }
    }

    /// Whether the server keeps serving after a DELETE. A server that was initialized only by older clients
    /// is initialized again by the proxy; without an answer the result is false.
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
        match self.ask(server, caller()).await {
            Ok(()) => Ok(self.survives_delete.lock().unwrap_or(false)),
            Err(lost @ (CallError::Unreachable(_) | CallError::ConnectTimeout(_) | CallError::Closing)) => {
                Err(lost)
            }
            Err(_) => Ok(false),
        }
    }

    /// Describes the server with the newest legacy revision, unless that is known.
    async fn ask(&self, server: &dyn Upstream, caller: CallerIdentity) -> Result<(), CallError> {
        let server = match server.last_description() {
            Some(description) => description,
            None => server.describe(&caller).await?,
        };
        self.learn_tasks(server.has_tasks);
        self.learn_revision(Some(Revision::NEWEST_LEGACY), Revision::parse(&server.version));
        Ok(())
    }

    pub(super) fn learn_tasks(&self, has_tasks: bool) {
        *self.tasks.lock() = Some(has_tasks);
    }

    /// Records the revision that the server answered to a client with revisions up to `requested`. Servers
    /// answer with the client's revision if they know it, otherwise with their newest: an answer older than
    /// `requested` is the server's newest, and an equal one may not be.
    pub(super) fn learn_revision(&self, requested: Option<Revision>, answered: Option<Revision>) {
        // An unknown revision is newer than all known ones.
        let survives = answered.is_none_or(Revision::survives_delete);
        if survives || requested.is_some_and(Revision::survives_delete) {
            *self.survives_delete.lock() = Some(survives);
        }
    }
}
