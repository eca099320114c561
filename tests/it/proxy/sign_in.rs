//! Signing in where the server's own host is the authorization server (2025-03-26).

use super::proxy_and_server::{Setup, start};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        legacy_server::{Canned, LegacyServer, Options, Seen},
        modern_client::Answer,
    },
};
use deferral::internals::{app, config};
use http::Method;
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, sync::OnceLock};

const OAUTH: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

/// A server that is its own authorization server, with its documents at these paths.
async fn server(documents: &'static [&'static str]) -> LegacyServer {
    let own = std::sync::Arc::new(OnceLock::<String>::new());
    let told = std::sync::Arc::clone(&own);
    let hook = move |seen: &Seen| {
        let own = own.get().expect("it listens");
        let issuer = |path: &str| {
            json!({
                "issuer": format!("{own}{path}"),
                "authorization_endpoint": format!("{own}/authorize?tenant=1"),
                "token_endpoint": format!("{own}/token"),
                "registration_endpoint": format!("{own}/register"),
                "jwks_uri": "https://keys.example/jwks",
                "revocation_endpoint": format!("{own}/mcp"),
                "scopes_supported": ["a"],
            })
        };
        let path = &*seen.path;
        Some(match path {
            "/mcp" => return None,
            _ if documents.contains(&path) => {
                let inside =
                    path.strip_prefix(OAUTH).or_else(|| path.strip_prefix(OPENID)).unwrap_or_default();
                Canned::json(200, &issuer(inside)).header("access-control-allow-origin", "*")
            }
            "/register" => Canned::json(201, &json!({ "client_id": "c", "sent": seen.json })),
            "/token" => {
                Canned::json(401, &json!({ "error": "invalid_client" })).header("www-authenticate", "Basic")
            }
            "/authorize" => {
                let to = match seen.query.as_deref().unwrap_or_default() {
                    "to=client" => "http://127.0.0.1:1/callback?code=1#x".to_owned(),
                    "to=endpoint" => format!("{own}/token?a=1#x"),
                    "to=relative" => "/token?a=1".to_owned(),
                    "to=page" => format!("{own}/login?a=1"),
                    "to=relative-page" => "login".to_owned(),
                    other => format!("urn:x?{other}"),
                };
                Canned::status(302).header("location", to).header("set-cookie", "s=1; HttpOnly")
            }
            _ => Canned::status(404),
        })
    };
    let server = LegacyServer::start(Setup::new().options.hook(hook)).await;
    told.set(format!("http://{}", server.addr())).expect("once");
    server
}

async fn ask(addr: SocketAddr, method: Method, target: &str, body: &str) -> Answer {
    let client = LegacyClient::new(addr).with("authorization", "Basic Y2xpZW50").with("cookie", "c=1");
    client.send(method, target, body).await.answer().await
}

async fn get(addr: SocketAddr, target: &str) -> Answer {
    ask(addr, Method::GET, target, "").await
}

fn beside(server: &LegacyServer) -> Vec<String> {
    server.log().into_iter().filter(|seen| seen.path != "/mcp").map(|seen| seen.path).collect()
}

