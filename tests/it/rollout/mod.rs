//! Rollout: a mode for a share of the principals.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::modern_client::Client,
    tickets::{names, tools},
};
use deferral::internals::config;
use serde_json::{Value, json};
use std::path::Path;

/// By the manual's formula `carol` is at 56 %, `alice` at 51 % and `bob` at 63 %.
const HALF: &str = "principal: { header: X-User }\n    defer: { mode: always, rollout: 53% }";

fn user(world: &ProxyAndServer, name: &str) -> Client {
    world.tasker().with("x-user", name)
}

async fn is_in(world: &ProxyAndServer, client: &Client) -> bool {
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    call.says("done");
    let answer = waiting.answer().await.result();
    answer["resultType"] == "task"
}

#[tokio::test]
async fn principals_in_the_rollout_get_tasks_and_others_are_only_observed() {
    for _ in 0..2 {
        // The same in another proxy.
        let world = ProxyAndServer::with(HALF).await;
        for (name, expected) in [("alice", true), ("bob", false), ("carol", false)] {
            assert_eq!(is_in(&world, &user(&world, name)).await, expected, "{name}");
        }
        assert!(!is_in(&world, &world.tasker()).await, "nobody knows who that is");
    }
}

#[tokio::test]
async fn a_task_shows_the_rollout_that_made_it() {
    let world = Setup::new().top("admin: 127.0.0.1:0").route(HALF).start().await;
    let task = user(&world, "alice").call("t").await.answer().await.task();
    let operator = crate::admin::Operator::of(world.proxy.admin.as_ref().expect("there is one"));
    let shown = operator.json(&format!("/tasks/{task}")).await;
    assert_eq!(shown["cause"]["rollout"], "53% by principal", "{shown:#}");
}

#[tokio::test]
async fn a_tool_has_a_rollout_of_its_own_and_names_outweigh_shares() {
    let world = ProxyAndServer::with(
        "tools: [{ match: t, mode: always, rollout: { share: 0%, by: { header: X-Tenant }, always: [a*], never: [ab] } }]",
    )
    .await;
    let tenant = |name: &str| world.tasker().with("x-tenant", name);
    for (name, expected) in [("aa", true), ("ab", false), ("b", false)] {
        assert_eq!(is_in(&world, &tenant(name)).await, expected, "{name}");
    }
}

#[tokio::test]
async fn a_session_of_2025_11_25_in_the_rollout_is_offered_tasks() {
    const ROUTE: &str = "principal: { header: X-User }\n    defer: { mode: auto, after: 10ms, rollout: 53% }\n    tasks: { unsolicited: always }";
    let world = Setup::new().server(|options| options.tools = Some(tools())).route(ROUTE).start().await;
    for (name, expected) in [("alice", true), ("bob", false)] {
        let older = LegacyClient::new(world.addr()).with("x-user", name);
        let session = older.hello().await;
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let listed = session.post(&list.to_string()).await.answer().await.result();
        assert_eq!(listed["tools"][0]["execution"].is_object(), expected, "{name}: {listed:#}");
        let waiting = session.call(7).await;
        let call = world.server.call().await;
        if expected {
            let task: Value = waiting.answer().await.result();
            assert!(task["task"]["taskId"].is_string(), "{task:#}");
            call.says("late");
        } else {
            call.says("in time");
            assert_eq!(waiting.answer().await.text(), "in time");
        }
    }
}

#[tokio::test]
async fn only_principals_in_the_rollout_get_tickets() {
    const ROUTE: &str = "principal: { header: X-User }\n    defer: { mode: auto, rollout: 53% }\n    held: { ticket: 10ms }\n    tickets: { for: [{ header: X-Agent, value: \"1\" }] }";
    let world = Setup::new().server(|options| options.tools = Some(tools())).route(ROUTE).start().await;
    for (name, expected) in [("alice", true), ("bob", false)] {
        let client = world.client().with("x-agent", "1").with("x-user", name);
        let listed = client.ask("tools/list", json!({})).await.result();
        assert_eq!(names(&listed).contains(&"deferral_result"), expected, "{name}");
        let waiting = client.call("t").await;
        let call = world.server.call().await;
        if expected {
            assert!(waiting.answer().await.result()["_meta"]["deferral/ticket"].is_object());
            call.says("late");
        } else {
            call.says("in time");
            assert_eq!(waiting.answer().await.text(), "in time");
        }
    }
}

