//! Calls with a session of their own, and the queue when no session is free.

use super::asking_server_and_client::{
    Asking, Client, ProxyAndServer, Questions, Setup, Talk, Way, accept, asked, asked_with_tasks, form,
    update,
};
use crate::support::{
    legacy_server::{Get, Seen},
    limit_hits::LimitHits,
    modern_client::soon,
    paused_time::passes,
};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn calls_of_clients_with_capabilities_have_sessions_of_their_own() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (one, other) = (talk.begin().await, talk.begin().await);
    let a = Asking::next(&world, Way::OnTheSession).await;
    let b = Asking::next(&world, Way::OnTheSession).await;
    assert_ne!(a.session, b.session);
    // Both ask under the same id, and each client gets its own.
    a.ask(0, &form("A?"));
    b.ask(0, &form("B?"));
    for waiting in [one, other] {
        let questions = Questions::of(&waiting.answer().await);
        let asks = questions.requests["elicitation-1"]["params"]["message"].clone();
        let (server, other) = if asks == "A?" { (&a, &b) } else { (&b, &a) };
        let before = other.is_answered(&world, 0);
        let _waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        assert_eq!(other.is_answered(&world, 0), before);
    }
}

#[tokio::test]
async fn calls_of_clients_without_capabilities_share_a_session() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&world.client());
    let mut busy = Vec::new();
    for _ in 0..5 {
        let waiting = talk.begin().await;
        busy.push((waiting, Asking::next(&world, Way::OnTheCall).await));
    }
    assert!(busy.iter().all(|(_, server)| server.session == busy[0].1.session));
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn calls_to_a_server_without_a_get_stream_share_one() {
    let world = Setup::new().server(|options| options.get = Get::Refused(405)).start().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = [talk.begin().await, talk.begin().await, talk.begin().await];
    let mut sessions = Vec::new();
    for _ in &waiting {
        let server = Asking::next(&world, Way::OnTheCall).await;
        sessions.push(server.session.clone());
        server.says("done");
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "nothing can come on it that could not be told apart");
    for waiting in waiting {
        waiting.answer().await.result();
    }
}

#[tokio::test]
async fn one_callers_sequential_calls_meet_the_same_session() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    // Three sessions are opened, and given back in another order.
    let mut busy = Vec::new();
    for _ in 0..3 {
        let waiting = talk.begin().await;
        busy.push((waiting, Asking::next(&world, Way::OnTheSession).await));
    }
    busy.swap(0, 1);
    let mut last = String::new();
    for (waiting, server) in busy {
        last = server.session.clone();
        server.says("done");
        waiting.answer().await;
    }
    for _ in 0..5 {
        let waiting = talk.begin().await;
        let server = Asking::next(&world, Way::OnTheSession).await;
        assert_eq!(server.session, last, "the last used comes first");
        server.says("done");
        waiting.answer().await;
    }
    assert_eq!(world.server.messages("initialize"), 3);
}

#[tokio::test]
async fn at_the_limit_of_sessions_calls_wait_for_one() {
    let hits = LimitHits::of("limits.sessions");
    let world = Setup::new().top("limits: { sessions: 2 }").start().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = [talk.begin().await, talk.begin().await, talk.begin().await];
    let a = Asking::next(&world, Way::OnTheSession).await;
    let b = Asking::next(&world, Way::OnTheSession).await;
    // Somebody who needs no session for itself does not wait.
    asked(&world).ask("tools/list", json!({})).await.result();
    assert!(!world.server.has_call(), "the third waits");
    let session = a.session.clone();
    a.says("one");
    let c = Asking::next(&world, Way::OnTheSession).await;
    assert_eq!(c.session, session);
    b.says("two");
    c.says("three");
    for waiting in waiting {
        waiting.answer().await.result();
    }
    assert_eq!(world.server.messages("initialize"), 2);
    hits.are(1).await;
}

