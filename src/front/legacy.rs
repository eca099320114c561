//! The face of 2025-03-26 to 2025-11-25, in front of a server of the same era: what the client
//! sends is passed on, and what the server says comes back as it is.
//!
//! The session is the server's own, its id included; so are its streams and their event ids. This
//! side adds what its own front owes every request (access, limits, one access line) and leads a
//! challenge for credentials to our address. Everything else happens in [`Service::pass`].

use super::{
    Front,
    layers::{principal::principal, trace::Line},
    metadata::Address,
    reply::Body,
    stack::{Answered, Arrival},
};
use crate::{
    dialect::legacy::{Post, SessionTag},
    protocol::headers::SESSION_ID,
    proxy::{Passage, Passed, Passing, Service},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Response, request::Parts};
use std::sync::Arc;

/// What a POST brought.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) post: Post,
    pub(super) body: Bytes,
}

/// Passes on a GET, which listens or resumes, or a DELETE, which ends the session.
///
/// Boxed, like all of this face: the future of a modern call, of which there may be many waiting,
/// should not be larger for it.
pub(super) fn serve<B>(
    front: Arc<Front>,
    service: Arc<dyn Service>,
    arrival: Arrival<B>,
) -> BoxFuture<'static, Answered> {
    let Arrival { request, mut line } = arrival;
    // What a body would mean here nobody has said.
    let (head, _body) = request.into_parts();
    line.by(principal(service.route(), &head.headers));
    pass(front, service, head, Sent::default(), line).map(Ok).boxed()
}

/// Passes one request on and answers with what comes back.
pub(super) fn pass(
    front: Arc<Front>,
    service: Arc<dyn Service>,
    head: Parts,
    sent: Sent,
    mut line: Line,
) -> BoxFuture<'static, Response<Body>> {
    let Sent { post, body } = sent;
    line.passes(&post);
    tag(&mut line, &head.headers);
    let address = Address::of(&front, &head, line.connection());
    let passage = Passage {
        principal: line.principal(),
        method: head.method,
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        post,
        keep_alive: service.route().held.comments,
    };
    let passing = service.pass(passage);
    async move {
        let Passed { status, mut headers, body } = passing.await;
        tag(&mut line, &headers);
        address.put_in_challenge(&front.services, service.route(), &mut headers);
        line.status(status);
        let body = match body {
            Passing::Whole(bytes, account) if bytes.is_empty() => {
                line.answered(account);
                Body::empty(line)
            }
            Passing::Whole(bytes, account) => Body::whole(bytes, None, account, line),
            Passing::Pieces(pieces) => Body::passed(pieces, line),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
    .boxed()
}

/// Notes which session it is about.
fn tag(line: &mut Line, headers: &HeaderMap) {
    if let Some(session) = headers.get(&SESSION_ID) {
        line.in_session(SessionTag::of(session.as_bytes()));
    }
}
