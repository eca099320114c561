//! The face of 2025-03-26 to 2025-11-25, in front of a server of the same era: what the client
//! sends is passed on, and what the server says comes back as it is.
//!
//! The session is the server's own; so are its streams and their event ids. This side adds what its own
//! front owes every request (access, limits, one access line), leads a challenge for credentials to our address,
//! and binds the session's id to the principal where the server cannot check who calls. Everything else happens in
//! [`Service::pass`].

use super::{
    Front,
    answer::refuse_session,
    arrival::Answered,
    layers::{span, trace::Line},
    metadata::Address,
    removed_token,
    reply::Body,
};
use crate::{
    dialect::legacy::{Post, SessionTag},
    policy::{PrincipalSource, Route},
    protocol::{Frame, headers::SESSION_ID},
    proxy::{Passage, Passed, Passing, Service},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Method, Response, header::AUTHORIZATION, request::Parts};
use std::{future::ready, sync::Arc};

/// What a legacy client has posted, read once.
#[derive(Default)]
pub(super) struct Posted {
    pub(super) body: Bytes,
    /// As in [`Passage`].
    pub(super) message: Option<Frame>,
    pub(super) post: Post,
}

/// Passes one request on, with the messages that were read from its body, and answers with what comes back.
///
/// Boxed: the future of a modern call, of which there may be many waiting, should not be larger for it.
pub(super) fn pass(
    front: Arc<Front>,
    service: Arc<dyn Service>,
    mut head: Parts,
    Posted { body, message, post }: Posted,
    mut line: Line,
) -> BoxFuture<'static, Answered> {
    let is_bound = binds_sessions(service.route(), &line);
    if is_bound && !open_session(&front, &line, &mut head.headers) {
        return ready(Ok(refuse_session(&post, line))).boxed();
    }
    line.passes(&post);
    line.shows_arguments(message.as_ref().and_then(Frame::params));
    let span = span::of_post(&front.tracer, &post, message.as_ref(), line.method(), &head.headers);
    let trace = line.spans(span);
    tag(&mut line, &head.headers);
    let address = Address::of(&front, &head, line.connection());
    let passage = Passage {
        principal: line.principal(),
        standing: service.route().standing(&head.headers, line.token(), line.principal()),
        method: head.method,
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        message,
        post,
        keep_alive: service.route().held.comments,
        trace,
    };
    let is_listened_to = passage.method == Method::GET;
    let passing = service.pass(passage);
    let passing = match is_listened_to {
        true => removed_token::end_stream(removed_token::removal(&front, &line), passing).boxed(),
        false => passing,
    };
    async move {
        let Passed { status, mut headers, body } = passing.await;
        tag(&mut line, &headers);
        if is_bound && let Some(id) = headers.get_mut(&SESSION_ID) {
            *id = front.sessions.now().seal(line.principal(), id);
        }
        address.put_in_challenge(&front.services, service.route(), &mut headers);
        line.status(status);
        let body = match body {
            Passing::Whole(bytes, account) if bytes.is_empty() => {
                line.answered(account);
                Body::empty(line)
            }
            Passing::Whole(bytes, account) => Body::whole(bytes, None, account, line),
            Passing::TaskEnd(bytes, of_task) => {
                let (account, commit) = *of_task;
                let commit = (commit, Arc::clone(line.connection()));
                Body::whole(bytes, Some(commit), account, line)
            }
            Passing::Pieces(pieces) => Body::passed(pieces, line),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
    .boxed()
}

/// Whether the ids of sessions on a route are bound to their principal: where that is known to the proxy alone. Where
/// it is the `Authorization` that passes, the server judges who may use a session, and a refreshed token is another
/// principal.
fn binds_sessions(route: &Route, line: &Line) -> bool {
    let is_header = match &route.principal {
        PrincipalSource::Authorization => false,
        PrincipalSource::Header(name) => name != AUTHORIZATION,
    };
    is_header || line.token().is_some()
}

/// Puts the server's own id in the place of the one that the client was given. False where that is not this
/// principal's. A request may belong to no session.
fn open_session(front: &Front, line: &Line, headers: &mut HeaderMap) -> bool {
    let Some(sealed) = headers.get(&SESSION_ID) else { return true };
    let Some(id) = front.sessions.now().open(line.principal(), sealed) else { return false };
    // Of several the server might read another.
    headers.insert(&SESSION_ID, id);
    true
}

/// Notes which session it is about.
fn tag(line: &mut Line, headers: &HeaderMap) {
    if let Some(session) = headers.get(&SESSION_ID) {
        line.in_session(SessionTag::of(session.as_bytes()));
    }
}
