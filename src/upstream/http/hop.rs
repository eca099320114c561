//! Hop-by-hop headers: removed from requests and responses.

use crate::{dialect::HeaderScope, upstream::http1};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Path of the server with the client's query after its own. Parameters in the configured URL cannot be
/// overridden: of two values of a name some servers use the last.
pub(super) fn with_query<'a>(path: &'a str, query: Option<&str>) -> Cow<'a, str> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return path.into() };
    let Some((_, own)) = path.split_once('?') else { return format!("{path}?{query}").into() };
    let own: Vec<_> = query_names(own).collect();
    let mut whole = path.to_owned();
    for pair in query.split('&').filter(|pair| !query_names(pair).any(|name| own.contains(&name))) {
        whole.push('&');
        whole.push_str(pair);
    }
    whole.into()
}

/// Parameter names in a query as the most lenient reader parses them: also separated by `;`, decoded, in
/// lower case.
fn query_names(query: &str) -> impl Iterator<Item = Vec<u8>> {
    query.split(['&', ';']).filter(|pair| !pair.is_empty()).map(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name).as_bytes();
        let digit = |at: usize| name.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        let mut decoded = Vec::with_capacity(name.len());
        let mut at = 0;
        while let Some(&byte) = name.get(at) {
            let escaped = (byte == b'%').then(|| Some(digit(at + 1)? * 16 + digit(at + 2)?)).flatten();
            let byte = match escaped {
                Some(byte) => u8::try_from(byte).expect("two hexadecimal digits make a byte"),
                None if byte == b'+' => b' ',
                None => byte,
            };
            decoded.push(byte.to_ascii_lowercase());
            at += if escaped.is_some() { 3 } else { 1 };
        }
        decoded
    })
}

/// Header lines of a request: the client's headers, without hop-by-hop headers and without `ours`, which are
/// added to each request with their current values; with the server's `Host`, and `Via` after those of
/// earlier proxies. The front has removed the headers that the client's `Connection` names.
pub(super) fn request_lines(
    host: &HeaderValue,
    via: &HeaderValue,
    headers: &HeaderMap,
    ours: &HeaderMap,
) -> Vec<u8> {
    let mut lines = Vec::with_capacity(64 + headers.len() * 48);
    http1::write_header_line(&mut lines, &header::HOST, host);
    for (name, value) in headers {
        if HeaderScope::for_header(name).is_relayed() && !ours.contains_key(name) {
            http1::write_header_line(&mut lines, name, value);
        }
    }
    http1::write_header_line(&mut lines, &header::VIA, via);
    if !ours.contains_key(header::ACCEPT_ENCODING) {
        http1::write_header_line(&mut lines, &header::ACCEPT_ENCODING, &NO_CODING);
    }
    lines
}

/// Coding that servers are asked for: without `Accept-Encoding` any coding would be allowed (RFC 9110,
/// 12.5.3).
pub(super) const NO_CODING: HeaderValue = HeaderValue::from_static("identity");

/// Headers of a response without hop-by-hop headers, and without the CORS headers of the server: only
/// `access.origins` decides which sites may read it.
pub(super) fn strip_hop_headers(mut headers: HeaderMap) -> HeaderMap {
    // A length beside a transfer coding does not count (RFC 9112, 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named_by_connection(&headers).iter().chain(&OF_HOP) {
        headers.remove(name);
    }
    let is_for_pages = |name: &HeaderName| name.as_str().starts_with("access-control-");
    let for_pages: SmallVec<[_; 8]> = headers.keys().filter(|name| is_for_pages(name)).cloned().collect();
    for name in for_pages {
        headers.remove(name);
    }
    headers
}

/// Headers of one connection (RFC 9110, 7.6.1), and those that a proxy answers itself.
const OF_HOP: [HeaderName; 9] = [
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

/// Headers of a response that `Connection` declares as hop-by-hop. The session id is never removed: without
/// it a response has another meaning.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !name.as_str().starts_with("mcp-") && *name != header::AUTHORIZATION)
        .collect()
}
