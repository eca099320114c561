//! `/tap`: live requests, tasks and input requests for `deferral tap`, one JSON object per line.
//!
//! The stream shows who calls what, and on request with which arguments, so it requires the token on every
//! address.

use super::{
    response::{AdminResponse, error_response},
    server::AdminParts,
    tasks::decode_query_value,
};
use crate::{
    policy::NamePattern,
    telemetry::tap::{MAX_TAPS, Tap, TapFilter, TooManyTaps},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::{convert::Infallible, time::Duration};
use tokio::time::timeout;

/// Interval after which an empty line shows that the connection is alive.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Opens a stream of lines that lasts as long as its client reads it; 503 if too many taps are open.
pub(super) fn open_stream(parts: &AdminParts, query: &str) -> AdminResponse {
    let filter = match parse_filter(parts, query) {
        Ok(filter) => filter,
        Err(unknown) => {
            let error =
                format!("unknown or malformed parameter `{unknown}`; use route, caller, tool or arguments=1");
            return error_response(StatusCode::BAD_REQUEST, &error);
        }
    };
    let tap = match Tap::open(filter) {
        Ok(tap) => tap,
        Err(TooManyTaps) => {
            let error = format!("{MAX_TAPS} taps of this proxy are open, the maximum; close one");
            return error_response(StatusCode::SERVICE_UNAVAILABLE, &error);
        }
    };
    let lines = stream::unfold(tap, |mut tap| async move {
        let line = match timeout(KEEP_ALIVE_INTERVAL, tap.next()).await {
            Ok(line) => line + "\n",
            Err(_silence) => "\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), tap))
    });
    // The first, empty line makes hyper send the head of the response at once.
    let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"\n")))]);
    let mut response = Response::new(StreamBody::new(first.chain(lines)).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Parses the filter in a query.
///
/// # Errors
/// The name of an unknown or malformed parameter.
fn parse_filter(parts: &AdminParts, query: &str) -> Result<TapFilter, String> {
    let mut filter = TapFilter::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let unknown = || name.chars().take(64).collect();
        let value = decode_query_value(value).ok_or_else(unknown)?;
        match name {
            "route" => filter.route = Some(value),
            "caller" => {
                // Tasks and input requests have the principal only, not the name of the token.
                let principals = parts.principal_names.principals_of(&value).map(ToString::to_string);
                filter.callers = Some(principals.chain([value.clone()]).collect());
            }
            "tool" => {
                let pattern = NamePattern::new(value);
                filter.tool = Some(Box::new(move |tool| pattern.matches(tool)));
            }
            "arguments" => match &*value {
                "1" => filter.shows_content = true,
                "0" => filter.shows_content = false,
                _ => return Err(unknown()),
            },
            _ => return Err(unknown()),
        }
    }
    Ok(filter)
}
