//! Paths with a trailing slash, and health paths.

use super::listener_and_service::{
    BOTH_METHODS, Client, FrontAndService, ScriptedService, Version, bare, call, once, reply,
};
use deferral::internals::{front, policy::TokenSet, runtime::Drain};
use http::StatusCode;
use std::sync::Arc;

fn at(path: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = call("greet");
    *request.uri_mut() = format!("http://localhost{path}").parse().expect("a URI");
    request
}

/// A desk at this path, which answers with it.
fn desk(path: &'static str) -> Arc<ScriptedService> {
    ScriptedService::on(path, |_| {}, move |call| once(reply(&call.id, &format!("\"{path}\""))))
}

async fn served(client: &mut Client, path: &str) -> Option<String> {
    let answer = client.ask(at(path)).await;
    assert!(
        [200, 404].contains(&answer.status.as_u16()),
        "no redirect, which would lose the body: {answer:?}"
    );
    (answer.status == StatusCode::OK).then_some(answer.body)
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_makes_no_difference_unless_both_are_routes() {
    let (mcp, slash) = (desk("/mcp"), desk("/other/"));
    let world = FrontAndService::new(&[&mcp, &slash], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (path, route) in [("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/other", "/other/"), ("/other/", "/other/")]
    {
        assert!(served(&mut client, path).await.expect(path).contains(&format!("\"{route}\"")), "{path}");
    }
    for path in ["/", "//", "/mcp//", "//mcp", "/mcp/x", "/MCP"] {
        assert_eq!(served(&mut client, path).await, None, "{path}");
    }
    // GET and DELETE of legacy sessions, too.
    for method in ["GET", "DELETE"] {
        assert_eq!(client.ask(bare(method, "/mcp/", &[])).await.status, StatusCode::OK, "{method}");
    }
    let (plain, both) = (desk("/mcp"), desk("/mcp/"));
    let world = FrontAndService::new(&[&plain, &both], |_| {});
    let mut client = world.client(Version::Http2).await;
    for path in ["/mcp", "/mcp/"] {
        assert!(served(&mut client, path).await.expect(path).contains(&format!("\"{path}\"")), "{path}");
    }
}

fn health(needs_servers: bool) -> Option<front::HealthConfig> {
    Some(front::HealthConfig { path: "/healthz".into(), needs_servers })
}

#[tokio::test]
async fn a_health_path_is_answered_without_a_token_and_beside_all_calls() {
    for method in BOTH_METHODS {
        let desk = ScriptedService::prompt();
        let world = FrontAndService::new(&[&desk], |config| {
            config.health = health(false);
            config.tokens = TokenSet::new([("alice".into(), "a-token-of-some-length")]);
            config.limits.calls = 1;
        });
        let mut client = world.client(Version::Http1).await;
        assert_eq!(client.ask(call("greet")).await.status, StatusCode::UNAUTHORIZED);
        let answer = client.ask(bare(method, "/healthz", &[])).await;
        assert_eq!((answer.status, answer.header("cache-control")), (StatusCode::OK, "no-store"));
        assert_eq!(answer.body, if method == "GET" { r#"{"status":"ready"}"# } else { "" });
        let answer = client.ask(bare("POST", "/healthz", &[])).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET, HEAD"));
        for refused in ["/healthz/", "/health"] {
            assert_ne!(client.ask(bare("GET", refused, &[])).await.status, StatusCode::OK, "{refused}");
        }
        let answer = client.ask(bare("GET", "/healthz", &[("origin", "http://evil.example")])).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "pages of other sites learn nothing");
    }
}

#[tokio::test]
async fn no_path_is_for_health_checks_unless_one_is_configured() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let answer = world.client(Version::Http1).await.ask(bare("GET", "/healthz", &[])).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_draining_proxy_is_unhealthy_at_the_health_path() {
    let (world, leaving) =
        FrontAndService::leaving(&[&ScriptedService::prompt()], |config| config.health = health(false));
    let mut client = world.client(Version::Http1).await;
    let get = || bare("GET", "/healthz", &[]);
    assert_eq!(client.ask(get()).await.status, StatusCode::OK);
    let _ = Drain::stop(leaving, std::time::Duration::ZERO).await;
    let answer = client.ask(get()).await;
    assert_eq!((answer.status, &*answer.body), (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"stopping"}"#));
}

#[tokio::test]
async fn the_health_path_reports_a_required_server_that_is_not_reachable() {
    let desk = ScriptedService::prompt();
    for (needs, status) in [(false, StatusCode::OK), (true, StatusCode::SERVICE_UNAVAILABLE)] {
        *desk.is_down.lock().unwrap() = true;
        let world = FrontAndService::new(&[&desk], |config| config.health = health(needs));
        let mut client = world.client(Version::Http1).await;
        let answer = client.ask(bare("GET", "/healthz", &[])).await;
        assert_eq!(answer.status, status, "{answer:?}");
        *desk.is_down.lock().unwrap() = false;
        assert_eq!(client.ask(bare("GET", "/healthz", &[])).await.status, StatusCode::OK);
    }
}
