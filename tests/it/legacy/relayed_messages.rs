//! Messages and headers that are relayed in both directions.

use super::proxy_and_client::{HELLO, LegacyClient, READY, call};
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup, start},
    support::{
        legacy_server::{Canned, Get, LegacyServer, Options},
        modern_client::Version,
    },
};
use http::Method;
use serde_json::json;

fn older(world: &ProxyAndServer) -> LegacyClient {
    LegacyClient::new(world.addr())
}

#[tokio::test]
async fn a_session_is_the_servers_own() {
    let world = ProxyAndServer::new().await;
    let answer = older(&world).post(HELLO).await.answer().await;
    assert_eq!(answer.header("mcp-session-id"), "s1");
    assert_eq!(answer.result()["serverInfo"]["name"], "scripted");
    let session = older(&world).within("s1");
    session.post(READY).await.answer().await;
    let waiting = session.call(7).await;
    let call = world.server.call().await;
    assert_eq!((call.session(), call.id()), ("s1", json!(7)));
    call.says("hello");
    assert_eq!(waiting.answer().await.text(), "hello");
    // No other message is sent in it.
    assert_eq!(world.server.log().len(), 3);
}

#[tokio::test]
async fn a_version_of_the_other_era_in_a_handshake_is_the_servers_to_answer() {
    let world = ProxyAndServer::new().await;
    let hello = HELLO.replace("2025-11-25", "2026-07-28");
    let answer = older(&world).post(&hello).await.answer().await;
    assert_eq!(answer.result()["protocolVersion"], "2025-11-25");
    assert_eq!(world.server.log()[0].body, hello);
}

#[tokio::test]
async fn our_headers_are_in_the_place_of_the_clients() {
    let server = LegacyServer::start(Options::default()).await;
    let upstream = format!(
        "{}\", headers: {{ Authorization: Bearer ours, x-key: \"our key\" }}, proxy: \"off",
        server.url()
    );
    let running = start(&upstream, &["forward: [X-Key]"], &[]);
    let client = LegacyClient::new(running.addresses[0])
        .with("authorization", "Bearer theirs")
        .with("x-key", "their key");
    let client = client.hello().await;
    let listening = client.listen().await;
    let waiting = client.call(7).await;
    server.call().await.says("hello");
    assert_eq!(waiting.answer().await.text(), "hello");
    client.send(Method::DELETE, "/mcp", "").await.answer().await;
    drop(listening);
    server.seen(|seen| seen.http == Method::GET).await;
    let log = server.log();
    assert_eq!(log.len(), 5, "{log:?}");
    for seen in &log {
        let all =
            |name| seen.headers.get_all(name).iter().map(|it| it.to_str().expect("text")).collect::<Vec<_>>();
        assert_eq!((all("authorization"), all("x-key")), (vec!["Bearer ours"], vec!["our key"]), "{seen:?}");
    }
}

#[tokio::test]
async fn headers_pass_but_those_of_the_hop() {
    let world = Setup::new().top("access: { origins: [\"https://a.example\"] }").start().await;
    let client = older(&world).within("s1");
    let passed = [
        ("authorization", "Bearer t"),
        ("cookie", "a=1"),
        ("user-agent", "mine/1"),
        ("x-own", "kept"),
        ("mcp-method", "tools/call"),
        ("accept", "application/json, text/event-stream"),
    ];
    let dropped = [
        ("origin", "https://a.example"),
        ("connection", "keep-alive, x-hop, mcp-session-id"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic x"),
        ("te", "trailers"),
    ];
    let replaced = [("accept-encoding", "gzip")];
    let client = passed
        .iter()
        .chain(&dropped)
        .chain(&replaced)
        .fold(client, |client, (name, value)| client.with(name, value));
    let mut request = client.request(Method::POST, "/mcp?tenant=a%20b", &call(1));
    request.headers_mut().insert("mcp-method", "tools/call".parse().expect("a value"));
    let waiting = client.client().send_request(request).await;
    let got = world.server.call().await;
    for (name, value) in passed.iter().chain(&[("mcp-session-id", "s1")]) {
        assert_eq!(got.seen.header(name), Some(*value), "{name}");
    }
    for (name, _) in dropped {
        assert_eq!(got.seen.header(name), None, "{name}");
    }
    assert_eq!(got.seen.header("accept-encoding"), Some("identity"), "what is coded could not be watched");
    assert_eq!(got.seen.header("host"), Some(&*world.server.addr().to_string()));
    assert_eq!(got.seen.query.as_deref(), Some("tenant=a%20b"));
    assert_eq!(got.seen.body, call(1));
    got.canned(
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 1, "result": {} }))
            .header("x-server", "kept")
            .header("x-hop", "1")
            .header("connection", "x-hop")
            .header("access-control-allow-origin", "*")
            .header("access-control-allow-credentials", "true")
            .header("access-control-expose-headers", "x-server")
            .header("mcp-session-id", "s1"),
    );
    let answer = waiting.answer().await;
    assert_eq!((answer.header("x-server"), answer.header("x-hop")), ("kept", ""));
    assert_eq!(answer.header("mcp-session-id"), "s1");
    // A page may read its session.
    assert_eq!(answer.header("access-control-allow-origin"), "https://a.example");
    assert!(answer.header("access-control-expose-headers").contains("mcp-session-id"));
    let for_pages = answer.headers.iter().filter(|(name, _)| name.as_str().starts_with("access-control-"));
    assert_eq!(for_pages.count(), 2, "none of the server's own: {:?}", answer.headers);
}

