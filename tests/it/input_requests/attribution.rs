//! The call that an input request belongs to. One that cannot be attributed is refused and reaches no client.

use super::asking_server_and_client::{
    ALWAYS, Asking, ProxyAndServer, Questions, Talk, Way, accept, asked, asked_with_tasks, form, update,
};
use crate::support::legacy_server::Events;
use serde_json::{Value, json};

/// A server that is known to ask on its calls' own streams, so that calls share a session.
async fn sharing(world: &ProxyAndServer, talk: &Talk) -> String {
    let (server, questions) = talk.is_asked(world, Way::OnTheCall, &form("First?")).await;
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(world, 0).await;
    let session = server.session.clone();
    server.says("Hello");
    waiting.answer().await;
    session
}

fn send(events: &Events, id: u32, question: &Value) {
    let mut message = question.clone();
    message["jsonrpc"] = json!("2.0");
    message["id"] = json!(id);
    events.send(&message);
}

#[tokio::test]
async fn an_input_request_of_a_session_with_several_calls_in_flight_is_refused_and_not_guessed() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let session = sharing(&world, &talk).await;
    let (one, other) = (talk.begin().await, talk.begin().await);
    let (a, b) = (Asking::next(&world, Way::OnTheCall).await, Asking::next(&world, Way::OnTheCall).await);
    assert_eq!((&a.session, &b.session), (&session, &session), "they share it");
    send(&world.server.listener(&session).await, 5, &form("Whose?"));
    let refused = a.answered(&world, 5).await;
    assert_eq!(refused["code"], -32603, "{refused}");
    a.says("one");
    b.says("other");
    assert_eq!(one.answer().await.messages().len(), 1);
    assert_eq!(other.answer().await.messages().len(), 1);
}

#[tokio::test]
async fn calls_that_cannot_be_asked_are_no_candidates_for_an_input_request_on_a_shared_session() {
    let world = ProxyAndServer::new().await;
    let client = asked(&world);
    let talk = Talk::tool(&client);
    let session = sharing(&world, &talk).await;
    let waiting = talk.begin().await;
    let listing =
        client.send("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "p" } })).await;
    let mut calls = [world.server.call().await, world.server.call().await];
    calls.sort_by_key(|call| call.method() == "completion/complete");
    let [call, complete] = calls;
    assert_eq!((call.session(), complete.session()), (&*session, &*session));
    let server = Asking::of(&world, call, Way::OnTheSession).await;
    server.ask(5, &form("Who?"));
    assert_eq!(Questions::of(&waiting.answer().await).key(), "elicitation-1");
    complete.result(json!({ "completion": { "values": [] } }));
    listing.answer().await.result();
}

#[tokio::test]
async fn a_server_that_is_seen_to_ask_on_its_session_gets_a_session_for_each_call_from_then_on() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let session = sharing(&world, &talk).await;
    let (one, other) = (talk.begin().await, talk.begin().await);
    let (a, b) = (Asking::next(&world, Way::OnTheCall).await, Asking::next(&world, Way::OnTheCall).await);
    send(&world.server.listener(&session).await, 5, &form("Whose?"));
    a.answered(&world, 5).await;
    a.says("one");
    b.says("other");
    one.answer().await;
    other.answer().await;
    // Attribution is possible from now on.
    let (one, other) = (talk.begin().await, talk.begin().await);
    let (a, b) =
        (Asking::next(&world, Way::OnTheSession).await, Asking::next(&world, Way::OnTheSession).await);
    assert_ne!(a.session, b.session);
    a.ask(0, &form("A?"));
    b.ask(0, &form("B?"));
    let mut messages = Vec::new();
    for waiting in [one, other] {
        let questions = Questions::of(&waiting.answer().await);
        messages.push(questions.requests[questions.key()]["params"]["message"].clone());
    }
    messages.sort_by_key(ToString::to_string);
    assert_eq!(messages, [json!("A?"), json!("B?")]);
}

#[tokio::test]
async fn an_input_request_when_no_call_is_in_flight_is_refused() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let session = sharing(&world, &talk).await;
    let own = world.server.listener(&session).await;
    send(&own, 5, &form("Anybody?"));
    let refused = world.server.seen(|seen| seen.answers(&json!(5))).await;
    assert_eq!(refused.json["error"]["code"], -32603);
}

#[tokio::test]
async fn a_session_is_never_shared_between_principals_or_between_declarations() {
    for learned in [false, true] {
        let world = ProxyAndServer::with(ALWAYS).await;
        let alice = asked_with_tasks(&world).bearing("alice");
        if learned {
            let waiting = Talk::tool(&alice).begin().await;
            let server = Asking::next(&world, Way::OnTheCall).await;
            let task = waiting.answer().await.task();
            server.ask(0, &form("First?"));
            alice.until(&task, |task| task["status"] == "input_required").await;
            update(&alice, &task, json!({ "elicitation-1": accept("Ada") })).await;
            server.answered(&world, 0).await;
            server.says("known");
        }
        let mut held = Vec::new();
        let mut sessions = Vec::new();
        let less = super::asking_server_and_client::with_tasks(json!({ "elicitation": {} }));
        for client in [
            alice.clone(),
            asked_with_tasks(&world).bearing("bob"),
            asked_with_tasks(&world),
            alice.declaring(less),
        ] {
            Talk::tool(&client).begin().await.answer().await.task();
            let server = Asking::next(&world, Way::OnTheCall).await;
            sessions.push(server.session.clone());
            held.push(server);
        }
        sessions.sort_unstable();
        sessions.dedup();
        assert_eq!(sessions.len(), 4, "{learned}");
    }
}

#[tokio::test]
async fn two_input_requests_with_one_id_in_two_sessions_are_answered_each_in_its_own() {
    let world = ProxyAndServer::new().await;
    let alice = Talk::tool(&asked(&world).bearing("alice"));
    let bob = Talk::tool(&asked(&world).bearing("bob"));
    let (a, for_alice) = alice.is_asked(&world, Way::OnTheSession, &form("Alice?")).await;
    let (b, for_bob) = bob.is_asked(&world, Way::OnTheSession, &form("Bob?")).await;
    let waiting_bob = bob.retry(&for_bob, json!({ "elicitation-1": accept("Bob") })).await;
    assert_eq!(b.answered(&world, 0).await, accept("Bob"));
    assert!(!a.is_answered(&world, 0));
    let waiting_alice = alice.retry(&for_alice, json!({ "elicitation-1": accept("Alice") })).await;
    assert_eq!(a.answered(&world, 0).await, accept("Alice"));
    a.says("Hello Alice");
    b.says("Hello Bob");
    assert_eq!(waiting_alice.answer().await.text(), "Hello Alice");
    assert_eq!(waiting_bob.answer().await.text(), "Hello Bob");
}

#[tokio::test]
async fn an_input_request_on_a_get_stream_that_broke_is_answered_in_its_session() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheSession, &form("Who?")).await;
    world.server.hang_up(&server.session);
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}
