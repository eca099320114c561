//! Ends the open streams of a client whose token a reload removes.
//!
//! A stream on which a client only listens (`GET`, `subscriptions/listen`) would otherwise last as long as
//! its client likes. Calls in flight are not affected.

use super::{SharedState, layers::access_entry::AccessEntry};
use crate::{
    dialect::modern,
    policy::TokenError,
    protocol::{ErrorObject, RequestId, code},
    proxy::{AccessSummary, BodyPiece, CallReply, LegacyResponse, ReplyItem, ReplyStream, ResponseBody},
    telemetry::RequestOutcome,
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::future::pending;

/// Resolves when the token of a request is removed from the configuration; for a request without a token,
/// when tokens are configured.
pub(super) type TokenRemoval = BoxFuture<'static, ()>;

/// Returns a future that resolves when the token of the request is removed.
pub(super) fn watch_removal(shared: &SharedState, entry: &AccessEntry) -> TokenRemoval {
    let (mut tokens, token) = (shared.tokens.subscribe(), entry.access_token().cloned());
    async move {
        if tokens.wait_for(|tokens| !tokens.still_accepts(token.as_deref())).await.is_err() {
            // The front has ended, and its streams end by themselves.
            pending().await
        }
    }
    .boxed()
}

/// Returns the messages of a `subscriptions/listen` stream, which ends with an error if its token is removed.
pub(super) fn end_listen_on_removal(
    mut removal: TokenRemoval,
    mut items: ReplyStream,
    id: RequestId,
) -> ReplyStream {
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
                    // End the subscriptions before the client gets the response.
                    drop(items);
                    yield ReplyItem::Reply(unauthorized_reply(&id));
                    return;
                }
            }
        }
    }
    .boxed()
}

/// Returns the response to a GET, whose stream ends if the token is removed. The client's next request then
/// gets 401.
pub(super) async fn end_get_on_removal(
    mut removal: TokenRemoval,
    relayed: BoxFuture<'static, LegacyResponse>,
) -> LegacyResponse {
    // Some servers send the head of a stream only with its first message.
    let response = tokio::select! {
        biased;
        () = &mut removal => return unauthorized_response(),
        passed = relayed => passed,
    };
    let ResponseBody::Stream(mut pieces) = response.body else { return response };
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
                    let summary = Some(AccessSummary::failed(RequestOutcome::Refused, &wrong_token_error()));
                    yield BodyPiece { summary, ..BodyPiece::end() };
                    return;
                }
            }
        }
    };
    LegacyResponse { body: ResponseBody::Stream(body.boxed()), ..response }
}

fn wrong_token_error() -> ErrorObject {
    ErrorObject::new(code::UNAUTHORIZED, TokenError::InvalidToken.to_string())
}

fn wrong_token_challenge() -> (header::HeaderName, HeaderValue) {
    (header::WWW_AUTHENTICATE, TokenError::InvalidToken.challenge())
}

fn unauthorized_reply(id: &RequestId) -> CallReply {
    let error = wrong_token_error();
    CallReply {
        status: StatusCode::UNAUTHORIZED,
        headers: HeaderMap::from_iter([wrong_token_challenge()]),
        body: modern::error_response(Some(id), &error),
        commit: None,
        summary: AccessSummary::failed(RequestOutcome::Refused, &error),
    }
}

/// Builds the response to a GET whose stream has not begun.
fn unauthorized_response() -> LegacyResponse {
    let error = wrong_token_error();
    let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    LegacyResponse {
        status: StatusCode::UNAUTHORIZED,
        headers: HeaderMap::from_iter([wrong_token_challenge(), json]),
        body: ResponseBody::Complete(
            modern::error_response(None, &error),
            AccessSummary::failed(RequestOutcome::Refused, &error),
        ),
    }
}