#[tokio::test]
async fn the_documents_name_our_address_and_their_endpoints_pass() {
    for document in [OAUTH, OPENID] {
        let server = server(&[OAUTH, OPENID]).await;
        let proxy = start(&server.url(), &[], &[]);
        let addr = proxy.addresses[0];
        let ours = |path: &str| format!("http://{addr}{path}");
        let found = get(addr, document).await;
        assert_eq!(found.status, 200);
        assert_eq!(found.header("access-control-allow-origin"), "", "which pages may read it is ours to say");
        assert_eq!(
            found.json(),
            json!({
                "issuer": ours(""),
                "authorization_endpoint": ours("/authorize?tenant=1"),
                "token_endpoint": ours("/token"),
                "registration_endpoint": ours("/register"),
                "jwks_uri": "https://keys.example/jwks",
                "revocation_endpoint": ours("/mcp"),
                "scopes_supported": ["a"],
            })
        );
        let registered = ask(addr, Method::POST, "/register", r#"{"redirect_uris":[]}"#).await;
        assert_eq!(registered.status, 201);
        assert_eq!(registered.json(), json!({ "client_id": "c", "sent": { "redirect_uris": [] } }));
        let refused = ask(addr, Method::POST, "/token?a=1", "grant_type=x").await;
        assert_eq!((refused.status.as_u16(), refused.header("www-authenticate")), (401, "Basic"));
        let seen = server.seen(|seen| seen.path == "/token").await;
        assert_eq!((seen.query.as_deref(), &seen.body[..]), (Some("a=1"), &b"grant_type=x"[..]));
        assert_eq!(
            seen.header("authorization"),
            Some("Basic Y2xpZW50"),
            "it is the client's own at this endpoint"
        );
        assert_eq!(seen.header("cookie"), Some("c=1"));
        assert_eq!(seen.header("host"), Some(&*server.addr().to_string()));
        proxy.stop().await;
    }
}

#[tokio::test]
async fn a_redirect_leads_where_its_server_means_it_to() {
    let server = server(&[OAUTH]).await;
    let proxy = start(&server.url(), &[], &[]);
    let addr = proxy.addresses[0];
    let (ours, theirs) = (format!("http://{addr}"), format!("http://{}", server.addr()));
    for (to, location) in [
        ("to=client", "http://127.0.0.1:1/callback?code=1#x".to_owned()),
        ("to=endpoint", format!("{ours}/token?a=1#x")),
        ("to=relative", format!("{ours}/token?a=1")),
        // No endpoint, so it does not pass here.
        ("to=page", format!("{theirs}/login?a=1")),
        ("to=relative-page", format!("{theirs}/login")),
        ("to=other", "urn:x?to=other".to_owned()),
    ] {
        let answer = get(addr, &format!("/authorize?{to}")).await;
        let got = (answer.status.as_u16(), answer.header("location"), answer.header("set-cookie"));
        if to != "to=other" {
            assert_eq!(got, (302, &*location, "s=1; HttpOnly"), "{to}");
        }
    }
    proxy.stop().await;
}

#[tokio::test]
async fn nothing_else_of_that_host_passes() {
    let server = server(&[OAUTH]).await;
    let proxy = start(&server.url(), &[], &[]);
    let addr = proxy.addresses[0];
    for target in
        ["/admin", "/token/", "/token/../admin", "/authorize%2f..%2fadmin", "/jwks", "/login?code=1", "/"]
    {
        for method in [Method::GET, Method::POST] {
            let answer = ask(addr, method, target, "").await;
            assert_eq!(answer.status, 404, "{target}");
        }
    }
    for method in [Method::PUT, Method::DELETE] {
        assert_eq!(ask(addr, method, "/token", "").await.status, 405);
    }
    assert_eq!(ask(addr, Method::POST, OAUTH, "").await.status, 405);
    // It was looked for the documents, and once.
    let asked = beside(&server);
    assert!(asked.iter().all(|path| path.contains("/.well-known/")), "{asked:?}");
    assert_eq!(asked.iter().filter(|path| **path == OAUTH).count(), 1, "{asked:?}");
    proxy.stop().await;
}

#[tokio::test]
async fn a_client_that_has_the_documents_from_another_process_signs_in() {
    let server = server(&[OPENID]).await;
    let proxy = start(&server.url(), &[], &[]);
    assert_eq!(ask(proxy.addresses[0], Method::POST, "/register", "{}").await.status, 201);
    proxy.stop().await;
}

#[tokio::test]
async fn nothing_passes_where_the_clients_authorization_does_not() {
    let server = server(&[OAUTH]).await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("token"), "alices-token-0000").expect("it can be written");
    let access =
        format!("access: {{ tokens: [{{ name: alice, file: '{}/token' }}] }}", folder.path().display());
    let tokens = start(&server.url(), &[], &[&access]);
    let own = format!("{}\", headers: {{ Authorization: Bearer ours }}, proxy: \"off", server.url());
    let own = start(&own, &[], &[]);
    let alice = LegacyClient::new(tokens.addresses[0]).with("authorization", "Bearer alices-token-0000");
    for path in [OAUTH, OPENID, "/.well-known/oauth-authorization-server/mcp"] {
        for addr in [tokens.addresses[0], own.addresses[0]] {
            assert_eq!(get(addr, path).await.status, 404, "{path}");
        }
        assert_eq!(alice.send(Method::GET, path, "").await.answer().await.status, 404, "{path}");
    }
    assert_eq!(alice.send(Method::POST, "/token", "").await.answer().await.status, 404);
    assert_eq!(ask(own.addresses[0], Method::POST, "/token", "").await.status, 404);
    assert!(server.log().is_empty(), "{:?}", beside(&server));
    tokens.stop().await;
    own.stop().await;
}

