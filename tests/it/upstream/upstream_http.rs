//! Headers, certificates, server names and HTTP proxies of an upstream.

use super::{MUTE, Running, UpstreamAndServer, connect, request, token};
use crate::support::{
    connect_proxy::ConnectProxy,
    legacy_server::{Canned, Get, LegacyServer, Options, ReservedPort, Seen},
    tls_server::{house_tls_before, tls_before},
};
use bytes::Bytes;
use deferral::internals::{
    dialect::Principal,
    protocol::Method,
    upstream::{
        CallError, ClientSession, Config, NativeCall, OutgoingCall, Proxy, TlsFiles, Upstream, UpstreamTls,
    },
};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use serde_json::json;
use std::{path::PathBuf, sync::Arc};

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/it/support/tls", name].iter().collect()
}

fn tls(change: impl FnOnce(&mut TlsFiles)) -> Option<Arc<UpstreamTls>> {
    let mut files = TlsFiles::default();
    change(&mut files);
    Some(Arc::new(UpstreamTls::read(files).expect("the files are right")))
}

fn name(name: &'static str) -> Option<rustls::pki_types::ServerName<'static>> {
    Some(name.try_into().expect("a name"))
}

/// The server's answer to a call, or why there is none.
async fn tried(server: &LegacyServer, url: &str, change: impl FnOnce(&mut Config)) -> Result<(), CallError> {
    let upstream = connect(url, change);
    let mut call = Running::new(upstream.call(request(1, Method::ToolsCall, MUTE)));
    tokio::select! {
        arrived = server.call() => arrived.result(json!({})),
        lost = call.lost() => return Err(lost),
    }
    call.result().await;
    Ok(())
}

fn unreachable(tried: Result<(), CallError>) -> String {
    match tried {
        Err(CallError::Unreachable(why)) => why,
        other => panic!("it cannot be reached, but {other:?}"),
    }
}

// === headers ===

fn own_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer ours"));
    headers.insert("x-key", HeaderValue::from_static("our key"));
    headers
}

fn says_ours(seen: &Seen) {
    let all = |name| seen.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
    assert_eq!(
        (all("authorization"), all("x-key")),
        (vec![&b"Bearer ours"[..]], vec![&b"our key"[..]]),
        "{seen:?}"
    );
}

#[tokio::test]
async fn our_headers_are_in_every_request_in_the_place_of_the_callers() {
    let options = Options { sessions: true, get: Get::Stream, ..Options::default() }.hook(|seen| {
        seen.path.starts_with("/.well-known/").then(|| Canned::json(200, &json!({ "resource": "here" })))
    });
    let world = UpstreamAndServer::with(options, |config| config.headers = Arc::new(own_headers())).await;
    let caller = token("Bearer theirs");
    let report = world.upstream.watch(caller.principal).subscribe();
    let call = OutgoingCall { caller: caller.clone(), ..request(1, Method::ToolsCall, MUTE) };
    let mut call = world.send(call);
    let arrived = world.server.call().await;
    let session = arrived.session().to_owned();
    arrived.result(json!({}));
    call.result().await;
    world.server.listener(&session).await;
    let path = "/.well-known/oauth-protected-resource/mcp";
    let document = world.origin().fetch(path, &caller.credentials).await;
    assert!(document.is_ok(), "{document:?}");
    drop(report);
    world.upstream.close().await;
    world.server.seen(|seen| seen.http == "DELETE").await;
    let log = world.server.log();
    let count = |method: &str| log.iter().filter(|seen| seen.http == method).count();
    assert!(count("POST") >= 3 && count("GET") >= 2 && count("DELETE") == 1, "{log:?}");
    log.iter().for_each(says_ours);
}

