//! Input requests: the client that gets them, responses, withdrawal.

use super::proxy_and_stdio_server::{Child, ProxyAndStdioServer, ask, heard, hello, settle, tell};
use crate::{legacy::proxy_and_client::LegacyClient, support::modern_client::Following};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

const ALL: [&str; 3] = ["elicitation/create", "sampling/createMessage", "roots/list"];

fn everything() -> Value {
    json!({ "elicitation": {}, "sampling": {}, "roots": { "listChanged": true } })
}

async fn call(client: &LegacyClient, child: &mut Child, id: u64) -> (Following, Value) {
    let waiting = ask(client, &json!(id), "tools/call", json!({ "name": "t" })).await;
    (waiting, child.told("tools/call").await)
}

#[tokio::test(start_paused = true)]
async fn an_input_request_is_sent_on_the_calls_stream_and_answered_under_its_own_id() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let (waiting, at_child) = call(&client, &mut child, 1).await;
    for (at, method) in ALL.iter().enumerate() {
        child.asks("the server's own", method).await;
        let put = heard(&waiting).await.pop().expect("it is put");
        assert_eq!((&put["method"], waiting.messages().len()), (&json!(method), at + 1));
        assert_ne!(put["id"], "the server's own");
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "n": at } })).await;
        let answer = child.next().await.expect("an answer");
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "the server's own", "result": { "n": at } }));
        // Another with the same id is nothing.
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": {} })).await;
    }
    child.answers(&at_child, json!({ "content": [] })).await;
    assert_eq!(heard(&waiting).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn two_clients_in_one_process_each_get_the_input_requests_of_their_call() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (first, mut child) = world.begin(everything()).await;
    let second = hello(&world.client(), everything()).await;
    // They share a process until it sends an input request, which could not be attributed.
    let (one, of_one) = call(&first, &mut child, 0).await;
    let (other, of_other) = call(&second, &mut child, 0).await;
    child.asks("whose", "elicitation/create").await;
    assert_eq!(child.next().await.expect("an answer")["error"]["code"], -32603);
    for (call, at_child) in [(&one, &of_one), (&other, &of_other)] {
        child.answers(at_child, json!({ "content": [] })).await;
        assert_eq!(heard(call).await.len(), 1);
    }
    let (one, of_one) = call(&first, &mut child, 1).await;
    let other = ask(&second, &json!(1), "tools/call", json!({ "name": "t" })).await;
    // Where input requests could not be attributed, a call has a process of its own.
    let mut beside = world.child().await;
    let of_other = beside.told("tools/call").await;
    child.asks("q", "elicitation/create").await;
    beside.asks("q", "elicitation/create").await;
    for (client, call, child, of_call, words) in
        [(&first, &one, &mut child, &of_one, "one"), (&second, &other, &mut beside, &of_other, "other")]
    {
        let put = heard(call).await.remove(0);
        tell(client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": words } })).await;
        let answer = json!({ "jsonrpc": "2.0", "id": "q", "result": { "action": words } });
        assert_eq!(child.next().await, Some(answer));
        child.answers(of_call, json!({ "content": [words] })).await;
        assert_eq!(heard(call).await[1]["result"]["content"], json!([words]));
    }
}

/// As on a direct connection: the calls of one session run at the same time, and input requests are for the session.
#[tokio::test(start_paused = true)]
async fn calls_of_one_session_never_wait_for_each_other_and_their_input_requests_reach_it() {
    for listens in [true, false] {
        let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
        let (client, mut child) = world.begin(everything()).await;
        let listening = match listens {
            true => Some(client.listen().await.follow()),
            false => None,
        };
        // The server has sent an input request.
        let (first, of_first) = call(&client, &mut child, 1).await;
        child.asks("first", "elicitation/create").await;
        let put = heard(&first).await.remove(0);
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "accept" } })).await;
        child.next().await.expect("an answer");
        let mut calls = Vec::new();
        for id in 2..7 {
            calls.push(call(&client, &mut child, id).await);
        }
        assert_eq!(world.started(), 0, "all are in one process");
        // It names no call: on the session's stream, or on that of the newest call of a client without one.
        child.asks("whose", "roots/list").await;
        settle().await;
        let put = match &listening {
            Some(listening) => listening.messages().pop().expect("it is put"),
            None => heard(&calls[4].0).await.pop().expect("it is put"),
        };
        assert_eq!(put["method"], "roots/list");
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "roots": [] } })).await;
        let answer = child.next().await.expect("an answer");
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "whose", "result": { "roots": [] } }));
        // So is a message of the log.
        child.notifies("notifications/message", json!({ "level": "info", "data": "x" })).await;
        settle().await;
        if let Some(listening) = &listening {
            assert_eq!(listening.messages().pop().expect("it is heard")["params"]["data"], "x");
        }
        for (waiting, at_child) in calls.iter().rev() {
            child.answers(at_child, json!({ "content": [] })).await;
            assert!(heard(waiting).await.pop().expect("an answer")["result"].is_object());
        }
        child.answers(&of_first, json!({ "content": [] })).await;
        assert_eq!(heard(&first).await.len(), 2);
    }
}

