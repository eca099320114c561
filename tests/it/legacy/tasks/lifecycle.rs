//! The life of a task: its members, ids, times and lists.

use super::task_client::{
    ProxyAndServer, RELATED, Tasker, Value, heard, id, json, on_terms, question, setup, world,
};
use crate::{front::listener_and_service::Lines, proxy::proxy_and_server::ALWAYS};
use deferral::internals::policy::LegacyTaskPolicy;
use std::{collections::BTreeSet, time::Duration};

/// Every member of a task of the revision, and nothing else.
fn is_whole(task: &Value) {
    let members: BTreeSet<_> = task.as_object().expect("a task").keys().map(String::as_str).collect();
    let wanted = ["taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"];
    assert!(wanted.iter().all(|member| members.contains(member)), "{task:#}");
    assert!(members.iter().all(|member| wanted.contains(member) || *member == "statusMessage"), "{task:#}");
    for time in ["createdAt", "lastUpdatedAt"] {
        let text = task[time].as_str().expect("a text");
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000Z");
    }
    assert!(task["lastUpdatedAt"].as_str() >= task["createdAt"].as_str());
    assert!(task["ttl"].is_u64() && task["pollInterval"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_task_begins_to_work_and_is_answered_before_its_server_answers() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let answer = client.begins(json!({})).await;
    let result = answer.result();
    assert!(answer.is_json());
    is_whole(&result["task"]);
    assert_eq!(result["task"]["status"], "working");
    assert_eq!(result["_meta"], json!({ RELATED: { "taskId": id(&answer) } }));
    assert_eq!(result.get("resultType"), None);
    let call = world.server.call().await;
    let shown = client.get(&id(&answer)).await;
    is_whole(&shown);
    assert_eq!(shown, result["task"]);
    call.says("done");
}

/// As FastMCP 2.14 does, whose requests are those of the official SDK for Python.
#[tokio::test]
async fn a_client_that_takes_a_task_for_the_calls_own_result_finds_it_there_too() {
    const DRAFT: &str = "modelcontextprotocol.io/task";
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let is_a_draft = |result: &Value| {
        assert_eq!(result["content"], json!([]));
        assert_eq!(
            result["_meta"][DRAFT],
            json!({ "taskId": result["task"]["taskId"], "status": "working" })
        );
    };
    for agent in ["python-httpx/0.28.1", "node", "my-python-httpx/1"] {
        let result = Tasker(client.0.with("user-agent", agent)).begins(json!({})).await.result();
        match agent.starts_with("python") {
            true => is_a_draft(&result),
            false => assert_eq!((result.get("content"), result["_meta"].get(DRAFT)), (None, None), "{agent}"),
        }
        world.server.call().await.says("done");
    }
    // Or it says so itself, as the draft had it.
    let wish = json!({ "name": "t", "_meta": { DRAFT: { "taskId": "mine", "keepAlive": 90_000 }, "k": 1 } });
    let result = client.ask("tools/call", wish).await.result();
    is_a_draft(&result);
    assert_eq!(result["task"]["ttl"], 90_000);
    let call = world.server.call().await;
    let said = &call.seen.json["params"]["_meta"];
    assert_eq!((&said["k"], said.get(DRAFT)), (&json!(1), None), "{said:#}");
    call.says("done");
}

#[tokio::test]
async fn a_task_is_whole_in_every_answer_and_moves_only_as_it_may() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut listening = client.listens().await;
    let (task, call_id, events) = client.makes_stream(&world).await;
    let mut told = Vec::new();
    events.send(&question(0, "who?"));
    let put = heard(&mut listening).await;
    told.push(heard(&mut listening).await);
    client.answers(&put["id"], json!({ "action": "decline" })).await;
    told.push(heard(&mut listening).await);
    events.result(&call_id, json!({ "content": [] }));
    told.push(heard(&mut listening).await);
    let statuses: Vec<_> =
        told.iter().map(|told| told["params"]["status"].as_str().expect("a status")).collect();
    assert_eq!(statuses, ["input_required", "working", "completed"]);
    for notice in &told {
        assert_eq!(notice["method"], "notifications/tasks/status");
        is_whole(&notice["params"]);
    }
    let listed = client.ask("tasks/list", json!({})).await.result();
    assert_eq!(listed.get("_meta"), None);
    assert_eq!(listed.get("nextCursor"), None);
    is_whole(&listed["tasks"][0]);
    assert_eq!(listed["tasks"][0]["taskId"], json!(task));

    let (task, _call) = client.makes(&world).await;
    let cancelled = client.of("tasks/cancel", &task).await.result();
    is_whole(&cancelled);
    assert!(cancelled["statusMessage"].is_string());
}

#[tokio::test]
async fn the_task_is_the_one_that_the_params_name() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, _call) = client.makes(&world).await;
    let (other, _other_call) = client.makes(&world).await;
    let about = json!({ RELATED: { "taskId": other } });
    let shown = client.ask("tasks/get", json!({ "taskId": task, "_meta": about })).await.result();
    assert_eq!((&shown["taskId"], shown.get("_meta")), (&json!(task), None));
    let shown = client.ask("tasks/cancel", json!({ "taskId": task, "_meta": about })).await.result();
    assert_eq!(shown["taskId"], json!(task));
    assert_eq!(client.get(&other).await["status"], "working");
    let without = client.ask("tasks/get", json!({ "_meta": about })).await;
    assert_eq!(without.refusal(), (200, -32602));
    for wrong in [json!(7), Value::Null, json!({}), json!([other])] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            assert_eq!(client.ask(method, json!({ "taskId": wrong })).await.refusal(), (200, -32602));
        }
    }
}

