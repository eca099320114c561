//! Ends the open streams of a client whose token a reload removes.
//!
//! A stream that is only listened to (`GET`, `subscriptions/listen`) would else go on for as long as its client
//! likes. Calls in flight end as they began.

use super::{Lasting, layers::trace::Line};
use crate::{
    dialect::modern,
    policy::NotKnown,
    protocol::{ErrorObject, Id, code},
    proxy::{AccessSummary, Item, Items, Passed, Passing, Piece, Reply},
    telemetry::Outcome,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::future::pending;

/// Resolves when the token that a request was admitted with is no longer in the configuration; for a request
/// that was admitted without one, when there are tokens.
pub(super) type Removal = BoxFuture<'static, ()>;

/// Watches the token that the request of this line was admitted with.
pub(super) fn removal(lasting: &Lasting, line: &Line) -> Removal {
    let (mut tokens, shown) = (lasting.tokens.subscribe(), line.shown_token().cloned());
    async move {
        if tokens.wait_for(|tokens| !tokens.still_admit(shown.as_deref())).await.is_err() {
            // The front has ended, and its streams end by themselves.
            pending().await
        }
    }
    .boxed()
}

/// The messages of a `subscriptions/listen` stream, and an error as the last where its token is removed.
pub(super) fn end_listening(mut removal: Removal, mut items: Items, id: Id) -> Items {
    async_stream::stream! {
        loop {
            let next = tokio::select! {
                biased;
                () = &mut removal => Err(()),
                item = items.next() => Ok(item),
            };
            match next {
                Ok(Some(item)) => yield item,
                Ok(None) => return,
                Err(()) => {
                    // The subscriptions end before the client is answered.
                    drop(items);
                    yield Item::Reply(refused(&id));
                    return;
                }
            }
        }
    }
    .boxed()
}

/// The answer to a GET. Its stream ends where the token is removed, and the client meets 401 when it comes back.
pub(super) async fn end_stream(mut removal: Removal, passing: BoxFuture<'static, Passed>) -> Passed {
    // Some servers hold back the head of a stream until there is something to say.
    let passed = tokio::select! {
        biased;
        () = &mut removal => return unauthorized(),
        passed = passing => passed,
    };
    let Passing::Pieces(mut pieces) = passed.body else { return passed };
    let body = async_stream::stream! {
        loop {
            let next = tokio::select! {
                biased;
                () = &mut removal => None,
                piece = pieces.next() => Some(piece),
            };
            match next {
                Some(Some(piece)) => yield piece,
                Some(None) => return,
                None => {
                    drop(pieces);
                    let account = Some(AccessSummary::failed(Outcome::Refused, &error()));
                    yield Piece { account, ..Piece::end() };
                    return;
                }
            }
        }
    };
    Passed { body: Passing::Pieces(body.boxed()), ..passed }
}

fn error() -> ErrorObject {
    ErrorObject::new(code::UNAUTHORIZED, NotKnown::WrongToken.to_string())
}

fn challenge() -> (header::HeaderName, HeaderValue) {
    (header::WWW_AUTHENTICATE, NotKnown::WrongToken.challenge())
}

fn refused(id: &Id) -> Reply {
    let error = error();
    Reply {
        status: StatusCode::UNAUTHORIZED,
        headers: HeaderMap::from_iter([challenge()]),
        body: modern::error_response(Some(id), &error),
        commit: None,
        account: AccessSummary::failed(Outcome::Refused, &error),
    }
}

/// The answer to a GET whose stream has not begun.
fn unauthorized() -> Passed {
    let error = error();
    let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Passed {
        status: StatusCode::UNAUTHORIZED,
        headers: HeaderMap::from_iter([challenge(), json]),
        body: Passing::Whole(
            modern::error_response(None, &error),
            AccessSummary::failed(Outcome::Refused, &error),
        ),
    }
}
