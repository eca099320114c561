//! Tickets of legacy clients, in their sessions.

use super::{IMPATIENT, PATIENT, SOON, names, ticket, tools};
use crate::{
    legacy::proxy_and_client::{HELLO, LegacyClient, READY},
    proxy::{
        program::Program,
        proxy_and_server::{ProxyAndServer, Setup},
    },
    support::{
        legacy_server::{Call, LegacyServer, Seen},
        modern_client::{Answer, Waiting, soon},
    },
};
use serde_json::{Value, json};

fn setup() -> Setup {
    Setup::new().server(|options| options.tools = Some(tools()))
}

/// One whose client has read the list of tools.
pub(super) async fn holder(world: &ProxyAndServer) -> LegacyClient {
    let client = LegacyClient::new(world.addr()).hello().await;
    list(&client).await;
    client
}

/// One that can be asked this, besides.
async fn holder_declaring(world: &ProxyAndServer, capabilities: &str) -> LegacyClient {
    let client = LegacyClient::new(world.addr()).with("authorization", "Bearer one");
    let hello = HELLO.replace(r#""capabilities":{}"#, &format!(r#""capabilities":{capabilities}"#));
    let opened = client.post(&hello).await.answer().await;
    let client = client.within(opened.header("mcp-session-id"));
    client.post(READY).await.answer().await;
    list(&client).await;
    client
}

async fn list(client: &LegacyClient) -> Value {
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    client.post(&ask.to_string()).await.answer().await.result()
}

/// Request 5, which may wait.
async fn shown(client: &LegacyClient, tool: &str, ticket: &str) -> Waiting {
    let params = json!({ "name": tool, "arguments": { "ticket": ticket } });
    let ask = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params });
    client.post(&ask.to_string()).await
}

pub(super) async fn use_ticket(client: &LegacyClient, tool: &str, ticket: &str) -> Answer {
    shown(client, tool, ticket).await.answer().await
}

pub(super) async fn result_of(client: &LegacyClient, ticket: &str) -> Value {
    use_ticket(client, "deferral_result", ticket).await.result()
}

/// A call whose client has been answered with this ticket.
pub(super) async fn deferred(server: &LegacyServer, client: &LegacyClient) -> (Call, String) {
    let waiting = client.call(7).await;
    let call = server.call().await;
    (call, ticket(&waiting.answer().await.result()).0)
}

