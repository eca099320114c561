//! The face of 2026-07-28: every request is a POST of its own.

use super::{
    Front,
    answer::{self, Refusal, refuse},
    face::{self, Older},
    layers::{
        principal::{credentials, detached, principal},
        trace::Line,
    },
    metadata::Address,
    receive::receive,
    reply::{self, Answering, Body},
    stack::Arrival,
};
use crate::{
    dialect::{
        Call, Caller,
        modern::{self, Read},
    },
    protocol::{
        Capabilities, Era,
        accept::{EVENT_STREAM, JSON, accepts, is_media},
    },
    proxy::Service,
};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body::Body as HttpBody;
use std::sync::Arc;

/// Answers one POST on a route.
pub(super) async fn serve<B>(front: &Front, service: Arc<dyn Service>, arrival: Arrival<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
{
    let Arrival { request, mut line } = arrival;
    let (head, body) = request.into_parts();
    let route = Arc::clone(service.route());
    let principal = principal(&route, &head.headers);
    line.by(principal);
    let (call, caller, address) = match read(front, &head, body, &mut line).await {
        Ok(Reading::Request(call, capabilities)) => {
            let address = Address::of(front, &head, line.connection());
            let caller = Caller {
                principal,
                credentials: credentials(&route, &head.headers),
                capabilities: Arc::new(capabilities),
                era: Era::Modern,
            };
            (*call, caller, address)
        }
        Ok(Reading::Notification) => return answer::empty(StatusCode::ACCEPTED, HeaderMap::new(), line),
        Err(refusal) => return refuse(refusal, line),
    };
    // The head is a part of the connection's read buffer; the call may take hours.
    drop(head);
    line.asks(&call);
    let answering = Answering { id: call.id.clone(), line, keep_alive: front.keep_alive };
    let items = service.call(call, caller);
    let mut response = reply::respond(items, answering).await;
    address.put_in_challenge(&front.services, &route, response.headers_mut());
    response
}

/// What a POST turned out to be.
enum Reading {
    Request(Box<Call>, Capabilities),
    Notification,
}

/// Reads the message of a POST.
async fn read<B>(front: &Front, head: &Parts, body: B, line: &mut Line) -> Result<Reading, Refusal>
where
    B: HttpBody<Data = Bytes>,
{
    let headers = &head.headers;
    if !is_media(headers.get(CONTENT_TYPE), JSON) {
        return Err(Refusal::ContentType);
    }
    if !(accepts(headers, JSON) && accepts(headers, EVENT_STREAM)) {
        return Err(Refusal::Accept);
    }
    let body = receive(front, body).await?;
    if let Some(Older { id, speaks }) = face::older(headers, &body) {
        line.client_is(Era::Legacy);
        return Err(Refusal::Legacy { id, requested: speaks });
    }
    line.client_is(Era::Modern);
    match modern::read(body, headers, front.limits.depth).map_err(Refusal::Message)? {
        Read::Request(mut call, capabilities) => {
            call.headers.values_mut().for_each(|value| *value = detached(value));
            Ok(Reading::Request(call, capabilities))
        }
        Read::Notification => Ok(Reading::Notification),
    }
}
