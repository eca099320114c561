//! Limits of request heads and bodies.

use super::{
    BOTH,
    listener_and_service::{
        FrontAndService, Lines, ScriptedService, Version, call, message, post, tls_paths,
    },
};
use crate::support::limit_hits::LimitHits;
use http::{HeaderValue, StatusCode};

use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    for version in BOTH {
        let desk = ScriptedService::prompt();
        let world = FrontAndService::new(&[&desk], |config| config.limits.body_bytes = 1000);
        let pad = " ".repeat(1000);
        let answer = world.client(version).await.ask(post(&message("tools/list", &pad), &[])).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{version:?}");
        assert!(answer.message().contains("1000 bytes (limits.body_bytes)"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_refused_once_it_is_over_the_limit() {
    let hits = LimitHits::of("limits.body_bytes");
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| config.limits.body_bytes = 1000);
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("320\r\n{}\r\n", " ".repeat(800));
    let answer = world.raw(format!("{head}{chunk}{chunk}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    hits.are(1).await;
}

#[tokio::test]
async fn a_client_that_is_refused_while_it_sends_can_read_why() {
    for secure in [false, true] {
        let world =
            FrontAndService::new(&[&ScriptedService::prompt()], |config| config.tls = secure.then(tls_paths));
        let body = message("tools/list", &" ".repeat(16 << 20));
        let mut client = match secure {
            false => world.client(Version::Http1).await,
            true => world.secure_client(Version::Http1).await,
        };
        let answer = client.ask(post(&body, &[("mcp-method", "tools/list")])).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    }
    // A client that reads nothing before it has sent everything.
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let length = 16 << 20;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let answer = world.raw(&[head.as_bytes(), &vec![b' '; length]].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn a_body_in_many_pieces_arrives_whole() {
    let desk = ScriptedService::prompt();
    let world = FrontAndService::new(&[&desk], |_| {});
    let pad = " ".repeat(200 << 10);
    let body = message("tools/list", &pad);
    for version in BOTH {
        let answer = world.client(version).await.ask(post(&body, &[("mcp-method", "tools/list")])).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    for (call, _) in &*desk.seen.lock().unwrap() {
        assert!(call.bytes == body.as_bytes());
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_abandoned() {
    let hits = LimitHits::of("timeouts.read_body");
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |config| {
        config.timeouts.read_body = Duration::from_millis(50);
    });
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let answer = world.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("timeouts.read_body"), "{answer}");
    hits.are(1).await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let (bytes, headers) = (LimitHits::of("limits.header_bytes"), LimitHits::of("limits.headers"));
    let world = FrontAndService::new(&[&ScriptedService::prompt()], |_| {});
    let lines = Lines::record();
    let large = format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(17 << 10));
    assert!(world.raw(large.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    tokio::join!(bytes.are(1), headers.are(0));
    let many = |count: usize| {
        let more = "x: y\r\n".repeat(count - 2);
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n")
    };
    assert!(world.raw(many(101).as_bytes()).await.starts_with("HTTP/1.1 431 "));
    tokio::join!(bytes.are(1), headers.are(1));
    assert!(!world.raw(many(100).as_bytes()).await.starts_with("HTTP/1.1 431 "));
    // Over HTTP/2 the second answer on a connection is written in another way.
    let mut client = world.client(Version::Http2).await;
    for count in 1..=2 {
        let mut request = call("greet");
        let value = HeaderValue::try_from("x".repeat(17 << 10)).expect("text");
        request.headers_mut().insert("x", value);
        assert_eq!(client.ask(request).await.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        tokio::join!(bytes.are(1 + count), headers.are(1));
    }
    assert_eq!(client.ask(call("greet")).await.status, StatusCode::OK);
    let refused: Vec<_> = lines.of("head_refused");
    let limits: Vec<_> = refused.iter().map(|line| line["limit"].as_str().expect("a key")).collect();
    assert_eq!(
        limits,
        ["limits.header_bytes", "limits.headers", "limits.header_bytes", "limits.header_bytes"]
    );
    for line in &refused {
        assert_eq!((&line["level"], &line["client"]), (&json!("WARN"), &json!("127.0.0.1")), "{line:#}");
    }
}