#[tokio::test]
async fn our_headers_are_in_the_requests_of_a_client_that_has_a_session_of_its_own() {
    let world =
        UpstreamAndServer::with(Options::default(), |config| config.headers = Arc::new(own_headers())).await;
    let headers = [
        ("authorization", "Bearer theirs"),
        ("x-key", "their key"),
        ("x-key", "another"),
        ("connection", "x-key"),
        ("content-type", "application/json"),
        ("mcp-session-id", "s"),
    ];
    let headers: HeaderMap = headers
        .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), HeaderValue::from_static(value)))
        .into_iter()
        .collect();
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers };
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#);
    let call = NativeCall { id: 7, method: Method::ToolsCall, body, deferral: None };
    let mut called = Running::new(world.relay().call_in(session.clone(), call).0);
    world.server.call().await.result(json!({}));
    called.result().await;

    world.relay().cancel_in(session, &[deferral::internals::protocol::RequestId::from_number(7)], "gone");
    world.server.message("notifications/cancelled").await;
    let log = world.server.log();
    assert_eq!(log.len(), 2, "{log:?}");
    for seen in &log {
        says_ours(seen);
        assert_eq!(seen.headers["mcp-session-id"], "s");
    }
}

// === TLS ===

#[tokio::test]
async fn a_server_is_trusted_by_its_own_authority_and_the_name_it_is_to_have() {
    let server = LegacyServer::start(Options::default()).await;
    let port = tls_before(server.addr(), "127.0.0.1").await;
    let url = format!("https://127.0.0.1:{port}/mcp");
    let theirs = |files: &mut TlsFiles| files.ca = Some(file("authority.pem"));
    tried(&server, &url, |config| config.tls = tls(theirs)).await.expect("it is trusted");
    let named = |name: &'static str| {
        move |config: &mut Config| {
            config.tls = tls(|files| {
                theirs(files);
                files.name = self::name(name);
            });
        }
    };
    tried(&server, &url, named("localhost")).await.expect("the certificate has that name, too");
    let other = unreachable(tried(&server, &url, named("example.com")).await);
    assert!(other.contains("not valid for name"), "{other}");
    let house = |config: &mut Config| config.tls = tls(|files| files.ca = Some(file("house-authority.pem")));
    let unknown = unreachable(tried(&server, &url, house).await);
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    assert_eq!(server.log().iter().filter(|seen| seen.json["method"] == "tools/call").count(), 2);
}

#[tokio::test]
async fn a_server_that_knows_its_clients_by_their_certificates_serves_ours_and_no_other() {
    let server = LegacyServer::start(Options::default()).await;
    for versions in [rustls::ALL_VERSIONS, &[&rustls::version::TLS12]] {
        let (port, names) = house_tls_before(server.addr(), versions).await;
        let url = format!("https://127.0.0.1:{port}/mcp");
        let as_ = |identity: Option<(&'static str, &'static str)>| {
            move |config: &mut Config| {
                config.tls = tls(|files| {
                    files.ca = Some(file("house-authority.pem"));
                    files.name = name("tools.house.example");
                    files.identity = identity.map(|(cert, key)| (file(cert), file(key).into()));
                });
            }
        };
        let ours = as_(Some(("client.pem", "client-key.pem")));
        tried(&server, &url, ours).await.expect("it knows us");
        let names = std::mem::take(&mut *names.lock().expect("nothing panics with a lock"));
        assert!(!names.is_empty() && names.iter().all(|name| name.as_deref() == Some("tools.house.example")));
        let nobody = unreachable(tried(&server, &url, as_(None)).await);
        assert!(nobody.contains("CertificateRequired") || nobody.contains("HandshakeFailure"), "{nobody}");
        let stranger = as_(Some(("stranger.pem", "stranger-key.pem")));
        let stranger = unreachable(tried(&server, &url, stranger).await);
        assert!(stranger.contains("received fatal alert"), "{stranger}");
    }
    assert_eq!(server.messages("tools/call"), 2);
    assert_eq!(server.messages("initialize"), 2, "nobody else got so far");
}

