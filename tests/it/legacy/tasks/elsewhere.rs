//! Servers that speak of a task on the session's own stream, and not on the call's.

use super::talk::{
    Call, Stream, Tasker, Value, World, beyond_status, json, question, related, up_to_mark, world,
};
use crate::proxy::world::ALWAYS;

/// What the server says on the stream of this session.
async fn says(world: &World, message: &Value) {
    world.server.listener("s1").await.raw(format!("data: {message}\n\n"));
}

fn progress(token: &Value, message: &str) -> Value {
    let params = json!({ "progressToken": token, "progress": 1, "message": message });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

/// A client that listens, and a task of it.
async fn listening(world: &World) -> (Tasker, Stream, String, Call) {
    let client = Tasker::hello(world).await;
    let stream = client.listens().await;
    let (task, call) = client.makes(world).await;
    (client, stream, task, call)
}

/// The question is refused to the server, and the client hears nothing of it.
async fn is_refused(world: &World, stream: &mut Stream, asks: &Value) {
    says(world, asks).await;
    let refused = world.server.seen(|seen| seen.answers(&asks["id"])).await;
    assert_eq!(refused.json["error"]["code"], -32603);
    assert_eq!(refused.session(), "s1");
    let said = up_to_mark(world, "s1", stream).await;
    assert!(said.iter().all(|message| message["method"] == "notifications/tasks/status"), "{said:#?}");
}

#[tokio::test]
async fn a_question_on_the_sessions_stream_is_asked_by_the_only_task() {
    for waits in [false, true] {
        let world = world(ALWAYS).await;
        let (client, mut stream, task, call) = listening(&world).await;
        says(&world, &question(3, "who?")).await;
        let put = if waits {
            client.becomes(&task, "input_required").await;
            stream.leave();
            world.server.hang_up("s1");
            beyond_status(&mut client.waits(&task).await).await
        } else {
            beyond_status(&mut stream).await
        };
        assert_eq!((related(&put), &put["params"]["message"]), (&json!(task), &json!("who?")));
        assert_ne!(put["id"], 3);
        assert_eq!(client.get(&task).await["status"], "input_required");
        client.answers(&put["id"], json!({ "action": "accept", "content": {} })).await;
        let seen = world.server.seen(|seen| seen.answers(&json!(3))).await;
        assert_eq!((seen.session(), &seen.json["result"]["action"]), ("s1", &json!("accept")));
        client.becomes(&task, "working").await;
        call.says("done");
        assert_eq!(client.result(&task).await.text(), "done");
        assert_eq!(world.server.count(|seen| seen.answers(&json!(3))), 1);
    }
}

#[tokio::test]
async fn progress_on_the_sessions_stream_is_the_tasks() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, call) = listening(&world).await;
    let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
    for token in [token.clone(), json!(token.to_string())] {
        says(&world, &progress(&token, "half")).await;
    }
    let said = up_to_mark(&world, "s1", &mut stream).await;
    assert!(said.is_empty(), "the client gave no token: {said:#?}");
    client.until(&task, |task| task["statusMessage"] == "half").await;
    call.says("done");
    client.becomes(&task, "completed").await;
    says(&world, &progress(&token, "late")).await;
    let said = up_to_mark(&world, "s1", &mut stream).await;
    assert!(said.iter().all(|message| message["method"] == "notifications/tasks/status"), "{said:#?}");
    // Under its own token it is relayed, and says which task it is of; under another it passes.
    let params = json!({ "name": "slow", "task": {}, "_meta": { "progressToken": "mine" } });
    let answer = client.ask("tools/call", params).await;
    let task = answer.result()["task"]["taskId"].clone();
    let _call = world.server.call().await;
    for token in ["other", "mine"] {
        says(&world, &progress(&json!(token), "on")).await;
    }
    let said = [beyond_status(&mut stream).await, beyond_status(&mut stream).await];
    assert!(said.contains(&progress(&json!("other"), "on")), "{said:#?}");
    let own = said.iter().find(|said| said["params"]["progressToken"] == "mine").expect("it is relayed");
    assert_eq!(related(own), &task);
}

#[tokio::test]
async fn a_question_that_is_taken_back_on_the_sessions_stream_is_taken_back() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    says(&world, &question(3, "who?")).await;
    let put = beyond_status(&mut stream).await;
    let back = |id: Value| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    says(&world, &back(json!(3))).await;
    assert_eq!(beyond_status(&mut stream).await["params"]["requestId"], put["id"]);
    client.becomes(&task, "working").await;
    // What is not a task's is the client's.
    says(&world, &back(json!(4))).await;
    assert_eq!(beyond_status(&mut stream).await, back(json!(4)));
}

#[tokio::test]
async fn a_question_that_could_be_anothers_is_refused() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, call) = listening(&world).await;
    let (second, second_call) = client.makes(&world).await;
    is_refused(&world, &mut stream, &question(3, "who?")).await;
    second_call.says("done");
    client.becomes(&second, "completed").await;
    // A plain call of the client's own may be meant as well.
    let plain = client.0.call(9).await;
    let plain_call = world.server.call().await;
    is_refused(&world, &mut stream, &question(4, "who?")).await;
    plain_call.says("plain");
    assert_eq!(plain.answer().await.text(), "plain");
    // By now there is one alone.
    says(&world, &question(5, "who?")).await;
    assert_eq!(related(&beyond_status(&mut stream).await), &json!(task));
    drop(call);
}

#[tokio::test]
async fn where_a_call_has_left_without_its_end_a_question_is_refused() {
    for ours in [true, false] {
        let world = world(ALWAYS).await;
        let (client, mut stream, task, _call) = listening(&world).await;
        if ours {
            let (second, _call) = client.makes(&world).await;
            client.of("tasks/cancel", &second).await.result();
            world.server.message("notifications/cancelled").await;
        } else {
            let plain = client.0.call(9).await;
            world.server.call().await.stream().break_off();
            plain.answer().await;
        }
        is_refused(&world, &mut stream, &question(3, "who?")).await;
        assert_eq!(client.get(&task).await["status"], "working");
    }
}

#[tokio::test]
async fn without_a_task_the_sessions_stream_is_the_clients_byte_for_byte() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut stream = client.listens().await;
    let plain = client.0.call(9).await;
    let call = world.server.call().await;
    says(&world, &question(3, "who?")).await;
    assert_eq!(beyond_status(&mut stream).await, question(3, "who?"));
    client.answers(&json!(3), json!({ "action": "decline" })).await;
    assert_eq!(world.server.seen(|seen| seen.answers(&json!(3))).await.session(), "s1");
    call.says("plain");
    assert_eq!(plain.answer().await.text(), "plain");
}

#[tokio::test]
async fn a_question_that_comes_again_on_a_stream_that_is_taken_up_is_asked_once() {
    let world = world(ALWAYS).await;
    let (client, mut stream, task, _call) = listening(&world).await;
    let asks = question(3, "who?");
    for _ in 0..2 {
        world.server.listener("s1").await.raw(format!("data: {asks}\n\n"));
    }
    let put = beyond_status(&mut stream).await;
    let rest = up_to_mark(&world, "s1", &mut stream).await;
    assert!(rest.iter().all(|message| message["method"] == "notifications/tasks/status"), "{rest:#?}");
    client.answers(&put["id"], json!({ "action": "cancel" })).await;
    client.becomes(&task, "working").await;
    assert_eq!(world.server.count(|seen| seen.answers(&json!(3))), 1);
}
