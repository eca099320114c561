//! `requestState`: binding, expiry, repeated use.

use super::asking_server_and_client::{
    Asking, ProxyAndServer, Questions, Talk, WAYS, Way, accept, asked, asked_with_tasks, form, refusal,
};
use crate::support::{modern_client::soon, paused_time::passes};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;

/// The threshold of some of these tests: nothing that is to happen before it takes as long.
const LATER: &str = "defer: { after: 10s }";
const AFTER: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_state_that_was_changed_is_refused_and_the_call_still_waits() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let state = &questions.state;
    let flipped = |at: usize| {
        let mut bytes = state.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).expect("ascii")
    };
    let last = state.len() - 1;
    for forged in [
        format!("{state}-TAMPERED"),
        format!("{state}="),
        format!("{state}\n"),
        format!(" {state}"),
        state[..last].to_owned(),
        flipped(0),
        flipped(60),
        flipped(last),
        String::new(),
        "e30".to_owned(),
    ] {
        let forged = Questions { state: forged, ..questions.clone() };
        let answer = talk.retry(&forged, json!({ "elicitation-1": accept("Eve") })).await.answer().await;
        let (code, message) = refusal(&answer);
        assert_eq!(code, -32602, "{forged:?}");
        assert!(message.contains("requestState") && !message.contains("expired"), "{message}");
    }
    for odd in [json!(null), json!(7), json!({ "state": state })] {
        let retry = talk.with("requestState", odd.clone()).begin().await.answer().await;
        assert_eq!(refusal(&retry).0, -32602, "{odd}");
    }
    assert!(!server.is_answered(&world, 0));
    assert_eq!(world.calls(), 1);
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn a_state_is_of_no_use_to_anybody_else_or_for_anything_else() {
    let world = ProxyAndServer::new().await;
    let alice = asked(&world).bearing("alice");
    let talk = Talk::tool(&alice);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let other_params = |params: Value| Talk::new(&alice, "tools/call", params);
    for (what, other) in [
        ("another principal", talk.by(&asked(&world).bearing("bob"))),
        ("nobody", talk.by(&asked(&world))),
        ("another tool", talk.with("name", json!("greet2"))),
        ("other arguments", talk.with("arguments", json!({ "loud": true, "times": 3 }))),
        ("fewer arguments", talk.with("arguments", json!({ "loud": true }))),
        ("no arguments", other_params(json!({ "name": "greet" }))),
        (
            "a prompt of that name",
            Talk::new(
                &alice,
                "prompts/get",
                json!({ "name": "greet", "arguments": { "loud": true, "times": 2 } }),
            ),
        ),
        ("a resource", Talk::new(&alice, "resources/read", json!({ "uri": "greet" }))),
        ("one more parameter", talk.with("x", json!(1))),
    ] {
        let answer = other.retry(&questions, json!({ "elicitation-1": accept("Eve") })).await.answer().await;
        let (code, message) = refusal(&answer);
        assert_eq!(code, -32602, "{what}");
        assert!(message.contains("another"), "{what}: {message}");
    }
    assert!(!server.is_answered(&world, 0));
    let sent = ["tools/call", "prompts/get", "resources/read"].map(|method| world.server.messages(method));
    assert_eq!(sent, [1, 0, 0], "nothing was called");
    let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn the_same_request_may_be_written_anew() {
    let world = ProxyAndServer::new().await;
    let client = asked(&world);
    let talk = Talk::tool(&client);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let body = format!(
        r#"{{ "method" : "tools/call", "params" : {{ "requestState" : "{}",
            "inputResponses" : {{ "elicitation-1" : {} }},
            "arguments" : {{ "times" : 2.0,  "l\u006fud" : true }},
            "_meta" : {{ "io.modelcontextprotocol/clientCapabilities" : {},
                "io.modelcontextprotocol/protocolVersion" : "2026-07-28", "x/y" : 1 }},
            "task" : {{}}, "name" : "gr\u0065et" }}, "id" : "again", "jsonrpc" : "2.0" }}"#,
        questions.state,
        accept("Ada"),
        super::asking_server_and_client::everything(),
    );
    let waiting = client.send_request(client.spelled("tools/call", Some("greet"), body)).await;
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    assert_eq!(waiting.answer().await.text(), "Hello");
}

#[tokio::test]
async fn a_state_of_another_proxy_is_of_no_use() {
    let (one, other) = (ProxyAndServer::new().await, ProxyAndServer::new().await);
    let (_server, questions) = Talk::tool(&asked(&one)).is_asked(&one, Way::OnTheCall, &form("Who?")).await;
    let talk = Talk::tool(&asked(&other));
    let answer = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
    assert_eq!(refusal(&answer).0, -32602);
    assert_eq!(other.calls(), 0, "it is no call of its own");
}

#[tokio::test]
async fn an_expired_state_is_distinguished_from_one_whose_call_has_ended() {
    let world = ProxyAndServer::with("questions: { park: 250ms }").await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    server.cancelled(&world).await;
    let mut said = Vec::new();
    soon("expiring", async {
        loop {
            let answer = talk.retry(&questions, json!({})).await.answer().await;
            let (code, message) = refusal(&answer);
            assert_eq!(code, -32602);
            if said.last() != Some(&message) {
                said.push(message.clone());
            }
            if message.contains("expired") {
                return;
            }
        }
    })
    .await;
    let [ended, _expired] = &said[..] else { panic!("{said:?}") };
    assert!(ended.contains("has ended"), "{said:?}");
}

