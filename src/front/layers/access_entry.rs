//! The access log entry: one for each request, however it ends.
//!
//! An [`AccessEntry`] begins when a request's head has been read and travels with the request, then with its
//! response. It is written when dropped, so that no code path can forget it: if a client disconnects, hyper
//! drops the request's future or the response's body, and the entry with it.

use super::span;
use crate::{
    dialect::{
        Principal,
        legacy::{ClientMessage, LegacyPost, SessionTag},
    },
    front::{call_permits::CallPermit, connection::ClientConnection},
    policy::AccessToken,
    protocol::{Era, Method, Payload, TraceContext},
    proxy::AccessSummary,
    telemetry::{
        AccessEvent, RequestOutcome,
        metrics::{InFlightRequest, method_label},
        tap,
        trace::Span,
    },
};
use http::StatusCode;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The access log entry of one request, in the making. Boxed, because it is moved often and is a part of
/// every waiting call.
pub(in crate::front) struct AccessEntry(Box<EntryFields>);

struct EntryFields {
    connection: Arc<ClientConnection>,
    /// When the whole request had arrived; until then, the head.
    since: Instant,
    /// The HTTP method until the message has been read.
    method: MessageName,
    target: Option<String>,
    /// The request's route; counts the request as in flight there.
    route: Option<InFlightRequest>,
    /// The token of the request.
    token: Option<Arc<AccessToken>>,
    principal: Principal,
    client: Option<Era>,
    session: Option<SessionTag>,
    /// Whether the request was sent to a server.
    is_forwarded: bool,
    status: Option<StatusCode>,
    end: Option<EntryOutcome>,
    /// Ends with the entry.
    span: Span,
    /// The permit of the call, held while the entry is open.
    permit: Option<CallPermit>,
    /// Arguments and response of the call, where a tap shows them.
    content: Option<Box<tap::CallContent>>,
}

/// Characters of a target in the log.
const MAX_TARGET: usize = 200;
/// Characters of a task id in the log.
const SHOWN_TASK_ID: usize = 8;

enum MessageName {
    Http(http::Method),
    Rpc(Method),
    /// The methods in one POST of a legacy client.
    Post(Box<str>),
}

/// Set when the response has been given.
struct EntryOutcome {
    account: AccessSummary,
    own: Duration,
    at: Instant,
}

/// Messages of a batch that are named.
const MAX_NAMED_MESSAGES: usize = 8;

// === impl AccessEntry ===

impl AccessEntry {
    /// Begins an entry when a request's head has been read.
    pub(in crate::front) fn begin(connection: Arc<ClientConnection>, method: http::Method) -> Self {
        Self(Box::new(EntryFields {
            since: connection.clock().now(),
            connection,
            method: MessageName::Http(method),
            target: None,
            route: None,
            token: None,
            principal: Principal::ANONYMOUS,
            client: None,
            session: None,
            is_forwarded: false,
            status: None,
            end: None,
            span: Span::default(),
            permit: None,
            content: None,
        }))
    }

    /// The connection of the request.
    pub(in crate::front) fn connection(&self) -> &Arc<ClientConnection> {
        &self.0.connection
    }

    /// Holds the permit of the call, or that of a request that is read only to be refused.
    pub(in crate::front) fn set_permit(&mut self, permit: CallPermit) {
        self.0.permit = Some(permit);
    }

    pub(in crate::front) fn set_route(&mut self, route: &Arc<str>) {
        self.0.route = Some(InFlightRequest::begin(route));
    }

    /// Sets the token of the request.
    pub(in crate::front) fn set_token(&mut self, token: Arc<AccessToken>) {
        self.0.token = Some(token);
    }

    /// The name of the request's token.
    pub(in crate::front) fn token(&self) -> Option<&str> {
        self.0.token.as_deref().map(AccessToken::name)
    }

    pub(in crate::front) fn shown_token(&self) -> Option<&Arc<AccessToken>> {
        self.0.token.as_ref()
    }

    /// Who the request acts for.
    pub(in crate::front) fn principal(&self) -> Principal {
        self.0.principal
    }

    pub(in crate::front) fn set_principal(&mut self, principal: Principal) {
        self.0.principal = principal;
    }

    pub(in crate::front) fn set_client_era(&mut self, era: Era) {
        self.0.client = Some(era);
    }

    /// Records that the whole request has arrived and is sent to a server. Returns the time.
    pub(in crate::front) fn begin_call(&mut self, call: &crate::dialect::Call) -> Instant {
        self.0.since = self.0.connection.clock().now();
        self.0.method = MessageName::Rpc(call.method.clone());
        self.0.target = call.target.as_deref().map(|target| truncated_target(&call.method, target));
        self.0.is_forwarded = true;
        self.record_arguments(call.params.as_ref());
        self.0.since
    }

    /// Keeps the arguments of the call for the taps that show them.
    pub(in crate::front) fn record_arguments(&mut self, params: Option<&Payload>) {
        if tap::has_argument_taps() {
            let arguments =
                params.and_then(|params| params.get("arguments")).map(|json| tap::content_or_size(&json));
            self.0.content = Some(Box::new(tap::CallContent { arguments, result: None }));
        }
    }

    /// Keeps the response of a call whose arguments are shown.
    pub(in crate::front) fn record_result(&mut self, response: &[u8]) {
        if let Some(content) = &mut self.0.content {
            content.result = Some(tap::content_or_size(response));
        }
    }

