//! Tasks and events at the admin listener: what it shows, and cancellation.

use super::Operator;
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, SLOW, Setup, start},
    support::{
        faulty_store::FaultyStore,
        modern_client::{Client, soon},
    },
};
use deferral::internals::{
    protocol::Timestamp,
    store::{MemoryStore, Store},
    task::{Record, TaskEvent, TaskId, TaskPrincipal, TaskSharing, apply},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const ADMIN: &str = "admin: 127.0.0.1:0";

fn operator(world: &ProxyAndServer) -> Operator {
    Operator::of(world.proxy.admin.as_ref().expect("there is one"))
}

/// An invalid token.
fn stranger(world: &ProxyAndServer) -> Operator {
    Operator::at(world.proxy.admin.as_ref().expect("there is one").address)
}

#[tokio::test]
async fn tasks_of_all_owners_are_shown_without_arguments_and_results() {
    let world = Setup::new().top(ADMIN).route(SLOW).start().await;
    let (alice, bob) = (world.tasker().bearing("alice"), world.tasker());
    let waiting = alice.send("tools/call", json!({ "name": "one", "arguments": { "x": "secret-in" } })).await;
    let call = world.server.call().await;
    let ended = waiting.answer().await.task();
    call.says("secret-out");
    alice.ended(&ended).await;
    let waiting = bob.call("two").await;
    let call = world.server.call().await;
    let working = waiting.answer().await.task();

    let operator = stranger(&world);
    let page = operator.json("/tasks").await;
    let tasks = page["tasks"].as_array().expect("a list");
    let shown: Vec<_> = tasks.iter().map(|task| (&task["tool"], &task["status"])).collect();
    assert_eq!(shown, [(&json!("two"), &json!("working")), (&json!("one"), &json!("completed"))], "{page}");
    assert_eq!((&page["next"], &page["counts"]), (&Value::Null, &json!({ "completed": 1, "working": 1 })));
    assert_eq!((&tasks[0]["principal"], &tasks[0]["view"]), (&json!("anonymous"), &json!("extension")));
    assert!(tasks[1]["principal"].as_str().is_some_and(|principal| principal.len() == 16), "{page}");
    assert_eq!((&tasks[0]["is_held"], &tasks[1]["is_held"]), (&json!(true), &json!(false)));
    for hidden in ["secret-in", "secret-out", &*ended, &*working] {
        assert!(!page.to_string().contains(hidden), "{hidden}: {page}");
    }
    // The digits that are shown and the whole id name the same task.
    let handle = tasks[0]["task"].as_str().expect("a handle");
    assert!(handle.len() == 12 && handle.bytes().all(|digit| digit.is_ascii_hexdigit()), "{handle}");
    assert!(working.starts_with(handle), "it is the beginning of the id that the client has");
    for name in [handle, &handle[..4], &handle.to_uppercase(), &working[..20], &*working] {
        let one = operator.json(&format!("/tasks/{name}")).await;
        assert_eq!((&one["task"], &one["tool"]), (&json!(handle), &json!("two")));
    }
    for unknown in ["0123456789ab", "x", &handle[..3], "0123456789abcdef0123456789abcdef"] {
        let answer = operator.get(&format!("/tasks/{unknown}")).await;
        assert!(answer.status == 404 && answer.error().contains("`/tasks` lists"), "{answer:?}");
    }
    for (query, tools) in [
        ("?tool=two", &["two"][..]),
        ("?status=completed", &["one"]),
        ("?route=/mcp&limit=1", &["two"]),
        ("?route=/other", &[]),
        ("?search=TW", &["two"]),
        ("?search=/mcp&limit=5", &["two", "one"]),
        ("?search=anonymous", &["two"]),
        (&*format!("?search={handle}"), &["two"]),
        ("?search=secret", &[]),
    ] {
        let page = operator.json(&format!("/tasks{query}")).await;
        let found: Vec<_> =
            page["tasks"].as_array().expect("a list").iter().map(|task| &task["tool"]).collect();
        assert_eq!(found, tools, "{query}");
    }
    assert_eq!(operator.get("/tasks?limit=many").await.status, 400);
    call.says("done");
}

#[tokio::test]
async fn a_server_that_is_down_is_shown_with_the_reason_and_history_is_kept() {
    let proxy = start("http://127.0.0.1:1/mcp", &[], &[ADMIN]);
    let operator = Operator::of(proxy.admin.as_ref().expect("there is one"));
    let before = operator.json("/routes").await;
    assert_eq!((&before[0]["is_up"], &before[0]["failure"]), (&Value::Null, &Value::Null), "{before}");
    Client::new(proxy.addresses[0]).call("t").await.answer().await;
    let routes = operator.json("/routes").await;
    let failure = routes[0]["failure"].as_str().expect("a reason");
    assert!(routes[0]["is_up"] == false && failure.contains("refused"), "{routes}");
    let history = operator.json("/history").await;
    assert!(history["step_ms"] == 5_000 && history["ended"].is_array(), "{history}");
    proxy.stop().await;
}

#[tokio::test]
async fn an_operator_with_the_token_cancels_as_the_client_would() {
    let world = Setup::new().top(ADMIN).route(SLOW).start().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let handle = stranger(&world).json("/tasks").await["tasks"][0]["task"].as_str().expect("one").to_owned();
    let cancel = format!("/tasks/{handle}/cancel");

    let refused = stranger(&world).post(&cancel).await;
    assert!(refused.status == 401 && refused.error().contains("admin.token"), "{refused:?}");
    let refused = stranger(&world).with_token("not-the-token-at-all").post(&cancel).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    let refused = operator(&world).ask("POST", &cancel, "origin: http://evil.example.com\r\n", "").await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(operator(&world).get(&cancel).await.status, 405);
    assert_eq!(client.task(&task).await["status"], "working", "nothing has happened");

    let done = operator(&world).post(&cancel).await;
    assert_eq!((done.status, &done.json()["status"]), (200, &json!("cancelled")), "{done:?}");
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
    call.left().await;
    assert_eq!(client.task(&task).await["status"], "cancelled");
    let again = operator(&world).post(&cancel).await;
    assert!(again.status == 409 && again.error().contains("cancelled already"), "{again:?}");
    assert_eq!(operator(&world).post("/tasks/0123456789ab/cancel").await.status, 404);
}

#[tokio::test]
async fn digits_that_several_tasks_begin_with_name_none_and_the_error_names_them() {
    let store = Arc::new(MemoryStore::default());
    for (entropy, tool) in [(0xabcd_ef01_u128, "one"), (0xabcd_ef02, "two"), (0xabcd_0000, "three")] {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let id = TaskId::from_entropy((entropy << 96).to_be_bytes());
        let record = Record::new(id, owner, tool, Duration::from_secs(3600), world_time());
        store.insert(Arc::new(record)).await.expect("kept");
    }
    let world = Setup::new().top(ADMIN).store(&FaultyStore::around(store)).start().await;
    for answer in
        [operator(&world).get("/tasks/abcdef").await, operator(&world).post("/tasks/abcdef/cancel").await]
    {
        let error = answer.error();
        assert_eq!(answer.status, 409, "{answer:?}");
        assert!(
            error.contains("abcdef010000 (one on /mcp, ") && error.contains("abcdef020000 (two on"),
            "{error}"
        );
        assert!(!error.contains("three") && error.ends_with("; write more digits"), "{error}");
    }
    assert_eq!(operator(&world).json("/tasks/abcdef02").await["tool"], "two");
    assert_eq!(operator(&world).json("/tasks/abcd0").await["tool"], "three");
}

#[tokio::test]
async fn ten_thousand_tasks_are_shown_page_by_page() {
    const TASKS: u32 = 10_300;
    let store = Arc::new(MemoryStore::default());
    let now = world_time();
    for number in 0..TASKS {
        let owner = TaskPrincipal { principal: [1; 16], route: "/mcp".into(), scope: TaskSharing::Principal };
        let id = TaskId::from_entropy((u128::from(number) << 96).to_be_bytes());
        let tool = if number == 0 { "first" } else { "t" };
        let mut record = Record::new(id, owner, tool, Duration::from_secs(3600), now);
        if number % 2 == 0 {
            record = apply(&record, TaskEvent::CANCELLED_BY_CLIENT, now).expect("it works").0;
        }
        store.insert(Arc::new(record)).await.expect("kept");
    }
    let world = Setup::new().top(ADMIN).store(&FaultyStore::around(store)).start().await;
    let operator = stranger(&world);
    let (mut seen, mut query, mut statuses) = (BTreeSet::new(), "?limit=1000".to_owned(), Vec::new());
    loop {
        let page = operator.json(&format!("/tasks{query}")).await;
        let tasks = page["tasks"].as_array().expect("a list");
        assert!(tasks.len() <= 1000);
        for task in tasks {
            assert!(seen.insert(task["task"].as_str().expect("a handle").to_owned()), "twice: {task}");
            statuses.push(task["status"] == "working");
        }
        match page["next"].as_str() {
            Some(next) => query = format!("?limit=1000&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), TASKS as usize);
    assert!(statuses.is_sorted_by(|one, next| one >= next), "those at work come first");
    // So many are looked at for what is rare, and no more; the next page goes on from there.
    let page = operator.json("/tasks?tool=first").await;
    assert_eq!(page["tasks"], json!([]));
    let rest =
        operator.json(&format!("/tasks?tool=first&after={}", page["next"].as_str().expect("more"))).await;
    assert_eq!((&rest["tasks"][0]["tool"], &rest["next"]), (&json!("first"), &Value::Null));
    // An open page receives some events.
    let event = Watcher::of(&world).await.event().await;
    assert_eq!(event["tasks"]["tasks"].as_array().map(Vec::len), Some(200));
    assert_eq!(event["tasks"]["counts"]["working"], TASKS / 2);
}

fn world_time() -> Timestamp {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("it is later");
    Timestamp::from_millis(u64::try_from(since.as_millis()).expect("a time"))
}

/// An operator with an open page.
struct Watcher(TcpStream, String);

impl Watcher {
    async fn of(world: &ProxyAndServer) -> Self {
        let address = world.proxy.admin.as_ref().expect("there is one").address;
        let mut socket = TcpStream::connect(address).await.expect("it listens");
        socket.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
        Self(socket, String::new())
    }

    /// What there is up to this.
    async fn until(&mut self, end: &str) -> String {
        let read = async {
            loop {
                if let Some(at) = self.1.find(end) {
                    return self.1.drain(..at + end.len()).collect();
                }
                let mut some = vec![0; 1 << 16];
                let length = self.0.read(&mut some).await.expect("it goes on");
                assert!(length > 0, "it ends: {}", self.1);
                self.1.push_str(&String::from_utf8_lossy(&some[..length]));
            }
        };
        soon("it is told", read).await
    }

    async fn event(&mut self) -> Value {
        self.until("event: state\ndata: ").await;
        let event = self.until("\n\n").await;
        serde_json::from_str(event.trim_end()).unwrap_or_else(|error| panic!("{error}: {event}"))
    }
}

#[tokio::test]
async fn an_event_stream_begins_with_the_current_state() {
    let world = Setup::new().top(ADMIN).route(SLOW).start().await;
    let mut watcher = Watcher::of(&world).await;
    let first = watcher.event().await;
    assert_eq!((&first["calls"]["total"], &first["tasks"]["tasks"]), (&json!(0), &json!([])));
    assert_eq!((&first["version"], &first["ready"]["status"]), (&json!("0.1.0"), &json!("ready")));
    let waiting = world.tasker().call("t").await;
    let call = world.server.call().await;
    waiting.answer().await.task();
    let told = loop {
        let event = watcher.event().await;
        if event["tasks"]["tasks"][0]["status"] == "working" && event["calls"]["by_outcome"]["task"] == 1 {
            break event;
        }
    };
    assert_eq!(told["routes"][0]["path"], "/mcp");
    assert_eq!(told["routes"][0]["after_ms"], 20);
    assert!(told["limits"].is_array() && told["tools"].is_array() && told["processes"]["routes"].is_array());
    assert!(told["at"].as_str() > told["started"].as_str(), "{told}");
    call.says("done");
}

#[tokio::test]
async fn event_streams_over_the_limit_are_refused_with_the_limit() {
    let world = Setup::new().top(ADMIN).start().await;
    let mut watchers = Vec::new();
    for _ in 0..8 {
        let mut watcher = Watcher::of(&world).await;
        watcher.event().await;
        watchers.push(watcher);
    }
    let refused = stranger(&world).get("/events").await;
    assert!(refused.status == 503 && refused.error().starts_with("8 event streams are open"), "{refused:?}");
    drop(watchers.pop());
    let let_in = async {
        loop {
            let mut one_more = Watcher::of(&world).await;
            if one_more.until(" ").await.starts_with("HTTP/1.1 ") && one_more.until(" ").await == "200 " {
                return one_more.event().await;
            }
        }
    };
    soon("a place is given back", let_in).await;
}

#[tokio::test]
async fn routes_and_the_configuration_are_shown_without_secrets() {
    let world = Setup::new()
        .top(ADMIN)
        .route("tools: [{ match: slow_*, mode: always }, { match: new_*, rollout: 25% }]")
        .route("tasks: { unsolicited: [{ header: X-Key, value: very-secret }] }")
        .start()
        .await;
    let operator = stranger(&world);
    let routes = operator.json("/routes").await;
    assert_eq!((&routes[0]["path"], &routes[0]["mode"]), (&json!("/mcp"), &json!("auto")));
    assert_eq!(routes[0]["rollout"], Value::Null, "it is for everybody");
    assert_eq!(
        routes[0]["tools"],
        json!([
            { "match": "slow_*", "mode": "always", "after_ms": 5000, "rollout": null },
            { "match": "new_*", "mode": "auto", "after_ms": 5000, "rollout": "25% by principal" },
        ])
    );
    assert!(routes[0]["server"].as_str().is_some_and(|server| server.starts_with("http://127.0.0.1:")));
    let config = operator.json("/config").await;
    assert_eq!(config["file"], "test.yaml");
    assert_eq!(config["settings"]["routes"][0]["tools"][0]["match"], "slow_*");
    assert!(!config.to_string().contains("very-secret"), "{config}");
}

/// The cause of a task that this client's call of `slow` becomes; or of the task of its ticket.
async fn cause(route: &[&'static str], takes_tasks: bool) -> Value {
    let setup = route.iter().fold(Setup::new().top(ADMIN), |setup, member| setup.route(member));
    let world = setup.start().await;
    let client = if takes_tasks { world.tasker() } else { world.client() };
    let waiting = client.call("slow").await;
    let call = world.server.call().await;
    waiting.answer().await.result();
    let page = operator(&world).json("/tasks").await;
    let task = page["tasks"][0]["task"].as_str().expect("a task").to_owned();
    let mut shown = operator(&world).json(&format!("/tasks/{task}")).await;
    call.says("done");
    shown["cause"].take()
}

/// What is configured, whether the client takes tasks, by what its call is one, after how long, by a rule or not.
type CauseCase = (&'static [&'static str], bool, &'static str, u64, bool);

async fn causes_are(cases: &[CauseCase]) {
    for (route, takes_tasks, by, after, has_rule) in cases {
        let cause = cause(route, *takes_tasks).await;
        let rule = if *has_rule { json!("slow") } else { Value::Null };
        let told = (&cause["by"], &cause["after_ms"], &cause["rule"]);
        assert_eq!(told, (&json!(by), &json!(after), &rule), "{route:?}: {cause}");
    }
}

#[tokio::test]
async fn the_cause_of_a_task_names_the_rule_that_set_what_counted_and_no_other() {
    const ALWAYS: &str = "defer: { mode: always, after: 1h }";
    causes_are(&[
        (&[SLOW, "tools: [{ match: slow, keys: [first] }]"], true, "threshold", 20, false),
        (&["tools: [{ match: slow, after: 20ms }]"], true, "threshold", 20, true),
        (&[SLOW, "tools: [{ match: slow, mode: required }]"], true, "threshold", 20, true),
        (&[SLOW, "tools: [{ match: slow, ticket: 1h }]"], true, "threshold", 20, false),
        (&[ALWAYS, "tools: [{ match: slow, after: 20ms }]"], true, "mode", 20, false),
        (&["tools: [{ match: slow, mode: always, after: 1h }]"], true, "mode", 3_600_000, true),
    ])
    .await;
}
