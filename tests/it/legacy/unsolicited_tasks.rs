//! Calls that become tasks although the client did not request one (SEP-2229).

use super::proxy_and_client::LegacyClient;
use crate::proxy::proxy_and_server::{ProxyAndServer, Setup};
use crate::support::{
    faulty_store::{FaultyStore, Op},
    modern_client::{Stream, soon},
    paused_time::passes,
};
use serde_json::{Value, json};
use std::time::Duration;

const NOW: &str = "defer: { after: 0s }";
/// Nothing that is to happen before it takes as long.
const SOON: &str = "defer: { after: 10s }";
const AFTER: Duration = Duration::from_secs(10);
const LATE: &str = "defer: { after: 1h }";
const MARKED: &str = "tasks: { unsolicited: [{ header: X-Takes-Tasks, value: yes }] }";

async fn world(after: &'static str, whom: &'static str) -> ProxyAndServer {
    Setup::new().route(after).route(whom).start().await
}

/// A client in a session, who is one of those that the operator means.
async fn taker(world: &ProxyAndServer) -> LegacyClient {
    LegacyClient::new(world.addr()).with("x-takes-tasks", "yes").hello().await
}

/// `tasks/…` of a task.
async fn of_task(client: &LegacyClient, method: &str, task: &str) -> Value {
    let ask = json!({ "jsonrpc": "2.0", "id": 90, "method": method, "params": { "taskId": task } });
    client.post(&ask.to_string()).await.answer().await.json()
}

const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A question of the server.
fn asks(id: u64) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": { "message": "?" } })
}

async fn becomes(client: &LegacyClient, task: &str, status: &str) {
    let wished = async {
        while of_task(client, "tasks/get", task).await["result"]["status"] != status {
            tokio::task::yield_now().await;
        }
    };
    soon("the task becomes what is wished for", wished).await;
}

/// The next message that is no notification of a status.
async fn beyond_status(stream: &mut Stream) -> Value {
    loop {
        let message = stream.next().await;
        if message["method"] != "notifications/tasks/status" {
            return message;
        }
    }
}

#[tokio::test]
async fn a_quick_call_is_answered_without_a_task_also_if_it_requests_one() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let plain = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t"}}"#;
    let wished = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","task":{"ttl":1}}}"#;
    for message in [plain, wished] {
        let waiting = client.post(message).await;
        let call = world.server.call().await;
        assert_eq!(call.session(), "s1", "in the client's own session");
        assert_eq!(call.seen.json["params"].get("task"), None);
        call.spelled(r#"{"content":[ ],"n":1e400}"#);
        let answer = waiting.answer().await;
        assert!(answer.is_json());
        assert!(
            answer.body.contains(r#""id":"a""#) && answer.body.contains(r#"{"content":[ ],"n":1e400}"#),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_slow_call_is_a_task_whose_result_is_fetched() {
    let world = world(SOON, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    passes(AFTER).await;
    let answer = waiting.answer().await;
    assert_eq!(answer.json()["id"], 7);
    let task = answer.result()["task"].clone();
    assert_eq!(task["status"], "working");
    assert!(answer.result().get("content").is_none() && answer.result().get("resultType").is_none());
    let id = task["taskId"].as_str().expect("an id").to_owned();
    assert_eq!(of_task(&client, "tasks/get", &id).await["result"]["status"], "working");
    call.says("done");
    // Waits until it has ended.
    let result = of_task(&client, "tasks/result", &id).await;
    assert_eq!(result["result"]["content"][0]["text"], "done");
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn only_configured_clients_get_unsolicited_tasks() {
    let world = world(NOW, MARKED).await;
    for client in [
        LegacyClient::new(world.addr()).hello().await,
        LegacyClient::new(world.addr()).with("x-takes-tasks", "no").hello().await,
        // Whose revision knows no tasks.
        taker(&world).await.with("mcp-protocol-version", "2025-06-18"),
    ] {
        let waiting = client.call(1).await;
        world.server.call().await.says("plain");
        assert_eq!(waiting.answer().await.text(), "plain");
    }
}

#[tokio::test]
async fn every_client_gets_unsolicited_tasks_where_configured() {
    let world = world(NOW, "tasks: { unsolicited: always }").await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let waiting = client.call(1).await;
    assert!(waiting.answer().await.result()["task"]["taskId"].is_string());
}

#[tokio::test]
async fn notifications_of_a_call_reach_the_waiting_client() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let message = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"mine"}}}"#;
    let waiting = client.post(message).await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": "mine", "progress": 1 }));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.next().await["params"]["progressToken"], "mine");
    // A question goes by as it is, and its answer finds the server by itself.
    events.send(
        &json!({ "jsonrpc": "2.0", "id": 77, "method": "elicitation/create", "params": { "message": "?" } }),
    );
    assert_eq!(stream.next().await["id"], 77);
    let answer = json!({ "jsonrpc": "2.0", "id": 77, "result": { "action": "decline" } });
    assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
    let heard = world.server.seen(|seen| seen.answers(&json!(77))).await;
    assert_eq!(heard.json, answer);
    events.result(&id, json!({ "content": [] }));
    assert_eq!(stream.next().await, json!({ "jsonrpc": "2.0", "id": 5, "result": { "content": [] } }));
    assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1, "answered once");
}

