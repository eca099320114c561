//! Protected resource metadata (RFC 9728) and challenges.

use super::{
    BOTH,
    listener_and_service::{FrontAndService, ScriptedService, Version, bare, call, once, reply, tls_paths},
};
use deferral::internals::upstream::{CallError, OriginResponse};
use http::{HeaderMap, HeaderValue, StatusCode};

use std::sync::Arc;

const SERVERS_OWN: &str = r#"{ "resource" : "https://inner:9000/v1/mcp","x":1.10e3 }"#;

fn document(body: &'static str) -> OriginResponse {
    let headers = HeaderMap::from_iter([
        (http::header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8")),
        (http::header::CONTENT_LENGTH, HeaderValue::from_static("1")),
        (http::header::SET_COOKIE, HeaderValue::from_static("inner=1")),
    ]);
    OriginResponse { status: StatusCode::OK, headers, body: body.into() }
}

#[tokio::test]
async fn metadata_names_us_and_is_otherwise_the_servers() {
    for version in BOTH {
        let desk = ScriptedService::prompt();
        *desk.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
        let world = FrontAndService::new(&[&desk], |_| {});
        let mut client = world.client(version).await;
        for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
            let answer = client.ask(bare("GET", path, &[("host", "localhost:8808")])).await;
            assert_eq!(answer.status, StatusCode::OK);
            assert_eq!(answer.header("content-type"), "application/json; charset=utf-8");
            assert_eq!(answer.header("set-cookie"), "");
            let host = if version == Version::Http1 { "localhost:8808" } else { "localhost" };
            assert_eq!(answer.body, format!(r#"{{ "resource" : "http://{host}/mcp","x":1.10e3 }}"#));
            assert_eq!(desk.fetched.lock().unwrap().last().map(String::as_str), Some(path));
        }
        let answer = client.ask(bare("POST", "/.well-known/oauth-protected-resource", &[])).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET"));
    }
}

#[tokio::test]
async fn our_address_is_the_configured_one_or_what_the_client_used() {
    let resource = async |headers: &[(&str, &str)], public: Option<&str>, tls: bool| {
        let desk = ScriptedService::prompt();
        *desk.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
        let world = FrontAndService::new(&[&desk], |config| {
            config.public_url = public.map(|url| url.parse().unwrap());
            config.tls = tls.then(tls_paths);
        });
        let mut client = match tls {
            true => world.secure_client(Version::Http1).await,
            false => world.client(Version::Http1).await,
        };
        let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource/mcp", headers)).await;
        answer.json()["resource"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(resource(&[], None, false).await, "http://localhost/mcp");
    assert_eq!(resource(&[], None, true).await, "https://localhost/mcp");
    assert_eq!(resource(&[("x-forwarded-proto", "https, http")], None, false).await, "https://localhost/mcp");
    assert_eq!(resource(&[("x-forwarded-proto", "gopher")], None, true).await, "https://localhost/mcp");
    assert_eq!(resource(&[], Some("https://mcp.example.com/"), false).await, "https://mcp.example.com/mcp");
}

#[tokio::test]
async fn metadata_that_cannot_be_had_is_an_error_of_the_server() {
    let desk = ScriptedService::prompt();
    *desk.document.lock().unwrap() = Some(Err(CallError::Unreachable("no route".into())));
    let world = FrontAndService::new(&[&desk], |_| {});
    let path = "/.well-known/oauth-protected-resource/mcp";
    let answer = world.client(Version::Http1).await.ask(bare("GET", path, &[])).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (502, -31001));
}

#[tokio::test]
async fn with_several_routes_metadata_belongs_to_the_one_named() {
    let desk = ScriptedService::prompt();
    let other = ScriptedService::on("/other", |_| {}, |call| once(reply(&call.id, "{}")));
    *other.document.lock().unwrap() = Some(Ok(document(SERVERS_OWN)));
    let world = FrontAndService::new(&[&desk, &other], |_| {});
    let mut client = world.client(Version::Http1).await;
    let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource/other", &[])).await;
    assert_eq!(answer.json()["resource"], "http://localhost/other");
    let answer = client.ask(bare("GET", "/.well-known/oauth-protected-resource", &[])).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.message().contains("/.well-known/oauth-protected-resource/other"), "{}", answer.body);
}

#[tokio::test]
async fn a_challenge_leads_to_our_metadata() {
    let challenge = r#"Bearer realm="resource_metadata=no", Resource_Metadata="https://inner:9000/.well-known/oauth-protected-resource/v1/mcp", scope="a""#;
    let desk = |path: &str| {
        ScriptedService::on(
            path,
            |_| {},
            move |call| {
                let mut reply = reply(&call.id, "{}");
                reply.status = StatusCode::UNAUTHORIZED;
                reply.headers.insert("www-authenticate", HeaderValue::from_static(challenge));
                once(reply)
            },
        )
    };
    let ask = async |desks: &[&Arc<ScriptedService>]| {
        let world = FrontAndService::new(desks, |_| {});
        let answer = world.client(Version::Http1).await.ask(call("greet")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        answer.header("www-authenticate").to_owned()
    };
    let one = ask(&[&desk("/mcp")]).await;
    assert_eq!(one, challenge.replace("https://inner:9000", "http://localhost"));
    let several = ask(&[&desk("/mcp"), &desk("/other")]).await;
    assert_eq!(
        several,
        challenge.replace("https://inner:9000", "http://localhost").replace("/v1/mcp", "/mcp")
    );
}