    /// Records that the whole request has arrived and is relayed to a server.
    pub(in crate::front) fn begin_relay(&mut self, post: &LegacyPost) {
        self.0.since = self.0.connection.clock().now();
        self.0.client = Some(Era::Legacy);
        self.0.is_forwarded = true;
        match &*post.messages {
            [] => {
                if let Some(methods) = &post.unread_methods {
                    self.0.method = MessageName::Post(methods.clone());
                }
            }
            [ClientMessage::Request { method, target, .. }] => {
                self.0.method = MessageName::Rpc(method.clone());
                self.0.target = target.as_deref().map(|target| truncated_target(method, target));
            }
            [ClientMessage::Notification(method)] => self.0.method = MessageName::Rpc(method.clone()),
            several => {
                let names: Vec<_> =
                    several.iter().take(MAX_NAMED_MESSAGES).map(ClientMessage::method_name).collect();
                self.0.method = MessageName::Post(names.join(",").into());
            }
        }
    }

    /// Sets the span of the request. Returns its context, if the request is traced.
    pub(in crate::front) fn set_span(&mut self, span: Span) -> Option<Arc<TraceContext>> {
        self.0.span = span;
        self.0.span.context().cloned().map(Arc::new)
    }

    /// The methods of a legacy client's POST.
    pub(in crate::front) fn method(&self) -> &str {
        self.0.method.as_str()
    }

    /// Sets the session that a legacy client has, or gets.
    pub(in crate::front) fn set_session(&mut self, session: SessionTag) {
        self.0.session = Some(session);
    }

    /// Sets the status. The client may still disconnect before the response.
    pub(in crate::front) fn set_status(&mut self, status: StatusCode) {
        self.0.status = Some(status);
    }

    /// Records that the response is given to the connection. Until then the client may disconnect.
    pub(in crate::front) fn complete(&mut self, account: AccessSummary) {
        let at = self.0.connection.clock().now();
        let waited = at.saturating_duration_since(self.0.since);
        self.0.end = Some(EntryOutcome { own: waited.saturating_sub(account.upstream_time), account, at });
    }
}

/// The beginning of a target, because the client chooses its length. Of a task id only a prefix to find it
/// by, because the whole id gives access to its result.
fn truncated_target(method: &Method, target: &str) -> String {
    let length = match method {
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult => SHOWN_TASK_ID,
        _ => MAX_TARGET,
    };
    // Most targets are short; spare them the count of characters.
    if target.len() <= length {
        return target.to_owned();
    }
    target.chars().take(length).collect()
}

// === impl MessageName ===

impl MessageName {
    fn as_str(&self) -> &str {
        match self {
            Self::Http(method) => method.as_str(),
            Self::Rpc(method) => method.as_str(),
            Self::Post(names) => names,
        }
    }
}

// === impl EntryFields ===

impl Drop for EntryFields {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or_else(|| {
            // The client disconnected while the proxy waited for the server, so the time counts as the
            // server's.
            let at = self.connection.clock().now();
            let waited = at.saturating_duration_since(self.since);
            let upstream = if self.is_forwarded { waited } else { Duration::ZERO };
            let account = AccessSummary {
                outcome: RequestOutcome::Disconnected,
                upstream_time: upstream,
                ..AccessSummary::default()
            };
            EntryOutcome { own: waited.saturating_sub(upstream), account, at }
        });
        self.connection.end(end.at);
        let tag = end.account.task.as_ref().map(|task| task.tag());
        let tool = match &self.method {
            MessageName::Rpc(Method::ToolsCall)
                if self.is_forwarded && end.account.shown_status.is_none() =>
            {
                self.target.as_deref()
            }
            MessageName::Http(_) | MessageName::Rpc(_) | MessageName::Post(_) => None,
        };
        let session = self.session.as_ref().map(|session| session as &dyn std::fmt::Display);
        let route = self.route.as_ref().map_or("", InFlightRequest::route);
        span::end(
            &mut self.span,
            &span::SpanSummary { connection: &self.connection, route, session, account: &end.account },
        );
        AccessEvent {
            method: self.method.as_str(),
            counted_as: match &self.method {
                MessageName::Http(http::Method::GET) => "GET",
                MessageName::Http(http::Method::POST) => "POST",
                MessageName::Http(http::Method::DELETE) => "DELETE",
                MessageName::Http(http::Method::OPTIONS) => "OPTIONS",
                MessageName::Http(_) => "other",
                MessageName::Rpc(method) => method_label(method),
                MessageName::Post(_) => "batch",
            },
            tool,
            target: self.target.as_deref().unwrap_or_default(),
            route,
            token: self.token.as_deref().map(AccessToken::name),
            principal: &self.principal,
            client_era: self.client.map_or("", Era::as_str),
            task: tag.as_ref().map(|tag| tag as _),
            session,
            shown: end.account.shown_status,
            // Nothing was sent to a client that disconnected first; 499 is the usual status for that.
            status: self.status.map_or(499, |status| status.as_u16()),
            outcome: end.account.outcome,
            reason: end.account.reason.as_deref(),
            code: end.account.code.map(|code| code.get().into()),
            upstream: end.account.upstream_time,
            own: end.own,
            content: self.content.as_deref(),
        }
        .emit();
    }
}