/// The processes of two sessions whose server has sent input requests: each keeps its own.
#[tokio::test(start_paused = true)]
async fn each_session_keeps_its_process() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (first, mut child) = world.begin(everything()).await;
    let second = hello(&world.client(), everything()).await;
    let (asked, of_asked) = call(&first, &mut child, 1).await;
    child.asks("q", "elicitation/create").await;
    let put = heard(&asked).await.remove(0);
    let other = ask(&second, &json!(1), "tools/call", json!({ "name": "t" })).await;
    let mut beside = world.child().await;
    let of_other = beside.told("tools/call").await;
    tell(&first, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "accept" } })).await;
    assert_eq!(child.next().await.expect("an answer")["id"], "q");
    child.answers(&of_asked, json!({ "content": [] })).await;
    beside.answers(&of_other, json!({ "content": [] })).await;
    settle().await;
    assert_eq!(heard(&other).await.len(), 1);
    // In any order, and although both are free.
    for id in [2, 3] {
        for (client, child) in [(&second, &mut beside), (&first, &mut child)] {
            let (waiting, at_child) = call(client, child, id).await;
            child.answers(&at_child, json!({ "content": [] })).await;
            assert_eq!(heard(&waiting).await.len(), 1);
        }
    }
    assert_eq!(world.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_input_request_is_cancelled_at_the_client() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let (waiting, _) = call(&client, &mut child, 1).await;
    child.asks("q", "elicitation/create").await;
    let put = heard(&waiting).await.remove(0);
    child.notifies("notifications/cancelled", json!({ "requestId": "q" })).await;
    let taken_back = heard(&waiting).await.remove(1);
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], put["id"]);
}

#[tokio::test(start_paused = true)]
async fn of_an_id_that_a_server_uses_again_the_input_request_that_is_open_is_cancelled() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let (waiting, _) = call(&client, &mut child, 1).await;
    child.asks(1, "elicitation/create").await;
    let first = heard(&waiting).await.remove(0);
    tell(&client, json!({ "jsonrpc": "2.0", "id": first["id"], "result": { "action": "accept" } })).await;
    child.next().await.expect("an answer");
    child.asks(1, "elicitation/create").await;
    let second = heard(&waiting).await.remove(1);
    assert_ne!(first["id"], second["id"]);
    child.notifies("notifications/cancelled", json!({ "requestId": 1 })).await;
    let taken_back = heard(&waiting).await.remove(2);
    assert_eq!(taken_back["params"]["requestId"], second["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_input_request_outside_any_call_is_cancelled_at_the_client_and_frees_its_slot() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let listening = client.listen().await.follow();
    // More than may be open at a time.
    for n in 0..100 {
        child.asks(n, "roots/list").await;
        let put = heard(&listening).await.pop().expect("it is put");
        assert_eq!(put["method"], "roots/list", "{n}");
        child.notifies("notifications/cancelled", json!({ "requestId": n })).await;
        let taken_back = heard(&listening).await.pop().expect("it is told");
        assert_eq!(taken_back["method"], "notifications/cancelled");
        assert_eq!(taken_back["params"]["requestId"], put["id"]);
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "roots": [] } })).await;
    }
    child.asks("last", "roots/list").await;
    let put = heard(&listening).await.pop().expect("it is put");
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "roots": [] } })).await;
    assert_eq!(child.next().await.expect("one answer")["id"], "last");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_of_the_only_client_keeps_its_process_and_input_requests() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let listening = client.listen().await.follow();
    for id in 1..4 {
        let (waiting, at_child) = call(&client, &mut child, id).await;
        tell(
            &client,
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }),
        )
        .await;
        // It is not answered, as it should be.
        assert_eq!(child.told("notifications/cancelled").await["params"]["requestId"], at_child["id"]);
        assert_eq!(heard(&waiting).await.len(), 0);
        child.notifies("notifications/message", json!({ "level": "info", "data": id })).await;
        let said = heard(&listening).await.pop().expect("it is heard");
        assert_eq!((&said["method"], &said["params"]["data"]), (&json!("notifications/message"), &json!(id)));
        let (waiting, at_child) = call(&client, &mut child, 10 + id).await;
        child.asks("q", "elicitation/create").await;
        let put = heard(&waiting).await.pop().expect("it is put");
        assert_eq!(put["method"], "elicitation/create", "{put}");
        tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "cancel" } })).await;
        assert_eq!(child.next().await.expect("an answer")["id"], "q");
        child.answers(&at_child, json!({ "content": [] })).await;
        assert_eq!(heard(&waiting).await.len(), 2);
    }
    assert_eq!(world.started(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_input_request_outside_any_call_that_is_too_large_to_be_kept_is_refused() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let listening = client.listen().await.follow();
    let large = json!({ "messages": [], "maxTokens": 1, "systemPrompt": "x".repeat(1 << 20) });
    let asks = |id, params| json!({ "jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": params });
    child.says(asks("large", large)).await;
    let refused = child.next().await.expect("an answer");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("large"), &json!(-32603)));
    child.says(asks("small", json!({ "messages": [], "maxTokens": 1 }))).await;
    assert_eq!(heard(&listening).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn undelivered_responses_to_endless_input_requests_are_bounded() {
    const ASKED: u64 = 6000;
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (_client, mut child) = world.begin(everything()).await;
    for n in 0..ASKED {
        child.asks(n, "roots/list").await;
    }
    settle().await;
    let mut answers = 0;
    while timeout(Duration::from_secs(60), child.later()).await.is_ok_and(|answer| answer.is_some()) {
        answers += 1;
    }
    // Those that are open have none yet, and some are in the pipe.
    assert!((1000..2500).contains(&answers), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn an_input_request_outside_any_call_of_a_server_that_dies_is_cancelled() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let listening = client.listen().await.follow();
    child.asks("q", "elicitation/create").await;
    let put = heard(&listening).await.remove(0);
    drop(child);
    settle().await;
    let taken_back = heard(&listening).await.remove(1);
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], put["id"]);
}

