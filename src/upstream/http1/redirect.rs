//! Redirects that keep method and body (RFC 9110, 15.4.8 and 15.4.9).
//!
//! Followed on the same origin only: a request is meant for the server that the operator named.

use http::{HeaderMap, StatusCode, Uri, header, uri::PathAndQuery};

/// Path and query to which a response redirects the request for `path`. `None` without a redirect, or for
/// another origin.
pub(super) fn redirect(server: &Uri, path: &str, status: StatusCode, headers: &HeaderMap) -> Option<String> {
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let location = headers.get(header::LOCATION)?.to_str().ok()?.trim();
    let location = location.split_once('#').map_or(location, |(location, _)| location);
    let target = if let Some(same_scheme) = location.strip_prefix("//") {
        of_this_server(server, server.scheme_str()?, same_scheme)?
    } else if let Some((scheme, rest)) =
        location.split_once("://").filter(|_| !location.starts_with(['/', '?']))
    {
        of_this_server(server, scheme, rest)?
    } else {
        resolve_reference(path, location)?
    };
    // Only a path is sent, whatever the server writes.
    target
        .parse::<PathAndQuery>()
        .ok()
        .map(|target| target.as_str().to_owned())
        .filter(|target| target.starts_with('/'))
}

/// Path of a URL after its scheme, if it names this server.
fn of_this_server(server: &Uri, scheme: &str, rest: &str) -> Option<String> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let other: Uri = format!("{scheme}://{authority}/").parse().ok()?;
    let is_same = other.scheme() == server.scheme()
        && !authority.contains('@')
        && other.host()?.eq_ignore_ascii_case(server.host()?)
        && port(&other) == port(server);
    is_same.then(|| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

/// Resolves a reference without a host against the requested path (RFC 3986, 5.2).
fn resolve_reference(path: &str, reference: &str) -> Option<String> {
    let requested = path.split_once('?').map_or(path, |(path, _)| path);
    match reference.bytes().next()? {
        b'/' => Some(reference.to_owned()),
        b'?' => Some(format!("{requested}{reference}")),
        // `a:b` would be another scheme.
        _ if reference.split('/').next().is_some_and(|first| first.contains(':')) => None,
        _ => {
            let mut segments: Vec<_> = requested.split('/').collect();
            segments.pop();
            let mut rest = reference;
            while let Some(outer) = rest.strip_prefix("../") {
                rest = outer;
                if segments.len() > 1 {
                    segments.pop();
                }
            }
            let rest = rest.strip_prefix("./").unwrap_or(rest);
            Some(format!("{}/{rest}", segments.join("/")))
        }
    }
}

fn port(uri: &Uri) -> Option<u16> {
    let own = match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        Some(_) | None => None,
    };
    uri.port_u16().or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(server: &str, path: &str, status: u16, location: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, location.parse().expect("a header value"));
        let status = StatusCode::from_u16(status).expect("a status");
        redirect(&server.parse().expect("a URL"), path, status, &headers)
    }

    #[test]
    fn a_redirect_is_followed_on_the_same_origin_alone() {
        for (server, location, expected) in [
            ("http://a:9000/mcp", "/mcp/", Some("/mcp/")),
            ("http://a:9000/mcp", "/mcp/?x=http://b/", Some("/mcp/?x=http://b/")),
            ("http://a:9000/mcp", "http://a:9000/v2/mcp?x=1#part", Some("/v2/mcp?x=1")),
            ("http://a:9000/mcp", "http://A:9000", Some("/")),
            ("http://a:80/mcp", "http://a/mcp/", Some("/mcp/")),
            ("https://a/mcp", "https://a:443/mcp/", Some("/mcp/")),
            ("http://a:9000/mcp", "//a:9000/x", Some("/x")),
            ("http://a:9000/mcp", "mcp/", Some("/mcp/")),
            ("http://a:9000/mcp", "./mcp/", Some("/mcp/")),
            ("http://a:9000/mcp", "../../x", Some("/x")),
            ("http://a:9000/mcp", "?again=1", Some("/mcp?again=1")),
            ("http://a:9000/mcp", "http://b:9000/mcp", None),
            ("http://a:9000/mcp", "http://a:9001/mcp", None),
            ("http://a:9000/mcp", "https://a:9000/mcp", None),
            ("http://a:9000/mcp", "//b/mcp", None),
            ("http://a:9000/mcp", "http://b@a:9000/mcp", None),
            ("http://a:9000/mcp", "http://a:9000@b/mcp", None),
            ("http://a:9000/mcp", "javascript:x", None),
            ("http://a:9000/mcp", "", None),
            ("http://a:9000/mcp", "/a b", None),
        ] {
            for status in [307, 308] {
                assert_eq!(of(server, "/mcp", status, location).as_deref(), expected, "{server} {location}");
            }
            for status in [200, 201, 301, 302, 303] {
                assert_eq!(of(server, "/mcp", status, location), None, "{status} does not keep the method");
            }
        }
    }
}
