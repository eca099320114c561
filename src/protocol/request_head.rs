//! HTTP's requirements on a request's head, checked before the request is processed (RFC 9110 and RFC 9112).
//!
//! A proxy and its server must agree where a message ends and which host it is for. A head that can be read
//! in two ways is refused (request smuggling: RFC 9112, section 11.2).

use super::headers::to_text_lossy;
use http::{
    HeaderMap, StatusCode, Uri, Version,
    header::{CONTENT_ENCODING, HOST, TRANSFER_ENCODING},
};
use std::net::IpAddr;

/// Why a request's head is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// RFC 9112, section 3.2.
    #[error("a request of HTTP/1.1 must have a `Host` header")]
    NoHost,
    /// RFC 9112, section 3.2.
    #[error("the request has {0} `Host` headers; send one")]
    SeveralHosts(usize),
    /// RFC 9110, section 4.2.3 and 7.2.
    #[error("`{0}` is no host: send `name`, `address` or `[IPv6 address]`, with `:port` where there is one")]
    InvalidHost(String),
    /// RFC 9113, section 8.3.1.
    #[error("the `Host` header is `{host}`, but `:authority` is `{authority}`; send one of the two")]
    HostDiffers { host: String, authority: String },
    /// RFC 9112, section 6.1.
    #[error("the transfer coding `chunked` is applied twice; send `Transfer-Encoding: chunked`")]
    ChunkedTwice,
    /// RFC 9112, section 6.1.
    #[error("the transfer coding `{0}` is not supported; send `Transfer-Encoding: chunked`")]
    TransferCoding(String),
}

/// A host as an authority names it (RFC 3986, section 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostName<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// The content coding that leaves a body unencoded (RFC 9110, section 12.5.3).
const IDENTITY_CODING: &str = "identity";

/// Checks the headers that determine where a request ends and which host it is for.
///
/// # Errors
/// [`HeadError`]. The connection should be closed then, because its next bytes may be meant as part of this
/// request.
pub fn check_request_head(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), HeadError> {
    check_transfer_codings(headers)?;
    let mut hosts = headers.get_all(HOST).iter();
    let (first, further) = (hosts.next(), hosts.count());
    if further > 0 {
        return Err(HeadError::SeveralHosts(further + 1));
    }
    let authority = uri.authority().map(|authority| authority.as_str());
    if let Some(authority) = authority {
        check_host(authority)?;
    }
    let Some(first) = first else {
        return if version == Version::HTTP_11 { Err(HeadError::NoHost) } else { Ok(()) };
    };
    let host = to_text_lossy(first);
    check_host(&host)?;
    match authority {
        Some(authority) if version == Version::HTTP_2 && !is_same_host(authority, &host) => {
            Err(HeadError::HostDiffers { host: host.into_owned(), authority: authority.to_owned() })
        }
        _ => Ok(()),
    }
}

/// The content coding of a body, as the `Content-Encoding` header names it; `None` if the body is not
/// encoded.
pub fn content_coding(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(CONTENT_ENCODING);
    lines.iter().find_map(|line| {
        elements(&to_text_lossy(line))
            .find(|coding| !coding.eq_ignore_ascii_case(IDENTITY_CODING))
            .map(str::to_owned)
    })
}

/// The host of an authority without user information: `host` or `host:port`, and nothing else.
pub fn host_name(authority: &str) -> Option<HostName<'_>> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let address = address.parse().ok().filter(IpAddr::is_ipv6)?;
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return is_port.then_some(HostName::Address(address));
    }
    let (name, port) = authority.split_once(':').unwrap_or((authority, ""));
    if name.is_empty() || !name.bytes().all(is_reg_name_byte) || !is_port(port) {
        return None;
    }
    Some(name.parse().map_or(HostName::Name(name), HostName::Address))
}

/// Whether two authorities name one host. Their ports may differ: some intermediaries change only one of
/// them.
fn is_same_host(one: &str, other: &str) -> bool {
    match (host_name(one), host_name(other)) {
        (Some(HostName::Name(one)), Some(HostName::Name(other))) => one.eq_ignore_ascii_case(other),
        (one, other) => one == other,
    }
}

fn check_host(authority: &str) -> Result<(), HeadError> {
    host_name(authority).map(drop).ok_or_else(|| HeadError::InvalidHost(authority.to_owned()))
}

/// Accepts only `chunked`, once. The body reader checks that it is the last coding.
fn check_transfer_codings(headers: &HeaderMap) -> Result<(), HeadError> {
    let mut is_chunked = false;
    for line in headers.get_all(TRANSFER_ENCODING) {
        for coding in elements(&to_text_lossy(line)) {
            if !coding.eq_ignore_ascii_case("chunked") {
                return Err(HeadError::TransferCoding(coding.to_owned()));
            }
            if std::mem::replace(&mut is_chunked, true) {
                return Err(HeadError::ChunkedTwice);
            }
        }
    }
    Ok(())
}

