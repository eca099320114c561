//! The face of 2025-03-26 to 2025-11-25, in front of a server of the same era: what the client
//! sends is passed on, and what the server says comes back as it is.
//!
//! The session is the server's own, its id included; so are its streams and their event ids. This
//! side adds what its own front owes every request (access, limits, one access line) and leads a
//! challenge for credentials to our address. Everything else happens in [`Service::pass`].

use super::{
    Front,
    arrival::Answered,
    layers::{span, trace::Line},
    metadata::Address,
    reply::Body,
};
use crate::{
    dialect::legacy::{Post, SessionTag},
    protocol::{Frame, headers::SESSION_ID},
    proxy::{Passage, Passed, Passing, Service},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, Response, request::Parts};
use std::sync::Arc;

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
    head: Parts,
    Posted { body, message, post }: Posted,
    mut line: Line,
) -> BoxFuture<'static, Answered> {
    line.passes(&post);
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
        Ok(response)
    }
    .boxed()
}

/// Notes which session it is about.
fn tag(line: &mut Line, headers: &HeaderMap) {
    if let Some(session) = headers.get(&SESSION_ID) {
        line.in_session(SessionTag::of(session.as_bytes()));
    }
}
