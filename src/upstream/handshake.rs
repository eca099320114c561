//! Opening a session (2025-11-25, *Lifecycle*).

use bytes::Bytes;
use http::{HeaderValue, Method as HttpMethod, StatusCode};
use std::{future::poll_fn, sync::Arc};
use tokio::time::timeout;

use super::{
    Description, Lost,
    attribution::is_ours,
    client,
    group::Group,
    listen, message,
    messages::{Messages, Opening},
    peer::{self, Peer},
    session::Session,
};
use crate::protocol::{ErrorObject, Kind, headers, splice::Object};

/// Says `initialize` with the newest legacy revision and goes on with the one the server chooses;
/// then opens the GET stream, because many servers put a call's questions there.
///
/// # Errors
/// What became of `initialize`; a server's own error keeps its words.
pub(super) async fn open(peer: &Arc<Peer>, group: &Arc<Group>) -> Result<Arc<Session>, Lost> {
    match attempt(peer, group).await {
        // A kept connection that the server closed in this very moment. A handshake runs nothing of a
        // caller's, so it is begun anew, once.
        Err(Lost::Broken(_)) => attempt(peer, group).await,
        other => other,
    }
}

async fn attempt(peer: &Arc<Peer>, group: &Arc<Group>) -> Result<Arc<Session>, Lost> {
    let limit = peer.config.timeouts.first_byte;
    let (description, id) =
        timeout(limit, initialize(peer, group)).await.unwrap_or(Err(Lost::FirstByteTimeout(limit)))?;
    let posting = peer.posting(&group.identity.credentials);
    let session = Arc::new(Session::new(peer.clone(), group, description, posting, id)?);
    if let Err(lost) = session.tell(message::INITIALIZED).await {
        session.retire();
        return Err(lost);
    }
    listen::start(&session).await;
    Ok(session)
}

async fn initialize(
    peer: &Arc<Peer>,
    group: &Arc<Group>,
) -> Result<(Description, Option<HeaderValue>), Lost> {
    let number = peer.next_id();
    let body = message::initialize(number, group.identity.capabilities.legacy());
    let lines = client::lines(&peer.posting(&group.identity.credentials));
    let response = peer.taken(peer.send(&HttpMethod::POST, &lines, &[], body)).await?;
    let id = response.headers().get(&headers::SESSION_ID).cloned();
    let status = response.status();
    match Opening::of(response, peer.config.limits.result_bytes)? {
        Opening::Messages(messages) => Ok((answer(peer, messages, number, status).await?, id)),
        Opening::Accepted => {
            Err(Lost::Invalid(format!("initialize was answered with HTTP {status} and no body")))
        }
        Opening::Refused(head, body) => {
            let body = peer::error_body(body).await;
            Err(words(head.status, &body).unwrap_or_else(|| peer::refused(head.status, &head.headers, &body)))
        }
    }
}

/// The server's answer among what it says; notifications before it concern nobody yet.
async fn answer(
    peer: &Arc<Peer>,
    mut messages: Messages,
    number: u64,
    status: StatusCode,
) -> Result<Description, Lost> {
    loop {
        let frame = poll_fn(|cx| messages.poll_next(cx)).await?;
        let description = match frame.kind() {
            Kind::Success { id, result } if is_ours(id, number) => describe(result)?,
            Kind::Failure { error, .. } => {
                let error = ErrorObject::from_raw(error.clone());
                return Err(refusal(status, &error));
            }
            Kind::Success { .. } | Kind::Request { .. } | Kind::Notification { .. } => continue,
        };
        if let Some(rest) = messages.into_rest() {
            peer.drain_later(rest);
        }
        return Ok(description);
    }
}

/// The server's words, where an HTTP error carries a JSON-RPC error; not for refused credentials.
fn words(status: StatusCode, body: &Bytes) -> Option<Lost> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = Object::read(body).ok()?.get("error")?;
    Some(refusal(status, &ErrorObject::from_raw(error)))
}

fn refusal(status: StatusCode, error: &ErrorObject) -> Lost {
    let detail = format!("initialize was refused: {} ({})", error.message(), error.code());
    if status.is_success() { Lost::Invalid(detail) } else { Lost::Status { status, detail } }
}

fn describe(result: &Bytes) -> Result<Description, Lost> {
    let invalid = |what: &str| Lost::Invalid(format!("the answer to initialize {what}"));
    let result = Object::read(result).map_err(|_| invalid("is not an object"))?;
    let empty = || Bytes::from_static(b"{}");
    Ok(Description {
        version: result.string("protocolVersion").ok_or_else(|| invalid("names no protocolVersion"))?,
        capabilities: result.get("capabilities").unwrap_or_else(empty),
        server_info: result.get("serverInfo").unwrap_or_else(empty),
        instructions: result.get("instructions"),
    })
}
