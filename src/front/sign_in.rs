//! Sign-in at a server whose own host is its authorization server (2025-03-26, *Authorization*).
//!
//! A client of that revision requests the metadata of its authorization server (RFC 8414; OpenID Connect
//! Discovery) from the host of the MCP endpoint, here the proxy, and then the endpoints that those documents
//! name. So the proxy forwards the two documents, with its own address in place of the server's origin, and
//! requests to the endpoints that they name on that origin. Nothing else of that origin is forwarded, and no
//! other origin is reached: URLs elsewhere are left as they are.
//!
//! Where the routes have servers of several origins, each route is an issuer of its own: `ORIGIN/ROUTE`, with
//! its metadata at `/.well-known/…/ROUTE` (RFC 8414, 3.1) and its endpoints below `/ROUTE`.

use super::{
    Front,
    incoming::{IncomingRequest, ResponseResult},
    known_endpoints::{KnownEndpoints, OriginEndpoints},
    layers::{
        access_entry::AccessEntry,
        principal::{derive_principal, remove_hop_headers},
    },
    metadata::{PublicAddress, has_dot_segments},
    preflight::preflight,
    receive::receive,
    reply::FrontBody,
    responses::{RefusalReason, refuse},
};
use crate::{
    protocol::splice::{JsonObject, ObjectEdit},
    proxy::{AccessSummary, RouteService},
    runtime::Clock,
    upstream::{CallError, OriginRequest, OriginResponse},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{
    HeaderMap, HeaderValue, Method, Response, Uri,
    header::{CONTENT_LENGTH, LOCATION},
    request::Parts,
};
use http_body::Body as HttpBody;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Path prefixes of authorization-server metadata: alone, or before the path of the issuer.
const DOCUMENTS: [&str; 2] = [OAUTH_METADATA, OPENID_METADATA];
/// Path of OAuth authorization-server metadata (RFC 8414, 3).
const OAUTH_METADATA: &str = "/.well-known/oauth-authorization-server";
/// Path of OpenID Connect metadata, also used after the path of the issuer (OpenID Connect Discovery 1.0, 4).
const OPENID_METADATA: &str = "/.well-known/openid-configuration";

/// The members of a document that name an endpoint (RFC 8414, 2, and its registry).
const ENDPOINT_MEMBERS: [&str; 12] = [
    "authorization_endpoint",
    "token_endpoint",
    "registration_endpoint",
    "revocation_endpoint",
    "introspection_endpoint",
    "device_authorization_endpoint",
    "pushed_authorization_request_endpoint",
    "backchannel_authentication_endpoint",
    "jwks_uri",
    "userinfo_endpoint",
    "end_session_endpoint",
    "check_session_iframe",
];

/// Least time between two fetches of an origin's documents to find an endpoint.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of one fetch of all documents to find an endpoint.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest body of a request to an endpoint, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A route whose clients can sign in at its server's origin.
struct RouteIssuer<'a> {
    service: &'a Arc<dyn RouteService>,
    /// URL of the server's MCP endpoint.
    url: &'a Uri,
    /// The server's origin, normalized: `scheme://host:port`.
    origin: String,
    /// Prefix of the endpoints' paths at the proxy's address: empty if all routes have one origin.
    prefix: &'a str,
}

/// What a request is for.
enum SignInTarget<'a> {
    /// A metadata document, at the first of these paths of the origin that has one.
    Document(RouteIssuer<'a>, Vec<String>),
    /// A path of the origin, which may or may not be that of an endpoint.
    Endpoint(RouteIssuer<'a>, String),
}

/// Whether a path is that of an authorization-server metadata document.
pub(super) fn is_document(path: &str) -> bool {
    let before = DOCUMENTS.iter().filter_map(|document| path.strip_prefix(document));
    before.into_iter().any(|rest| rest.is_empty() || rest.starts_with('/')) || path.ends_with(OPENID_METADATA)
}

/// Whether the proxy forwards sign-in for a request: it needed no token of the proxy, and the server of some
/// route has an origin to sign in at.
pub(super) fn is_available(front: &Front, entry: &AccessEntry) -> bool {
    entry.token_name().is_none() && !issuers(front).is_empty()
}

/// Answers a request that belongs to no route, if it is for a document or an endpoint.
///
/// The future is boxed: it is rare, and should not enlarge that of every call.
pub(super) fn serve<B>(front: Arc<Front>, incoming: IncomingRequest<B>) -> BoxFuture<'static, ResponseResult>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    async move { Ok(respond(&front, incoming).await) }.boxed()
}

