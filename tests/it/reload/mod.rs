//! Reload, while clients are served.

mod program;
mod under_load;
mod upstream_changes;

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ALWAYS, ProxyAndServer, Setup, written},
    support::{
        legacy_server::{LegacyServer, Options},
        modern_client::{Client, soon},
    },
};
use deferral::internals::config;
use serde_json::json;
use std::path::Path;
use tokio::net::TcpListener;

const NEVER: &str = "defer: { mode: never }";

/// A server to go to.
async fn another() -> LegacyServer {
    LegacyServer::start(Options { tools: Some(json!([])), ..Options::default() }).await
}

#[tokio::test]
async fn new_calls_use_the_new_configuration_and_running_calls_the_old_one() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let in_hand = world.server.call().await;
    let changed = world.reload(&[ALWAYS], &[]).expect("it is right");
    assert_eq!(
        (&changed.changed[..], &changed.needs_restart[..]),
        (&["routes./mcp.defer.mode".to_owned()][..], &[][..])
    );
    let task = client.call("t").await.answer().await.task();
    let as_task = world.server.call().await;
    world.reload(&[NEVER], &[]).expect("it is right");
    in_hand.says("inline");
    assert_eq!(waiting.answer().await.text(), "inline");
    as_task.says("as a task");
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "as a task");
    let waiting = client.call("t").await;
    world.server.call().await.says("inline again");
    assert_eq!(waiting.answer().await.text(), "inline again");
    assert_eq!(world.server.messages("initialize"), 1, "its session with the server stays");
}

#[tokio::test]
async fn a_ticket_from_before_is_good_although_no_more_are_given() {
    const TICKETS: &str = "held: { ticket: 10ms }\n    tickets: { for: [{ header: X-Agent, value: \"1\" }] }";
    let with_tools = |options: &mut Options| options.tools = Some(crate::tickets::tools());
    let mut world = Setup::new().server(with_tools).route(TICKETS).start().await;
    let client = world.client().with("x-agent", "1");
    let given = client.call("t").await.answer().await.result();
    let ticket = given["_meta"]["deferral/ticket"]["ticket"].as_str().expect("a ticket").to_owned();
    let call = world.server.call().await;
    world.reload(&[NEVER], &[]).expect("it is right");
    let listed = client.ask("tools/list", json!({})).await.result();
    assert_eq!(crate::tickets::names(&listed), ["t", "u"], "nobody is given tickets any more");
    call.says("late");
    let fetch = json!({ "name": "deferral_result", "arguments": { "ticket": ticket } });
    assert_eq!(client.ask("tools/call", fetch).await.text(), "late");
}

#[tokio::test]
async fn running_calls_end_at_the_former_server_which_is_then_released() {
    const SHORT: &str = "drain: 1ms";
    let mut world = Setup::new().route(ALWAYS).top(SHORT).start().await;
    let client = world.tasker();
    let task = client.call("t").await.answer().await.task();
    let call = world.server.call().await;
    let session = call.session().to_owned();
    let next = another().await;
    let changed = world.proxy.reload(written(&next.url(), &[ALWAYS], &[SHORT])).expect("it is right");
    assert_eq!(changed.changed, ["routes./mcp.upstream.url"]);
    let other = client.call("t").await.answer().await.task();
    next.call().await.says("next");
    client.ended(&other).await;
    assert!(world.server.log().iter().all(|seen| seen.http != "DELETE"), "its task still works");
    call.says("former");
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "former");
    world.server.seen(|seen| seen.http == "DELETE" && seen.session() == session).await;
}

#[tokio::test]
async fn a_session_goes_on_at_the_server_it_was_opened_with() {
    let mut world = Setup::new().route(NEVER).start().await;
    let older = LegacyClient::new(world.addr()).hello().await;
    let waiting = older.call(5).await;
    let in_hand = world.server.call().await;
    let stream = older.listen().await.stream().await;
    let next = another().await;
    world.proxy.reload(written(&next.url(), &[NEVER], &[])).expect("it is right");
    // It is asked in its session, and answers there.
    let (id, events) = (in_hand.id(), in_hand.stream());
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "roots/list" }));
    older
        .post(&json!({ "jsonrpc": "2.0", "id": 40, "result": { "roots": [] } }).to_string())
        .await
        .answer()
        .await;
    world.server.seen(|seen| seen.answers(&json!(40))).await;
    let further = older.call(6).await;
    world.server.call().await.says("further");
    assert_eq!(further.answer().await.text(), "further");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "in hand" }] }));
    drop(events);
    assert!(soon("the answer", waiting.stream()).await.rest().await.contains("in hand"));
    stream.leave();
    let newcomer = LegacyClient::new(world.addr()).hello().await;
    let waiting = newcomer.call(5).await;
    next.call().await.says("next");
    assert_eq!(waiting.answer().await.text(), "next");
}

