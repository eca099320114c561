//! Clients with tokens.

use super::listener_and_service::{
    Answer, FrontAndService, Lines, ScriptedService, Version, bare, call, post, tls_paths,
};
use deferral::internals::{
    dialect::Principal,
    front::Config,
    policy::{PrincipalSource, TokenSet},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use std::{sync::Arc, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALICE: &str = "alices-token-0000";
const ALICES_NEW: &str = "alices-token-0001";
const BOB: &str = "bobs-token-000000";

/// What a legacy client sends that asks for a list in its session.
const LIST: &str = r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#;

fn world(desks: &[&Arc<ScriptedService>]) -> FrontAndService {
    let tokens = [("alice", ALICE), ("alice", ALICES_NEW), ("bob", BOB)];
    FrontAndService::new(desks, |config| {
        config.tokens = TokenSet::new(tokens.map(|(name, token)| (name.into(), token)));
    })
}

fn bearing<B>(mut request: Request<B>, token: &str) -> Request<B> {
    let value = HeaderValue::try_from(format!("Bearer {token}")).expect("a header value");
    request.headers_mut().append("authorization", value);
    request
}

/// Every request of a client that would be served if it were known.
fn requests() -> Vec<Request<Full<bytes::Bytes>>> {
    let session = [("mcp-session-id", "s"), ("mcp-protocol-version", "2025-11-25")];
    vec![
        call("greet"),
        post(LIST, &session),
        post("not JSON", &[]),
        bare("GET", "/mcp", &session),
        bare("DELETE", "/mcp", &session),
        bare("GET", "/other", &session),
        bare("PUT", "/mcp", &[]),
        bare("GET", "/nowhere", &[]),
        bare("POST", "/.well-known/oauth-authorization-server", &[]),
    ]
}

fn is_refused(answer: &Answer, error: Option<&str>) {
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
    assert_eq!(answer.code(), -31008);
    let challenge = match error {
        None => r#"Bearer realm="deferral""#.to_owned(),
        Some(error) => format!(r#"Bearer realm="deferral", error="{error}""#),
    };
    let challenges: Vec<_> = answer.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(challenges, [&*challenge]);
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(answer.message().contains("access.tokens") || answer.message().contains("Authorization"));
}

#[tokio::test]
async fn a_request_without_a_valid_token_is_refused_on_every_path() {
    for version in [Version::Http1, Version::Http2] {
        let (desk, other) = (
            ScriptedService::prompt(),
            ScriptedService::on("/other", |_| {}, |_| unreachable!("nobody is let in")),
        );
        let world = world(&[&desk, &other]);
        let mut client = world.client(version).await;
        for request in requests() {
            is_refused(&client.ask(request.clone()).await, None);
            is_refused(
                &client.ask(bearing(request.clone(), "somebodys-token-0")).await,
                Some("invalid_token"),
            );
            let several = bearing(bearing(request.clone(), ALICE), BOB);
            is_refused(&client.ask(several).await, Some("invalid_token"));
            let mut basic = request;
            basic.headers_mut().insert("authorization", HeaderValue::from_static("Basic YWxpY2U6eA=="));
            is_refused(&client.ask(basic).await, None);
        }
        assert!(desk.seen.lock().unwrap().is_empty() && desk.passed.lock().unwrap().is_empty());
        assert!(other.passed.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_refused_request_is_answered_before_its_body() {
    let desk = ScriptedService::prompt();
    let world = world(&[&desk]);
    let mut socket = world.socket().await;
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("it is read");
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).await.expect("an answer, although there is no body yet");
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn a_caller_is_the_name_of_its_token_whichever_of_its_tokens_it_shows() {
    let desk = ScriptedService::prompt();
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    for token in [ALICE, ALICES_NEW, BOB] {
        let answer = client.ask(bearing(call("greet"), token)).await;
        assert_eq!(answer.status, StatusCode::OK);
        let older = [("mcp-protocol-version", "2025-11-25")];
        for request in [post(LIST, &older), bare("GET", "/mcp", &older), bare("DELETE", "/mcp", &older)] {
            assert_eq!(client.ask(bearing(request, token)).await.status, StatusCode::OK);
        }
    }
    let of_calls: Vec<_> = desk.seen.lock().unwrap().iter().map(|(_, caller)| caller.principal).collect();
    let [alice, again, bob] = of_calls[..] else { panic!("three calls") };
    assert!(alice == again && alice != bob && !alice.is_anonymous());
    let of_passages: Vec<_> = desk.passed.lock().unwrap().iter().map(|passage| passage.principal).collect();
    assert_eq!(of_passages, [[alice; 3], [alice; 3], [bob; 3]].concat());
}

#[tokio::test]
async fn a_token_goes_no_further_and_what_else_the_client_shows_does() {
    let desk = ScriptedService::prompt()
        .with(|route| route.session_headers = vec![HeaderName::from_static("x-tenant")]);
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    let also = [("cookie", "c=1"), ("x-tenant", "t")];
    let older = [&also[..], &[("mcp-protocol-version", "2025-11-25")]].concat();
    client.ask(bearing(post(LIST, &older), ALICE)).await;
    let mut request = call("greet");
    for (name, value) in also {
        request.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    client.ask(bearing(request, ALICE)).await;

    let shows = |headers: &HeaderMap| {
        let values: Vec<_> = headers.values().map(|value| value.to_str().expect("text").to_owned()).collect();
        assert!(!values.iter().any(|value| value.contains(ALICE)), "{values:?}");
        assert!(headers.contains_key("cookie") && headers.contains_key("x-tenant"));
    };
    let seen = desk.seen.lock().unwrap();
    shows(seen[0].1.credentials.headers());
    assert!(seen[0].0.headers.values().all(|value| value != ALICE));
    shows(&desk.passed.lock().unwrap()[0].headers);
}

#[tokio::test]
async fn a_header_distinguishes_principals_that_share_a_token_only() {
    let source = PrincipalSource::Header(HeaderName::from_static("x-user"));
    let desk = ScriptedService::prompt().with(|route| route.principal = source);
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    for (token, user) in [(ALICE, "u"), (ALICES_NEW, "u"), (ALICE, "v"), (BOB, "u")] {
        let mut request = bearing(call("greet"), token);
        request.headers_mut().insert("x-user", HeaderValue::from_static(user));
        client.ask(request).await;
    }
    let seen: Vec<Principal> = desk.seen.lock().unwrap().iter().map(|(_, caller)| caller.principal).collect();
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0] != seen[2] && seen[0] != seen[3], "bob cannot be alice's `u`");
}

#[tokio::test]
async fn a_preflight_needs_no_token_and_the_refusal_is_readable() {
    let desk = ScriptedService::prompt();
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    let page = ("origin", "http://localhost:3000");
    let asks = [
        page,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let answer = client.ask(bare("OPTIONS", "/mcp", &asks)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-headers"), "authorization");
    let refused = client.ask(post(LIST, &[page])).await;
    is_refused(&refused, None);
    assert_eq!(refused.header("access-control-allow-origin"), page.1);
    assert!(refused.header("access-control-expose-headers").contains("www-authenticate"));
    // A foreign origin gets no information, with a token or without.
    let strange = bearing(post(LIST, &[("origin", "http://evil.example.com")]), ALICE);
    assert_eq!(client.ask(strange).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn there_is_no_authorization_server_to_be_found() {
    let desk = ScriptedService::prompt();
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        for request in [bare("GET", path, &[]), bearing(bare("GET", path, &[]), ALICE)] {
            let answer = client.ask(request).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND);
            assert!(answer.message().contains("access.tokens"), "{}", answer.message());
        }
    }
    assert!(desk.fetched.lock().unwrap().is_empty(), "the server is not asked either");
}

#[tokio::test]
async fn the_log_has_the_name_of_a_token_and_never_the_token() {
    let lines = Lines::record();
    let desk = ScriptedService::prompt();
    let world = world(&[&desk]);
    let mut client = world.client(Version::Http1).await;
    client.ask(bearing(call("greet"), ALICE)).await;
    client.ask(bearing(call("greet"), "somebodys-token-0")).await;
    let lines = lines.until(2).await;
    assert_eq!((&lines[0]["token"], &lines[0]["status"]), (&"alice".into(), &200.into()));
    assert!(lines[1].get("token").is_none(), "{}", lines[1]);
    assert_eq!((&lines[1]["status"], &lines[1]["outcome"]), (&401.into(), &"refused".into()));
    let all = format!("{lines:?}");
    assert!(!all.contains(ALICE) && !all.contains("somebodys-token-0"), "{all}");
}

#[tokio::test]
async fn unauthenticated_requests_take_no_permit_of_authenticated_ones() {
    let (desk, _given_up) = ScriptedService::silent(Duration::from_millis(10));
    let tokens = TokenSet::new([("alice".into(), ALICE)]);
    let world = FrontAndService::new(&[&desk], |config| (config.tokens, config.limits.calls) = (tokens, 1));
    let mut client = world.client(Version::Http1).await;
    let held = client.send(bearing(call("work"), ALICE)).await.expect("it is answered by a comment");
    assert_eq!(held.status(), StatusCode::OK);
    // No permit is free; an unauthenticated request gets 401 and not the limit, and its body is not read.
    let mut other = world.client(Version::Http1).await;
    is_refused(&other.ask(call("work")).await, None);
    assert_eq!(other.ask(bearing(call("work"), ALICE)).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn tokens_that_others_can_read_on_their_way_are_warned_of() {
    let warned = |listen: &[&str], change: fn(&mut Config)| {
        let lines = Lines::record();
        let _front = FrontAndService::on_pipes(&[], |config| {
            config.listen = listen.iter().map(|address| address.parse().expect("an address")).collect();
            config.tokens = TokenSet::new([("alice".into(), ALICE)]);
            change(config);
        });
        let lines = lines.of("tokens_unencrypted").into_iter();
        lines.map(|line| line["listen"].as_str().expect("an address").to_owned()).collect::<Vec<_>>()
    };
    let elsewhere = ["127.0.0.1:80", "192.0.2.1:80"];
    assert_eq!(warned(&elsewhere, |_| {}), ["192.0.2.1:80"]);
    assert_eq!(
        warned(&elsewhere, |config| config.public_url = "http://example.com".parse().ok()),
        ["192.0.2.1:80"]
    );
    for fine in [
        warned(&["127.0.0.1:80", "[::1]:80"], |_| {}),
        warned(&elsewhere, |config| config.tokens = TokenSet::default()),
        warned(&elsewhere, |config| config.tls = Some(tls_paths())),
        warned(&elsewhere, |config| config.public_url = "https://example.com".parse().ok()),
    ] {
        assert!(fine.is_empty(), "{fine:?}");
    }
}
