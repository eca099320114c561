//! Input requests of a task, and the stream on which its client gets them.

use super::task_client::{
    ProxyAndServer, RELATED, Stream, Tasker, Value, beyond_status, heard, json, question, related, setup,
    soon, up_to_mark, world,
};
use crate::proxy::proxy_and_server::ALWAYS;

fn accept() -> Value {
    json!({ "action": "accept", "content": {} })
}

/// How many answers to questions the server has.
fn answered(world: &ProxyAndServer) -> usize {
    world.server.count(|seen| seen.method().is_empty() && !seen.json.is_null())
}

/// The next status the stream tells of.
async fn status(stream: &mut Stream) -> Value {
    let mut params = stream.notice("notifications/tasks/status").await;
    params["status"].take()
}

#[tokio::test]
async fn an_input_request_is_sent_at_once_on_the_sessions_stream_and_nowhere_else() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    let mut waiting = client.waits(&task).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    // As the server asked it, but for the id and the task.
    let mut expected = question(put["id"].clone(), "who?");
    expected["params"]["_meta"] = json!({ RELATED: { "taskId": task } });
    assert_eq!(put, expected);
    assert_ne!(put["id"], json!(0));
    assert_eq!(status(&mut listening).await, "input_required");
    assert_eq!(client.get(&task).await["status"], "input_required");

    client.answers(&put["id"], accept()).await;
    assert_eq!(world.server.seen(|seen| seen.answers(&json!(0))).await.json["result"], accept());
    assert_eq!(status(&mut listening).await, "working");
    events.result(&id, json!({ "content": [] }));
    assert_eq!(status(&mut listening).await, "completed");
    assert_eq!(heard(&mut waiting).await["id"], 7, "the result is all that was said there");
}

#[tokio::test]
async fn without_a_session_stream_an_input_request_is_sent_on_the_waiting_request() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question("q", "who?"));
    client.becomes(&task, "input_required").await;
    let mut waiting = client.waits(&task).await;
    let put = heard(&mut waiting).await;
    assert_eq!(put["method"], "elicitation/create");
    assert_eq!(related(&put), &task);
    client.answers(&put["id"], accept()).await;
    world.server.seen(|seen| seen.answers(&json!("q"))).await;
    assert_eq!(status(&mut waiting).await, "working");
    events.result(&id, json!({ "content": [], "n": 1 }));
    assert_eq!(status(&mut waiting).await, "completed");
    assert_eq!(heard(&mut waiting).await["result"]["n"], 1);
    assert!(waiting.event().await.is_none(), "that is the end of it");
}

#[tokio::test]
async fn an_input_request_whose_stream_breaks_is_sent_again_under_its_id() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, _, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    listening.leave();
    world.server.hang_up("s1");
    // On the waiting request, where no session stream is open.
    let mut waiting = client.waits(&task).await;
    assert_eq!(beyond_status(&mut waiting).await, put);
    waiting.leave();
    // On a stream that is opened again.
    let mut listening = client.listens().await;
    assert_eq!(beyond_status(&mut listening).await, put);
    client.answers(&put["id"], accept()).await;
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    assert_eq!(status(&mut listening).await, "working");
}

#[tokio::test]
async fn no_input_request_is_sent_on_a_stream_that_the_server_closes() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    world.server.hang_up("s1");
    assert!(listening.event().await.is_none());
    let (task, _, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let mut waiting = client.waits(&task).await;
    assert_eq!(beyond_status(&mut waiting).await["method"], "elicitation/create");
}

#[tokio::test]
async fn an_input_request_that_the_server_withdraws_is_cancelled_at_the_client() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    assert_eq!(status(&mut listening).await, "input_required");
    events.notify("notifications/cancelled", json!({ "requestId": 0, "reason": "never mind" }));
    let back = listening.notice("notifications/cancelled").await;
    assert_eq!(back["requestId"], put["id"]);
    assert_eq!(status(&mut listening).await, "working");
    // A response that crossed the cancellation is dropped.
    client.answers(&put["id"], accept()).await;
    events.result(&id, json!({ "content": [] }));
    client.result(&task).await.result();
    assert_eq!(answered(&world), 0);
}

#[tokio::test]
async fn an_input_request_withdrawn_before_it_was_sent_is_never_sent() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, _, events) = client.makes_stream(&world).await;
    events.send(&question(0, "gone"));
    events.notify("notifications/cancelled", json!({ "requestId": 0 }));
    events.send(&question(1, "still there"));
    client.becomes(&task, "input_required").await;
    let mut waiting = client.waits(&task).await;
    let put = beyond_status(&mut waiting).await;
    assert_eq!(put["params"]["message"], "still there");
}

