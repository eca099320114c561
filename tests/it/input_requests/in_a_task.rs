//! Input requests of a task.

use super::asking_server_and_client::{
    ALWAYS, Answer, Asking, Client, ProxyAndServer, Setup, Talk, WAYS, Way, accept, asked_with_tasks,
    fitting, form, refusal, roots, sampled, sampling, update,
};
use crate::support::modern_client::{Stream, indistinguishable};
use serde_json::{Value, json};

/// A task whose server is about to ask.
async fn begun(world: &ProxyAndServer, client: &Client, way: Way) -> (Asking, String) {
    let waiting = Talk::tool(client).begin().await;
    let server = Asking::next(world, way).await;
    let task = waiting.answer().await.task();
    (server, task)
}

/// The task once it asks exactly these keys.
async fn asks(client: &Client, task: &str, keys: &[&str]) -> Value {
    let of = |task: &Value| -> Vec<String> {
        task["inputRequests"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    let found = client.until(task, |task| of(task) == keys).await;
    assert_eq!(found["status"], if keys.is_empty() { "working" } else { "input_required" });
    found
}

fn acknowledged(answer: &Answer) {
    let said = (answer.status.as_u16(), answer.apart_from_meta());
    assert_eq!(said, (200, json!({ "resultType": "complete" })));
}

#[tokio::test]
async fn every_input_request_of_an_immediate_task_belongs_to_the_task() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, way).await;
        for (id, key, question) in
            [(0, "elicitation-1", form("Who?")), (1, "sampling-1", sampling()), (2, "roots-1", roots())]
        {
            server.ask(id, &question);
            let found = asks(&client, &task, &[key]).await;
            assert_eq!(found["inputRequests"], json!({ key: question }));
            assert_eq!((found.get("requestState"), found.get("result")), (None, None));
            acknowledged(&update(&client, &task, json!({ key: fitting(&question) })).await);
            assert_eq!(client.task(&task).await["status"], "working", "the very next look");
            assert_eq!(server.answered(&world, id).await, fitting(&question));
        }
        server.says("Hello");
        let ended = client.ended(&task).await;
        assert_eq!(
            (&ended["status"], &ended["result"]["content"][0]["text"]),
            (&json!("completed"), &json!("Hello"))
        );
        assert_eq!(ended.get("inputRequests"), None);
        assert_eq!(world.calls(), 1);
    }
}

#[tokio::test]
async fn an_input_request_sent_with_the_call_belongs_to_an_immediate_task() {
    for _ in 0..20 {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let waiting = Talk::tool(&client).begin().await;
        let server = Asking::next(&world, Way::OnTheCall).await;
        // Perhaps before the handle was given, perhaps after.
        server.ask(0, &form("Who?"));
        let answer = waiting.answer().await;
        let task = answer.task();
        assert_eq!(answer.result().get("inputRequests"), None);
        asks(&client, &task, &["elicitation-1"]).await;
    }
}

#[tokio::test]
async fn answers_may_come_one_by_one_and_each_is_gone_from_the_very_next_look() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, way).await;
        server.ask(0, &form("Who?"));
        server.ask(1, &sampling());
        server.ask(2, &form("Where?"));
        asks(&client, &task, &["elicitation-1", "elicitation-2", "sampling-1"]).await;

        acknowledged(&update(&client, &task, json!({ "elicitation-2": accept("Turin") })).await);
        let found = client.task(&task).await;
        assert_eq!(found["status"], "input_required");
        assert_eq!(
            found["inputRequests"],
            json!({ "elicitation-1": form("Who?"), "sampling-1": sampling() })
        );
        assert_eq!(server.answered(&world, 2).await, accept("Turin"));
        assert!(!server.is_answered(&world, 0) && !server.is_answered(&world, 1));

        let rest = json!({ "elicitation-1": accept("Ada"), "sampling-1": sampled() });
        acknowledged(&update(&client, &task, rest).await);
        let found = client.task(&task).await;
        assert_eq!((&found["status"], found.get("inputRequests")), (&json!("working"), None));
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        assert_eq!(server.answered(&world, 1).await, sampled());
        server.says("Hello");
        assert_eq!(client.ended(&task).await["status"], "completed");
    }
}

