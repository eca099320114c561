//! Request ids, progress tokens, and other notifications of the server.

use super::task_client::{
    ProxyAndServer, RELATED, Tasker, Value, beyond_status, heard, id, json, question, related, request,
    setup, up_to_mark, world,
};
use crate::proxy::proxy_and_server::ALWAYS;
use std::collections::BTreeSet;

#[tokio::test]
async fn a_request_may_have_any_id_and_it_may_be_used_again() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut sent = BTreeSet::new();
    let mut tasks = BTreeSet::new();
    for own in [json!(0), json!("a string"), json!(0), json!(""), json!(-1), json!(9_007_199_254_740_993_u64)]
    {
        let params = json!({ "name": "slow", "arguments": { "n": 1 }, "task": { "ttl": 1 } });
        let answer = client.0.post(&request(&own, "tools/call", &params)).await.answer().await;
        assert_eq!(answer.json()["id"], own);
        let task = id(&answer);
        let call = world.server.call().await;
        assert!(call.id().is_u64(), "a number of ours");
        assert!(sent.insert(call.id().as_u64()) && tasks.insert(task.clone()), "never used twice");
        call.says("done");
        let fetch = request(&own, "tasks/result", &json!({ "taskId": task }));
        let answer = client.0.post(&fetch).await.answer().await;
        assert_eq!((answer.json()["id"].clone(), &*answer.text()), (own, "done"));
    }
}

#[tokio::test]
async fn the_same_id_may_be_in_flight_in_two_sessions_and_twice_in_one() {
    let world = world(ALWAYS).await;
    let (one, other) = (Tasker::hello(&world).await, Tasker::hello(&world).await);
    let mut made = Vec::new();
    for client in [&one, &other, &one] {
        made.push((client, client.makes(&world).await));
    }
    for (at, (client, (task, call))) in made.into_iter().enumerate() {
        call.says(&format!("{at}"));
        assert_eq!(client.result(&task).await.text(), format!("{at}"));
    }
}

/// The call as the server has it, for a client that sends these params.
async fn sent(world: &ProxyAndServer, client: &Tasker, params: Value) -> (String, super::task_client::Call) {
    let answer = client.ask("tools/call", params).await;
    (id(&answer), world.server.call().await)
}

