//! The interface of a server for the other folders.

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ChangeNotifier, Config, Deferral, HttpOrigin,
    HttpRelay, OffStreamCall, ProcessTable, Responder, UpstreamDescription, UpstreamEvents,
    UpstreamSetupError,
};
use crate::{
    dialect::{Call, Credentials, Principal},
    protocol::RequestId,
};
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// An MCP server.
pub trait Upstream: Send + Sync + 'static {
    /// Makes a call. The stream does nothing until it is polled, and is polled to its end. Dropping it before
    /// [`UpstreamEvent::Final`](super::UpstreamEvent::Final) or
    /// [`UpstreamEvent::Lost`](super::UpstreamEvent::Lost) cancels the call at the server, once. Events are in
    /// the format of 2026-07-28.
    fn call(&self, call: OutgoingCall) -> UpstreamEvents;

    /// Returns the description of the server from this caller's session; opens a session if there is none.
    fn describe(&self, caller: &CallerIdentity)
    -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>>;

    /// Description and call target for this caller, if they are available without waiting.
    fn ready_server(&self, caller: &CallerIdentity) -> Option<ReadyServer>;

    /// What is known of the server. Sends nothing.
    fn status(&self) -> UpstreamStatus;

    /// Changes that the server reports in any session of this principal.
    fn watch(&self, principal: Principal) -> ChangeNotifier;

    /// Subscribes this caller to changes of the resource at `uri`, until the returned guard is dropped.
    fn subscribe<'a>(
        &'a self,
        caller: &'a CallerIdentity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>>;

    /// Prepares a reload with other limits, timeouts and credentials. The returned closure applies them to
    /// later requests; sessions and processes stay.
    ///
    /// # Errors
    /// [`UpstreamSetupError`]; nothing has changed then.
    fn prepare_reload(&self, config: &Config) -> Result<ApplyReload, UpstreamSetupError>;

    /// Closes all sessions. Resolves once the server has been informed, or after a few seconds.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Port for the requests of legacy clients; `None` if the server has no sessions for them.
    fn http_relay(&self) -> Option<&dyn HttpRelay> {
        None
    }

    /// Port to the origin of the server; `None` unless the server is reached over HTTP.
    fn http_origin(&self) -> Option<&dyn HttpOrigin> {
        None
    }

    /// Port for calls of the previous process; `None` if the server's sessions end with the process.
    fn resumption(&self) -> Option<&dyn CallResumption> {
        None
    }

    /// Processes of the server for operators; `None` unless it is a stdio server.
    fn processes(&self) -> Option<ProcessTable> {
        None
    }
}

/// Access of this process to calls that the previous process made.
pub trait CallResumption: Send + Sync {
    /// Resumes the stream of a call, without sending the call again. `open` are the ids of the server's
    /// unanswered requests. `None` if the call cannot be resumed. Events are in the format of 2026-07-28, or
    /// in the client's revision if the client opened the session. An open request arrives again if the server
    /// sends it again.
    fn resume_call(
        &self,
        caller: &CallerIdentity,
        anchor: &CallAnchor,
        open: Vec<RequestId>,
        deferral: Deferral,
    ) -> Option<ResumedCall>;

    /// Cancels a call at the server. Resolves to whether the server received the cancellation.
    fn cancel_at(&self, caller: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool>;
}

/// Server whose description is available to a caller ([`Upstream::ready_server`]).
pub struct ReadyServer {
    pub description: Arc<UpstreamDescription>,
    /// Target of the caller's calls. Hold it for one call only: it keeps the caller's sessions from being
    /// evicted.
    pub calls: Arc<dyn CallTarget>,
}

/// Target of one caller's calls, once resolved.
pub trait CallTarget: Send + Sync {
    /// Makes a call of this caller as [`Upstream::call`] does.
    fn call(
        self: Arc<Self>,
        id: u64,
        call: &Call,
        caller: (Principal, &Credentials),
        deferral: Option<Deferral>,
    ) -> UpstreamEvents;
}

/// A call in the format of 2026-07-28, independent of the server's revision.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// Request id towards the server: unique in this process, and so in any session.
    pub id: u64,
    pub call: Arc<Call>,
    pub caller: CallerIdentity,
    /// Deferral state, for a call that may become a task.
    pub deferral: Option<Deferral>,
}

/// A call of the previous process that was resumed ([`CallResumption::resume_call`]).
pub struct ResumedCall {
    /// Events of the call from now on.
    pub replies: UpstreamEvents,
    /// Responders of the server's requests that were open, in the order of their ids in the argument.
    pub open_requests: Vec<Box<dyn Responder>>,
    /// Counterpart for messages outside the call's stream, if the client opened the session.
    pub off_stream: Option<Arc<dyn OffStreamCall>>,
}

/// What is known of a server.
#[derive(Clone, Debug, Default)]
pub struct UpstreamStatus {
    /// Whether the last connection attempt succeeded; `None` before the first one.
    pub is_up: Option<bool>,
    /// Reason of the last failed connection attempt.
    pub failure: Option<Arc<str>>,
    /// Open sessions, without those that legacy clients opened.
    pub sessions: usize,
    /// Whether calls take turns in a session, so that a call that awaits an input response delays others.
    /// Never changes.
    pub takes_turns: bool,
    /// Last description of the server, from any session; `None` before the first one.
    pub description: Option<Arc<UpstreamDescription>>,
}

/// Guard of a resource subscription; dropping it unsubscribes.
pub type Subscription = Box<dyn std::any::Any + Send + Sync>;
