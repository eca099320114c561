//! Clients that disconnect.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, SLOW, Setup};
use crate::support::{
    legacy_server::{Call, Seen},
    modern_client::{Client, TASKS, Version, soon},
};
use bytes::Bytes;
use http::Method;
use serde_json::json;

fn cancels(call: &str, session: &str) -> impl Fn(&Seen) -> bool {
    move |seen| {
        seen.method() == "notifications/cancelled"
            && seen.session() == session
            && seen.json["params"]["requestId"].to_string().as_str() == call
    }
}

/// Waits for the cancellation at the server and for the end of that session.
async fn is_cancelled_once(world: &ProxyAndServer, call: &Call) {
    let (id, session) = (call.id().to_string(), call.session().to_owned());
    world.server.seen(cancels(&id, &session)).await;
    world.server.seen(|seen| seen.http == Method::DELETE && seen.session() == session).await;
    assert_eq!(world.server.messages("notifications/cancelled"), 1, "{:#?}", world.server.log());
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_answer_cancels_its_call_once() {
    for declares_tasks in [false, true] {
        let world = ProxyAndServer::new().await;
        let client = if declares_tasks { world.tasker() } else { world.client() };
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        waiting.leave();
        is_cancelled_once(&world, &call).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_only_its_own_call() {
    let world = ProxyAndServer::new().await;
    let (one, other) = (world.client().call("one").await, world.client().call("other").await);
    let (a, b) = (world.server.call().await, world.server.call().await);
    let (a, b) = if a.name() == "one" { (a, b) } else { (b, a) };
    one.leave();
    let (id, session) = (a.id().to_string(), a.session().to_owned());
    world.server.seen(cancels(&id, &session)).await;
    b.says("unharmed");
    assert_eq!(other.answer().await.text(), "unharmed");
    world.server.seen(|seen| seen.http == Method::DELETE).await;
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn abandoning_one_of_several_requests_on_a_connection_cancels_that_call() {
    let world = ProxyAndServer::new().await;
    let mut kept = world.client().over(Version::Http2).kept().await;
    let request = |client: &Client, tool| client.request("tools/call", json!({ "name": tool }));
    let one = kept.begin(request(&world.client().over(Version::Http2), "one")).await;
    let a = world.server.call().await;
    let other = kept.begin(request(&world.client().over(Version::Http2), "other")).await;
    let b = world.server.call().await;
    one.leave();
    world.server.seen(cancels(&a.id().to_string(), a.session())).await;
    b.says("unharmed");
    assert_eq!(other.answer().await.text(), "unharmed");
    assert_eq!(world.server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_an_event_stream_cancels_its_call() {
    let world = ProxyAndServer::new().await;
    let params = json!({ "name": "slow", "_meta": { "progressToken": 1 } });
    let waiting = world.client().send("tools/call", params).await;
    let call = world.server.call().await;
    let (id, session) = (call.id(), call.session().to_owned());
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": id, "progress": 1 }));
    let mut stream = waiting.stream().await;
    stream.notice("notifications/progress").await;
    stream.leave();
    world.server.seen(cancels(&id.to_string(), &session)).await;
    events.left().await;
}

#[tokio::test]
async fn a_client_may_disconnect_once_it_has_its_handle() {
    let world = ProxyAndServer::with(SLOW).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    // Its connection is closed by now. Another call that is given up shows that cancels get through.
    let waiting = world.client().call("other").await;
    let other = world.server.call().await;
    waiting.leave();
    world.server.seen(cancels(&other.id().to_string(), other.session())).await;

    call.says("done");

    assert_eq!(client.ended(&task).await["status"], "completed");
    assert_eq!(world.server.messages("notifications/cancelled"), 1, "only the other");
}

/// A client whose HTTP/2 window holds back the end of the handle: it has read the task's id, but
/// the handle has not been taken.
#[tokio::test]
async fn a_client_that_disconnects_before_it_has_its_handle_leaves_no_task_behind() {
    let world = Setup::new().route(ALWAYS).top("limits: { tasks: 1 }").start().await;
    let client = world.tasker();
    let (response, connection) = withholding(&client, &world).await;
    let call = world.server.call().await;
    let mut body = soon("the head is waited for", response).await.expect("a head").into_body();
    let mut head = Vec::new();
    while head.len() < WINDOW as usize {
        // Its room is not given back, so that no more may come.
        head.extend(soon("the window is filled", body.data()).await.expect("more").expect("data"));
    }
    let head = String::from_utf8(head).expect("ascii");
    let at = head.find(r#""taskId":""#).expect("the id is in the window") + 10;
    let task = &head[at..at + head[at..].find('"').expect("the whole id is in the window")];
    assert_eq!(client.task(task).await["status"], "working", "what could be read must be found");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);

    drop(body);

    is_cancelled_once(&world, &call).await;
    let gone = client.of_task("tasks/get", task).await;
    assert_eq!(gone.refusal(), (200, -32602));
    // Nothing is left of it: the only place is free again.
    client.call("next").await.answer().await.task();
    drop(connection);
}

/// Bytes of a response that may be under way: enough for the id, too few for a handle.
const WINDOW: u32 = 150;

async fn withholding(
    client: &Client,
    world: &ProxyAndServer,
) -> (h2::client::ResponseFuture, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::TcpStream::connect(world.addr()).await.expect("the proxy listens");
    let (mut sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .handshake::<_, Bytes>(socket)
        .await
        .expect("a handshake");
    let connection = tokio::spawn(async move { drop(connection.await) });
    let request = client.over(Version::Http2).request("tools/call", json!({ "name": "slow" }));
    let (head, body) = request.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.expect("in memory").to_bytes();
    let (response, mut sending) =
        sender.send_request(http::Request::from_parts(head, ()), false).expect("it can be sent");
    sending.send_data(body, true).expect("it can be sent");
    (response, connection)
}

#[tokio::test]
async fn a_client_that_disconnects_while_its_call_waits_for_a_session_leaves_nothing_at_the_server() {
    // One session, taken by a call whose client can be asked.
    let world = Setup::new().top("limits: { sessions: 1 }").start().await;
    let client = world.client().declaring(json!({ "elicitation": {} }));
    let first = client.call("first").await;
    let call = world.server.call().await;
    let queued = client.call("queued").await;
    let behind = client.call("behind").await;
    queued.leave();
    call.says("1");
    assert_eq!(first.answer().await.text(), "1");
    let mut next = world.server.call().await;
    if next.name() == "queued" {
        // It was sent before the departure was heard of: then it is cancelled.
        world.server.seen(cancels(&next.id().to_string(), next.session())).await;
        next = world.server.call().await;
    }
    assert_eq!(next.name(), "behind");
    next.says("3");
    assert_eq!(behind.answer().await.text(), "3");
}

#[tokio::test]
async fn a_call_that_waits_for_a_session_becomes_a_task_all_the_same() {
    let world = Setup::new().route(SLOW).top("limits: { sessions: 1, task_sessions: 0 }").start().await;
    let client = world.client().declaring(json!({ "elicitation": {}, "extensions": { TASKS: {} } }));
    let first = client.call("first").await;
    let call = world.server.call().await;
    let one = first.answer().await.task();
    let two = client.call("second").await.answer().await.task();
    assert_eq!(world.calls(), 1, "the second still waits");
    call.says("1");
    assert_eq!(client.ended(&one).await["status"], "completed");
    world.server.call().await.says("2");
    assert_eq!(client.ended(&two).await["result"]["content"][0]["text"], "2");
}
