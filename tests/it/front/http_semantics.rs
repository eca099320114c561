//! Requirements of HTTP (RFC 9110, RFC 9112) and JSON-RPC 2.0.

use super::{
    BOTH,
    listener_and_service::{Client, FrontAndService, ScriptedService, Version, bare, call, message, post},
};
use http::StatusCode;
use serde_json::json;

/// A call with these lines of its head beside the usual ones, on a connection that ends with its answer.
async fn status_of(world: &FrontAndService, lines: &str, body: &str) -> String {
    let head = format!(
        "POST /mcp HTTP/1.1\r\n{lines}connection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\nmcp-name: greet\r\n\r\n{body}"
    );
    let answer = world.raw(head.as_bytes()).await;
    answer.lines().next().unwrap_or_default().to_owned()
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

fn greet() -> String {
    message("tools/call", r#""name":"greet","#)
}

#[tokio::test]
async fn a_body_with_another_transfer_coding_than_chunked_is_refused_and_ends_its_connection() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let body = chunked(&greet());
    for (codings, status) in [
        ("transfer-encoding: chunked\r\n", "HTTP/1.1 200 OK"),
        ("transfer-encoding: Chunked\r\n", "HTTP/1.1 200 OK"),
        ("transfer-encoding: chunked, chunked\r\n", "HTTP/1.1 400 Bad Request"),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "HTTP/1.1 400 Bad Request"),
        ("transfer-encoding: gzip, chunked\r\n", "HTTP/1.1 501 Not Implemented"),
        ("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", "HTTP/1.1 501 Not Implemented"),
        ("transfer-encoding: identity, chunked\r\n", "HTTP/1.1 501 Not Implemented"),
        ("transfer-encoding: gzip\r\n", "HTTP/1.1 400 Bad Request"),
    ] {
        let lines = format!("host: localhost\r\n{codings}");
        assert_eq!(status_of(&world, &lines, &body).await, status, "{codings}");
    }
    assert_eq!(desk.seen.lock().unwrap().len(), 2, "nothing else was called");
    // What follows on the connection is not read as another request.
    let twice = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, chunked\r\n\r\n{body}\
         GET /other HTTP/1.1\r\nhost: localhost\r\n\r\n"
    );
    let answer = world.raw(twice.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn a_request_has_one_host_and_that_is_one() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.access.hosts = vec!["*".to_owned()]
    });
    for (hosts, status) in [
        (&["localhost"][..], "HTTP/1.1 200 OK"),
        (&["mcp.example.com:443"], "HTTP/1.1 200 OK"),
        (&["[::1]:80"], "HTTP/1.1 200 OK"),
        (&[], "HTTP/1.1 400 Bad Request"),
        (&[""], "HTTP/1.1 400 Bad Request"),
        (&["localhost", "localhost"], "HTTP/1.1 400 Bad Request"),
        (&["localhost", "evil.example"], "HTTP/1.1 400 Bad Request"),
        (&["[::1].evil.example"], "HTTP/1.1 400 Bad Request"),
        (&["localhost:80@evil.example"], "HTTP/1.1 400 Bad Request"),
        (&["localhost:port"], "HTTP/1.1 400 Bad Request"),
    ] {
        let mut lines: String = hosts.iter().map(|host| format!("host: {host}\r\n")).collect();
        lines.push_str(&format!("content-length: {}\r\n", greet().len()));
        assert_eq!(status_of(&world, &lines, &greet()).await, status, "{hosts:?}");
    }
    let answer = world.raw(b"GET /mcp HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "HTTP/1.0 knows no `Host`: {answer}");
}

