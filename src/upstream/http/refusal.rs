//! What an HTTP error says about a call.

use super::server::{error_body, refused, retry_after};
use crate::{
    protocol::{
        ErrorObject, Frame, Kind,
        splice::{Edit, Object},
    },
    upstream::{
        CallError,
        http1::Incoming,
        wire::{Refusal, is_ours},
    },
};
use http::StatusCode;

/// Reads an error's body and judges it. `has_id` is whether there is a session that the server can lose.
///
/// An error that answers this exchange is the call's, whatever id it carries: transports write
/// `null` or `"server-error"`. A 404 in a session means that the session is gone (2025-11-25,
/// *Session Management*), unless it is a JSON-RPC error for this very call.
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
    let Some(answer) = answer else {
        return match head.status {
            StatusCode::NOT_FOUND if has_id => Refusal::NoSession { not_served: true, words: Err(lost) },
            _ => Refusal::Lost(lost),
        };
    };
    match head.status {
        StatusCode::NOT_FOUND if has_id && !names(&answer, call) => {
            Refusal::NoSession { not_served: true, words: Ok(answer) }
        }
        // What servers after the SDKs' examples say of a session they have forgotten.
        StatusCode::BAD_REQUEST if has_id && !names(&answer, call) && is_about_session(&answer) => {
            Refusal::NoSession { not_served: false, words: Ok(answer) }
        }
        _ => Refusal::Answer(answer),
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

fn names(answer: &Frame, call: u64) -> bool {
    matches!(answer.kind(), Kind::Failure { id: Some(id), .. } if is_ours(id, call))
}

fn is_about_session(answer: &Frame) -> bool {
    let error = ErrorObject::of(answer);
    error.is_some_and(|error| error.message().to_ascii_lowercase().contains("session"))
}
