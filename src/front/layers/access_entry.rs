//! The access line: one for each request, however it ends.
//!
//! A [`AccessEntry`] begins when a request's head has been read and travels with the request, then with
//! its response. It is written when it is dropped, so that no way out can forget it: a client that
//! leaves makes hyper drop the request's future or the response's body, and the line with it.

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

/// The access line of one request in the making. Boxed, as it is handed on many times, and waits
/// in places that are paid for by every call that waits.
pub(in crate::front) struct AccessEntry(Box<EntryFields>);

struct EntryFields {
    connection: Arc<ClientConnection>,
    /// When the whole request was there; the head until then.
    since: Instant,
    /// The HTTP method until the message has been read.
    method: MessageName,
    target: Option<String>,
    /// Its route. Counts the request among those that are being answered there.
    route: Option<InFlightRequest>,
    /// The token that was shown.
    token: Option<Arc<AccessToken>>,
    principal: Principal,
    client: Option<Era>,
    session: Option<SessionTag>,
    /// Whether a server was asked.
    is_forwarded: bool,
    status: Option<StatusCode>,
    end: Option<EntryOutcome>,
    /// Ends with the line.
    span: Span,
    /// The place among the calls in flight, held for as long as the line is open.
    permit: Option<CallPermit>,
    /// Arguments and response of the call, where a tap shows them.
    content: Option<Box<tap::CallContent>>,
}

/// Characters of a target that are written.
const MAX_TARGET: usize = 200;
/// Of a task's id.
const SHOWN_TASK_ID: usize = 8;

enum MessageName {
    Http(http::Method),
    Rpc(Method),
    /// What one POST of a legacy client holds.
    Post(Box<str>),
}

/// The answer was given.
struct EntryOutcome {
    account: AccessSummary,
    own: Duration,
    at: Instant,
}

/// How many messages of a batch are named.
const MAX_NAMED_MESSAGES: usize = 8;

// === impl Line ===

impl AccessEntry {
    /// A request's head is here.
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

    /// The connection the request came by.
    pub(in crate::front) fn connection(&self) -> &Arc<ClientConnection> {
        &self.0.connection
    }

    /// The call takes its place among those in flight, or among those that are read to be told that there is none.
    pub(in crate::front) fn set_permit(&mut self, place: CallPermit) {
        self.0.permit = Some(place);
    }

    pub(in crate::front) fn set_route(&mut self, route: &Arc<str>) {
        self.0.route = Some(InFlightRequest::begin(route));
    }

    /// This token was shown.
    pub(in crate::front) fn set_token(&mut self, token: Arc<AccessToken>) {
        self.0.token = Some(token);
    }

    /// The name of the token that was shown.
    pub(in crate::front) fn token(&self) -> Option<&str> {
        self.0.token.as_deref().map(AccessToken::name)
    }

    pub(in crate::front) fn shown_token(&self) -> Option<&Arc<AccessToken>> {
        self.0.token.as_ref()
    }

    /// On whose behalf.
    pub(in crate::front) fn principal(&self) -> Principal {
        self.0.principal
    }

    pub(in crate::front) fn set_principal(&mut self, principal: Principal) {
        self.0.principal = principal;
    }

    pub(in crate::front) fn set_client_era(&mut self, era: Era) {
        self.0.client = Some(era);
    }

    /// The whole request is here and goes to a server. Gives the moment.
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

    /// The whole request is here and is passed on to a server.
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
                    several.iter().take(MAX_NAMED_MESSAGES).map(ClientMessage::name).collect();
                self.0.method = MessageName::Post(names.join(",").into());
            }
        }
    }

    /// The request has a span, if it is traced. Gives what names it to others.
    pub(in crate::front) fn set_span(&mut self, span: Span) -> Option<Arc<TraceContext>> {
        self.0.span = span;
        self.0.span.context().cloned().map(Arc::new)
    }

    /// What of a POST of a legacy client is asked for.
    pub(in crate::front) fn method(&self) -> &str {
        self.0.method.as_str()
    }

    /// The session that a legacy client has, or gets.
    pub(in crate::front) fn set_session(&mut self, session: SessionTag) {
        self.0.session = Some(session);
    }

    /// The status line is settled. Whether there will be an answer may not be.
    pub(in crate::front) fn set_status(&mut self, status: StatusCode) {
        self.0.status = Some(status);
    }

    /// The answer is given to the connection. Until then the client may leave without it.
    pub(in crate::front) fn complete(&mut self, account: AccessSummary) {
        let at = self.0.connection.clock().now();
        let waited = at.saturating_duration_since(self.0.since);
        self.0.end = Some(EntryOutcome { own: waited.saturating_sub(account.upstream), account, at });
    }
}

/// The beginning of a name: how long it is, is the client's choice. Of a task's id no more than is needed to find it:
/// who has it may have what it came to.
fn truncated_target(method: &Method, target: &str) -> String {
    let length = match method {
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult => SHOWN_TASK_ID,
        _ => MAX_TARGET,
    };
    // As most are, and nothing has to be counted.
    if target.len() <= length {
        return target.to_owned();
    }
    target.chars().take(length).collect()
}

// === impl Name ===

impl MessageName {
    fn as_str(&self) -> &str {
        match self {
            Self::Http(method) => method.as_str(),
            Self::Rpc(method) => method.as_str(),
            Self::Post(names) => names,
        }
    }
}

// === impl Fields ===

impl Drop for EntryFields {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or_else(|| {
            // Where the client leaves, nobody tells how long the server took; it was the server we
            // were waiting for.
            let at = self.connection.clock().now();
            let waited = at.saturating_duration_since(self.since);
            let upstream = if self.is_forwarded { waited } else { Duration::ZERO };
            let account =
                AccessSummary { outcome: RequestOutcome::Disconnected, upstream, ..AccessSummary::default() };
            EntryOutcome { own: waited.saturating_sub(upstream), account, at }
        });
        self.connection.end(end.at);
        let tag = end.account.task.as_ref().map(|task| task.tag());
        let tool = match &self.method {
            MessageName::Rpc(Method::ToolsCall) if self.is_forwarded && end.account.shown.is_none() => {
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
            shown: end.account.shown,
            // Nothing was sent to a client that left first; 499 is what proxies call that.
            status: self.status.map_or(499, |status| status.as_u16()),
            outcome: end.account.outcome,
            reason: end.account.reason.as_deref(),
            code: end.account.code.map(|code| code.get().into()),
            upstream: end.account.upstream,
            own: end.own,
            content: self.content.as_deref(),
        }
        .emit();
    }
}
