//! The front's own refusals, as status and body. The one place where they become either.
//!
//! A body is a JSON-RPC error response, with the request's id where it could be read. Each message
//! names the thing that is wrong and the way out.

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

/// Why the front answers a request itself, in the words that its client gets.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusalReason {
    /// What HTTP itself demands of a head.
    #[error(transparent)]
    Head(HeadError),
    #[error("a body with the content coding `{coding}` is not read here; send it without `Content-Encoding`")]
    ContentCoding { coding: String },
    /// `Host` or `TextOrigin`.
    #[error(transparent)]
    Access(AccessDenial),
    /// No token, or a wrong one.
    #[error(transparent)]
    Unauthenticated(TokenError),
    /// Metadata of OAuth, where clients are known by tokens of ours.
    #[error(
        "nothing is served at `{path}`: clients are known by tokens that the operator gives out (access.tokens), and no authorization server has others"
    )]
    NoMetadata { path: String },
    #[error("nothing is served at `{path}`; served here: {served}")]
    Path { path: String, served: String },
    /// The path is served, but by `allow` only.
    #[error(
        "{method} is not served here, only {allow}; {} is spoken over POST alone, and GET and DELETE belong to sessions of older revisions",
        Revision::V2026_07_28
    )]
    Method { method: Method, allow: &'static str },
    #[error("the body must be one JSON-RPC message; send `Content-Type: application/json`")]
    ContentType,
    #[error("an answer may be either; send `Accept: application/json, text/event-stream`")]
    Accept,
    #[error("the request is larger than {limit} bytes (limits.body_bytes)")]
    TooLarge { limit: usize },
    #[error("the request did not arrive within {limit:?} (timeouts.read_body)")]
    TooSlow { limit: Duration },
    /// Or its body was not valid HTTP.
    #[error("the request broke off before its end")]
    Broken,
    #[error("the request has more than {limit} headers (limits.headers)")]
    Headers { limit: usize },
    #[error("all {limit} calls that may be in flight are (limits.calls); try again")]
    Busy { limit: usize },
    #[error(
        "the bodies of other requests take the {limit} bytes there are for them (limits.body_memory); try again"
    )]
    NoMemory { limit: usize },
    #[error(
        "the request has passed `{path}` of this proxy before: the upstream of that route leads back to it; name the server itself in its `upstream.url`"
    )]
    Loop { path: String },
    #[error(
        "the session is not known: it has ended, or belongs to another principal; begin another with initialize"
    )]
    Session,
    /// What the message says is wrong.
    #[error("{}", .0.error.message())]
    Message(RequestRefusal),
    /// It could not be had from the server.
    #[error("protected-resource metadata: {0}")]
    Metadata(CallError),
    /// What a client signs in with could not be had from the server.
    #[error("sign-in at the server: {0}")]
    SignIn(CallError),
}

/// The whole answer.
struct RefusalResponse {
    status: StatusCode,
    id: Option<RequestId>,
    error: ErrorObject,
    fault: ErrorOrigin,
    header: Option<(http::HeaderName, HeaderValue)>,
}

/// Answers with a refusal.
pub(super) fn refuse(refusal: RefusalReason, line: AccessEntry) -> Response<FrontBody> {
    let RefusalResponse { status, id, error, fault, header } = refusal.into_response();
    let body = modern::error_response(id.as_ref(), &error);
    let account = AccessSummary::failed(fault.into(), &error);
    let mut response = json(status, body, account, line);
    response.headers_mut().extend(header);
    response
}

/// Refuses what a legacy client sent: by the ids of what it waits for, where it waits. Some clients
/// show their callers no HTTP error.
pub(super) fn refuse_post(
    refusal: RefusalReason,
    post: &LegacyPost,
    mut line: AccessEntry,
) -> Response<FrontBody> {
    line.begin_relay(post);
    match &post.request_ids()[..] {
        [] => refuse(refusal, line),
        waiting => {
            let RefusalResponse { error, fault, .. } = refusal.into_response();
            let account = AccessSummary::failed(fault.into(), &error);
            json(StatusCode::OK, legacy::error_responses(waiting, &error), account, line)
        }
    }
}

/// Refuses a request in a session that is not its principal's. By status, too: a client begins another session on 404
/// (2025-11-25, *Session Management*).
pub(super) fn refuse_session(post: &LegacyPost, mut line: AccessEntry) -> Response<FrontBody> {
    line.begin_relay(post);
    let RefusalResponse { status, error, fault, .. } = RefusalReason::Session.into_response();
    let account = AccessSummary::failed(fault.into(), &error);
    json(status, legacy::error_responses(&post.request_ids(), &error), account, line)
}

