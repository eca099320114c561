//! `deferral explain`: the history of a task.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
};
use serde_json::{Value, json};
use std::process::Command;

const ADMIN: &str = "admin: 127.0.0.1:0";

/// What it prints, on both, and its exit code.
async fn explain(world: &ProxyAndServer, args: &[&str]) -> (String, String, Option<i32>) {
    let admin = format!("http://{}", world.proxy.admin.as_ref().expect("there is one").address);
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = move || {
        let program = env!("CARGO_BIN_EXE_deferral");
        Command::new(program).arg("explain").args(["--admin", &admin]).args(args).output().expect("it runs")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_explained_from_its_call_to_its_end() {
    let world = Setup::new()
        .top(ADMIN)
        .route("defer: { after: 1h }")
        .route("tools: [{ match: 'slow*', after: 20ms }]")
        .start()
        .await;
    let client = world.tasker();
    let waiting = client.call("slow_one").await;
    let call = world.server.call().await;
    let token = call.seen.json["params"]["_meta"]["progressToken"].clone();
    let events = call.stream();
    let task = waiting.answer().await.task();
    for (progress, words) in [(1, "reading"), (2, "writing")] {
        let params = json!({ "progressToken": token, "progress": progress, "message": words });
        events.notify("notifications/progress", params);
        client
            .until(&task, |shown| shown["statusMessage"].as_str().is_some_and(|said| said.contains(words)))
            .await;
    }
    let (story, err, code) = explain(&world, &[&task]).await;
    assert_eq!((err.as_str(), code), ("", Some(0)));
    for words in [
        "slow_one on /mcp, working",
        "shown as a task of the tasks extension",
        "the call reached the threshold: mode auto, after 0.02 s, by the rule `match: slow*` of the route's `tools`",
        "became a task after the call had run for 0.0",
        "progress of the server, 2 times until ",
        "its call runs in this process",
    ] {
        assert!(story.contains(words), "no {words:?} in\n{story}");
    }
    assert!(!story.contains(&task), "whoever has its id has the task:\n{story}");
    // The log names it by the beginning of its id.
    assert_eq!(explain(&world, &[&task[..8]]).await.0, story);
    client.of_task("tasks/cancel", &task).await;
    client.ended(&task).await;
    let (story, ..) = explain(&world, &[&task]).await;
    assert!(story.contains("Z  cancelled\n") && story.contains("  kept until "), "{story}");
    let (json, ..) = explain(&world, &["--json", &task]).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["cause"], json!({ "by": "threshold", "mode": "auto", "after_ms": 20, "rule": "slow*" }));
    let life: Vec<_> = json["life"].as_array().expect("a list").iter().map(|one| &one["what"]).collect();
    assert_eq!(life, ["progressed", "cancelled"]);
    let (_, err, code) = explain(&world, &["0123456789ab"]).await;
    assert!(err.contains("there is no task `0123456789ab`"), "{err}");
    assert_eq!(code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_a_task_that_the_client_requested() {
    let world = Setup::new().top(ADMIN).route("defer: { after: 1h }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let ask = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "t", "arguments": {}, "task": { "ttl": 60_000 } },
    });
    let answer = client.post(&ask.to_string()).await.answer().await;
    let task = answer.result()["task"]["taskId"].as_str().expect("a task").to_owned();
    let _call = world.server.call().await;
    let (story, ..) = explain(&world, &[&task]).await;
    assert!(
        story.contains("the client requested a task (`params.task`): mode auto, by the route's `defer`"),
        "{story}"
    );

    let world = Setup::new().top(ADMIN).route("defer: { mode: always }").start().await;
    let task = world.tasker().call("t").await.answer().await.task();
    let _call = world.server.call().await;
    let (story, ..) = explain(&world, &[&task]).await;
    assert!(story.contains("every call is a task at once: mode always"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_rollout_names_it() {
    let world = Setup::new().top(ADMIN).route("defer: { mode: always, rollout: 100% }").start().await;
    let task = world.tasker().call("t").await.answer().await.task();
    let _call = world.server.call().await;
    let (story, ..) = explain(&world, &[&task]).await;
    let words = "mode always, by the route's `defer`, within the rollout of 100% by principal";
    assert!(story.contains(words), "{story}");
}
