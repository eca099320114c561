//! Builds the reply to a call: from the server's response, or as a refusal or error of the proxy.

mod access_summary;
pub(super) mod call_reply;

pub use access_summary::AccessSummary;
pub use call_reply::{CallReply, DeliveryCommit, ReplyItem, ReplyStream};

use super::tasks::TaskAdmissionError;
use crate::{
    bridge::{elicit, plan},
    dialect::{Call, CallResponse, modern},
    policy::Route,
    protocol::{ErrorObject, ErrorOrigin, Kind, Method, code, tool_result},
    task::TaskId,
    telemetry::{Limit, RequestOutcome},
    upstream::CallError,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

/// How an upstream call ended.
#[derive(Clone, Debug)]
pub(super) enum CallEnd {
    /// With the server's response.
    Response(CallResponse),
    /// Without a response, for this reason.
    Lost(CallError),
    /// With an error of the proxy: the call cannot continue, because of the proxy or its client.
    Refused(ErrorObject, RequestOutcome),
}

/// The outcome of a call: a result or an error in the form of 2026-07-28.
#[derive(Clone, Debug)]
pub(super) enum CallVerdict {
    /// The raw JSON of the result object.
    Result(Bytes),
    /// The error for the client, and the outcome for the access log.
    Error(ErrorObject, RequestOutcome),
}

/// The reply for a client that waits for the call's end.
///
/// `missing_capability` is the capability that an input request required and the client lacks, if any: a failure of the
/// call is then reported as a consequence of that missing capability.
pub(super) fn call_end_reply(
    call: &Call,
    route: &Route,
    end: CallEnd,
    missing_capability: Option<&Value>,
) -> CallReply {
    let call_error = match &end {
        CallEnd::Lost(call_error) => Some(call_error.clone()),
        CallEnd::Response(_) | CallEnd::Refused(..) => None,
    };
    if let (CallEnd::Response(response), None) = (&end, missing_capability)
        && let Kind::Success { result, .. } = response.frame().kind()
        && !is_missing_resource(call, route, result)
    {
        // The common case, in one pass over the server's bytes.
        return match response.write_message(call) {
            Ok((body, false)) => CallReply::new(StatusCode::OK, body, RequestOutcome::Result),
            Ok((body, true)) => CallReply::new(StatusCode::OK, body, RequestOutcome::ToolError),
            Err(error) => invalid_response_reply(call, &error.to_string()),
        };
    }
    match call_verdict(call, route, end, missing_capability) {
        CallVerdict::Result(result) => {
            let outcome = if tool_result::is_error(&result) {
                RequestOutcome::ToolError
            } else {
                RequestOutcome::Result
            };
            CallReply::new(StatusCode::OK, modern::success_response(&call.id, &result), outcome)
        }
        CallVerdict::Error(error, outcome) => {
            let mut reply =
                error_reply(call, error_status(call, &error, call_error.as_ref()), &error, outcome);
            if let Some(call_error) = &call_error {
                // The log gets the proxy's text, even if the client gets the server's.
                reply.summary.reason = Some(call_error.to_string().into());
            }
            if let Some(CallError::Unauthorized { challenge: Some(challenge), .. }) = call_error {
                reply.headers.insert(header::WWW_AUTHENTICATE, challenge);
            }
            if let Some(after) = error.retry_after().and_then(|after| HeaderValue::try_from(after).ok()) {
                reply.headers.insert(header::RETRY_AFTER, after);
            }
            reply
        }
    }
}

/// Determines the outcome of a call, for a waiting client or for a task. `missing_capability` is as in [`call_end_reply`].
pub(super) fn call_verdict(
    call: &Call,
    route: &Route,
    end: CallEnd,
    missing_capability: Option<&Value>,
) -> CallVerdict {
    let response = match end {
        CallEnd::Response(response) => response,
        CallEnd::Lost(call_error) => {
            return CallVerdict::Error(record_call_error(&call_error), call_error_outcome(&call_error));
        }
        CallEnd::Refused(error, outcome) => return CallVerdict::Error(error, outcome),
    };
    let invalid =
        |reason: &str| CallVerdict::Error(invalid_response_error(reason), RequestOutcome::UpstreamFailed);
    match (response.frame().kind(), missing_capability) {
        (Kind::Success { result, .. }, missing_capability) => {
            if let Some(missing) = missing_capability
                && tool_result::is_error(result)
            {
                return CallVerdict::Error(elicit::input_refused_error(missing), RequestOutcome::Refused);
            }
            if is_missing_resource(call, route, result) {
                let uri = call.target.as_deref().unwrap_or_default();
                return CallVerdict::Error(modern::unknown_resource_error(uri), RequestOutcome::ServerError);
            }
            match response.client_result(&call.method) {
                Ok(result) => CallVerdict::Result(result),
                Err(error) => invalid(&error.to_string()),
            }
        }
        (Kind::Failure { .. }, Some(missing)) => {
            CallVerdict::Error(elicit::input_refused_error(missing), RequestOutcome::Refused)
        }
        (Kind::Failure { .. } | Kind::Request { .. } | Kind::Notification { .. }, _) => {
            match response.client_error(call) {
                Some(error) => CallVerdict::Error(error, RequestOutcome::ServerError),
                None => invalid("it is not a response"),
            }
        }
    }
}

/// The error object for a call that ended without a response. If a limit is the reason, counts a hit of that
/// limit.
pub(super) fn record_call_error(call_error: &CallError) -> ErrorObject {
    if let Some(limit) = call_error.limit() {
        limit.record_hit();
    }
    call_error_object(call_error)
}

/// The error object for a call that ended without a response. Does not count a limit, because the error is
/// not for the client (for example for a trace span).
pub(super) fn call_error_object(call_error: &CallError) -> ErrorObject {
    match call_error {
        CallError::Forbidden { error: Some(error), .. } => error.clone().into_modern(),
        CallError::Status { retry_after: Some(after), .. } => {
            ErrorObject::new(call_error.code(), call_error.to_string()).with_retry_after(after)
        }
        call_error => ErrorObject::new(call_error.code(), call_error.to_string()),
    }
}

/// The outcome in the access log of a call that ended without a response.
pub(super) fn call_error_outcome(call_error: &CallError) -> RequestOutcome {
    call_error.origin().into()
}

/// The HTTP status for an error of this origin: 400 for the client, 502 for the server, 503 for the proxy.
pub(super) fn origin_status(origin: ErrorOrigin) -> StatusCode {
    match origin {
        ErrorOrigin::Client => StatusCode::BAD_REQUEST,
        ErrorOrigin::Server => StatusCode::BAD_GATEWAY,
        ErrorOrigin::Proxy => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status of an error before anything has been sent.
///
/// The outcome of a call at the server is reported in the body with 200: clients in the field show the
/// JSON-RPC error of a 200, and an opaque transport error otherwise. `server/discover` is different: a client
/// takes the 200 of a probe for the server's own response, so an outage must have an error status.
fn error_status(call: &Call, error: &ErrorObject, call_error: Option<&CallError>) -> StatusCode {
    match call_error {
        Some(CallError::Unauthorized { status, .. }) => *status,
        Some(CallError::Forbidden { .. }) => StatusCode::FORBIDDEN,
        Some(call_error) if call.method == Method::Discover => origin_status(call_error.origin()),
        // 2026-07-28, *MissingRequiredClientCapabilityError*: on HTTP the status is 400.
        _ if error.code() == code::MISSING_CAPABILITY => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// The reply to a call with invalid parameters (`-32602`).
pub(super) fn invalid_params(call: &Call, reason: impl AsRef<str>) -> CallReply {
    refuse(call, StatusCode::OK, &ErrorObject::new(code::INVALID_PARAMS, reason))
}

/// A reply in which the proxy refuses a call with this HTTP status and error.
pub(super) fn refuse(call: &Call, status: StatusCode, error: &ErrorObject) -> CallReply {
    error_reply(call, status, error, RequestOutcome::Refused)
}

/// The error for a caller that has reached the rate limit with this configuration key. Counts a hit of the
/// limit.
pub(super) fn rate_limit_error(limit: &str) -> ErrorObject {
    Limit::record_hit_by_key(limit);
    ErrorObject::new(code::BUSY, format!("too many requests; the limit is {limit}"))
}

/// The reply to a call whose method the server does not serve.
pub(super) fn method_not_served(call: &Call) -> CallReply {
    let refusal = modern::method_not_found(call.id.clone(), &call.method);
    error_reply(call, refusal.status, &refusal.error, RequestOutcome::Refused)
}

/// Refuses a request about tasks (`tasks/*`, or a subscription to tasks) from a client that has not declared
/// the tasks extension.
pub(super) fn tasks_required_refusal(call: &Call) -> CallReply {
    refuse(call, StatusCode::BAD_REQUEST, &plan::tasks_required_error())
}

/// The refusal of a new call during shutdown, with `Retry-After`: the call was not sent to the server, and
/// another process may serve a retry.
pub(super) fn shutdown_refusal(call: &Call) -> CallReply {
    let mut reply = refuse(call, StatusCode::SERVICE_UNAVAILABLE, &shutdown_error());
    reply.headers.insert(header::RETRY_AFTER, RETRY_AFTER);
    reply.summary.outcome = RequestOutcome::ProxyFailed;
    reply
}

/// The error for a call that is refused during shutdown (`SHUTTING_DOWN`).
pub(super) fn shutdown_error() -> ErrorObject {
    ErrorObject::new(code::SHUTTING_DOWN, "the proxy is shutting down; the call was not sent")
}

/// The `Retry-After` of refusals during shutdown, in seconds: by then the process that replaces this one
/// accepts calls.
pub(super) const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// A reply with this result object (raw JSON).
pub(super) fn result_reply(call: &Call, result: &[u8]) -> CallReply {
    CallReply::new(StatusCode::OK, modern::success_response(&call.id, result), RequestOutcome::Result)
}

/// A reply with the handle of a task: `task_result` is the `CreateTaskResult`, and `commit` is confirmed once the
/// client has it.
pub(super) fn task_handle_reply(
    call: &Call,
    task_result: &[u8],
    task: TaskId,
    commit: Option<DeliveryCommit>,
) -> CallReply {
    let mut reply = result_reply(call, task_result);
    reply.commit = commit;
    reply.summary = AccessSummary { task: Some(task), ..AccessSummary::new(RequestOutcome::Task) };
    reply
}

/// A reply with this `input_required` result.
pub(super) fn input_required_reply(call: &Call, result: &[u8]) -> CallReply {
    let mut reply = result_reply(call, result);
    reply.summary.outcome = RequestOutcome::InputRequired;
    reply
}

/// The reply to a call that needs the task store while the store fails; the client may retry.
pub(super) fn store_failed_reply(call: &Call) -> CallReply {
    error_reply(call, StatusCode::OK, &store_error(), RequestOutcome::ProxyFailed)
}

/// The error for a request that needs the task store while the store fails.
pub(super) fn store_error() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, TaskAdmissionError::StoreFailed.to_string())
}

fn invalid_response_reply(call: &Call, reason: &str) -> CallReply {
    error_reply(call, StatusCode::OK, &invalid_response_error(reason), RequestOutcome::UpstreamFailed)
}

fn error_reply(call: &Call, status: StatusCode, error: &ErrorObject, outcome: RequestOutcome) -> CallReply {
    let summary = AccessSummary::failed(outcome, error);
    CallReply { summary, ..CallReply::new(status, error_body(call, error), outcome) }
}

fn invalid_response_error(reason: &str) -> ErrorObject {
    ErrorObject::new(code::UPSTREAM_INVALID, format!("invalid response from the server: {reason}"))
}

/// Whether the result says by its empty contents that the resource does not exist. Some legacy servers return
/// no error.
fn is_missing_resource(call: &Call, route: &Route, result: &Bytes) -> bool {
    route.empty_contents_is_error
        && call.method == Method::ResourcesRead
        && modern::has_empty_contents(result)
}

fn error_body(call: &Call, error: &ErrorObject) -> Bytes {
    modern::error_response(Some(&call.id), error)
}

// === impl CallReply ===

impl CallReply {
    /// Creates a reply without additional headers and without a delivery commit.
    pub(super) fn new(status: StatusCode, body: Bytes, outcome: RequestOutcome) -> Self {
        Self { status, headers: HeaderMap::new(), body, commit: None, summary: AccessSummary::new(outcome) }
    }
}

// === impl ReplyItem ===

impl From<CallReply> for ReplyItem {
    fn from(reply: CallReply) -> Self {
        Self::Reply(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics;
    use std::time::Duration;

    fn hits(key: &str) -> u64 {
        metrics::limit_snapshots().iter().find(|limit| limit.limit == key).expect("it is counted").hits
    }

    #[test]
    fn a_limit_that_failed_a_call_is_counted_once() {
        let lost = CallError::ProcessesInUse { limit: 1, after: Duration::from_secs(30) };
        let before = hits("upstream.instances");
        assert_eq!(record_call_error(&lost).code(), code::BUSY);
        assert_eq!(hits("upstream.instances"), before + 1);
        // Not counted again.
        assert_eq!(call_error_object(&lost).code(), code::BUSY);
        assert_eq!(hits("upstream.instances"), before + 1);
    }
}