async fn respond<B>(front: &Front, incoming: IncomingRequest<B>) -> Response<FrontBody>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
{
    let IncomingRequest { request, mut entry } = incoming;
    let path = request.uri().path().to_owned();
    let Some(target) = find_target(front, &path) else {
        return refuse(
            RefusalReason::Path { path, served: served_paths(front, request.uri().path()) },
            entry,
        );
    };
    let (issuer, methods) = match &target {
        SignInTarget::Document(issuer, _) => (issuer, "GET"),
        SignInTarget::Endpoint(issuer, endpoint) => {
            if !is_endpoint(&front.endpoints, issuer, endpoint, &*front.clock).await {
                return refuse(RefusalReason::Path { path, served: front.paths() }, entry);
            }
            (issuer, "GET, POST")
        }
    };
    let route = issuer.service.route();
    entry.set_route(&route.path);
    let method = request.method().clone();
    if method == Method::OPTIONS {
        return preflight(&request, methods, entry);
    }
    if !methods.split(", ").any(|served| served == method.as_str()) {
        return refuse(RefusalReason::Method { method, allow: methods }, entry);
    }
    let (mut head, body) = request.into_parts();
    if issuer.service.is_loop(&head.headers) {
        return refuse(RefusalReason::Loop { path: route.path.to_string() }, entry);
    }
    remove_hop_headers(route, &mut head.headers);
    entry.set_principal(derive_principal(&front.principals, route, None, &head.headers));
    let address = PublicAddress::from_request(front, &head, entry.connection());
    let response = match &target {
        SignInTarget::Document(issuer, paths) => fetch_document(front, issuer, paths, &head, &address).await,
        SignInTarget::Endpoint(issuer, endpoint) => {
            let limit = front.limits.body_bytes.min(MAX_BODY_BYTES);
            let connection = entry.connection();
            let time_limit = front.timeouts.read_body;
            let body = match receive(&front.bodies, body, limit, time_limit, || connection.begin_body()).await
            {
                Ok(body) => {
                    connection.complete_request();
                    body
                }
                Err(refusal) => return refuse(refusal, entry),
            };
            forward(front, issuer, endpoint, &head, body, &address).await
        }
    };
    match response {
        Ok(document) => relay_response(document, entry),
        Err(error) => refuse(RefusalReason::SignIn(error), entry),
    }
}

/// Returns what a request is for, as far as its path shows; `None` if for nothing that is forwarded.
fn find_target<'a>(front: &'a Front, path: &str) -> Option<SignInTarget<'a>> {
    if has_dot_segments(path) {
        return None;
    }
    let issuers = issuers(front);
    let has_single_origin = issuers.first().is_some_and(|first| first.prefix.is_empty());
    for document in DOCUMENTS {
        let Some(rest) = path.strip_prefix(document) else { continue };
        if rest.is_empty() {
            let first = issuers.into_iter().next().filter(|_| has_single_origin)?;
            return Some(SignInTarget::Document(first, vec![document.to_owned()]));
        }
        let issuer = issuers.into_iter().find(|issuer| issuer.path() == rest)?;
        let mut paths = vec![format!("{document}{}", issuer.url.path().trim_end_matches('/'))];
        if !has_single_origin && paths[0] != document {
            paths.push(document.to_owned());
        }
        return Some(SignInTarget::Document(issuer, paths));
    }
    if let Some(before) = path.strip_suffix(OPENID_METADATA) {
        let issuer = issuers.into_iter().find(|issuer| issuer.path() == before)?;
        let document = format!("{}{OPENID_METADATA}", issuer.url.path().trim_end_matches('/'));
        return Some(SignInTarget::Document(issuer, vec![document]));
    }
    // The longest prefix wins: one route may be below another.
    let match_issuer = |issuer: &RouteIssuer<'_>| {
        let rest = path.strip_prefix(issuer.prefix).filter(|rest| rest.starts_with('/'));
        rest.map(|rest| (issuer.prefix.len(), rest.to_owned()))
    };
    let found = issuers.into_iter().filter_map(|issuer| Some((match_issuer(&issuer)?, issuer)));
    let ((_, rest), issuer) = found.max_by_key(|((length, _), _)| *length)?;
    Some(SignInTarget::Endpoint(issuer, rest))
}

