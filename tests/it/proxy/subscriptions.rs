//! `subscriptions/listen`.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup};
use crate::{
    front::listener_and_service::Lines,
    support::{
        legacy_server::{Canned, Events, PATIENCE, Seen},
        limit_hits::LimitHits,
        modern_client::{Client, Event, Stream, TASKS},
        paused_time::Still,
    },
};
use http::Method;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const ACK: &str = "notifications/subscriptions/acknowledged";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn acknowledged(client: &Client, asked: Value) -> (Stream, Value) {
    let mut stream = client.listen(asked).await;
    let mut ack = stream.notice(ACK).await;
    (stream, ack["notifications"].take())
}

/// The own stream of the session that this client's calls go to.
async fn own_stream(world: &ProxyAndServer, client: &Client) -> (String, Events) {
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let session = call.session().to_owned();
    call.says("hi");
    waiting.answer().await;
    let events = world.server.listener(&session).await;
    (session, events)
}

#[tokio::test]
async fn the_acknowledgement_comes_first_and_every_notice_bears_the_id_as_it_was_sent() {
    for id in [json!(7), json!("7"), json!("a b"), json!(9007199254740993_i64)] {
        let world = ProxyAndServer::new().await;
        let client = world.client();
        let (_, own) = own_stream(&world, &client).await;
        let mut stream = client.listen_as(&id, json!({ "toolsListChanged": true })).await;
        assert_eq!(
            (stream.status.as_u16(), &stream.headers["content-type"]),
            (200, &"text/event-stream".parse().unwrap())
        );
        let ack = stream.notice(ACK).await;
        assert_eq!(
            ack,
            json!({ "notifications": { "toolsListChanged": true }, "_meta": { SUBSCRIPTION: id } })
        );
        own.notify("notifications/tools/list_changed", json!({}));
        let told = stream.notice("notifications/tools/list_changed").await;
        assert_eq!(told["_meta"][SUBSCRIPTION], id);
    }
}

#[tokio::test]
async fn only_what_the_server_offers_is_acknowledged() {
    let world = Setup::new()
        .server(|options| {
            options.capabilities =
                json!({ "tools": { "listChanged": true }, "prompts": {}, "resources": { "subscribe": false } });
        })
        .start()
        .await;
    let asked = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": ["file:///a"], "unknown": 1,
    });
    let (_stream, honoured) = acknowledged(&world.client(), asked).await;
    assert_eq!(honoured, json!({ "toolsListChanged": true }));
    assert_eq!(world.server.messages("resources/subscribe"), 0);
}

#[tokio::test]
async fn a_change_reported_by_another_session_of_the_caller_is_delivered() {
    let world = ProxyAndServer::new().await;
    let client = world.client().bearing("alice");
    let (mut stream, _) = acknowledged(&client, json!({ "toolsListChanged": true })).await;
    // A call that can be asked has a session of its own kind.
    let (session, own) = own_stream(&world, &client.declaring(json!({ "sampling": {} }))).await;
    assert!(world.server.count(|seen| seen.http == Method::GET) >= 2, "another than the listener's");
    own.notify("notifications/tools/list_changed", json!({}));
    stream.notice("notifications/tools/list_changed").await;
    assert!(!session.is_empty());
}

#[tokio::test]
async fn a_change_reported_on_a_calls_stream_goes_to_the_listener_and_not_to_the_call() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let (mut stream, _) = acknowledged(&client, json!({ "toolsListChanged": true })).await;
    let waiting = client.call("changes").await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.notify("notifications/tools/list_changed", json!({}));
    events.result(&id, json!({ "content": [] }));
    assert_eq!(waiting.answer().await.messages().len(), 1);
    stream.notice("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn a_change_that_all_sessions_report_is_delivered_once() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let (one, a) = own_stream(&world, &client).await;
    let (two, b) = own_stream(&world, &client.declaring(json!({ "sampling": {} }))).await;
    assert_ne!(one, two);
    let (mut stream, _) =
        acknowledged(&client, json!({ "toolsListChanged": true, "resourcesListChanged": true })).await;
    // However busy the machine is, it hears them at once.
    let still = Still::stands();
    a.notify("notifications/tools/list_changed", json!({}));
    // Long enough for a notification of its own, if changes were not combined.
    for _ in 0..8 {
        client.ask("tools/list", json!({})).await;
    }
    b.notify("notifications/tools/list_changed", json!({}));
    heard(&world, &b, "h1").await;
    still.passes(Duration::from_secs(1)).await;
    stream.notice("notifications/tools/list_changed").await;
    // Had there been a second, it would come before this.
    b.notify("notifications/resources/list_changed", json!({}));
    heard(&world, &b, "h2").await;
    still.passes(Duration::from_secs(1)).await;
    stream.notice("notifications/resources/list_changed").await;
    // A later change is notified again.
    b.notify("notifications/tools/list_changed", json!({}));
    heard(&world, &b, "h3").await;
    still.passes(Duration::from_secs(1)).await;
    stream.notice("notifications/tools/list_changed").await;
}

