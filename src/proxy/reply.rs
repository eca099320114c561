//! The server's final word, or a refusal of ours, as the response to a call.

use super::{AccessSummary, Commit, Item, NoRoom, Reply};
use crate::{
    bridge::{elicit, plan},
    dialect::{Call, Response, modern},
    policy::Route,
    protocol::{ErrorObject, Fault, Kind, Method, code, tool_result},
    task::TaskId,
    telemetry::{Limit, Outcome},
    upstream::CallError,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

/// How an upstream call ended.
#[derive(Clone, Debug)]
pub(super) enum CallEnd {
    /// The server's response.
    Said(Response),
    /// There is none.
    Lost(CallError),
    /// The call cannot go on, for a reason of ours or its client's.
    Refused(ErrorObject, Outcome),
}

/// What a call came to.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// The result object.
    Result(Bytes),
    Error(ErrorObject, Outcome),
}

/// The response for a client that waited.
///
/// `refused` is what the server asked for and could not have, if anything: a call that fails after
/// that failed for it.
pub(super) fn to_client(call: &Call, route: &Route, word: CallEnd, refused: Option<&Value>) -> Reply {
    let lost = match &word {
        CallEnd::Lost(lost) => Some(lost.clone()),
        CallEnd::Said(_) | CallEnd::Refused(..) => None,
    };
    if let (CallEnd::Said(response), None) = (&word, refused)
        && let Kind::Success { result, .. } = response.frame().kind()
        && !stands_for_an_error(call, route, result)
    {
        // The common case, in one pass over the server's bytes.
        return match response.message(call) {
            Ok((body, false)) => Reply::new(StatusCode::OK, body, Outcome::Result),
            Ok((body, true)) => Reply::new(StatusCode::OK, body, Outcome::ToolError),
            Err(error) => invalid(call, &error.to_string()),
        };
    }
    match verdict(call, route, word, refused) {
        Verdict::Result(result) => {
            let outcome = if tool_result::is_error(&result) { Outcome::ToolError } else { Outcome::Result };
            Reply::new(StatusCode::OK, modern::success_response(&call.id, &result), outcome)
        }
        Verdict::Error(error, outcome) => {
            let mut reply = failed(call, status_of(call, &error, lost.as_ref()), &error, outcome);
            if let Some(lost) = &lost {
                // In our words, also where the client is told in the server's.
                reply.account.reason = Some(lost.to_string().into());
            }
            if let Some(CallError::Unauthorized { challenge: Some(challenge), .. }) = lost {
                reply.headers.insert(header::WWW_AUTHENTICATE, challenge);
            }
            if let Some(after) = error.retry_after().and_then(|after| HeaderValue::try_from(after).ok()) {
                reply.headers.insert(header::RETRY_AFTER, after);
            }
            reply
        }
    }
}

/// What a call came to, for a client that waits or for a task.
pub(super) fn verdict(call: &Call, route: &Route, word: CallEnd, refused: Option<&Value>) -> Verdict {
    let response = match word {
        CallEnd::Said(response) => response,
        CallEnd::Lost(lost) => return Verdict::Error(lost_error(&lost), outcome_of(&lost)),
        CallEnd::Refused(error, outcome) => return Verdict::Error(error, outcome),
    };
    let invalid = |why: &str| Verdict::Error(invalid_error(why), Outcome::UpstreamFailed);
    match (response.frame().kind(), refused) {
        (Kind::Success { result, .. }, refused) => {
            if let Some(missing) = refused
                && tool_result::is_error(result)
            {
                return Verdict::Error(elicit::question_refused(missing), Outcome::Refused);
            }
            if stands_for_an_error(call, route, result) {
                let uri = call.target.as_deref().unwrap_or_default();
                return Verdict::Error(modern::no_such_resource(uri), Outcome::ServerError);
            }
            match response.result(&call.method) {
                Ok(result) => Verdict::Result(result),
                Err(error) => invalid(&error.to_string()),
            }
        }
        (Kind::Failure { .. }, Some(missing)) => {
            Verdict::Error(elicit::question_refused(missing), Outcome::Refused)
        }
        (Kind::Failure { .. } | Kind::Request { .. } | Kind::Notification { .. }, _) => {
            match response.error(call) {
                Some(error) => Verdict::Error(error, Outcome::ServerError),
                None => invalid("it is not a response"),
            }
        }
    }
}

/// The error object for an answer that will not come. Where a limit is the reason, it counts as met.
pub(super) fn lost_error(lost: &CallError) -> ErrorObject {
    if let Some(limit) = lost.limit() {
        limit.hit();
    }
    error_of(lost)
}

/// The same, for whoever is told of it beside the client.
pub(super) fn error_of(lost: &CallError) -> ErrorObject {
    match lost {
        CallError::Forbidden { error: Some(error), .. } => error.clone().of_this_era(),
        CallError::Status { retry_after: Some(after), .. } => {
            ErrorObject::new(lost.code(), lost.to_string()).with_retry_after(after)
        }
        lost => ErrorObject::new(lost.code(), lost.to_string()),
    }
}

pub(super) fn outcome_of(lost: &CallError) -> Outcome {
    lost.fault().into()
}

