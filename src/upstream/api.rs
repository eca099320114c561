//! The interface of a server for the other folders.

use super::{
    ApplyReload, CallAnchor, CallError, CallerIdentity, ChangeNotification, ClientSession, Config, Deferral,
    HttpRequest, HttpResponse, NativeCall, OffStreamCall, OriginRequest, OriginResponse, ProcessTable,
    Responder, ServerUrl, ToolChanges, UpstreamDescription, UpstreamEvent, UpstreamEvents,
    UpstreamSetupError,
};
use crate::{
    dialect::{Call, Credentials, Principal},
    protocol::RequestId,
};
use futures_util::future::BoxFuture;
use http::HeaderMap;
use std::sync::Arc;
use tokio::sync::broadcast;

/// An MCP server.
pub trait Upstream: Send + Sync + 'static {
    /// Makes a call. The stream does nothing until it is polled, and is polled to its end. Dropping it before
    /// [`UpstreamEvent::Final`] or [`UpstreamEvent::Lost`] cancels the call at the server, once. Events are
    /// in the format of 2026-07-28.
    fn call(&self, call: OutgoingCall) -> UpstreamEvents;

    /// Makes a call as [`Upstream::call`], in a session that a legacy client opened, in the revision of
    /// client and server. The events are the messages on the call's own stream. The client reads the
    /// session's GET stream; messages on the GET stream that concern the call must be given to the returned
    /// [`OffStreamCall`]. The call is not sent again if the server lost the session.
    fn call_in(
        &self,
        session: ClientSession,
        call: NativeCall,
    ) -> (UpstreamEvents, Option<Arc<dyn OffStreamCall>>) {
        drop((session, call));
        let lost = CallError::not_over_http();
        (Box::pin(futures_util::stream::once(std::future::ready(UpstreamEvent::Lost(lost)))), None)
    }

    /// Resumes the stream of a call of the previous process, without sending the call again. `open` are the
    /// ids of the server's unanswered requests. `None` if the server's sessions and streams cannot be
    /// resumed. Events are in the format of 2026-07-28, or in the client's revision if the client opened the
    /// session. An open request arrives again if the server sends it again.
    fn resume_call(
        &self,
        caller: &CallerIdentity,
        anchor: &CallAnchor,
        open: Vec<RequestId>,
        deferral: Deferral,
    ) -> Option<ResumedCall> {
        let _ = (caller, anchor, open, deferral);
        None
    }

    /// Cancels a call of the previous process at the server. Resolves to whether the server received the
    /// cancellation.
    fn cancel_at(&self, caller: &CallerIdentity, anchor: &CallAnchor) -> BoxFuture<'_, bool> {
        let _ = (caller, anchor);
        Box::pin(std::future::ready(false))
    }

    /// Sends cancellations for these calls of a legacy client in its own session, in the background.
    fn cancel_in(&self, session: ClientSession, calls: &[RequestId], reason: &str) {
        let _ = (session, calls, reason);
    }

    /// Marks a call of this caller as deferred. From now on the call's session counts towards
    /// [`UpstreamLimits::task_sessions`], so that the call delays no other call.
    fn mark_deferred(&self, caller: &CallerIdentity, deferral: &Deferral) {
        let _ = caller;
        deferral.mark_deferred();
    }

    /// Whether calls take turns in a session, so that a call that awaits an input response delays others.
    fn is_turn_based(&self) -> bool {
        false
    }

    /// Returns the description of the server from this caller's session; opens a session if there is none.
    fn describe(&self, caller: &CallerIdentity)
    -> BoxFuture<'_, Result<Arc<UpstreamDescription>, CallError>>;

    /// Description and call target for this caller, if they are available without waiting.
    fn ready_server(&self, caller: &CallerIdentity) -> Option<ReadyServer> {
        let _ = caller;
        None
    }

    /// Last description of the server, from any session; `None` before the first one. Sends nothing.
    fn last_description(&self) -> Option<Arc<UpstreamDescription>> {
        None
    }

    /// Subscribes to the change notifications of the server in any session of this principal. A session is
    /// kept open until the receiver is dropped.
    fn subscribe_changes(&self, principal: Principal) -> broadcast::Receiver<ChangeNotification>;

    /// Returns a tracker of changes to the server's tools in sessions of this principal from now on. Keeps no
    /// session open; a change that may have been missed counts as a change.
    fn tool_changes(&self, principal: Principal) -> ToolChanges;

    /// Subscribes this caller to changes of the resource at `uri`, until the returned guard is dropped.
    fn subscribe<'a>(
        &'a self,
        caller: &'a CallerIdentity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>>;

    /// Fetches a document by GET from the server's origin, such as protected-resource metadata. `path`
    /// includes the query.
    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<OriginResponse, CallError>>;

    /// Whether the server receives the `Authorization` header of callers: not over stdio, and not if the
    /// configuration sets another.
    fn passes_authorization(&self) -> bool {
        false
    }

    /// Sends a request to the server's origin, outside the MCP endpoint, with the client's headers. Does not
    /// follow redirects.
    fn request_origin(
        &self,
        request: OriginRequest,
    ) -> BoxFuture<'static, Result<OriginResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Forwards one HTTP request of a legacy client unchanged. Dropping the future or the body before a POST
    /// is answered is a disconnect, not a cancellation: the response is read to its end in the background,
    /// within [`UpstreamTimeouts::call`] and [`UpstreamLimits::departed`].
    ///
    /// Fails for servers without Streamable HTTP.
    fn forward(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, CallError>> {
        drop(request);
        Box::pin(std::future::ready(Err(CallError::not_over_http())))
    }

    /// Whether this proxy sent a request with these headers to this server before, so that forwarding it
    /// again would be a loop (RFC 9110, 7.6.3).
    fn is_own_hop(&self, headers: &HeaderMap) -> bool {
        let _ = headers;
        false
    }

    /// State of the server for operators.
    fn health(&self) -> UpstreamHealth {
        UpstreamHealth::default()
    }

    /// URL of the server; `None` for a stdio server.
    fn address(&self) -> Option<&ServerUrl> {
        None
    }

    /// Processes of the server for operators; `None` unless it is a stdio server.
    fn processes(&self) -> Option<ProcessTable> {
        None
    }

    /// Prepares a reload with other limits, timeouts and credentials. The returned closure applies them to
    /// later requests; sessions and processes stay.
    ///
    /// # Errors
    /// [`UpstreamSetupError`]; nothing has changed then.
    fn prepare_reload(&self, config: &Config) -> Result<ApplyReload, UpstreamSetupError> {
        let _ = config;
        Ok(Box::new(|| {}))
    }

    /// Closes all sessions. Resolves once the server has been informed, or after a few seconds.
    fn close(&self) -> BoxFuture<'_, ()>;
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
    /// Makes a call as [`Upstream::call`] does.
    fn call(self: Arc<Self>, id: u64, call: &Call, deferral: Option<Deferral>) -> UpstreamEvents;
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

/// A call of the previous process that was resumed ([`Upstream::resume_call`]).
pub struct ResumedCall {
    /// Events of the call from now on.
    pub replies: UpstreamEvents,
    /// Responders of the server's requests that were open, in the order of their ids in the argument.
    pub open_requests: Vec<Box<dyn Responder>>,
    /// Counterpart for messages outside the call's stream, if the client opened the session.
    pub off_stream: Option<Arc<dyn OffStreamCall>>,
}

/// State of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamHealth {
    /// Whether the last connection attempt succeeded; `None` before the first one.
    pub is_up: Option<bool>,
    /// Reason of the last failed connection attempt.
    pub failure: Option<Arc<str>>,
    /// Open sessions, without those that legacy clients opened.
    pub sessions: usize,
}

/// Guard of a resource subscription; dropping it unsubscribes.
pub type Subscription = Box<dyn std::any::Any + Send + Sync>;
