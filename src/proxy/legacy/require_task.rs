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
        AccessSummary, LegacyRequest, LegacyResponse, legacy_http::refused, route_context::RouteContext,
    },
    telemetry::RequestOutcome,
};
use http::StatusCode;

/// The reason in the error for an ambiguous message ([`ambiguity`](crate::dialect::ambiguity)).
const AMBIGUITY_REASON: &str =
    "tools here run as tasks only (mode: required), so a message must be one that can be read in one way";

/// Whether the messages of this request have to be checked: a POST on a route with a tool that must be a
/// task.
pub(super) fn can_refuse(shared: &RouteContext, passage: &LegacyRequest) -> bool {
    shared.route.requires_tasks(&passage.standing) && passage.method == http::Method::POST
}

/// Returns the refusal of a POST that is ambiguous or whose batch calls a tool that must be a task; `None` if
/// the request may be relayed. A server with tasks of its own enforces its own requirements.
pub(super) async fn refuse(shared: &RouteContext, passage: &LegacyRequest) -> Option<LegacyResponse> {
    if !can_refuse(shared, passage) {
        return None;
    }
    let error = violation(shared, passage)?;
    if shared.server_has_tasks(passage.principal, &passage.headers).await {
        return None;
    }
    let waiting = passage.post.request_ids();
    let status = if waiting.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    Some(refused(status, &waiting, &error, AccessSummary::failed(RequestOutcome::Refused, &error)))
}

/// Returns the error for the first message of the POST that must not reach the server.
fn violation(shared: &RouteContext, passage: &LegacyRequest) -> Option<ErrorObject> {
    if let Some(ambiguity) = &passage.post.ambiguity {
        return Some(ambiguity.error(AMBIGUITY_REASON));
    }
    if !passage.post.is_batch {
        return None;
    }
    let required = |message: &ClientMessage| match message {
        ClientMessage::Request { method: Method::ToolsCall, target: Some(tool), .. } => {
            (shared.route.tool_policy_for(tool, &passage.standing).mode == Mode::Required)
                .then(|| tool.clone())
        }
        ClientMessage::Request { .. }
        | ClientMessage::Notification(_)
        | ClientMessage::Cancelled(_)
        | ClientMessage::Response(_) => None,
    };
    let tool = passage.post.messages.iter().find_map(required)?;
    let words =
        format!("the tool {tool} runs as a task only, and a call in a batch cannot; nothing was sent");
    Some(ErrorObject::new(code::METHOD_NOT_FOUND, words))
}
