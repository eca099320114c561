//! What an HTTP error says about a call.

use std::sync::Arc;

use super::{CallError, attribution::is_ours, http1::Incoming, mailbox::Said, server, session::Session};
use crate::protocol::{ErrorObject, Frame, Kind};
use http::StatusCode;

/// What follows from an HTTP error.
pub(super) enum Verdict {
    /// It is the answer: a JSON-RPC error.
    Answer(Frame),
    Lost(CallError),
    /// The session does not exist any more.
    NoSession {
        /// The status says so by itself: the call was certainly not served.
        not_served: bool,
        /// What it is, if that cannot be helped.
        said: Said,
    },
}

/// Reads an error's body and judges it.
///
/// An error that answers this exchange is the call's, whatever id it carries: transports write
/// `null` or `"server-error"`. A 404 in a session means that the session is gone (2025-11-25,
/// *Session Management*), unless it is a JSON-RPC error for this very call.
pub(super) async fn read(
    session: Arc<Session>,
    call: u64,
    head: http::response::Parts,
    body: Incoming,
) -> Verdict {
    let body = server::error_body(body).await;
    let lost = server::refused(head.status, &head.headers, &body);
    if matches!(lost, CallError::Unauthorized { .. } | CallError::Forbidden { .. }) {
        return Verdict::Lost(lost);
    }
    let answer = Frame::parse(body).ok().filter(|frame| matches!(frame.kind(), Kind::Failure { .. }));
    let Some(answer) = answer else {
        return match head.status {
            StatusCode::NOT_FOUND if session.has_id() => {
                Verdict::NoSession { not_served: true, said: Said::Lost(lost) }
            }
            _ => Verdict::Lost(lost),
        };
    };
    match head.status {
        StatusCode::NOT_FOUND if session.has_id() && !names(&answer, call) => {
            Verdict::NoSession { not_served: true, said: Said::Response(answer) }
        }
        // What servers after the SDKs' examples say of a session they have forgotten.
        StatusCode::BAD_REQUEST if session.has_id() && !names(&answer, call) && is_about_session(&answer) => {
            Verdict::NoSession { not_served: false, said: Said::Response(answer) }
        }
        _ => Verdict::Answer(answer),
    }
}

fn names(answer: &Frame, call: u64) -> bool {
    matches!(answer.kind(), Kind::Failure { id: Some(id), .. } if is_ours(id, call))
}

fn is_about_session(answer: &Frame) -> bool {
    let Kind::Failure { error, .. } = answer.kind() else { return false };
    ErrorObject::from_raw(error.clone()).message().to_ascii_lowercase().contains("session")
}
