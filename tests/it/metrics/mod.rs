//! Metrics: names and labels agree with the manual, and counts with events.

use crate::{
    proxy::proxy_and_server::{ProxyAndServer, SLOW, Setup},
    support::modern_client::soon,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const ADMIN: &str = "admin: 127.0.0.1:0";
const PAGE: &str = include_str!("../../../src/manual/metrics.md");

/// What is written at one moment.
struct Scrape {
    text: String,
    /// By name, with labels in the order of their names, as they are written.
    samples: BTreeMap<String, f64>,
    /// The type of each name.
    types: BTreeMap<String, String>,
}

// === impl Scrape ===

impl Scrape {
    async fn of(world: &ProxyAndServer) -> Self {
        let text = read(world, "/metrics").await;
        let mut scrape = Self { samples: BTreeMap::new(), types: BTreeMap::new(), text: String::new() };
        let mut helped = BTreeSet::new();
        for line in text.lines() {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
                }
                ["#", "TYPE", name, kind] => {
                    assert!(helped.contains(name), "no help before {line}");
                    let twice = scrape.types.insert(name.to_owned(), kind.to_owned());
                    assert_eq!(twice, None, "{line}");
                }
                _ => {
                    let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
                    let family = scrape.family(name);
                    assert!(family.is_some(), "no type before {line}");
                    let twice = scrape.samples.insert(name.to_owned(), value.parse().expect("a number"));
                    assert_eq!(twice, None, "{line}");
                }
            }
        }
        Self { text, ..scrape }
    }

    /// The family that a sample is of.
    fn family(&self, sample: &str) -> Option<&str> {
        let name = sample.split('{').next()?;
        let plain = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        [Some(name), plain]
            .into_iter()
            .flatten()
            .find_map(|name| Some(self.types.get_key_value(name)?.0.as_str()))
    }

    fn get(&self, sample: &str) -> f64 {
        let found = self.samples.get(sample);
        *found.unwrap_or_else(|| panic!("no {sample} in\n{}", self.text))
    }

    fn has(&self, sample: &str) -> bool {
        self.samples.contains_key(sample)
    }
}

/// What is at a path of the operator's address.
async fn read(world: &ProxyAndServer, path: &str) -> String {
    let address = world.proxy.admin.as_ref().expect("there is one").address;
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    soon("an answer", socket.read_to_string(&mut answer)).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

async fn until(world: &ProxyAndServer, wished: impl Fn(&Scrape) -> bool) -> Scrape {
    soon("the counts that are wished for", async {
        loop {
            let scrape = Scrape::of(world).await;
            if wished(&scrape) {
                return scrape;
            }
        }
    })
    .await
}

/// Name, type and labels of each family, as the page on metrics lists them.
fn listed() -> BTreeMap<String, (String, String)> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| {
        let cells: Vec<_> = row.split(" | ").collect();
        let (name, kind, labels) = (cells.first()?, cells.get(1)?, cells.get(2)?);
        let labels = labels.replace(['`', ',', '-'], "");
        Some((name.trim_end_matches('`').to_owned(), ((*kind).to_owned(), labels.trim().to_owned())))
    });
    rows.collect()
}

#[tokio::test]
async fn what_is_written_is_what_the_manual_lists() {
    let world = Setup::new().top(ADMIN).route(SLOW).start().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.says("done");
    client.ended(&task).await;
    let scrape = Scrape::of(&world).await;
    let listed = listed();
    for (name, kind) in &scrape.types {
        let (listed, _) = listed.get(name).unwrap_or_else(|| panic!("{name} is not on the page"));
        assert_eq!(kind, listed, "{name}");
    }
    for sample in scrape.samples.keys() {
        let name = scrape.family(sample).expect("it has a family");
        let wanted: BTreeSet<_> = listed[name].1.split_whitespace().collect();
        let labels = sample.split_once('{').map_or("", |(_, rest)| rest.trim_end_matches('}'));
        let found = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
        let found: BTreeSet<_> = found.filter(|label| *label != "le").collect();
        assert_eq!(found, wanted, "{sample}");
    }
}