/// The status by which a transport says whose fault it is.
pub(super) fn status_of_fault(fault: Fault) -> StatusCode {
    match fault {
        Fault::Client => StatusCode::BAD_REQUEST,
        Fault::Server => StatusCode::BAD_GATEWAY,
        Fault::Proxy => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status of an error for a client that has been sent nothing yet.
///
/// What the server made of a call is told in the body with 200: clients in the field show the
/// JSON-RPC error of a 200, and an opaque transport error otherwise. `server/discover` is
/// different: a client whose probe is answered 200 takes what it says for the server's own, so an
/// outage must look like one.
fn status_of(call: &Call, error: &ErrorObject, lost: Option<&CallError>) -> StatusCode {
    match lost {
        Some(CallError::Unauthorized { status, .. }) => *status,
        Some(CallError::Forbidden { .. }) => StatusCode::FORBIDDEN,
        Some(lost) if call.method == Method::Discover => status_of_fault(lost.fault()),
        // 2026-07-28, *MissingRequiredClientCapabilityError*: on HTTP the status is 400.
        _ if error.code() == code::MISSING_CAPABILITY => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// A call whose parameters are not what they must be.
pub(super) fn invalid_params(call: &Call, why: impl AsRef<str>) -> Reply {
    refuse(call, StatusCode::OK, &ErrorObject::new(code::INVALID_PARAMS, why))
}

/// A call refused by us.
pub(super) fn refuse(call: &Call, status: StatusCode, error: &ErrorObject) -> Reply {
    failed(call, status, error, Outcome::Refused)
}

/// A caller has met one of its limits, which is named.
pub(super) fn too_many(limit: &str) -> ErrorObject {
    Limit::hit_by_key(limit);
    ErrorObject::new(code::BUSY, format!("too many requests; the limit is {limit}"))
}

/// A method this server does not serve.
pub(super) fn not_served(call: &Call) -> Reply {
    let refused = modern::not_served(call.id.clone(), &call.method);
    failed(call, refused.status, &refused.error, Outcome::Refused)
}

/// A call that needs the tasks extension, by a client that did not declare it.
pub(super) fn tasks_required(call: &Call) -> Reply {
    refuse(call, StatusCode::BAD_REQUEST, &plan::tasks_required())
}

/// A new call that comes while the proxy stops; nothing is sent. Another process may take it.
pub(super) fn stopping(call: &Call) -> Reply {
    let mut reply = refuse(call, StatusCode::SERVICE_UNAVAILABLE, &stopping_error());
    reply.headers.insert(header::RETRY_AFTER, RETRY_AFTER);
    reply.account.outcome = Outcome::ProxyFailed;
    reply
}

pub(super) fn stopping_error() -> ErrorObject {
    ErrorObject::new(code::SHUTTING_DOWN, "the proxy is shutting down; the call was not sent")
}

/// A client that is refused because the proxy stops may try again after so many seconds: where another
/// process takes its place, that is there by then.
pub(super) const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// A result of ours.
pub(super) fn success(call: &Call, result: &[u8]) -> Reply {
    Reply::new(StatusCode::OK, modern::success_response(&call.id, result), Outcome::Result)
}

/// The handle of a task.
pub(super) fn handle(call: &Call, created: &[u8], task: TaskId, commit: Option<Commit>) -> Reply {
    let mut reply = success(call, created);
    reply.commit = commit;
    reply.account = AccessSummary { task: Some(task), ..AccessSummary::of(Outcome::Task) };
    reply
}

/// A result that asks the client for more.
pub(super) fn input_required(call: &Call, result: &[u8]) -> Reply {
    let mut reply = success(call, result);
    reply.account.outcome = Outcome::InputRequired;
    reply
}

/// Nothing can be said while the store fails; the client asks again.
pub(super) fn store_failed(call: &Call) -> Reply {
    failed(call, StatusCode::OK, &store_error(), Outcome::ProxyFailed)
}

pub(super) fn store_error() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, NoRoom::StoreFailed.to_string())
}

fn invalid(call: &Call, why: &str) -> Reply {
    failed(call, StatusCode::OK, &invalid_error(why), Outcome::UpstreamFailed)
}

fn failed(call: &Call, status: StatusCode, error: &ErrorObject, outcome: Outcome) -> Reply {
    let account = AccessSummary::failed(outcome, error);
    Reply { account, ..Reply::new(status, body(call, error), outcome) }
}

fn invalid_error(why: &str) -> ErrorObject {
    ErrorObject::new(code::UPSTREAM_INVALID, format!("the server's answer is not valid: {why}"))
}

fn stands_for_an_error(call: &Call, route: &Route, result: &Bytes) -> bool {
    route.empty_contents_is_error && call.method == Method::ResourcesRead && modern::has_no_contents(result)
}

fn body(call: &Call, error: &ErrorObject) -> Bytes {
    modern::error_response(Some(&call.id), error)
}

// === impl Reply ===

impl Reply {
    pub(super) fn new(status: StatusCode, body: Bytes, outcome: Outcome) -> Self {
        Self { status, headers: HeaderMap::new(), body, commit: None, account: AccessSummary::of(outcome) }
    }
}

// === impl Item ===

impl From<Reply> for Item {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics;
    use std::time::Duration;

    fn hits(key: &str) -> u64 {
        metrics::limits().iter().find(|limit| limit.limit == key).expect("it is counted").hits
    }

    #[test]
    fn a_limit_that_a_call_was_lost_to_is_counted_when_its_client_is_told() {
        let lost = CallError::AllInUse { limit: 1, after: Duration::from_secs(30) };
        let before = hits("upstream.instances");
        assert_eq!(lost_error(&lost).code(), code::BUSY);
        assert_eq!(hits("upstream.instances"), before + 1);
        // Whoever is told of it beside the client has not met it once more.
        assert_eq!(error_of(&lost).code(), code::BUSY);
        assert_eq!(hits("upstream.instances"), before + 1);
    }
}
