//! Refuses calls of tools that a rule denies (`mode: deny`), whatever the form of the message.
//!
//! A server may parse a message differently ([`ambiguity`](crate::dialect::ambiguity)), and runs the calls in
//! a batch. On a route that denies a tool a message must therefore be unambiguous; a batch with a denied call
//! is refused as a whole, and so is a batch with `tools/list`, whose response could not be edited. An
//! ambiguous message is also refused where calls are counted (`concurrency`, `calls_per_minute`).

use crate::{
    bridge::plan,
    dialect::legacy::ClientMessage,
    protocol::{ErrorObject, Method, code},
    proxy::{
        AccessSummary, LegacyRequest, LegacyResponse, relay::legacy_http::refuse_requests,
        route_context::RouteContext, session::LegacyClient,
    },
    telemetry::RequestOutcome,
};
use http::StatusCode;

/// The reason in the error for an ambiguous message ([`ambiguity`](crate::dialect::ambiguity)).
const AMBIGUITY_REASON: &str = "calls on this route are denied (mode: deny) or limited (concurrency, calls_per_minute), so a message must be \
                   one that can be read in one way";

/// Whether the messages of this request have to be checked: a POST on a route that denies tools or limits
/// calls.
pub(super) fn must_check(shared: &RouteContext, request: &LegacyRequest) -> bool {
    (shared.route.has_denied_tools() || shared.limiters.is_some()) && request.method == http::Method::POST
}

/// Returns the refusal of a POST that holds a denied call, an ambiguous message, or a `tools/list` in a
/// batch; `None` if the request may be relayed.
pub(super) fn refuse(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<LegacyResponse> {
    if !must_check(shared, request) {
        return None;
    }
    let error = find_violation(shared, client, request)?;
    let request_ids = request.post.request_ids();
    let status = if request_ids.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    Some(refuse_requests(
        status,
        &request_ids,
        &error,
        AccessSummary::failed(RequestOutcome::Refused, &error),
    ))
}

/// Returns the error for the first message of the POST that must not reach the server.
fn find_violation(
    shared: &RouteContext,
    client: &LegacyClient,
    request: &LegacyRequest,
) -> Option<ErrorObject> {
    if let Some(ambiguity) = &request.post.ambiguity {
        return Some(ambiguity.error(AMBIGUITY_REASON));
    }
    // A ticket tool is the proxy's own; the rules for the server's tools do not apply.
    if crate::proxy::tickets::legacy_call::is_ticket_call(shared, client, request) {
        return None;
    }
    request.post.messages.iter().find_map(|message| match message {
        ClientMessage::Request { method: Method::ToolsCall, target, .. } => {
            let tool = target.as_deref().unwrap_or_default();
            shared.route.is_denied(tool).then(|| plan::denied_error(tool))
        }
        ClientMessage::Request { method: Method::ToolsList, .. }
            if request.post.is_batch && shared.route.has_denied_tools() =>
        {
            let text = "a batch on this route must not hold tools/list (mode: deny); send it on its own";
            Some(ErrorObject::new(code::INVALID_REQUEST, text))
        }
        ClientMessage::Request { .. }
        | ClientMessage::Notification(_)
        | ClientMessage::Cancelled(_)
        | ClientMessage::Response(_) => None,
    })
}
