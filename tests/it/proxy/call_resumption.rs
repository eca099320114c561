//! Calls that the next process resumes, because their server stores its events.

use super::{program::Program, proxy_and_server::ALWAYS, restart::Place};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::{
        faulty_store::{FaultyStore, Op},
        legacy_server::{Call, Canned, Events, Get, Options, Seen},
        modern_client::{Client, soon},
    },
};
use serde_json::{Value, json};
use std::sync::Arc;

/// A server that keeps what it says: it takes up the streams of calls, and has no other.
pub(crate) fn keeps_events(options: &mut Options) {
    let is_taken_up = |seen: &Seen| seen.header("last-event-id").is_some();
    options.hook = Some(Box::new(move |seen| match seen.method() {
        "ping" => Some(Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": {} }))),
        _ => (seen.http == http::Method::GET && !is_taken_up(seen)).then(|| Canned::status(405)),
    }));
}

/// A call that has become a task, and whose server has given its events ids; `e2` is the last.
async fn begun(place: &Place, client: &Client) -> (String, Value, Events) {
    begun_up_to(place, client, "e2").await
}

/// The same, and `last` is the last.
async fn begun_up_to(place: &Place, client: &Client, last: &str) -> (String, Value, Events) {
    let waiting = client.call("slow").await;
    let call: Call = place.server.call().await;
    let (id, task) = (call.id(), waiting.answer().await.task());
    let events = call.stream();
    events.raw("id: e1\ndata:\n\n");
    let progress = json!({ "progressToken": id, "progress": 1, "message": "begun" });
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
    events.raw(format!("id: {last}\ndata: {notice}\n\n"));
    client.until(&task, |shown| shown["statusMessage"] == "begun").await;
    (task, id, events)
}

/// The stream of the call that is taken up.
async fn taken_up(place: &Place) -> (Seen, Events) {
    let seen = place.server.seen(|seen| seen.header("last-event-id").is_some()).await;
    let events = soon("its stream is waited for", place.server.listener(seen.session())).await;
    (seen, events)
}

fn counted(place: &Place) -> [usize; 3] {
    let deleted = place.server.count(|seen| seen.http == http::Method::DELETE);
    [place.server.messages("tools/call"), place.server.messages("notifications/cancelled"), deleted]
}

const RESULT: &str = "made once";

fn result() -> Value {
    json!({ "content": [{ "type": "text", "text": RESULT }] })
}

#[tokio::test]
async fn a_call_goes_on_after_a_kill_and_ends_with_its_own_result() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let (task, id, _events) = begun(&place, &first.client().with_tasks()).await;
    first.killed().await;

    let mut second = place.start(&[ALWAYS], &[]).await;
    let client = second.client().with_tasks();
    let (seen, events) = taken_up(&place).await;
    let called = place.server.message("tools/call").await;
    assert_eq!((seen.session(), seen.header("last-event-id")), (called.session(), Some("e2")));
    assert_eq!(seen.header("mcp-protocol-version"), called.header("mcp-protocol-version"));
    assert_eq!(client.task(&task).await["status"], "working");
    let progress = json!({ "progressToken": id, "progress": 2, "message": "half" });
    events.notify("notifications/progress", progress);
    client.until(&task, |shown| shown["statusMessage"] == "half").await;
    events.result(&id, result());
    let ended = client.ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], RESULT);
    // A proxy that stops ends its own sessions first.
    second.stop();
    second.gone().await;
    assert_eq!(counted(&place), [1, 0, 0], "another call might be in its session");
}

#[tokio::test]
async fn calls_of_one_session_go_on_and_the_first_to_end_does_not_end_the_others() {
    let mut place = Place::before(|options| {
        keeps_events(options);
        options.get = Get::StreamEach;
    })
    .await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks();
    let (one, id_of_one, _events) = begun_up_to(&place, &client, "of one").await;
    let (other, id_of_other, _events) = begun_up_to(&place, &client, "of another").await;
    assert_eq!(place.server.messages("initialize"), 1, "they are in one session");
    first.killed().await;

    let mut second = place.start(&[ALWAYS], &[]).await;
    let client = second.client().with_tasks();
    let streams = [place.server.taken_up("of one").await, place.server.taken_up("of another").await];
    streams[0].result(&id_of_one, result());
    assert_eq!(client.ended(&one).await["result"]["content"][0]["text"], RESULT);
    assert_eq!(client.task(&other).await["status"], "working");
    streams[1].result(&id_of_other, json!({ "content": [{ "type": "text", "text": "another" }] }));
    assert_eq!(client.ended(&other).await["result"]["content"][0]["text"], "another");
    // A proxy that stops ends its own sessions first.
    second.stop();
    second.gone().await;
    assert_eq!(counted(&place), [2, 0, 0]);
}