/// A JSON body with its status.
pub(super) fn json(
    status: StatusCode,
    body: Bytes,
    account: AccessSummary,
    mut line: AccessEntry,
) -> Response<FrontBody> {
    line.set_status(status);
    let mut response = Response::new(FrontBody::whole(body, None, account, line));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A status and headers without a body.
pub(super) fn empty(status: StatusCode, headers: HeaderMap, mut line: AccessEntry) -> Response<FrontBody> {
    line.set_status(status);
    line.complete(AccessSummary::default());
    let mut response = Response::new(FrontBody::empty(line));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

// === impl Refusal ===

impl RefusalReason {
    /// The limit of the configuration that was met.
    fn limit(&self) -> Option<Limit> {
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
        if let Some(limit) = self.limit() {
            limit.record_hit();
        }
        let words = self.to_string();
        let of = |status, code, fault| RefusalResponse::of(status, ErrorObject::new(code, &words), fault);
        let invalid = |status| of(status, code::INVALID_REQUEST, ErrorOrigin::Client);
        match self {
            // Whether what follows on the connection is another request is in doubt.
            Self::Head(why) => invalid(why.status()).with(CONNECTION, HeaderValue::from_static("close")),
            Self::ContentCoding { .. } => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .with(ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            Self::Access(_) => invalid(StatusCode::FORBIDDEN),
            Self::Unauthenticated(why) => {
                of(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, ErrorOrigin::Client)
                    .with(WWW_AUTHENTICATE, why.challenge())
            }
            Self::NoMetadata { .. } | Self::Path { .. } | Self::Session => invalid(StatusCode::NOT_FOUND),
            Self::Method { allow, .. } => {
                invalid(StatusCode::METHOD_NOT_ALLOWED).with(ALLOW, HeaderValue::from_static(allow))
            }
            Self::ContentType => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::Accept => invalid(StatusCode::NOT_ACCEPTABLE),
            Self::TooLarge { .. } => invalid(StatusCode::PAYLOAD_TOO_LARGE),
            Self::TooSlow { .. } => invalid(StatusCode::REQUEST_TIMEOUT),
            Self::Headers { .. } => invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            Self::Broken => invalid(StatusCode::BAD_REQUEST),
            Self::Busy { .. } | Self::NoMemory { .. } => {
                of(StatusCode::SERVICE_UNAVAILABLE, code::BUSY, ErrorOrigin::Proxy)
                    .with(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Self::Loop { .. } => {
                of(StatusCode::LOOP_DETECTED, code::UPSTREAM_UNAVAILABLE, ErrorOrigin::Proxy)
            }
            Self::Message(RequestRefusal { status, id, error }) => {
                RefusalResponse { id, ..RefusalResponse::of(status, error, ErrorOrigin::Client) }
            }
            Self::Metadata(lost) | Self::SignIn(lost) => metadata_refusal(lost, &words),
        }
    }
}

/// What a client is told whose call ended without a reply. A fault of ours.
pub(super) fn no_response_error() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, "the call ended without an answer; whether it ran is unknown")
}

/// What is beside the MCP endpoint could not be had.
fn metadata_refusal(lost: CallError, words: &str) -> RefusalResponse {
    // No call was made whose outcome could be unknown.
    let code = match lost.code() {
        code::OUTCOME_UNKNOWN => code::UPSTREAM_UNAVAILABLE,
        code => code,
    };
    let (status, fault) = match &lost {
        _ if matches!(code, code::BUSY | code::SHUTTING_DOWN) => {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorOrigin::Proxy)
        }
        CallError::Unauthorized { status, .. } => (*status, ErrorOrigin::Server),
        CallError::Forbidden { .. } => (StatusCode::FORBIDDEN, ErrorOrigin::Server),
        CallError::ConnectTimeout(_) => (StatusCode::GATEWAY_TIMEOUT, ErrorOrigin::Server),
        _ if code == code::UPSTREAM_TIMEOUT => (StatusCode::GATEWAY_TIMEOUT, ErrorOrigin::Server),
        _ => (StatusCode::BAD_GATEWAY, ErrorOrigin::Server),
    };
    let error = ErrorObject::new(code, words);
    let challenge = match lost {
        CallError::Unauthorized { challenge, .. } => challenge,
        _ => None,
    };
    RefusalResponse {
        header: challenge.map(|it| (WWW_AUTHENTICATE, it)),
        ..RefusalResponse::of(status, error, fault)
    }
}

// === impl Answer ===

impl RefusalResponse {
    fn of(status: StatusCode, error: ErrorObject, fault: ErrorOrigin) -> Self {
        Self { status, id: None, error, fault, header: None }
    }

    fn with(mut self, name: http::HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }
}
