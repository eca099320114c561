//! HTTP of a server's responses: redirects, cookies, content codings, byte order marks, `RetryRequest-After`.

use super::{ASKABLE, MUTE, Running, UpstreamAndServer, request, token, value};
use crate::support::legacy_server::{Canned, Get, LegacyServer, Options, Seen};
use async_compression::{
    tokio::write::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder},
    zstd::CParameter,
};
use deferral::internals::{
    dialect::Principal,
    protocol::Method,
    upstream::{
        CallError, CallerIdentity, ClientSession, NativeCall, OutgoingCall, RequestPurpose, UpstreamEvent,
    },
};

use bytes::Bytes;

use http::HeaderMap;
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::io::AsyncWriteExt as _;

// === redirects ===

/// A server that sends what arrives at `/mcp` elsewhere.
fn sends_on(status: u16, to: impl Into<String>) -> Options {
    let to = to.into();
    Options { sessions: true, get: Get::Stream, ..Options::default() }
        .hook(move |seen| (seen.path == "/mcp").then(|| Canned::status(status).header("location", &*to)))
}

#[tokio::test]
async fn a_redirect_on_the_same_server_is_followed_with_method_body_and_headers() {
    for status in [307, 308] {
        let world = UpstreamAndServer::new(sends_on(status, "/mcp/?v=2")).await;
        let mut call =
            world.send(OutgoingCall { caller: token("Bearer t"), ..request(7, Method::ToolsCall, ASKABLE) });
        let arrived = world.server.call().await;
        assert_eq!((&*arrived.seen.path, arrived.seen.query.as_deref()), ("/mcp/", Some("v=2")));
        assert_eq!(arrived.seen.header("authorization"), Some("Bearer t"));
        assert!(!arrived.session().is_empty());
        arrived.result(json!({ "n": 1 }));
        assert_eq!(call.result().await["n"], 1);
        world.server.seen(|seen| seen.http == "GET" && seen.path == "/mcp/").await;
        // A session that a client has opened itself is no different.
        let headers =
            HeaderMap::from_iter([(http::header::CONTENT_TYPE, "application/json".parse().unwrap())]);
        let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers };
        let body =
            Bytes::from_static(br#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t"}}"#);
        let native = NativeCall { id: 9, method: Method::ToolsCall, body: body.clone(), deferral: None };
        let mut native = Running::new(world.relay().call_in(session, native).0);
        let arrived = world.server.call().await;
        assert_eq!((&*arrived.seen.path, &arrived.seen.body), ("/mcp/", &body));
        arrived.result(json!({ "n": 2 }));
        assert_eq!(native.result().await["n"], 2);
    }
}

#[tokio::test]
async fn a_redirect_to_another_server_is_named_and_not_followed() {
    let other = LegacyServer::start(Options::default()).await;
    for (status, to) in [(307, other.url()), (308, other.url()), (301, "/elsewhere".to_owned())] {
        let world = UpstreamAndServer::new(sends_on(status, &*to)).await;
        let call = OutgoingCall { caller: token("Bearer t"), ..request(7, Method::ToolsCall, MUTE) };
        let lost = world.send(call).lost().await.to_string();
        assert!(lost.contains(&format!("redirects to {to}")) && lost.contains("upstream.url"), "{lost}");
    }
    assert!(other.log().is_empty());
}

#[tokio::test]
async fn redirects_in_a_circle_are_followed_a_few_times() {
    let world = UpstreamAndServer::new(sends_on(307, "/mcp")).await;
    let lost = world.call(7).lost().await.to_string();
    assert!(lost.contains("redirects to /mcp"), "{lost}");
    assert!(world.server.log().len() <= 8, "{}", world.server.log().len());
}

// === cookies ===

#[tokio::test]
async fn a_session_of_the_proxy_returns_its_cookies_and_no_other_sessions() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let options = Options { sessions: true, get: Get::Stream, prefix: "s-", ..Options::default() };
    let world = UpstreamAndServer::new(options.hook(move |seen| {
        let n = (seen.method() == "initialize").then(|| count.fetch_add(1, Ordering::Relaxed))?;
        let result = json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": { "name": "t", "version": "1" } });
        let body = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result });
        let session = format!("s-{n}");
        Some(
            Canned::json(200, &body)
                .header("mcp-session-id", session)
                .header("set-cookie", format!("AWSALB=replica-{n}; Path=/; HttpOnly"))
                .header("set-cookie", "AWSALBCORS=x; Path=/; SameSite=None; Secure"),
        )
    }))
    .await;
    let called = async |identity: CallerIdentity| {
        let mut call =
            world.send(OutgoingCall { caller: identity, ..request(7, Method::ToolsCall, ASKABLE) });
        let arrived = world.server.call().await;
        let seen = arrived.seen.clone();
        let next = Canned::json(200, &json!({ "jsonrpc": "2.0", "id": arrived.id(), "result": {} }));
        arrived.canned(next.header("set-cookie", "moved=1"));
        call.result().await;
        (seen.session().to_owned(), seen.header("cookie").unwrap_or_default().to_owned())
    };
    let first = called(token("Bearer a")).await;
    let second = called(token("Bearer b")).await;
    assert_eq!(first, ("s-0".to_owned(), "AWSALB=replica-0".to_owned()));
    assert_eq!(second, ("s-1".to_owned(), "AWSALB=replica-1".to_owned()));
    let again = called(token("Bearer a")).await;
    assert_eq!(
        again,
        ("s-0".to_owned(), "AWSALB=replica-0; moved=1".to_owned()),
        "as the last response has set them"
    );
    let all_have_one = |seen: &Seen| seen.method() == "initialize" || seen.headers.contains_key("cookie");
    let log = world.server.log();
    assert!(log.iter().all(all_have_one), "also `notifications/initialized` and the GET stream: {log:?}");
}

