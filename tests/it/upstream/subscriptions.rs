//! Subscriptions of resources.

use super::{MUTE, UpstreamAndServer, identity};
use crate::support::legacy_server::{Canned, Options};
use deferral::internals::upstream::Upstream;
use serde_json::json;

#[tokio::test]
async fn a_resource_is_subscribed_once_for_all_and_released_by_the_last() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let caller = identity(MUTE);
    let subscribe = || world.upstream.subscribe(&caller, "a://b");
    let (first, session) = tokio::join!(subscribe(), world.answer());
    let (first, second) = (first.expect("subscribed"), subscribe().await.expect("subscribed"));
    assert_eq!(session, "s1");
    assert_eq!(world.server.message("resources/subscribe").await.json["params"]["uri"], "a://b");
    drop(first);
    let mut list = world.list(1);
    assert_eq!(world.server.call().await.seen.method(), "tools/list", "one still holds it");
    drop(second);
    let last = world.server.call().await;
    assert_eq!(last.seen.method(), "resources/unsubscribe");
    last.result(json!({}));
    drop(list);
    list = world.list(2);
    drop(list);
    assert_eq!(world.server.messages("resources/subscribe"), 1);
}

#[tokio::test]
async fn a_subscription_follows_its_identity_into_a_new_session() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let caller = identity(MUTE);
    let (held, _) = tokio::join!(world.upstream.subscribe(&caller, "a://b"), world.answer());
    let held = held.expect("subscribed");
    let mut call = world.call(1);
    world.server.call().await.canned(Canned::status(404));
    let (a, b) = (world.server.call().await, world.server.call().await);
    assert_eq!((a.session(), b.session()), ("s2", "s2"));
    let (again, repeated) = if a.seen.method() == "tools/call" { (b, a) } else { (a, b) };
    assert_eq!(again.seen.json["params"]["uri"], "a://b");
    again.result(json!({}));
    repeated.result(json!({}));
    call.result().await;
    drop(held);
    assert_eq!(world.server.call().await.seen.method(), "resources/unsubscribe");
}

#[tokio::test]
async fn a_refused_subscription_is_an_error() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let caller = identity(MUTE);
    let refuse = async {
        let call = world.server.call().await;
        let error =
            json!({ "jsonrpc": "2.0", "id": call.id(), "error": { "code": -32601, "message": "not here" } });
        call.canned(Canned::json(200, &error));
    };
    let (outcome, ()) = tokio::join!(world.upstream.subscribe(&caller, "a://b"), refuse);
    assert!(outcome.map(drop).expect_err("refused").to_string().contains("not here"));
}
