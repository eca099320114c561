//! The media types a client takes, parsed properly.

use http::HeaderMap;

pub const JSON: &str = "application/json";
pub const EVENT_STREAM: &str = "text/event-stream";

/// Whether the `Accept` headers admit `media` (`type/subtype`): wildcards and `q=0` count, case
/// does not. A request without the header admits everything (RFC 9110, 12.5.1).
pub fn accepts(headers: &HeaderMap, media: &str) -> bool {
    let _ = (headers, media);
    todo!()
}

/// Whether a `Content-Type` is `media`, parameters aside.
pub fn is_media(content_type: Option<&http::HeaderValue>, media: &str) -> bool {
    let _ = (content_type, media);
    todo!()
}