#[tokio::test]
async fn an_origin_that_only_begins_like_this_machine_is_refused() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    for version in BOTH {
        let mut client = world.client(version).await;
        for origin in [
            "http://localhost:80@evil.example",
            "http://[::1].evil.example",
            "http://localhost#.evil.example",
        ] {
            let answer = client
                .ask(post(
                    &greet(),
                    &[("origin", origin), ("mcp-method", "tools/call"), ("mcp-name", "greet")],
                ))
                .await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin}");
            assert!(answer.message().contains("access.origins"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_body_with_a_content_coding_is_refused_with_the_codings_that_are_read() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    for version in BOTH {
        let mut client = world.client(version).await;
        for (coding, is_read) in [("identity", true), ("gzip", false), ("identity, br", false), ("x", false)]
        {
            for headers in [&[][..], &[("mcp-session-id", "s"), ("mcp-protocol-version", "2025-11-25")]] {
                let mut request = call("greet");
                for (name, value) in headers.iter().chain(&[("content-encoding", coding)]) {
                    request.headers_mut().insert(*name, value.parse().expect("a value"));
                }
                let answer = client.ask(request).await;
                if is_read {
                    assert_eq!(answer.status, StatusCode::OK, "{coding}");
                    continue;
                }
                assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{coding}");
                assert_eq!(answer.header("accept-encoding"), "identity");
            }
        }
        let answer = client.ask(bare("GET", "/mcp", &[("content-encoding", "gzip")])).await;
        assert_eq!(answer.status, StatusCode::OK, "it has no body");
    }
}

/// What a modern client, and a legacy one in a session, are answered to this body: the status, the code and the id.
async fn refusals(client: &mut Client, body: &str) -> [(u16, serde_json::Value, serde_json::Value); 2] {
    let modern = post(body, &[("mcp-method", "tools/call"), ("mcp-name", "greet")]);
    let legacy = post(body, &[("mcp-session-id", "s"), ("mcp-protocol-version", "2025-11-25")]);
    let mut refusals = Vec::new();
    for request in [modern, legacy] {
        let answer = client.ask(request).await;
        let json: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
        refusals.push((answer.status.as_u16(), json["error"]["code"].clone(), json["id"].clone()));
    }
    refusals.try_into().expect("there are two")
}

#[tokio::test]
async fn a_message_of_a_client_that_is_not_json_rpc_2_0_is_an_invalid_request() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http1).await;
    const VERSION: &str = r#""jsonrpc":"2.0","#;
    for version in ["", r#""jsonrpc":"1.0","#, r#""jsonrpc":2.0,"#, r#""jsonrpc":"1.0","jsonrpc":"2.0","#] {
        let [modern, legacy] = refusals(&mut client, &greet().replace(VERSION, version)).await;
        assert_eq!(modern, (400, json!(-32600), json!(7)), "{version}");
        assert_eq!(
            legacy,
            (200, json!(-32600), json!(7)),
            "{version}: a legacy client is answered by its id"
        );
        let plain = format!(r#"{{{version}"id":8,"method":"tools/call","params":{{"name":"greet"}}}}"#);
        let [_, legacy] = refusals(&mut client, &plain).await;
        assert_eq!(legacy, (200, json!(-32600), json!(8)), "{version}");
        let notification = format!(r#"{{{version}"method":"notifications/initialized"}}"#);
        let [modern, legacy] = refusals(&mut client, &notification).await;
        assert_eq!((modern.0, &modern.1), (400, &json!(-32600)), "{version}");
        assert_eq!((legacy.0, &legacy.1), (400, &json!(-32600)), "{version}");
        // One of a batch refuses all of it: what is passed on is passed on whole.
        let batch = format!(r#"[{{{VERSION}"id":1,"method":"ping"}},{plain}]"#);
        let request = post(&batch, &[("mcp-session-id", "s"), ("mcp-protocol-version", "2025-03-26")]);
        let answer = client.ask(request).await;
        let refused: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(
            [&refused[0]["error"]["code"], &refused[1]["error"]["code"], &refused[1]["id"]],
            [&json!(-32600), &json!(-32600), &json!(8)]
        );
    }
    assert!(desk.seen.lock().unwrap().is_empty() && desk.passed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn only_what_is_no_json_is_a_parse_error() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (body, code) in [
        ("1", -32600),
        ("null", -32600),
        (r#""text""#, -32600),
        ("{}", -32600),
        ("[]", -32600),
        ("[1]", -32600),
        (r#"{"jsonrpc":"2.0","id":7,"method":5}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":7,"method":"a","method":"b"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"a"}"#, -32600),
        ("", -32700),
        ("{", -32700),
        ("[1,", -32700),
        ("nonsense", -32700),
    ] {
        let [modern, _] = refusals(&mut client, body).await;
        assert_eq!((modern.0, &modern.1), (400, &json!(code)), "{body}");
    }
}