#[tokio::test]
async fn a_call_that_waits_for_a_session_becomes_a_task_in_the_queue() {
    let world = Setup::new()
        .route("defer: { after: 100ms }")
        .top("limits: { sessions: 1, task_sessions: 0 }")
        // A task waits for as long as it takes.
        .top("timeouts: { queue: 10s, keep_alive: 1h }")
        .start()
        .await;
    let client = asked_with_tasks(&world);
    let talk = Talk::tool(&client);
    let first = talk.begin().await;
    let a = Asking::next(&world, Way::OnTheSession).await;
    let first = first.answer().await.task();
    let second = talk.begin().await.answer().await.task();
    passes(Duration::from_secs(10)).await;
    assert_eq!(client.task(&second).await["status"], "working");
    assert_eq!(world.calls(), 1, "it has not been sent");
    a.says("one");
    client.ended(&first).await;
    let b = Asking::next(&world, Way::OnTheSession).await;
    // It asks inside the task, as it is one by now.
    b.ask(0, &form("Who?"));
    client.until(&second, |task| task["status"] == "input_required").await;
    update(&client, &second, json!({ "elicitation-1": accept("Ada") })).await;
    assert_eq!(b.answered(&world, 0).await, accept("Ada"));
    b.says("two");
    assert_eq!(client.ended(&second).await["result"]["content"][0]["text"], "two");
}

#[tokio::test]
async fn a_call_that_is_cancelled_in_the_queue_never_reaches_the_server() {
    let world = Setup::new()
        .route("defer: { mode: always }")
        .top("limits: { sessions: 1, task_sessions: 0 }")
        .start()
        .await;
    let client = asked_with_tasks(&world);
    let talk = Talk::tool(&client);
    let first = talk.begin().await.answer().await.task();
    let a = Asking::next(&world, Way::OnTheSession).await;
    let [second, third] =
        [talk.begin().await.answer().await.task(), talk.begin().await.answer().await.task()];
    client.of_task("tasks/cancel", &second).await;
    assert_eq!(client.task(&second).await["status"], "cancelled");
    a.says("one");
    client.ended(&first).await;
    Asking::next(&world, Way::OnTheSession).await.says("three");
    assert_eq!(client.ended(&third).await["result"]["content"][0]["text"], "three");
    assert_eq!((world.calls(), world.server.messages("notifications/cancelled")), (2, 0));
}

#[tokio::test]
async fn a_parked_call_keeps_its_session_to_itself() {
    let world = Setup::new().top("limits: { sessions: 1 }").start().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheSession, &form("Who?")).await;
    let second = talk.begin().await;
    // What comes after the second call has come: its answer has no session to wait for.
    world.client().ask("server/discover", json!({})).await.result();
    assert!(!world.server.has_call(), "the second waits for the session of the first");
    let first = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    let session = server.session.clone();
    server.says("one");
    assert_eq!(first.answer().await.text(), "one");
    let server = Asking::next(&world, Way::OnTheSession).await;
    assert_eq!(server.session, session);
    server.says("two");
    assert_eq!(second.answer().await.text(), "two");
}

#[tokio::test]
async fn a_session_on_which_a_call_was_cancelled_is_not_used_again() {
    let world = Setup::new().top("limits: { sessions: 1 }").start().await;
    let talk = Talk::tool(&asked(&world));
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheSession).await;
    waiting.leave();
    server.cancelled(&world).await;
    let waiting = talk.begin().await;
    let next = Asking::next(&world, Way::OnTheSession).await;
    assert_ne!(next.session, server.session);
    next.says("done");
    waiting.answer().await.result();
}

/// A server on which the tool `job` is a task at once, and everything else waits.
fn with_jobs() -> Setup {
    Setup::new().route("defer: { after: 10m }").route("tools: [{ match: job, mode: always }]")
}

/// Begins a task, and gives it with its server's end.
async fn job(world: &ProxyAndServer, client: &Client) -> (String, Asking) {
    let talk = Talk::new(client, "tools/call", json!({ "name": "job", "arguments": {} }));
    let task = talk.begin().await.answer().await.task();
    (task, Asking::next(world, Way::OnTheSession).await)
}

