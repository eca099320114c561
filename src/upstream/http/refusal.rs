//! Classification of an HTTP error that answers a call.

use super::server::{error_body, retry_after, status_error};
use crate::{
    protocol::{
        ErrorObject, Frame, Kind, code,
        splice::{JsonObject, ObjectEdit},
    },
    upstream::{CallError, http1::IncomingBody, own_ids::is_answer_to, transport::CallRefusal},
};
use http::StatusCode;

/// Reads and classifies an HTTP error response to a call. `has_id` says whether there is a session that the
/// server can lose.
///
/// An error that answers the exchange belongs to the call, whatever its id: transports send `null` or
/// `"server-error"`. Servers answer 404 for an unknown session (2025-11-25, *Session Management*), or 400,
/// 410 or 503. A JSON-RPC error for this call or for its method is the call's own.
pub(super) async fn read_refusal(
    has_id: bool,
    call: u64,
    head: http::response::Parts,
    body: IncomingBody,
) -> CallRefusal {
    let body = error_body(body).await;
    let error = status_error(head.status, &head.headers, &body);
    if matches!(error, CallError::Unauthorized { .. } | CallError::Forbidden { .. }) {
        return CallRefusal::Lost(error);
    }
    let response = Frame::parse(body).ok().filter(|frame| matches!(frame.kind(), Kind::Failure { .. }));
    let response = response.map(|response| match retry_after(&head.headers) {
        Some(after_value) => with_retry_after(response, &after_value),
        None => response,
    });
    let is_certain = has_id && matches!(head.status, StatusCode::NOT_FOUND | StatusCode::GONE);
    match response {
        Some(response) if !is_session_status(head.status) || is_about_call(&response, call) => {
            CallRefusal::Response(response)
        }
        Some(response) => CallRefusal::NoSession { is_certain, response: Ok(response) },
        None if is_session_status(head.status) => CallRefusal::NoSession { is_certain, response: Err(error) },
        None => CallRefusal::Lost(error),
    }
}

/// Adds the value of `Retry-After` to a JSON-RPC error response, because tasks and event streams do not carry
/// the header.
fn with_retry_after(response: Frame, after_value: &str) -> Frame {
    let edited = ErrorObject::from_message(&response).and_then(|error| {
        let object = JsonObject::read(response.as_bytes()).ok()?;
        let mut edit = ObjectEdit::new(&object);
        edit.set("error", error.with_retry_after(after_value).as_bytes().clone());
        Frame::parse(edit.apply()).ok()
    });
    edited.unwrap_or(response)
}

/// Whether servers in use send this status if they do not know the session of a request.
fn is_session_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Whether an error response is about the call rather than its session: it has the call's id and does not
/// mention a session, or the method is unknown.
fn is_about_call(response: &Frame, call: u64) -> bool {
    let error = ErrorObject::from_message(response);
    let is_unknown_method = error.as_ref().is_some_and(|error| error.code() == code::METHOD_NOT_FOUND);
    is_unknown_method
        || has_call_id(response, call) && !error.is_some_and(|error| is_about_session(&error.message()))
}

fn has_call_id(response: &Frame, call: u64) -> bool {
    matches!(response.kind(), Kind::Failure { id: Some(id), .. } if is_answer_to(id, call))
}

fn is_about_session(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["session", "initializ", "initialis"].iter().any(|text| message.contains(text))
}