#[tokio::test]
async fn a_resumable_call_is_not_cancelled_at_the_end_of_the_drain() {
    let mut place = Place::before(keeps_events).await;
    let mut first = place.start(&[ALWAYS], &["drain: 20ms"]).await;
    let (task, id, _events) = begun(&place, &first.client().with_tasks()).await;
    first.stop();
    let lost = first.gone().await;
    let told = ["tasks_released", "tasks_lost", "calls_lost"].map(|name| lost[name].as_u64());
    assert_eq!(told, [Some(1), Some(0), Some(0)], "{lost:#}");
    assert_eq!(counted(&place), [1, 0, 0]);

    let second = place.start(&[ALWAYS], &[]).await;
    let (_, events) = taken_up(&place).await;
    events.result(&id, result());
    let ended = second.client().with_tasks().ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], RESULT);
    assert_eq!(counted(&place)[..2], [1, 0]);
    second.killed().await;
}

#[tokio::test]
async fn an_input_request_survives_a_restart_and_its_response_reaches_the_server() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = |program: &Program| {
        program.client().declaring(json!({
            "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} },
        }))
    };
    let (task, id, events) = begun(&place, &client(&first)).await;
    let question = json!({ "jsonrpc": "2.0", "id": "q7", "method": "elicitation/create", "params": {
        "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} },
    } });
    events.raw(format!("id: e3\ndata: {question}\n\n"));
    let asked = client(&first).until(&task, |shown| shown["status"] == "input_required").await;
    // What is kept of it is written right behind it.
    client(&first).task(&task).await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let (_, events) = taken_up(&place).await;
    let client = client(&second);
    let shown = client.task(&task).await;
    assert_eq!(
        (&shown["status"], &shown["inputRequests"]),
        (&json!("input_required"), &asked["inputRequests"])
    );
    let key = shown["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let answers = json!({ "taskId": task, "inputResponses": { key: { "action": "accept", "content": {} } } });
    client.ask("tasks/update", answers).await.result();
    for _ in 0..10 {
        client.task(&task).await;
    }
    // What the server makes of the answer could be written to no stream.
    assert_eq!(place.server.count(|seen| seen.answers(&json!("q7"))), 0, "the stream is not taken up yet");
    events.raw("id: e4\ndata:\n\n");
    let answered = place.server.seen(|seen| seen.answers(&json!("q7"))).await;
    assert_eq!(answered.json["result"]["action"], "accept");
    // The event may be one of those behind which the stream is taken up, and come again: here behind the answer.
    events.raw(format!("id: e5\ndata: {question}\n\n"));
    // A further question has a key of its own.
    let question = question.to_string().replace("q7", "q8");
    events.raw(format!("id: e6\ndata: {question}\n\n"));
    let again = client.until(&task, |shown| shown["status"] == "input_required").await;
    assert_ne!(
        again["inputRequests"].as_object().expect("questions").keys().next(),
        asked["inputRequests"].as_object().expect("questions").keys().next()
    );
    events.result(&id, result());
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], RESULT);
    assert_eq!(place.server.count(|seen| seen.answers(&json!("q7"))), 1);
    second.killed().await;
}

fn askable(program: &Program) -> Client {
    let tasks = json!({ "io.modelcontextprotocol/tasks": {} });
    program.client().declaring(json!({ "elicitation": {}, "extensions": tasks }))
}

fn question() -> Value {
    json!({ "jsonrpc": "2.0", "id": "q7", "method": "elicitation/create", "params": {
        "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} },
    } })
}