#[tokio::test]
async fn progress_without_a_token_is_not_sent() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    let (id, token) = (call.id(), call.seen.json["params"]["_meta"]["progressToken"].clone());
    assert_eq!(token, id, "the proxy watches");
    let events = call.stream();
    events.notify("notifications/progress", json!({ "progressToken": token, "progress": 1 }));
    events.result(&id, json!({ "content": [] }));
    let answer = waiting.answer().await;
    assert!(answer.is_json(), "nothing came before it");
    assert_eq!(answer.json()["id"], 1);
}

#[tokio::test]
async fn a_client_that_disconnects_finds_its_call_among_its_tasks() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let call = world.server.call().await;
    waiting.leave();
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tasks/list"}"#;
    let id = loop {
        let tasks = client.post(list).await.answer().await.result()["tasks"].clone();
        if let Some(id) = tasks[0]["taskId"].as_str() {
            break id.to_owned();
        }
        tokio::task::yield_now().await;
    };
    call.says("done");
    assert_eq!(of_task(&client, "tasks/result", &id).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_call_over_the_task_limit_stays_synchronous() {
    let setup = Setup::new().route(NOW).route(MARKED).top("limits: { tasks: 0 }");
    let world = setup.start().await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    world.server.call().await.says("plain");
    assert_eq!(waiting.answer().await.text(), "plain");
}

#[tokio::test]
async fn a_server_that_dies_before_the_threshold_is_an_error_in_the_answer() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(3).await;
    world.server.call().await.stream().break_off();
    let answer = waiting.answer().await;
    assert_eq!(answer.refusal(), (200, -31002), "{answer:?}");
    assert_eq!(answer.json()["id"], 3);
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_one_unasked() {
    let setup = Setup::new().route("defer: { after: 0s, mode: required }").route(MARKED);
    let world = setup.start().await;
    let answer = taker(&world).await.call(1).await.answer().await;
    assert!(answer.result()["task"]["taskId"].is_string());
    let plain = LegacyClient::new(world.addr()).hello().await.call(1).await.answer().await;
    assert_eq!(plain.error()["code"], -32601);
}

#[tokio::test]
async fn an_input_request_before_the_task_moves_to_the_task() {
    for answers_where_it_was_put in [true, false] {
        let world = world(SOON, MARKED).await;
        let client = taker(&world).await;
        let waiting = client.call(1).await;
        let call = world.server.call().await;
        let id = call.id();
        let events = call.stream();
        events.send(&asks(77));
        let mut stream = waiting.stream().await;
        assert_eq!(stream.next().await, asks(77), "as it is");
        passes(AFTER).await;
        let task = stream.next().await["result"]["task"]["taskId"].as_str().expect("a task").to_owned();
        becomes(&client, &task, "input_required").await;
        // The client that waits for the result gets the input request.
        let fetch =
            json!({ "jsonrpc": "2.0", "id": 9, "method": "tasks/result", "params": { "taskId": task } });
        let mut fetching = client.post(&fetch.to_string()).await.stream().await;
        let put = beyond_status(&mut fetching).await;
        assert_eq!(put["params"]["_meta"][RELATED]["taskId"], task);
        assert_eq!(put["params"]["message"], "?");
        let to = if answers_where_it_was_put { json!(77) } else { put["id"].clone() };
        let answer = json!({ "jsonrpc": "2.0", "id": to, "result": { "action": "decline" } });
        assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
        let heard = world.server.seen(|seen| seen.answers(&json!(77))).await;
        assert_eq!((heard.session(), &heard.json["result"]["action"]), ("s1", &json!("decline")));
        if answers_where_it_was_put {
            let back = beyond_status(&mut fetching).await;
            assert_eq!(
                (&back["method"], &back["params"]["requestId"]),
                (&json!("notifications/cancelled"), &put["id"])
            );
        }
        becomes(&client, &task, "working").await;
        events.result(&id, json!({ "content": [] }));
        assert_eq!(beyond_status(&mut fetching).await["result"]["content"], json!([]));
        assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1, "answered once");
    }
}