#[tokio::test]
async fn a_call_is_sent_without_its_task_and_otherwise_as_it_is() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let body = r#"{ "id":"c" ,"jsonrpc":"2.0","method":"tools/call","params":{"name":"slow","task":{"ttl":60000},"arguments":{"n":1.10 ,"task":1},"_meta":{"progressToken":"p","k":1.0},"x":null}}"#;
    let client = Tasker(client.0.with("x-tenant", "t").with("authorization", "Bearer a"));
    let answer = client.0.post(body).await.answer().await;
    id(&answer);
    let call = world.server.call().await;
    let number = call.id();
    let expected = body.replace(r#""c""#, &number.to_string()).replace(r#""task":{"ttl":60000},"#, "");
    assert_eq!(call.seen.body, expected);
    assert_eq!(call.seen.header("x-tenant"), Some("t"));
    assert_eq!(call.seen.header("authorization"), Some("Bearer a"));
    assert_eq!(call.seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(call.seen.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(call.seen.header("content-length"), Some(&*expected.len().to_string()));
}

#[tokio::test]
async fn progress_under_the_clients_own_token_is_relayed_for_the_whole_life_of_the_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    for token in [json!("p"), json!(0), json!(7)] {
        let about = json!({ "progressToken": token });
        let (task, call) = sent(&world, &client, json!({ "name": "slow", "task": {}, "_meta": about })).await;
        assert_eq!(call.seen.json["params"]["_meta"], about);
        let number = call.id();
        let events = call.stream();
        for step in 1..4 {
            let params =
                json!({ "progressToken": token, "progress": step, "total": 3, "message": "step", "x": 1 });
            events.notify("notifications/progress", params.clone());
            let said = beyond_status(&mut listening).await;
            let mut expected = params;
            expected["_meta"] = json!({ RELATED: { "taskId": task } });
            assert_eq!((&said["method"], &said["params"]), (&json!("notifications/progress"), &expected));
        }
        client.until(&task, |shown| shown["statusMessage"] == "step (3/3)").await;
        events.result(&number, json!({ "content": [] }));
        assert_eq!(beyond_or_status(&mut listening).await, "completed");
    }
}

async fn beyond_or_status(stream: &mut super::task_client::Stream) -> String {
    heard(stream).await["params"]["status"].as_str().expect("a status").to_owned()
}

#[tokio::test]
async fn progress_without_a_token_is_shown_in_the_task_and_not_sent() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    for about in [None, Some(json!({ "k": 1 }))] {
        let mut params = json!({ "name": "slow", "task": {} });
        if let Some(about) = &about {
            params["_meta"] = about.clone();
        }
        let (task, call) = sent(&world, &client, params).await;
        let number = call.id();
        let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
        assert_eq!(token, number);
        let events = call.stream();
        for report in [json!({ "progress": 1 }), json!({ "progress": 2, "total": 4, "message": "halfway" })] {
            let mut params = report;
            params["progressToken"] = token.clone();
            events.notify("notifications/progress", params);
        }
        client.until(&task, |shown| shown["statusMessage"] == "halfway (2/4)").await;
        assert_eq!(up_to_mark(&world, "s1", &mut listening).await, [Value::Null; 0]);
        events.result(&number, json!({ "content": [] }));
        assert_eq!(beyond_or_status(&mut listening).await, "completed");
    }
}

#[tokio::test]
async fn other_notifications_of_the_server_are_relayed() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, _, events) = client.makes_stream(&world).await;
    // About the server, not about the call: not a byte is changed.
    for about_all in [
        r#"{ "jsonrpc":"2.0","method":"notifications/tools/list_changed" }"#,
        r#"{"method":"notifications/prompts/list_changed","jsonrpc":"2.0","params":{"n":1e400}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
    ] {
        events.raw(format!("id: 1\ndata: {about_all}\n\n"));
        let mut text = String::new();
        while !text.ends_with("\n\n") {
            text.push_str(&listening.piece().await.expect("it goes on").expect("it does not break"));
        }
        assert_eq!(text, format!("data: {about_all}\n\n"));
    }
    // About the call.
    for (method, params) in [
        ("notifications/message", json!({ "level": "info", "data": { "a": 1 }, "_meta": { "k": 1 } })),
        ("notifications/elicitation/complete", json!({ "elicitationId": "e" })),
        ("notifications/vendor", json!({})),
    ] {
        events.notify(method, params.clone());
        let said = heard(&mut listening).await;
        assert_eq!((&said["method"], related(&said)), (&json!(method), &json!(task)));
        let mut bare = said["params"].clone();
        bare["_meta"].as_object_mut().expect("there").remove(RELATED);
        if params.get("_meta").is_none() {
            bare.as_object_mut().expect("an object").remove("_meta");
        }
        assert_eq!(bare, params);
    }
    // A response without a request is not relayed.
    events.send(&json!({ "jsonrpc": "2.0", "id": 4711, "result": {} }));
    events.send(&question(0, "next?"));
    assert_eq!(heard(&mut listening).await["method"], "elicitation/create");
}

#[tokio::test]
async fn undeliverable_notifications_do_not_delay_the_task() {
    let world = setup().route(ALWAYS).start().await;
    let client = Tasker::hello(&world).await;
    let (task, id, events) = client.makes_stream(&world).await;
    for number in 0..1000 {
        events.notify("notifications/message", json!({ "data": number }));
    }
    events.result(&id, json!({ "content": [] }));
    client.becomes(&task, "completed").await;
}
