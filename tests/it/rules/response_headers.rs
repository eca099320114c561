//! `response.headers`: fixed headers on every response of a route.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::legacy_server::Canned,
};
use deferral::internals::config;
use serde_json::json;
use std::path::Path;

const HEADERS: &str = "response: { headers: { X-Frame: none, Server: ours } }";

async fn world() -> ProxyAndServer {
    Setup::new()
        .route(HEADERS)
        .server(|options| {
            *options = std::mem::take(options).hook(|seen| {
                let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": { "prompts": [] } });
                let answer =
                    Canned::json(200, &answer).header("x-frame", "theirs").header("x-other", "stays");
                (seen.method() == "prompts/list").then_some(answer)
            });
        })
        .start()
        .await
}

#[tokio::test]
async fn the_headers_of_a_route_are_on_every_response_and_replace_the_servers_own() {
    let world = world().await;
    let older = LegacyClient::new(world.addr()).within("s1");
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
    let passed = older.post(list).await.answer().await;
    assert_eq!((passed.header("x-frame"), passed.header("x-other")), ("none", "stays"));
    assert_eq!(passed.headers.get_all("x-frame").iter().count(), 1);
    let answers = [
        world.client().ask("prompts/list", json!({})).await,
        // Refusals of the proxy's own, before the route's server is asked and before the route is looked at.
        world.client().with("content-type", "text/plain").ask("tools/list", json!({})).await,
        world.client().with("origin", "https://evil.example").ask("tools/list", json!({})).await,
    ];
    for answer in answers {
        assert_eq!((answer.header("x-frame"), answer.header("server")), ("none", "ours"), "{answer:?}");
    }
    let elsewhere = world.client().at("/other").ask("tools/list", json!({})).await;
    assert_eq!((elsewhere.status.as_u16(), elsewhere.header("x-frame")), (404, ""));
}

#[test]
fn a_header_that_belongs_to_the_connection_or_the_protocol_is_refused_by_its_name() {
    let problems = |headers: &str| {
        let text = format!(
            "routes:\n  - upstream: {{ url: 'http://a' }}\n    response: {{ headers: {{ {headers} }} }}\n"
        );
        config::parse(Path::new("x.yaml"), &text).map(drop).map_err(|problems| problems.to_string())
    };
    for name in [
        "Connection",
        "Transfer-Encoding",
        "Content-Type",
        "Content-Length",
        "Mcp-Session-Id",
        "Proxy-Authenticate",
        "WWW-Authenticate",
        "Access-Control-Allow-Origin",
        "Vary",
        "Date",
    ] {
        let said = problems(&format!("{name}: x")).expect_err("it is refused");
        assert!(said.contains("x.yaml:3:28") && said.contains(&format!("`{name}`")), "{said}");
    }
    assert!(
        problems("'X y': x").is_err() && problems("X: \"a\\nb\"").is_err() && problems("X: a, x: b").is_err()
    );
    assert_eq!(problems("Content-Security-Policy: \"default-src 'none'\", Cache-Control: no-store"), Ok(()));
}