#[tokio::test]
async fn an_answer_that_could_not_be_kept_can_be_given_again() {
    let store = FaultyStore::new();
    let world = Setup::new().route(SOON).route(MARKED).store(&store).start().await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let events = world.server.call().await.stream();
    events.send(&asks(77));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.next().await, asks(77));
    passes(AFTER).await;
    let task = stream.next().await["result"]["task"]["taskId"].as_str().expect("a task").to_owned();
    becomes(&client, &task, "input_required").await;
    let answer = json!({ "jsonrpc": "2.0", "id": 77, "result": { "action": "decline" } }).to_string();
    store.fails(&[Op::Swap]);
    assert_eq!(client.post(&answer).await.answer().await.status, 503);
    store.works();
    assert_eq!(client.post(&answer).await.answer().await.status, 202);
    world.server.seen(|seen| seen.answers(&json!(77))).await;
    becomes(&client, &task, "working").await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1);
}

#[tokio::test]
async fn an_input_request_to_a_disconnected_client_moves_to_the_task() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(1).await;
    let events = world.server.call().await.stream();
    for id in [77, 78] {
        events.send(&asks(id));
    }
    let mut stream = waiting.stream().await;
    assert_eq!((stream.next().await, stream.next().await), (asks(77), asks(78)));
    // One is answered in time, by itself.
    let answer = json!({ "jsonrpc": "2.0", "id": 77, "result": { "action": "decline" } });
    client.post(&answer.to_string()).await.answer().await;
    let mut listening = client.listen().await.stream().await;
    stream.leave();
    let put = beyond_status(&mut listening).await;
    let task = put["params"]["_meta"][RELATED]["taskId"].as_str().expect("a task").to_owned();
    assert_eq!(of_task(&client, "tasks/get", &task).await["result"]["status"], "input_required");
    let answer =
        json!({ "jsonrpc": "2.0", "id": put["id"], "result": { "action": "accept", "content": {} } });
    client.post(&answer.to_string()).await.answer().await;
    let heard = world.server.seen(|seen| seen.answers(&json!(78))).await;
    assert_eq!(heard.json["result"]["action"], "accept");
    becomes(&client, &task, "working").await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1);
}