#[tokio::test]
async fn task_ids_are_unguessable_texts() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut seen = BTreeSet::new();
    let mut calls = Vec::new();
    for _ in 0..50 {
        let (task, call) = client.makes(&world).await;
        calls.push(call);
        // 128 bits and more, of which no two have much in common.
        assert!(task.len() * 5 >= 128, "{task}");
        for other in &seen {
            let other: &String = other;
            let same = task.chars().zip(other.chars()).filter(|(one, other)| one == other).count();
            assert!(same <= task.len() / 2, "{task} {other}");
        }
        assert!(seen.insert(task));
    }
}

#[tokio::test]
async fn the_requested_ttl_is_granted_within_the_configured_bounds() {
    let hour = Duration::from_secs(60 * 60);
    let world = on_terms(LegacyTaskPolicy { max_ttl: hour, ..LegacyTaskPolicy::default() }).await;
    let client = Tasker::hello(&world).await;
    let half = 30 * 60 * 1000;
    for (wish, granted, kept) in [
        (json!({ "ttl": half }), half, half),
        (json!({ "ttl": 1.8e6 }), half, half),
        (json!({ "ttl": 1e300 }), 3_600_000, 3_600_000),
        (json!({ "ttl": null }), 3_600_000, 3_600_000),
        // While it works never so short that a client that is away for a moment finds nothing.
        (json!({ "ttl": 30_000 }), 60_000, 30_000),
    ] {
        let answer = client.begins(wish.clone()).await;
        assert_eq!(answer.result()["task"]["ttl"], granted, "{wish}");
        assert_eq!(client.get(&id(&answer)).await["ttl"], granted, "{wish}");
        world.server.call().await.says("done");
        let ended = client.becomes(&id(&answer), "completed").await;
        assert!(ended["ttl"].as_u64() >= Some(kept), "as long as was wished for, from the end on");
    }
}

#[tokio::test]
async fn a_model_may_go_on_with_what_the_operator_gave_it() {
    let immediate = "it works\n\"on\" it".to_owned();
    let world = on_terms(LegacyTaskPolicy {
        immediate_response: Some(immediate.clone()),
        ..LegacyTaskPolicy::default()
    })
    .await;
    let client = Tasker::hello(&world).await;
    let answer = client.begins(json!({})).await;
    let about = answer.result()["_meta"].clone();
    assert_eq!(about["io.modelcontextprotocol/model-immediate-response"], json!(immediate));
    assert_eq!(about[RELATED]["taskId"], json!(id(&answer)));
}

