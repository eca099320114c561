//! A client's own headers and `clientInfo`, which its server receives.

use super::proxy_and_server::{ProxyAndServer, Setup};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::{Canned, Seen},
        modern_client::Client,
    },
};
use serde_json::{Value, json};

/// Calls the tool `t`, and gives what the server saw of the call.
async fn call(world: &ProxyAndServer, client: &Client) -> Seen {
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let seen = call.seen.clone();
    call.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
    seen
}

#[tokio::test]
async fn the_headers_of_a_client_reach_the_server_whatever_revision_it_speaks() {
    let world = ProxyAndServer::new().await;
    let own = [
        ("x-api-key", "k-1"),
        ("cookie", "a=1"),
        ("user-agent", "client/1"),
        ("x-request-id", "r-1"),
        ("x-correlation-id", "c-1"),
        ("accept-language", "de"),
        ("baggage", "a=1"),
    ];
    let hop = [
        ("accept-encoding", "br"),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic x"),
        ("te", "trailers"),
    ];
    let all = own.iter().chain(&hop);
    let older =
        all.clone().fold(LegacyClient::new(world.addr()), |client, (name, value)| client.with(name, value));
    let waiting = older.hello().await.call(1).await;
    let relayed = world.server.call().await;
    let modern = all.fold(world.client(), |client, (name, value)| client.with(name, value));
    let driven = call(&world, &modern).await;
    for (name, value) in own {
        assert_eq!(relayed.seen.header(name), Some(value), "{name} of a legacy client");
        assert_eq!(driven.header(name), Some(value), "{name} of a client of 2026-07-28");
    }
    for (name, value) in hop {
        for seen in [&relayed.seen, &driven] {
            assert_ne!(seen.header(name), Some(value), "{name}");
        }
    }
    relayed.says("hi");
    waiting.answer().await;
    // The session was opened with what tells who calls, and with nothing of one request.
    let of_session = |seen: &Seen| seen.session() == driven.session() || seen.method() == "initialize";
    for seen in
        world.server.log().iter().filter(|seen| of_session(seen) && seen.method() != "tools/call").skip(1)
    {
        assert_eq!((seen.header("x-api-key"), seen.header("cookie")), (Some("k-1"), Some("a=1")), "{seen:?}");
        assert_eq!(seen.header("x-request-id"), None, "{seen:?}");
        assert!(seen.header("user-agent").expect("one").starts_with("deferral/"), "{seen:?}");
    }
}

