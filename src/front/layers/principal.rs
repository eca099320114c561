//! The principal of a request, by its head.

use crate::{
    dialect::{Credentials, Principal, PrincipalKey, remove_named_by_connection},
    policy::{PrincipalSource, Route, TokenSet},
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use smallvec::SmallVec;
use std::{collections::BTreeMap, sync::Arc};

/// Derives the principal of a request on this route from the name of its token, if it needed one, and from
/// the header that the route names. The header distinguishes clients that share a token, and cannot lead to
/// the principal of another token. [`Principal::ANONYMOUS`] without either.
pub(in crate::front) fn derive_principal(
    key: &PrincipalKey,
    route: &Route,
    token: Option<&str>,
    headers: &HeaderMap,
) -> Principal {
    let header = match &route.principal {
        PrincipalSource::Authorization => &AUTHORIZATION,
        PrincipalSource::Header(name) => name,
    };
    let mut parts = SmallVec::<[&[u8]; 4]>::new();
    parts.extend(token.into_iter().flat_map(|token| [TOKEN_LABEL, token.as_bytes()]));
    let token_parts = parts.len();
    parts.push(header.as_str().as_bytes());
    parts.extend(headers.get_all(header).iter().map(HeaderValue::as_bytes));
    if parts.len() == token_parts + 1 {
        parts.truncate(token_parts);
    }
    match parts.len() {
        0 => Principal::ANONYMOUS,
        _ => key.derive_principal(&parts),
    }
}

/// Precedes a token's name among the parts of a principal. No header has this name, so no header can stand
/// for a token.
const TOKEN_LABEL: &[u8] = b"token:";

/// Token names by principal, for the principals that are derived from a token of `access.tokens` alone.
#[derive(Clone, Debug, Default)]
pub struct PrincipalNames {
    key: PrincipalKey,
    names: BTreeMap<Principal, Arc<str>>,
}

// === impl PrincipalNames ===

impl PrincipalNames {
    /// Creates the names of these tokens; `key` is the key that principals are derived with.
    pub fn new(key: &PrincipalKey, tokens: &TokenSet) -> Self {
        Self { key: key.clone(), names: BTreeMap::new() }.with_tokens(tokens)
    }

    /// Adds the names of these tokens. Names that the configuration no longer has stay, because tasks of
    /// their principals may remain.
    #[must_use]
    pub fn with_tokens(mut self, tokens: &TokenSet) -> Self {
        let named = tokens
            .names()
            .map(|name| (self.key.derive_principal(&[TOKEN_LABEL, name.as_bytes()]), Arc::clone(name)));
        let named: Vec<_> = named.collect();
        self.names.extend(named);
        self
    }

    /// Returns the token name of a principal; `None` if it is not derived from a token alone.
    pub fn name_of(&self, principal: &Principal) -> Option<&str> {
        self.names.get(principal).map(|name| &**name)
    }

    /// Returns the principals of the token with this name.
    pub fn principals_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Principal> {
        self.names.iter().filter(move |(_, other)| ***other == *name).map(|(principal, _)| principal)
    }
}

/// Reads the credentials of a request that are sent to the server of this route.
pub(in crate::front) fn read_credentials(route: &Route, headers: &HeaderMap) -> Credentials {
    Credentials::from_request(headers, &route.session_headers)
}

/// Removes the headers that `Connection` names, except those that this route forwards or reads the principal
/// from: a proxy in front may have added them to a request with a client's `Connection`.
pub(in crate::front) fn remove_hop_headers(route: &Route, headers: &mut HeaderMap) {
    let principal_header = match &route.principal {
        PrincipalSource::Authorization => None,
        PrincipalSource::Header(name) => Some(name),
    };
    remove_named_by_connection(headers, route.session_headers.iter().chain(principal_header));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{DeferPolicy, LegacyTaskPolicy, Mode, ResumePolicy, WaitPolicy};
    use http::HeaderName;
    use std::time::Duration;

    fn route(principal: PrincipalSource, forward: &[&'static str]) -> Route {
        Route {
            path: "/mcp".into(),
            defer: DeferPolicy {
                mode: Mode::Auto,
                after: Duration::from_secs(5),
                retention: Duration::ZERO,
                rollout: None,
            },
            tools: Vec::new(),
            principal,
            input_policy: crate::policy::InputPolicy::default(),
            session_headers: forward.iter().map(|name| HeaderName::from_static(name)).collect(),
            legacy_tasks: LegacyTaskPolicy::default(),
            resume: ResumePolicy::default(),
            wait_policy: WaitPolicy::default(),
            tickets: crate::policy::TicketPolicy::default(),
            limits: Default::default(),
            queue: Default::default(),
            timeout: None,
            response_headers: Vec::new(),
            adds_forwarded_header: false,
            empty_contents_is_error: false,
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn principals_are_distinguished_by_authorization() {
        let route = route(PrincipalSource::Authorization, &[]);
        let of = |value| {
            derive_principal(
                &PrincipalKey::default(),
                &route,
                None,
                &headers(&[("authorization", value), ("x-user", "u")]),
            )
        };
        assert_eq!(of("Bearer a"), of("Bearer a"));
        assert_ne!(of("Bearer a"), of("Bearer b"));
        assert_eq!(
            derive_principal(&PrincipalKey::default(), &route, None, &headers(&[("x-user", "u")])),
            Principal::ANONYMOUS
        );
    }

    #[test]
    fn principals_are_distinguished_by_the_header_of_the_route() {
        let route = route(PrincipalSource::Header(HeaderName::from_static("x-user")), &[]);
        let of = |token, user| {
            derive_principal(
                &PrincipalKey::default(),
                &route,
                None,
                &headers(&[("authorization", token), ("x-user", user)]),
            )
        };
        assert_eq!(of("Bearer a", "u"), of("Bearer refreshed", "u"));
        assert_ne!(of("Bearer a", "u"), of("Bearer a", "v"));
        assert!(
            derive_principal(
                &PrincipalKey::default(),
                &route,
                None,
                &headers(&[("authorization", "Bearer a")])
            )
            .is_anonymous()
        );
    }

    #[test]
    fn a_principal_is_scoped_by_its_token() {
        let plain = route(PrincipalSource::Authorization, &[]);
        let of = |token, pairs: &[_]| {
            derive_principal(&PrincipalKey::default(), &plain, Some(token), &headers(pairs))
        };
        assert_eq!(of("alice", &[]), of("alice", &[("x-user", "bob")]));
        assert_ne!(of("alice", &[]), of("bob", &[]));
        let callers =
            PrincipalNames::new(&PrincipalKey::default(), &TokenSet::new([("alice".into(), "secret")]));
        assert_eq!(callers.name_of(&of("alice", &[])), Some("alice"));
        assert_eq!(callers.name_of(&of("bob", &[])), None);
        let callers = callers.with_tokens(&TokenSet::new([("bob".into(), "secret")]));
        assert_eq!(callers.name_of(&of("bob", &[])), Some("bob"));
        assert!(!of("alice", &[]).is_anonymous());

        let by_user = route(PrincipalSource::Header(HeaderName::from_static("x-user")), &[]);
        let of =
            |token, pairs: &[_]| derive_principal(&PrincipalKey::default(), &by_user, token, &headers(pairs));
        let (a, b) = (Some("alice"), Some("bob"));
        let all = [
            of(a, &[]),
            of(b, &[]),
            of(a, &[("x-user", "alice")]),
            of(a, &[("x-user", "bob")]),
            of(b, &[("x-user", "alice")]),
            of(None, &[("x-user", "alice")]),
        ];
        let distinct: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len(), "each is another principal");
    }

    #[test]
    fn credentials_are_forwarded_and_hop_headers_are_not() {
        let shown = |forward: &[&'static str]| {
            let shown = read_credentials(
                &route(PrincipalSource::Authorization, forward),
                &headers(&[
                    ("host", "h"),
                    ("authorization", "Bearer a"),
                    ("cookie", "a=1"),
                    ("cookie", "b=2"),
                    ("x-tenant", "t"),
                    ("proxy-authorization", "Basic x"),
                    ("content-type", "application/json"),
                    ("mcp-session-id", "s"),
                    ("last-event-id", "1"),
                    ("user-agent", "u"),
                    ("x-request-id", "r"),
                ]),
            );
            let of =
                |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
            let mut lines: Vec<_> = shown.headers().iter().map(of).collect();
            lines.sort_unstable();
            lines
        };
        let usual = ["authorization: Bearer a", "cookie: a=1", "cookie: b=2", "x-tenant: t"];
        assert_eq!(shown(&[]), usual);
        assert_eq!(shown(&["x-tenant", "proxy-authorization", "host"]), usual);
        assert_eq!(
            shown(&["user-agent"]),
            ["authorization: Bearer a", "cookie: a=1", "cookie: b=2", "user-agent: u", "x-tenant: t"]
        );
    }
}
