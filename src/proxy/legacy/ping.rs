//! Whether a client's session is there, asked of its server.
//!
//! What is answered here in the server's place must not be answered in a session that has ended, or never was
//! ([`SessionPresence`](crate::proxy::session)). So a session that has not been seen to be there is asked for, by a
//! `ping` in it.

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

/// How long a server may take to say whether a session is there.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The most that is passed on of a server's refusal, in bytes.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// What the server says of the session of this request, where that is a refusal. A server that
/// cannot be reached says nothing: what is kept here can still be asked for.
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
        // A server that is too busy to answer has the session for all we know: waiting for it once
        // is enough.
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
