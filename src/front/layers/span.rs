//! The span of a client's request: it begins when the message has been read, and ends with the access log
//! entry.
//!
//! Its parent is the client's own span, which the message names in `_meta`, or else the span in its headers.
//! Another span in the headers is linked to (semantic conventions for MCP, *Context propagation*).

use crate::{
    dialect::{
        Call,
        legacy::{self, LegacyPost},
    },
    front::connection::ClientConnection,
    protocol::{
        Frame, Method, Payload, Revision, TraceContext,
        headers::{self, PROTOCOL_VERSION},
    },
    proxy::AccessSummary,
    telemetry::{
        RequestOutcome,
        trace::{
            Span, SpanKind, Tracer,
            mcp::{MessageAttributes, task_tag},
        },
    },
};
use http::HeaderMap;
use std::fmt::Display;

/// Begins the span of a request of 2026-07-28; an empty span if tracing is off.
pub(in crate::front) fn begin_call_span(tracer: &Tracer, call: &Call, headers: &HeaderMap) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let message = MessageAttributes {
        method: call.method.as_str(),
        target: call.target.as_deref(),
        id: Some(&call.id),
    };
    let mut span = begin(tracer, message, call.params.as_ref(), headers);
    if let Method::TasksGet | Method::TasksUpdate | Method::TasksCancel = call.method
        && let Some(id) = &call.target
    {
        span.set("deferral.task.id", task_tag(id));
    }
    span
}

/// Begins the span of a legacy client's POST; a batch has one span. An empty span if tracing is off, or for a
/// POST of responses alone.
pub(in crate::front) fn begin_post_span(
    tracer: &Tracer,
    post: &LegacyPost,
    message: Option<&Frame>,
    methods: &str,
    headers: &HeaderMap,
) -> Span {
    if !tracer.is_on() || post.messages.iter().all(|it| matches!(it, legacy::ClientMessage::Response(_))) {
        return Span::default();
    }
    let (target, id) = match &post.messages[..] {
        [legacy::ClientMessage::Request { id, target, .. }] => (target.as_deref(), Some(id)),
        _ => (None, None),
    };
    let params = message.and_then(Frame::params);
    let mut span = begin(tracer, MessageAttributes { method: methods, target, id }, params, headers);
    if let [legacy::ClientMessage::Request { method, target: Some(id), .. }] = &post.messages[..]
        && method.is_legacy_task_method()
    {
        span.set("deferral.task.id", task_tag(id));
    }
    span
}

fn begin(
    tracer: &Tracer,
    message: MessageAttributes<'_>,
    params: Option<&Payload>,
    headers: &HeaderMap,
) -> Span {
    let meta_context = params.and_then(Payload::meta).and_then(TraceContext::from_meta);
    let header_context = TraceContext::from_headers(headers);
    let mut span =
        message.begin_span(tracer, SpanKind::Server, meta_context.as_ref().or(header_context.as_ref()));
    if let (Some(meta), Some(headers)) = (&meta_context, &header_context)
        && meta.span != headers.span
    {
        span.link(headers);
    }
    if span.is_recorded() {
        let version_header = headers.get(&PROTOCOL_VERSION).and_then(|value| headers::decode(value).ok());
        let revision = version_header.and_then(|text| Revision::parse(&text));
        if let Some(revision) = revision.or_else(|| requested_revision(message.method, params)) {
            span.set("mcp.protocol.version", revision.as_str());
        }
    }
    span
}

/// Returns the revision that an `initialize` request names, which is in no header yet.
fn requested_revision(method: &str, params: Option<&Payload>) -> Option<Revision> {
    (method == Method::Initialize.as_str())
        .then(|| Revision::parse(&params?.string("protocolVersion")?))
        .flatten()
}

/// The fields of a span that are known when the request ends.
pub(super) struct SpanSummary<'a> {
    pub(super) connection: &'a ClientConnection,
    pub(super) route: &'a str,
    pub(super) session: Option<&'a dyn Display>,
    pub(super) summary: &'a AccessSummary,
}

/// Records in the span how the request ended. Of a server's error only the code is recorded: its message may
/// contain request data.
pub(super) fn end_span(span: &mut Span, fields: &SpanSummary<'_>) {
    if !span.is_recorded() {
        return;
    }
    let SpanSummary { connection, route, session, summary } = fields;
    span.set("network.transport", "tcp");
    span.set("network.protocol.name", "http");
    span.set("network.protocol.version", connection.http_version());
    span.set("deferral.route", (*route).to_owned());
    span.set("deferral.outcome", summary.outcome.as_str());
    if let Some(session) = session {
        span.set("mcp.session.id", session.to_string());
    }
    if let Some(task) = &summary.task {
        span.set("deferral.task.id", task_tag(task.as_str()));
    }
    if let Some(status) = summary.shown_status {
        span.set("deferral.task.status", status);
    }
    if let Some(origin) = &summary.origin {
        span.link(origin);
    }
    let (outcome, reason) = (summary.outcome, summary.reason.as_deref());
    match outcome {
        RequestOutcome::Result | RequestOutcome::Task | RequestOutcome::InputRequired => {}
        RequestOutcome::ToolError | RequestOutcome::Disconnected => span.fail(outcome.as_str(), None),
        RequestOutcome::ServerError => match reason.and_then(server_error_code) {
            Some(code) => fail_with_code(span, code, None),
            // The server answered with an HTTP error, which has no JSON-RPC code.
            None => span.fail(outcome.as_str(), None),
        },
        // The reason is left out: it may be the server's message.
        RequestOutcome::UpstreamFailed => fail_with_proxy_error(span, summary, None),
        RequestOutcome::Refused | RequestOutcome::TimedOut | RequestOutcome::ProxyFailed => {
            fail_with_proxy_error(span, summary, reason)
        }
    }
}

/// Records an error of the proxy.
fn fail_with_proxy_error(span: &mut Span, summary: &AccessSummary, reason: Option<&str>) {
    match summary.code {
        Some(code) => fail_with_code(span, code.get().into(), reason),
        None => span.fail(summary.outcome.as_str(), reason),
    }
}

/// Records a JSON-RPC error code.
fn fail_with_code(span: &mut Span, code: i64, reason: Option<&str>) {
    span.set("rpc.response.status_code", code.to_string());
    span.fail(code.to_string(), reason);
}

/// Returns the code of the server's error, from the reason in the access log entry.
fn server_error_code(reason: &str) -> Option<i64> {
    reason.rsplit_once("error ")?.1.parse().ok()
}
