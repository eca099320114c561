//! Requests that are refused: host, origin, path, method, media types, body, revision.

use super::{
    BOTH,
    listener_and_service::{
        FrontAndService, ScriptedService, Version, bare, call, message, once, post, reply,
    },
};
use http::{HeaderValue, StatusCode};
use serde_json::json;

#[tokio::test]
async fn an_unknown_host_is_refused() {
    for version in BOTH {
        let desk = ScriptedService::prompt();
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut request = call("greet");
        *request.uri_mut() = "http://evil.example.com/mcp".parse().unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static("evil.example.com"));
        let answer = world.client(version).await.ask(request).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert!(answer.message().contains("access.hosts"), "{}", answer.body);
        assert!(answer.message().contains("`--host evil.example.com`"), "{}", answer.body);
        assert!(answer.json().get("id").is_none(), "{}", answer.body);
        assert!(desk.seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn an_unknown_origin_is_refused() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let mut client = world.client(Version::Http1).await;
    let body = message("tools/list", "");
    let answer = client.ask(post(&body, &[("origin", "http://evil.example.com")])).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert!(answer.message().contains("access.origins"), "{}", answer.body);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    let preflight = bare("OPTIONS", "/mcp", &[("origin", "http://evil.example.com")]);
    assert_eq!(client.ask(preflight).await.status, StatusCode::FORBIDDEN);
    assert!(desk.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_allowed_origin_gets_a_preflight_response_and_can_read_the_response() {
    let origin = "https://app.example.com";
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.access.origins = vec![origin.to_owned()]
    });
    let mut client = world.client(Version::Http1).await;
    let preflight = bare(
        "OPTIONS",
        "/mcp",
        &[
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,mcp-param-region"),
        ],
    );
    let answer = client.ask(preflight).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), origin);
    assert_eq!(answer.header("access-control-allow-methods"), "POST, GET, DELETE");
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,mcp-param-region");

    let mut request = call("greet");
    request.headers_mut().insert("origin", HeaderValue::from_static("https://app.example.com"));
    let answer = client.ask(request).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("access-control-allow-origin"), origin);
    assert_eq!(answer.header("vary"), "origin");
    // A page must be able to read why it was refused, too.
    let refused = client.ask(post("{}", &[("origin", origin), ("content-type", "text/plain")])).await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(refused.header("access-control-allow-origin"), origin);
}

#[tokio::test]
async fn a_path_that_is_not_served_is_answered_with_those_that_are() {
    let other = ScriptedService::on("/other", |_| {}, |call| once(reply(&call.id, "{}")));
    let world = FrontAndService::new(&[&ScriptedService::prompt(), &other], |_| {});
    let mut request = call("greet");
    *request.uri_mut() = "http://localhost/mpc".parse().unwrap();
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.message().contains("`/mpc`; served here: /mcp, /other"), "{}", answer.body);
}

#[tokio::test]
async fn each_path_leads_to_its_own_route() {
    let other = ScriptedService::on("/other", |_| {}, |call| once(reply(&call.id, "\"other\"")));
    let world = FrontAndService::new(&[&ScriptedService::prompt(), &other], |_| {});
    let mut request = call("greet");
    *request.uri_mut() = "http://localhost/other?x=1".parse().unwrap();
    assert_eq!(world.client(Version::Http1).await.ask(request).await.json()["result"], "other");
}

#[tokio::test]
async fn other_methods_are_not_served() {
    for version in BOTH {
        let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
        let mut client = world.client(version).await;
        for method in ["PUT", "PATCH", "HEAD"] {
            let answer = client.ask(bare(method, "/mcp", &[("mcp-session-id", "s")])).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
            assert_eq!(answer.header("allow"), "POST, GET, DELETE");
        }
        // 2026-07-28 has neither streams to listen on nor sessions to end.
        for method in ["GET", "DELETE"] {
            let modern = bare(method, "/mcp", &[("mcp-protocol-version", "2026-07-28")]);
            let answer = client.ask(modern).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
            assert_eq!(answer.header("allow"), "POST");
            assert!(answer.message().contains("2026-07-28 uses POST alone"), "{}", answer.body);
            assert!(answer.json().get("id").is_none());
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_json_is_refused() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for media in ["text/plain", "", "application/jsonx"] {
        let mut request = call("greet");
        match media {
            "" => request.headers_mut().remove("content-type"),
            media => request.headers_mut().insert("content-type", HeaderValue::try_from(media).unwrap()),
        };
        assert_eq!(client.ask(request).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{media}");
    }
    let mut request = call("greet");
    request.headers_mut().insert("content-type", HeaderValue::from_static("Application/JSON; charset=utf-8"));
    assert_eq!(client.ask(request).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_client_must_take_both_kinds_of_answer() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (accept, status) in [
        ("application/json", 406),
        ("text/event-stream", 406),
        ("application/json, text/event-stream;q=0", 406),
        ("text/event-stream, application/json", 200),
        ("*/*", 200),
    ] {
        let mut request = call("greet");
        request.headers_mut().insert("accept", HeaderValue::try_from(accept).unwrap());
        assert_eq!(client.ask(request).await.status.as_u16(), status, "{accept}");
    }
    let mut request = call("greet");
    request.headers_mut().remove("accept");
    assert_eq!(client.ask(request).await.status, StatusCode::OK, "a missing header admits everything");
}

#[tokio::test]
async fn a_client_of_a_legacy_revision_is_passed_on() {
    for version in BOTH {
        let desk = ScriptedService::prompt();
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        let hello = r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;
        // What it must send beside its message is for its server to say.
        let bare_hello = post(hello, &[("mcp-protocol-version", ""), ("accept", ""), ("content-type", "")]);
        assert_eq!(client.ask(bare_hello).await.body, "POST ");
        for method in ["GET", "DELETE"] {
            let answer = client.ask(bare(method, "/mcp?k=v", &[("mcp-session-id", "s")])).await;
            assert_eq!(answer.body, format!("{method} k=v"));
        }
        let passed = desk.passed.lock().unwrap();
        assert_eq!(passed[0].body, hello);
        assert_eq!(passed[0].post.messages[0].method_name(), "initialize");
        assert_eq!(passed[1].headers["mcp-session-id"], "s");
        assert!(desk.seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_those_that_are() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut client = world.client(Version::Http1).await;
    for (version, way_out) in [
        ("2027-01-01", "this server supports 2026-07-28"),
        ("2025-11-25", "begin a session with `initialize`"),
    ] {
        let body = message("tools/list", "").replace("2026-07-28", version);
        let answer = client.ask(post(&body, &[("mcp-protocol-version", version)])).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, -32022));
        let served = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"];
        let data = json!({ "supported": served, "requested": version });
        assert_eq!(answer.json()["error"]["data"], data);
        assert!(answer.message().contains(way_out), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_modern_request_without_its_header_is_a_mismatch_and_not_a_legacy_client() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let mut request = call("greet");
    request.headers_mut().remove("mcp-protocol-version");
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32020));
    assert_eq!(answer.json()["id"], 7);
}

#[tokio::test]
async fn a_removed_method_is_not_found_with_its_id() {
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let request = post(&message("initialize", ""), &[("mcp-method", "initialize")]);
    let answer = world.client(Version::Http1).await.ask(request).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (404, -32601));
    assert_eq!(answer.json()["id"], 7);
}