/// A call that has become a task and asks something; with what answers it.
async fn asked(place: &Place, client: &Client) -> (String, Value, Events, Value) {
    let (task, id, events) = begun(place, client).await;
    events.raw(format!("id: e3\ndata: {}\n\n", question()));
    let asked = client.until(&task, |shown| shown["status"] == "input_required").await;
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let answers = json!({ "taskId": task, "inputResponses": { key: { "action": "accept", "content": {} } } });
    (task, id, events, answers)
}

#[tokio::test]
async fn an_answer_waits_for_the_stream_of_its_call_but_not_for_ever() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = askable(&first);
    let (task, id, _events, answers) = asked(&place, &client).await;
    // What is kept of it is written right behind it.
    client.task(&task).await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let client = askable(&second);
    let (_, events) = taken_up(&place).await;
    client.ask("tasks/update", answers).await.result();
    // A server of before 2025-11-25 says nothing in a stream that is taken up, where it has nothing to say.
    place.server.seen(|seen| seen.answers(&json!("q7"))).await;
    events.result(&id, result());
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], RESULT);
    second.killed().await;
}

#[tokio::test]
async fn an_answer_that_may_not_have_arrived_is_given_again_although_the_server_has_gone_on() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = askable(&first);
    let (task, id, events, answers) = asked(&place, &client).await;
    client.ask("tasks/update", answers).await.result();
    let is_answer = |seen: &Seen| seen.answers(&json!("q7"));
    place.server.seen(is_answer).await;
    let progress = json!({ "progressToken": id, "progress": 2, "message": "on" });
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
    // Said before the answer had arrived, for all that the proxy knows.
    events.raw(format!("id: e4\ndata: {notice}\n\n"));
    client.until(&task, |shown| shown["statusMessage"] == "on").await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let (_, events) = taken_up(&place).await;
    place.server.last_of(2, is_answer).await;
    events.result(&id, result());
    assert_eq!(askable(&second).ended(&task).await["result"]["content"][0]["text"], RESULT);
    second.killed().await;
}

#[tokio::test]
async fn a_call_is_resumed_by_the_next_process_although_the_store_fails_at_the_end() {
    let mut place = Place::before(keeps_events).await;
    let store = FaultyStore::around(Arc::new(place.next()));
    let mut first = place.start_on(store.clone(), &[ALWAYS], &["drain: 20ms"]).await;
    let (task, id, events) = begun(&place, &askable(&first)).await;
    store.fails(&[Op::Insert, Op::Swap, Op::Anchor, Op::Remove]);
    // What it asks then is not kept, and so not seen.
    events.raw(format!("id: e3\ndata: {}\n\n", question()));
    store.refused(Op::Swap).await;
    first.stop();
    first.gone().await;
    assert_eq!(counted(&place), [1, 0, 0], "its server goes on");
    assert_eq!(place.server.count(|seen| seen.answers(&json!("q7"))), 0, "nobody has declined");

    let second = place.start(&[ALWAYS], &[]).await;
    let (_, events) = taken_up(&place).await;
    events.result(&id, result());
    let ended = askable(&second).ended(&task).await;
    assert_eq!(ended["result"]["content"][0]["text"], RESULT);
    second.killed().await;
}

#[tokio::test]
async fn resumption_waits_for_the_credentials_of_the_caller() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let (task, id, _events) = begun(&place, &first.client().with_tasks().bearing("one")).await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let other = second.client().with_tasks().bearing("two");
    other.ask("tasks/get", json!({ "taskId": task })).await;
    assert_eq!(place.server.count(|seen| seen.header("last-event-id").is_some()), 0, "nobody has shown them");
    let client = second.client().with_tasks().bearing("one");
    assert_eq!(client.task(&task).await["status"], "working");
    let (seen, events) = taken_up(&place).await;
    assert_eq!(seen.header("authorization"), Some("Bearer one"));
    events.result(&id, result());
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], RESULT);
    second.killed().await;
}

