//! Which face a request is for: by path, then by method, then by who is speaking.
//!
//! There is one face yet, 2026-07-28 over POST. A client of an older revision is recognised where
//! that is beyond doubt, so that it is told what is served here; everything doubtful goes to the
//! modern face, whose checks say exactly what is missing.

use super::{
    Front,
    answer::{self, Refusal, refuse},
    layers::{principal::detached, trace::Line},
    metadata, modern,
    reply::Body,
    stack::{Admitted, Answered, Arrival},
};
use crate::protocol::{
    Era, Frame, Id, Kind, Method as Rpc, Revision,
    headers::{self, PROTOCOL_VERSION, SESSION_ID},
    meta,
    splice::Object,
};
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
        ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, ORIGIN,
    },
};
use http_body::Body as HttpBody;
use std::{future::Future, sync::Arc};

/// How long a browser may remember what a preflight said: two hours, the most any honours.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("7200");

/// What a client of a revision without the version header speaks (2025-06-18, *Protocol Version
/// Header*).
const UNNAMED: Revision = Revision::V2025_03_26;

/// A client of an older revision, beyond doubt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Older {
    pub(super) id: Option<Id>,
    /// The revision it speaks, as it spelled it.
    pub(super) speaks: String,
}

/// Answers one request. Not itself asynchronous: what an `async fn` takes it keeps twice, and the
/// future made here waits as long as its call does.
pub(super) fn serve<B>(
    front: Arc<Front>,
    admitted: Admitted<B>,
) -> Either<impl Future<Output = Answered> + use<B>, Ready<Answered>>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    let Admitted { mut arrival, _proof } = admitted;
    let request = &arrival.request;
    let path = request.uri().path();
    let Some(service) = front.service(path).cloned() else {
        if metadata::is_asked(path) && request.method() == Method::GET {
            return Either::Left(Either::Right(metadata::serve(front, arrival)));
        }
        return Either::Right(ready(Ok(elsewhere(&front, arrival))));
    };
    arrival.line.on_route(&service.route().path);
    // GET and DELETE are not served: 2026-07-28 knows neither streams to listen on nor sessions
    // to end.
    match *request.method() {
        Method::POST => Either::Left(Either::Left(modern::serve(front, service, arrival))),
        Method::OPTIONS => Either::Right(ready(Ok(preflight(&arrival.request, "POST", arrival.line)))),
        _ => Either::Right(ready(Ok(not_served(&arrival.request, "POST", arrival.line)))),
    }
}

/// Answers what is not on a route, and does not ask a server either.
fn elsewhere<B>(front: &Front, arrival: Arrival<B>) -> Response<Body> {
    let Arrival { request, line } = arrival;
    let path = request.uri().path();
    match *request.method() {
        _ if !metadata::is_asked(path) => {
            refuse(Refusal::Path { path: path.to_owned(), served: front.paths() }, line)
        }
        Method::OPTIONS => preflight(&request, "GET", line),
        _ => not_served(&request, "GET", line),
    }
}

fn not_served<B>(request: &Request<B>, allow: &'static str, line: Line) -> Response<Body> {
    refuse(Refusal::Method { method: request.method().clone(), allow }, line)
}

/// Answers a browser that asks before it calls. Only origins that may call get this far, and the
/// access layer adds theirs to the answer.
fn preflight<B>(request: &Request<B>, method: &'static str, line: Line) -> Response<Body> {
    let mut headers = HeaderMap::new();
    if !request.headers().contains_key(ORIGIN) {
        headers.insert(ALLOW, HeaderValue::from_static(method));
        return answer::empty(StatusCode::NO_CONTENT, headers, line);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(method));
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
    // Whatever the page wants to send: `Mcp-Param-*` names are the server's, so no list of ours
    // could be complete, and a header does no harm that the page's origin has not been trusted with.
    for wanted in request.headers().get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.append(ACCESS_CONTROL_ALLOW_HEADERS, detached(wanted));
    }
    answer::empty(StatusCode::NO_CONTENT, headers, line)
}

