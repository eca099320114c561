//! Reads a request, and dispatches it: by path, then by method, then by the client's era.
//!
//! This module alone reads bodies, each once, and refuses invalid requests; `modern` and `legacy` handle the
//! others.
//!
//! A request whose `_meta` names a version is handled as 2026-07-28. One that belongs to a session, begins
//! one, or names no version comes from a legacy client (2026-07-28, *Versioning, Compatibility*; *Streamable
//! HTTP, Earlier Revisions*). Ambiguous requests are handled as modern, because those checks report exactly
//! what is missing.

use super::{
    Front,
    connection::ClientConnection,
    forwarded,
    incoming::{AdmittedRequest, IncomingRequest, ResponseResult},
    layers::{
        access_entry::AccessEntry,
        principal::{derive_principal, remove_hop_headers},
    },
    legacy::{self, LegacyRequestBody},
    metadata,
    modern::{self, DispatchedCall},
    preflight::preflight,
    receive::receive,
    reply::{self, FrontBody, ResponseContext},
    responses::{self, RefusalReason, refuse, refuse_post},
    sign_in,
};
use crate::{
    dialect::{
        Call,
        legacy::LegacyPost,
        modern::{self as message, ModernMessage},
    },
    protocol::{
        Capabilities, Era, Frame, FrameError, MessageReader, Payload, Revision,
        accept::{JSON, accepts_both, is_media},
        headers::{self, PROTOCOL_VERSION, SESSION_ID},
        meta,
        request_head::content_coding,
    },
    telemetry::Limit,
};
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
    request::Parts,
};
use http_body::Body as HttpBody;
use std::{future::Future, sync::Arc};

/// The methods that a route serves, as in `Allow`.
const ROUTE_METHODS: &str = "POST, GET, DELETE";

/// Outcome of reading a POST.
enum PostOutcome {
    /// A request of 2026-07-28, with its client's capabilities.
    Request(Arc<Call>, Arc<Capabilities>),
    /// A notification of 2026-07-28.
    Notification,
    /// The messages of a legacy client.
    Legacy(LegacyRequestBody),
    /// A refused message. The second field has the messages of the POST if a legacy client sent it.
    Refused(RefusalReason, Option<LegacyPost>),
}

/// Content of a body.
enum BodyContent {
    One(Frame),
    Batch(LegacyPost),
    Unreadable(FrameError),
}

/// A message and the era of its sender.
enum EraMessage {
    /// The POST of a legacy client. The second field is its message, `None` for a batch or an unreadable
    /// body.
    Legacy(LegacyPost, Option<Frame>),
    Modern(Result<Frame, FrameError>),
}

/// Largest body, in bytes, of a request above the limit of calls that is still read, to be refused by its id.
const MAX_SHED_BODY: usize = 64 << 10;

