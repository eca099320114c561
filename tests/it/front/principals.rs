//! Who a request acts for, and which headers the service receives.

use super::{
    BOTH,
    listener_and_service::{FrontAndService, ScriptedService, Version, bare, call, once, reply},
};
use deferral::internals::{dialect::Principal, policy::PrincipalSource};
use http::{HeaderName, HeaderValue};

#[tokio::test]
async fn a_service_receives_the_principal_and_the_credentials_for_the_server() {
    for version in BOTH {
        let desk = ScriptedService::on(
            "/mcp",
            |route| route.session_headers = vec![HeaderName::from_static("x-tenant")],
            |call| once(reply(&call.id, "{}")),
        );
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let mut request = call("greet");
        for (name, value) in [
            ("authorization", "Bearer a"),
            ("cookie", "c=1"),
            ("x-tenant", "t"),
            ("proxy-authorization", "Basic x"),
            ("mcp-param-region", "eu"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        client.ask(request).await;
        client.ask(call("greet")).await;
        let seen = desk.seen.lock().unwrap();
        let [(call, known), (_, anonymous)] = &seen[..] else { panic!("two calls") };
        let mut shown: Vec<_> =
            known.credentials.headers().iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        shown.sort_unstable();
        assert_eq!(shown, [("authorization", "Bearer a"), ("cookie", "c=1"), ("x-tenant", "t")]);
        assert_eq!(call.headers["mcp-param-region"], "eu");
        assert_ne!(known.principal, Principal::ANONYMOUS);
        assert_eq!(anonymous.principal, Principal::ANONYMOUS);
        assert!(anonymous.credentials.headers().is_empty());
    }
}

#[tokio::test]
async fn cookies_that_http_2_has_split_are_one_header_again() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http2).await;
    let cookies = |mut request: http::Request<_>| {
        for cookie in ["a=1", "b=2", "c=3"] {
            request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
        }
        request
    };
    client.ask(cookies(call("greet"))).await;
    client.ask(cookies(bare("GET", "/mcp", &[]))).await;
    let seen = desk.seen.lock().unwrap();
    let passed = desk.passed.lock().unwrap();
    for headers in [seen[0].1.credentials.headers(), &passed[0].headers] {
        let cookies: Vec<_> = headers.get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }
}

#[tokio::test]
async fn a_route_may_know_callers_by_another_header() {
    let desk = ScriptedService::on(
        "/mcp",
        |route| route.principal = PrincipalSource::Header(HeaderName::from_static("x-user")),
        |call| once(reply(&call.id, "{}")),
    );
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (user, token) in [("u", "Bearer a"), ("u", "Bearer b"), ("v", "Bearer b")] {
        let mut request = call("greet");
        request.headers_mut().insert("x-user", HeaderValue::from_static(user));
        request.headers_mut().insert("authorization", HeaderValue::from_static(token));
        client.ask(request).await;
    }
    let seen = desk.seen.lock().unwrap();
    let principals: Vec<_> = seen.iter().map(|(_, caller)| caller.principal).collect();
    assert_eq!(principals[0], principals[1]);
    assert_ne!(principals[1], principals[2]);
}