/// Waits until the proxy has heard all that this stream has said.
async fn heard(world: &ProxyAndServer, events: &Events, id: &str) {
    events.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
    world.server.seen(|seen| seen.answers(&json!(id))).await;
    // Those who listen have it by then.
    world.client().ask("tools/list", json!({})).await;
}

#[tokio::test]
async fn only_subscribed_changes_are_delivered() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let (_, own) = own_stream(&world, &client).await;
    let (mut stream, _) = acknowledged(&client, json!({ "promptsListChanged": true })).await;
    own.notify("notifications/tools/list_changed", json!({}));
    own.notify("notifications/resources/list_changed", json!({}));
    own.notify("notifications/resources/updated", json!({ "uri": "file:///a" }));
    own.notify("notifications/message", json!({ "level": "error", "data": 1 }));
    own.notify("notifications/prompts/list_changed", json!({}));
    stream.notice("notifications/prompts/list_changed").await;
}

#[tokio::test]
async fn changes_of_one_callers_sessions_reach_no_other_caller() {
    let world = ProxyAndServer::new().await;
    let (alice, bob) = (world.client().bearing("alice"), world.client().bearing("bob"));
    let (_, hers) = own_stream(&world, &alice).await;
    let (_, his) = own_stream(&world, &bob).await;
    let (mut stream, _) =
        acknowledged(&alice, json!({ "toolsListChanged": true, "promptsListChanged": true })).await;
    let (mut other, _) = acknowledged(&bob, json!({ "toolsListChanged": true })).await;
    his.notify("notifications/tools/list_changed", json!({}));
    other.notice("notifications/tools/list_changed").await;
    hers.notify("notifications/prompts/list_changed", json!({}));
    stream.notice("notifications/prompts/list_changed").await;
}

/// A server that agrees to subscriptions, but to those of `secret` resources.
fn subscribable() -> Setup {
    Setup::new().server(|options| {
        options.hook = Some(Box::new(|seen| {
            if !seen.method().starts_with("resources/") {
                return None;
            }
            let id = &seen.json["id"];
            let secret = seen.json["params"]["uri"].as_str().is_some_and(|uri| uri.contains("secret"));
            Some(Canned::json(
                200,
                &match secret {
                    true => {
                        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32602, "message": "no" } })
                    }
                    false => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
                },
            ))
        }));
    })
}

#[tokio::test]
async fn resources_are_subscribed_at_the_server_while_a_client_listens() {
    let world = subscribable().start().await;
    let client = world.client();
    let asked = json!({ "resourceSubscriptions": ["file:///a", "file:///a", "file:///secret"] });
    let (mut stream, honoured) = acknowledged(&client, asked).await;
    assert_eq!(honoured, json!({ "resourceSubscriptions": ["file:///a"] }), "what was refused is left out");
    let subscribed = world.server.seen(|seen| seen.json["params"]["uri"] == "file:///a").await;
    assert_eq!(subscribed.method(), "resources/subscribe");
    let own = world.server.listener(subscribed.session()).await;
    own.notify("notifications/resources/updated", json!({ "uri": "file:///ab" }));
    own.notify("notifications/resources/updated", json!({ "uri": "file:///a", "x": 1.10 }));
    let told = stream.notice("notifications/resources/updated").await;
    assert_eq!((&told["uri"], &told["x"]), (&json!("file:///a"), &json!(1.10)));
    assert_eq!(told["_meta"][SUBSCRIPTION], 1);
    own.notify("notifications/resources/updated", json!({ "uri": "file:///a/part" }));
    let told = stream.notice("notifications/resources/updated").await;
    assert_eq!(told["uri"], "file:///a/part", "what is inside a resource is a part of it");

    let (second, _) = acknowledged(&client, json!({ "resourceSubscriptions": ["file:///a"] })).await;
    second.leave();
    stream.leave();
    let let_go = world.server.message("resources/unsubscribe").await;
    assert_eq!(let_go.json["params"]["uri"], "file:///a");
    assert_eq!(let_go.session(), subscribed.session());
}