#[tokio::test]
async fn a_state_sent_twice_feeds_the_server_once_and_answers_both() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let one = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        let other = talk.retry(&questions, json!({ "elicitation-1": accept("Eve") })).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        // Both wait for what comes next: the server asks again.
        server.ask(1, &form("Sure?"));
        let answers = [one.answer().await, other.answer().await];
        let [one, other] = answers.map(|answer| Questions::of(&answer));
        assert_eq!((one.key(), &one.requests), ("elicitation-2", &other.requests));
        // The oldest state of a call that lives is as good as the newest.
        let waiting = join_all([&questions, &one, &other].map(|state| {
            talk.retry(state, json!({ "elicitation-2": accept("sure"), "elicitation-1": accept("Eve") }))
        }))
        .await;
        assert_eq!(server.answered(&world, 1).await, accept("sure"));
        server.says("Hello Ada");
        for answer in join_all(waiting.into_iter().map(|waiting| waiting.answer())).await {
            assert_eq!(answer.text(), "Hello Ada");
        }
        for id in [0, 1] {
            let answers = world.server.count(|seen| seen.answers(&json!(id)));
            assert_eq!(answers, 1, "each question is answered once");
        }
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn one_of_two_waiting_retries_may_disconnect() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world)).with("_meta", json!({ "progressToken": "p" }));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let one = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    let other = talk.retry(&questions, json!({})).await;
    server.answered(&world, 0).await;
    let progress = |progress: u32| {
        server.notify("notifications/progress", json!({ "progressToken": server.id, "progress": progress }));
    };
    progress(1);
    let (mut one, mut other) = (one.stream().await, other.stream().await);
    one.notice("notifications/progress").await;
    other.notice("notifications/progress").await;
    one.leave();
    for count in 2..50 {
        progress(count);
        assert_eq!(other.notice("notifications/progress").await["progress"], count);
    }
    server.says("Hello");
    assert_eq!(other.next().await["result"]["content"][0]["text"], "Hello");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_state_whose_call_has_ended_reports_it_and_calls_nothing() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        server.says("Hello");
        waiting.answer().await;
        let again = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await.answer().await;
        let (code, message) = refusal(&again);
        assert_eq!(code, -32602);
        assert!(message.contains("has ended"), "{message}");
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn retries_that_arrive_as_the_call_ends_all_get_a_message() {
    const RETRIES: usize = 8;
    for _ in 0..10 {
        let world = ProxyAndServer::new().await;
        let client = asked(&world);
        let talk = Talk::tool(&client);
        let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
        // The server stops waiting; its result is kept for the retry.
        server.withdraw(0);
        server.says("Too late");
        let mut links = Vec::new();
        for _ in 0..RETRIES {
            links.push(client.kept().await);
        }
        let params = talk.retrying(&questions, json!({}));
        let answers = join_all(links.iter_mut().map(|link| link.ask("tools/call", params.clone()))).await;
        let mut got = 0;
        for answer in &answers {
            match answer.json()["error"]["code"].as_i64() {
                None => {
                    assert_eq!(answer.text(), "Too late");
                    got += 1;
                }
                Some(code) => assert_eq!(code, -32602, "{answer:?}"),
            }
        }
        assert!(got >= 1, "{answers:?}");
    }
}

#[tokio::test]
async fn a_retry_that_no_longer_declares_tasks_is_never_given_one() {
    let world = ProxyAndServer::with(LATER).await;
    let tasker = asked_with_tasks(&world);
    let talk = Talk::tool(&tasker);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let plain = talk.by(&asked(&world));
    let waiting = plain.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    // As long as it takes another call to become a task.
    let other = Talk::tool(&tasker).begin().await;
    let _held = Asking::next(&world, Way::OnTheCall).await;
    passes(AFTER).await;
    other.answer().await.task();
    server.says("waited for");
    assert_eq!(waiting.answer().await.text(), "waited for");
}

#[tokio::test]
async fn a_retry_that_declares_tasks_only_now_may_be_given_one() {
    let world = ProxyAndServer::with(LATER).await;
    let talk = Talk::tool(&asked(&world));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let tasker = asked_with_tasks(&world);
    let waiting = talk.by(&tasker).retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    passes(AFTER).await;
    let task = waiting.answer().await.task();
    server.says("done");
    assert_eq!(tasker.ended(&task).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn of_two_retries_only_the_one_that_declares_tasks_is_given_the_task() {
    let world = ProxyAndServer::with(LATER).await;
    let tasker = asked_with_tasks(&world);
    let talk = Talk::tool(&tasker);
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let one = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    let other = talk.by(&asked(&world)).retry(&questions, json!({})).await;
    // It has arrived when one that was sent after it is answered.
    asked(&world).ask("server/discover", json!({})).await.result();
    passes(AFTER).await;
    let task = one.answer().await.task();
    // Not that its call has ended: it would make it anew.
    let other = other.answer().await;
    assert_eq!(other.refusal(), (400, -32021), "{other:?}");
    server.says("done");
    assert_eq!(tasker.ended(&task).await["status"], "completed");
}
