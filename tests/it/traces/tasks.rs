//! One trace for the whole life of a task: the call and every request about it.

use super::{PARENT, TRACE, Traced};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::{
        call_resumption::keeps_events,
        proxy_and_server::{ALWAYS, ProxyAndServer, Setup},
        restart::Place,
    },
    support::{
        collector::Collector,
        modern_client::{Client, soon},
    },
};
use serde_json::{Value, json};

/// A client that takes tasks, and may be asked.
fn asked(world: &ProxyAndServer) -> Client {
    world.client().declaring(json!({
        "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} },
    }))
}

fn question(id: u32) -> Value {
    let params = json!({ "mode": "form", "message": "Who is a-secret?", "requestedSchema": { "type": "object", "properties": {} } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params })
}

fn call() -> Value {
    json!({ "name": "slow", "arguments": {}, "_meta": { "traceparent": PARENT } })
}

#[tokio::test]
async fn a_deferred_call_its_input_request_and_every_request_about_it_are_linked() {
    let traced = Traced::with(Setup::new().route(ALWAYS)).await;
    let client = asked(&traced.world);
    let waiting = client.send("tools/call", call()).await;
    let call = traced.world.server.call().await;
    let (id, task) = (call.id(), waiting.answer().await.task());
    let events = call.stream();
    events.send(&question(0));
    client.until(&task, |shown| shown["status"] == "input_required").await;
    let answer = json!({ "action": "accept", "content": { "who": "a-secret" } });
    let answers = json!({ "taskId": task, "inputResponses": { "elicitation-1": answer } });
    client.ask("tasks/update", answers).await.result();
    events.result(&id, json!({ "content": [{ "type": "text", "text": "a-secret" }] }));
    client.ended(&task).await;
    let collector = traced.told().await;

    let (request, call) = (collector.span("tools/call slow", false), collector.span("tools/call slow", true));
    assert_eq!((request.trace.as_str(), call.trace.as_str()), (TRACE, TRACE));
    assert_eq!(call.parent, request.id);
    assert_eq!((request.says("deferral.outcome"), &request.failed), (Some("task"), &None));
    let tag = &task[..8];
    for span in [&request, &call] {
        assert_eq!(span.says("deferral.task.id"), Some(tag), "{span:#?}");
    }
    assert_eq!(call.says("deferral.task.status"), Some("completed"));
    let happened: Vec<_> = call.events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(happened, ["deferral.task.created", "deferral.question", "deferral.question.answered"]);
    assert_eq!(call.event("deferral.question")["mcp.method.name"], "elicitation/create");
    assert_eq!(call.event("deferral.question")["deferral.question.key"], "elicitation-1");
    for name in ["tasks/get", "tasks/update"] {
        let spans = collector.spans(name);
        assert!(!spans.is_empty());
        for span in spans {
            assert_ne!(span.trace, TRACE, "its client has begun another");
            assert_eq!(
                (&span.links[..], span.says("deferral.task.id")),
                (&[request.id.clone()][..], Some(tag))
            );
        }
    }
    for span in collector.all() {
        let all = format!("{:?}", span.raw);
        assert!(!all.contains("a-secret") && !all.contains(&task), "{all}");
    }
}

#[tokio::test]
async fn a_cancel_ends_the_call_and_is_linked_to_it() {
    let traced = Traced::with(Setup::new().route(ALWAYS)).await;
    let client = asked(&traced.world);
    let waiting = client.send("tools/call", call()).await;
    let _call = traced.world.server.call().await;
    let task = waiting.answer().await.task();
    client.of_task("tasks/cancel", &task).await.result();
    traced.world.server.message("notifications/cancelled").await;
    let collector = traced.told().await;
    let (request, call) = (collector.span("tools/call slow", false), collector.span("tools/call slow", true));
    assert_eq!(collector.span("tasks/cancel", false).links, [request.id]);
    let happened: Vec<_> = call.events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(happened, ["deferral.task.created", "deferral.task.cancelled"]);
    assert_eq!(call.says("error.type"), Some("cancelled"));
}

#[tokio::test]
async fn a_client_that_returns_with_answers_is_linked_to_its_call() {
    let traced = Traced::new().await;
    let client = traced.client().declaring(json!({ "elicitation": {} }));
    let waiting = client.send("tools/call", call()).await;
    let asking = traced.world.server.call().await;
    let id = asking.id();
    let events = asking.stream();
    events.send(&question(0));
    let asked = waiting.answer().await.result();
    let answer = json!({ "action": "accept", "content": {} });
    let again = json!({
        "name": "slow", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": { "elicitation-1": answer },
    });
    let waiting = client.send("tools/call", again).await;
    traced.world.server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [] }));
    waiting.answer().await.result();
    let collector = traced.told().await;
    let call = collector.span("tools/call slow", true);
    let mut requests = collector.spans("tools/call slow");
    requests.retain(|span| !span.is_client);
    let [first, second] = &requests[..] else { panic!("{requests:#?}") };
    assert_eq!((first.says("deferral.outcome"), first.trace.as_str()), (Some("input_required"), TRACE));
    assert_eq!((&second.links, second.says("deferral.outcome")), (&vec![first.id.clone()], Some("result")));
    assert_eq!(call.parent, first.id);
}