// === tasks ===

/// A `tasks/get` result as its notification would be: only results have a type and say who serves.
fn as_notified(mut task: Value) -> Value {
    let members = task.as_object_mut().expect("an object");
    members.remove("resultType");
    members.remove("_meta");
    task
}

async fn told(stream: &mut Stream) -> Value {
    let mut params = stream.notice("notifications/tasks").await;
    let meta = params.as_object_mut().expect("an object").remove("_meta").expect("_meta");
    assert_eq!(meta, json!({ SUBSCRIPTION: 1 }));
    params
}

#[tokio::test]
async fn task_notifications_equal_the_response_of_tasks_get() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (mut stream, honoured) = acknowledged(&client, json!({ "taskIds": [task, "unknown"] })).await;
    assert_eq!(honoured, json!({ "taskIds": [task] }));
    let (id, token) = (call.id(), call.seen.json["params"]["_meta"]["progressToken"].clone());
    let events = call.stream();

    events.notify(
        "notifications/progress",
        json!({ "progressToken": token, "progress": 1, "message": "begun" }),
    );
    let begun = told(&mut stream).await;
    assert_eq!(begun, as_notified(client.task(&task).await));
    assert_eq!((&begun["status"], &begun["statusMessage"]), (&json!("working"), &json!("begun")));

    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    let done = told(&mut stream).await;
    assert_eq!(done, as_notified(client.task(&task).await));
    assert_eq!(
        (&done["status"], &done["result"]["content"][0]["text"]),
        (&json!("completed"), &json!("done"))
    );
}

#[tokio::test]
async fn an_ended_task_is_reported_at_once() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let mut tasks = Vec::new();
    for outcome in ["failed", "cancelled"] {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        let task = waiting.answer().await.task();
        match outcome {
            "failed" => call.error(json!({ "code": 1, "message": "no" })),
            _ => drop(client.of_task("tasks/cancel", &task).await),
        }
        client.ended(&task).await;
        tasks.push(task);
    }
    let (mut stream, _) = acknowledged(&client, json!({ "taskIds": tasks })).await;
    for task in &tasks {
        assert_eq!(told(&mut stream).await, as_notified(client.task(task).await));
    }
}

#[tokio::test]
async fn a_task_named_many_times_is_reported_once() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        let task = waiting.answer().await.task();
        call.says("done");
        client.ended(&task).await;
        tasks.push(task);
    }
    let named: Vec<_> = [vec![&tasks[0]; 1000], vec![&tasks[1]]].concat();
    let (mut stream, honoured) = acknowledged(&client, json!({ "taskIds": named })).await;
    assert_eq!(honoured, json!({ "taskIds": tasks }));
    for task in &tasks {
        assert_eq!(told(&mut stream).await["taskId"], **task);
    }
}

#[tokio::test]
async fn a_cancel_by_another_client_of_the_principal_is_reported() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let (mut stream, _) = acknowledged(&client, json!({ "taskIds": [task] })).await;
    client.of_task("tasks/cancel", &task).await;
    assert_eq!(told(&mut stream).await["status"], "cancelled");
    call.left().await;
}

#[tokio::test]
async fn tasks_are_reported_only_to_clients_that_declare_the_extension() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let params = json!({ "notifications": { "taskIds": ["x"] } });
    let answer = world.client().ask("subscriptions/listen", params).await;
    assert_eq!(answer.refusal(), (400, -32021));
    let required = &answer.error()["data"]["requiredCapabilities"];
    assert_eq!(required, &json!({ "extensions": { TASKS: {} } }));
}