#[tokio::test]
async fn resumption_waits_for_credentials_for_a_bounded_time() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = |program: &Program| program.client().with_tasks().bearing("one");
    let (task, ..) = begun(&place, &client(&first)).await;
    first.killed().await;

    let second = place.start(&[ALWAYS, "resume: { wait: 1ms }"], &[]).await;
    let told = |line: &Value| line["task"] == json!(task[..8]) && line["to"] == "failed";
    soon("it is given up", async {
        while !second.log.lines().iter().any(told) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let shown = client(&second).task(&task).await;
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("failed"), &json!(-31002)));
    second.killed().await;
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_call_ends_its_task_with_an_unknown_outcome() {
    let mut place = Place::before(|options| {
        options.hook = Some(Box::new(|seen| {
            (seen.http == http::Method::GET).then(|| match seen.header("last-event-id") {
                Some(_) => Canned::status(404),
                None => Canned::status(405),
            })
        }));
    })
    .await;
    let first = place.start(&[ALWAYS], &[]).await;
    let (task, ..) = begun(&place, &first.client().with_tasks()).await;
    first.killed().await;
    let second = place.start(&[ALWAYS], &[]).await;
    let ended = second.client().with_tasks().ended(&task).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!(-31002)));
    second.killed().await;
    assert_eq!(counted(&place)[0], 1);
}

#[tokio::test]
async fn a_cancellation_is_sent_to_the_server_again_after_a_restart() {
    // The word does not get through while the first process lives.
    let mut place = Place::before(|options| {
        keeps_events(options);
        let times = std::sync::atomic::AtomicUsize::new(0);
        options.ignores = Box::new(move |seen| {
            seen.method() == "notifications/cancelled"
                && times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0
        });
    })
    .await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks();
    let (task, id, _events) = begun(&place, &client).await;
    client.ask("tasks/cancel", json!({ "taskId": task })).await.result();
    place.server.message("notifications/cancelled").await;
    first.killed().await;
    let second = place.start(&[ALWAYS], &[]).await;
    let again = place.server.last_of(2, |seen| seen.method() == "notifications/cancelled").await;
    assert_eq!(again.json["params"]["requestId"], id);
    assert_eq!(second.client().with_tasks().task(&task).await["status"], "cancelled");
    second.killed().await;
}

/// Its request for the result brings the credentials without which the call is not resumed.
#[tokio::test]
async fn a_legacy_client_that_waits_before_its_call_is_resumed_is_asked_in_that_request() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = LegacyClient::new(first.addr).with("authorization", "Bearer one").hello().await;
    let session = client.session();
    let request = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
    };
    let waiting = client.post(&request("tools/call", json!({ "name": "slow", "task": {} }))).await;
    let call = place.server.call().await;
    let task = waiting.answer().await.result()["task"]["taskId"].as_str().expect("a task").to_owned();
    let get = request("tasks/get", json!({ "taskId": task }));
    let events = call.stream();
    events.raw("id: e1\ndata:\n\n");
    events.raw(format!("id: e2\ndata: {}\n\n", question()));
    while client.post(&get).await.answer().await.result()["status"] != "input_required" {
        tokio::task::yield_now().await;
    }
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let client = LegacyClient::new(second.addr).with("authorization", "Bearer one").within(&session);
    let waiting = client.post(&request("tasks/result", json!({ "taskId": task }))).await;
    let mut stream = waiting.stream().await;
    let asked = loop {
        let message = soon("its question", stream.next()).await;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    assert_eq!(asked["params"]["message"], "who?");
    second.killed().await;
}

#[tokio::test]
async fn a_task_of_a_legacy_client_goes_on_in_its_own_session() {
    let mut place = Place::before(keeps_events).await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = LegacyClient::new(first.addr).hello().await;
    let session = client.session();
    let request = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
    };
    let waiting = client.post(&request("tools/call", json!({ "name": "slow", "task": {} }))).await;
    let call = place.server.call().await;
    let task = waiting.answer().await.result()["task"]["taskId"].as_str().expect("a task").to_owned();
    let get = request("tasks/get", json!({ "taskId": task }));
    let id = call.id();
    let events = call.stream();
    let progress = json!({ "progressToken": id, "progress": 1, "message": "begun" });
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
    events.raw(format!("id: e1\ndata: {notice}\n\n"));
    while client.post(&get).await.answer().await.result()["statusMessage"] != "begun" {
        tokio::task::yield_now().await;
    }
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let client = LegacyClient::new(second.addr).within(&session);
    let (seen, events) = taken_up(&place).await;
    assert_eq!(seen.session(), session);
    let waiting = client.post(&request("tasks/result", json!({ "taskId": task }))).await;
    events.result(&id, result());
    let answer = waiting.answer().await.messages().pop().expect("an answer");
    assert_eq!(answer["result"]["content"][0]["text"], RESULT);
    assert_eq!(counted(&place), [1, 0, 0], "the session is its client's");
    // No other call gets the id of one that the server may still know.
    let waiting = client.post(&request("tools/call", json!({ "name": "slow", "task": {} }))).await;
    let call = place.server.call().await;
    assert_ne!(call.id(), id);
    call.says("another");
    waiting.answer().await;
    second.killed().await;
}