/// Answers one request. Not an `async fn`, which would store its arguments twice: the future exists as long
/// as its call.
pub(super) fn serve<B>(
    front: Arc<Front>,
    admitted: AdmittedRequest<B>,
) -> Either<impl Future<Output = ResponseResult> + use<B>, Ready<ResponseResult>>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    let AdmittedRequest { mut incoming, over_limit, _proof } = admitted;
    let request = &incoming.request;
    let limit = front.limits.headers;
    // hyper counts the headers of HTTP/1 alone.
    if request.headers().len() > limit {
        return Either::Right(ready(Ok(refuse(RefusalReason::Headers { limit }, incoming.entry))));
    }
    if *request.method() != Method::POST {
        // The body of any other method has no meaning.
        incoming.entry.connection().complete_request();
    }
    let path = request.uri().path();
    let Some(position) = front.route_index(path) else {
        if metadata::is_metadata_path(path) && request.method() == Method::GET {
            return Either::Left(Either::Right(metadata::serve(front, incoming)));
        }
        if !metadata::is_metadata_path(path) && sign_in::is_available(&front, &incoming.entry) {
            return Either::Left(Either::Right(sign_in::serve(front, incoming)));
        }
        return Either::Right(ready(Ok(refuse_unrouted(&front, incoming))));
    };
    let service = &front.services[position];
    incoming.entry.set_route(&front.paths[position]);
    if service.is_loop(request.headers()) {
        let refusal = RefusalReason::Loop { path: service.route().path.to_string() };
        return Either::Right(ready(Ok(refuse(refusal, incoming.entry))));
    }
    match *request.method() {
        Method::POST if let Some(coding) = content_coding(request.headers()) => {
            Either::Right(ready(Ok(refuse(RefusalReason::ContentCoding { coding }, incoming.entry))))
        }
        Method::POST => Either::Left(Either::Left(serve_post(front, position, incoming, over_limit))),
        Method::OPTIONS => {
            Either::Right(ready(Ok(preflight(&incoming.request, ROUTE_METHODS, incoming.entry))))
        }
        // 2026-07-28 has neither GET streams nor sessions.
        Method::GET | Method::DELETE if !is_modern(request.headers()) => {
            let IncomingRequest { request, mut entry } = incoming;
            // The specification gives the body no meaning here.
            let (mut head, _body) = request.into_parts();
            remove_hop_headers(service.route(), &mut head.headers);
            forwarded::add_header(service.route(), &mut head, entry.connection());
            entry.set_principal(derive_principal(
                &front.principals,
                service.route(),
                entry.token_name(),
                &head.headers,
            ));
            let service = Arc::clone(service);
            Either::Left(Either::Right(legacy::relay(front, service, head, Default::default(), entry)))
        }
        Method::GET | Method::DELETE => {
            Either::Right(ready(Ok(refuse_method(&incoming.request, "POST", incoming.entry))))
        }
        _ => Either::Right(ready(Ok(refuse_method(&incoming.request, ROUTE_METHODS, incoming.entry)))),
    }
}

/// Answers one POST on a route.
fn serve_post<B>(
    front: Arc<Front>,
    position: usize,
    incoming: IncomingRequest<B>,
    over_limit: Option<usize>,
) -> impl Future<Output = ResponseResult> + use<B>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    let IncomingRequest { request, mut entry } = incoming;
    let (mut head, body) = request.into_parts();
    let route = front.services[position].route();
    remove_hop_headers(route, &mut head.headers);
    forwarded::add_header(route, &mut head, entry.connection());
    entry.set_principal(derive_principal(&front.principals, route, entry.token_name(), &head.headers));
    async move {
        // A borrow and not another `Arc`: all calls of a route would contend for its reference count.
        let service = &front.services[position];
        let _arriving = service.track_arrival();
        let dispatched = match read_post(&front, &head, body, over_limit, &mut entry).await {
            PostOutcome::Request(call, capabilities) => {
                modern::dispatch(&front, &**service, &head, (call, capabilities), &mut entry)
            }
            PostOutcome::Legacy(posted) => {
                let service = Arc::clone(service);
                return legacy::relay(Arc::clone(&front), service, head, posted, entry).await;
            }
            PostOutcome::Notification => {
                return Ok(responses::empty(StatusCode::ACCEPTED, HeaderMap::new(), entry));
            }
            PostOutcome::Refused(refusal, None) => return Ok(refuse(refusal, entry)),
            PostOutcome::Refused(refusal, Some(post)) => return Ok(refuse_post(refusal, &post, entry)),
        };
        // The head is a part of the connection's read buffer; the call may take hours.
        drop(head);
        let DispatchedCall { id, items, keep_alive, address } = dispatched;
        let mut response = reply::respond(items, ResponseContext { id, entry, keep_alive }).await;
        address.rewrite_challenges(&front.services, service.route(), response.headers_mut());
        Ok(response)
    }
}

