//! Refuses messages as a whole if they would run a tool that must be a task (`mode: required`) in another
//! form.
//!
//! A single `tools/call` is checked where it becomes a task. This module checks all other forms in which a
//! server would still run a call: a batch, and a message that a server may parse differently
//! ([`ambiguity`](crate::dialect::ambiguity)). The check applies only to routes on which a tool must be a
//! task.

use crate::{
    dialect::legacy::ClientMessage,
    policy::Mode,
    protocol::{ErrorObject, Method, code},
    proxy::{
        AccessSummary, LegacyRequest, LegacyResponse, relay::legacy_http::refuse_requests,
        route_context::RouteContext,
    },
    telemetry::RequestOutcome,
};
use http::StatusCode;

/// The reason in the error for an ambiguous message ([`ambiguity`](crate::dialect::ambiguity)).
const AMBIGUITY_REASON: &str =
    "tools here run as tasks only (mode: required), so a message must be unambiguous";

/// Whether the messages of this request have to be checked: a POST on a route with a tool that must be a
/// task.
pub(super) fn must_check(shared: &RouteContext, request: &LegacyRequest) -> bool {
    shared.route.has_required_tasks(&request.rollout_membership) && request.method == http::Method::POST
}

/// Returns the refusal of a POST that is ambiguous or whose batch calls a tool that must be a task; `None` if
/// the request may be relayed. A server with tasks of its own enforces its own requirements.
pub(super) async fn refuse(shared: &RouteContext, request: &LegacyRequest) -> Option<LegacyResponse> {
    if !must_check(shared, request) {
        return None;
    }
    let error = find_violation(shared, request)?;
    if shared.server_has_tasks(request.principal, &request.headers).await {
        return None;
    }
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
fn find_violation(shared: &RouteContext, request: &LegacyRequest) -> Option<ErrorObject> {
    if let Some(ambiguity) = &request.post.ambiguity {
        return Some(ambiguity.error(AMBIGUITY_REASON));
    }
    if !request.post.is_batch {
        return None;
    }
    let required_tool = |message: &ClientMessage| match message {
        ClientMessage::Request { method: Method::ToolsCall, target: Some(tool), .. } => {
            (shared.route.tool_policy_for(tool, &request.rollout_membership).mode == Mode::Required)
                .then(|| tool.clone())
        }
        ClientMessage::Request { .. }
        | ClientMessage::Notification(_)
        | ClientMessage::Cancelled(_)
        | ClientMessage::Response(_) => None,
    };
    let tool = request.post.messages.iter().find_map(required_tool)?;
    let text = format!("the tool {tool} runs as a task only, and a call in a batch cannot; nothing was sent");
    Some(ErrorObject::new(code::METHOD_NOT_FOUND, text))
}