#[tokio::test]
async fn sessions_have_their_own_rollout_position_and_keep_it() {
    let by_session = "defer: { mode: auto, after: 10ms, rollout: { share: 50%, by: session } }\n    tasks: { unsolicited: always }";
    let world = Setup::new().server(|options| options.tools = Some(tools())).route(by_session).start().await;
    let older = LegacyClient::new(world.addr());
    let mut seen = [0_u32; 2];
    while seen.contains(&0) {
        let session = older.hello().await;
        let mut shown = Vec::new();
        for id in 1..=2 {
            let list = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
            let listed = session.post(&list.to_string()).await.answer().await.result();
            shown.push(listed["tools"][0]["execution"].is_object());
        }
        assert_eq!(shown[0], shown[1], "a session stays where it is");
        seen[usize::from(shown[0])] += 1;
        // By chance it takes longer once in 2^64 runs.
        assert!(seen.iter().sum::<u32>() < 64, "all sessions are on one side: {seen:?}");
        let waiting = session.call(7).await;
        let call = world.server.call().await;
        match shown[0] {
            true => assert!(waiting.answer().await.result()["task"]["taskId"].is_string()),
            false => {
                call.says("in time");
                assert_eq!(waiting.answer().await.text(), "in time");
            }
        }
    }
}

#[tokio::test]
async fn a_task_request_outside_the_rollout_is_answered_without_a_task() {
    const ROUTE: &str = "principal: { header: X-User }\n    defer: { mode: auto, after: 10ms, rollout: 53% }";
    let world = Setup::new().server(|options| options.tools = Some(tools())).route(ROUTE).start().await;
    let session = LegacyClient::new(world.addr()).with("x-user", "bob").hello().await;
    let ask = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "t", "arguments": {}, "task": { "ttl": 60_000 } },
    });
    // "Receivers that do not declare the task capability … MUST process requests of that type normally" (2025-11-25).
    let waiting = session.post(&ask.to_string()).await;
    world.server.call().await.says("in time");
    assert_eq!(waiting.answer().await.text(), "in time");
}

#[test]
fn a_share_by_session_warns_that_clients_of_the_newest_revision_have_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let doubts = |by: &str| {
        let path = folder.path().join("f.yaml");
        let text = format!(
            "routes:\n- upstream: {{ url: 'http://a' }}\n  defer: {{ rollout: {{ share: 5%, by: {by} }} }}\n"
        );
        std::fs::write(&path, text).expect("it is written");
        config::check(&path).expect("it is right").1.map(|doubts| doubts.to_string()).unwrap_or_default()
    };
    assert!(
        doubts("session").contains("warning: clients of 2026-07-28 have no sessions"),
        "{}",
        doubts("session")
    );
    assert!(!doubts("principal").contains("have no sessions"));
}

#[test]
fn problems_of_a_rollout_have_their_place() {
    let wrong = |defer: &str, tools: &str| {
        let text = format!(
            "routes:\n- upstream: {{ url: 'http://a' }}\n  defer: {{ {defer} }}\n  tools: [{tools}]\n"
        );
        config::parse(Path::new("f"), &text).expect_err(&text).to_string()
    };
    for (defer, tools, said) in [
        ("rollout: 150%", "", "f:3:21: `150%` is more than 100%; write a share as in 25% or 0.5%"),
        ("rollout: 25", "", "f:3:21: `25` has no % sign; write a share as in 25% or 0.5%"),
        ("rollout: -1%", "", "f:3:21: `-1%` is not a share; write a share as in 25% or 0.5%"),
        (
            "rollout: 0.00001%",
            "",
            "f:3:21: `0.00001%` is finer than 0.0001%; write a share as in 25% or 0.5%",
        ),
        ("rollout: { by: session }", "", "f:3:21: `rollout` has no `share`; add one, as in `share: 25%`"),
        (
            "rollout: { share: 1%, by: moon }",
            "",
            "f:3:38: unknown value `moon` of `by`; use principal, session or { header: X-Tenant }",
        ),
        (
            "rollout: { share: 1%, always: [a], never: [a] }",
            "",
            "f:3:43: `a` is in both `always` and `never`; remove it from one",
        ),
        (
            "mode: never, rollout: 25%",
            "",
            "f:3:34: mode `never` makes no tasks, so a rollout has no effect; use `auto`, or remove `rollout`",
        ),
        (
            "mode: auto",
            "{ match: x, mode: observe, rollout: 25% }",
            "f:4:47: mode `observe` makes no tasks, so a rollout has no effect; use `auto`, or remove `rollout`",
        ),
    ] {
        assert_eq!(wrong(defer, tools), said);
    }
    // A rule of a tool inherits it.
    let inherited =
        "f:4:32: mode `never` makes no tasks, so a rollout has no effect; use `auto`, or remove `rollout`";
    assert_eq!(wrong("mode: never", "{ match: x, rollout: 25% }"), inherited);
    let fine = "routes: [{ upstream: { url: 'http://a' }, defer: { mode: never, rollout: 25% }, tools: [{ match: x, mode: auto }] }]";
    assert!(config::parse(Path::new("f"), fine).is_ok());
}