/// A proxy with a route to each.
fn two(one: &LegacyServer, other: &LegacyServer) -> app::RunningProxy {
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: \"off\"\nroutes:\n  - {{ path: /a/mcp, upstream: {{ url: '{}' }} }}\n  - {{ path: /b, upstream: {{ url: '{}' }} }}\n",
        one.url(),
        other.url()
    );
    app::start(config::parse(Path::new("test.yaml"), &text).expect("it is right")).expect("it starts")
}

#[tokio::test]
async fn each_route_is_an_issuer_of_its_own_where_the_routes_have_several_origins() {
    let (one, other) =
        (server(&[OAUTH]).await, server(&["/.well-known/oauth-authorization-server/mcp"]).await);
    let proxy = two(&one, &other);
    let addr = proxy.addresses[0];
    let ours = |path: &str| format!("http://{addr}{path}");
    let bare = get(addr, OAUTH).await;
    assert_eq!(bare.status, 404);
    let words = bare.error()["message"].as_str().expect("words").to_owned();
    assert!(words.contains("/.well-known/oauth-authorization-server/a/mcp"), "{words}");
    for (route, server) in [("/a/mcp", &one), ("/b", &other)] {
        let found: Value = get(addr, &format!("{OAUTH}{route}")).await.json();
        assert_eq!(found["issuer"], ours(route));
        assert_eq!(found["token_endpoint"], ours(&format!("{route}/token")));
        assert_eq!(ask(addr, Method::POST, &format!("{route}/register"), "{}").await.status, 201);
        assert_eq!(beside(server).last().expect("it was asked"), "/register");
        let to = get(addr, &format!("{route}/authorize?to=endpoint")).await;
        assert_eq!(to.header("location"), ours(&format!("{route}/token?a=1#x")));
    }
    for target in ["/register", "/a/register", "/c/register", "/b/mcp"] {
        assert_eq!(ask(addr, Method::POST, target, "{}").await.status, 404, "{target}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn the_documents_of_an_issuer_with_a_path_are_found_before_and_behind_it() {
    let server =
        server(&["/.well-known/oauth-authorization-server/mcp", "/mcp/.well-known/openid-configuration"])
            .await;
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: \"off\"\nroutes:\n  - {{ path: /tools, upstream: {{ url: '{}' }} }}\n",
        server.url()
    );
    let config = config::parse(Path::new("test.yaml"), &text).expect("it is right");
    let proxy = app::start(config).expect("it starts");
    let addr = proxy.addresses[0];
    let found = get(addr, "/.well-known/oauth-authorization-server/tools").await.json();
    // A client compares it with where it has asked.
    assert_eq!(found["issuer"], format!("http://{addr}/tools"));
    assert_eq!(get(addr, "/tools/.well-known/openid-configuration").await.status, 200);
    for path in
        [OAUTH, "/.well-known/oauth-authorization-server/other", "/other/.well-known/openid-configuration"]
    {
        assert_eq!(get(addr, path).await.status, 404, "{path}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_server_that_has_no_documents_reports_it() {
    let server = LegacyServer::start(
        Options::default()
            .hook(|seen| (seen.path != "/mcp").then(|| Canned::status(404).body("nothing here"))),
    )
    .await;
    let proxy = start(&server.url(), &[], &[]);
    let answer = get(proxy.addresses[0], OAUTH).await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (404, "nothing here"));
    proxy.stop().await;
}