/// SEP-2229 (draft), *Task Support and Handling*: a receiver that wishes to create no task ignores the parameter.
#[tokio::test]
async fn params_task_on_a_tool_that_is_never_a_task_is_ignored_for_clients_that_take_tasks() {
    let wished =
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","task":{"ttl":1},"x":1.0}}"#;
    let plain = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","x":1.0}}"#;
    for never in ["defer: { mode: never }", "tools: [{ match: t, mode: never }]", "defer: { mode: observe }"]
    {
        let world = world(never, MARKED).await;
        let client = taker(&world).await;
        let elsewhere = plain.replace("\"x\"", "\"arguments\":{\"task\":{}},\"x\"");
        for (asked, sent) in [
            (wished, plain),
            // Also what is none that could be asked for.
            (&wished.replace(r#"{"ttl":1}"#, "5"), plain),
            // A plain call is one, and so is one that speaks of a task elsewhere.
            (plain, plain),
            (&elsewhere, &*elsewhere),
        ] {
            let waiting = client.post(asked).await;
            let call = world.server.call().await;
            assert_eq!(call.seen.body, sent, "{never}");
            call.says("plain");
            assert_eq!(waiting.answer().await.text(), "plain");
        }
    }
}

/// Tasks are not offered here, so the parameter is ignored; where they are offered, it is refused.
#[tokio::test]
async fn params_task_of_other_clients_is_refused_where_tasks_are_offered_and_passes_where_there_are_none() {
    let wished = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","task":{"ttl":1}}}"#;
    for (never, is_refused) in
        [("defer: { mode: never }", false), ("tools: [{ match: t, mode: never }]", true)]
    {
        let world = world(never, MARKED).await;
        let client = LegacyClient::new(world.addr()).hello().await;
        let waiting = client.post(wished).await;
        if !is_refused {
            let call = world.server.call().await;
            assert_eq!(call.seen.body, wished);
            call.says("plain");
        }
        let answer = waiting.answer().await;
        match is_refused {
            true => assert_eq!(answer.refusal(), (200, -32601)),
            false => assert_eq!(answer.text(), "plain"),
        }
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_is_a_task_is_cancelled_under_the_id_that_its_server_knows() {
    let world = world(SOON, MARKED).await;
    let client = taker(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7, "reason": "no" },
    });
    assert_eq!(client.post(&cancel.to_string()).await.answer().await.status, 202);
    let heard = world.server.seen(|seen| seen.json["method"] == "notifications/cancelled").await;
    assert_eq!(heard.json["params"]["requestId"], call.id());
    assert_eq!(waiting.answer().await.body, "", "who takes a request back is owed no answer");
    let list = json!({ "jsonrpc": "2.0", "id": 8, "method": "tasks/list" });
    let list = client.post(&list.to_string()).await.answer().await.json();
    assert_eq!(list["result"]["tasks"], json!([]), "nor is there a task");
}

#[tokio::test]
async fn always_is_always_also_where_the_client_did_not_ask() {
    let world = world("defer: { mode: always }", MARKED).await;
    let client = taker(&world).await;
    for id in 0..20 {
        let waiting = client.call(id).await;
        world.server.call().await.says("quick");
        let answer = waiting.answer().await;
        assert!(answer.result()["task"]["taskId"].is_string(), "{answer:?}");
    }
}

#[tokio::test]
async fn an_input_request_that_was_answered_is_not_refused_where_its_call_is_cancelled_or_ends() {
    let world = world(LATE, MARKED).await;
    let client = taker(&world).await;
    for (id, is_taken_back) in [(7, true), (8, false)] {
        let waiting = client.call(id).await;
        let call = world.server.call().await;
        let number = call.id();
        let events = call.stream();
        events.send(&asks(70 + id));
        let mut stream = waiting.stream().await;
        assert_eq!(stream.next().await["id"], 70 + id);
        let answer = json!({ "jsonrpc": "2.0", "id": 70 + id, "result": { "action": "decline" } });
        assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
        match is_taken_back {
            true => {
                let cancel = json!({
                    "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id },
                });
                client.post(&cancel.to_string()).await.answer().await;
                world.server.message("notifications/cancelled").await;
                assert_eq!(stream.rest().await, "");
            }
            false => {
                events.result(&number, json!({ "content": [] }));
                assert_eq!(stream.next().await["id"], id);
            }
        }
        // What is said after it has arrived after it.
        client.post(r#"{"jsonrpc":"2.0","method":"notifications/later"}"#).await.answer().await;
        assert_eq!(world.server.count(|seen| seen.answers(&json!(70 + id))), 1, "{id}");
    }
}

#[tokio::test]
async fn an_input_request_that_was_answered_is_not_refused_where_its_call_ends_while_its_task_is_being_kept()
{
    let store = FaultyStore::taking(Duration::from_millis(300));
    let world = Setup::new().route(LATE).route(MARKED).store(&store).start().await;
    let client = taker(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let number = call.id();
    let events = call.stream();
    events.send(&asks(77));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.next().await["id"], 77);
    drop(stream);
    let kept = async {
        while !store.is_busy() {
            tokio::task::yield_now().await;
        }
    };
    soon("who leaves has a task", kept).await;
    let answer = json!({ "jsonrpc": "2.0", "id": 77, "result": { "action": "decline" } });
    assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
    assert!(store.is_busy(), "this takes no time");
    events.result(&number, json!({ "content": [] }));
    let list = json!({ "jsonrpc": "2.0", "id": 8, "method": "tasks/list" }).to_string();
    let ended = async {
        while client.post(&list).await.answer().await.json()["result"]["tasks"][0]["status"] != "completed" {}
    };
    soon("the task ends", ended).await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(77))), 1);
}
