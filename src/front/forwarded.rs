//! `Forwarded` (RFC 7239): describes the client's connection to the server.

use http::{HeaderMap, HeaderValue, Uri, header, header::FORWARDED, request::Parts};
use std::{fmt::Write as _, net::IpAddr};

use super::connection::ClientConnection;
use crate::policy::Route;

/// The hop between client and proxy.
#[derive(Clone, Copy, Debug)]
struct ClientHop<'a> {
    /// The client's address; `None` for an in-memory connection.
    address: Option<IpAddr>,
    is_tls: bool,
    /// The request's URL, which has the host over HTTP/2.
    url: &'a Uri,
}

/// Adds `Forwarded` to a request if the route enables that (`upstream.forwarded`).
pub(super) fn add_header(route: &Route, head: &mut Parts, connection: &ClientConnection) {
    if route.adds_forwarded_header {
        let hop = ClientHop { address: connection.peer, is_tls: connection.is_tls, url: &head.uri };
        append_hop(&mut head.headers, hop);
    }
}

/// Appends the client's hop to the hops that earlier proxies have added.
fn append_hop(headers: &mut HeaderMap, hop: ClientHop<'_>) {
    let mut value = Vec::new();
    for earlier in headers.get_all(FORWARDED) {
        // After an unclosed quote the appended hop would be read as a part of the quoted string.
        if has_closed_quotes(earlier.as_bytes()) && !earlier.is_empty() {
            value.extend_from_slice(earlier.as_bytes());
            value.extend_from_slice(b", ");
        }
    }
    let mut element = String::new();
    match hop.address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => write!(element, "for={address}"),
        Some(IpAddr::V6(address)) => write!(element, "for=\"[{address}]\""),
        None => write!(element, "for=unknown"),
    }
    .expect("a string takes all that is written");
    element.push_str(if hop.is_tls { ";proto=https" } else { ";proto=http" });
    let host_header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = hop.url.authority().map(|authority| authority.as_str()).or(host_header);
    // These characters need no escape in a quoted string; a host with others is left out.
    if let Some(host) = host.filter(|host| host.bytes().all(is_host_byte)) {
        write!(element, ";host=\"{host}\"").expect("a string takes all that is written");
    }
    value.extend_from_slice(element.as_bytes());
    headers.insert(
        FORWARDED,
        HeaderValue::from_bytes(&value).expect("header values and visible ASCII make one"),
    );
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Whether every quoted string in a value is closed.
fn has_closed_quotes(value: &[u8]) -> bool {
    let (mut in_quotes, mut escaped) = (false, false);
    for &byte in value {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_quotes => escaped = true,
            b'"' => in_quotes = !in_quotes,
            _ => {}
        }
    }
    !in_quotes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(
        before: &[&'static str],
        host: &'static str,
        address: Option<&str>,
        secure: bool,
        url: &str,
    ) -> String {
        let mut headers = HeaderMap::new();
        for value in before {
            headers.append(FORWARDED, HeaderValue::from_static(value));
        }
        if !host.is_empty() {
            headers.insert(header::HOST, HeaderValue::from_static(host));
        }
        let address = address.map(|address| address.parse().expect("an address"));
        append_hop(&mut headers, ClientHop { address, is_tls: secure, url: &url.parse().expect("a URL") });
        assert_eq!(headers.get_all(FORWARDED).iter().count(), 1);
        headers[FORWARDED].to_str().expect("text").to_owned()
    }

    #[test]
    fn it_names_the_client_the_scheme_and_the_host() {
        let plain = added(&[], "a.example:8808", Some("192.0.2.1"), false, "/mcp");
        assert_eq!(plain, r#"for=192.0.2.1;proto=http;host="a.example:8808""#);
        let other = added(&[], "", Some("2001:db8::1"), true, "https://[::1]:1/mcp");
        assert_eq!(other, r#"for="[2001:db8::1]";proto=https;host="[::1]:1""#);
        assert_eq!(added(&[], "", Some("::ffff:192.0.2.1"), false, "/"), "for=192.0.2.1;proto=http");
        assert_eq!(added(&[], "", None, false, "/"), "for=unknown;proto=http");
    }

    #[test]
    fn earlier_hops_stay_unless_their_quotes_are_unclosed() {
        let ours = "for=192.0.2.1;proto=http";
        let with = |before: &[&'static str]| added(before, "", Some("192.0.2.1"), false, "/");
        assert_eq!(with(&["for=a", "for=\"b\\\"\";by=c"]), format!("for=a, for=\"b\\\"\";by=c, {ours}"));
        for open in ["for=\"a", "for=\"a\\\"", ""] {
            assert_eq!(with(&[open]), ours, "{open}");
        }
    }
}