#[tokio::test]
async fn a_slow_call_is_answered_with_a_ticket_and_its_result_is_fetched_as_often_as_one_likes() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let answer = waiting.answer().await;
    assert_eq!(answer.json()["id"], 7);
    let result = answer.result();
    let (held, words) = ticket(&result);
    for word in ["t is still running", "deferral_result", &held] {
        assert!(words.contains(word), "{words}");
    }
    call.spelled(
        r#"{"content":[ {"type":"text","text":"done"} ],"structuredContent":{"n":1.50},"_meta":{"x":1}}"#,
    );
    for _ in 0..2 {
        let fetched = use_ticket(&client, "deferral_result", &held).await;
        let same =
            r#"{"content":[ {"type":"text","text":"done"} ],"structuredContent":{"n":1.50},"_meta":{"x":1}}"#;
        assert!(fetched.body.contains(same), "{fetched:?}");
    }
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_quick_call_is_answered_as_it_is() {
    let world = setup().route("held: { ticket: 1h }").start().await;
    let client = holder(&world).await;
    let waiting = client.call(7).await;
    world.server.call().await.spelled(r#"{"content":[ ],"n":1e400}"#);
    assert!(waiting.answer().await.body.contains(r#"{"content":[ ],"n":1e400}"#));
}

#[tokio::test]
async fn a_call_that_still_runs_reports_it_again_and_how_far_it_is() {
    let world = setup().route(SOON).route(IMPATIENT).start().await;
    let client = holder(&world).await;
    let (call, held) = deferred(&world.server, &client).await;
    let (id, events) = (call.seen.json["params"]["_meta"]["progressToken"].clone(), call.stream());
    events.notify(
        "notifications/progress",
        json!({ "progressToken": id, "progress": 3, "total": 4, "message": "reading" }),
    );
    loop {
        let result = result_of(&client, &held).await;
        let (again, words) = ticket(&result);
        assert_eq!(again, held, "it stays the same");
        if words.contains("reading") {
            assert!(
                result["_meta"]["deferral/ticket"]["statusMessage"]
                    .as_str()
                    .expect("text")
                    .contains("reading")
            );
            break;
        }
    }
}

#[tokio::test]
async fn the_tools_that_take_it_are_listed_and_schemas_of_results_are_not() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let listed = list(&client).await;
    assert_eq!(names(&listed), ["t", "u", "deferral_result", "deferral_cancel"]);
    assert_eq!(listed["tools"][0].get("outputSchema"), None);
    for tool in &listed["tools"].as_array().expect("tools")[2..] {
        assert_eq!(tool["inputSchema"]["required"], json!(["ticket"]));
        assert!(tool["description"].is_string() && tool["annotations"]["title"].is_string());
    }
}

/// A call that is made behind others has been answered with its ticket: the time of theirs, had they one, is over.
async fn somebody_has_a_ticket(world: &ProxyAndServer) {
    let client = holder(world).await;
    let params = json!({ "name": "u" });
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    ticket(&client.post(&ask.to_string()).await.answer().await.result());
}

/// The client's call is answered with its result, however long that takes.
async fn waits_as_before(world: &ProxyAndServer, client: &LegacyClient) {
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    somebody_has_a_ticket(world).await;
    call.says("late");
    assert_eq!(waiting.answer().await.text(), "late");
}

#[tokio::test]
async fn a_tool_without_tickets_keeps_its_schema_and_waits() {
    let world = setup().route(SOON).route("tools: [{ match: t, ticket: off }]").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let listed = list(&client).await;
    assert!(listed["tools"][0]["outputSchema"].is_object());
    waits_as_before(&world, &client).await;
}

#[tokio::test]
async fn a_client_that_was_not_given_the_tools_waits_as_before() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    waits_as_before(&world, &client).await;
}

#[tokio::test]
async fn a_client_with_tasks_gets_no_ticket() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
    let opened = LegacyClient::new(world.addr()).post(hello).await.answer().await;
    let client = LegacyClient::new(world.addr()).within(opened.header("mcp-session-id"));
    client.post(READY).await.answer().await;
    assert_eq!(names(&list(&client).await), ["t", "u"]);
    // One that asks for a task gets that.
    let client = holder(&world).await;
    let wish = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","task":{}}}"#;
    let made = client.post(wish).await.answer().await.result();
    assert_eq!(made["task"]["status"], "working");
}

#[tokio::test]
async fn only_configured_clients_get_tickets() {
    let world = setup()
        .route("tickets: { for: [{ client: \"codex*\", after: 50ms }, { header: X-Agent, value: \"1\", after: 50ms }] }")
        .start()
        .await;
    let named = |name: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"{name}","version":"1"}}}}}}"#
        )
    };
    let mut seen = Vec::new();
    for (name, agent) in [("codex-mcp-client", "0"), ("other", "1"), ("other", "0")] {
        let client = LegacyClient::new(world.addr()).with("x-agent", agent);
        let opened = client.post(&named(name)).await.answer().await;
        let client =
            client.within(opened.header("mcp-session-id")).with("mcp-protocol-version", "2025-06-18");
        client.post(READY).await.answer().await;
        seen.push(names(&list(&client).await).len());
    }
    assert_eq!(seen, [4, 4, 2]);
}