#[tokio::test]
async fn a_filter_that_is_none_is_refused() {
    let world = ProxyAndServer::new().await;
    for params in
        [json!({}), json!({ "notifications": [] }), json!({ "notifications": { "toolsListChanged": "yes" } })]
    {
        let answer = world.client().ask("subscriptions/listen", params.clone()).await;
        assert_eq!(answer.error()["code"], -32602, "{params}");
    }
}

#[tokio::test]
async fn a_quiet_stream_is_kept_alive() {
    let world = Setup::new().top("timeouts: { keep_alive: 20ms }").start().await;
    let (mut stream, _) = acknowledged(&world.client(), json!({ "toolsListChanged": true })).await;
    for _ in 0..2 {
        assert_eq!(stream.event().await, Some(Event::Comment));
    }
}

#[tokio::test]
async fn listening_goes_on_over_a_lost_session() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let (mut stream, _) = acknowledged(&client, json!({ "toolsListChanged": true })).await;
    let first = world.server.seen(|seen| seen.http == Method::GET).await.session().to_owned();
    // The call is refused for its session, made in a new one, and that is listened to as well.
    // What the server forgot to report with the session, nobody knows.
    let waiting = client.call("t").await;
    world.server.call().await.canned(Canned::status(404));
    let again = world.server.call().await;
    assert_ne!(again.session(), first);
    let session = again.session().to_owned();
    again.says("hi");
    waiting.answer().await;
    stream.notice("notifications/tools/list_changed").await;
    world.server.listener(&session).await.notify("notifications/tools/list_changed", json!({}));
    stream.notice("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn listening_goes_on_over_a_session_that_was_retired_for_a_cancel() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let (mut stream, _) = acknowledged(&client, json!({ "toolsListChanged": true })).await;
    let waiting = client.call("slow").await;
    let session = world.server.call().await.session().to_owned();
    waiting.leave();
    world.server.seen(|seen| seen.http == Method::DELETE && seen.session() == session).await;
    // No call runs, but a client listens: a new session exists already, so that no change is missed.
    let others = |seen: &Seen| seen.http == Method::GET && seen.session() != session;
    assert_eq!(world.server.count(others), 1);
    let again = world.server.seen(others).await;
    let own = world.server.listener(again.session()).await;
    own.notify("notifications/tools/list_changed", json!({}));
    stream.notice("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn listening_goes_on_when_the_server_has_forgotten_the_session() {
    let forgotten = Arc::new(AtomicBool::new(false));
    let forgets = Arc::clone(&forgotten);
    let setup = Setup::new().server(move |options| {
        options.hook = Some(Box::new(move |seen| {
            let gone = forgets.load(Ordering::Relaxed) && seen.session() == "s1";
            gone.then(|| Canned::status(404))
        }));
    });
    let world = setup.start().await;
    let (mut stream, _) = acknowledged(&world.client(), json!({ "toolsListChanged": true })).await;
    let own = world.server.listener("s1").await;
    own.raw("retry: 1\ndata:\n\n");
    // As after a restart of the server: the stream ends, and no call runs.
    forgotten.store(true, Ordering::Relaxed);
    world.server.hang_up("s1");
    drop(own);
    let again = world.server.listener("s2").await;
    // Possible changes of the meantime are notified, then actual changes.
    stream.notice("notifications/tools/list_changed").await;
    again.notify("notifications/tools/list_changed", json!({}));
    stream.notice("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn a_stream_subscribes_to_so_many_resources_and_leaves_out_the_rest() {
    let hook = |seen: &Seen| {
        let answer = json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} });
        (seen.method() == "resources/subscribe").then(|| Canned::json(200, &answer))
    };
    let mut setup = Setup::new();
    setup.options = setup.options.hook(hook);
    let world = setup.start().await;
    let uris: Vec<_> = (0..1010).map(|n| format!("file:///{n}")).collect();
    let client = world.client();
    let listening = acknowledged(&client, json!({ "resourceSubscriptions": uris }));
    let (_stream, honoured) = tokio::time::timeout(PATIENCE, listening).await.expect("it is acknowledged");
    assert_eq!(honoured, json!({ "resourceSubscriptions": uris[..1000] }));
    assert_eq!(world.server.messages("resources/subscribe"), 1000);
    let other = world.client().bearing("other").ask("tools/list", json!({})).await;
    assert!(other.result()["tools"].is_array());
}

