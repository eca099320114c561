//! Redirects that keep method and body (RFC 9110, 15.4.8 and 15.4.9).
//!
//! Followed on the same origin only: a request is meant for the server that the operator named.

use http::{HeaderMap, StatusCode, Uri, header, uri::PathAndQuery};

/// Path and query to which a response redirects the request for `path`. `None` if the response is no
/// redirect, or its target is another origin.
pub(super) fn redirect_target(
    server: &Uri,
    path: &str,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<String> {
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let location = headers.get(header::LOCATION)?.to_str().ok()?.trim();
    let location = location.split_once('#').map_or(location, |(location, _)| location);
    let target = if let Some(authority_and_path) = location.strip_prefix("//") {
        path_on_server(server, server.scheme_str()?, authority_and_path)?
    } else if let Some((scheme, authority_and_path)) =
        location.split_once("://").filter(|_| !location.starts_with(['/', '?']))
    {
        path_on_server(server, scheme, authority_and_path)?
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

/// Path of a URL, if the URL is on this server. `rest` is the URL after its scheme.
fn path_on_server(server: &Uri, scheme: &str, rest: &str) -> Option<String> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target: Uri = format!("{scheme}://{authority}/").parse().ok()?;
    let is_same_origin = target.scheme() == server.scheme()
        && !authority.contains('@')
        && target.host()?.eq_ignore_ascii_case(server.host()?)
        && port_or_default(&target) == port_or_default(server);
    is_same_origin.then(|| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

/// Resolves a reference without a host against the requested path (RFC 3986, 5.2).
fn resolve_reference(path: &str, reference: &str) -> Option<String> {
    let base_path = path.split_once('?').map_or(path, |(path, _)| path);
    match reference.bytes().next()? {
        b'/' => Some(reference.to_owned()),
        b'?' => Some(format!("{base_path}{reference}")),
        // `a:b` would be another scheme.
        _ if reference.split('/').next().is_some_and(|first| first.contains(':')) => None,
        _ => {
            let mut segments: Vec<_> = base_path.split('/').collect();
            segments.pop();
            let mut remaining = reference;
            while let Some(after) = remaining.strip_prefix("../") {
                remaining = after;
                if segments.len() > 1 {
                    segments.pop();
                }
            }
            let remaining = remaining.strip_prefix("./").unwrap_or(remaining);
            Some(format!("{}/{remaining}", segments.join("/")))
        }
    }
}

fn port_or_default(uri: &Uri) -> Option<u16> {
    let default_port = match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        Some(_) | None => None,
    };
    uri.port_u16().or(default_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect_path(server: &str, path: &str, status: u16, location: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, location.parse().expect("a header value"));
        let status = StatusCode::from_u16(status).expect("a status");
        redirect_target(&server.parse().expect("a URL"), path, status, &headers)
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
                assert_eq!(
                    redirect_path(server, "/mcp", status, location).as_deref(),
                    expected,
                    "{server} {location}"
                );
            }
            for status in [200, 201, 301, 302, 303] {
                assert_eq!(
                    redirect_path(server, "/mcp", status, location),
                    None,
                    "{status} does not keep the method"
                );
            }
        }
    }
}
