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
    secure: bool,
    /// The request's URL, which has the host over HTTP/2.
    url: &'a Uri,
}

/// Adds `Forwarded` to a request if the route enables that (`upstream.forwarded`).
pub(super) fn add(route: &Route, head: &mut Parts, connection: &ClientConnection) {
    if route.adds_forwarded_header {
        let hop = ClientHop { address: connection.peer, secure: connection.secure, url: &head.uri };
        append(&mut head.headers, hop);
    }
}

/// Appends the client's hop to the hops that earlier proxies have added.
fn append(headers: &mut HeaderMap, hop: ClientHop<'_>) {
    let mut value = Vec::new();
    for before in headers.get_all(FORWARDED) {
        // After an unclosed quote the appended hop would be read as a part of the quoted string.
        if is_closed(before.as_bytes()) && !before.is_empty() {
            value.extend_from_slice(before.as_bytes());
            value.extend_from_slice(b", ");
        }
    }
    let mut ours = String::new();
    match hop.address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => write!(ours, "for={address}"),
        Some(IpAddr::V6(address)) => write!(ours, "for=\"[{address}]\""),
        None => write!(ours, "for=unknown"),
    }
    .expect("a string takes all that is written");
    ours.push_str(if hop.secure { ";proto=https" } else { ";proto=http" });
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = hop.url.authority().map(|authority| authority.as_str()).or(named);
    // These characters need no escape in a quoted string; a host with others is left out.
    if let Some(host) = host.filter(|host| host.bytes().all(is_of_host)) {
        write!(ours, ";host=\"{host}\"").expect("a string takes all that is written");
    }
    value.extend_from_slice(ours.as_bytes());
    headers.insert(
        FORWARDED,
        HeaderValue::from_bytes(&value).expect("header values and visible ASCII make one"),
    );
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Whether every quoted string in a value is closed.
fn is_closed(value: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for &byte in value {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
    }
    !quoted
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
        append(&mut headers, ClientHop { address, secure, url: &url.parse().expect("a URL") });
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
