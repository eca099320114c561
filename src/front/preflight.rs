//! The answer to a browser that asks before it calls (Fetch standard, *CORS-preflight request*).

use super::{layers::access_entry::AccessEntry, reply::FrontBody, responses};
use crate::dialect::detached;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
        ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, ORIGIN,
    },
};

/// How long a browser may remember what a preflight said: two hours, the most any honours.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("7200");

/// Answers a browser that asks before it calls. Only origins that may call get this far, and the
/// access layer adds theirs to the answer.
pub(super) fn preflight<B>(
    request: &Request<B>,
    method: &'static str,
    line: AccessEntry,
) -> Response<FrontBody> {
    let mut headers = HeaderMap::new();
    if !request.headers().contains_key(ORIGIN) {
        headers.insert(ALLOW, HeaderValue::from_static(method));
        return responses::empty(StatusCode::NO_CONTENT, headers, line);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(method));
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_AGE);
    // Whatever the page wants to send: `Mcp-Param-*` names are the server's, so no list of ours
    // could be complete, and a header does no harm that the page's origin has not been trusted with.
    for wanted in request.headers().get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.append(ACCESS_CONTROL_ALLOW_HEADERS, detached(wanted));
    }
    responses::empty(StatusCode::NO_CONTENT, headers, line)
}
