//! Input requests on the call itself: an `input_required` result and a retry.

use super::asking_server_and_client::{
    Asking, ProxyAndServer, Questions, Setup, Talk, WAYS, Way, accept, asked, asked_with_tasks, fitting,
    form, refusal, roots, sampling,
};
use crate::support::{modern_client::Event, paused_time::passes};
use serde_json::{Value, json};
use std::time::Duration;

/// Every question as a legacy server may put it, and as a client of 2026-07-28 is to see it.
fn kinds() -> Vec<(&'static str, Value, Value)> {
    let mut odd = form("Who?");
    odd["params"]["_meta"] =
        json!({ "progressToken": 3, "io.modelcontextprotocol/related-task": { "taskId": "t" } });
    odd["params"]["task"] = json!({ "ttl": 1 });
    odd["params"]["x-unknown"] = json!([1.50, null]);
    let mut plain = form("Who?");
    plain["params"]["x-unknown"] = json!([1.50, null]);
    let url = |id: Option<&str>| {
        let mut params = json!({ "mode": "url", "message": "Sign in", "url": "https://example.com/in?a=1" });
        if let Some(id) = id {
            params["elicitationId"] = json!(id);
        }
        json!({ "method": "elicitation/create", "params": params })
    };
    vec![
        ("elicitation-1", form("Who?"), form("Who?")),
        ("elicitation-1", odd, plain),
        ("elicitation-1", url(Some("e-1")), url(None)),
        ("sampling-1", sampling(), sampling()),
        ("roots-1", roots(), roots()),
    ]
}

#[tokio::test]
async fn an_input_request_becomes_a_result_and_its_answer_resumes_the_very_same_call() {
    for way in WAYS {
        for (key, question, shown) in kinds() {
            let world = ProxyAndServer::new().await;
            let talk = Talk::tool(&asked(&world));
            let (server, questions) = talk.is_asked(&world, way, &question).await;
            assert_eq!(Value::Object(questions.requests.clone()), json!({ key: shown }), "{way:?}");
            assert!(!server.is_answered(&world, 0), "nobody has answered yet");

            let answer = fitting(&shown);
            let waiting = talk.retry(&questions, json!({ key: answer })).await;
            assert_eq!(server.answered(&world, 0).await, answer);
            server.says("Hello Ada");

            let answer = waiting.answer().await;
            assert_eq!((answer.status.as_u16(), answer.text()), (200, "Hello Ada".to_owned()));
            assert_eq!(answer.result()["resultType"], "complete");
            assert_eq!(world.calls(), 1, "the call is never made again");
            assert_eq!(world.server.messages("notifications/cancelled"), 0);
        }
    }
}

#[tokio::test]
async fn prompts_and_resources_can_ask_too_and_never_become_tasks() {
    for way in WAYS {
        for (method, params) in
            [("prompts/get", json!({ "name": "review" })), ("resources/read", json!({ "uri": "file:///a" }))]
        {
            let world = ProxyAndServer::with("defer: { mode: always }").await;
            let talk = Talk::new(&asked_with_tasks(&world), method, params);
            let (server, questions) = talk.is_asked(&world, way, &form("Which?")).await;
            assert_eq!(questions.key(), "elicitation-1");
            let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
            assert_eq!(server.answered(&world, 0).await, accept("Ada"));
            server.result(json!({ "messages": [], "contents": [{ "uri": "file:///a", "text": "x" }] }));
            assert_eq!(waiting.answer().await.result()["contents"][0]["text"], "x", "{method}");
            assert_eq!(world.server.messages(method), 1);
        }
    }
}

#[tokio::test]
async fn each_request_and_each_retry_is_answered_under_its_own_id() {
    let world = ProxyAndServer::new().await;
    let client = asked(&world);
    let params = json!({ "name": "greet" });
    let waiting = client.send_request(client.request_as(&json!("first"), "tools/call", params.clone())).await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    let answer = waiting.answer().await;
    assert_eq!(answer.json()["id"], "first");
    let talk = Talk::new(&client, "tools/call", params);
    let params = talk.retrying(&Questions::of(&answer), json!({ "elicitation-1": accept("Ada") }));
    let waiting = client.send_request(client.request_as(&json!(4_711), "tools/call", params)).await;
    server.answered(&world, 0).await;
    server.says("Hello");
    assert_eq!(waiting.answer().await.json()["id"], 4_711);
}

#[tokio::test]
async fn what_belongs_to_the_retry_never_reaches_the_server() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world)).with("inputResponses", json!({ "nobody": {} }));
    let (server, _) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let sent = world.server.message("tools/call").await;
    for (member, _) in sent.json["params"].as_object().expect("an object") {
        assert!(["name", "arguments", "_meta"].contains(&&**member), "{member}");
    }
    assert_eq!(server.arguments, json!({ "loud": true, "times": 2 }));
}