#[tokio::test]
async fn a_list_has_pages_and_every_task_once() {
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let mut made = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..120 {
        let (task, call) = client.makes(&world).await;
        made.push(task);
        calls.push(call);
    }
    calls.pop().expect("a call").says("done");
    let (mut found, mut sizes, mut cursor) = (Vec::new(), Vec::new(), None::<Value>);
    loop {
        let params = match &cursor {
            Some(cursor) => json!({ "cursor": cursor }),
            None => json!({}),
        };
        let page = client.ask("tasks/list", params).await.result();
        let tasks = page["tasks"].as_array().expect("a list");
        sizes.push(tasks.len());
        found.extend(tasks.iter().map(|task| task["taskId"].as_str().expect("an id").to_owned()));
        match page.get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(sizes, [50, 50, 20]);
    let all = |ids: &[String]| ids.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!((found.len(), all(&found)), (120, all(&made)));

    // No cursor opens the list of another principal.
    let other = Tasker::hello(&world).await;
    let page = other.ask("tasks/list", json!({ "cursor": cursor })).await.result();
    assert_eq!(page["tasks"], json!([]));
    for wrong in [json!(""), json!("x"), json!("!!"), json!(7), json!({}), json!("NyA3")] {
        let answer = client.ask("tasks/list", json!({ "cursor": wrong })).await;
        assert_eq!(answer.refusal(), (200, -32602), "{wrong}");
    }
}

/// What is refused at this limit, which is named.
async fn is_full(limits: &'static str, name: &str, text: &str) {
    let world = setup().route(ALWAYS).top(limits).start().await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.says(text);
    client.becomes(&task, "completed").await;
    let refused = client.begins(json!({})).await;
    assert_eq!(refused.refusal(), (200, -31006));
    let words = refused.error()["message"].as_str().expect("words").to_owned();
    assert!(words.contains(name), "{words}");
    assert_eq!(world.calls(), 1, "nothing is sent");
    assert_eq!(client.list().await, [task], "nothing is evicted, and nothing left behind");
}

#[tokio::test]
async fn a_task_over_the_limit_is_refused_with_the_limit() {
    is_full("limits: { tasks: 1 }", "limits.tasks", "").await;
    is_full("limits: { tasks_per_principal: 1 }", "limits.tasks_per_principal", "").await;
    // A small result is kept whatever the limit; a larger one would not be.
    is_full("limits: { stored_bytes: 900 }", "limits.stored_bytes", &"x".repeat(900)).await;
    let share = "limits: { stored_bytes_per_principal: 900 }";
    is_full(share, "limits.stored_bytes_per_principal", &"x".repeat(900)).await;
}

#[tokio::test]
async fn polls_and_misses_over_the_limit_get_an_error() {
    let world = setup().route(ALWAYS).top("limits: { misses_per_minute: 2 }").start().await;
    let client = Tasker::hello(&world).await;
    let codes = async |_: u8| client.of("tasks/get", super::task_client::UNKNOWN).await.refusal();
    assert_eq!(
        [codes(1).await, codes(2).await, codes(3).await],
        [(200, -32602), (200, -32602), (200, -31006)]
    );

    let world = setup().route(ALWAYS).top("limits: { polls_per_second: 1 }").start().await;
    let client = Tasker::hello(&world).await;
    client.ask("tasks/list", json!({})).await.result();
    let answer = client.ask("tasks/list", json!({})).await;
    assert_eq!(answer.refusal(), (200, -31006));
    assert!(answer.error()["message"].as_str().expect("words").contains("limits.polls_per_second"));
}

#[tokio::test]
async fn the_life_of_a_task_is_logged() {
    let lines = Lines::record();
    let world = world(ALWAYS).await;
    let client = Tasker::hello(&world).await;
    let (task, call) = client.makes(&world).await;
    call.says("done");
    client.becomes(&task, "completed").await;
    client.result(&task).await.result();
    let access = lines.so_far();
    let of = |method: &str| {
        let line = access.iter().rev().find(|line| line["method"] == method);
        line.unwrap_or_else(|| panic!("{method} is not in {access:#?}")).clone()
    };
    assert_eq!(
        (&of("tools/call")["outcome"], &of("tools/call")["task"]),
        (&json!("task"), &json!(task[..8]))
    );
    assert_eq!(
        (&of("tasks/get")["target"], &of("tasks/get")["shown"]),
        (&json!(task[..8]), &json!("completed"))
    );
    assert_eq!(
        (&of("tasks/result")["target"], &of("tasks/result")["shown"]),
        (&json!(task[..8]), &json!("completed"))
    );
}

#[tokio::test]
async fn no_memory_is_kept_of_ended_tasks() {
    let world = world(ALWAYS).await;
    for number in 0..40 {
        let client = Tasker::hello(&world).await;
        let listening = match number % 2 {
            0 => Some(client.listens().await),
            _ => None,
        };
        let (task, id, events) = client.makes_stream(&world).await;
        let waiting = client.waits(&task).await;
        events.send(&question(0, "who?"));
        client.becomes(&task, "input_required").await;
        match number % 4 {
            0 | 1 => events.result(&id, json!({ "content": [] })),
            2 => drop(events.clone()),
            _ => drop(client.of("tasks/cancel", &task).await.result()),
        }
        drop((events, listening, waiting));
        client
            .until(&task, |shown| shown["status"] != "input_required" && shown["status"] != "working")
            .await;
        // An unfetched result would delay the end.
        client.result(&task).await;
    }
    // What is still held would be waited for, and counted as lost.
    let ProxyAndServer { server: _server, proxy } = world;
    let stopped = tokio::time::timeout(Duration::from_secs(5), proxy.stop()).await;
    stopped.expect("nothing is waited for: the drain time is longer");
}