#[tokio::test]
async fn what_the_operator_wrote_into_the_url_is_not_the_clients_to_change() {
    let server = LegacyServer::start(Options::default()).await;
    let proxy = start(&format!("{}?tenant=ours&plan=a%20b", server.url()), &[], &[]);
    let client = LegacyClient::new(proxy.addresses[0]).within("s1");
    let mut sent = 0;
    for (asked, got) in [
        ("", "tenant=ours&plan=a%20b"),
        ("?", "tenant=ours&plan=a%20b"),
        ("?x=%31&y", "tenant=ours&plan=a%20b&x=%31&y"),
        ("?tenant=theirs", "tenant=ours&plan=a%20b"),
        ("?x=1&tenant=theirs&y=2&tenant", "tenant=ours&plan=a%20b&x=1&y=2"),
        // However it is spelled, a server may read it as the same name.
        ("?%74enant=theirs&TENANT=x&x=1;plan=b&p%6Can=c", "tenant=ours&plan=a%20b"),
        ("?tenants=1&mytenant=2", "tenant=ours&plan=a%20b&tenants=1&mytenant=2"),
    ] {
        for method in [Method::POST, Method::GET] {
            let body = if method == Method::POST { READY } else { "" };
            let waiting = client.send(method.clone(), &format!("/mcp{asked}"), body).await;
            let _answer = waiting.stream().await;
            let seen = server.log()[sent].clone();
            sent += 1;
            assert_eq!((seen.http, seen.query.as_deref()), (method, Some(got)), "{asked}");
        }
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_strange_origin_does_not_reach_the_server() {
    let world = ProxyAndServer::new().await;
    let stranger = older(&world).within("s1").with("origin", "https://evil.example");
    for waiting in [stranger.call(1).await, stranger.listen().await] {
        assert_eq!(waiting.answer().await.status, 403);
    }
    assert!(world.server.log().is_empty());
}

#[tokio::test]
async fn notifications_and_responses_are_taken_without_a_body() {
    let world = ProxyAndServer::new().await;
    let client = older(&world).hello().await;
    for body in [READY, r#"{"jsonrpc":"2.0","id":"q-1","result":{"action":"accept"}}"#] {
        let answer = client.post(body).await.answer().await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (202, ""));
        assert_eq!(world.server.log().last().expect("it arrived").body, body);
    }
}

#[tokio::test]
async fn a_batch_passes_as_it_is() {
    let batch = format!("[{}, {READY}, {}]", call(1), call(2));
    let body = r#"[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"result":{}}]"#;
    let world = Setup::new()
        .server(|options| {
            options.hook = Some(Box::new(move |seen| {
                seen.json
                    .is_array()
                    .then(|| Canned::status(200).body(body).header("content-type", "application/json"))
            }));
        })
        .start()
        .await;
    // 2025-03-26 knew no version header, and its servers need not have sessions.
    let answer = older(&world).post(&batch).await.answer().await;
    assert_eq!(answer.body, body);
    assert_eq!(world.server.log()[0].body, batch);
}

#[tokio::test]
async fn what_the_server_refuses_is_refused_with_its_message() {
    for (status, body) in [
        (400, r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: x"}}"#),
        (404, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#),
        (405, "Method not allowed"),
        (406, "Not acceptable"),
        (429, ""),
    ] {
        let world = ProxyAndServer::new().await;
        let client = older(&world).within("gone");
        let waiting = client.call(1).await;
        let canned = Canned::status(status).body(body).header("retry-after", "7").header("x-why", "so");
        world.server.call().await.canned(canned);
        let answer = waiting.answer().await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (status, body));
        assert_eq!((answer.header("retry-after"), answer.header("x-why")), ("7", "so"));
    }
}

#[tokio::test]
async fn a_session_is_ended_by_its_client_and_lost_by_its_server() {
    let world = Setup::new()
        .server(|options| {
            let ended = std::sync::atomic::AtomicBool::new(false);
            options.hook = Some(Box::new(move |seen| {
                use std::sync::atomic::Ordering::SeqCst;
                if seen.http == Method::DELETE {
                    ended.store(true, SeqCst);
                }
                (seen.http != Method::DELETE && ended.load(SeqCst)).then(|| Canned::status(404))
            }));
        })
        .start()
        .await;
    let client = older(&world).hello().await;
    assert_eq!(client.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    assert_eq!(world.server.log().last().expect("it arrived").session(), "s1");
    assert_eq!(client.call(1).await.answer().await.status, 404);
    assert_eq!(client.listen().await.answer().await.status, 404);
}

#[tokio::test]
async fn a_server_without_get_reports_it() {
    let world = Setup::new().server(|options| options.get = Get::Refused(405)).start().await;
    let client = older(&world).hello().await;
    assert_eq!(client.listen().await.answer().await.status, 405);
}

#[tokio::test]
async fn a_challenge_leads_to_our_metadata() {
    let world = ProxyAndServer::new().await;
    let waiting = older(&world).within("s1").call(1).await;
    let challenge =
        r#"Bearer resource_metadata="http://server.internal/.well-known/oauth-protected-resource""#;
    world.server.call().await.canned(Canned::status(401).header("www-authenticate", challenge));
    let answer = waiting.answer().await;
    assert_eq!(answer.status, 401);
    let ours = format!("http://{}/.well-known/oauth-protected-resource", world.addr());
    assert!(answer.header("www-authenticate").contains(&ours), "{answer:?}");
}

#[tokio::test]
async fn both_eras_are_served_at_one_address_at_the_same_time() {
    let world = Setup::new().route("defer: { mode: always }").start().await;
    let client = older(&world).hello().await;
    let waiting = client.call(1).await;
    let older_call = world.server.call().await;
    assert_eq!(older_call.session(), "s1");
    // A modern client gets a task for what a legacy one waits for.
    let task = world.tasker().call("t").await.answer().await.task();
    let modern_call = world.server.call().await;
    assert_ne!(modern_call.session(), "s1");
    modern_call.says("modern");
    older_call.says("older");
    assert_eq!(waiting.answer().await.text(), "older");
    let ended = world.tasker().ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], "modern");
}

#[tokio::test]
async fn http_2_clients_are_passed_on_too() {
    let world = ProxyAndServer::new().await;
    let client = older(&world).hello().await;
    let mut request = client.request(Method::POST, "/mcp", &call(1));
    *request.uri_mut() = format!("http://{}/mcp", world.addr()).parse().expect("a URL");
    let mut kept = client.client().over(Version::Http2).kept().await;
    let waiting = kept.begin(request).await;
    let events = world.server.call().await.stream();
    let mut stream = waiting.stream().await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
    drop(events);
    assert_eq!(stream.rest().await, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
}

#[tokio::test]
async fn each_request_leaves_a_line_that_tells_its_session_apart() {
    let lines = Lines::record();
    let world = ProxyAndServer::new().await;
    let client = older(&world).hello().await;
    let waiting = client.call(1).await;
    world.server.call().await.error(json!({ "code": -1, "message": "no" }));
    waiting.answer().await;
    client.post(&format!("[{READY},{READY}]")).await.answer().await;
    client.send(Method::DELETE, "/mcp", "").await.answer().await;
    let lines = lines.until(5).await;
    let column = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(
        json!(column("method")),
        json!([
            "initialize",
            "notifications/initialized",
            "tools/call",
            "notifications/initialized,notifications/initialized",
            "DELETE",
        ])
    );
    assert_eq!(json!(column("outcome")), json!(["result", "result", "server_error", "result", "result"]));
    assert_eq!(lines[2]["target"], "t");
    let session = lines[0]["session"].as_str().expect("it got one");
    assert!(session.len() == 16 && session != "s1", "{session}");
    for line in &lines {
        assert_eq!(line["client"], "legacy");
        assert_eq!(line["session"], session);
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_does_not_reach_the_server() {
    let world = Setup::new().top("limits: { body_bytes: 1KiB }").start().await;
    let client = older(&world).within("s1");
    let large = call(1).replace("{}", &format!("{{\"a\":\"{}\"}}", "x".repeat(2000)));
    assert_eq!(client.post(&large).await.answer().await.status, 413);
    assert!(world.server.log().is_empty());
}