#[tokio::test]
async fn each_task_that_a_stream_names_counts_as_a_look_up() {
    let (misses, polls) =
        (LimitHits::of("limits.misses_per_minute"), LimitHits::of("limits.polls_per_second"));
    let world = Setup::new().route(ALWAYS).top("limits: { misses_per_minute: 5 }").start().await;
    let lines = Lines::record();
    let client = world.tasker();
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let unknown = |count: u8| (0..count).map(|number| format!("{number:032x}")).collect::<Vec<_>>();
    // Named twice it is one; what is no id at all counts, too.
    let ids = [unknown(3), unknown(3), vec![task.clone(), "guess".to_owned()]].concat();
    let (_stream, honoured) = acknowledged(&client, json!({ "taskIds": ids })).await;
    assert_eq!(honoured["taskIds"], json!([task]));
    assert_eq!(lines.of("lookup_failed").len(), 4);
    let listen = |ids: Vec<String>| json!({ "notifications": { "taskIds": ids } });
    let refused = client.ask("subscriptions/listen", listen(unknown(3))).await;
    assert_eq!(refused.refusal(), (429, -31006));
    assert!(refused.body.contains("limits.misses_per_minute"), "{}", refused.body);
    misses.are(1).await;
    let failed = lines.of("lookup_failed");
    assert!(failed.iter().all(|line| line["method"] == "subscriptions/listen"), "{failed:?}");
    // What it has it may still follow, as often as it may poll.
    acknowledged(&client, json!({ "taskIds": [task] })).await;
    polls.are(0).await;
    call.says("done");
}

#[tokio::test]
async fn a_stream_that_names_more_tasks_than_may_be_polled_is_refused() {
    let polls = LimitHits::of("limits.polls_per_second");
    let world = Setup::new().route(ALWAYS).top("limits: { polls_per_second: 1 }").start().await;
    let ids: Vec<_> = (0..100).map(|number| format!("{number:032x}")).collect();
    let params = json!({ "notifications": { "taskIds": ids } });
    let refused = world.tasker().ask("subscriptions/listen", params).await;
    assert_eq!(refused.refusal(), (429, -31006));
    assert!(refused.body.contains("limits.polls_per_second"), "{}", refused.body);
    polls.are(1).await;
}

#[tokio::test]
async fn a_stream_follows_as_many_tasks_as_may_be_polled_and_leaves_out_the_rest() {
    let polls = LimitHits::of("limits.polls_per_second");
    let world = Setup::new().route(ALWAYS).top("limits: { polls_per_second: 3 }").start().await;
    let client = world.tasker();
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        tasks.push((waiting.answer().await.task(), call));
    }
    let ids: Vec<_> = tasks.iter().map(|(task, _)| task.clone()).collect();
    let (mut stream, honoured) = acknowledged(&client, json!({ "taskIds": ids })).await;
    let honoured = honoured["taskIds"].as_array().expect("a list").clone();
    assert!((3..30).contains(&honoured.len()), "{honoured:?}");
    assert_eq!(json!(honoured), json!(ids[..honoured.len()]));
    polls.are(1).await;
    tasks.into_iter().for_each(|(_, call)| call.says("done"));
    let mut told = Vec::new();
    while told.len() < honoured.len() {
        let notice = stream.next().await;
        told.push(notice["params"]["taskId"].clone());
    }
    assert!(honoured.iter().all(|task| told.contains(task)), "{told:?}");
}

#[tokio::test]
async fn a_stream_follows_so_many_tasks_and_leaves_out_the_rest() {
    const MOST: usize = 1000;
    let top = "limits: { misses_per_minute: 100000, polls_per_second: 100000 }";
    let world = Setup::new().route(ALWAYS).top(top).start().await;
    let client = world.tasker();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        tasks.push((waiting.answer().await.task(), call));
    }
    // The first is the last that is looked up, the second is one too many.
    let mut ids: Vec<_> = (1..MOST).map(|number| format!("{number:032x}")).collect();
    ids.extend(tasks.iter().map(|(task, _)| task.clone()));
    let lines = Lines::record();
    let (_stream, honoured) = acknowledged(&client, json!({ "taskIds": ids })).await;
    assert_eq!(honoured["taskIds"], json!([tasks[0].0]));
    assert_eq!(lines.of("lookup_failed").len(), MOST - 1);
}
