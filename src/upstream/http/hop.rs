//! Hop-by-hop headers and queries of forwarded requests and responses.

use crate::{dialect::HeaderScope, upstream::http1};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Returns the path of the server with the client's query after its own. Parameters in the configured URL
/// cannot be overridden: of two values of a name some servers use the last.
pub(super) fn with_query<'a>(path: &'a str, query: Option<&str>) -> Cow<'a, str> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return path.into() };
    let Some((_, own_query)) = path.split_once('?') else { return format!("{path}?{query}").into() };
    let own_names: Vec<_> = query_names(own_query).collect();
    let mut joined = path.to_owned();
    for pair in query.split('&').filter(|pair| !query_names(pair).any(|name| own_names.contains(&name))) {
        joined.push('&');
        joined.push_str(pair);
    }
    joined.into()
}

/// Returns the parameter names in a query as the most lenient reader parses them: also separated by `;`,
/// percent-decoded, in lower case.
fn query_names(query: &str) -> impl Iterator<Item = Vec<u8>> {
    query.split(['&', ';']).filter(|pair| !pair.is_empty()).map(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name).as_bytes();
        let digit = |index: usize| name.get(index).and_then(|&byte| char::from(byte).to_digit(16));
        let mut decoded = Vec::with_capacity(name.len());
        let mut index = 0;
        while let Some(&byte) = name.get(index) {
            let escaped = (byte == b'%').then(|| Some(digit(index + 1)? * 16 + digit(index + 2)?)).flatten();
            let byte = match escaped {
                Some(byte) => u8::try_from(byte).expect("two hexadecimal digits make a byte"),
                None if byte == b'+' => b' ',
                None => byte,
            };
            decoded.push(byte.to_ascii_lowercase());
            index += if escaped.is_some() { 3 } else { 1 };
        }
        decoded
    })
}

/// Serializes the headers of a forwarded request: the client's headers, without hop-by-hop headers and
/// without the configured ones, which are added to each request with their current values; with the server's
/// `Host`, and with `Via` after the entries of earlier proxies. The front end has removed the headers that
/// the client's `Connection` names.
pub(super) fn request_lines(
    host: &HeaderValue,
    via: &HeaderValue,
    headers: &HeaderMap,
    configured: &HeaderMap,
) -> Vec<u8> {
    let mut lines = Vec::with_capacity(64 + headers.len() * 48);
    http1::write_header_line(&mut lines, &header::HOST, host);
    for (name, value) in headers {
        if HeaderScope::for_header(name).is_relayed() && !configured.contains_key(name) {
            http1::write_header_line(&mut lines, name, value);
        }
    }
    http1::write_header_line(&mut lines, &header::VIA, via);
    if !configured.contains_key(header::ACCEPT_ENCODING) {
        http1::write_header_line(&mut lines, &header::ACCEPT_ENCODING, &ACCEPT_IDENTITY);
    }
    lines
}

/// `Accept-Encoding` of requests: without the header any coding would be allowed (RFC 9110, 12.5.3).
pub(super) const ACCEPT_IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Removes hop-by-hop headers from a response, and the CORS headers of the server: only `access.origins`
/// decides which sites may read the response.
pub(super) fn strip_hop_headers(mut headers: HeaderMap) -> HeaderMap {
    // A length beside a transfer coding does not count (RFC 9112, 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named_by_connection(&headers).iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    let is_cors = |name: &HeaderName| name.as_str().starts_with("access-control-");
    let cors_headers: SmallVec<[_; 8]> = headers.keys().filter(|name| is_cors(name)).cloned().collect();
    for name in cors_headers {
        headers.remove(name);
    }
    headers
}

/// Headers that concern one connection only (RFC 9110, 7.6.1), and headers that a proxy answers itself.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Headers of a response that its `Connection` header declares as hop-by-hop. MCP headers are never removed:
/// without its session id a response has another meaning.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !name.as_str().starts_with("mcp-") && *name != header::AUTHORIZATION)
        .collect()
}
