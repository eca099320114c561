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
    /// When the request had arrived to its end; until then, when its head had.
    received_at: Instant,
    /// The HTTP method, until the message has been read.
    method: MessageName,
    /// The tool, resource, prompt or task that the message names, cut to [`MAX_TARGET`] characters.
    target: Option<String>,
    /// The request's route; counts the request as in flight there.
    route: Option<InFlightRequest>,
    /// The token of the request, if it needed one.
    token: Option<Arc<AccessToken>>,
    principal: Principal,
    client_era: Option<Era>,
    /// The session of a legacy client.
    session: Option<SessionTag>,
    /// Whether the request was sent to a server.
    is_forwarded: bool,
    /// The HTTP status, once it is determined.
    status: Option<StatusCode>,
    /// `None` until the response is given to the connection.
    completion: Option<EntryOutcome>,
    /// The span of the request, which ends with the entry.
    span: Span,
    /// The permit of the call, held while the entry is open.
    permit: Option<CallPermit>,
    /// Arguments and result of the call, while a tap shows arguments.
    content: Option<Box<tap::CallContent>>,
}

/// Characters of a target that are logged.
const MAX_TARGET: usize = 200;
/// Characters of a task id that are logged: the whole id would give access to the result.
const MAX_TASK_ID: usize = 8;

/// What the entry names as the method of the request.
enum MessageName {
    /// The HTTP method, of a request without a readable message.
    Http(http::Method),
    /// The JSON-RPC method of a single message.
    Rpc(Method),
    /// The methods in one POST of a legacy client, joined by commas.
    Post(Box<str>),
}

/// How and when a request ended.
struct EntryOutcome {
    summary: AccessSummary,
    /// Time that the proxy itself used.
    proxy_time: Duration,
    ended_at: Instant,
}

/// Messages of a batch whose methods are logged.
const MAX_NAMED_MESSAGES: usize = 8;

// === impl AccessEntry ===

impl AccessEntry {
    /// Begins an entry when a request's head has been read.
    pub(in crate::front) fn begin(connection: Arc<ClientConnection>, method: http::Method) -> Self {
        Self(Box::new(EntryFields {
            received_at: connection.clock().now(),
            connection,
            method: MessageName::Http(method),
            target: None,
            route: None,
            token: None,
            principal: Principal::ANONYMOUS,
            client_era: None,
            session: None,
            is_forwarded: false,
            status: None,
            completion: None,
            span: Span::default(),
            permit: None,
            content: None,
        }))
    }

    /// The connection of the request.
    pub(in crate::front) fn connection(&self) -> &Arc<ClientConnection> {
        &self.0.connection
    }

    /// Keeps the permit of the call, or that of a request that is read only to be refused, until the entry is
    /// dropped.
    pub(in crate::front) fn set_permit(&mut self, permit: CallPermit) {
        self.0.permit = Some(permit);
    }

    /// Sets the path of the route, and counts the request as in flight there until the entry is dropped.
    pub(in crate::front) fn set_route(&mut self, route: &Arc<str>) {
        self.0.route = Some(InFlightRequest::begin(route));
    }

    /// Sets the token of the request.
    pub(in crate::front) fn set_token(&mut self, token: Arc<AccessToken>) {
        self.0.token = Some(token);
    }

    /// Returns the name of the request's token; `None` if it needed none.
    pub(in crate::front) fn token_name(&self) -> Option<&str> {
        self.0.token.as_deref().map(AccessToken::name)
    }

    /// Returns the token of the request; `None` if it needed none.
    pub(in crate::front) fn access_token(&self) -> Option<&Arc<AccessToken>> {
        self.0.token.as_ref()
    }

    /// Returns the principal that the request acts for; anonymous until
    /// [`set_principal`](Self::set_principal).
    pub(in crate::front) fn principal(&self) -> Principal {
        self.0.principal
    }

    /// Sets the principal that the request acts for.
    pub(in crate::front) fn set_principal(&mut self, principal: Principal) {
        self.0.principal = principal;
    }

    /// Sets the era of the client.
    pub(in crate::front) fn set_client_era(&mut self, era: Era) {
        self.0.client_era = Some(era);
    }

    /// Records that the whole request has arrived and is sent to a server. Returns the current time.
    pub(in crate::front) fn begin_call(&mut self, call: &crate::dialect::Call) -> Instant {
        self.0.received_at = self.0.connection.clock().now();
        self.0.method = MessageName::Rpc(call.method.clone());
        self.0.target = call.target.as_deref().map(|target| truncated_target(&call.method, target));
        self.0.is_forwarded = true;
        self.record_arguments(call.params.as_ref());
        self.0.received_at
    }