#[tokio::test]
async fn a_call_that_becomes_a_task_is_counted_from_its_request_to_its_fetched_result() {
    let listed = json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
    let setup = Setup::new().server(|options| options.tools = Some(listed));
    let world = setup.top(ADMIN).route(SLOW).start().await;
    // The list is known before there is a task.
    let first = world.client().call("another").await;
    world.server.call().await.says("done");
    first.answer().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let working = Scrape::of(&world).await;
    assert_eq!(working.get(r#"deferral_tasks{route="/mcp",status="working"}"#), 1.0);
    assert_eq!(working.get(r#"deferral_tasks_created_total{route="/mcp",tool="t"}"#), 1.0);
    let task_calls = r#"deferral_calls_total{method="tools/call",outcome="task",route="/mcp"}"#;
    until(&world, |scrape| scrape.has(task_calls)).await;
    assert!(!working.has(r#"deferral_call_duration_seconds_count{route="/mcp",tool="t"}"#), "it still runs");
    assert_eq!(working.get(r#"deferral_limit_used{limit="limits.tasks"}"#), 1.0);
    call.says("done");
    client.ended(&task).await;
    let ended = Scrape::of(&world).await;
    assert_eq!(ended.get(r#"deferral_tasks{route="/mcp",status="completed"}"#), 1.0);
    assert!(!ended.has(r#"deferral_tasks{route="/mcp",status="working"}"#));
    assert_eq!(ended.get(r#"deferral_tasks_ended_total{route="/mcp",status="completed",tool="t"}"#), 1.0);
    assert_eq!(ended.get(r#"deferral_call_duration_seconds_count{route="/mcp",tool="t"}"#), 1.0);
    assert_eq!(ended.get(r#"deferral_task_duration_seconds_count{route="/mcp",tool="t"}"#), 1.0);
    assert_eq!(ended.get(r#"deferral_task_polls_count{route="/mcp"}"#), 1.0);
    assert!(ended.get(r#"deferral_task_polls_sum{route="/mcp"}"#) >= 1.0);
    assert_eq!(ended.get(r#"deferral_upstream_up{route="/mcp"}"#), 1.0);
    assert!(ended.get(r#"deferral_upstream_sessions{route="/mcp"}"#) >= 1.0);
    assert!(ended.get(r#"deferral_store_seconds_count{op="insert"}"#) >= 1.0);
    assert!(ended.get("process_resident_memory_bytes") > 0.0);
    assert_eq!(ended.get(r#"deferral_build_info{version="0.1.0"}"#), 1.0);
}

#[tokio::test]
async fn a_call_that_is_no_task_is_counted_by_how_it_ended_and_how_long_it_took() {
    let world = Setup::new().top(ADMIN).start().await;
    let client = world.client();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let held = until(&world, |scrape| scrape.has(r#"deferral_calls_in_flight{route="/mcp"}"#)).await;
    assert_eq!(held.get(r#"deferral_calls_in_flight{route="/mcp"}"#), 1.0);
    assert_eq!(held.get(r#"deferral_limit_used{limit="limits.calls"}"#), 1.0);
    call.says("done");
    waiting.answer().await;
    let waiting = client.call("bad").await;
    world.server.call().await.error(json!({ "code": -32602, "message": "unknown tool" }));
    waiting.answer().await;
    client.ask("made/up", json!({})).await;
    let counted =
        until(&world, |scrape| scrape.get(r#"deferral_calls_in_flight{route="/mcp"}"#) == 0.0).await;
    let calls = |method: &str, outcome: &str| {
        counted.get(&format!(r#"deferral_calls_total{{method="{method}",outcome="{outcome}",route="/mcp"}}"#))
    };
    assert_eq!(calls("tools/call", "result"), 1.0);
    assert_eq!(calls("tools/call", "server_error"), 1.0);
    assert_eq!(calls("POST", "refused"), 1.0);
    assert_eq!(counted.get(r#"deferral_call_duration_seconds_count{route="/mcp",tool="t"}"#), 1.0);
    // No server has answered to that name.
    assert_eq!(counted.get(r#"deferral_call_duration_seconds_count{route="/mcp",tool="other"}"#), 1.0);
    assert!(!counted.text.contains("bad") && !counted.text.contains("made/up"), "{}", counted.text);
}

/// The counters of a route that has not been called, all of which are 0.
const FROM_THE_START: &[&str] = &[
    "deferral_outcome_unknown_total{route=\"/b\"}",
    "deferral_results_uncollected_total{route=\"/b\"}",
    "deferral_upstream_events_skipped_total{route=\"/b\"}",
    "deferral_questions_total{kind=\"elicitation\",outcome=\"declined\",route=\"/b\"}",
    "deferral_questions_total{kind=\"other\",outcome=\"withdrawn\",route=\"/b\"}",
    "deferral_tickets_total{outcome=\"never_collected\",route=\"/b\"}",
    "deferral_calls_total{method=\"tools/call\",outcome=\"result\",route=\"/b\"}",
    "deferral_calls_total{method=\"tools/call\",outcome=\"timed_out\",route=\"/b\"}",
    "deferral_tasks_created_total{route=\"/b\",tool=\"other\"}",
    "deferral_tasks_ended_total{route=\"/b\",status=\"failed\",tool=\"other\"}",
    "deferral_would_defer_total{route=\"/b\",tool=\"other\"}",
    "deferral_task_polls_count{route=\"/b\"}",
    "deferral_cancel_seconds_count{route=\"/b\"}",
];

#[tokio::test]
async fn each_counter_of_a_route_is_zero_from_the_start_also_where_a_reload_adds_it() {
    let mut world = Setup::new().top(ADMIN).start().await;
    let first = Scrape::of(&world).await;
    for counter in FROM_THE_START {
        assert_eq!(first.get(&counter.replace("/b", "/mcp")), 0.0, "{counter}");
        assert!(!first.has(counter), "there is no such route: {counter}");
    }
    for op in ["insert", "swap"] {
        assert_eq!(first.get(&format!("deferral_store_seconds_count{{op=\"{op}\"}}")), 0.0);
    }
    assert_eq!(first.get("deferral_log_lines_dropped_total"), 0.0);
    let more = format!("path: /mcp\n  - path: /b\n    upstream: {{ url: \"{}\" }}", world.server.url());
    world.reload(&[&more], &[ADMIN]).expect("it goes on");
    let second = Scrape::of(&world).await;
    for counter in FROM_THE_START {
        assert_eq!(second.get(counter), 0.0, "{counter}");
    }
}

#[tokio::test]
async fn a_tool_that_is_counted_by_name_has_all_its_counters() {
    let world = Setup::new().top(ADMIN).start().await;
    let waiting = world.client().call("t").await;
    world.server.call().await.says("done");
    waiting.answer().await;
    let called = "deferral_call_duration_seconds_count{route=\"/mcp\",tool=\"t\"}";
    let scrape = until(&world, |scrape| scrape.has(called)).await;
    for counter in ["deferral_tasks_created_total", "deferral_would_defer_total"] {
        assert_eq!(scrape.get(&format!("{counter}{{route=\"/mcp\",tool=\"t\"}}")), 0.0);
    }
    for status in ["completed", "failed", "cancelled"] {
        let ended = format!("deferral_tasks_ended_total{{route=\"/mcp\",status=\"{status}\",tool=\"t\"}}");
        assert_eq!(scrape.get(&ended), 0.0);
    }
    let failed = "deferral_calls_total{method=\"tools/call\",outcome=\"upstream_failed\",route=\"/mcp\"}";
    assert_eq!(scrape.get(failed), 0.0);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_down_and_its_limits_are_known() {
    let world = Setup::new().top(ADMIN).top("limits: { calls: 77 }").start().await;
    let ProxyAndServer { server, proxy } = world;
    let address = server.addr();
    drop(server);
    while TcpStream::connect(address).await.is_ok() {}
    let world = ProxyAndServer {
        server: crate::support::legacy_server::LegacyServer::start(Default::default()).await,
        proxy,
    };
    let answer = world.client().ask("tools/call", json!({ "name": "t" })).await;
    assert_eq!(answer.error()["code"], -31001);
    let scrape = Scrape::of(&world).await;
    assert_eq!(scrape.get(r#"deferral_upstream_up{route="/mcp"}"#), 0.0);
    assert_eq!(scrape.get(r#"deferral_limit{limit="limits.calls"}"#), 77.0);
    assert_eq!(scrape.get(r#"deferral_limit{limit="timeouts.queue"}"#), 30.0);
}

#[tokio::test]
async fn tools_and_limits_are_there_as_json() {
    let world = Setup::new().top(ADMIN).start().await;
    let waiting = world.client().call("t").await;
    world.server.call().await.says("done");
    waiting.answer().await;
    let tools = soon("the tool", async {
        loop {
            let tools: Value = serde_json::from_str(&read(&world, "/tools").await).expect("JSON");
            if tools[0]["calls"]["count"] == 1 {
                return tools;
            }
        }
    })
    .await;
    assert_eq!((&tools[0]["route"], &tools[0]["tool"]), (&json!("/mcp"), &json!("t")));
    assert!(
        tools[0]["p50_us"].as_u64().expect("a number") <= tools[0]["calls"]["longest_us"].as_u64().unwrap()
    );
    let limits: Value = serde_json::from_str(&read(&world, "/limits").await).expect("JSON");
    let calls = limits.as_array().unwrap().iter().find(|limit| limit["limit"] == "limits.calls");
    assert_eq!(calls.expect("it is a limit")["value"], 10_000.0);
}

#[tokio::test]
async fn the_tools_by_which_tickets_are_used_are_no_tools_of_the_server() {
    let named = "tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms, wait: 1h }] }";
    let world = Setup::new().top(ADMIN).route(named).start().await;
    let holder = world.client().with("x-agent", "1");
    let waiting = holder.call("t").await;
    let call = world.server.call().await;
    let given = waiting.answer().await.result();
    let ticket = &given["_meta"]["deferral/ticket"]["ticket"];
    assert!(ticket.is_string(), "{given}");
    for _ in 0..2 {
        let params = json!({ "name": "deferral_cancel", "arguments": { "ticket": ticket } });
        let told = holder.ask("tools/call", params).await.result();
        assert_eq!(told.get("isError"), None, "{told}");
    }
    let calls = |scrape: &Scrape| -> f64 {
        let of = r#"deferral_calls_total{method="tools/call","#;
        scrape.samples.iter().filter(|(name, _)| name.starts_with(of)).map(|(_, count)| count).sum()
    };
    let scrape = until(&world, |scrape| calls(scrape) == 3.0).await;
    let named: Vec<_> = scrape.samples.keys().filter(|name| name.contains("deferral_cancel\"")).collect();
    assert_eq!(named, [""; 0]);
    drop(call);
}

#[tokio::test]
async fn an_event_that_is_no_message_is_counted_and_its_call_answered() {
    let world = Setup::new().top(ADMIN).start().await;
    let waiting = world.client().call("t").await;
    let call = world.server.call().await;
    let id = call.id();
    let events = call.stream();
    events.raw("data: ping\n\ndata: []\n\n");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    assert_eq!(waiting.answer().await.text(), "done");
    let skipped = "deferral_upstream_events_skipped_total{route=\"/mcp\"}";
    assert_eq!(Scrape::of(&world).await.get(skipped), 2.0);
}
