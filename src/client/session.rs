//! A session in the requested revision, or else in the newest that the server supports: 2026-07-28 is tried,
//! and where the server does not seem to support it, the handshake of the legacy revisions (2026-07-28,
//! *Versioning, Backward Compatibility*).

use super::{
    CallStep, CallTurn, ClientSupport, Error, InputResponseMap, StepObserver, ToolCall, ToolList, legacy,
    modern::{self, RevisionSupport},
};
use crate::protocol::{Era, Revision};
use http::{HeaderMap, Uri};

/// A session in which tools can be called, one at a time.
///
/// The futures of a session may be dropped at any point; [`ToolSession::cancel`] and [`ToolSession::close`]
/// still know the active call.
pub struct ToolSession {
    dialect: SessionDialect,
    /// Creates a legacy session; `None` once the server's era is known, or if the user chose a revision.
    make_legacy: Option<Box<dyn FnOnce() -> legacy::LegacySession + Send>>,
}

enum SessionDialect {
    Modern(modern::ModernClient),
    Legacy(legacy::LegacySession),
}

// === impl ToolSession ===

impl ToolSession {
    /// Creates a session that is not open yet. `revision` is the one to use; `None` for the newest that the
    /// server supports.
    pub fn new(url: Uri, headers: HeaderMap, declared: ClientSupport, revision: Option<Revision>) -> Self {
        let dialect = match revision {
            Some(revision) if revision.era() == Era::Legacy => SessionDialect::Legacy(
                legacy::LegacySession::new(url.clone(), headers.clone(), declared, revision),
            ),
            Some(_) | None => {
                SessionDialect::Modern(modern::ModernClient::new(url.clone(), headers.clone(), declared))
            }
        };
        let make_legacy = move || legacy::LegacySession::new(url, headers, declared, Revision::NEWEST_LEGACY);
        Self { dialect, make_legacy: revision.is_none().then(|| Box::new(make_legacy) as _) }
    }

    /// Opens the session, and looks up the tool that will be called.
    ///
    /// # Errors
    /// [`Error`], if the server cannot be reached or does not support the revision.
    pub async fn open(&mut self, tool: &str, on_step: StepObserver<'_>) -> Result<(), Error> {
        self.open_session(Some(tool), on_step).await
    }

    /// Opens the session, and lists the tools of the server.
    ///
    /// # Errors
    /// [`Error`], if the server cannot be reached or does not list its tools.
    pub async fn list_tools(&mut self, on_step: StepObserver<'_>) -> Result<ToolList, Error> {
        self.open_session(None, on_step).await?;
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.list_tools().await,
            SessionDialect::Legacy(legacy) => legacy.list_tools(on_step).await,
        }
    }

    /// Calls a tool, and follows its task if it becomes one.
    ///
    /// # Errors
    /// [`Error`]; a JSON-RPC error is a [`CallEnding`](super::CallEnding).
    pub async fn call(&mut self, call: &ToolCall<'_>, on_step: StepObserver<'_>) -> Result<CallTurn, Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.call(call, on_step).await,
            SessionDialect::Legacy(legacy) => legacy.call(call, on_step).await,
        }
    }

    /// Opens the session, and follows the task of an earlier call by its handle.
    ///
    /// # Errors
    /// The same as for [`ToolSession::open`] and [`ToolSession::call`].
    pub async fn resume(&mut self, task: &str, on_step: StepObserver<'_>) -> Result<CallTurn, Error> {
        self.open_session(None, on_step).await?;
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.resume(task, on_step).await,
            SessionDialect::Legacy(legacy) => legacy.resume(task, on_step).await,
        }
    }

    /// Sends input responses to a call, and continues it. Input requests without a response here are returned
    /// again.
    ///
    /// # Errors
    /// The same as for [`ToolSession::call`].
    pub async fn respond(
        &mut self,
        call: &ToolCall<'_>,
        responses: &InputResponseMap,
        on_step: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.respond(call, responses, on_step).await,
            SessionDialect::Legacy(legacy) => legacy.respond(responses, on_step).await,
        }
    }

    /// Cancels the active call, if there is one. The server may ignore the cancellation.
    ///
    /// # Errors
    /// An error if the server cannot be reached or refuses.
    pub async fn cancel(&mut self) -> Result<(), Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.cancel().await,
            SessionDialect::Legacy(legacy) => legacy.cancel().await,
        }
    }

    /// Closes the session. The server need not be reachable.
    pub async fn close(&mut self) {
        match &mut self.dialect {
            SessionDialect::Modern(_) => {}
            SessionDialect::Legacy(legacy) => legacy.close().await,
        }
    }

    /// Opens the session in the requested revision, or in one that the server supports. `tool` is the tool to
    /// be called.
    async fn open_session(&mut self, tool: Option<&str>, on_step: StepObserver<'_>) -> Result<(), Error> {
        let modern = match &mut self.dialect {
            SessionDialect::Modern(modern) => modern,
            SessionDialect::Legacy(legacy) => return legacy.open(tool, on_step).await,
        };
        let Some(make_legacy) = self.make_legacy.take() else { return modern.open(tool).await };
        let modern_error = match modern.probe(tool).await {
            Ok(RevisionSupport::Known) => return Ok(()),
            Ok(RevisionSupport::Doubtful) => None,
            Err(error) if error.may_be_legacy_server() => Some(error),
            Err(error) => return Err(error),
        };
        let mut legacy = make_legacy();
        match (legacy.open(tool, on_step).await, modern_error) {
            (Ok(()), _) => {
                if legacy.revision == Revision::NEWEST_LEGACY {
                    on_step(CallStep::Revision(Revision::NEWEST_LEGACY.as_str()));
                }
                self.dialect = SessionDialect::Legacy(legacy);
                Ok(())
            }
            // The server supports 2026-07-28 after all, and refused only the list of tools.
            (Err(Error::Handshake(_)), None) => Ok(()),
            (Err(Error::Handshake(older)), Some(newest)) => {
                Err(Error::NoRevision { newest: Box::new(newest), older })
            }
            (Err(error), _) => Err(error),
        }
    }
}