#[tokio::test]
async fn a_key_is_never_used_again_in_the_life_of_its_task() {
    let world = ProxyAndServer::with(r#"tools: [{ match: greet, mode: always, keys: [user_name] }]"#).await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    for (id, key) in [(0, "user_name"), (1, "elicitation-1"), (2, "elicitation-2"), (3, "elicitation-3")] {
        // The same words each time.
        server.ask(id, &form("Who?"));
        asks(&client, &task, &[key]).await;
        if id == 2 {
            server.withdraw(id);
            asks(&client, &task, &[]).await;
        } else {
            acknowledged(&update(&client, &task, json!({ key: accept("Ada") })).await);
            server.answered(&world, id).await;
        }
    }
}

#[tokio::test]
async fn a_withdrawn_input_request_disappears_and_its_late_answer_goes_nowhere() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, way).await;
        server.ask(0, &form("Who?"));
        server.ask(1, &form("Where?"));
        asks(&client, &task, &["elicitation-1", "elicitation-2"]).await;
        server.withdraw(0);
        asks(&client, &task, &["elicitation-2"]).await;
        acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("late") })).await);
        server.withdraw(1);
        asks(&client, &task, &[]).await;
        server.says("never mind");
        assert_eq!(client.ended(&task).await["status"], "completed");
        assert!(!server_was_answered(&world));
    }
}

fn server_was_answered(world: &ProxyAndServer) -> bool {
    world.server.count(|seen| [0, 1].iter().any(|id| seen.answers(&json!(id)))) > 0
}

#[tokio::test]
async fn late_unknown_and_repeated_answers_are_acknowledged_and_ignored() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("early") })).await);
    server.ask(0, &form("Who?"));
    asks(&client, &task, &["elicitation-1"]).await;
    assert!(!server.is_answered(&world, 0), "an answer from before the question is no answer to it");
    let before = client.of_task("tasks/get", &task).await;
    acknowledged(&update(&client, &task, json!({ "elicitation-7": 12, "": null })).await);
    acknowledged(&update(&client, &task, json!({})).await);
    let after = client.of_task("tasks/get", &task).await;
    assert!(indistinguishable(&before, &after), "{before:?} {after:?}");

    acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("Ada"), "x": {} })).await);
    acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("Eve") })).await);
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
    server.says("Hello");
    client.ended(&task).await;
    acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("Eve") })).await);
    assert_eq!(client.task(&task).await["status"], "completed");
    assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 1);
}

#[tokio::test]
async fn an_invalid_input_response_is_refused_and_valid_ones_beside_it_are_accepted() {
    for wrong in [
        json!(12_345),
        json!({ "action": "accept", "content": { "name": 12_345 } }),
        json!({ "action": "maybe" }),
        json!({ "action": "accept" }),
    ] {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, Way::OnTheCall).await;
        server.ask(0, &form("Who?"));
        server.ask(1, &form("Where?"));
        asks(&client, &task, &["elicitation-1", "elicitation-2"]).await;
        let answers = json!({ "elicitation-1": accept("Ada"), "elicitation-2": wrong });
        let (code, message) = refusal(&update(&client, &task, answers.clone()).await);
        assert_eq!(code, -32602);
        assert!(message.contains("elicitation-2") && !message.contains("elicitation-1"), "{message}");
        // The very next look; what did not fit is still asked.
        asks(&client, &task, &["elicitation-2"]).await;
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        assert!(!server.is_answered(&world, 1));
        // A repeated update has no effect: accepted input requests are closed.
        assert_eq!(refusal(&update(&client, &task, answers).await).0, -32602);
        acknowledged(&update(&client, &task, json!({ "elicitation-2": { "action": "decline" } })).await);
        assert_eq!(server.answered(&world, 1).await, json!({ "action": "decline" }));
        assert_eq!(world.server.count(|seen| seen.answers(&json!(0))), 1);
    }
}