// === codings ===

async fn coded(coding: &str, body: &[u8]) -> Vec<u8> {
    macro_rules! encoded {
        ($encoder:ident) => {{
            let mut encoder = $encoder::new(Vec::new());
            encoder.write_all(body).await.expect("memory takes it");
            encoder.shutdown().await.expect("memory takes it");
            encoder.into_inner()
        }};
    }
    match coding {
        "gzip" | "x-gzip" => encoded!(GzipEncoder),
        "deflate" => encoded!(ZlibEncoder),
        "br" => encoded!(BrotliEncoder),
        "zstd" => encoded!(ZstdEncoder),
        _ => body.to_vec(),
    }
}

fn response(id: u64, text: &str) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "text": text } }).to_string().into_bytes()
}

#[tokio::test]
async fn no_content_coding_is_requested_and_a_coded_body_is_read() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let text = "word ".repeat(20_000);
    let mut connections = Vec::new();
    for (id, coding) in
        (1..).zip(["gzip", "x-gzip", "GZIP", "deflate", "br", "zstd", "identity", "identity, gzip"])
    {
        let method = coding.rsplit(", ").next().expect("there is one").to_ascii_lowercase();
        for kind in ["application/json", "text/event-stream"] {
            let mut call = world.call(id);
            let arrived = world.server.call().await;
            assert_eq!(arrived.seen.header("accept-encoding"), Some("identity"));
            connections.push(arrived.seen.connection);
            let body = response(arrived.id().as_u64().expect("a number"), &text);
            let body = match kind {
                "application/json" => body,
                _ => [b"data: ", &body[..], b"\n\n"].concat(),
            };
            let canned = Canned::status(200).bytes(coded(&method, &body).await);
            arrived.canned(canned.header("content-type", kind).header("content-encoding", coding));
            assert_eq!(call.result().await["text"], *text, "{coding} {kind}");
        }
    }
    // Layers are undone from the outermost.
    let mut call = world.call(90);
    let arrived = world.server.call().await;
    let body = response(arrived.id().as_u64().expect("a number"), "layers");
    let body = coded("br", &coded("gzip", &body).await).await;
    let canned = Canned::status(200).bytes(body).header("content-type", "application/json");
    arrived.canned(canned.header("content-encoding", "gzip").header("content-encoding", "br"));
    assert_eq!(call.result().await["text"], "layers");
}

#[tokio::test]
async fn a_coding_that_cannot_be_read_is_named() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for (coding, body, why) in [
        ("lzma", b"x".to_vec(), "content coding is \"lzma\""),
        ("gzip, gzip, gzip", b"x".to_vec(), "content coding is \"gzip, gzip, gzip\""),
        ("gzip", b"no gzip at all".to_vec(), "is not gzip"),
        ("br", vec![0xff; 64], "is not br"),
        ("zstd", vec![0; 64], "is not zstd"),
    ] {
        let mut call = world.call(1);
        let canned = Canned::status(200).bytes(body).header("content-type", "application/json");
        world.server.call().await.canned(canned.header("content-encoding", coding));
        let lost = call.lost().await.to_string();
        assert!(lost.contains(why), "{coding}: {lost}");
    }
}

#[tokio::test]
async fn a_small_body_that_decodes_to_a_large_one_meets_the_limit_of_results() {
    let world =
        UpstreamAndServer::with(Options::default(), |config| config.limits.result_bytes = 100_000).await;
    let large = vec![b' '; 64 << 20];
    for coding in ["gzip", "br", "zstd", "deflate"] {
        let body = coded(coding, &large).await;
        assert!(body.len() < 100_000);
        let mut call = world.call(1);
        let canned = Canned::status(200).bytes(body).header("content-type", "application/json");
        world.server.call().await.canned(canned.header("content-encoding", coding));
        assert!(matches!(call.lost().await, CallError::TooLarge { limit: 100_000 }), "{coding}");
    }
}

