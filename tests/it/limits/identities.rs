//! The memory of identities: capabilities, headers, credentials.

use super::program::{Log, Program};
use crate::{
    proxy::proxy_and_server::Setup,
    support::{
        legacy_server::{Canned, LegacyServer, Options},
        limit_hits::LimitHits,
    },
};
use http::Method;
use serde_json::json;

/// Capabilities of so many bytes, which no other client declares.
fn declared(number: usize, bytes: usize) -> serde_json::Value {
    json!({ "experimental": { format!("{number:08}{}", "x".repeat(bytes)): {} } })
}

#[tokio::test]
async fn capabilities_of_a_megabyte_are_refused_and_not_kept() {
    const MIB: usize = 1 << 20;
    let server = LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await;
    let program = Program::start(&server, &[], Log::Nowhere);
    let ask = async |number| {
        let client = program.client().declaring(declared(number, MIB));
        client.ask("tools/list", json!({})).await
    };
    // The first has what the others use again.
    ask(0).await;
    let before = program.memory();
    for number in 1..=24 {
        let answer = ask(number).await;
        assert_eq!(answer.refusal(), (400, -32602), "{}", answer.text());
        let message = answer.error()["message"].as_str().expect("a message").to_owned();
        assert!(message.contains("clientCapabilities") && message.contains("65536"), "{message}");
    }
    let taken = program.memory().saturating_sub(before);
    assert!(taken < 16 * MIB, "24 declarations of 1 MiB take {} KiB", taken >> 10);
    assert_eq!(server.messages("initialize"), 0);
    assert!(program.serves("somebody").await);
    assert!(program.descriptors() < 60);
}

#[tokio::test]
async fn identities_are_bounded_by_what_they_keep_too() {
    let hits = LimitHits::of("limits.identity_bytes");
    let world = Setup::new().top("limits: { identity_bytes: 256KiB }").start().await;
    for number in 0..32 {
        let client = world.client().declaring(declared(number, 32 << 10));
        assert!(client.ask("tools/list", json!({})).await.result()["tools"].is_array());
    }
    // Each is 32 KiB and a little, so that about eight fit.
    let left = || 32 - world.server.count(|seen| seen.http == Method::DELETE);
    while left() > 9 {
        world.server.seen(|seen| seen.http == Method::DELETE).await;
    }
    assert!(left() >= 4, "{}", left());
    assert_eq!(world.server.messages("initialize"), 32);
    assert!(hits.now() > 0);
}

#[tokio::test]
async fn a_storm_of_credentials_that_the_server_refuses_costs_little_memory() {
    let server = LegacyServer::start(Options::default().hook(|_| Some(Canned::status(401)))).await;
    let program = Program::start(&server, &[], Log::Nowhere);
    let ask = async |number: usize| {
        let client = program.client().with("authorization", &format!("Bearer {number}"));
        client.ask("server/discover", json!({})).await
    };
    ask(0).await;
    let before = program.memory();
    const CALLERS: usize = 500;
    for number in 1..=CALLERS {
        ask(number).await;
    }
    let each = program.memory().saturating_sub(before) / CALLERS;
    assert!(each < 16 << 10, "{each} bytes for each caller");
}