#[tokio::test]
async fn callers_with_different_headers_share_no_session_except_for_headers_of_one_request() {
    let world = Setup::new().route("forward: [X-Correlation-Id]").start().await;
    let key = |key: &str| world.client().with("x-api-key", key);
    let first = call(&world, &key("k-1")).await.session().to_owned();
    for same in [
        key("k-1"),
        key("k-1").with("x-request-id", "r-1"),
        key("k-1").with("user-agent", "client/2").with("accept-language", "fr"),
        key("k-1")
            .with("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .with("b3", "0"),
    ] {
        assert_eq!(call(&world, &same).await.session(), first, "{same:?}");
    }
    let mut others = Vec::new();
    for other in [
        world.client(),
        key("k-2"),
        key("k-1").with("x-tenant", "t"),
        // Named in `forward`, it is more than one request's.
        key("k-1").with("x-correlation-id", "c-1"),
        key("k-1").with("x-correlation-id", "c-2"),
    ] {
        let seen = call(&world, &other).await;
        assert!(seen.session() != first && !others.contains(&seen.session().to_owned()), "{other:?}");
        others.push(seen.session().to_owned());
    }
    assert_eq!(world.server.messages("initialize"), 6);
}

/// A client that says who it is with each request.
fn calls_itself(info: &Value) -> Value {
    json!({ "name": "t", "_meta": { "io.modelcontextprotocol/clientInfo": info } })
}

#[tokio::test]
async fn a_server_over_http_receives_client_info_and_different_clients_share_no_session() {
    let world = ProxyAndServer::new().await;
    let mut sessions = Vec::new();
    let (one, other) =
        (json!({ "name": "one", "version": "1" }), json!({ "name": "one", "version": "2", "x": [1] }));
    // Without a name it cannot be said in a handshake.
    let nobody = json!({ "title": "x" });
    for (info, told) in [(&one, "one"), (&other, "one"), (&nobody, "deferral"), (&one, "one")] {
        let waiting = world.client().send("tools/call", calls_itself(info)).await;
        let call = world.server.call().await;
        sessions.push(call.session().to_owned());
        assert_eq!(call.seen.json["params"]["_meta"], Value::Null, "it is said in the handshake");
        call.says("hi");
        waiting.answer().await;
        let hellos = world.server.log().into_iter().filter(|seen| seen.method() == "initialize");
        let hello = hellos.last().expect("a handshake").json["params"]["clientInfo"].clone();
        if info != &one || sessions.len() == 1 {
            assert_eq!(hello["name"], told);
            assert!(told == "deferral" || hello == *info, "{hello}");
        }
    }
    assert_eq!(sessions[0], sessions[3]);
    assert_eq!(sessions.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    let large = json!({ "name": "x".repeat(64 << 10), "version": "1" });
    let refused = world.client().ask("tools/call", calls_itself(&large)).await;
    assert_eq!(refused.refusal(), (400, -32602));
    assert!(refused.error()["message"].as_str().expect("words").contains("clientInfo"), "{}", refused.body);
}

#[tokio::test]
async fn connection_cannot_take_away_what_names_the_principal_or_is_forwarded() {
    let world =
        Setup::new().route("principal: { header: X-User }").route("forward: [X-Tenant]").start().await;
    let named = [("x-user", "alice"), ("x-tenant", "t"), ("cookie", "a=1")];
    let add = |client: Client| {
        let client = client.with("connection", "x-user, X-Tenant, cookie, x-hop").with("x-hop", "1");
        named.iter().fold(client, |client, (name, value)| client.with(name, value))
    };
    let driven = call(&world, &add(world.client())).await;
    let older =
        named.iter().fold(LegacyClient::new(world.addr()), |client, (name, value)| client.with(name, value));
    let older = older.with("connection", "x-user, X-Tenant, cookie, x-hop").with("x-hop", "1");
    let waiting = older.hello().await.call(1).await;
    let relayed = world.server.call().await;
    for seen in [&driven, &relayed.seen] {
        for (name, value) in named {
            assert_eq!(seen.header(name), Some(value), "{name}");
        }
        assert_eq!(seen.header("x-hop"), None);
    }
    relayed.says("hi");
    waiting.answer().await;
}

#[tokio::test]
async fn a_header_that_is_new_with_each_request_costs_no_more_sessions_than_there_may_be() {
    let world = Setup::new().top("limits: { identities: 4 }").start().await;
    for nonce in 0..12 {
        let answer = world.client().with("x-nonce", &nonce.to_string()).ask("tools/list", json!({})).await;
        assert!(answer.result()["tools"].is_array());
    }
    assert_eq!(world.server.messages("initialize"), 12);
    while world.server.count(|seen| seen.http == http::Method::DELETE) < 8 {
        world.server.seen(|seen| seen.http == http::Method::DELETE).await;
    }
}

#[tokio::test]
async fn the_tools_of_callers_that_differ_in_a_header_are_known_apart() {
    let tools = |seen: &Seen| {
        let region = json!({ "type": "string", "x-mcp-header": "Region" });
        let properties = match seen.header("x-api-key") {
            Some("mirrors") => json!({ "region": region }),
            _ => json!({ "region": { "type": "string" } }),
        };
        let tool = json!({ "name": "t", "inputSchema": { "type": "object", "properties": properties } });
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": { "tools": [tool] } });
        (seen.method() == "tools/list").then(|| Canned::json(200, &answer))
    };
    let world = Setup::new().server(|options| *options = std::mem::take(options).hook(tools)).start().await;
    let arguments = json!({ "name": "t", "arguments": { "region": "eu" } });
    let key = |key: &str| world.client().with("x-api-key", key);
    let refused = key("mirrors").ask("tools/call", arguments.clone()).await;
    assert_eq!(refused.refusal(), (400, -32020));
    let waiting = key("plain").send("tools/call", arguments).await;
    world.server.call().await.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
}
