//! Opening a session (2025-11-25, *Lifecycle*).

use bytes::Bytes;
use http::{HeaderValue, Method as HttpMethod, StatusCode};
use std::{future::poll_fn, sync::Arc};
use tokio::time::timeout;

use super::{
    CallError, Description,
    attribution::is_ours,
    group::Group,
    http1::{self, Reuse},
    listen, message,
    messages::{Messages, Opening},
    server::{self, Server},
    session::Session,
};
use crate::{
    dialect::raise,
    protocol::{ErrorObject, Kind, headers, splice::Object},
};

/// Says `initialize` with the newest legacy revision and goes on with the one the server chooses;
/// then opens the GET stream, because many servers put a call's questions there.
///
/// # Errors
/// What became of `initialize`; a server's own error keeps its words.
pub(super) async fn open(server: &Arc<Server>, group: &Arc<Group>) -> Result<Arc<Session>, CallError> {
    match attempt(server, group).await {
        // A kept connection that the server closed in this very moment. A handshake runs nothing of a
        // caller's, so it is begun anew, once.
        Err(CallError::Broken(_)) => attempt(server, group).await,
        other => other,
    }
}

async fn attempt(server: &Arc<Server>, group: &Arc<Group>) -> Result<Arc<Session>, CallError> {
    let limit = server.config.timeouts.first_byte;
    let (description, id) =
        timeout(limit, initialize(server, group)).await.unwrap_or(Err(CallError::FirstByteTimeout(limit)))?;
    let posting = server.posting(&group.identity.credentials);
    let session = Arc::new(Session::new(server.clone(), group, description, posting, id)?);
    if let Err(lost) = session.tell(message::INITIALIZED, Reuse::Proven).await {
        session.retire();
        return Err(lost);
    }
    listen::start(&session).await;
    Ok(session)
}

async fn initialize(
    server: &Arc<Server>,
    group: &Arc<Group>,
) -> Result<(Description, Option<HeaderValue>), CallError> {
    let number = server.next_id();
    let body = message::initialize(number, group.identity.capabilities.legacy());
    let lines = http1::lines(&server.posting(&group.identity.credentials));
    let response = server.taken(server.send(&HttpMethod::POST, &lines, &[], body)).await?;
    let id = response.headers().get(&headers::SESSION_ID).cloned();
    let status = response.status();
    match Opening::of(response, server.config.limits.result_bytes)? {
        Opening::Messages(messages) => Ok((answer(server, messages, number, status).await?, id)),
        Opening::Accepted => {
            Err(CallError::Invalid(format!("initialize was answered with HTTP {status} and no body")))
        }
        Opening::Refused(head, body) => {
            let body = server::error_body(body).await;
            Err(words(head.status, &body)
                .unwrap_or_else(|| server::refused(head.status, &head.headers, &body)))
        }
    }
}

/// The server's answer among what it says; notifications before it concern nobody yet.
async fn answer(
    server: &Arc<Server>,
    mut messages: Messages,
    number: u64,
    status: StatusCode,
) -> Result<Description, CallError> {
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
            server.drain_later(rest);
        }
        return Ok(description);
    }
}

/// The server's words, where an HTTP error carries a JSON-RPC error; not for refused credentials.
fn words(status: StatusCode, body: &Bytes) -> Option<CallError> {
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        return None;
    }
    let error = Object::read(body).ok()?.get("error")?;
    Some(refusal(status, &ErrorObject::from_raw(error)))
}

fn refusal(status: StatusCode, error: &ErrorObject) -> CallError {
    let detail = format!("initialize was refused: {} ({})", error.message(), error.code());
    if status.is_success() { CallError::Invalid(detail) } else { CallError::Status { status, detail } }
}

fn describe(result: &Bytes) -> Result<Description, CallError> {
    let invalid = |what: &str| CallError::Invalid(format!("the answer to initialize {what}"));
    let result = Object::read(result).map_err(|_| invalid("is not an object"))?;
    let empty = || Bytes::from_static(b"{}");
    let capabilities = result.get("capabilities").unwrap_or_else(empty);
    Ok(Description {
        version: result.string("protocolVersion").ok_or_else(|| invalid("names no protocolVersion"))?,
        has_tasks: Object::read(&capabilities).is_ok_and(|object| object.contains("tasks")),
        capabilities: raise::capabilities(&capabilities),
        server_info: result.get("serverInfo").unwrap_or_else(empty),
        instructions: result.get("instructions"),
    })
}