/// The lines that say what became of the tasks that were left, once there are so many.
async fn taken_over(program: &Program, count: usize) -> Vec<Value> {
    let taken_over = async {
        loop {
            let lines = program.log.lines().into_iter().filter(|line| line["event"] == "taken_over");
            let lines: Vec<_> = lines.collect();
            if lines.len() >= count {
                return lines;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("it says what became of them", taken_over).await
}

/// What such a line counts that is not nothing.
fn counts(line: &Value) -> Value {
    let fields = ["resumed", "waiting", "pending", "failed", "cancelled", "untold", "waited"];
    let counts = fields.into_iter().filter(|field| !matches!(line[field].as_u64(), None | Some(0)));
    counts.map(|field| (field.to_owned(), line[field].clone())).collect()
}

#[tokio::test]
async fn outcomes_of_resumed_calls_are_logged_once() {
    let cancels = std::sync::atomic::AtomicUsize::new(0);
    let mut place = Place::before(|options| {
        keeps_events(options);
        options.get = Get::StreamEach;
        let keeps = options.hook.take().expect("it was made a moment ago");
        options.hook = Some(Box::new(move |seen| match seen.header("last-event-id") {
            Some("gone") => Some(Canned::status(405)),
            _ => keeps(seen),
        }));
        // The word does not get through while the first process lives.
        options.ignores = Box::new(move |seen| {
            seen.method() == "notifications/cancelled"
                && cancels.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0
        });
    })
    .await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = first.client().with_tasks();
    let (resumed, id, _events) = begun_up_to(&place, &client, "kept").await;
    let (gone, _, _others) = begun_up_to(&place, &client, "gone").await;
    let (cancelled, _, _third) = begun_up_to(&place, &client, "third").await;
    client.ask("tasks/cancel", json!({ "taskId": cancelled })).await.result();
    place.server.message("notifications/cancelled").await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    let line = taken_over(&second, 1).await.remove(0);
    assert_eq!(counts(&line), json!({ "resumed": 1, "failed": 1, "cancelled": 1 }), "{line:#}");
    let client = second.client().with_tasks();
    assert_eq!(client.task(&gone).await["status"], "failed");
    assert_eq!(client.task(&resumed).await["status"], "working");
    place.server.taken_up("kept").await.result(&id, result());
    client.ended(&resumed).await;
    assert_eq!(taken_over(&second, 1).await.len(), 1, "nobody has waited");
    second.killed().await;
}

#[tokio::test]
async fn outcomes_of_calls_that_waited_for_credentials_are_logged() {
    let mut place = Place::before(|options| {
        keeps_events(options);
        options.get = Get::StreamEach;
        let keeps = options.hook.take().expect("it was made a moment ago");
        options.hook = Some(Box::new(move |seen| match seen.header("last-event-id") {
            Some("gone") => Some(Canned::status(405)),
            _ => keeps(seen),
        }));
    })
    .await;
    let first = place.start(&[ALWAYS], &[]).await;
    let client = |program: &Program| program.client().with_tasks().bearing("one");
    let (kept, ..) = begun_up_to(&place, &client(&first), "kept").await;
    let (gone, ..) = begun_up_to(&place, &client(&first), "gone").await;
    first.killed().await;

    let second = place.start(&[ALWAYS], &[]).await;
    assert_eq!(counts(&taken_over(&second, 1).await[0]), json!({ "waiting": 2 }));
    assert_eq!(client(&second).task(&kept).await["status"], "working");
    let lines = taken_over(&second, 2).await;
    assert_eq!(counts(&lines[1]), json!({ "resumed": 1, "failed": 1, "waited": 2 }), "{lines:#?}");
    assert_eq!(client(&second).task(&gone).await["status"], "failed");
    second.killed().await;
}
