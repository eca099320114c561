//! At a limit a call stays synchronous, or is refused with the limit's name.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup};
use crate::support::{limit_hits::LimitHits, modern_client::Client};
use serde_json::{Value, json};

async fn limited(limits: &'static str) -> ProxyAndServer {
    Setup::new().route(ALWAYS).top(limits).start().await
}

/// The client's next call becomes a task, which ends with this text.
async fn becomes_a_task(world: &ProxyAndServer, client: &Client, text: &str) -> String {
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says(text);
    client.ended(&task).await;
    task
}

/// The client's next call is answered plainly.
async fn stays_synchronous(world: &ProxyAndServer, client: &Client) {
    let waiting = client.call("slow").await;
    world.server.call().await.says("waited for");
    assert_eq!(waiting.answer().await.text(), "waited for");
}

#[tokio::test]
async fn at_the_callers_quota_calls_stay_synchronous_and_nothing_is_evicted() {
    let hits = LimitHits::of("limits.tasks_per_principal");
    let world = limited("limits: { tasks_per_principal: 1 }").await;
    let (alice, bob) = (world.tasker().bearing("alice"), world.tasker().bearing("bob"));
    let waiting = alice.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    stays_synchronous(&world, &alice).await;
    assert_eq!(alice.task(&task).await["status"], "working");
    becomes_a_task(&world, &bob, "others are not concerned").await;
    call.says("done");
    assert_eq!(alice.ended(&task).await["status"], "completed");
    // A result that is kept counts.
    stays_synchronous(&world, &alice).await;
    assert_eq!(alice.task(&task).await["status"], "completed");
    hits.are(2).await;
}

#[tokio::test]
async fn at_the_quota_of_all_tasks_calls_stay_synchronous() {
    let hits = LimitHits::of("limits.tasks");
    let world = limited("limits: { tasks: 1 }").await;
    becomes_a_task(&world, &world.tasker().bearing("alice"), "done").await;
    stays_synchronous(&world, &world.tasker().bearing("bob")).await;
    hits.are(1).await;
}

#[tokio::test]
async fn at_the_quota_of_stored_bytes_calls_stay_synchronous() {
    let world = limited("limits: { stored_bytes: 900 }").await;
    let client = world.tasker();
    becomes_a_task(&world, &client, "small").await;
    // Small enough to be kept whatever the limit.
    becomes_a_task(&world, &client, &"x".repeat(800)).await;
    stays_synchronous(&world, &client).await;
}

/// A task whose result does not fit; gives what it says.
async fn does_not_fit(world: &ProxyAndServer, client: &Client, text: &str) -> String {
    let task = becomes_a_task(world, client, text).await;
    let failed = client.task(&task).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!(-31005)));
    assert_eq!(failed["statusMessage"], failed["error"]["message"]);
    failed["statusMessage"].as_str().expect("words").to_owned()
}

#[tokio::test]
async fn a_result_that_does_not_fit_ends_its_task_with_the_limit_named() {
    let hits = LimitHits::of("limits.stored_bytes");
    let world = limited("limits: { stored_bytes: 100000 }").await;
    let client = world.tasker();
    // All of them are admitted, as nothing is kept yet.
    let mut made = Vec::new();
    for _ in 0..8 {
        let waiting = client.call("slow").await;
        let call = world.server.call().await;
        made.push((waiting.answer().await.task(), call));
    }
    let mut kept = 0;
    for (task, call) in made {
        call.says(&"x".repeat(30_000));
        let ended = client.ended(&task).await;
        match ended["status"].as_str().expect("a status") {
            "completed" => kept += 1,
            _ => {
                let words = ended["error"]["message"].as_str().expect("words");
                assert!(words.contains("(limits.stored_bytes)"), "{words}");
            }
        }
    }
    assert_eq!(kept, 3);
    let small = becomes_a_task(&world, &client, "what is small is kept").await;
    assert_eq!(client.task(&small).await["status"], "completed");
    hits.are(5).await;
}