/// Reads the message of a POST. A small one above the limit of calls is read as well, because a legacy client
/// is refused by the ids of its requests.
async fn read_post<B>(
    front: &Front,
    head: &Parts,
    body: B,
    over_limit: Option<usize>,
    entry: &mut AccessEntry,
) -> PostOutcome
where
    B: HttpBody<Data = Bytes>,
{
    let overload = over_limit.map(|limit| RefusalReason::Busy { limit });
    let limit = if overload.is_some() { MAX_SHED_BODY } else { front.limits.body_bytes };
    let connection = entry.connection();
    let body = match receive(&front.bodies, body, limit, front.timeouts.read_body, || connection.begin_body())
        .await
    {
        Ok(body) => {
            connection.complete_request();
            body
        }
        Err(refusal) => return PostOutcome::Refused(overload.unwrap_or(refusal), None),
    };
    let mut messages = MessageReader::new(body.clone());
    let contents = BodyContent::read(&mut messages);
    let check_depth = || {
        let checked =
            message::check_depth(messages.depth(), front.limits.depth).map_err(RefusalReason::Message);
        checked.inspect_err(|_| Limit::Depth.record_hit())
    };
    let refused = overload.or_else(|| check_depth().err());
    // Of a legacy message only the limits and `jsonrpc` are checked here; its server checks the rest.
    match (classify(&head.headers, contents, &body), refused) {
        (EraMessage::Legacy(post, _), Some(refusal)) => PostOutcome::Refused(refusal, Some(post)),
        (EraMessage::Legacy(post, _), None) if post.is_unversioned => {
            PostOutcome::Refused(RefusalReason::Message(message::missing_json_rpc_version(None)), Some(post))
        }
        (EraMessage::Legacy(post, message), None) => {
            PostOutcome::Legacy(LegacyRequestBody { body, message, post })
        }
        (EraMessage::Modern(_), Some(busy @ RefusalReason::Busy { .. })) => PostOutcome::Refused(busy, None),
        (EraMessage::Modern(frame), refused) => {
            entry.set_client_era(Era::Modern);
            read_modern(frame, &head.headers, refused, entry.connection())
                .unwrap_or_else(|refusal| PostOutcome::Refused(refusal, None))
        }
    }
}

/// Reads the request of a client of 2026-07-28.
fn read_modern(
    frame: Result<Frame, FrameError>,
    headers: &HeaderMap,
    refused: Option<RefusalReason>,
    connection: &ClientConnection,
) -> Result<PostOutcome, RefusalReason> {
    if !is_media(headers.get(CONTENT_TYPE), JSON) {
        return Err(RefusalReason::ContentType);
    }
    if !accepts_both(headers) {
        return Err(RefusalReason::Accept);
    }
    refused.map_or(Ok(()), Err)?;
    let profile = connection.client_profile();
    match message::read_message(frame, headers, profile.as_deref()).map_err(RefusalReason::Message)? {
        ModernMessage::Request(call, capabilities) => {
            connection.remember_profile(&call, &capabilities);
            Ok(PostOutcome::Request(call, capabilities))
        }
        ModernMessage::Notification => Ok(PostOutcome::Notification),
    }
}

/// Answers a request that belongs to no route and is not forwarded.
fn refuse_unrouted<B>(front: &Front, incoming: IncomingRequest<B>) -> Response<FrontBody> {
    let IncomingRequest { request, entry } = incoming;
    let path = request.uri().path();
    match *request.method() {
        _ if !metadata::is_metadata_path(path) => {
            refuse(RefusalReason::Path { path: path.to_owned(), served: front.paths() }, entry)
        }
        Method::OPTIONS => preflight(&request, "GET", entry),
        _ => refuse_method(&request, "GET", entry),
    }
}

fn refuse_method<B>(request: &Request<B>, allow: &'static str, entry: AccessEntry) -> Response<FrontBody> {
    if request.method() == Method::HEAD {
        // A response to HEAD has no body (RFC 9110, 9.3.2).
        let headers = HeaderMap::from_iter([(ALLOW, HeaderValue::from_static(allow))]);
        return responses::empty(StatusCode::METHOD_NOT_ALLOWED, headers, entry);
    }
    refuse(RefusalReason::Method { method: request.method().clone(), allow }, entry)
}

