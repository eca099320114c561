//! Messages that are refused whole, because a policy forbids one of them or cannot be applied.
//!
//! A `tools/call` of its own is judged where it becomes a task. Here it is looked at all other shapes
//! in which a server would still run one: a batch, and whatever a server may read otherwise than we do
//! ([`ambiguous`](crate::dialect::ambiguous)). Only routes on which a tool must be a task have
//! something to evade.

use crate::{
    dialect::legacy::Message,
    policy::Mode,
    protocol::{ErrorObject, Method, code},
    proxy::{AccessSummary, Passage, Passed, passage::refused, shared::Shared},
    telemetry::Outcome,
};
use http::StatusCode;

/// What is said to a client whose message could be read in two ways.
const WHY: &str =
    "tools here run as tasks only (mode: required), so a message must be one that can be read in one way";

/// Whether messages have to be looked at.
pub(super) fn may_refuse(shared: &Shared, passage: &Passage) -> bool {
    shared.route.requires_tasks(&passage.standing) && passage.method == http::Method::POST
}

/// The refusal of everything that a POST holds, where something in it must not reach the server.
pub(super) async fn refuse(shared: &Shared, passage: &Passage) -> Option<Passed> {
    if !may_refuse(shared, passage) {
        return None;
    }
    let error = wrong(shared, passage)?;
    if shared.server_has_tasks(passage.principal, &passage.headers).await {
        return None;
    }
    let waiting = passage.post.waiting();
    let status = if waiting.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    Some(refused(status, &waiting, &error, AccessSummary::failed(Outcome::Refused, &error)))
}

fn wrong(shared: &Shared, passage: &Passage) -> Option<ErrorObject> {
    if let Some(ambiguity) = &passage.post.ambiguity {
        return Some(ambiguity.error(WHY));
    }
    if !passage.post.is_batch {
        return None;
    }
    let required = |message: &Message| match message {
        Message::Request { method: Method::ToolsCall, target: Some(tool), .. } => {
            (shared.route.treatment_for(tool, &passage.standing).mode == Mode::Required).then(|| tool.clone())
        }
        Message::Request { .. } | Message::Notification(_) | Message::Cancelled(_) | Message::Response(_) => {
            None
        }
    };
    let tool = passage.post.messages.iter().find_map(required)?;
    let words =
        format!("the tool {tool} runs as a task only, which no call in a batch does; nothing was sent");
    Some(ErrorObject::new(code::METHOD_NOT_FOUND, words))
}
