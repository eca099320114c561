//! Responses of the admin listener.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::json;
use std::convert::Infallible;

/// A response with a complete or streamed body.
pub(super) type AdminResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Builds an error response: `{"error": …}`.
pub(super) fn error_response(status: StatusCode, error: &str) -> AdminResponse {
    json_response(status, json!({ "error": error }).to_string().into())
}

/// Builds a response with a JSON body.
pub(super) fn json_response(status: StatusCode, body: Bytes) -> AdminResponse {
    text_response(status, "application/json", body)
}

/// Builds a response with this media type, which must not be cached, because it shows the current state.
pub(super) fn text_response(status: StatusCode, media: &'static str, body: Bytes) -> AdminResponse {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
