//! The span of a client's request: it begins when the message has been read, and ends with the access line.
//!
//! Its parent is the client's own span, which the message names in `_meta`, or else the request in its headers. What
//! stands in the headers beside that speaks of the way, and is linked to (semantic conventions for MCP, *Context
//! propagation*).

use crate::{
    dialect::{
        Call,
        legacy::{self, Post},
    },
    front::connection::Connection,
    protocol::{
        Frame, Method, Payload, Revision, TraceContext,
        headers::{self, PROTOCOL_VERSION},
    },
    proxy::AccessSummary,
    telemetry::{
        Outcome,
        trace::{
            Kind, Span, Tracer,
            mcp::{Message, task_tag},
        },
    },
};
use http::HeaderMap;
use std::fmt::Display;

/// Of a request of 2026-07-28.
pub(in crate::front) fn of_call(tracer: &Tracer, call: &Call, headers: &HeaderMap) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let message =
        Message { method: call.method.as_str(), target: call.target.as_deref(), id: Some(&call.id) };
    let mut span = begin(tracer, message, call.params.as_ref(), headers);
    if let Method::TasksGet | Method::TasksUpdate | Method::TasksCancel = call.method
        && let Some(id) = &call.target
    {
        span.set("deferral.task.id", task_tag(id));
    }
    span
}

/// Of what a legacy client has posted: a batch is one request. An answer to a question of the server is none.
pub(in crate::front) fn of_post(
    tracer: &Tracer,
    post: &Post,
    message: Option<&Frame>,
    names: &str,
    headers: &HeaderMap,
) -> Span {
    if !tracer.is_on() || post.messages.iter().all(|it| matches!(it, legacy::Message::Response(_))) {
        return Span::default();
    }
    let (target, id) = match &post.messages[..] {
        [legacy::Message::Request { id, target, .. }] => (target.as_deref(), Some(id)),
        _ => (None, None),
    };
    let params = message.and_then(Frame::params);
    let mut span = begin(tracer, Message { method: names, target, id }, params, headers);
    if let [legacy::Message::Request { method, target: Some(id), .. }] = &post.messages[..]
        && method.is_about_legacy_tasks()
    {
        span.set("deferral.task.id", task_tag(id));
    }
    span
}

fn begin(tracer: &Tracer, message: Message<'_>, params: Option<&Payload>, headers: &HeaderMap) -> Span {
    let in_meta = params.and_then(Payload::meta).and_then(TraceContext::of_meta);
    let in_headers = TraceContext::of_headers(headers);
    let mut span = message.begin(tracer, Kind::Server, in_meta.as_ref().or(in_headers.as_ref()));
    if let (Some(meta), Some(headers)) = (&in_meta, &in_headers)
        && meta.span != headers.span
    {
        span.link(headers);
    }
    if span.is_recorded() {
        let named = headers.get(&PROTOCOL_VERSION).and_then(|value| headers::decode(value).ok());
        let revision = named.and_then(|text| Revision::parse(&text));
        if let Some(revision) = revision.or_else(|| asked_for(message.method, params)) {
            span.set("mcp.protocol.version", revision.as_str());
        }
    }
    span
}

/// The revision that a handshake asks for, which no header names yet.
fn asked_for(method: &str, params: Option<&Payload>) -> Option<Revision> {
    (method == Method::Initialize.as_str())
        .then(|| Revision::parse(&params?.string("protocolVersion")?))
        .flatten()
}

/// What is known of a request when its line is written.
pub(super) struct Ending<'a> {
    pub(super) connection: &'a Connection,
    pub(super) route: &'a str,
    pub(super) session: Option<&'a dyn Display>,
    pub(super) account: &'a AccessSummary,
}

/// Says how the request ended. Of an error of the server's only the code: its words may hold what it was asked about.
pub(super) fn end(span: &mut Span, ending: &Ending<'_>) {
    if !span.is_recorded() {
        return;
    }
    let Ending { connection, route, session, account } = ending;
    span.set("network.transport", "tcp");
    span.set("network.protocol.name", "http");
    span.set("network.protocol.version", connection.http_version());
    span.set("deferral.route", (*route).to_owned());
    span.set("deferral.outcome", account.outcome.as_str());
    if let Some(session) = session {
        span.set("mcp.session.id", session.to_string());
    }
    if let Some(task) = &account.task {
        span.set("deferral.task.id", task_tag(task.as_str()));
    }
    if let Some(status) = account.shown {
        span.set("deferral.task.status", status);
    }
    if let Some(origin) = &account.origin {
        span.link(origin);
    }
    let (outcome, reason) = (account.outcome, account.reason.as_deref());
    match outcome {
        Outcome::Result | Outcome::Task | Outcome::InputRequired => {}
        Outcome::ToolError | Outcome::Departed => span.fail(outcome.as_str(), None),
        Outcome::ServerError => match reason.and_then(code_in) {
            Some(code) => fail(span, code, None),
            // An HTTP error.
            None => span.fail(outcome.as_str(), None),
        },
        // Its words may be those of the server.
        Outcome::UpstreamFailed => ours(span, account, None),
        Outcome::Refused | Outcome::TimedOut | Outcome::ProxyFailed => ours(span, account, reason),
    }
}

/// With an error of ours.
fn ours(span: &mut Span, account: &AccessSummary, reason: Option<&str>) {
    match account.code {
        Some(code) => fail(span, code.get().into(), reason),
        None => span.fail(account.outcome.as_str(), reason),
    }
}

/// With this code of a JSON-RPC error.
fn fail(span: &mut Span, code: i64, reason: Option<&str>) {
    span.set("rpc.response.status_code", code.to_string());
    span.fail(code.to_string(), reason);
}

/// The code of the server's error, as the access line has it.
fn code_in(reason: &str) -> Option<i64> {
    reason.rsplit_once("error ")?.1.parse().ok()
}