#[tokio::test]
async fn a_tool_of_the_server_keeps_its_name() {
    let world = setup()
        .server(|options| options.tools = Some(json!([{ "name": "deferral_result", "inputSchema": {} }])))
        .route(SOON)
        .route(PATIENT)
        .start()
        .await;
    let client = LegacyClient::new(world.addr()).hello().await;
    assert_eq!(names(&list(&client).await), ["deferral_result", "deferral_result_2", "deferral_cancel"]);
    let waiting = client.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "deferral_result" } }).to_string()).await;
    let call = world.server.call().await;
    assert_eq!(call.name(), "deferral_result", "it is the server's");
    let (held, words) = {
        let result = waiting.answer().await.result();
        let (held, words) = ticket(&result);
        (held, words.to_owned())
    };
    assert!(words.contains("deferral_result_2"), "{words}");
    call.says("theirs");
    let fetched = use_ticket(&client, "deferral_result_2", &held).await.result();
    assert_eq!(fetched["content"][0]["text"], "theirs");
}

#[tokio::test]
async fn a_call_is_stopped_with_its_ticket() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    let (call, held) = deferred(&world.server, &client).await;
    let stopped = use_ticket(&client, "deferral_cancel", &held).await.result();
    assert!(stopped["content"][0]["text"].as_str().expect("text").contains("asked to stop"), "{stopped}");
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
    let gone = result_of(&client, &held).await;
    assert!(gone["content"][0]["text"].as_str().expect("text").contains("already stopped"), "{gone}");
    let again = use_ticket(&client, "deferral_cancel", &held).await.result();
    assert!(again["content"][0]["text"].as_str().expect("text").contains("already stopped"), "{again}");
}

#[tokio::test]
async fn a_call_that_failed_fails_as_it_would_have() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    for error in [false, true] {
        let (call, held) = deferred(&world.server, &client).await;
        match error {
            false => {
                call.result(json!({ "content": [{ "type": "text", "text": "no disk" }], "isError": true }))
            }
            true => call.error(json!({ "code": -32000, "message": "broken", "data": 5 })),
        }
        let fetched = use_ticket(&client, "deferral_result", &held).await.json();
        match error {
            false => assert_eq!(fetched["result"]["isError"], true),
            true => assert_eq!(fetched["error"], json!({ "code": -32000, "message": "broken", "data": 5 })),
        }
    }
}

#[tokio::test]
async fn unknown_and_foreign_tickets_get_the_same_response() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let owner = |token: &'static str| {
        let client = LegacyClient::new(world.addr()).with("authorization", token);
        async move {
            let client = client.hello().await;
            list(&client).await;
            client
        }
    };
    let (client, other) = (owner("Bearer a").await, owner("Bearer b").await);
    let (call, held) = deferred(&world.server, &client).await;
    let foreign = result_of(&other, &held).await;
    assert_eq!(foreign["isError"], true);
    let task = "0".repeat(32);
    for unknown in ["", "tk_x", &task, &held[..held.len() - 1]] {
        assert_eq!(result_of(&other, unknown).await, foreign, "{unknown}");
        assert_eq!(result_of(&client, unknown).await, foreign, "{unknown}");
    }
    let cancelled = use_ticket(&other, "deferral_cancel", &held).await.result();
    assert_eq!(cancelled, foreign);
    call.says("done");
    assert_eq!(result_of(&client, &held).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_ticket_is_no_task_and_is_in_no_list_of_tasks() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    let (_call, held) = deferred(&world.server, &client).await;
    for (method, params) in [("tasks/get", json!({ "taskId": held })), ("tasks/list", json!({}))] {
        let ask = json!({ "jsonrpc": "2.0", "id": 9, "method": method, "params": params });
        let answer = client.post(&ask.to_string()).await.answer().await.json();
        match method {
            "tasks/get" => assert!(answer["error"].is_object(), "{answer}"),
            _ => assert_eq!(answer["result"]["tasks"], json!([])),
        }
    }
}

#[tokio::test]
async fn input_requests_are_sent_to_the_client_that_waits_for_the_result() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder_declaring(&world, r#"{"elicitation":{}}"#).await;
    let (call, held) = deferred(&world.server, &client).await;
    let (id, events) = (call.id(), call.stream());
    let mut stream = {
        let waiting = shown(&client, "deferral_result", &held).await;
        events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": { "message": "?" } }));
        waiting.stream().await
    };
    let question = stream.next().await;
    assert_eq!(
        (&question["method"], &question["params"]),
        (&json!("elicitation/create"), &json!({ "message": "?" }))
    );
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} } });
    assert_eq!(client.post(&answer.to_string()).await.answer().await.status, 202);
    let answered = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(answered.json["result"]["action"], "accept");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    let last = stream.next().await;
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(5), &json!("done")));
}