/// Whether the head is that of a client of 2026-07-28: it names the version, and has no session.
fn is_modern(headers: &HeaderMap) -> bool {
    !headers.contains_key(&SESSION_ID)
        && matches!(read_version_header(headers), VersionHeader::Known(Era::Modern))
}

/// Whether a legacy client may have sent a request, as far as its head shows.
pub(super) fn may_be_legacy<B>(request: &Request<B>) -> bool {
    *request.method() == Method::POST && !is_modern(request.headers())
}

/// What the header `MCP-Protocol-Version` names.
enum VersionHeader {
    /// The header is absent.
    Absent,
    /// A revision that the proxy knows, of this era.
    Known(Era),
    /// A revision that the proxy does not know, or no revision.
    Unknown,
}

fn read_version_header(headers: &HeaderMap) -> VersionHeader {
    let Some(value) = headers.get(&PROTOCOL_VERSION) else { return VersionHeader::Absent };
    let revision = headers::decode(value).ok().and_then(|text| Revision::parse(&text));
    revision.map_or(VersionHeader::Unknown, |revision| VersionHeader::Known(revision.era()))
}

/// Determines the era of a message's sender.
///
/// Most messages are classified by their headers: a message that names 2026-07-28 and has no session is
/// modern, and a message that names a legacy revision and has a session is legacy. The others are modern if
/// their `_meta` names a version.
fn classify(headers: &HeaderMap, contents: BodyContent, body: &Bytes) -> EraMessage {
    let has_session = headers.contains_key(&SESSION_ID);
    let version = read_version_header(headers);
    // The version header of a request in a session is checked by its server.
    let is_legacy = match (&version, has_session) {
        (VersionHeader::Known(Era::Modern) | VersionHeader::Unknown, false) => {
            return EraMessage::Modern(contents.into_single());
        }
        (VersionHeader::Known(Era::Legacy), true) => true,
        (VersionHeader::Absent | VersionHeader::Known(_) | VersionHeader::Unknown, _) => false,
    };
    match contents {
        BodyContent::One(frame) if !is_legacy && has_version_meta(&frame) => EraMessage::Modern(Ok(frame)),
        BodyContent::One(frame) => EraMessage::Legacy(LegacyPost::from_frame(&frame), Some(frame)),
        BodyContent::Batch(post) => EraMessage::Legacy(post, None),
        // The era is unknown. A legacy client can read the proxy's own error as well as its server's.
        BodyContent::Unreadable(error) if !has_session && matches!(version, VersionHeader::Absent) => {
            EraMessage::Modern(Err(error))
        }
        BodyContent::Unreadable(error) => EraMessage::Legacy(LegacyPost::unreadable(body, error), None),
    }
}

/// Whether a message's `_meta` names a version, known or not.
fn has_version_meta(frame: &Frame) -> bool {
    frame.params().and_then(Payload::meta).is_some_and(|meta| meta.contains(meta::PROTOCOL_VERSION))
}

// === impl BodyContent ===

impl BodyContent {
    fn read(messages: &mut MessageReader) -> Self {
        if messages.is_batch() {
            return match LegacyPost::read(messages) {
                Ok(post) => Self::Batch(post),
                Err(error @ FrameError::Syntax(_)) => Self::Unreadable(error),
                // An id was read, but it may be that of another message of the batch.
                Err(
                    FrameError::Shape { .. }
                    | FrameError::Member { .. }
                    | FrameError::Id
                    | FrameError::Depth { .. },
                ) => {
                    // A syntax error later in the batch makes it invalid JSON.
                    let syntax = messages.find_map(|read| read.err().filter(FrameError::is_syntax));
                    Self::Unreadable(syntax.unwrap_or(FrameError::Shape { id: None }))
                }
            };
        }
        messages
            .next()
            .expect("a body without a batch has one message")
            .map_or_else(Self::Unreadable, Self::One)
    }

