//! Protected-resource metadata (RFC 9728), with the proxy's address.
//!
//! A client that gets a 401 reads in `WWW-Authenticate` where to find the metadata, and in the metadata which
//! resource to request a token for; it gives up if that is not the address it called. So the two places that
//! carry the server's own address get the proxy's, and nothing else in header or document is changed.

use super::{
    Front,
    connection::ClientConnection,
    incoming::{IncomingRequest, ResponseResult},
    layers::{
        access_entry::AccessEntry,
        principal::{derive_principal, read_credentials, remove_hop_headers},
    },
    reply::FrontBody,
    responses::{self, RefusalReason, refuse},
};
use crate::{
    policy::Route,
    protocol::splice::{JsonObject, ObjectEdit},
    proxy::{AccessSummary, RouteService},
    upstream::OriginResponse,
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, Uri,
    header::{CACHE_CONTROL, CONTENT_TYPE, HOST, WWW_AUTHENTICATE},
    request::Parts,
};
use std::{ops::Range, sync::Arc};

/// Path prefix of protected-resource metadata; the path of the resource follows (RFC 9728).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Header of a proxy in front: the scheme by which the client reached it.
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Parameter of `WWW-Authenticate` that names the metadata's URL (RFC 9728, 5.1).
const METADATA_PARAMETER: &str = "resource_metadata";

/// The address by which a client called the proxy, without a path.
pub(super) struct PublicAddress {
    scheme: AddressScheme,
    /// Host and port; with [`AddressScheme::Public`], the whole configured URL without a trailing slash.
    authority: Box<str>,
}

enum AddressScheme {
    Http,
    Https,
    /// The scheme is a part of the configured `public_url`.
    Public,
}

/// Whether a path is that of protected-resource metadata. Paths with dot segments are not: resolved, they
/// would reach any path of the server's host, with the caller's credentials.
pub(super) fn is_metadata_path(path: &str) -> bool {
    path.strip_prefix(WELL_KNOWN)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') && !has_dot_segments(rest))
}

/// Whether a path has dot segments, however they and the slashes around them are encoded.
pub(super) fn has_dot_segments(path: &str) -> bool {
    // Decode repeatedly: the path may be decoded more than once on its way.
    let mut decoded = String::with_capacity(path.len());
    for char in path.chars() {
        decoded.push(char.to_ascii_lowercase());
        if decoded.ends_with("%25") {
            decoded.truncate(decoded.len() - 2);
        }
    }
    let path = decoded.replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace('\\', "/");
    // Some servers treat text after a semicolon as a parameter of the segment (RFC 3986, 3.3).
    path.split('/').any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
}

/// Answers with the metadata of the server behind the route that the path names.
///
/// The future is boxed: it is rare, and should not enlarge that of every call.
pub(super) fn serve<B>(
    front: Arc<Front>,
    incoming: IncomingRequest<B>,
) -> BoxFuture<'static, ResponseResult> {
    let IncomingRequest { request, entry } = incoming;
    let (mut head, _body) = request.into_parts();
    async move { Ok(fetch_metadata(&front, &mut head, entry).await) }.boxed()
}

async fn fetch_metadata(front: &Front, head: &mut Parts, mut entry: AccessEntry) -> Response<FrontBody> {
    let path = head.uri.path();
    let Some(service) = find_service(front, path) else {
        let served = front.services.iter().map(|service| format!("{WELL_KNOWN}{}", service.route().path));
        let served = served.collect::<Vec<_>>().join(", ");
        return refuse(RefusalReason::Path { path: path.to_owned(), served }, entry);
    };
    let route = service.route();
    entry.set_route(&route.path);
    if service.is_loop(&head.headers) {
        return refuse(RefusalReason::Loop { path: route.path.to_string() }, entry);
    }
    remove_hop_headers(route, &mut head.headers);
    entry.set_principal(derive_principal(&front.principals, route, None, &head.headers));
    let credentials = read_credentials(route, &head.headers);
    let address = PublicAddress::from_request(front, head, entry.connection());
    match service.fetch_metadata(path, &credentials).await {
        Ok(document) => respond(document, &address, route, entry),
        Err(error) => {
            let mut response = refuse(RefusalReason::Metadata(error), entry);
            address.rewrite_challenges(&front.services, route, response.headers_mut());
            response
        }
    }
}

