//! The start of a session: revision, capabilities, GET stream, concurrent first calls, failed handshakes.

use super::{MUTE, UpstreamAndServer, connect, identity, request};
use crate::support::legacy_server::{Canned, Get, Options, PATIENCE, Seen};
use deferral::internals::{
    protocol::Method,
    upstream::{CallError, Upstream},
};

use http::{HeaderValue, StatusCode};
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::timeout;

#[tokio::test]
async fn a_session_begins_with_the_newest_revision_and_goes_on_with_the_servers() {
    let world = UpstreamAndServer::new(Options { version: "2025-06-18", ..Options::default() }).await;
    let mut request = request(1, Method::ToolsCall, r#"{"elicitation":{}, "x":[ 1.50 ]}"#);
    for (name, value) in [
        ("traceparent", "00-1"),
        ("mcp-method", "tools/call"),
        ("mcp-session-id", "forged"),
        ("origin", "http://x"),
    ] {
        Arc::make_mut(&mut request.call).headers.to_mut().insert(name, HeaderValue::from_static(value));
    }
    let mut call = world.send(request);
    let arrived = world.server.call().await;

    let log = world.server.log();
    let order: Vec<_> = log.iter().map(|seen| (seen.http.as_str(), seen.method())).collect();
    assert_eq!(
        order,
        [("POST", "initialize"), ("POST", "notifications/initialized"), ("GET", ""), ("POST", "tools/call")],
        "the GET stream is open before the first call"
    );
    let hello = &log[0];
    assert_eq!(hello.json["params"]["protocolVersion"], "2025-11-25");
    assert_eq!(hello.json["params"]["clientInfo"]["name"], "deferral");
    assert!(hello.body.ends_with(br#""capabilities":{"elicitation":{}, "x":[ 1.50 ]}}}"#), "word for word");
    assert_eq!(hello.header("mcp-protocol-version"), None);
    for seen in &log {
        assert_eq!(seen.header("host"), Some(world.server.addr().to_string().as_str()));
        assert!(seen.header("user-agent").expect("one").starts_with("deferral/"));
    }
    for seen in &log[1..] {
        assert_eq!(seen.header("mcp-protocol-version"), Some("2025-06-18"));
        assert_eq!(seen.session(), "s1");
    }
    assert_eq!(log[2].header("accept"), Some("text/event-stream"));
    let post = &arrived.seen;
    assert_eq!(post.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(post.header("content-type"), Some("application/json"));
    assert_eq!(post.header("traceparent"), Some("00-1"));
    assert_eq!((post.header("mcp-method"), post.header("origin")), (None, None));
    arrived.result(json!({}));
    call.result().await;
}

#[tokio::test]
async fn a_server_without_sessions_get_or_streams_is_served() {
    for status in [400, 404, 405, 501] {
        let options = Options { sessions: false, get: Get::Refused(status), ..Options::default() };
        let world = UpstreamAndServer::new(options).await;
        for id in 0..3 {
            let mut call = world.ask(id);
            assert_eq!(world.answer().await, "");
            call.result().await;
        }
        assert_eq!(world.server.messages("initialize"), 1);
        assert_eq!(world.server.count(|seen| seen.http == http::Method::GET), 1, "{status}");
    }
}

#[tokio::test]
async fn a_get_stream_whose_head_is_held_back_delays_the_first_call_only_shortly() {
    let world = UpstreamAndServer::new(Options { get: Get::Silent, ..Options::default() }).await;
    let mut call = world.call(1);
    let answered = async {
        world.answer().await;
        call.result().await
    };
    timeout(Duration::from_secs(2), answered).await.expect("the call is not held up");
}

#[tokio::test]
async fn an_unknown_version_is_gone_on_with() {
    let world = UpstreamAndServer::new(Options { version: "2031-01-01", ..Options::default() }).await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;
    assert_eq!(world.server.message("tools/call").await.header("mcp-protocol-version"), Some("2031-01-01"));
}

#[tokio::test]
async fn the_description_of_the_server_is_available_after_the_handshake() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let said = world.upstream.describe(&identity(MUTE)).await.expect("a description");
    assert_eq!(said.version, "2025-11-25");
    assert_eq!(*said.capabilities, r#"{"tools":{"listChanged":true}}"#);
    assert_eq!(said.server_info, r#"{"name":"scripted","version":"1"}"#);
    assert_eq!(said.instructions.as_deref(), Some(&br#""be kind""#[..]));
    world.upstream.describe(&identity(MUTE)).await.expect("a description");
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn first_calls_at_the_same_time_open_one_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut calls: Vec<_> = (0..8).map(|id| world.call(id)).collect();
    for _ in 0..8 {
        assert_eq!(world.answer().await, "s1");
    }
    for call in &mut calls {
        call.result().await;
    }
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn a_refused_handshake_is_reported_with_the_servers_message_and_retried() {
    let error =
        json!({ "jsonrpc": "2.0", "id": "server-error", "error": { "code": -32600, "message": "go away" } });
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let hook = move |seen: &Seen| {
        let canned = || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Canned::json(400, &error)),
            1 => Some(Canned::json(200, &error)),
            2 => Some(Canned::status(401).header("www-authenticate", "Bearer y")),
            3 => Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} }))),
            _ => None,
        };
        (seen.method() == "initialize").then(canned).flatten()
    };
    let world = UpstreamAndServer::new(Options::default().hook(hook)).await;
    let words = |lost: &CallError| assert!(lost.to_string().contains("go away"), "{lost}");
    let lost = world.call(1).lost().await;
    let is_not_sent = |lost: &CallError, cause: fn(&CallError) -> bool| match lost {
        CallError::NotSent(lost) => cause(lost),
        _ => false,
    };
    let is_bad_request =
        |lost: &CallError| matches!(lost, CallError::Status { status: StatusCode::BAD_REQUEST, .. });
    assert!(is_not_sent(&lost, is_bad_request), "{lost}");
    words(&lost);
    let lost = world.call(2).lost().await;
    assert!(is_not_sent(&lost, |lost| matches!(lost, CallError::Invalid(_))), "{lost}");
    words(&lost);
    assert!(matches!(world.call(3).lost().await, CallError::Unauthorized { challenge: Some(_), .. }));
    assert!(world.call(4).lost().await.to_string().contains("protocolVersion"));
    let mut call = world.call(5);
    world.answer().await;
    call.result().await;
}

/// As where a kept connection is closed by the server while the handshake is on its way.
#[tokio::test]
async fn a_handshake_whose_connection_breaks_is_begun_anew_once() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        for round in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            let said = String::from_utf8_lossy(&head[..read]).into_owned();
            if round == 0 {
                continue; // Dropped: closed without an answer.
            }
            let id = said.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let answer = match id {
                Some(id) => {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
                    );
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    )
                }
                None => "HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    .to_owned()
                    .replace("405 No", if said.starts_with("GET") { "405 No" } else { "202 Accepted" }),
            };
            stream.write_all(answer.as_bytes()).await.expect("it is read");
        }
    });
    let upstream = connect(&url, |_| {});
    let described = timeout(PATIENCE, upstream.describe(&identity(MUTE))).await.expect("in time");
    assert_eq!(described.expect("the second time").version, "2025-11-25");
    server.abort();
}

/// A 202 says all there is to say, even where its body has no end that could be waited for.
#[tokio::test]
async fn a_202_without_an_end_does_not_delay_the_first_call() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let (left_open, open) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut left_open = Some(left_open);
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            let said = String::from_utf8_lossy(&head[..read]).into_owned();
            let id = said.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let answer = match id {
                Some(id) => {
                    let body = format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
                    );
                    let length = body.len();
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                    )
                }
                None if said.starts_with("GET") => {
                    "HTTP/1.1 405 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
                }
                None => "HTTP/1.1 202 Accepted\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.expect("it is read");
            if answer.contains(" 202 ")
                && let Some(left_open) = left_open.take()
            {
                let _ = left_open.send(stream);
            }
        }
    });
    let upstream = connect(&url, |_| {});
    // Well below the second for which the rest of an answer is read.
    let described = timeout(Duration::from_millis(500), upstream.describe(&identity(MUTE))).await;
    assert_eq!(described.expect("at once").expect("a session").version, "2025-11-25");
    drop(open.await.expect("a connection that was left open"));
    server.abort();
}
