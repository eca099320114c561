//! Ends legacy clients' sessions, for the client and at the server.
//!
//! A client ends its session by a DELETE (2025-11-25, *Session Management*), which is normally relayed. If
//! the server must not receive the DELETE, or not yet, the proxy [responds](respond_locally): from then on
//! the session is closed for its client, and [`delete_at_server`] ends it at the server later.
//!
//! Some servers must never receive a DELETE ([`Revision::survives_delete`](crate::protocol::Revision)). The
//! newest revision that the server itself offers decides: a client may be older than its server.

use crate::{
    protocol::{ErrorObject, code},
    proxy::{
        AccessSummary, LegacyRequest, LegacyResponse, relay,
        relay::legacy_http,
        reply::call_error_outcome,
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

/// Handles the DELETE of a client's session: relays it to the server, or closes the session in the proxy
/// only.
pub(super) async fn delete_session(
    shared: Arc<RouteContext>,
    client: LegacyClient,
    request: LegacyRequest,
) -> LegacyResponse {
    let Some(key) = client.session else {
        return relay::forward(shared, client, request, None, (None, None)).await;
    };
    // Tasks in the session continue: the server receives the DELETE after the last task has ended.
    let start_deferred_delete = || {
        let (shared, session) = (Arc::clone(&shared), request.client_session());
        move || {
            let stopping = shared.stopping.clone();
            stopping.spawn(async move { delete_at_server(&shared, session).await });
        }
    };
    if shared.sessions.in_flight.end_session(key, start_deferred_delete) {
        return respond_locally(&shared, key);
    }
    match shared.server_survives_delete(client.principal, &request.headers).await {
        Ok(true) => {}
        Ok(false) => return respond_locally(&shared, key),
        Err(error) => return relay::transport_error(&error, AccessSummary::new(call_error_outcome(&error))),
    }
    let ending_session = shared.sessions.pending_requests.begin_delete(key);
    let response = relay::forward(Arc::clone(&shared), client, request, None, (None, None)).await;
    shared.sessions.presence.note_response(&client, true, &response);
    if response.status.is_success() {
        ending_session.confirm();
    }
    response
}

/// Responds to a client's DELETE in the server's place. Later requests in this session are
/// [refused](closed_session_response).
fn respond_locally(shared: &RouteContext, key: SessionKey) -> LegacyResponse {
    shared.sessions.pending_requests.close_session(key);
    shared.sessions.presence.remove(key);
    legacy_http::empty_response(StatusCode::OK)
}

/// Ends a session at its server after the proxy has responded to the client's DELETE. A server that does not
/// survive a DELETE, or cannot be reached, expires the session by itself.
async fn delete_at_server(shared: &RouteContext, mut session: ClientSession) {
    if !matches!(shared.server_survives_delete(session.principal, &session.headers).await, Ok(true)) {
        return;
    }
    session.headers.remove(CONTENT_TYPE);
    session.headers.remove(ACCEPT);
    let delete = session.request(Method::DELETE, Bytes::new(), RequestPurpose::Notify);
    if let Err(error) = shared.forward(delete).await {
        tracing::debug!(error = %error, "the DELETE of a client's session could not be sent");
    }
}

/// Builds the 404 response to a request in a session that its client has ended (2025-11-25, *Session
/// Management*).
pub(super) fn closed_session_response(request: &LegacyRequest) -> LegacyResponse {
    let error = ErrorObject::new(
        code::INVALID_REQUEST,
        "the session was ended by its client: open a new session with initialize",
    );
    let summary = AccessSummary::failed(RequestOutcome::Disconnected, &error);
    legacy_http::refuse_requests(StatusCode::NOT_FOUND, &request.post.request_ids(), &error, summary)
}