/// A call that runs on, and the ticket that its client has for it.
async fn given_a_ticket() -> (Traced, String) {
    let tickets = "tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms, wait: 1h }] }";
    let tools = json!([{ "name": "slow", "inputSchema": { "type": "object" } }]);
    let traced =
        Traced::with(Setup::new().route(tickets).server(|options| options.tools = Some(tools))).await;
    let result = traced.client().with("x-agent", "1").ask("tools/call", call()).await.result();
    let ticket = result["_meta"]["deferral/ticket"]["ticket"].as_str().expect("a ticket").to_owned();
    (traced, ticket)
}

#[tokio::test]
async fn a_result_that_is_fetched_with_a_ticket_is_linked_to_its_call() {
    let (traced, ticket) = given_a_ticket().await;
    let client = traced.client().with("x-agent", "1");
    let call = traced.world.server.call().await;
    call.says("done");
    let fetch = json!({ "name": "deferral_result", "arguments": { "ticket": ticket } });
    client.ask("tools/call", fetch).await.result();
    let collector = traced.told().await;
    let request = collector.span("tools/call slow", false);
    let fetched = collector.span("tools/call deferral_result", false);
    assert_eq!((&fetched.links[..], request.trace.as_str()), (&[request.id.clone()][..], TRACE));
    assert_eq!(collector.span("tools/call slow", true).parent, request.id);
    assert!(!format!("{:?}", collector.all()).contains(&ticket));
}

#[tokio::test]
async fn a_cancel_with_a_ticket_is_linked_to_its_call() {
    let (traced, ticket) = given_a_ticket().await;
    let cancel = json!({ "name": "deferral_cancel", "arguments": { "ticket": ticket } });
    traced.client().with("x-agent", "1").ask("tools/call", cancel).await.result();
    traced.world.server.message("notifications/cancelled").await;
    let collector = traced.told().await;
    let request = collector.span("tools/call slow", false);
    assert_eq!(collector.span("tools/call deferral_cancel", false).links, [request.id]);
    assert_eq!(collector.span("tools/call slow", true).says("error.type"), Some("cancelled"));
}

#[tokio::test]
async fn a_legacy_clients_task_is_traced_as_well() {
    let setup = Setup::new().route(ALWAYS).server(|options| options.capabilities = json!({ "tools": {} }));
    let traced = Traced::with(setup).await;
    let older = LegacyClient::new(traced.world.addr()).hello().await;
    let ask = async |method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        older.post(&message.to_string()).await.answer().await.result()
    };
    let mut wanted = call();
    wanted["task"] = json!({});
    let task = ask("tools/call", wanted).await["task"]["taskId"].as_str().expect("a task").to_owned();
    let call = traced.world.server.call().await;
    let told = call.seen.json["params"]["_meta"]["traceparent"].clone();
    assert_eq!(call.seen.header("traceparent"), told.as_str());
    ask("tasks/get", json!({ "taskId": task })).await;
    call.says("done");
    ask("tasks/result", json!({ "taskId": task })).await;
    let collector = traced.told().await;
    let (request, call) = (collector.span("tools/call slow", false), collector.span("tools/call slow", true));
    assert_eq!(told, Value::from(format!("00-{TRACE}-{}-01", call.id)));
    assert_eq!((call.parent, call.trace.as_str()), (request.id.clone(), TRACE));
    for name in ["tasks/get", "tasks/result"] {
        let span = collector.span(name, false);
        assert_eq!(
            (&span.links[..], span.says("deferral.task.id")),
            (&[request.id.clone()][..], Some(&task[..8]))
        );
    }
}

#[tokio::test]
async fn a_call_that_the_next_process_resumes_goes_on_in_its_trace() {
    let mut place = Place::before(keeps_events).await;
    let (before, after) = (Collector::start().await, Collector::start().await);
    let top = |collector: &Collector| -> &'static [&'static str] {
        let otlp = format!("telemetry: {{ otlp: \"{}\" }}", collector.url());
        Box::leak(Box::new([&*otlp.leak(), "drain: 20ms"]))
    };
    let mut first = place.start(&[ALWAYS], top(&before)).await;
    let client = first.client().with_tasks();
    let waiting = client.send("tools/call", call()).await;
    let begun = place.server.call().await;
    let (id, task) = (begun.id(), waiting.answer().await.task());
    let events = begun.stream();
    let progress = json!({ "progressToken": id, "progress": 1, "message": "begun" });
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
    events.raw(format!("id: e1\ndata: {notice}\n\n"));
    client.until(&task, |shown| shown["statusMessage"] == "begun").await;
    first.stop();
    first.gone().await;
    let (request, left) = (before.span("tools/call slow", false), before.span("tools/call slow", true));
    assert_eq!(left.events.last().map(|(name, _)| name.as_str()), Some("deferral.task.released"));
    assert_eq!(left.failed, None);

    let mut second = place.start(&[ALWAYS], top(&after)).await;
    let seen = place.server.seen(|seen| seen.header("last-event-id").is_some()).await;
    let events = soon("its stream is waited for", place.server.listener(seen.session())).await;
    events.result(&id, json!({ "content": [] }));
    let client = second.client().with_tasks();
    client.ended(&task).await;
    second.stop();
    second.gone().await;
    let call = after.span("tools/call slow", true);
    assert_eq!((call.trace.as_str(), &call.parent), (TRACE, &request.id));
    assert_eq!(call.events[0].0, "deferral.task.resumed");
    assert_eq!(after.spans("tasks/get")[0].links, [request.id]);
}