/// Returns the routes whose server has a URL and gets the `Authorization` of clients.
fn issuers(front: &Front) -> Vec<RouteIssuer<'_>> {
    let candidates = front.services.iter().filter(|service| service.passes_authorization());
    let candidates = candidates.filter_map(|service| {
        Some((service, service.server_url()?, service.server_url().and_then(origin_of)?))
    });
    let mut issuers: Vec<_> =
        candidates.map(|(service, url, origin)| RouteIssuer { service, url, origin, prefix: "" }).collect();
    let has_single_origin = issuers.windows(2).all(|pair| pair[0].origin == pair[1].origin);
    if !has_single_origin {
        issuers.iter_mut().for_each(|issuer| issuer.prefix = &issuer.service.route().path);
    }
    issuers
}

/// Returns the served paths, for error messages: a document belongs to one route each, where the routes have
/// several origins.
fn served_paths(front: &Front, path: &str) -> String {
    let issuers = issuers(front);
    match DOCUMENTS.iter().find(|document| path.starts_with(**document)) {
        Some(document) if !issuers.is_empty() => {
            let each = issuers.iter().map(|issuer| format!("{document}{}", issuer.path()));
            each.collect::<Vec<_>>().join(", ")
        }
        Some(_) | None => front.paths(),
    }
}

/// Fetches a document from the first of these paths that has one, and replaces the server's address by the
/// proxy's.
async fn fetch_document(
    front: &Front,
    issuer: &RouteIssuer<'_>,
    paths: &[String],
    head: &Parts,
    address: &PublicAddress,
) -> Result<OriginResponse, CallError> {
    let mut last = None;
    for path in paths {
        let request = OriginRequest::get(path.clone(), head.headers.clone());
        let mut response = issuer.service.request_origin(request).await?;
        if response.status.is_success() {
            record_endpoints(
                &front.endpoints.for_origin(&issuer.origin),
                issuer,
                &response.body,
                front.clock.now(),
            );
            response.body = issuer.rewrite_document(response.body, address);
            return Ok(response);
        }
        last = Some(response);
    }
    Ok(last.expect("there is a path"))
}

/// Forwards a request to an endpoint.
async fn forward(
    front: &Front,
    issuer: &RouteIssuer<'_>,
    endpoint: &str,
    head: &Parts,
    body: Bytes,
    address: &PublicAddress,
) -> Result<OriginResponse, CallError> {
    let path = match head.uri.query() {
        Some(query) => format!("{endpoint}?{query}"),
        None => endpoint.to_owned(),
    };
    let (method, headers) = (head.method.clone(), head.headers.clone());
    let mut response = issuer.service.request_origin(OriginRequest { method, path, headers, body }).await?;
    let (endpoints, now) = (front.endpoints.for_origin(&issuer.origin), front.clock.now());
    let location = response.headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let rewritten = location.and_then(|location| {
        issuer.rewrite_location(endpoint, location, |path| endpoints.contains(path, now), address)
    });
    if let Some(rewritten) = rewritten.and_then(|rewritten| HeaderValue::try_from(rewritten).ok()) {
        response.headers.insert(LOCATION, rewritten);
    }
    Ok(response)
}