/// Whether a message comes from a client of an older revision, beyond doubt: it has a session, or
/// names an older version, or begins a handshake, and says nothing in `_meta` of a version.
///
/// A request whose header names 2026-07-28 and that has no session is not looked into.
pub(super) fn older(headers: &HeaderMap, body: &Bytes) -> Option<Older> {
    let named = headers.get(&PROTOCOL_VERSION).and_then(|value| headers::decode(value).ok());
    let session = headers.contains_key(&SESSION_ID);
    let legacy = named.as_deref().and_then(Revision::parse).filter(|revision| revision.era() == Era::Legacy);
    if named.is_some() && legacy.is_none() && !session {
        return None;
    }
    let speaks =
        |asked: Option<String>| asked.unwrap_or_else(|| legacy.unwrap_or(UNNAMED).as_str().to_owned());
    // What is no message of 2026-07-28 at all, a batch for one, cannot speak for itself.
    let Ok(frame) = Frame::parse(body.clone()) else {
        return (session || legacy.is_some()).then(|| Older { id: None, speaks: speaks(None) });
    };
    let (id, method, params) = match frame.kind() {
        Kind::Request { id, method, params } => (Some(id.clone()), Some(method), params.as_ref()),
        Kind::Notification { method, params } => (None, Some(method), params.as_ref()),
        Kind::Success { .. } | Kind::Failure { .. } => (None, None, None),
    };
    let params = params.and_then(|params| Object::read(params).ok());
    if params.as_ref().is_some_and(names_its_version) {
        return None;
    }
    let handshake = method == Some(&Rpc::Initialize);
    let asked = params.filter(|_| handshake).and_then(|params| params.string("protocolVersion"));
    (session || legacy.is_some() || handshake).then(|| Older { id, speaks: speaks(asked) })
}

/// Whether `_meta` of these parameters speaks of a version, whatever it says.
fn names_its_version(params: &Object) -> bool {
    params
        .get("_meta")
        .and_then(|meta| Object::read(&meta).ok())
        .is_some_and(|meta| meta.contains(meta::PROTOCOL_VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;

    fn speaks(headers: &[(&'static str, &'static str)], body: &str) -> Option<String> {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        older(&headers, &Bytes::copy_from_slice(body.as_bytes())).map(|older| older.speaks)
    }

    #[test]
    fn a_handshake_is_a_client_of_an_older_revision() {
        let body =
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;
        assert_eq!(speaks(&[], body).as_deref(), Some("2025-06-18"));
        let bare = r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#;
        assert_eq!(speaks(&[], bare).as_deref(), Some("2025-03-26"));
        assert_eq!(speaks(&[("mcp-protocol-version", "2025-11-25")], bare).as_deref(), Some("2025-11-25"));
    }

    #[test]
    fn a_session_or_an_older_version_is_a_client_of_an_older_revision() {
        let body = r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#;
        assert_eq!(speaks(&[("mcp-session-id", "s")], body).as_deref(), Some("2025-03-26"));
        assert_eq!(speaks(&[("mcp-protocol-version", "2025-06-18")], body).as_deref(), Some("2025-06-18"));
        let batch = r#"[{"jsonrpc":"2.0","id":0,"method":"tools/list"}]"#;
        assert_eq!(speaks(&[("mcp-protocol-version", "2025-03-26")], batch).as_deref(), Some("2025-03-26"));
        let response = r#"{"jsonrpc":"2.0","id":0,"result":{}}"#;
        assert_eq!(speaks(&[("mcp-session-id", "s")], response).as_deref(), Some("2025-03-26"));
    }

    #[test]
    fn a_message_that_names_its_version_is_not_of_an_older_revision() {
        let call = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{{MODERN}}}}}"#);
        assert_eq!(speaks(&[], &call), None);
        assert_eq!(speaks(&[("mcp-session-id", "s")], &call), None);
        assert_eq!(speaks(&[("mcp-protocol-version", "2025-11-25")], &call), None);
    }

    #[test]
    fn what_is_in_doubt_is_not_of_an_older_revision() {
        let call = r#"{"jsonrpc":"2.0","id":0,"method":"tools/list","params":{}}"#;
        assert_eq!(speaks(&[], call), None, "no header and no version: the modern face says so");
        assert_eq!(speaks(&[("mcp-protocol-version", "v999.0.0")], call), None);
        assert_eq!(speaks(&[("mcp-protocol-version", "2026-07-28")], call), None);
        assert_eq!(speaks(&[], "not json"), None);
    }
}