    /// Returns the body's single message, as 2026-07-28 requires (*Streamable HTTP, Sending Messages*).
    fn into_single(self) -> Result<Frame, FrameError> {
        match self {
            Self::One(frame) => Ok(frame),
            Self::Batch(_) => Err(FrameError::Shape { id: None }),
            Self::Unreadable(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    const LIST: &str = r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#;
    const HELLO: &str =
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;

    /// Returns the methods of the messages, joined by commas, if they are classified as legacy; `None` for a
    /// modern message.
    fn legacy_methods(headers: &[(&'static str, &'static str)], body: &str) -> Option<String> {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let body = Bytes::copy_from_slice(body.as_bytes());
        let contents = BodyContent::read(&mut MessageReader::new(body.clone()));
        let EraMessage::Legacy(post, _) = classify(&headers, contents, &body) else { return None };
        Some(post.messages.iter().map(|message| message.method_name()).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_handshake_begins_a_session() {
        for headers in [&[][..], &[("mcp-protocol-version", "2025-11-25")], &[("mcp-method", "initialize")]] {
            assert_eq!(legacy_methods(headers, HELLO).as_deref(), Some("initialize"), "{headers:?}");
        }
        let rmcp = HELLO.replace("2025-06-18", "2026-07-28");
        assert_eq!(legacy_methods(&[], &rmcp).as_deref(), Some("initialize"));
    }

    #[test]
    fn a_request_in_a_session_or_of_a_legacy_revision_is_legacy() {
        assert_eq!(legacy_methods(&[("mcp-session-id", "s")], LIST).as_deref(), Some("tools/list"));
        assert_eq!(
            legacy_methods(&[("mcp-protocol-version", "2025-06-18")], LIST).as_deref(),
            Some("tools/list")
        );
        let both = [("mcp-session-id", "s"), ("mcp-protocol-version", "2025-11-25")];
        assert_eq!(legacy_methods(&both, LIST).as_deref(), Some("tools/list"));
        let response = r#"{"jsonrpc":"2.0","id":0,"result":{}}"#;
        assert_eq!(legacy_methods(&both, response).as_deref(), Some("response"));
        // The server reports the error in these.
        let odd = [("mcp-session-id", "s"), ("mcp-protocol-version", "v999.0.0")];
        assert_eq!(legacy_methods(&odd, LIST).as_deref(), Some("tools/list"));
        assert_eq!(legacy_methods(&both, "not json").as_deref(), Some(""));
    }

    #[test]
    fn a_request_without_a_version_is_legacy() {
        assert_eq!(legacy_methods(&[], LIST).as_deref(), Some("tools/list"));
        assert_eq!(
            legacy_methods(&[], &format!("[{LIST},{LIST}]")).as_deref(),
            Some("tools/list,tools/list")
        );
        assert_eq!(legacy_methods(&[], "not json"), None, "it may be anybody");
    }

    #[test]
    fn a_message_that_names_its_version_is_modern() {
        let call = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{{MODERN}}}}}"#);
        let session = ("mcp-session-id", "s");
        for headers in [
            &[][..],
            &[session],
            &[("mcp-protocol-version", "2025-11-25")],
            &[("mcp-protocol-version", "2026-07-28")],
            &[("mcp-protocol-version", "2026-07-28"), session],
        ] {
            assert_eq!(legacy_methods(headers, &call), None, "{headers:?}");
        }
    }

    #[test]
    fn ambiguous_requests_are_modern() {
        assert_eq!(legacy_methods(&[("mcp-protocol-version", "v999.0.0")], LIST), None);
        assert_eq!(legacy_methods(&[("mcp-protocol-version", "2026-07-28")], LIST), None);
        assert_eq!(legacy_methods(&[("mcp-protocol-version", "2026-07-28")], HELLO), None);
    }
}