#[tokio::test]
async fn running_tasks_take_no_permit_of_calls() {
    let world = with_jobs().start().await;
    let client = asked_with_tasks(&world);
    let mut jobs = Vec::new();
    // More than there may be sessions for calls.
    for _ in 0..70 {
        jobs.push(job(&world, &client).await);
    }
    let talk = Talk::tool(&client);
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheSession).await;
    server.ask(0, &form("Who?"));
    let questions = Questions::of(&waiting.answer().await);
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.says("fast");
    assert_eq!(waiting.answer().await.text(), "fast");
    // Each task goes on, in a session of its own.
    let mut sessions: Vec<_> = jobs.iter().map(|(_, server)| server.session.clone()).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 70);
    let (task, server) = jobs.swap_remove(33);
    server.says("done");
    assert_eq!(client.ended(&task).await["status"], "completed");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_task_that_shares_its_session_keeps_no_call_from_its_turn_either() {
    let world = with_jobs().top("limits: { sessions: 1 }").start().await;
    let client = asked_with_tasks(&world);
    // The server is seen to ask on a call's own stream, so the calls after it share a session.
    let talk = Talk::tool(&client);
    let waiting = talk.begin().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    let questions = Questions::of(&waiting.answer().await);
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.says("first");
    waiting.answer().await.result();
    // Then it asks elsewhere, and calls have sessions of their own again.
    let (_task, shared) = job(&world, &client).await;
    shared.ask(1, &form("What?"));
    shared.heard(&world).await;
    let waiting = talk.begin().await;
    let server = soon("the call has its turn", Asking::next(&world, Way::OnTheSession)).await;
    assert_ne!(server.session, shared.session);
    server.says("second");
    waiting.answer().await.result();
}

#[tokio::test]
async fn the_sessions_of_tasks_are_bounded_and_beyond_them_a_task_counts_as_a_call() {
    let hits = LimitHits::of("limits.task_sessions");
    let world = with_jobs()
        .top("limits: { sessions: 1, task_sessions: 2 }")
        // Long enough for a session that is given back.
        .top("timeouts: { queue: 1s }")
        .start()
        .await;
    let client = asked_with_tasks(&world);
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(job(&world, &client).await);
    }
    let refused = Talk::tool(&client).begin().await.answer().await;
    assert_eq!(refused.refusal(), (200, -31006));
    let words = refused.error()["message"].to_string();
    assert!(words.contains("limits.sessions") && words.contains("timeouts.queue"), "{words}");
    assert_eq!(world.server.messages("initialize"), 3, "no more than both");
    // Others are not concerned.
    let waiting = Talk::tool(&client.bearing("bob")).begin().await;
    Asking::next(&world, Way::OnTheSession).await.says("fast");
    waiting.answer().await.result();
    // One of its own tasks ends, and there is room.
    let (task, server) = jobs.remove(0);
    server.says("done");
    client.ended(&task).await;
    let waiting = Talk::tool(&client).begin().await;
    Asking::next(&world, Way::OnTheSession).await.says("fast");
    waiting.answer().await.result();
    hits.are(1).await;
}

#[tokio::test]
async fn the_sessions_that_tasks_leave_behind_are_closed_beyond_those_that_calls_may_have() {
    let world = with_jobs().top("limits: { sessions: 2 }").start().await;
    let client = asked_with_tasks(&world);
    let mut jobs = Vec::new();
    for _ in 0..6 {
        jobs.push(job(&world, &client).await);
    }
    for (task, server) in jobs {
        server.says("done");
        client.ended(&task).await;
    }
    let farewell = |seen: &Seen| seen.http == http::Method::DELETE;
    let closed = async {
        while world.server.count(farewell) < 4 {
            tokio::task::yield_now().await;
        }
    };
    soon("four are closed", closed).await;
    assert_eq!(world.server.count(farewell), 4);
    // Those that are left serve the next calls.
    let waiting = Talk::tool(&client).begin().await;
    Asking::next(&world, Way::OnTheSession).await.says("fast");
    waiting.answer().await.result();
    assert_eq!(world.server.messages("initialize"), 6);
}
