//! Checks with the server whether a client's session exists.
//!
//! The proxy must not respond in the server's place in a session that has ended, or never existed
//! ([`SessionPresence`](crate::proxy::session)). For a session that is not known to exist, the proxy sends
//! the server a `ping` in the session.

use crate::{
    proxy::{
        AccessSummary, LegacyRequest, LegacyResponse, ResponseBody, route_context::RouteContext,
        session::SessionKey,
    },
    telemetry::RequestOutcome,
    upstream::RequestPurpose,
};
use http::Method;
use std::time::Duration;
use tokio::time::timeout;

/// The time in which a server has to confirm a session; after it the session is assumed to exist.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a server's refusal that is relayed, in bytes; a longer body is left out.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Returns the server's HTTP response if the server refuses the session of this request; `None` if the
/// session exists or its state is unknown. A server that cannot be reached proves nothing: the proxy's tasks
/// can still be fetched.
pub(super) async fn check_session(
    shared: &RouteContext,
    request: &LegacyRequest,
    session: Option<SessionKey>,
) -> Option<LegacyResponse> {
    let presence = &shared.sessions.presence;
    let key = session.filter(|key| !presence.is_known(*key))?;
    let id = shared.sessions.client_ids.next_proxy_id(session);
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    let ping = request.client_session().request(Method::POST, body.into(), RequestPurpose::Idempotent);
    let response = match timeout(PING_TIMEOUT, shared.forward(ping)).await {
        Ok(Ok(response)) if response.status.is_client_error() => response,
        // A server that does not respond in time is assumed to have the session, so that only one request
        // waits for the ping.
        Ok(Ok(_)) | Err(_) => {
            presence.insert(key);
            return None;
        }
        Ok(Err(_)) => return None,
    };
    let (status, headers) = (response.status, response.headers.clone());
    let body = response.collect(MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let summary = AccessSummary::new(RequestOutcome::ServerError);
    Some(LegacyResponse { status, headers, body: ResponseBody::Complete(body, summary) })
}