#[tokio::test]
async fn a_window_of_zstd_is_bounded() {
    for (log, is_read) in [(23, true), (24, false)] {
        let world = UpstreamAndServer::new(Options::default()).await;
        let mut call = world.call(1);
        let arrived = world.server.call().await;
        let text = "x".repeat(9 << 20);
        let parameters = [CParameter::window_log(log)];
        let mut encoder =
            ZstdEncoder::with_quality_and_params(Vec::new(), async_compression::Level::Fastest, &parameters);
        encoder.write_all(&response(arrived.id().as_u64().expect("a number"), &text)).await.expect("memory");
        encoder.shutdown().await.expect("memory");
        let canned =
            Canned::status(200).bytes(encoder.into_inner()).header("content-type", "application/json");
        arrived.canned(canned.header("content-encoding", "zstd"));
        if is_read {
            assert_eq!(call.result().await["text"].as_str().map(str::len), Some(text.len()));
        } else {
            let lost = call.lost().await.to_string();
            assert!(lost.contains("is not zstd"), "{lost}");
        }
    }
}

// === marks ===

#[tokio::test]
async fn a_byte_order_mark_before_a_message_is_left_out() {
    let world = UpstreamAndServer::new(Options::default()).await;
    for (kind, before) in [("application/json", "\u{feff}"), ("text/event-stream", "\u{feff}data: \u{feff}")]
    {
        let mut call = world.call(7);
        let arrived = world.server.call().await;
        let body =
            [before.as_bytes(), &response(arrived.id().as_u64().expect("a number"), "marked"), b"\n\n"];
        arrived.canned(Canned::status(200).bytes(body.concat()).header("content-type", kind));
        assert_eq!(call.result().await["text"], "marked");
    }
}

// === when to try again ===

#[tokio::test]
async fn retry_after_of_the_server_is_in_the_error() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let date = "Wed, 21 Oct 2026 07:28:00 GMT";
    for (after, shown) in [("7", json!(7)), (date, json!(date))] {
        for (data, expected) in [
            (json!({ "code": -32000, "message": "no" }), json!({ "retryAfter": shown })),
            (
                json!({ "code": -32000, "message": "no", "data": { "a": 1 } }),
                json!({ "a": 1, "retryAfter": shown }),
            ),
            (json!({ "code": -32000, "message": "no", "data": 5 }), json!(5)),
            (
                json!({ "code": -32000, "message": "no", "data": { "retryAfter": 1 } }),
                json!({ "retryAfter": 1 }),
            ),
        ] {
            let mut call = world.call(7);
            let body = json!({ "jsonrpc": "2.0", "id": null, "error": data });
            world.server.call().await.canned(Canned::json(429, &body).header("retry-after", after));
            match call.next().await {
                Some(UpstreamEvent::Final(response)) => {
                    assert_eq!(value(response.frame())["error"]["data"], expected)
                }
                other => panic!("a final event, not {other:?}"),
            }
        }
        let mut call = world.call(7);
        world.server.call().await.canned(Canned::status(429).body("slow down").header("retry-after", after));
        match call.lost().await {
            CallError::Status { retry_after, .. } => assert_eq!(retry_after.as_deref(), Some(after)),
            other => panic!("a status, not {other}"),
        }
    }
}

// === the old transport ===

#[tokio::test]
async fn a_server_of_the_old_transport_is_named_as_one_and_a_wrong_path_as_that() {
    for (first, expected) in [
        ("event: endpoint\ndata: /messages?session=1\n\n", "HTTP+SSE (2024-11-05)"),
        ("event: message\ndata: {}\n\n", "is the path of upstream.url that of its MCP endpoint?"),
    ] {
        for status in [404, 405] {
            let options = Options::default().hook(move |seen| {
                Some(match seen.http == "GET" {
                    true => Canned::status(200).body(first).header("content-type", "text/event-stream"),
                    false => Canned::status(status).body("nothing here"),
                })
            });
            let world = UpstreamAndServer::new(options).await;
            let lost = world.call(7).lost().await;
            assert!(lost.to_string().contains(expected), "{lost}");
            assert_eq!(lost.code(), -31001, "no call was made");
        }
    }
}

// === connections ===

#[tokio::test]
async fn what_may_be_repeated_is_sent_once_more_where_its_connection_breaks_and_a_call_is_not() {
    let broken = Arc::new(AtomicBool::new(false));
    let once = Arc::clone(&broken);
    let breaks = move |seen: &Seen| {
        matches!(seen.method(), "tools/list" | "tools/call") && !once.swap(true, Ordering::Relaxed)
    };
    let world = UpstreamAndServer::new(Options { breaks: Box::new(breaks), ..Options::default() }).await;
    let mut call = world.call(1);
    let lost = call.lost().await;
    assert!(matches!(lost, CallError::Broken(_)), "{lost}");
    broken.store(false, Ordering::Relaxed);
    let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, "application/json".parse().unwrap())]);
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers };
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":9,"method":"tools/list"}"#);
    let list = session.request(http::Method::POST, body, RequestPurpose::Idempotent);
    let forwarded = tokio::spawn(world.relay().forward(list));
    world.server.call().await.result(json!({ "tools": [] }));
    assert_eq!(forwarded.await.expect("it ends").expect("it is answered").status, 200);
    assert_eq!(world.server.messages("tools/list"), 2);
    assert_eq!(world.server.messages("tools/call"), 1);
}