#[tokio::test]
async fn input_responses_reach_the_server_unchanged_but_for_the_task() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, _, events) = client.makes_stream(&world).await;
    let about = format!(r#""{RELATED}":{{"taskId":"{task}"}}"#);
    let answers = [
        // The server's own id, what the client says, and what the server hears.
        (
            "17",
            format!(r#""result": {{ "action":"accept","content":{{"n":1e400}} ,"_meta":{{{about}}}}}"#),
            r#"{"jsonrpc":"2.0","id":17,"result":{ "action":"accept","content":{"n":1e400}}}"#,
        ),
        (
            r#""s""#,
            format!(r#""result":{{"_meta":{{"k":1.0,{about}}},"action":"decline"}}"#),
            r#"{"jsonrpc":"2.0","id":"s","result":{"_meta":{"k":1.0},"action":"decline"}}"#,
        ),
        (
            "0",
            r#""error":{"code":-1,"message":"no \"way\"","data":{"x":1e400}}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"no \"way\"","data":{"x":1e400}}}"#,
        ),
    ];
    for (id, said, heard) in answers {
        let asks = question(serde_json::from_str::<Value>(id).expect("JSON"), "who?");
        events.send(&asks);
        let put = beyond_status(&mut listening).await;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},{said}}}"#, put["id"]);
        assert_eq!(client.0.post(&answer).await.answer().await.status, 202);
        let seen = world.server.seen(|seen| seen.answers_raw(id)).await;
        assert_eq!(seen.body, heard);
        assert_eq!(seen.session(), "s1");
    }
    client.becomes(&task, "working").await;
}

#[tokio::test]
async fn a_second_input_response_is_ignored() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    for action in ["accept", "decline", "cancel"] {
        client.answers(&put["id"], json!({ "action": action })).await;
    }
    let seen = world.server.seen(|seen| seen.answers(&json!(0))).await;
    assert_eq!(seen.json["result"]["action"], "accept");
    events.result(&id, json!({ "content": [] }));
    client.result(&task).await.result();
    client.answers(&put["id"], accept()).await;
    assert_eq!(answered(&world), 1);
}

#[tokio::test]
async fn several_input_requests_are_open_at_once_and_answered_in_any_order() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    let mut put = Vec::new();
    for number in 0..3 {
        events.send(&question(number, &format!("{number}?")));
    }
    while put.len() < 3 {
        put.push(beyond_status(&mut listening).await);
    }
    for number in [2, 0, 1] {
        assert_eq!(client.get(&task).await["status"], "input_required");
        assert_eq!(put[number]["params"]["message"], format!("{number}?"));
        client.answers(&put[number]["id"], json!({ "action": "accept", "content": { "n": number } })).await;
        let seen = world.server.seen(|seen| seen.answers(&json!(number))).await;
        assert_eq!(seen.json["result"]["content"]["n"], number);
    }
    client.becomes(&task, "working").await;
    events.result(&id, json!({ "content": [] }));
    assert_eq!(client.result(&task).await.result()["content"], json!([]));
}

#[tokio::test]
async fn every_kind_of_input_request_is_relayed_unchanged() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    let about = json!({ RELATED: { "taskId": task } });
    for (number, method, params) in [
        (10, "sampling/createMessage", Some(json!({ "messages": [], "maxTokens": 1, "_meta": { "k": 1 } }))),
        (11, "roots/list", None),
        (12, "vendor/unknown", Some(json!({ "a": [1, 2] }))),
        (
            13,
            "elicitation/create",
            Some(json!({ "mode": "url", "url": "https://x/", "elicitationId": "e", "message": "go" })),
        ),
    ] {
        let mut asks = json!({ "jsonrpc": "2.0", "id": number, "method": method });
        if let Some(params) = &params {
            asks["params"] = params.clone();
        }
        events.send(&asks);
        let put = beyond_status(&mut listening).await;
        let mut expected = asks.clone();
        expected["id"] = put["id"].clone();
        expected["params"]["_meta"][RELATED] = about[RELATED].clone();
        assert_eq!(put, expected);
        client.answers(&put["id"], json!({ "n": number })).await;
        let seen = world.server.seen(|seen| seen.answers(&json!(number))).await;
        assert_eq!(seen.json["result"], json!({ "n": number }));
    }
    // Whether anybody is there is answered here.
    events.send(&json!({ "jsonrpc": "2.0", "id": 14, "method": "ping" }));
    assert_eq!(world.server.seen(|seen| seen.answers(&json!(14))).await.json["result"], json!({}));
    events.result(&id, json!({ "content": [] }));
    client.result(&task).await.result();
    let rest = up_to_mark(&world, "s1", &mut listening).await;
    assert!(rest.iter().all(|message| message["method"] == "notifications/tasks/status"), "{rest:#?}");
}

