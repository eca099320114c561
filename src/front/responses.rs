//! The front's own error responses, as status and body. Refusals become HTTP here and nowhere else.
//!
//! A body is a JSON-RPC error response, with the request's id where it could be read. Each message names what
//! is wrong and the fix.

use super::{layers::access_entry::AccessEntry, reply::FrontBody};
use crate::{
    dialect::{
        legacy::{self, LegacyPost},
        modern::{self, RequestRefusal},
    },
    policy::{AccessDenial, TokenError},
    protocol::{ErrorObject, ErrorOrigin, RequestId, Revision, code, request_head::HeadError},
    proxy::AccessSummary,
    telemetry::Limit,
    upstream::CallError,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use std::time::Duration;

/// Reason to refuse a request; the text is the error message that its client gets.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusalReason {
    /// The head violates HTTP.
    #[error(transparent)]
    Head(HeadError),
    #[error("the content coding `{coding}` is not supported; send the body without `Content-Encoding`")]
    ContentCoding { coding: String },
    /// The access check refuses `Host` or `Origin`.
    #[error(transparent)]
    Access(AccessDenial),
    /// The request has no token, or an unknown one.
    #[error(transparent)]
    Unauthenticated(TokenError),
    /// The request is for OAuth metadata, while clients need a token of `access.tokens`.
    #[error(
        "nothing is served at `{path}`: clients use tokens from the operator (access.tokens), which no authorization server issues"
    )]
    NoMetadata { path: String },
    #[error("nothing is served at `{path}`; served here: {served}")]
    Path { path: String, served: String },
    /// The path serves only the methods of `allow`.
    #[error(
        "{method} is not allowed here, only {allow}; {} uses POST alone, and GET and DELETE belong to sessions of legacy revisions",
        Revision::V2026_07_28
    )]
    Method { method: Method, allow: &'static str },
    #[error("the body must be one JSON-RPC message; send `Content-Type: application/json`")]
    ContentType,
    #[error(
        "the response may be JSON or an event stream; send `Accept: application/json, text/event-stream`"
    )]
    Accept,
    #[error("the request is larger than {limit} bytes (limits.body_bytes)")]
    TooLarge { limit: usize },
    #[error("the request did not arrive within {limit:?} (timeouts.read_body)")]
    TooSlow { limit: Duration },
    /// The body ended early, or was not valid HTTP.
    #[error("the request was cut off before its end")]
    Broken,
    #[error("the request has more than {limit} headers (limits.headers)")]
    Headers { limit: usize },
    #[error("{limit} calls are in flight (limits.calls); try again")]
    Busy { limit: usize },
    #[error("request bodies use all of their {limit} bytes of memory (limits.body_memory); try again")]
    NoMemory { limit: usize },
    #[error(
        "loop: the request has passed `{path}` of this proxy before, as the upstream of that route leads back to it; set its `upstream.url` to the server itself"
    )]
    Loop { path: String },
    #[error("unknown session: it has ended, or belongs to another principal; open a new one with initialize")]
    Session,
    /// The message is not valid.
    #[error("{}", .0.error.message())]
    Message(RequestRefusal),
    /// The server's metadata could not be fetched.
    #[error("protected-resource metadata: {0}")]
    Metadata(CallError),
    /// The server's sign-in document or endpoint could not be reached.
    #[error("sign-in at the server: {0}")]
    SignIn(CallError),
}

/// The parts of an error response.
struct RefusalResponse {
    status: StatusCode,
    id: Option<RequestId>,
    error: ErrorObject,
    /// Who is at fault, for the access log.
    origin: ErrorOrigin,
    header: Option<(http::HeaderName, HeaderValue)>,
}

/// Builds the error response for a refusal, and records the refusal in the access log entry and the metrics.
pub(super) fn refuse(refusal: RefusalReason, entry: AccessEntry) -> Response<FrontBody> {
    let RefusalResponse { status, id, error, origin, header } = refusal.into_response();
    let body = modern::error_response(id.as_ref(), &error);
    let summary = AccessSummary::failed(origin.into(), &error);
    let mut response = json(status, body, summary, entry);
    response.headers_mut().extend(header);
    response
}

/// Refuses a legacy client's POST: with an error response for the id of each request, if there is any,
/// because some clients do not show HTTP errors to their callers.
pub(super) fn refuse_post(
    refusal: RefusalReason,
    post: &LegacyPost,
    mut entry: AccessEntry,
) -> Response<FrontBody> {
    entry.begin_relay(post);
    match &post.request_ids()[..] {
        [] => refuse(refusal, entry),
        ids => {
            let RefusalResponse { error, origin, .. } = refusal.into_response();
            let summary = AccessSummary::failed(origin.into(), &error);
            json(StatusCode::OK, legacy::error_responses(ids, &error), summary, entry)
        }
    }
}

/// Refuses a request in a session of another principal. The status is 404, because a client then opens
/// another session (2025-11-25, *Session Management*).
pub(super) fn refuse_session(post: &LegacyPost, mut entry: AccessEntry) -> Response<FrontBody> {
    entry.begin_relay(post);
    let RefusalResponse { status, error, origin, .. } = RefusalReason::Session.into_response();
    let summary = AccessSummary::failed(origin.into(), &error);
    json(status, legacy::error_responses(&post.request_ids(), &error), summary, entry)
}

