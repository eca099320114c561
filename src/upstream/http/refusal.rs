//! Meaning of an HTTP error for a call.

use super::server::{error_body, retry_after, status_error};
use crate::{
    protocol::{
        ErrorObject, Frame, Kind, code,
        splice::{JsonObject, ObjectEdit},
    },
    upstream::{
        CallError,
        http1::IncomingBody,
        transport::{CallRefusal, is_answer_to},
    },
};
use http::StatusCode;

/// Reads and classifies an HTTP error. `has_id` is whether there is a session that the server can lose.
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
    let lost = status_error(head.status, &head.headers, &body);
    if matches!(lost, CallError::Unauthorized { .. } | CallError::Forbidden { .. }) {
        return CallRefusal::Lost(lost);
    }
    let answer = Frame::parse(body).ok().filter(|frame| matches!(frame.kind(), Kind::Failure { .. }));
    let answer = answer.map(|answer| match retry_after(&head.headers) {
        Some(after) => with_retry_after(answer, &after),
        None => answer,
    });
    let is_certain = has_id && matches!(head.status, StatusCode::NOT_FOUND | StatusCode::GONE);
    match answer {
        Some(answer) if !is_session_status(head.status) || is_of_call(&answer, call) => {
            CallRefusal::Response(answer)
        }
        Some(answer) => CallRefusal::NoSession { is_certain, response: Ok(answer) },
        None if is_session_status(head.status) => CallRefusal::NoSession { is_certain, response: Err(lost) },
        None => CallRefusal::Lost(lost),
    }
}

/// Adds the value of `Retry-After` to the JSON-RPC error, because tasks and event streams do not carry the
/// header.
fn with_retry_after(answer: Frame, after: &str) -> Frame {
    let edited = ErrorObject::of(&answer).and_then(|error| {
        let object = JsonObject::read(answer.as_bytes()).ok()?;
        let mut edit = ObjectEdit::new(&object);
        edit.set("error", error.with_retry_after(after).as_bytes().clone());
        Frame::parse(edit.apply()).ok()
    });
    edited.unwrap_or(answer)
}

/// Whether servers in use refuse a call with this status if they do not know the session.
fn is_session_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Whether an error is about the call: it has its id and does not mention a session, or the method is
/// unknown.
fn is_of_call(answer: &Frame, call: u64) -> bool {
    let error = ErrorObject::of(answer);
    let is_of_method = error.as_ref().is_some_and(|error| error.code() == code::METHOD_NOT_FOUND);
    is_of_method
        || is_for_call(answer, call) && !error.is_some_and(|error| is_about_session(&error.message()))
}

fn is_for_call(answer: &Frame, call: u64) -> bool {
    matches!(answer.kind(), Kind::Failure { id: Some(id), .. } if is_answer_to(id, call))
}

fn is_about_session(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["session", "initializ", "initialis"].iter().any(|word| message.contains(word))
}