#[tokio::test]
async fn an_input_request_on_several_lines_is_sent_on_one() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, _, events) = client.makes_stream(&world).await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/message\",\ndata: \"params\":{\ndata: \"data\":\"many lines\"}}\n\n");
    let log = beyond_status(&mut listening).await;
    assert_eq!((&log["params"]["data"], related(&log)), (&json!("many lines"), &json!(task)));
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":5,\ndata: \"method\":\"elicitation/create\",\ndata: \"params\":{\ndata: \"message\":\"who?\"}}\n\n");
    let put = beyond_status(&mut listening).await;
    assert_eq!((&put["params"]["message"], related(&put)), (&json!("who?"), &json!(task)));
    events.raw("data: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/tools/list_changed\"}\n\n");
    assert_eq!(beyond_status(&mut listening).await["method"], "notifications/tools/list_changed");
    client.answers(&put["id"], accept()).await;
    world.server.seen(|seen| seen.answers(&json!(5))).await;
}

#[tokio::test]
async fn an_input_request_is_delivered_after_many_notifications() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let log = |number: usize| {
        let params = json!({ "level": "info", "data": number });
        format!(
            "data: {}\n\n",
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })
        )
    };
    let flood: String = (0..500).map(log).collect();

    for listens in [true, false] {
        let mut listening = match listens {
            true => Some(client.listens().await),
            false => None,
        };
        let (task, _, events) = client.makes_stream(&world).await;
        let mut stream = match listening.take() {
            Some(listening) => listening,
            None => client.waits(&task).await,
        };
        // One piece, so that the proxy has all of it at once.
        events.raw(format!("{flood}data: {}\n\n", question(0, "who?")));
        for number in 0..500 {
            assert_eq!(beyond_status(&mut stream).await["params"]["data"], number, "nothing is lost");
        }
        let put = beyond_status(&mut stream).await;
        assert_eq!(put["method"], "elicitation/create");
        client.answers(&put["id"], accept()).await;
        client.becomes(&task, "working").await;
        stream.leave();
        world.server.hang_up("s1");
    }
}

#[tokio::test]
async fn a_client_that_listens_and_does_not_read_delays_its_task_for_a_bounded_time() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    // More than its socket and ours take.
    let words = "x".repeat(100_000);
    for _ in 0..300 {
        events.notify("notifications/message", json!({ "data": words }));
    }
    events.send(&question(0, "who?"));
    let mut waiting = client.waits(&task).await;
    // It takes some seconds until the stream is given up; the runner of tests knows how long is too long.
    let put = beyond_logs(&mut waiting).await;
    client.answers(&put["id"], accept()).await;
    world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [] }));
    client.becomes(&task, "completed").await;
    listening.leave();
}

/// The next message that is no word on the way.
async fn beyond_logs(stream: &mut Stream) -> Value {
    loop {
        let message = stream.next().await;
        if message["method"] == "elicitation/create" {
            return message;
        }
    }
}

#[tokio::test]
async fn an_input_response_is_not_subject_to_the_poll_limit() {
    let world = setup().route(ALWAYS).top("limits: { polls_per_second: 1 }").start().await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, _, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    while client.of("tasks/get", &task).await.json().get("error").is_none() {}
    client.answers(&put["id"], accept()).await;
    soon("the answer arrives", world.server.seen(|seen| seen.answers(&json!(0)))).await;
}

#[tokio::test]
async fn input_requests_of_a_task_over_the_limit_are_refused() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, _, events) = client.makes_stream(&world).await;
    for number in 0..65 {
        events.send(&question(number, "?"));
    }
    let refused = world.server.seen(|seen| seen.answers(&json!(64))).await;
    assert_eq!(refused.json["error"]["code"], -32603);
    assert_eq!(answered(&world), 1);
    client.becomes(&task, "input_required").await;
}

#[tokio::test]
async fn a_response_without_an_input_request_is_accepted_and_not_relayed() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, _call) = client.makes(&world).await;
    for id in
        [format!("deferral:{task}:elicitation-1"), "deferral:0123456789abcdef0123456789abcdef:x".to_owned()]
    {
        client.answers(&json!(id), accept()).await;
    }
    // One that is not ours is the server's.
    let other = json!({ "jsonrpc": "2.0", "id": "deferral:x", "result": {} });
    client.posts(&other).await;
    world.server.seen(|seen| seen.json == other).await;
    assert_eq!(answered(&world), 1);
    assert_eq!(client.get(&task).await["status"], "working");
}

#[tokio::test]
async fn the_end_of_a_task_cancels_its_input_requests() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, id, events) = client.makes_stream(&world).await;
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    assert_eq!(status(&mut listening).await, "input_required");
    events.result(&id, json!({ "content": [] }));
    client.becomes(&task, "completed").await;
    let mut back = [heard(&mut listening).await, heard(&mut listening).await];
    back.sort_by_key(|message| message["method"].as_str().map(str::to_owned));
    assert_eq!(back[0]["params"]["requestId"], put["id"]);
    assert_eq!(back[1]["params"]["status"], "completed");
}