#[test]
fn tls_settings_are_compared_by_file_contents_and_never_printed() {
    let ours = |cert: &str, key: &str| {
        UpstreamTls::read(TlsFiles {
            ca: Some(file("authority.pem")),
            identity: Some((file(cert), file(key).into())),
            name: None,
        })
    };
    let read = ours("client.pem", "client-key.pem").expect("they fit");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["client.pem", "client-key.pem"] {
        std::fs::copy(file(name), folder.path().join(name)).expect("it can be copied");
    }
    let copied = UpstreamTls::read(TlsFiles {
        ca: Some(file("authority.pem")),
        identity: Some((folder.path().join("client.pem"), folder.path().join("client-key.pem").into())),
        name: None,
    });
    assert!(copied.expect("they fit") == read);
    assert!(ours("stranger.pem", "stranger-key.pem").expect("they fit") != read);
    assert_eq!(format!("{read:?}"), "UpstreamTls { authorities: Some(1), has_identity: true, name: None }");
    assert!(ours("client.pem", "stranger-key.pem").is_err());
}

// === a proxy ===

#[tokio::test]
async fn an_http_proxy_tunnels_https_and_forwards_plain_requests() {
    let server = LegacyServer::start(Options::default()).await;
    let plain = ConnectProxy::start(Ok(server.addr())).await;
    let by = |proxy: &ConnectProxy, user: &str| {
        Some(Arc::new(Proxy::parse(&format!("http://{user}{}", proxy.addr)).expect("it is one")))
    };
    // The name is the proxy's to find.
    let url = "http://tools.invalid/mcp?key=1";
    tried(&server, url, |config| config.proxy = by(&plain, "")).await.expect("it is reached");
    let asked = plain.asked();
    let absolute = "POST http://tools.invalid/mcp?key=1 HTTP/1.1\r\n";
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.starts_with(absolute)), "{asked:?}");
    assert!(!asked.iter().any(|asked| asked.to_lowercase().contains("authorization")), "{asked:?}");
    assert!(server.log().iter().all(|seen| seen.headers["host"] == "tools.invalid"));
    tried(&server, url, |config| config.proxy = by(&plain, "me:hunter%202@")).await.expect("it is reached");
    let last = plain.asked().pop().expect("it was asked");
    assert!(last.contains("\r\nproxy-authorization: Basic bWU6aHVudGVyIDI=\r\n"), "{last}");

    let before = server.log().len();
    let port = tls_before(server.addr(), "127.0.0.1").await;
    let secure = ConnectProxy::start(Ok(([127, 0, 0, 1], port).into())).await;
    tried(&server, "https://localhost:8443/mcp", |config| {
        config.proxy = by(&secure, "me:hunter%202@");
        config.tls = tls(|files| files.ca = Some(file("authority.pem")));
    })
    .await
    .expect("it is reached");
    for asked in secure.asked() {
        assert!(asked.starts_with("CONNECT localhost:8443 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nproxy-authorization: Basic bWU6aHVudGVyIDI=\r\n"), "{asked}");
    }
    assert!(server.log()[before..].iter().all(|seen| !seen.headers.contains_key("proxy-authorization")));
}

#[tokio::test]
async fn a_proxy_that_does_not_help_is_named_with_its_reason_and_without_its_password() {
    let server = LegacyServer::start(Options::default()).await;
    let refusing = ConnectProxy::start(Err("407 Proxy Authentication Required")).await;
    let denying = ConnectProxy::start(Err("403 Forbidden")).await;
    let nobody = ReservedPort::new();
    let nobody = nobody.url().replace("http://", "").replace("/mcp", "");
    for (addr, why) in [
        (refusing.addr.to_string(), "HTTP 407 Proxy Authentication Required"),
        (denying.addr.to_string(), "refused a tunnel to tools.invalid:443 with HTTP 403 Forbidden"),
        (nobody, "refused"),
    ] {
        let proxy = Proxy::parse(&format!("http://me:hunter2@{addr}")).expect("it is one");
        let said = unreachable(
            tried(&server, "https://tools.invalid/mcp", |config| config.proxy = Some(Arc::new(proxy))).await,
        );
        assert!(
            said.starts_with(&format!("through the proxy http://{addr}: ")) && said.contains(why),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
    assert!(server.log().is_empty());
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_named_by_its_address() {
    let server = LegacyServer::start(Options::default()).await;
    let nobody = ReservedPort::new();
    let said = unreachable(tried(&server, &nobody.url(), |_| {}).await);
    let address = nobody.url().replace("http://", "").replace("/mcp", "");
    assert!(said.starts_with(&format!("{address}: ")) && said.contains("refused"), "{said}");
}
