//! What an HTTP error says about a call.

use super::server::{error_body, refused, retry_after};
use crate::{
    protocol::{
        ErrorObject, Frame, Kind, code,
        splice::{Edit, Object},
    },
    upstream::{
        CallError,
        http1::Incoming,
        wire::{Refusal, is_ours},
    },
};
use http::StatusCode;

/// Reads the body of an error and judges it. `has_id` is whether there is a session that the server can lose.
///
/// An error that answers this exchange is the call's, whatever id it carries: transports write
/// `null` or `"server-error"`. Servers that do not know a session any more answer 404 (2025-11-25, *Session
/// Management*), 400, 410 or 503. A JSON-RPC error for this very call, or for its method, is the call's own.
pub(super) async fn read(has_id: bool, call: u64, head: http::response::Parts, body: Incoming) -> Refusal {
    let body = error_body(body).await;
    let lost = refused(head.status, &head.headers, &body);
    if matches!(lost, CallError::Unauthorized { .. } | CallError::Forbidden { .. }) {
        return Refusal::Lost(lost);
    }
    let answer = Frame::parse(body).ok().filter(|frame| matches!(frame.kind(), Kind::Failure { .. }));
    let answer = answer.map(|answer| match retry_after(&head.headers) {
        Some(after) => with_retry_after(answer, &after),
        None => answer,
    });
    let is_certain = has_id && matches!(head.status, StatusCode::NOT_FOUND | StatusCode::GONE);
    match answer {
        Some(answer) if !may_mean_no_session(head.status) || is_of_call(&answer, call) => {
            Refusal::Answer(answer)
        }
        Some(answer) => Refusal::NoSession { is_certain, words: Ok(answer) },
        None if may_mean_no_session(head.status) => Refusal::NoSession { is_certain, words: Err(lost) },
        None => Refusal::Lost(lost),
    }
}

/// The same error with what its response says of when to try again, which the header alone does not bring to tasks
/// and event streams.
fn with_retry_after(answer: Frame, after: &str) -> Frame {
    let edited = ErrorObject::of(&answer).and_then(|error| {
        let object = Object::read(answer.as_bytes()).ok()?;
        let mut edit = Edit::new(&object);
        edit.set("error", error.with_retry_after(after).as_bytes().clone());
        Frame::parse(edit.apply()).ok()
    });
    edited.unwrap_or(answer)
}

/// Whether servers in the field refuse a call like this in a session that they do not know.
fn may_mean_no_session(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Whether an error is about the call: it names it and no session, or its method is not served.
fn is_of_call(answer: &Frame, call: u64) -> bool {
    let error = ErrorObject::of(answer);
    let is_of_method = error.as_ref().is_some_and(|error| error.code() == code::METHOD_NOT_FOUND);
    is_of_method || names(answer, call) && !error.is_some_and(|error| is_about_session(&error.message()))
}

fn names(answer: &Frame, call: u64) -> bool {
    matches!(answer.kind(), Kind::Failure { id: Some(id), .. } if is_ours(id, call))
}

fn is_about_session(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["session", "initializ", "initialis"].iter().any(|word| message.contains(word))
}