#[tokio::test]
async fn a_ticket_holder_gets_no_undeclared_input_requests() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    for (declares, is_asked) in [("{}", false), (r#"{"elicitation":{}}"#, true)] {
        let client = holder_declaring(&world, declares).await;
        let session = client.session();
        let (call, held) = deferred(&world.server, &client).await;
        let (id, events) = (call.id(), call.stream());
        let waiting = shown(&client, "deferral_result", &held).await;
        for (id, method) in [(40, "elicitation/create"), (41, "sampling/createMessage"), (42, "roots/list")] {
            events.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} }));
        }
        let refused = |seen: &Seen| seen.session() == session && seen.json["error"]["code"] == -32601;
        world.server.sees(if is_asked { 2 } else { 3 }, refused).await;
        let last = || events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
        let messages = if is_asked {
            let mut stream = waiting.stream().await;
            let question = stream.next().await;
            let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } });
            client.post(&answer.to_string()).await.answer().await;
            world.server.seen(|seen| seen.session() == session && seen.answers(&json!(40))).await;
            last();
            vec![question, stream.next().await]
        } else {
            last();
            waiting.answer().await.messages()
        };
        let asked = |message: &&Value| message["method"] == "elicitation/create";
        assert_eq!(messages.iter().filter(asked).count(), usize::from(is_asked), "{messages:#?}");
        assert_eq!(messages.last().expect("one")["result"]["content"][0]["text"], "done");
    }
}

/// The session in which it waits has declared less than the one in which it called.
#[tokio::test]
async fn what_a_holder_did_not_declare_that_waits_in_another_session_is_declined() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder_declaring(&world, r#"{"elicitation":{}}"#).await;
    let (call, held) = deferred(&world.server, &client).await;
    let (id, events) = (call.id(), call.stream());
    let other = holder_declaring(&world, "{}").await;
    let waiting = shown(&other, "deferral_result", &held).await;
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": {} }));
    let declined = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(declined.json["error"]["code"], -32601);
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    let last = waiting.answer().await;
    assert_eq!(last.messages().last().expect("the result")["result"]["content"][0]["text"], "done");
    assert!(!last.body.contains("elicitation/create"), "{last:?}");
}

#[tokio::test]
async fn a_holder_that_cannot_be_asked_leaves_it_to_another_that_waits() {
    for able_is_first in [true, false] {
        let world = setup().route(SOON).route(PATIENT).start().await;
        let able = holder_declaring(&world, r#"{"elicitation":{}}"#).await;
        let (call, held) = deferred(&world.server, &able).await;
        let (id, events) = (call.id(), call.stream());
        let unable = holder_declaring(&world, "{}").await;
        let (asked, other) = if able_is_first {
            let asked = shown(&able, "deferral_result", &held).await;
            (asked, shown(&unable, "deferral_result", &held).await)
        } else {
            let other = shown(&unable, "deferral_result", &held).await;
            (shown(&able, "deferral_result", &held).await, other)
        };
        // What is asked behind both has been made behind them.
        for client in [&able, &unable] {
            list(client).await;
        }
        events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": {} }));
        events.send(&json!({ "jsonrpc": "2.0", "id": 41, "method": "sampling/createMessage", "params": {} }));
        let declined = world.server.seen(|seen| seen.answers(&json!(41))).await;
        assert_eq!(declined.json["error"]["code"], -32601, "nobody can be asked that");
        let mut stream = asked.stream().await;
        let question = stream.next().await;
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} } });
        able.post(&answer.to_string()).await.answer().await;
        let answered = world.server.seen(|seen| seen.answers(&json!(40))).await;
        assert_eq!(answered.json["result"]["action"], "accept", "{able_is_first}");
        events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
        let last = other.answer().await;
        assert!(!last.body.contains("elicitation/create"), "{last:?}");
    }
}

