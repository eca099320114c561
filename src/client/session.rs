//! A session in whichever dialect is asked for, or else in the one that the server speaks: the newest is
//! tried, and where the server does not seem to know it, the handshake of the older ones (2026-07-28,
//! *Versioning, Backward Compatibility*).

use super::{
    CallStep, CallTurn, ClientSupport, Error, InputResponseMap, StepObserver, ToolCall, ToolList, legacy,
    modern::{self, RevisionSupport},
};
use crate::protocol::{Era, Revision};
use http::{HeaderMap, Uri};

/// A session in which tools can be called, one at a time.
///
/// A future of it may be dropped at any point; [`ToolSession::cancel`] and [`ToolSession::close`] then still
/// know what is at work.
pub struct ToolSession {
    dialect: SessionDialect,
    /// Begins again in the older dialect, until it is known that the newest is spoken.
    older: Option<Box<dyn FnOnce() -> legacy::LegacySession + Send>>,
}

enum SessionDialect {
    Modern(modern::ModernClient),
    Legacy(legacy::LegacySession),
}

// === impl Session ===

impl ToolSession {
    /// `revision` is the one to speak; none for the newest that the server does.
    pub fn new(url: Uri, headers: HeaderMap, declared: ClientSupport, revision: Option<Revision>) -> Self {
        let spoken = match revision {
            Some(revision) if revision.era() == Era::Legacy => SessionDialect::Legacy(
                legacy::LegacySession::new(url.clone(), headers.clone(), declared, revision),
            ),
            Some(_) | None => {
                SessionDialect::Modern(modern::ModernClient::new(url.clone(), headers.clone(), declared))
            }
        };
        let older = move || legacy::LegacySession::new(url, headers, declared, Revision::NEWEST_LEGACY);
        Self { dialect: spoken, older: revision.is_none().then(|| Box::new(older) as _) }
    }

    /// Finds out what must be known before this tool is called.
    ///
    /// # Errors
    /// [`Error`], where the server cannot be reached or does not speak this dialect.
    pub async fn open(&mut self, tool: &str, watch: StepObserver<'_>) -> Result<(), Error> {
        self.begin(Some(tool), watch).await
    }

    /// The tools of the server.
    ///
    /// # Errors
    /// [`Error`], where the server cannot be reached or does not list its tools.
    pub async fn tools(&mut self, watch: StepObserver<'_>) -> Result<ToolList, Error> {
        self.begin(None, watch).await?;
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.tools().await,
            SessionDialect::Legacy(legacy) => legacy.tools(watch).await,
        }
    }

    /// Calls a tool, and follows its task if it becomes one.
    ///
    /// # Errors
    /// [`Error`]; a JSON-RPC error is an [`CallEnding`](super::CallEnding).
    pub async fn call(&mut self, call: &ToolCall<'_>, watch: StepObserver<'_>) -> Result<CallTurn, Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.call(call, watch).await,
            SessionDialect::Legacy(legacy) => legacy.call(call, watch).await,
        }
    }

    /// Follows a task that an earlier call became, by its handle, instead of opening and calling.
    ///
    /// # Errors
    /// As [`ToolSession::open`] and [`ToolSession::call`].
    pub async fn resume(&mut self, task: &str, watch: StepObserver<'_>) -> Result<CallTurn, Error> {
        self.begin(None, watch).await?;
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.resume(task, watch).await,
            SessionDialect::Legacy(legacy) => legacy.resume(task, watch).await,
        }
    }

    /// Gives a call the answers it waits for, and goes on with it. Questions without an answer here
    /// are asked again.
    ///
    /// # Errors
    /// As [`ToolSession::call`].
    pub async fn answer(
        &mut self,
        call: &ToolCall<'_>,
        answers: &InputResponseMap,
        watch: StepObserver<'_>,
    ) -> Result<CallTurn, Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.answer(call, answers, watch).await,
            SessionDialect::Legacy(legacy) => legacy.answer(answers, watch).await,
        }
    }

    /// Takes back the call that is at work, if there is one. The server need not obey.
    ///
    /// # Errors
    /// Where the server cannot be reached or refuses to listen.
    pub async fn cancel(&mut self) -> Result<(), Error> {
        match &mut self.dialect {
            SessionDialect::Modern(modern) => modern.cancel().await,
            SessionDialect::Legacy(legacy) => legacy.cancel().await,
        }
    }

    /// Takes leave of the server, which need not be there any more.
    pub async fn close(&mut self) {
        match &mut self.dialect {
            SessionDialect::Modern(_) => {}
            SessionDialect::Legacy(legacy) => legacy.close().await,
        }
    }

    /// Begins in the dialect that was asked for, or that the server knows. `tool` is what is to be called.
    async fn begin(&mut self, tool: Option<&str>, watch: StepObserver<'_>) -> Result<(), Error> {
        let modern = match &mut self.dialect {
            SessionDialect::Modern(modern) => modern,
            SessionDialect::Legacy(legacy) => return legacy.open(tool, watch).await,
        };
        let Some(older) = self.older.take() else { return modern.open(tool).await };
        let doubt = match modern.probe(tool).await {
            Ok(RevisionSupport::Known) => return Ok(()),
            Ok(RevisionSupport::Doubtful) => None,
            Err(error) if error.may_be_legacy_server() => Some(error),
            Err(error) => return Err(error),
        };
        let mut legacy = older();
        match (legacy.open(tool, watch).await, doubt) {
            (Ok(()), _) => {
                if legacy.revision == Revision::NEWEST_LEGACY {
                    watch(CallStep::Revision(Revision::NEWEST_LEGACY.as_str()));
                }
                self.dialect = SessionDialect::Legacy(legacy);
                Ok(())
            }
            // It knows the newest after all, and refused the list of tools only.
            (Err(Error::Handshake(_)), None) => Ok(()),
            (Err(Error::Handshake(older)), Some(newest)) => {
                Err(Error::NoRevision { newest: Box::new(newest), older })
            }
            (Err(error), _) => Err(error),
        }
    }
}
