//! What is known of a legacy server: what it last said in a handshake.
//!
//! What a server can do is asked here and nowhere else. It is learned from each handshake that goes by; one that
//! has not been heard since we started is asked, in a session of our own.

use crate::{
    protocol::Revision,
    runtime::Mutex,
    upstream::{CallError, CallerIdentity, Upstream},
};

#[derive(Debug, Default)]
pub(super) struct ServerProfile {
    /// Whether it has tasks of its own.
    tasks: Mutex<Option<bool>>,
    /// Whether it goes on serving after a session was ended by a DELETE.
    survives_delete: Mutex<Option<bool>>,
}

// === impl ServerProfile ===

impl ServerProfile {
    /// Whether the server has tasks of its own. One that does not answer will say so itself to whoever calls
    /// it.
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

    /// Whether the server goes on serving after a DELETE. One that has only been heard by older clients is
    /// asked, too; of one that does not say it is not believed.
    ///
    /// # Errors
    /// [`CallError`] where the server cannot be reached.
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

    /// Asks the server what it is, with the newest revision of its era, unless it has said so to us.
    async fn ask(&self, server: &dyn Upstream, caller: CallerIdentity) -> Result<(), CallError> {
        let server = match server.last_description() {
            Some(said) => said,
            None => server.describe(&caller).await?,
        };
        self.learn_tasks(server.has_tasks);
        self.learn_revision(Some(Revision::NEWEST_LEGACY), Revision::parse(&server.version));
        Ok(())
    }

    pub(super) fn learn_tasks(&self, has_tasks: bool) {
        *self.tasks.lock() = Some(has_tasks);
    }

    /// The server has answered a client that knows revisions up to `asked`, with one that we know or another. Servers
    /// answer with the client's own where they know it, else with the newest that they know: an answer older than
    /// what was asked for is the newest there is, and one that was asked for may not be.
    pub(super) fn learn_revision(&self, asked: Option<Revision>, answered: Option<Revision>) {
        // One that we do not know is newer than all that we do.
        let survives = answered.is_none_or(Revision::survives_delete);
        if survives || asked.is_some_and(Revision::survives_delete) {
            *self.survives_delete.lock() = Some(survives);
        }
    }
}