#[tokio::test]
async fn a_holder_that_cannot_be_asked_declines_once_the_other_has_left() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let able = holder_declaring(&world, r#"{"elicitation":{}}"#).await;
    let (call, held) = deferred(&world.server, &able).await;
    let events = call.stream();
    let unable = holder_declaring(&world, "{}").await;
    let asked = shown(&able, "deferral_result", &held).await;
    let _waits = shown(&unable, "deferral_result", &held).await;
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": {} }));
    let mut stream = asked.stream().await;
    assert_eq!(stream.next().await["method"], "elicitation/create");
    stream.leave();
    let declined = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(declined.json["error"]["code"], -32601);
}

#[tokio::test]
async fn a_ticket_is_good_after_the_proxy_has_been_killed() {
    let mut place = crate::proxy::restart::Place::before(|options| {
        crate::proxy::call_resumption::keeps_events(options);
        options.tools = Some(tools());
    })
    .await;
    let first: Program = place.start(&[SOON, PATIENT], &[]).await;
    let client = LegacyClient::new(first.addr).hello().await;
    list(&client).await;
    let (call, held) = deferred(&place.server, &client).await;
    call.says("done");
    assert_eq!(result_of(&client, &held).await["content"][0]["text"], "done");
    first.killed().await;

    let second = place.start(&[SOON, PATIENT], &[]).await;
    let client = LegacyClient::new(second.addr).within(&client.session());
    assert_eq!(result_of(&client, &held).await["content"][0]["text"], "done");
    second.killed().await;
}

