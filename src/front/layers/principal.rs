//! Who asks, by what the request's head shows.

use crate::{
    dialect::{Credentials, Principal},
    policy::{PrincipalSource, Route},
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};

/// What the caller is, on this route. [`Principal::ANONYMOUS`] where it shows nothing of the kind
/// the route looks at.
pub(in crate::front) fn principal(route: &Route, headers: &HeaderMap) -> Principal {
    let name = match &route.principal {
        PrincipalSource::Authorization => &AUTHORIZATION,
        PrincipalSource::Header(name) => name,
    };
    let mut parts = vec![name.as_str().as_bytes()];
    parts.extend(headers.get_all(name).iter().map(HeaderValue::as_bytes));
    match parts.len() {
        1 => Principal::ANONYMOUS,
        _ => Principal::of(&parts),
    }
}

/// What the server is shown on the caller's behalf, on this route.
pub(in crate::front) fn credentials(route: &Route, headers: &HeaderMap) -> Credentials {
    Credentials::of(headers, &route.forward)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Defer, Held, LegacyTasks, Mode, Resume};
    use http::HeaderName;
    use std::time::Duration;

    fn route(principal: PrincipalSource, forward: &[&'static str]) -> Route {
        Route {
            path: "/mcp".into(),
            defer: Defer { mode: Mode::Auto, after: Duration::from_secs(5), retention: Duration::ZERO },
            tools: Vec::new(),
            principal,
            questions: crate::policy::Questions::default(),
            forward: forward.iter().map(|name| HeaderName::from_static(name)).collect(),
            legacy_tasks: LegacyTasks::default(),
            resume: Resume::default(),
            held: Held::default(),
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
    fn callers_are_told_apart_by_authorization() {
        let route = route(PrincipalSource::Authorization, &[]);
        let of = |value| principal(&route, &headers(&[("authorization", value), ("x-user", "u")]));
        assert_eq!(of("Bearer a"), of("Bearer a"));
        assert_ne!(of("Bearer a"), of("Bearer b"));
        assert_eq!(principal(&route, &headers(&[("x-user", "u")])), Principal::ANONYMOUS);
    }

    #[test]
    fn callers_are_told_apart_by_a_header_where_the_route_says_so() {
        let route = route(PrincipalSource::Header(HeaderName::from_static("x-user")), &[]);
        let of = |token, user| principal(&route, &headers(&[("authorization", token), ("x-user", user)]));
        assert_eq!(of("Bearer a", "u"), of("Bearer refreshed", "u"));
        assert_ne!(of("Bearer a", "u"), of("Bearer a", "v"));
        assert!(principal(&route, &headers(&[("authorization", "Bearer a")])).is_anonymous());
    }

    #[test]
    fn the_server_is_shown_credentials_and_named_headers_and_nothing_for_proxies() {
        let route = route(PrincipalSource::Authorization, &["x-tenant", "proxy-authorization", "cookie"]);
        let shown = credentials(
            &route,
            &headers(&[
                ("authorization", "Bearer a"),
                ("cookie", "a=1"),
                ("cookie", "b=2"),
                ("x-tenant", "t"),
                ("proxy-authorization", "Basic x"),
                ("user-agent", "u"),
            ]),
        );
        let mut names: Vec<_> =
            shown.headers().iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [("authorization", "Bearer a"), ("cookie", "a=1"), ("cookie", "b=2"), ("x-tenant", "t")]
        );
    }
}