#[tokio::test]
async fn routes_come_and_go() {
    let mut world = ProxyAndServer::new().await;
    let url = world.server.url();
    let two = |first: &str, second: &str| {
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: off\nroutes:\n  - {{ path: {first}, upstream: {{ url: '{url}' }} }}\n  - {{ path: {second}, upstream: {{ url: '{url}' }} }}\n"
        );
        config::parse(Path::new("test.yaml"), &text).expect("it is right")
    };
    let changed = world.proxy.reload(two("/mcp", "/other")).expect("it is right");
    assert_eq!(changed.changed, ["routes./mcp.path", "routes./other", "timeouts"]);
    let other = world.client().at("/other");
    let waiting = other.call("t").await;
    world.server.call().await.says("other");
    assert_eq!(waiting.answer().await.text(), "other");
    world.proxy.reload(two("/other", "/third")).expect("it is right");
    assert_eq!(world.proxy.paths.iter().map(|path| &**path).collect::<Vec<_>>(), ["/other", "/third"]);
    assert_eq!(world.client().ask("tools/list", json!({})).await.status, 404);
    assert_eq!(other.ask("tools/list", json!({})).await.status, 200);
}

#[tokio::test]
async fn new_addresses_are_listened_on_and_old_ones_no_more() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let before = world.addr();
    let mut kept = world.client().kept().await;
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("it is bound");
    let both = format!("listen: [\"127.0.0.1:0\", \"{free}\"]");
    world.proxy.reload(listening(&world, &both)).expect("it is right");
    assert_eq!(world.proxy.addresses, [before, free], "what is listened on already stays");
    for address in [before, free] {
        assert_eq!(Client::new(address).ask("tools/list", json!({})).await.status, 200);
    }
    world.proxy.reload(listening(&world, &format!("listen: \"{free}\""))).expect("it is right");
    assert_eq!(world.proxy.addresses, [free]);
    soon("it is closed", async { while tokio::net::TcpStream::connect(before).await.is_ok() {} }).await;
    assert_eq!(kept.ask("tools/list", json!({})).await.status, 200, "who is connected stays so");
}

fn listening(world: &ProxyAndServer, listen: &str) -> config::Config {
    let text = format!(
        "{listen}\nadmin: off\nroutes: [{{ upstream: {{ url: '{}' }}, {NEVER} }}]\n",
        world.server.url()
    );
    config::parse(Path::new("test.yaml"), &text).expect("it is right")
}

#[tokio::test]
async fn a_removed_token_is_refused_also_on_an_open_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = |name: &str, secret: &str| {
        std::fs::write(folder.path().join(name), secret).expect("it can be written")
    };
    token("a", "0123456789abcdef");
    let setting =
        format!("access: {{ tokens: [{{ name: alice, file: '{}' }}] }}", folder.path().join("a").display());
    let mut world = ProxyAndServer::with(NEVER).await;
    world.reload(&[NEVER], &[&setting]).expect("it is right");
    let mut kept = world.client().bearing("0123456789abcdef").kept().await;
    assert_eq!(kept.ask("tools/list", json!({})).await.status, 200);
    token("a", "fedcba9876543210");
    let changed = world.reload(&[NEVER], &[&setting]).expect("it is right").changed;
    assert_eq!(changed, [folder.path().join("a").display().to_string()]);
    assert_eq!(kept.ask("tools/list", json!({})).await.status, 401);
    assert_eq!(world.client().bearing("fedcba9876543210").ask("tools/list", json!({})).await.status, 200);
}

#[tokio::test]
async fn limits_hold_from_then_on_for_what_is_new() {
    let mut world = Setup::new().route(NEVER).top("limits: { calls: 3 }").start().await;
    let client = world.client();
    let (first, second) = (client.call("t").await, client.call("t").await);
    let calls = (world.server.call().await, world.server.call().await);
    world.reload(&[NEVER], &["limits: { calls: 1 }"]).expect("it is right");
    assert_eq!(client.ask("tools/list", json!({})).await.status, 503, "more are in flight than may be");
    calls.0.says("one");
    assert_eq!(first.answer().await.text(), "one");
    assert_eq!(client.ask("tools/list", json!({})).await.status, 503);
    calls.1.says("two");
    assert_eq!(second.answer().await.text(), "two");
    assert_eq!(client.ask("tools/list", json!({})).await.status, 200);
    world.reload(&[ALWAYS], &["limits: { tasks: 1 }"]).expect("it is right");
    let tasker = world.tasker();
    let _task = tasker.call("t").await.answer().await.task();
    let waiting = tasker.call("t").await;
    let (_first, call) = (world.server.call().await, world.server.call().await);
    call.says("there was no room for a task");
    assert_eq!(waiting.answer().await.text(), "there was no room for a task");
}

