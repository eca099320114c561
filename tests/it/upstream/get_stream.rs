//! Messages on the GET stream of a session.

use super::{ASKABLE, MUTE, Running, UpstreamAndServer, identity, notification, request};
use crate::support::legacy_server::Options;
use bytes::Bytes;
use deferral::internals::{
    dialect::Principal,
    protocol::{ListKind, Method},
    upstream::{ChangeNotification, ClientSession, NativeCall, Upstream, UpstreamEvent},
};

use http::HeaderMap;
use serde_json::{Value, json};

#[tokio::test]
async fn progress_goes_to_the_call_it_names_and_logs_to_an_only_call() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let (mut first, mut second) = (world.call(1), world.call(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    let listener = world.server.listener("s1").await;
    let log = |n: u32| notification("notifications/message", json!({ "level": "info", "data": n }));
    listener.send(&log(1));
    listener.send(&notification("notifications/progress", json!({ "progressToken": 2, "progress": 22 })));
    listener.send(&notification("notifications/progress", json!({ "progressToken": 1, "progress": 11 })));
    assert_eq!(second.notice().await["params"]["progress"], 22);
    assert_eq!(first.notice().await["params"]["progress"], 11, "the log message before it named no call");
    let (mine, other, running) = if a.id() == 1 { (a, b, first) } else { (b, a, first) };
    let mut first = running;
    other.result(json!({}));
    second.result().await;
    listener.send(&log(2));
    assert_eq!(first.notice().await["params"]["data"], 2);
    mine.result(json!({}));
    first.result().await;
}

#[tokio::test]
async fn messages_unknown_to_2026_07_28_reach_native_calls_only() {
    let world = UpstreamAndServer::new(Options { sse: true, ..Options::default() }).await;
    let gone = notification("notifications/elicitation/complete", json!({ "elicitationId": "e" }));
    let kept = notification("notifications/vendor", json!({ "n": 1 }));
    let session = ClientSession { principal: Principal::ANONYMOUS, query: None, headers: HeaderMap::new() };
    let body = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "t" } });
    let native =
        NativeCall { id: 2, method: Method::ToolsCall, body: body.to_string().into(), deferral: None };
    for (id, is_native) in [(1, false), (2, true)] {
        let mut running = match is_native {
            true => Running::new(world.relay().call_in(session.clone(), native.clone()).0),
            false => world.call(id),
        };
        let events = world.server.call().await.stream();
        events.send(&gone);
        events.send(&kept);
        if is_native {
            assert_eq!(running.notice().await, gone);
        }
        assert_eq!(running.notice().await, kept);
        events.result(&json!(id), json!({ "content": [] }));
        let Some(UpstreamEvent::Final(response)) = running.next().await else { panic!("it is answered") };
        let raised: Value =
            serde_json::from_slice(&response.client_result(&Method::ToolsCall).expect("a result"))
                .expect("JSON");
        assert_eq!(raised["resultType"] == "complete", !is_native, "{raised}");
    }
}

#[tokio::test]
async fn changes_are_reported_and_lists_come_from_the_session_that_reported() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut reports = world.upstream.watch(Principal::ANONYMOUS).subscribe();
    let (mut first, mut second) = (world.ask(1), world.ask(2));
    let (a, b) = (world.server.call().await, world.server.call().await);
    let (in_first, in_second) = if a.session() == "s1" { (a, b) } else { (b, a) };
    world.server.listener("s2").await.send(&notification("notifications/tools/list_changed", json!({})));
    assert_eq!(reports.recv().await, Ok(ChangeNotification::ListChanged(ListKind::Tools)));

    let mut list = world.send(request(3, Method::ToolsList, ASKABLE));
    assert_eq!(world.answer().await, "s2");
    list.result().await;

    let events = in_first.stream();
    events.send(&notification("notifications/resources/updated", json!({ "uri": "a://b", "x": 1 })));
    let params = Bytes::from_static(br#"{"uri":"a://b","x":1}"#);
    assert_eq!(
        reports.recv().await,
        Ok(ChangeNotification::ResourceUpdated { uri: "a://b".to_owned(), params })
    );
    events.result(&json!(1), json!({}));
    in_second.result(json!({}));
    first.result().await;
    second.result().await;
}

#[tokio::test]
async fn a_get_stream_that_ends_is_opened_again_as_a_new_one_and_what_may_have_changed_is_reported() {
    let world = UpstreamAndServer::new(Options::default()).await;
    let mut reports = world.upstream.watch(Principal::ANONYMOUS).subscribe();
    world.upstream.describe(&identity(MUTE)).await.expect("a session");
    let listener = world.server.listener("s1").await;
    let changed = notification("notifications/prompts/list_changed", json!({}));
    listener.raw(format!("id: g1\nretry: 1\ndata: {changed}\n\n"));
    assert_eq!(reports.recv().await, Ok(ChangeNotification::ListChanged(ListKind::Prompts)));
    drop(listener);
    world.server.hang_up("s1");
    world.server.sees(2, |seen| seen.http == http::Method::GET).await;
    let again = world.server.listener("s1").await;
    // Behind its last event a server may give what was said in the sessions of others.
    assert_eq!(world.server.count(|seen| seen.header("last-event-id").is_some()), 0);
    assert_eq!(
        reports.recv().await,
        Ok(ChangeNotification::ListChanged(ListKind::Tools)),
        "it may have changed meanwhile"
    );
    again.send(&changed);
    assert_eq!(reports.recv().await, Ok(ChangeNotification::ListChanged(ListKind::Prompts)));
}