fn relay_response(response: OriginResponse, mut entry: AccessEntry) -> Response<FrontBody> {
    let OriginResponse { status, mut headers, body } = response;
    headers.remove(CONTENT_LENGTH);
    entry.set_status(status);
    let mut response = Response::new(FrontBody::whole(body, None, AccessSummary::default(), entry));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

// === impl RouteIssuer ===

impl RouteIssuer<'_> {
    /// Returns the issuer's path at the proxy's address.
    fn path(&self) -> &str {
        &self.service.route().path
    }

    /// Returns the rest of a URL after its origin, if that is the server's own.
    fn strip_own_origin<'t>(&self, url: &'t str) -> Option<&'t str> {
        let (origin, rest) = split_origin(url)?;
        (origin_of(&origin.parse().ok()?)? == self.origin).then_some(rest)
    }

    /// Returns the document with the proxy's address in place of the server's origin.
    fn rewrite_document(&self, body: Bytes, address: &PublicAddress) -> Bytes {
        let Ok(object) = JsonObject::read(&body) else { return body };
        let mut edit = ObjectEdit::new(&object);
        for member in ENDPOINT_MEMBERS {
            if let Some(rest) = object.string(member).as_deref().and_then(|url| self.strip_own_origin(url)) {
                edit.set(member, to_json(&address.url_for(&format!("{}{rest}", self.prefix))));
            }
        }
        // A client compares the issuer with the URL of the document (RFC 8414, 3.3).
        if let Some(rest) = object.string("issuer").as_deref().and_then(|url| self.strip_own_origin(url)) {
            let is_endpoint = !rest.is_empty() && rest == self.url.path();
            let path = match self.prefix {
                "" if is_endpoint => self.path(),
                "" => rest,
                prefix => prefix,
            };
            edit.set("issuer", to_json(&address.url_for(path)));
        }
        if edit.is_empty() { body } else { edit.apply() }
    }

    /// Returns the new target of an endpoint's redirect: at the proxy's address if it is an endpoint too,
    /// otherwise at the server. `None` if `Location` stays as it is.
    fn rewrite_location(
        &self,
        endpoint: &str,
        location: &str,
        is_known_endpoint: impl Fn(&str) -> bool,
        address: &PublicAddress,
    ) -> Option<String> {
        let relative = match split_origin(location) {
            Some(_) => None,
            // A URL that starts with `//` names another host.
            None if location.starts_with("//") => return None,
            None if location.starts_with('/') => Some(location.to_owned()),
            None => {
                Some(format!("{}/{location}", endpoint.rsplit_once('/').map_or("", |(before, _)| before)))
            }
        };
        let rest = match &relative {
            Some(rest) => rest,
            None => self.strip_own_origin(location)?,
        };
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        match (is_known_endpoint(path), &relative) {
            (true, _) => Some(address.url_for(&format!("{}{rest}", self.prefix))),
            (false, Some(rest)) => Some(format!("{}{rest}", self.origin)),
            (false, None) => None,
        }
    }
}