#[tokio::test]
async fn connections_may_be_more_and_fewer() {
    let mut world = Setup::new().route(NEVER).top("limits: { connections: 1 }").start().await;
    let first = world.client().call("t").await;
    let held = world.server.call().await;
    let second = world.client().call("t").await;
    let third = world.client().call("t").await;
    world.reload(&[NEVER], &["limits: { connections: 3 }"]).expect("it is right");
    let (one, other) = (world.server.call().await, world.server.call().await);
    world.reload(&[NEVER], &["limits: { connections: 1 }"]).expect("it is right");
    let fourth = world.client().call("t").await;
    for (call, waiting) in [(one, second), (other, third)] {
        call.says("done");
        assert_eq!(waiting.answer().await.text(), "done");
        assert_eq!(world.server.messages("tools/call"), 3, "there is one already");
    }
    held.says("done");
    assert_eq!(first.answer().await.text(), "done");
    world.server.call().await.says("at last");
    assert_eq!(fourth.answer().await.text(), "at last");
}

#[tokio::test]
async fn the_result_limit_can_be_raised_and_lowered() {
    const SMALL: &str = "limits: { stored_bytes: 1KiB }";
    let mut world = Setup::new().route(ALWAYS).top(SMALL).start().await;
    let client = world.tasker();
    let large = "x".repeat(4000);
    let failed = client.call("t").await.answer().await.task();
    world.server.call().await.says(&large);
    assert_eq!(client.ended(&failed).await["status"], "failed", "there is no room for its result");
    world.reload(&[ALWAYS], &["limits: { stored_bytes: 1MiB }"]).expect("it is right");
    let kept = client.call("t").await.answer().await.task();
    world.server.call().await.says(&large);
    assert_eq!(client.ended(&kept).await["status"], "completed");
    world.reload(&[ALWAYS], &[SMALL]).expect("it is right");
    let waiting = client.call("t").await;
    world.server.call().await.says("there is no room for another");
    assert_eq!(waiting.answer().await.text(), "there is no room for another");
    assert_eq!(client.task(&kept).await["status"], "completed", "what is kept stays");
}

#[tokio::test]
async fn what_cannot_be_done_changes_nothing() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = taken.local_addr().expect("it is bound");
    let busy = listening(&world, &format!("listen: \"{address}\""));
    let error = world.proxy.reload(busy).expect_err("somebody listens there");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let missing = "tls: { cert: none.pem, key: none.pem }";
    let error = world.reload(&[ALWAYS], &[missing]).expect_err("there is no such file");
    assert!(error.to_string().contains("none.pem"), "{error}");
    let waiting = world.tasker().call("t").await;
    world.server.call().await.says("as before");
    assert_eq!(waiting.answer().await.text(), "as before");
}

#[tokio::test]
async fn what_only_a_start_can_change_is_named_and_stays() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("store: {{ disk: '{}' }}", folder.path().join("data").display());
    let changed =
        world.reload(&[NEVER], &[&store, "log: json", "ready: { upstream: required }"]).expect("it is right");
    assert_eq!(changed.needs_restart, ["store", "log", "ready"]);
    assert!(!folder.path().join("data").exists());
    let again = world.reload(&[NEVER], &[]).expect("it is right");
    assert_eq!(again.needs_restart, [""; 0]);
}

#[tokio::test]
async fn an_input_request_that_waits_is_answered_after_it() {
    let mut world = ProxyAndServer::with(NEVER).await;
    let client = world.client().declaring(json!({ "elicitation": {} }));
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let (id, events) = (call.id(), call.stream());
    let question = json!({ "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} } });
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": question }));
    let asked = waiting.answer().await.result();
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
    let next = another().await;
    world.proxy.reload(written(&next.url(), &[ALWAYS], &[])).expect("it is right");
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let params = json!({
        "name": "t",
        "arguments": {},
        "inputResponses": { key: { "action": "accept", "content": {} } },
        "requestState": asked["requestState"],
    });
    let again = client.send("tools/call", params).await;
    let answered = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(answered.json["result"]["action"], "accept");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    assert_eq!(again.answer().await.text(), "done");
}