#[tokio::test]
async fn an_update_that_cannot_be_read_answers_nothing() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    server.ask(1, &form("Where?"));
    asks(&client, &task, &["elicitation-1", "elicitation-2"]).await;
    for wrong in [json!(null), json!([]), json!("x")] {
        assert_eq!(refusal(&update(&client, &task, wrong).await).0, -32602);
    }
    let missing = client.ask("tasks/update", json!({ "taskId": task })).await;
    assert_eq!(refusal(&missing).0, -32602);
    asks(&client, &task, &["elicitation-1", "elicitation-2"]).await;
    assert!(!server_was_answered(&world));
    let answers = json!({ "elicitation-1": accept("Ada"), "elicitation-2": { "action": "decline" } });
    acknowledged(&update(&client, &task, answers).await);
    assert_eq!(server.answered(&world, 1).await, json!({ "action": "decline" }));
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
}

#[tokio::test]
async fn answers_reach_the_server_as_they_were_spelled() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    server.ask(0, &json!({ "method": "elicitation/create", "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } } }));
    asks(&client, &task, &["elicitation-1"]).await;
    let spelled =
        r#"{ "action":"accept", "content":{"n":12345678901234567890123,"e":1e400,"\u0061":"\ud83d\ude00"} }"#;
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/update","params":{{"taskId":"{task}","inputResponses":{{"elicitation-1":{spelled}}},
        "_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}}}}"#,
        super::asking_server_and_client::with_tasks(json!({ "elicitation": {} })),
    );
    acknowledged(
        &client.send_request(client.spelled("tasks/update", Some(&*task), request)).await.answer().await,
    );
    let seen = world.server.seen(|seen| seen.answers_raw("0")).await;
    let body = String::from_utf8(seen.body.to_vec()).expect("utf-8");
    assert!(body.contains(spelled), "{body}");
    drop(server);
}

#[tokio::test]
async fn a_foreign_client_can_neither_see_nor_answer_an_input_request() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let alice = asked_with_tasks(&world).bearing("alice");
    let (server, task) = begun(&world, &alice, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    asks(&alice, &task, &["elicitation-1"]).await;
    let eve = asked_with_tasks(&world).bearing("eve");
    let answers = json!({ "elicitation-1": accept("Eve") });
    let unknown = "0".repeat(task.len());
    let foreign = update(&eve, &task, answers.clone()).await;
    let nothing = update(&eve, &unknown, answers).await;
    assert!(indistinguishable(&foreign, &nothing), "{foreign:?} {nothing:?}");
    assert_eq!(refusal(&foreign).0, -32602);
    assert_eq!(refusal(&eve.of_task("tasks/get", &task).await).0, -32602);
    asks(&alice, &task, &["elicitation-1"]).await;
    assert!(!server.is_answered(&world, 0));
}

async fn next_status(stream: &mut Stream) -> Value {
    stream.notice("notifications/tasks").await
}

#[tokio::test]
async fn subscriptions_report_each_input_request_and_each_input_response() {
    let setup = Setup::new().route(ALWAYS);
    let world = setup.start().await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    let mut stream = client.listen(json!({ "taskIds": [task] })).await;
    let acknowledged = stream.notice("notifications/subscriptions/acknowledged").await;
    assert_eq!(acknowledged["notifications"], json!({ "taskIds": [task] }));

    server.ask(0, &form("Who?"));
    let said = next_status(&mut stream).await;
    assert_eq!((&said["taskId"], &said["status"]), (&json!(task), &json!("input_required")));
    assert_eq!(said["inputRequests"], json!({ "elicitation-1": form("Who?") }));
    server.ask(1, &form("Where?"));
    let said = next_status(&mut stream).await;
    assert_eq!(said["inputRequests"].as_object().map(|all| all.len()), Some(2));
    server.withdraw(0);
    assert_eq!(next_status(&mut stream).await["inputRequests"], json!({ "elicitation-2": form("Where?") }));
    update(&client, &task, json!({ "elicitation-2": accept("Turin") })).await;
    let said = next_status(&mut stream).await;
    assert_eq!((&said["status"], said.get("inputRequests")), (&json!("working"), None));
    server.says("Hello");
    let said = next_status(&mut stream).await;
    assert_eq!(
        (&said["status"], &said["result"]["content"][0]["text"]),
        (&json!("completed"), &json!("Hello"))
    );
}

#[tokio::test]
async fn cancelling_a_task_that_requires_input_reaches_the_server_and_ends_the_input_request() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, way).await;
        server.ask(0, &form("Who?"));
        asks(&client, &task, &["elicitation-1"]).await;
        acknowledged(&client.of_task("tasks/cancel", &task).await);
        let found = client.task(&task).await;
        assert_eq!((&found["status"], found.get("inputRequests")), (&json!("cancelled"), None));
        server.cancelled(&world).await;
        acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("late") })).await);
        server.answered(&world, 0).await;
        let answers = world.server.log().into_iter().filter(|seen| seen.answers(&json!(0)));
        for answer in answers {
            assert_ne!(answer.json["result"], accept("late"), "the task had ended");
        }
        server.left().await;
    }
}