#[tokio::test]
async fn one_caller_cannot_use_up_the_quota_of_all() {
    let hits = LimitHits::of("limits.stored_bytes_per_principal");
    let world = limited("limits: { stored_bytes_per_principal: 50000 }").await;
    let (alice, bob) = (world.tasker().bearing("alice"), world.tasker().bearing("bob"));
    let large = "x".repeat(30_000);
    let kept = becomes_a_task(&world, &alice, &large).await;
    assert_eq!(alice.task(&kept).await["status"], "completed");
    let words = does_not_fit(&world, &alice, &large).await;
    assert!(words.contains("limits.stored_bytes_per_principal"), "{words}");
    let others = becomes_a_task(&world, &bob, &large).await;
    assert_eq!(bob.task(&others).await["status"], "completed");
    assert_eq!(alice.task(&kept).await["status"], "completed", "nothing is evicted");
    hits.are(1).await;
}

#[tokio::test]
async fn a_call_at_a_quota_still_gets_progress_and_is_cancelled_by_a_disconnect() {
    let world = limited("limits: { tasks: 1 }").await;
    let client = world.tasker();
    becomes_a_task(&world, &client, "done").await;
    let params = json!({ "name": "slow", "_meta": { "progressToken": "p" } });
    let waiting = client.send("tools/call", params).await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": id, "progress": 1 }));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.notice("notifications/progress").await["progressToken"], "p");
    stream.leave();
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], id);
}

/// Asks until it is refused for asking too often.
async fn refused_in_the_end(client: &Client, method: &str, params: Value) -> String {
    let mut kept = client.kept().await;
    for _ in 0..200 {
        let answer = kept.ask(method, params.clone()).await;
        if answer.status == 429 {
            assert_eq!(answer.refusal(), (429, -31006));
            return answer.error()["message"].as_str().expect("words").to_owned();
        }
    }
    panic!("never refused")
}

#[tokio::test]
async fn a_caller_that_polls_too_often_gets_an_error_with_the_limit() {
    let hits = LimitHits::of("limits.polls_per_second");
    let world = limited("limits: { polls_per_second: 2 }").await;
    let (alice, bob) = (world.tasker().bearing("alice"), world.tasker().bearing("bob"));
    let waiting = alice.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let message = refused_in_the_end(&alice, "tasks/get", json!({ "taskId": task })).await;
    assert!(message.contains("limits.polls_per_second"), "{message}");
    assert_eq!(bob.of_task("tasks/get", &task).await.refusal(), (200, -32602), "others are not concerned");
    call.says("done");
    hits.are(1).await;
}

#[tokio::test]
async fn a_caller_that_guesses_ids_gets_an_error_with_the_limit() {
    let hits = LimitHits::of("limits.misses_per_minute");
    let world = limited("limits: { misses_per_minute: 2 }").await;
    let client = world.tasker();
    let message = refused_in_the_end(&client, "tasks/get", json!({ "taskId": "guess" })).await;
    assert!(message.contains("limits.misses_per_minute"), "{message}");
    // What it knows it may still ask for.
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    assert_eq!(client.task(&task).await["status"], "working");
    call.says("done");
    hits.are(1).await;
}

#[tokio::test]
async fn a_caller_may_have_so_many_streams_to_listen_on() {
    let hits = LimitHits::of("limits.listens_per_principal");
    let world = limited("limits: { listens_per_principal: 1 }").await;
    let (alice, bob) = (world.client().bearing("alice"), world.client().bearing("bob"));
    let asked = json!({ "toolsListChanged": true });
    let mut open = alice.listen(asked.clone()).await;
    open.notice("notifications/subscriptions/acknowledged").await;
    let params = json!({ "notifications": asked });
    let refused = alice.ask("subscriptions/listen", params.clone()).await;
    assert_eq!(refused.refusal(), (429, -31006));
    let message = refused.error()["message"].as_str().expect("words").to_owned();
    assert!(message.contains("limits.listens_per_principal"), "{message}");
    hits.are(1).await;
    bob.listen(asked.clone()).await.notice("notifications/subscriptions/acknowledged").await;
    open.leave();
    // Its place is free as soon as its end has been noticed.
    loop {
        let mut again = alice.send("subscriptions/listen", params.clone()).await.stream().await;
        if again.status == 200 {
            again.notice("notifications/subscriptions/acknowledged").await;
            return;
        }
    }
}