/// Returns the route whose metadata a path names: the route named after the prefix, or the only route,
/// whatever the path names, because the path may be the server's own.
fn find_service<'a>(front: &'a Front, path: &str) -> Option<&'a Arc<dyn RouteService>> {
    let named = front.service(path.strip_prefix(WELL_KNOWN)?);
    match (named, &*front.services) {
        (Some(service), _) | (None, [service]) => Some(service),
        (None, _) => None,
    }
}

fn respond(
    document: OriginResponse,
    address: &PublicAddress,
    route: &Route,
    entry: AccessEntry,
) -> Response<FrontBody> {
    let OriginResponse { status, headers, body } = document;
    let body = if status.is_success() { address.rewrite_metadata(route, body) } else { body };
    let mut response = responses::json(status, body, AccessSummary::default(), entry);
    for name in [CONTENT_TYPE, CACHE_CONTROL, WWW_AUTHENTICATE] {
        if let Some(value) = headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

// === impl PublicAddress ===

impl PublicAddress {
    /// Returns the configured address, or that of the request: its host, and the scheme by which it reached
    /// the proxy or a proxy in front. A client that forges these misleads itself alone.
    pub(super) fn from_request(front: &Front, head: &Parts, connection: &ClientConnection) -> Self {
        if let Some(public) = &front.public_url {
            return Self { scheme: AddressScheme::Public, authority: without_trailing_slash(public).into() };
        }
        // Of several proxies in front, the first value is that of the client.
        let forwarded = head.headers.get(&FORWARDED_PROTO).map(HeaderValue::as_bytes);
        let forwarded = forwarded.and_then(|list| list.split(|&byte| byte == b',').next());
        let scheme = match forwarded.map(<[u8]>::trim_ascii) {
            Some(b"https") => AddressScheme::Https,
            Some(b"http") => AddressScheme::Http,
            Some(_) | None if connection.is_tls => AddressScheme::Https,
            Some(_) | None => AddressScheme::Http,
        };
        let host = || head.headers.get(HOST).and_then(|host| host.to_str().ok());
        let authority = head.uri.authority().map(|authority| authority.as_str()).or_else(host);
        Self { scheme, authority: authority.unwrap_or("localhost").into() }
    }

    /// Returns the URL of a path at this address.
    pub(super) fn url_for(&self, path: &str) -> String {
        let scheme = match self.scheme {
            AddressScheme::Http => "http://",
            AddressScheme::Https => "https://",
            AddressScheme::Public => "",
        };
        format!("{scheme}{}{path}", self.authority)
    }

    /// Sets the `resource` of metadata to the proxy's address of the route.
    fn rewrite_metadata(&self, route: &Route, body: Bytes) -> Bytes {
        let Ok(object) = JsonObject::read(&body) else { return body };
        if !object.contains("resource") {
            return body;
        }
        let resource = serde_json::to_vec(&self.url_for(&route.path)).expect("a string is written to memory");
        let mut edit = ObjectEdit::new(&object);
        edit.set("resource", resource);
        edit.apply()
    }

    /// Rewrites the metadata URL in challenges (`WWW-Authenticate`) to the proxy's address. With a single
    /// route, a well-known path that the server gave is kept, because the client will request it; otherwise
    /// the path becomes the route's.
    pub(super) fn rewrite_challenges(
        &self,
        services: &[Arc<dyn RouteService>],
        route: &Route,
        headers: &mut HeaderMap,
    ) {
        let keep_path = services.len() == 1;
        // Few responses have the header, and `entry` would reserve a slot for it.
        if !headers.contains_key(WWW_AUTHENTICATE) {
            return;
        }
        if let http::header::Entry::Occupied(mut challenges) = headers.entry(WWW_AUTHENTICATE) {
            for challenge in challenges.iter_mut() {
                if let Some(rewritten) = self.rewrite_challenge(challenge, route, keep_path) {
                    *challenge = rewritten;
                }
            }
        }
    }

    fn rewrite_challenge(
        &self,
        challenge: &HeaderValue,
        route: &Route,
        keep_path: bool,
    ) -> Option<HeaderValue> {
        let text = challenge.to_str().ok()?;
        let range = find_metadata_url(text)?;
        let path = text[range.clone()]
            .parse::<Uri>()
            .ok()
            .map(|url| url.path().to_owned())
            .filter(|path| keep_path && is_metadata_path(path))
            .unwrap_or_else(|| format!("{WELL_KNOWN}{}", route.path));
        let url = self.url_for(&path);
        HeaderValue::try_from(format!("{}{url}{}", &text[..range.start], &text[range.end..])).ok()
    }
}

/// Returns the URL without a trailing slash.
fn without_trailing_slash(public: &Uri) -> String {
    public.to_string().trim_end_matches('/').to_owned()
}

/// Returns the range of the value of `resource_metadata` in a challenge, without its quotes. Text inside
/// other quoted values is not mistaken for the parameter.
fn find_metadata_url(challenge: &str) -> Option<Range<usize>> {
    let bytes = challenge.as_bytes();
    let mut at = 0;
    let mut in_quotes = false;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_quotes => at += 1,
            b'"' => in_quotes = !in_quotes,
            _ if !in_quotes && is_parameter_at(bytes, at) => {
                let from = at + METADATA_PARAMETER.len() + 1;
                return Some(value_range(challenge, from));
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether `resource_metadata=` begins at `at`, as a name of its own.
fn is_parameter_at(bytes: &[u8], at: usize) -> bool {
    let is_name_start = at == 0 || matches!(bytes[at - 1], b' ' | b'\t' | b',');
    is_name_start
        && bytes
            .get(at..at + METADATA_PARAMETER.len())
            .is_some_and(|name| name.eq_ignore_ascii_case(METADATA_PARAMETER.as_bytes()))
        && bytes.get(at + METADATA_PARAMETER.len()) == Some(&b'=')
}

/// Returns the range of the value that begins at `from`: quoted, or up to the next separator.
fn value_range(challenge: &str, from: usize) -> Range<usize> {
    let rest = &challenge[from..];
    match rest.strip_prefix('"') {
        Some(inner) => from + 1..from + 1 + inner.find('"').unwrap_or(inner.len()),
        None => from..from + rest.find([',', ' ', '\t']).unwrap_or(rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_found_as_a_name_of_its_own() {
        for (challenge, found) in [
            (r#"Bearer resource_metadata="https://a/b""#, Some("https://a/b")),
            (r#"Bearer error="x",RESOURCE_METADATA=https://a/b, scope="y""#, Some("https://a/b")),
            (r#"Bearer resource_metadata="""#, Some("")),
            (r#"Bearer resource_metadata="cut"#, Some("cut")),
            (r#"Bearer realm="say \", resource_metadata=no", resource_metadata="yes""#, Some("yes")),
            (r#"Bearer x_resource_metadata="no""#, None),
            (r#"Bearer resource_metadata"#, None),
            (r#"Bearer realm="resource_metadata=no""#, None),
            ("", None),
        ] {
            assert_eq!(find_metadata_url(challenge).map(|at| &challenge[at]), found, "{challenge}");
        }
    }

    #[test]
    fn only_paths_below_the_prefix_are_metadata() {
        for path in [
            WELL_KNOWN,
            "/.well-known/oauth-protected-resource/",
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-protected-resource/v1.0/..mcp/a%20b",
        ] {
            assert!(is_metadata_path(path), "{path}");
        }
        for path in [
            "/.well-known/oauth-protected-resources",
            "/.well-known",
            "/mcp",
            "/.well-known/oauth-protected-resource/..",
            "/.well-known/oauth-protected-resource/../../admin",
            "/.well-known/oauth-protected-resource/a/%2E%2e/b",
            "/.well-known/oauth-protected-resource/a/.%2e%2F../b",
            "/.well-known/oauth-protected-resource/%252e%252e/b",
            "/.well-known/oauth-protected-resource/..;x/b",
            "/.well-known/oauth-protected-resource/..\\b",
        ] {
            assert!(!is_metadata_path(path), "{path}");
        }
    }
}