#[tokio::test]
async fn a_server_that_stops_waiting_for_input_ends_the_task_with_its_result() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let (server, task) = begun(&world, &client, way).await;
        server.ask(0, &form("Who?"));
        asks(&client, &task, &["elicitation-1"]).await;
        // Without a word on the question itself.
        server.result(json!({ "content": [{ "type": "text", "text": "Too late" }], "isError": true }));
        let found = client.until(&task, |task| task["status"] != "input_required").await;
        assert_eq!((&found["status"], &found["result"]["isError"]), (&json!("completed"), &json!(true)));
        assert_eq!(found.get("inputRequests"), None);
    }
}

#[tokio::test]
async fn a_server_that_disconnects_during_an_input_request_fails_the_task() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    asks(&client, &task, &["elicitation-1"]).await;
    drop(server);
    let found = client.until(&task, |task| task["status"] != "input_required").await;
    assert_eq!((&found["status"], found.get("inputRequests")), (&json!("failed"), None));
    assert_eq!(world.calls(), 1, "it is not made again");
}

#[tokio::test]
async fn answers_sent_along_with_the_call_are_used_inside_the_task_too() {
    for way in WAYS {
        let world = ProxyAndServer::with(ALWAYS).await;
        let client = asked_with_tasks(&world);
        let along = json!({ "elicitation-1": accept("Ada"), "other": {} });
        let waiting = Talk::tool(&client).with("inputResponses", along).begin().await;
        let server = Asking::next(&world, way).await;
        let task = waiting.answer().await.task();
        server.ask(0, &form("Who?"));
        assert_eq!(server.answered(&world, 0).await, accept("Ada"));
        server.ask(1, &form("Where?"));
        asks(&client, &task, &["elicitation-2"]).await;
    }
}

#[tokio::test]
async fn an_input_request_waits_as_long_as_its_task_lives_and_not_only_as_long_as_calls_are_parked() {
    let world = Setup::new().route(ALWAYS).route("questions: { park: 1ms }").start().await;
    let client = asked_with_tasks(&world);
    let (server, task) = begun(&world, &client, Way::OnTheCall).await;
    server.ask(0, &form("Who?"));
    asks(&client, &task, &["elicitation-1"]).await;
    for _ in 0..100 {
        assert_eq!(client.task(&task).await["status"], "input_required");
    }
    acknowledged(&update(&client, &task, json!({ "elicitation-1": accept("Ada") })).await);
    assert_eq!(server.answered(&world, 0).await, accept("Ada"));
}