    /// Keeps the arguments of the call, if a tap (`deferral tap`) shows arguments.
    pub(in crate::front) fn record_arguments(&mut self, params: Option<&Payload>) {
        if tap::has_content_taps() {
            let arguments =
                params.and_then(|params| params.get("arguments")).map(|json| tap::content_or_size(&json));
            self.0.content = Some(Box::new(tap::CallContent { arguments, result: None }));
        }
    }

    /// Keeps the response of the call, if its arguments were kept.
    pub(in crate::front) fn record_result(&mut self, response: &[u8]) {
        if let Some(content) = &mut self.0.content {
            content.result = Some(tap::content_or_size(response));
        }
    }

    /// Records that the whole request has arrived and is relayed to a server.
    pub(in crate::front) fn begin_relay(&mut self, post: &LegacyPost) {
        self.0.received_at = self.0.connection.clock().now();
        self.0.client_era = Some(Era::Legacy);
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
            messages => {
                let names: Vec<_> =
                    messages.iter().take(MAX_NAMED_MESSAGES).map(ClientMessage::method_name).collect();
                self.0.method = MessageName::Post(names.join(",").into());
            }
        }
    }

    /// Sets the span of the request. Returns its context, if the request is traced.
    pub(in crate::front) fn set_span(&mut self, span: Span) -> Option<Arc<TraceContext>> {
        self.0.span = span;
        self.0.span.context().cloned().map(Arc::new)
    }

    /// Returns the logged method: the HTTP method, the message's method, or those of a POST's messages,
    /// joined by commas.
    pub(in crate::front) fn method(&self) -> &str {
        self.0.method.as_str()
    }

    /// Sets the session that the request of a legacy client belongs to or opens.
    pub(in crate::front) fn set_session(&mut self, session: SessionTag) {
        self.0.session = Some(session);
    }

    /// Sets the status. The client may still disconnect before the response.
    pub(in crate::front) fn set_status(&mut self, status: StatusCode) {
        self.0.status = Some(status);
    }

    /// Records that the response is given to the connection, with its outcome. Until then the client may
    /// disconnect.
    pub(in crate::front) fn complete(&mut self, summary: AccessSummary) {
        let now = self.0.connection.clock().now();
        let elapsed = now.saturating_duration_since(self.0.received_at);
        self.0.completion = Some(EntryOutcome {
            proxy_time: elapsed.saturating_sub(summary.upstream_time),
            summary,
            ended_at: now,
        });
    }
}

/// Returns the beginning of a target, because the client chooses its length. A task id is cut to a prefix
/// that suffices to find the task, because the whole id gives access to its result.
fn truncated_target(method: &Method, target: &str) -> String {
    let length = match method {
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult => MAX_TASK_ID,
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
        let completion = self.completion.take().unwrap_or_else(|| {
            // The client disconnected while the proxy waited for the server, so the time counts as the
            // server's.
            let now = self.connection.clock().now();
            let elapsed = now.saturating_duration_since(self.received_at);
            let upstream = if self.is_forwarded { elapsed } else { Duration::ZERO };
            let summary = AccessSummary {
                outcome: RequestOutcome::Disconnected,
                upstream_time: upstream,
                ..AccessSummary::default()
            };
            EntryOutcome { proxy_time: elapsed.saturating_sub(upstream), summary, ended_at: now }
        });
        self.connection.end_request(completion.ended_at);
        let tag = completion.summary.task.as_ref().map(|task| task.tag());
        let tool = match &self.method {
            MessageName::Rpc(Method::ToolsCall)
                if self.is_forwarded && completion.summary.shown_status.is_none() =>
            {
                self.target.as_deref()
            }
            MessageName::Http(_) | MessageName::Rpc(_) | MessageName::Post(_) => None,
        };
        let session = self.session.as_ref().map(|session| session as &dyn std::fmt::Display);
        let route = self.route.as_ref().map_or("", InFlightRequest::route);
        span::end_span(
            &mut self.span,
            &span::SpanSummary { connection: &self.connection, route, session, summary: &completion.summary },
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
            client_era: self.client_era.map_or("", Era::as_str),
            task: tag.as_ref().map(|tag| tag as _),
            session,
            shown: completion.summary.shown_status,
            // Nothing was sent to a client that disconnected first; 499 is the usual status for that.
            status: self.status.map_or(499, |status| status.as_u16()),
            outcome: completion.summary.outcome,
            reason: completion.summary.reason.as_deref(),
            code: completion.summary.code.map(|code| code.get().into()),
            upstream: completion.summary.upstream_time,
            own: completion.proxy_time,
            content: self.content.as_deref(),
        }
        .emit();
    }
}