/// Whether this is the path of an endpoint. Fetches the documents if the path is unknown, because the client
/// may have got them from another process.
async fn is_endpoint(
    endpoints: &KnownEndpoints,
    issuer: &RouteIssuer<'_>,
    path: &str,
    clock: &dyn Clock,
) -> bool {
    let origin_endpoints = endpoints.for_origin(&issuer.origin);
    if origin_endpoints.contains(path, clock.now()) {
        return true;
    }
    let mut last_lookup = origin_endpoints.last_lookup.lock().await;
    let began = clock.now();
    let is_recent = last_lookup.is_some_and(|last| began.saturating_duration_since(last) < LOOKUP_INTERVAL);
    if is_recent || origin_endpoints.contains(path, began) {
        return origin_endpoints.contains(path, began);
    }
    let endpoint_path = issuer.url.path().trim_end_matches('/');
    let paths =
        DOCUMENTS.iter().flat_map(|document| [(*document).to_owned(), format!("{document}{endpoint_path}")]);
    let lookup = async {
        for path in paths.chain([format!("{endpoint_path}{OPENID_METADATA}")]) {
            if let Ok(response) =
                issuer.service.request_origin(OriginRequest::get(path, HeaderMap::new())).await
                && response.status.is_success()
            {
                record_endpoints(&origin_endpoints, issuer, &response.body, began);
            }
        }
    };
    // After a timeout, unknown endpoints are looked up again at a later request.
    let _ = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await;
    *last_lookup = Some(clock.now());
    origin_endpoints.contains(path, began)
}

/// Records the endpoints that a document names.
fn record_endpoints(endpoints: &OriginEndpoints, issuer: &RouteIssuer<'_>, document: &Bytes, now: Instant) {
    let Ok(object) = JsonObject::read(document) else { return };
    let urls: Vec<_> = ENDPOINT_MEMBERS.iter().filter_map(|member| object.string(member)).collect();
    let paths = urls.iter().filter_map(|url| issuer.strip_own_origin(url)?.split(['?', '#']).next());
    // The MCP endpoint is served as a route, with the route's policies.
    let is_endpoint =
        |path: &&str| path.starts_with('/') && *path != issuer.url.path() && !has_dot_segments(path);
    endpoints.insert(paths.filter(is_endpoint), now);
}

/// Returns the origin of a URL as `scheme://host:port`, with a lower-case host and an explicit port.
fn origin_of(url: &Uri) -> Option<String> {
    let scheme = url.scheme_str()?;
    let port = url.port_u16().or(match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    })?;
    Some(format!("{scheme}://{}:{port}", url.host()?.to_ascii_lowercase()))
}

/// Splits a URL into scheme with authority, and the rest. `None` for a relative URL.
fn split_origin(url: &str) -> Option<(&str, &str)> {
    let authority = url.find("://")? + 3;
    let is_scheme =
        url[..authority - 3].bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    is_scheme.then(|| url.split_at(end))
}

fn to_json(text: &str) -> Vec<u8> {
    serde_json::to_vec(text).expect("a string is written to memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_compared_by_scheme_host_and_port() {
        let of = |url: &str| origin_of(&url.parse().expect("a URL"));
        assert_eq!(of("http://A.example/x"), of("http://a.example:80"));
        assert_eq!(of("https://a.example/"), of("https://a.example:443/y?z"));
        for other in ["https://a.example", "http://a.example:8080", "http://b.example", "http://a.example.b"]
        {
            assert_ne!(of("http://a.example"), of(other), "{other}");
        }
        assert_eq!(of("ftp://a.example"), None);
        assert_eq!(of("/a"), None);
    }

    #[test]
    fn a_url_is_split_behind_its_authority() {
        for (url, split) in [
            ("http://a/b?c#d", Some(("http://a", "/b?c#d"))),
            ("http://a:1", Some(("http://a:1", ""))),
            ("https://a?b=http://c/d", Some(("https://a", "?b=http://c/d"))),
            ("/a?b=http://c/d", None),
            ("a", None),
            ("//a/b", None),
        ] {
            assert_eq!(split_origin(url), split, "{url}");
        }
    }

    #[test]
    fn documents_are_before_or_behind_the_path_of_a_route() {
        for path in [
            OAUTH_METADATA,
            OPENID_METADATA,
            "/.well-known/oauth-authorization-server/mcp",
            "/a/mcp/.well-known/openid-configuration",
        ] {
            assert!(is_document(path), "{path}");
        }
        for path in
            ["/.well-known/oauth-authorization-servers", "/.well-known/jwks.json", "/mcp", "/.well-known"]
        {
            assert!(!is_document(path), "{path}");
        }
    }
}