/// Builds a response with a JSON body. The summary is recorded in the entry once hyper takes the body.
pub(super) fn json(
    status: StatusCode,
    body: Bytes,
    summary: AccessSummary,
    mut entry: AccessEntry,
) -> Response<FrontBody> {
    entry.set_status(status);
    let mut response = Response::new(FrontBody::whole(body, None, summary, entry));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Builds a response without a body, and completes the entry.
pub(super) fn empty(status: StatusCode, headers: HeaderMap, mut entry: AccessEntry) -> Response<FrontBody> {
    entry.set_status(status);
    entry.complete(AccessSummary::default());
    let mut response = Response::new(FrontBody::empty(entry));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

// === impl RefusalReason ===

impl RefusalReason {
    /// Returns the configured limit that was exceeded, if any.
    fn exceeded_limit(&self) -> Option<Limit> {
        match self {
            Self::TooLarge { .. } => Some(Limit::BodyBytes),
            Self::TooSlow { .. } => Some(Limit::ReadBody),
            Self::Headers { .. } => Some(Limit::Headers),
            Self::Busy { .. } => Some(Limit::Calls),
            Self::NoMemory { .. } => Some(Limit::BodyMemory),
            Self::Head(_)
            | Self::ContentCoding { .. }
            | Self::Access(_)
            | Self::Unauthenticated(_)
            | Self::NoMetadata { .. }
            | Self::Path { .. }
            | Self::Method { .. }
            | Self::ContentType
            | Self::Accept
            | Self::Broken
            | Self::Loop { .. }
            | Self::Session
            | Self::Message(_)
            | Self::Metadata(_)
            | Self::SignIn(_) => None,
        }
    }

    fn into_response(self) -> RefusalResponse {
        if let Some(limit) = self.exceeded_limit() {
            limit.record_hit();
        }
        let message = self.to_string();
        let response =
            |status, code, origin| RefusalResponse::new(status, ErrorObject::new(code, &message), origin);
        let invalid = |status| response(status, code::INVALID_REQUEST, ErrorOrigin::Client);
        match self {
            // The connection is closed, because its next bytes may not be a request.
            Self::Head(error) => {
                invalid(error.status()).with_header(CONNECTION, HeaderValue::from_static("close"))
            }
            Self::ContentCoding { .. } => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .with_header(ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            Self::Access(_) => invalid(StatusCode::FORBIDDEN),
            Self::Unauthenticated(error) => {
                response(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, ErrorOrigin::Client)
                    .with_header(WWW_AUTHENTICATE, error.challenge())
            }
            Self::NoMetadata { .. } | Self::Path { .. } | Self::Session => invalid(StatusCode::NOT_FOUND),
            Self::Method { allow, .. } => {
                invalid(StatusCode::METHOD_NOT_ALLOWED).with_header(ALLOW, HeaderValue::from_static(allow))
            }
            Self::ContentType => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::Accept => invalid(StatusCode::NOT_ACCEPTABLE),
            Self::TooLarge { .. } => invalid(StatusCode::PAYLOAD_TOO_LARGE),
            Self::TooSlow { .. } => invalid(StatusCode::REQUEST_TIMEOUT),
            Self::Headers { .. } => invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            Self::Broken => invalid(StatusCode::BAD_REQUEST),
            Self::Busy { .. } | Self::NoMemory { .. } => {
                response(StatusCode::SERVICE_UNAVAILABLE, code::BUSY, ErrorOrigin::Proxy)
                    .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Self::Loop { .. } => {
                response(StatusCode::LOOP_DETECTED, code::UPSTREAM_UNAVAILABLE, ErrorOrigin::Proxy)
            }
            Self::Message(RequestRefusal { status, id, error }) => {
                RefusalResponse { id, ..RefusalResponse::new(status, error, ErrorOrigin::Client) }
            }
            Self::Metadata(error) | Self::SignIn(error) => metadata_refusal(error, &message),
        }
    }
}

/// Returns the error for a call that ended without a reply, which is a fault of the proxy.
pub(super) fn no_response_error() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, "the call ended without a response; whether it ran is unknown")
}

/// Builds the refusal for a metadata or sign-in document that could not be fetched from the server's origin.
fn metadata_refusal(cause: CallError, message: &str) -> RefusalResponse {
    // No call was made, so no outcome is unknown.
    let code = match cause.code() {
        code::OUTCOME_UNKNOWN => code::UPSTREAM_UNAVAILABLE,
        code => code,
    };
    let (status, origin) = match &cause {
        _ if matches!(code, code::BUSY | code::SHUTTING_DOWN) => {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorOrigin::Proxy)
        }
        CallError::Unauthorized { status, .. } => (*status, ErrorOrigin::Server),
        CallError::Forbidden { .. } => (StatusCode::FORBIDDEN, ErrorOrigin::Server),
        CallError::ConnectTimeout(_) => (StatusCode::GATEWAY_TIMEOUT, ErrorOrigin::Server),
        _ if code == code::UPSTREAM_TIMEOUT => (StatusCode::GATEWAY_TIMEOUT, ErrorOrigin::Server),
        _ => (StatusCode::BAD_GATEWAY, ErrorOrigin::Server),
    };
    let error = ErrorObject::new(code, message);
    let challenge = match cause {
        CallError::Unauthorized { challenge, .. } => challenge,
        _ => None,
    };
    RefusalResponse {
        header: challenge.map(|value| (WWW_AUTHENTICATE, value)),
        ..RefusalResponse::new(status, error, origin)
    }
}

// === impl RefusalResponse ===

impl RefusalResponse {
    fn new(status: StatusCode, error: ErrorObject, origin: ErrorOrigin) -> Self {
        Self { status, id: None, error, origin, header: None }
    }

    fn with_header(mut self, name: http::HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }
}
