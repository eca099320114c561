//! The end of a legacy client's session: what its client is told, and what its server is.
//!
//! A client ends its session by a DELETE (2025-11-25, *Session Management*), which passes like
//! anything else where nothing speaks against it. Where the server must not hear of it, or not yet,
//! it is [answered here](respond_locally): the session is over for its client from then on, whatever the
//! server still knows of it, and [`delete_at_server`] ends it there when its time has come.
//!
//! Some servers must never hear of it ([`Revision::survives_delete`](crate::protocol::Revision)). What a server
//! is, is judged by the newest revision it offers itself: a client may be older than its server.

use crate::{
    dialect::legacy::ClientMessage,
    protocol::{ErrorObject, Method as RpcMethod, code},
    proxy::{
        AccessSummary, LegacyRequest, LegacyResponse, legacy_http, relay,
        reply::outcome_of,
        route_context::RouteContext,
        session::{LegacyClient, SessionKey},
    },
    telemetry::RequestOutcome,
    upstream::{ClientSession, RequestPurpose},
};
use bytes::Bytes;
use http::{
    Method, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use std::sync::Arc;

/// The client ends its session.
pub(super) async fn delete_session(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    passage: LegacyRequest,
) -> LegacyResponse {
    let Some(key) = client.session else {
        return relay::forward(shared, client, passage, None, (None, None)).await;
    };
    // The tasks in it go on: its server hears of the end after the last of them.
    let end_later = || {
        let (shared, session) = (Arc::clone(&shared), passage.session());
        move || {
            let stopping = shared.stopping.clone();
            stopping.spawn(async move { delete_at_server(&shared, session).await });
        }
    };
    if shared.sessions.in_flight.end_session(key, end_later) {
        return respond_locally(&shared, key);
    }
    match shared.server_survives_delete(client.principal, &passage.headers).await {
        Ok(true) => {}
        Ok(false) => return respond_locally(&shared, key),
        Err(lost) => return relay::transport_error(&lost, AccessSummary::of(outcome_of(&lost))),
    }
    let leaving = shared.sessions.pending_requests.begin_end(key);
    let passed = relay::forward(Arc::clone(&shared), client, passage, None, (None, None)).await;
    shared.sessions.presence.note_response(&client, true, &passed);
    if passed.status.is_success() {
        leaving.confirm();
    }
    passed
}

/// Answers a client's DELETE in the server's place. What the client asks in this session from now on is
/// [refused](closed_session_reply).
fn respond_locally(shared: &RouteContext, key: SessionKey) -> LegacyResponse {
    shared.sessions.pending_requests.close_session(key);
    shared.sessions.presence.forget(key);
    legacy_http::empty_response(StatusCode::OK)
}

/// Ends a session at its server, whose client has been told so before. A server that does not survive
/// that, or cannot be reached, is left to forget the session by itself.
async fn delete_at_server(shared: &RouteContext, mut session: ClientSession) {
    if !matches!(shared.server_survives_delete(session.principal, &session.headers).await, Ok(true)) {
        return;
    }
    session.headers.remove(CONTENT_TYPE);
    session.headers.remove(ACCEPT);
    let told = session.request(Method::DELETE, Bytes::new(), RequestPurpose::Notify);
    if let Err(lost) = shared.upstream.forward(told).await {
        tracing::debug!(error = %lost, "the end of a client's session could not be told");
    }
}

/// What a request is answered with whose session its client has ended here (2025-11-25, *Session
/// Management*); nothing for any other, nor for a handshake, which begins another.
pub(super) fn closed_session_reply(
    shared: &RouteContext,
    client: &LegacyClient,
    passage: &LegacyRequest,
) -> Option<LegacyResponse> {
    let ended = &shared.sessions.pending_requests;
    let begins =
        matches!(&passage.post.messages[..], [ClientMessage::Request { method: RpcMethod::Initialize, .. }]);
    client.session.filter(|key| !begins && ended.is_closed(*key)).map(|_| {
        let error = ErrorObject::new(
            code::INVALID_REQUEST,
            "the session was ended by its client: begin another with initialize",
        );
        let account = AccessSummary::failed(RequestOutcome::Disconnected, &error);
        legacy_http::refused(StatusCode::NOT_FOUND, &passage.post.request_ids(), &error, account)
    })
}
