//! Check of a session after an error response: a `ping` decides whether the server still knows it.
//!
//! A restarted server may answer every call in an old session with HTTP 500, or with an error in a 200. The
//! error may as well be the tool's own, so the call is not sent again.

use http::HeaderMap;
use std::{future::poll_fn, sync::Arc, time::Duration};
use tokio::time::timeout;

use super::{message, session::UpstreamSession};
use crate::{
    protocol::{ErrorObject, Frame, Kind, code},
    upstream::{
        CallError,
        own_ids::is_answer_to,
        transport::{CallEvent, CallRefusal, SessionKind, Transport, TransportSession},
    },
};

/// Time limit of the response to a `ping`. The session of a slower server is not retired.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks a session with a `ping` in the background, and retires it if its server does not know it. At most
/// one check a second is made for all sessions of a server.
pub(super) fn check_later<W: Transport>(session: &Arc<UpstreamSession<W>>) {
    // The session of a process ends with the process, and a client's session is the client's to open.
    if W::SESSIONS == SessionKind::Process || session.is_client_session || !session.server.claim_check() {
        return;
    }
    let session = session.clone();
    let work = session.server.work.clone();
    work.spawn(async move {
        if !timeout(PING_TIMEOUT, is_known_to_server(&session)).await.unwrap_or(true) {
            tracing::info!(route = &*session.server.route, "the server no longer knows its session");
            session.server.remembered_offer.clear();
            session.retire();
        }
    });
}

/// Whether the server answers a `ping` in this session. An unreachable server has not rejected it.
async fn is_known_to_server<W: Transport>(session: &Arc<UpstreamSession<W>>) -> bool {
    let id = session.server.next_id();
    let mut handle = session.transport.send_call(message::ping(id), &HeaderMap::new());
    loop {
        match poll_fn(|cx| session.transport.poll_call(&mut handle, id, cx)).await {
            CallEvent::Accepted => {}
            CallEvent::Message(frame) => match frame.kind() {
                Kind::Success { id: response_id, .. } if is_answer_to(response_id, id) => {
                    session.transport.finish(handle);
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

/// Whether this answer to a `ping` means that the server knows the session and does not support `ping`.
fn is_ping_unsupported(answer: &Frame) -> bool {
    ErrorObject::from_message(answer).is_some_and(|error| error.code() == code::METHOD_NOT_FOUND)
}
