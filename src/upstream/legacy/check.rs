//! Whether a session that has answered with an error is still there: a `ping` in it decides.
//!
//! A server that was started anew may answer every call in a session of before with HTTP 500, or with an error in a
//! 200. Such an answer may as well be the tool's own, so its call is not made again.

use http::HeaderMap;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::time::timeout;

use super::{message, session::UpstreamSession};
use crate::{
    protocol::{ErrorObject, Frame, Kind, code},
    upstream::{
        CallError,
        transport::{CallEvent, CallRefusal, Transport, TransportSession, is_answer_to},
    },
};

/// How long the answer to a `ping` is waited for; a session whose server is slower is kept.
const PING: Duration = Duration::from_secs(5);

/// Checks a session in the background, and retires it where its server does not know it. At most once a second for all
/// sessions of a server.
pub(super) fn check_later<W: Transport>(session: &Arc<UpstreamSession<W>>) {
    // The session of a process is the process, and that of a client is the client's to open.
    if !W::IS_HTTP || session.is_clients || !session.server.claim_check() {
        return;
    }
    let session = session.clone();
    let work = session.server.work.clone();
    work.spawn(async move {
        if !timeout(PING, is_known_to_server(&session)).await.unwrap_or(true) {
            tracing::info!(route = &*session.server.route, "the server does not know its session any more");
            session.server.offer.clear();
            session.retire();
        }
    });
}

/// Whether the server answers a `ping` in this session. One that cannot be reached has refused nothing.
async fn is_known_to_server<W: Transport>(session: &Arc<UpstreamSession<W>>) -> bool {
    let id = session.server.next_id();
    let mut answer = session.transport.send_call(message::ping(id), &HeaderMap::new());
    loop {
        match poll_fn(|cx| session.transport.poll_call(&mut answer, id, cx)).await {
            CallEvent::Accepted => {}
            CallEvent::Message(frame) => match frame.kind() {
                Kind::Success { id: of, .. } if is_answer_to(of, id) => {
                    session.transport.finish(answer);
                    return true;
                }
                Kind::Failure { .. } => return is_ping_unsupported(&frame),
                Kind::Success { .. } => {}
                Kind::Request { .. } | Kind::Notification { .. } => session.receive_off_stream(frame),
            },
            CallEvent::Refused(
                CallRefusal::Response(frame) | CallRefusal::NoSession { response: Ok(frame), .. },
            ) => {
                return is_ping_unsupported(&frame);
            }
            CallEvent::Refused(CallRefusal::NoSession { response: Err(_), .. }) => return false,
            CallEvent::Refused(CallRefusal::Lost(lost)) => {
                return !matches!(lost, CallError::Status { status, .. } if status.as_u16() == 500);
            }
            CallEvent::AnsweredOffStream | CallEvent::SessionGone(_) | CallEvent::Lost(_) => return true,
        }
    }
}

/// Whether a server that answers a `ping` like this has the session, and only no `ping`.
fn is_ping_unsupported(answer: &Frame) -> bool {
    ErrorObject::of(answer).is_some_and(|error| error.code() == code::METHOD_NOT_FOUND)
}
