//! The face of 2026-07-28: every request is a POST of its own.
//!
//! What a POST's message turns out to be from a legacy client goes on to [`legacy`].

use super::{
    Front,
    answer::{self, Refusal, refuse},
    face::{self, Spoken},
    layers::{
        principal::{credentials, principal},
        trace::Line,
    },
    legacy,
    metadata::Address,
    receive::receive,
    reply::{self, Answering, Body},
    stack::{Answered, Arrival},
};
use crate::{
    dialect::{
        self, Call, Caller, detached,
        legacy::Post,
        modern::{self, Read, Refused},
    },
    policy::Route,
    protocol::{
        Capabilities, Era, Heartbeat, Id,
        accept::{EVENT_STREAM, JSON, accepts, is_media},
    },
    proxy::{AccessSummary, Items, KeepAlive, Service},
};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body::Body as HttpBody;
use std::{future::Future, sync::Arc};

/// Answers one POST on a route.
pub(super) fn serve<B>(
    front: Arc<Front>,
    service: Arc<dyn Service>,
    arrival: Arrival<B>,
    turned_away: Option<usize>,
) -> impl Future<Output = Answered> + use<B>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    let Arrival { request, mut line } = arrival;
    let (head, body) = request.into_parts();
    let principal = principal(service.route(), &head.headers);
    line.by(principal);
    async move {
        if let Some(limit) = turned_away {
            return Ok(turn_away(&front, &head, body, line, limit).await);
        }
        let asked = match read(&front, &head, body, &mut line).await {
            Ok(Reading::Request(call, capabilities)) => {
                let caller = Caller {
                    principal,
                    credentials: credentials(service.route(), &head.headers),
                    capabilities: Arc::new(capabilities),
                };
                ask(&front, &*service, &head, *call, caller, &mut line)
            }
            Ok(Reading::Legacy(post, body)) => {
                let sent = legacy::Sent { post, body };
                return Ok(legacy::pass(front, service, head, sent, line).await);
            }
            Ok(Reading::TooDeep(post, error)) => {
                return Ok(refuse_legacy(&post, Refusal::Message(error), line));
            }
            Ok(Reading::Notification) => {
                return Ok(answer::empty(StatusCode::ACCEPTED, HeaderMap::new(), line));
            }
            Err(refusal) => return Ok(refuse(refusal, line)),
        };
        // The head is a part of the connection's read buffer; the call may take hours.
        drop(head);
        let Asked { id, items, ladder, address } = asked;
        let clock = Arc::clone(&front.clock);
        let mut response = reply::respond(items, Answering { id, line, ladder, clock }).await;
        address.put_in_challenge(&front.services, service.route(), response.headers_mut());
        Ok(response)
    }
}

/// The most that is read of a request that there is no place for, in bytes.
const TURNED_AWAY: usize = 64 << 10;

/// Answers a request that there is no place for: a legacy client by the ids of what it waits for.
async fn turn_away<B>(front: &Front, head: &Parts, body: B, line: Line, limit: usize) -> Response<Body>
where
    B: HttpBody<Data = Bytes>,
{
    let busy = Refusal::Busy { limit };
    let Ok(body) = receive(front, body, TURNED_AWAY).await else { return refuse(busy, line) };
    match face::spoken(&head.headers, &body) {
        Spoken::Legacy(post) => refuse_legacy(&post, busy, line),
        Spoken::Modern => refuse(busy, line),
    }
}

/// Refuses what a legacy client sent: by the ids of what it waits for, where it waits. Some clients
/// show their callers no HTTP error.
fn refuse_legacy(post: &Post, refusal: Refusal, mut line: Line) -> Response<Body> {
    line.passes(post);
    match &post.waiting()[..] {
        [] => refuse(refusal, line),
        waiting => {
            let (error, outcome) = refusal.told();
            let body = dialect::legacy::refusal(waiting, &error);
            let account = AccessSummary::failed(outcome, &error);
            answer::json(StatusCode::OK, body, account, line)
        }
    }
}

/// A call on its way.
struct Asked {
    id: Id,
    items: Items,
    ladder: KeepAlive,
    address: Address,
}

/// Hands a call to the service.
fn ask(
    front: &Front,
    service: &dyn Service,
    head: &Parts,
    call: Call,
    caller: Caller,
    line: &mut Line,
) -> Asked {
    line.asks(&call);
    Asked {
        id: call.id.clone(),
        ladder: ladder(front, service.route(), &call, &caller),
        address: Address::of(front, head, line.connection()),
        items: service.call(call, caller),
    }
}

/// What the client is told while it waits. One that can be given a task is told of progress there.
fn ladder(front: &Front, route: &Route, call: &Call, caller: &Caller) -> KeepAlive {
    let began = front.clock.now();
    if !call.method.may_ask() {
        return KeepAlive::of_comments(route.held.comments, began);
    }
    let token = call.progress_token.as_deref().filter(|_| !caller.capabilities.declares_tasks());
    let heartbeat = token.map(|token| Heartbeat::new(Bytes::copy_from_slice(token), true));
    KeepAlive::new(route.held, heartbeat, began)
}

/// What a POST turned out to be.
enum Reading {
    Request(Box<Call>, Capabilities),
    Notification,
    /// The messages of a legacy client, and the body they were read from.
    Legacy(Post, Bytes),
    /// The same, nested deeper than the limit.
    TooDeep(Post, Refused),
}

/// Reads the message of a POST.
async fn read<B>(front: &Front, head: &Parts, body: B, line: &mut Line) -> Result<Reading, Refusal>
where
    B: HttpBody<Data = Bytes>,
{
    let headers = &head.headers;
    let body = receive(front, body, front.limits.body_bytes).await?;
    // First of all: what a legacy client must send is for its server to say.
    if let Spoken::Legacy(post) = face::spoken(headers, &body) {
        return Ok(match modern::check_depth(&body, front.limits.depth) {
            Ok(()) => Reading::Legacy(post, body),
            Err(refused) => Reading::TooDeep(post, refused),
        });
    }
    line.client_is(Era::Modern);
    if !is_media(headers.get(CONTENT_TYPE), JSON) {
        return Err(Refusal::ContentType);
    }
    if !(accepts(headers, JSON) && accepts(headers, EVENT_STREAM)) {
        return Err(Refusal::Accept);
    }
    match modern::read(body, headers, front.limits.depth).map_err(Refusal::Message)? {
        Read::Request(mut call, capabilities) => {
            call.headers.values_mut().for_each(|value| *value = detached(value));
            Ok(Reading::Request(call, capabilities))
        }
        Read::Notification => Ok(Reading::Notification),
    }
}
