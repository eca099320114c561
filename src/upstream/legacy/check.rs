//! Whether a session that has answered with an error is still there: a `ping` in it decides.
//!
//! A server that was started anew may answer every call in a session of before with HTTP 500, or with an error in a
//! 200. Such an answer may as well be the tool's own, so its call is not made again.

use http::HeaderMap;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::time::timeout;

use super::{message, session::Session};
use crate::{
    protocol::{ErrorObject, Frame, Kind, code},
    upstream::{
        CallError,
        wire::{Heard, Line, Refusal, Wire, is_ours},
    },
};

/// How long the answer to a `ping` is waited for; a session whose server is slower is kept.
const PING: Duration = Duration::from_secs(5);

/// Checks a session in the background, and retires it where its server does not know it. At most once a second for all
/// sessions of a server.
pub(super) fn check_later<W: Wire>(session: &Arc<Session<W>>) {
    // The session of a process is the process, and that of a client is the client's to open.
    if !W::IS_HTTP || session.is_clients || !session.server.may_check() {
        return;
    }
    let session = session.clone();
    let work = session.server.work.clone();
    work.spawn(async move {
        if !timeout(PING, is_there(&session)).await.unwrap_or(true) {
            tracing::info!(route = &*session.server.route, "the server does not know its session any more");
            session.server.offer.forget();
            session.retire();
        }
    });
}

/// Whether the server answers a `ping` in this session. One that cannot be reached has refused nothing.
async fn is_there<W: Wire>(session: &Arc<Session<W>>) -> bool {
    let id = session.server.next_id();
    let mut answer = session.line.send(message::ping(id), &HeaderMap::new());
    loop {
        match poll_fn(|cx| session.line.poll_answer(&mut answer, id, cx)).await {
            Heard::Served => {}
            Heard::Message(frame) => match frame.kind() {
                Kind::Success { id: of, .. } if is_ours(of, id) => {
                    session.line.finish(answer);
                    return true;
                }
                Kind::Failure { .. } => return only_pings_are_refused(&frame),
                Kind::Success { .. } => {}
                Kind::Request { .. } | Kind::Notification { .. } => session.hear(frame),
            },
            Heard::Refused(Refusal::Answer(frame) | Refusal::NoSession { words: Ok(frame), .. }) => {
                return only_pings_are_refused(&frame);
            }
            Heard::Refused(Refusal::NoSession { words: Err(_), .. }) => return false,
            Heard::Refused(Refusal::Lost(lost)) => {
                return !matches!(lost, CallError::Status { status, .. } if status.as_u16() == 500);
            }
            Heard::Elsewhere | Heard::Gone(_) | Heard::Lost(_) => return true,
        }
    }
}

/// Whether a server that answers a `ping` like this has the session, and only no `ping`.
fn only_pings_are_refused(answer: &Frame) -> bool {
    ErrorObject::of(answer).is_some_and(|error| error.code() == code::METHOD_NOT_FOUND)
}