/// The elements of a list; empty elements do not count (RFC 9110, section 5.6.1).
fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

/// Whether this is the port of an authority; it may be empty (RFC 3986, section 3.2.3).
fn is_port(port: &str) -> bool {
    port.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Whether a byte may stand in a registered name (RFC 3986, section 3.2.2).
fn is_reg_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}

// === impl HeadError ===

impl HeadError {
    /// The HTTP status of the response that refuses the request.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::TransferCoding(_) => StatusCode::NOT_IMPLEMENTED,
            Self::NoHost
            | Self::SeveralHosts(_)
            | Self::InvalidHost(_)
            | Self::HostDiffers { .. }
            | Self::ChunkedTwice => StatusCode::BAD_REQUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(pair).collect()
    }

    fn checked(
        version: Version,
        uri: &'static str,
        lines: &[(&'static str, &'static str)],
    ) -> Option<HeadError> {
        check_request_head(version, &Uri::from_static(uri), &headers(lines)).err()
    }

    #[test]
    fn http_1_1_has_exactly_one_host() {
        let one = ("host", "localhost:8808");
        assert_eq!(checked(Version::HTTP_11, "/mcp", &[one]), None);
        assert_eq!(checked(Version::HTTP_11, "/mcp", &[]), Some(HeadError::NoHost));
        assert_eq!(checked(Version::HTTP_11, "http://localhost/mcp", &[]), Some(HeadError::NoHost));
        assert_eq!(checked(Version::HTTP_10, "/mcp", &[]), None);
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            assert_eq!(checked(version, "/mcp", &[one, one]), Some(HeadError::SeveralHosts(2)));
        }
    }

    #[test]
    fn over_http_2_host_and_authority_agree() {
        let checked = |host| checked(Version::HTTP_2, "http://localhost/mcp", &[("host", host)]);
        assert_eq!((checked("LOCALHOST"), checked("localhost:8808")), (None, None));
        assert!(matches!(checked("example.com"), Some(HeadError::HostDiffers { .. })));
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port() {
        for host in ["localhost", "a.example.com:", "a_b:65535", "10.0.0.7:1", "[::1]", "[::1]:80", "x%41"] {
            assert!(host_name(host).is_some(), "{host}");
        }
        for host in [
            "",
            ":80",
            "[::1].evil.example",
            "[::1]evil.example:80",
            "[::1]:80.evil.example",
            "[::1",
            "[localhost]",
            "[127.0.0.1]",
            "::1",
            "localhost:80@evil.example",
            "user@localhost",
            "localhost:80:80",
            "localhost:65536",
            "localhost:+80",
            "localhost:8o",
            "localhost/evil.example",
            "localhost#evil.example",
            "localhost?evil.example",
            "localhost\\evil.example",
            "localhost evil.example",
            "localhost,\u{e9}",
        ] {
            assert_eq!(host_name(host), None, "{host}");
            if let Ok(value) = HeaderValue::from_str(host) {
                let headers = HeaderMap::from_iter([(HOST, value)]);
                let refused = check_request_head(Version::HTTP_11, &Uri::from_static("/mcp"), &headers)
                    .expect_err(host);
                assert!(matches!(refused, HeadError::InvalidHost(_)), "{host}");
            }
        }
        assert_eq!(host_name("127.0.0.1:80"), Some(HostName::Address(IpAddr::from([127, 0, 0, 1]))));
        assert_eq!(host_name("127.0.0.1.evil.example"), Some(HostName::Name("127.0.0.1.evil.example")));
    }

    #[test]
    fn only_chunked_is_understood_and_only_once() {
        let codings = |lines: &[&'static str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("transfer-encoding", *line)).collect();
            check_transfer_codings(&headers(&lines)).map_err(|error| error.status().as_u16())
        };
        assert_eq!(codings(&[]), Ok(()));
        assert_eq!(codings(&["Chunked"]), Ok(()));
        assert_eq!(codings(&[", chunked ,"]), Ok(()));
        for twice in [&["chunked, chunked"][..], &["chunked", "chunked"], &["chunked,\tCHUNKED"]] {
            assert_eq!(codings(twice), Err(400), "{twice:?}");
        }
        for unknown in [&["gzip, chunked"][..], &["gzip", "chunked"], &["identity, chunked"], &["xchunked"]] {
            assert_eq!(codings(unknown), Err(501), "{unknown:?}");
        }
    }

    #[test]
    fn a_body_without_a_coding_is_read() {
        let coding = |lines: &[&'static str]| {
            content_coding(&headers(
                &lines.iter().map(|line| ("content-encoding", *line)).collect::<Vec<_>>(),
            ))
        };
        assert_eq!(coding(&[]), None);
        assert_eq!(coding(&["", "Identity"]), None);
        assert_eq!(coding(&["gzip"]).as_deref(), Some("gzip"));
        assert_eq!(coding(&["identity", "identity, br"]).as_deref(), Some("br"));
    }
}
