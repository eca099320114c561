//! Checks with the server whether a client's session exists.
//!
//! The proxy must not respond in the server's place in a session that has ended, or never existed
//! ([`SessionPresence`](crate::proxy::session)). A session that is not known to exist is checked by a `ping`
//! in it.

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

/// How long a server may take to confirm a session.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes of a server's refusal that are relayed.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// The server's refusal, if it refuses the session of this request. A server that cannot be reached proves
/// nothing: the proxy's tasks can still be fetched.
pub(super) async fn check_session(
    shared: &RouteContext,
    passage: &LegacyRequest,
    session: Option<SessionKey>,
) -> Option<LegacyResponse> {
    let presence = &shared.sessions.presence;
    let key = session.filter(|key| !presence.is_known(*key))?;
    let id = shared.sessions.client_ids.next_of_ours(session);
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    let ping = passage.session().request(Method::POST, body.into(), RequestPurpose::Idempotent);
    let answer = match timeout(PING_TIMEOUT, shared.upstream.forward(ping)).await {
        Ok(Ok(answer)) if answer.status.is_client_error() => answer,
        // A server that is too busy to respond is assumed to have the session: one wait is enough.
        Ok(Ok(_)) | Err(_) => {
            presence.learn(key);
            return None;
        }
        Ok(Err(_)) => return None,
    };
    let (status, headers) = (answer.status, answer.headers.clone());
    let body = answer.collect(MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let account = AccessSummary::of(RequestOutcome::ServerError);
    Some(LegacyResponse { status, headers, body: ResponseBody::Whole(body, account) })
}