#[tokio::test]
async fn parallel_input_requests_are_gathered_in_one_result() {
    for way in WAYS {
        let world = ProxyAndServer::with("questions: { settle: 5s }").await;
        let talk = Talk::tool(&asked(&world)).with("_meta", json!({ "progressToken": "p" }));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        // Its arrival tells that the question before it has arrived, too.
        server.notify("notifications/progress", json!({ "progressToken": server.id, "progress": 1 }));
        let mut stream = waiting.stream().await;
        stream.notice("notifications/progress").await;
        // The others take their time.
        passes(Duration::from_secs(4)).await;
        world.client().ask("server/discover", json!({})).await;
        server.ask(1, &sampling());
        server.ask(2, &roots());
        server.ask(3, &form("And where?"));
        server.heard(&world).await;
        passes(Duration::from_secs(1)).await;

        let questions = Questions::of_result(&stream.next().await["result"]);
        assert_eq!(
            Value::Object(questions.requests.clone()),
            json!({
                "elicitation-1": form("Who?"), "sampling-1": sampling(),
                "roots-1": roots(), "elicitation-2": form("And where?"),
            })
        );
        let answers = questions.requests.iter().map(|(key, request)| (key.clone(), fitting(request)));
        let waiting = talk.retry(&questions, Value::Object(answers.collect())).await;
        for id in 0..4 {
            server.answered(&world, id).await;
        }
        server.says("Hello");
        assert_eq!(waiting.answer().await.json()["result"]["content"][0]["text"], "Hello");
    }
}

#[tokio::test]
async fn a_client_that_disconnects_after_the_input_request_does_not_cancel_the_call() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        let answer = waiting.answer().await;
        // Its connection is closed; a hundred others come and go.
        let questions = Questions::of(&answer);
        for _ in 0..100 {
            world.client().ask("server/discover", json!({})).await;
        }
        assert_eq!(world.server.messages("notifications/cancelled"), 0);
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        server.says("Hello");
        assert_eq!(waiting.answer().await.text(), "Hello");
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_input_request_cancels_the_call() {
    for way in WAYS {
        let world = ProxyAndServer::with("questions: { settle: 1h }").await;
        let talk = Talk::tool(&asked(&world)).with("_meta", json!({ "progressToken": "p" }));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        server.ask(0, &form("Who?"));
        server.notify("notifications/progress", json!({ "progressToken": server.id, "progress": 1 }));
        let mut stream = waiting.stream().await;
        stream.notice("notifications/progress").await;
        stream.leave();
        server.cancelled(&world).await;
        server.left().await;
        assert_eq!(world.server.messages("notifications/cancelled"), 1);
    }
}

#[tokio::test]
async fn a_client_that_disconnects_after_its_retry_cancels_the_call() {
    for way in WAYS {
        let world = ProxyAndServer::new().await;
        let talk = Talk::tool(&asked(&world));
        let (server, questions) = talk.is_asked(&world, way, &form("Who?")).await;
        let waiting = talk.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
        server.answered(&world, 0).await;
        waiting.leave();
        server.cancelled(&world).await;
        let gone = talk.retry(&questions, json!({})).await.answer().await;
        assert_eq!(refusal(&gone).0, -32602);
        assert_eq!(world.server.messages("notifications/cancelled"), 1);
    }
}

#[tokio::test]
async fn progress_after_the_retry_has_the_token_of_the_retry() {
    let world = ProxyAndServer::new().await;
    let talk = Talk::tool(&asked(&world)).with("_meta", json!({ "progressToken": "one" }));
    let (server, questions) = talk.is_asked(&world, Way::OnTheCall, &form("Who?")).await;
    let again = talk.with("_meta", json!({ "progressToken": "two" }));
    let waiting = again.retry(&questions, json!({ "elicitation-1": accept("Ada") })).await;
    server.answered(&world, 0).await;
    server.notify("notifications/progress", json!({ "progressToken": server.id, "progress": 1 }));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.notice("notifications/progress").await["progressToken"], "two");
    server.says("Hello");
    assert_eq!(stream.next().await["result"]["content"][0]["text"], "Hello");
}

#[tokio::test]
async fn no_request_of_the_server_leaks_into_a_clients_stream() {
    for way in WAYS {
        let world = Setup::new().top("timeouts: { keep_alive: 20ms }").start().await;
        let talk = Talk::tool(&asked(&world));
        let waiting = talk.begin().await;
        let server = Asking::next(&world, way).await;
        // The stream has begun; a status is no longer possible.
        let mut stream = waiting.stream().await;
        server.ask(0, &form("Who?"));
        let message = stream.next().await;
        assert_eq!((&message["id"], &message["method"]), (&json!(1), &Value::Null));
        assert_eq!(Questions::of_result(&message["result"]).key(), "elicitation-1");
        assert_eq!(stream.event().await, None, "the question ends the answer");
    }
}

#[tokio::test]
async fn in_mode_never_a_late_input_request_belongs_to_the_call() {
    let setup = Setup::new().route("defer: { mode: never, after: 20ms }");
    let world = setup.top("timeouts: { keep_alive: 100ms }").start().await;
    let mut stream = Talk::tool(&asked_with_tasks(&world)).begin().await.stream().await;
    let server = Asking::next(&world, Way::OnTheCall).await;
    assert_eq!(stream.event().await, Some(Event::Comment), "far beyond the threshold");
    server.ask(0, &form("Who?"));
    let answer = loop {
        if let Some(Event::Message(message)) = stream.event().await {
            break message;
        }
    };
    assert_eq!(Questions::of_result(&answer["result"]).key(), "elicitation-1");
}
