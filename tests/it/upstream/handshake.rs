//! Handshakes: what a failure means for the call, and which revision is offered.

use super::UpstreamAndServer;
use crate::support::legacy_server::{Canned, LegacyServer, Options, Seen};
use deferral::internals::upstream::{CallError, Config, Upstream};
use serde_json::json;
use std::time::Duration;

const NOT_RUN: i64 = -31001;
const UNAUTHORIZED: i64 = -31008;

/// What becomes of a call where the server treats one message of the handshake like this.
async fn refused_in(options: Options) -> CallError {
    let world = UpstreamAndServer::new(options).await;
    let lost = world.call(1).lost().await;
    assert_eq!(world.server.messages("tools/call"), 0, "the call was not sent");
    lost
}

#[tokio::test]
async fn a_failed_handshake_is_reported_as_a_call_that_did_not_run() {
    for method in ["initialize", "notifications/initialized"] {
        let breaks = Options { breaks: Box::new(move |seen| seen.method() == method), ..Options::default() };
        let lost = refused_in(breaks).await;
        assert_eq!(lost.code(), NOT_RUN, "{method}: {lost}");
        assert!(lost.to_string().contains("no call was sent"), "{lost}");
        assert!(!lost.to_string().contains("unknown") && !lost.may_still_run(), "{lost}");
        for status in [400, 404, 410, 500, 503] {
            let refuses = Options::default()
                .hook(move |seen| (seen.method() == method).then(|| Canned::status(status).body("no")));
            let lost = refused_in(refuses).await;
            assert_eq!(lost.code(), NOT_RUN, "{method} {status}: {lost}");
            assert!(lost.to_string().contains(&format!("HTTP {status}")), "{lost}");
        }
    }
    let garbled = |body: &'static str| {
        Options::default().hook(move |seen| {
            let canned = Canned::status(200).body(body).header("content-type", "application/json");
            (seen.method() == "initialize").then_some(canned)
        })
    };
    for body in ["", "{", "[]", r#"{"jsonrpc":"2.0","id":1}"#] {
        let lost = refused_in(garbled(body)).await;
        assert_eq!(lost.code(), NOT_RUN, "{body}: {lost}");
    }
}

#[tokio::test]
async fn credentials_refused_in_the_handshake_are_refused_credentials() {
    for method in ["initialize", "notifications/initialized"] {
        for status in [401, 403] {
            let refuses = Options::default()
                .hook(move |seen| (seen.method() == method).then(|| Canned::status(status)));
            assert_eq!(refused_in(refuses).await.code(), UNAUTHORIZED, "{method} {status}");
        }
    }
}

#[tokio::test]
async fn a_limit_that_ends_a_handshake_keeps_its_name() {
    let options = Options { ignores: Box::new(|seen| seen.method() == "initialize"), ..Options::default() };
    let world =
        UpstreamAndServer::with(options, |config| config.timeouts.first_byte = Duration::from_millis(20))
            .await;
    let lost = world.call(1).lost().await;
    assert_eq!(lost.code(), NOT_RUN, "{lost}");
    assert!(lost.limit().is_some(), "{lost}");
}

/// The revisions that were offered, in order.
fn offered(server: &LegacyServer) -> Vec<String> {
    let log = server.log();
    let hellos = log.iter().filter(|seen| seen.method() == "initialize");
    hellos
        .map(|seen| seen.json["params"]["protocolVersion"].as_str().expect("a revision").to_owned())
        .collect()
}

/// A server that speaks these revisions, and refuses others like this.
fn speaks(revisions: &'static [&'static str], refusal: fn(&Seen) -> Canned) -> Options {
    Options { version: revisions[0], ..Options::default() }.hook(move |seen| {
        let asked = seen.json["params"]["protocolVersion"].as_str();
        let is_refused = seen.method() == "initialize" && !revisions.contains(&asked.expect("a revision"));
        is_refused.then(|| refusal(seen))
    })
}

#[tokio::test]
async fn a_server_that_refuses_the_revision_is_offered_one_that_it_lists() {
    let refusals: [fn(&Seen) -> Canned; 3] = [
        |seen| {
            let data = json!({ "supported": ["2024-11-05", "2025-03-26"], "requested": "2025-11-25" });
            let error = json!({ "code": -32602, "message": "Unsupported protocol version", "data": data });
            Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "error": error }))
        },
        |_| Canned::status(400).body("Bad Request: supported are 2025-03-26 and 2024-11-05"),
        |_| {
            let error = json!({ "code": -32000, "message": "supported: 2025-03-26, 2024-11-05" });
            Canned::json(400, &json!({ "jsonrpc": "2.0", "id": null, "error": error }))
        },
    ];
    for refusal in refusals {
        let world = UpstreamAndServer::new(speaks(&["2025-03-26", "2024-11-05"], refusal)).await;
        let mut call = world.call(1);
        world.answer().await;
        call.result().await;
        assert_eq!(offered(&world.server), ["2025-11-25", "2025-03-26"]);
        assert_eq!(
            world.server.message("tools/call").await.header("mcp-protocol-version"),
            Some("2025-03-26")
        );
        // Another caller's session begins with that.
        let mut call = world.ask(2);
        world.answer().await;
        call.result().await;
        assert_eq!(offered(&world.server), ["2025-11-25", "2025-03-26", "2025-03-26"]);
    }
}

#[tokio::test]
async fn a_server_that_lists_no_revision_is_offered_the_next_legacy_one() {
    let world =
        UpstreamAndServer::new(speaks(&["2024-11-05"], |_| Canned::status(400).body("unknown version")))
            .await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;
    assert_eq!(offered(&world.server), ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]);
}

#[tokio::test]
async fn a_server_that_refuses_every_revision_is_offered_each_once() {
    let world =
        UpstreamAndServer::new(speaks(&["2023-01-01"], |_| Canned::status(400).body("unknown version")))
            .await;
    let lost = world.call(1).lost().await;
    assert!(lost.code() == NOT_RUN && lost.to_string().contains("unknown version"), "{lost}");
    assert_eq!(offered(&world.server).len(), 4, "{:?}", offered(&world.server));
}

#[tokio::test]
async fn a_reload_resets_the_offered_revision() {
    let world =
        UpstreamAndServer::new(speaks(&["2025-06-18"], |_| Canned::status(400).body("speak 2025-06-18")))
            .await;
    let mut call = world.call(1);
    world.answer().await;
    call.result().await;
    let change = world.upstream.prepare_reload(&Config::default()).expect("it can be spoken to");
    change();
    let mut call = world.ask(2);
    world.answer().await;
    call.result().await;
    assert_eq!(offered(&world.server), ["2025-11-25", "2025-06-18", "2025-11-25", "2025-06-18"]);
}