#[tokio::test]
async fn a_holder_that_reads_nothing_does_not_hold_up_its_call() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    let (call, held) = deferred(&world.server, &client).await;
    let (id, events) = (call.id(), call.stream());
    let _unread = shown(&client, "deferral_result", &held).await;
    for number in 0..1000 {
        events.notify("notifications/message", json!({ "data": number }));
    }
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    assert_eq!(result_of(&client, &held).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn fifty_holders_of_two_principals_get_what_is_theirs() {
    let world = setup().route(SOON).route(IMPATIENT).start().await;
    let mut held = Vec::new();
    let mut calls = Vec::new();
    for who in ["Bearer a", "Bearer b"] {
        let client = LegacyClient::new(world.addr()).with("authorization", who).hello().await;
        list(&client).await;
        for n in 0..25 {
            let waiting = client.call(100 + n).await;
            calls.push((world.server.call().await, held.len()));
            held.push((client.clone(), waiting));
        }
    }
    let mut tickets = Vec::new();
    for (client, waiting) in held {
        let (held, _) = ticket(&waiting.answer().await.result());
        tickets.push((client, held));
    }
    // The last first: in whatever order they end.
    for (call, n) in calls.into_iter().rev() {
        call.says(&format!("result {n}"));
    }
    for (n, (client, held)) in tickets.iter().enumerate() {
        let mine = loop {
            let result = result_of(client, held).await;
            if result["_meta"].get("deferral/ticket").is_none() {
                break result;
            }
        };
        assert_eq!(mine["content"][0]["text"], format!("result {n}"));
        let (other, _) = &tickets[(n + 25) % 50];
        assert_eq!(result_of(other, held).await["isError"], true, "{n}");
    }
}

#[tokio::test]
async fn a_named_client_that_opens_a_session_for_each_call_gets_its_ticket_and_its_result() {
    let world = setup()
        .route("tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms }], wait: 1h }")
        .start()
        .await;
    let session = async || LegacyClient::new(world.addr()).with("x-agent", "1").hello().await;
    list(&session().await).await;
    let waiting = session().await.call(7).await;
    let call = world.server.call().await;
    let (held, _) = ticket(&waiting.answer().await.result());
    call.says("done");
    assert_eq!(result_of(&session().await, &held).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_client_that_disconnects_before_its_ticket_gets_no_input_requests_and_its_call_continues() {
    let world = setup().route("held: { ticket: 1h }").start().await;
    let client = holder(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let (id, events) = (call.id(), call.stream());
    let asks = |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": { "message": "?" } });
    events.send(&asks(40));
    let mut stream = waiting.stream().await;
    assert_eq!(stream.next().await["id"], 40);
    drop(stream);
    world.server.seen(|seen| seen.answers(&json!(40))).await;
    events.send(&asks(41));
    world.server.seen(|seen| seen.answers(&json!(41))).await;
    events.result(&id, json!({ "content": [] }));
    assert_eq!(world.server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn the_first_ticket_says_how_far_its_call_has_come() {
    let world = setup().route("held: { ticket: 300ms }").route(PATIENT).start().await;
    let client = holder(&world).await;
    let waiting = client.call(7).await;
    let call = world.server.call().await;
    let (token, events) = (call.seen.json["params"]["_meta"]["progressToken"].clone(), call.stream());
    let progress = json!({ "progressToken": token, "progress": 3, "total": 4, "message": "reading" });
    events.notify("notifications/progress", progress);
    let result = waiting.answer().await.result();
    let (_, words) = ticket(&result);
    assert!(words.contains("reading"), "{words}");
    let elapsed = result["_meta"]["deferral/ticket"]["elapsedMs"].as_u64().expect("a number");
    assert!(elapsed >= 300, "from the call on: {elapsed}");
}

#[tokio::test]
async fn a_wait_that_is_cancelled_ends_without_an_answer_and_its_call_goes_on() {
    let world = setup().route(SOON).route(PATIENT).start().await;
    let client = holder(&world).await;
    let (call, held) = deferred(&world.server, &client).await;
    let waiting = shown(&client, "deferral_result", &held).await.follow();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}"#;
    // Again and again: before the request is there nothing is known of it.
    let taken = async {
        while !waiting.is_over() {
            assert_eq!(client.post(cancel).await.answer().await.status, 202);
        }
    };
    soon("the wait ends", taken).await;
    assert_eq!(waiting.messages(), [Value::Null; 0]);
    call.says("done");
    assert_eq!(result_of(&client, &held).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn after_a_restart_sessions_of_before_are_given_none_but_their_tickets_are_good_under_any_name() {
    let mut place = crate::proxy::restart::Place::before(|options| {
        crate::proxy::call_resumption::keeps_events(options);
        options.tools = Some(json!([{ "name": "deferral_result", "inputSchema": {} }]));
    })
    .await;
    let first: Program = place.start(&[SOON, PATIENT], &[]).await;
    let client = LegacyClient::new(first.addr).hello().await;
    list(&client).await;
    let (call, held) = deferred(&place.server, &client).await;
    call.says("done");
    assert_eq!(use_ticket(&client, "deferral_result_2", &held).await.text(), "done");
    first.killed().await;

    let second = place.start(&[SOON, PATIENT], &[]).await;
    let client = LegacyClient::new(second.addr).within(&client.session());
    assert_eq!(use_ticket(&client, "deferral_result_2", &held).await.text(), "done");
    let garbled = use_ticket(&client, "deferral_result_2", &held[..40]).await.result();
    assert_eq!(garbled["isError"], true);
    assert_eq!(names(&list(&client).await), ["deferral_result"], "it may have declared tasks");
    second.killed().await;
}

#[tokio::test]
async fn a_stop_has_no_model_make_its_call_again() {
    let mut place = crate::proxy::restart::Place::before(|options| {
        crate::proxy::call_resumption::keeps_events(options);
        options.tools = Some(tools());
    })
    .await;
    let mut first: Program = place.start(&[SOON, PATIENT], &["drain: 20ms"]).await;
    let client = LegacyClient::new(first.addr).hello().await;
    list(&client).await;
    let (_call, held) = deferred(&place.server, &client).await;
    let waiting = shown(&client, "deferral_result", &held).await;
    first.stop();
    let answer = waiting.answer().await.json();
    assert_ne!(answer["error"]["code"], -31007, "{answer:#}");
    first.gone().await;
}
