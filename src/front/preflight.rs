//! Responses to CORS preflight requests (Fetch standard, *CORS-preflight request*).

use super::{layers::access_entry::AccessEntry, reply::FrontBody, responses};
use crate::dialect::detach;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_MAX_AGE,
        ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, ORIGIN,
    },
};

/// How long a browser may cache a preflight response, in seconds: two hours, the most any browser honours.
const PREFLIGHT_AGE: HeaderValue = HeaderValue::from_static("7200");

/// Answers a preflight request for a path that serves `methods`. The access layer has checked the origin, and
/// adds its headers to the response.
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
    // All requested headers are allowed: the names `Mcp-Param-*` are the server's, so no list could be
    // complete, and the page's origin is trusted.
    for wanted in request.headers().get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.append(ACCESS_CONTROL_ALLOW_HEADERS, detach(wanted));
    }
    responses::empty(StatusCode::NO_CONTENT, headers, line)
}
