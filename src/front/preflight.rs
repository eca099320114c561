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
const PREFLIGHT_MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// Answers a preflight request for a path that serves `methods`. The access layer has checked the origin, and
/// adds its headers to the response.
pub(super) fn preflight<B>(
    request: &Request<B>,
    methods: &'static str,
    entry: AccessEntry,
) -> Response<FrontBody> {
    let mut headers = HeaderMap::new();
    if !request.headers().contains_key(ORIGIN) {
        headers.insert(ALLOW, HeaderValue::from_static(methods));
        return responses::empty(StatusCode::NO_CONTENT, headers, entry);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE);
    // All requested headers are allowed: the names `Mcp-Param-*` are the server's, so no list could be
    // complete, and the page's origin is trusted.
    for requested in request.headers().get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.append(ACCESS_CONTROL_ALLOW_HEADERS, detach(requested));
    }
    responses::empty(StatusCode::NO_CONTENT, headers, entry)
}
