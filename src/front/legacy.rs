//! Requests of 2025-03-26 to 2025-11-25 for a server of the same era: both directions are relayed unchanged.
//!
//! The session is the server's own; so are its streams and their event ids. The front adds its checks
//! (access, limits, access log), replaces the server's address in a challenge for credentials, and binds the
//! session id to the principal where the server cannot check that. [`RouteService::relay`] does the rest.

use super::{
    Front,
    incoming::ResponseResult,
    layers::{access_entry::AccessEntry, span},
    metadata::PublicAddress,
    removed_token,
    reply::FrontBody,
    responses::refuse_session,
};
use crate::{
    dialect::legacy::{LegacyPost, SessionTag},
    policy::{PrincipalSource, Route},
    protocol::{Frame, headers::SESSION_ID},
    proxy::{LegacyRequest, LegacyResponse, ResponseBody, RouteService},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Method, Response, header::AUTHORIZATION, request::Parts};
use std::{future::ready, sync::Arc};

/// A legacy client's POST, read once.
#[derive(Default)]
pub(super) struct LegacyRequestBody {
    pub(super) body: Bytes,
    /// The single message of the body; `None` for a batch, an unreadable or an empty body.
    pub(super) message: Option<Frame>,
    /// What the proxy reads of the messages.
    pub(super) post: LegacyPost,
}

/// Relays one request, with the messages of its body, and its response.
///
/// The future is boxed, so that it does not enlarge that of a modern call.
pub(super) fn relay(
    front: Arc<Front>,
    service: Arc<dyn RouteService>,
    mut head: Parts,
    LegacyRequestBody { body, message, post }: LegacyRequestBody,
    mut line: AccessEntry,
) -> BoxFuture<'static, ResponseResult> {
    let is_bound = is_session_bound(service.route(), &line);
    if is_bound && !unseal_session(&front, &line, &mut head.headers) {
        return ready(Ok(refuse_session(&post, line))).boxed();
    }
    line.begin_relay(&post);
    line.record_arguments(message.as_ref().and_then(Frame::params));
    let span = span::post_span(&front.tracer, &post, message.as_ref(), line.method(), &head.headers);
    let trace = line.set_span(span);
    set_session_tag(&mut line, &head.headers);
    let address = PublicAddress::of(&front, &head, line.connection());
    let passage = LegacyRequest {
        principal: line.principal(),
        rollout_membership: service.route().rollout_membership(&head.headers, line.token(), line.principal()),
        method: head.method,
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        message,
        post,
        keep_alive: service.route().wait_policy.comment_after,
        trace,
    };
    let is_listened_to = passage.method == Method::GET;
    let passing = service.relay(passage);
    let passing = match is_listened_to {
        true => removed_token::end_stream(removed_token::removal(&front, &line), passing).boxed(),
        false => passing,
    };
    async move {
        let LegacyResponse { status, mut headers, body } = passing.await;
        set_session_tag(&mut line, &headers);
        if is_bound && let Some(id) = headers.get_mut(&SESSION_ID) {
            *id = front.sessions.load().seal(line.principal(), id);
        }
        address.rewrite_challenges(&front.services, service.route(), &mut headers);
        line.set_status(status);
        let body = match body {
            ResponseBody::Complete(bytes, account) if bytes.is_empty() => {
                line.complete(account);
                FrontBody::empty(line)
            }
            ResponseBody::Complete(bytes, account) => FrontBody::whole(bytes, None, account, line),
            ResponseBody::TaskEnd(bytes, of_task) => {
                let (account, commit) = *of_task;
                let commit = (commit, Arc::clone(line.connection()));
                FrontBody::whole(bytes, Some(commit), account, line)
            }
            ResponseBody::Stream(pieces) => FrontBody::relayed(pieces, line),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
    .boxed()
}

/// Whether the session ids of a route are bound to the principal, which they are where only the proxy knows
/// the principal. Where `Authorization` is forwarded, the server checks who may use a session, and a
/// refreshed token is another principal.
fn is_session_bound(route: &Route, line: &AccessEntry) -> bool {
    let is_header = match &route.principal {
        PrincipalSource::Authorization => false,
        PrincipalSource::Header(name) => name != AUTHORIZATION,
    };
    is_header || line.token().is_some()
}

/// Replaces the client's session id by the server's own. Returns false if the session belongs to another
/// principal, and true also for a request without a session.
fn unseal_session(front: &Front, line: &AccessEntry, headers: &mut HeaderMap) -> bool {
    let Some(sealed) = headers.get(&SESSION_ID) else { return true };
    let Some(id) = front.sessions.load().open(line.principal(), sealed) else { return false };
    // Insertion removes further headers of that name: the server might read another one.
    headers.insert(&SESSION_ID, id);
    true
}

/// Records the session that `headers` name, if any, in the access log entry.
fn set_session_tag(line: &mut AccessEntry, headers: &HeaderMap) {
    if let Some(session) = headers.get(&SESSION_ID) {
        line.set_session(SessionTag::for_session(session.as_bytes()));
    }
}
