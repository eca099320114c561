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
    mut entry: AccessEntry,
) -> BoxFuture<'static, ResponseResult> {
    let is_bound = is_session_bound(service.route(), &entry);
    if is_bound && !unseal_session(&front, &entry, &mut head.headers) {
        return ready(Ok(refuse_session(&post, entry))).boxed();
    }
    entry.begin_relay(&post);
    entry.record_arguments(message.as_ref().and_then(Frame::params));
    let span = span::begin_post_span(&front.tracer, &post, message.as_ref(), entry.method(), &head.headers);
    let trace = entry.set_span(span);
    set_session_tag(&mut entry, &head.headers);
    let address = PublicAddress::from_request(&front, &head, entry.connection());
    let request = LegacyRequest {
        principal: entry.principal(),
        rollout_membership: service.route().rollout_membership(
            &head.headers,
            entry.token_name(),
            entry.principal(),
        ),
        method: head.method,
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        message,
        post,
        keep_alive: service.route().wait_policy.comment_after,
        trace,
    };
    let is_get = request.method == Method::GET;
    let relayed = service.relay(request);
    let relayed = match is_get {
        true => {
            removed_token::end_get_on_removal(removed_token::watch_removal(&front, &entry), relayed).boxed()
        }
        false => relayed,
    };
    async move {
        let LegacyResponse { status, mut headers, body } = relayed.await;
        set_session_tag(&mut entry, &headers);
        if is_bound && let Some(id) = headers.get_mut(&SESSION_ID) {
            *id = front.sessions.load().seal(entry.principal(), id);
        }
        address.rewrite_challenges(&front.services, service.route(), &mut headers);
        entry.set_status(status);
        let body = match body {
            ResponseBody::Complete(bytes, summary) if bytes.is_empty() => {
                entry.complete(summary);
                FrontBody::empty(entry)
            }
            ResponseBody::Complete(bytes, summary) => FrontBody::whole(bytes, None, summary, entry),
            ResponseBody::TaskEnd(bytes, task_end) => {
                let (summary, commit) = *task_end;
                let commit = (commit, Arc::clone(entry.connection()));
                FrontBody::whole(bytes, Some(commit), summary, entry)
            }
            ResponseBody::Stream(pieces) => FrontBody::relayed(pieces, entry),
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
fn is_session_bound(route: &Route, entry: &AccessEntry) -> bool {
    let is_set_by_header = match &route.principal {
        PrincipalSource::Authorization => false,
        PrincipalSource::Header(name) => name != AUTHORIZATION,
    };
    is_set_by_header || entry.token_name().is_some()
}

/// Replaces the client's session id by the server's own. Returns false if the session belongs to another
/// principal, and true also for a request without a session.
fn unseal_session(front: &Front, entry: &AccessEntry, headers: &mut HeaderMap) -> bool {
    let Some(sealed) = headers.get(&SESSION_ID) else { return true };
    let Some(id) = front.sessions.load().open(entry.principal(), sealed) else { return false };
    // Insertion removes further headers of that name: the server might read another one.
    headers.insert(&SESSION_ID, id);
    true
}

/// Records the session that `headers` name, if any, in the access log entry.
fn set_session_tag(entry: &mut AccessEntry, headers: &HeaderMap) {
    if let Some(session) = headers.get(&SESSION_ID) {
        entry.set_session(SessionTag::for_session(session.as_bytes()));
    }
}