#[tokio::test(start_paused = true)]
async fn an_input_request_outside_any_call_is_sent_to_the_only_client_or_refused() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let client = world.client();
    let begin = async {
        let mut child = world.start().await;
        child.greets().await;
        // As some do as soon as they may.
        child.asks("at once", "roots/list").await;
        child
    };
    let (client, mut child) = tokio::join!(hello(&client, everything()), begin);
    let listening = client.listen().await.follow();
    let put = heard(&listening).await.remove(0);
    assert_eq!(put["method"], "roots/list");
    tell(&client, json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "roots": [] } })).await;
    assert_eq!(child.next().await.expect("an answer")["result"], json!({ "roots": [] }));
    tell(&client, json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" })).await;
    child.told("notifications/roots/list_changed").await;

    let _second = hello(&world.client(), everything()).await;
    child.asks("later", "roots/list").await;
    let refused = child.next().await.expect("an answer");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("later"), &json!(-32603)));
    settle().await;
    assert_eq!(listening.messages().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn input_requests_of_a_disconnected_clients_calls_reach_no_other_client() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (first, mut child) = world.begin(everything()).await;
    let listening = first.listen().await.follow();
    let second = hello(&world.client(), everything()).await;
    let waiting = ask(&second, &json!(1), "tools/call", json!({ "name": "t" })).await;
    let at_child = child.told("tools/call").await;
    child.answers(&at_child, json!({ "content": [] })).await;
    assert_eq!(heard(&waiting).await.len(), 1);
    assert_eq!(second.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    settle().await;
    // A job of the second client's, perhaps.
    child.asks("later", "elicitation/create").await;
    let refused = child.next().await.expect("an answer");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("later"), &json!(-32603)));
    settle().await;
    assert_eq!(listening.messages().len(), 0);
    // Another child knows the first client alone.
    drop(child);
    settle().await;
    let waiting = ask(&first, &json!(2), "tools/call", json!({ "name": "t" })).await;
    let mut child = world.child().await;
    let at_child = child.told("tools/call").await;
    child.answers(&at_child, json!({ "content": [] })).await;
    assert_eq!(heard(&waiting).await.len(), 1);
    child.asks("its own", "elicitation/create").await;
    let put = heard(&listening).await.pop().expect("it is put");
    assert_eq!(put["method"], "elicitation/create");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_an_event_stream_gets_no_input_requests() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(everything()).await;
    let deaf = client.with("accept", "application/json");
    let waiting = ask(&deaf, &json!(1), "tools/call", json!({ "name": "t" })).await;
    let at_child = child.told("tools/call").await;
    child.notifies("notifications/message", json!({ "level": "info", "data": 1 })).await;
    child.asks("q", "elicitation/create").await;
    assert_eq!(child.next().await.expect("an answer")["error"]["code"], -32603);
    child.answers(&at_child, json!({ "content": [] })).await;
    assert_eq!(heard(&waiting).await.len(), 1);

    let (waiting, at_child) = call(&client, &mut child, 2).await;
    settle().await;
    waiting.leave();
    settle().await;
    child.asks("q", "elicitation/create").await;
    assert_eq!(child.next().await.expect("an answer")["error"]["code"], -32603);
    child.answers(&at_child, json!({ "content": [] })).await;
}

#[tokio::test(start_paused = true)]
async fn undeclared_input_requests_are_not_sent() {
    let mut world = ProxyAndStdioServer::new("defer: { after: 1h }");
    let (client, mut child) = world.begin(json!({ "roots": {} })).await;
    let listening = client.listen().await.follow();
    let (waiting, _) = call(&client, &mut child, 1).await;
    child.asks("in a call", "elicitation/create").await;
    let refused = child.next().await.expect("an answer");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("in a call"), &json!(-32601)));
    child.asks("in a call", "roots/list").await;
    assert_eq!(heard(&waiting).await.len(), 1);
    assert!(listening.messages().is_empty());
}
