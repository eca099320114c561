//! Routes and clients that tasks are offered to; the others are relayed unchanged.

use super::task_client::{LegacyClient, ProxyAndServer, Tasker, Value, id, json, setup, world};
use crate::{
    legacy::proxy_and_client::{HELLO, READY},
    proxy::proxy_and_server::ALWAYS,
    support::{
        legacy_server::{Canned, Options},
        modern_client::Answer,
        random_json::member,
    },
};
use expect_test::{Expect, expect};
use http::Method;

const MODES: &str = "tools: [{ match: auto, mode: auto }, { match: always, mode: always }, { match: required, mode: required }, { match: never, mode: never }, { match: observe, mode: observe }]";

async fn of_all_modes() -> ProxyAndServer {
    let tools: Vec<_> = ["auto", "always", "required", "never", "observe"]
        .iter()
        .map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }))
        .collect();
    setup().route(MODES).server(|options| options.tools = Some(json!(tools))).start().await
}

fn call(tool: &str, task: Option<Value>) -> String {
    let mut params = json!({ "name": tool, "arguments": {} });
    if let Some(task) = task {
        params["task"] = task;
    }
    json!({ "jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params }).to_string()
}

fn ping(id: &str, method: &str) -> String {
    format!(r#"{{ "jsonrpc":"2.0","id":{id} , "method":"{method}","params":{{"taskId":"theirs"}}}}"#)
}

/// What is sent arrives as it is, and comes back as the server answers.
async fn passes(world: &ProxyAndServer, client: &LegacyClient, body: &str) {
    let answered = r#"{ "result": {"theirs" :1e400},  "jsonrpc":"2.0","id":"c"}"#;
    let waiting = client.post(body).await;
    let call = world.server.call().await;
    assert_eq!(call.seen.body, body, "not a byte is changed");
    call.canned(Canned::status(200).body(answered).header("content-type", "application/json"));
    assert_eq!(waiting.answer().await.body, answered);
}

/// The same answer as on the direct way.
async fn says_what_the_server_says(world: &ProxyAndServer, client: &LegacyClient, body: &str) -> Answer {
    let direct = LegacyClient::new(world.server.addr()).within("d").post(body).await.answer().await;
    let passed = client.post(body).await.answer().await;
    assert_eq!(passed.body, direct.body);
    passed
}

#[tokio::test]
async fn tools_show_task_support_of_the_policy() {
    let world = of_all_modes().await;
    let client = Tasker::hello(&world).await;
    let list = client.ask("tools/list", json!({})).await.result();
    let said: Vec<_> = list["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| (tool["name"].as_str().expect("a name"), tool.get("execution").cloned()))
        .collect();
    let support = |word: &str| Some(json!({ "taskSupport": word }));
    assert_eq!(
        said,
        [
            ("auto", support("optional")),
            ("always", support("optional")),
            ("required", support("required")),
            ("never", None),
            ("observe", None),
        ]
    );
}

#[tokio::test]
async fn false_task_support_of_a_servers_tools_is_corrected() {
    let tools = r#"[{"name":"never","execution":{"taskSupport":"forbidden"}, "x":1.0},{"name":"never","execution":{"taskSupport":"optional","y":2}},{"name":"auto","execution":{"taskSupport":"forbidden"}}]"#;
    let world = setup()
        .route(MODES)
        .server(|options| {
            *options = std::mem::take(options).hook(move |seen| {
                (seen.method() == "tools/list").then(|| {
                    let body = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"tools":{tools}}}}}"#);
                    Canned::status(200).body(body).header("content-type", "application/json")
                })
            });
        })
        .start()
        .await;
    let client = Tasker::hello(&world).await;
    let answer = client.ask("tools/list", json!({})).await;
    expect![[r#"{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"never","execution":{"taskSupport":"forbidden"}, "x":1.0},{"name":"never","execution":{"taskSupport":"forbidden","y":2}},{"name":"auto","execution":{"taskSupport":"optional"}}]}}"#]]
        .assert_eq(&answer.body);
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_refuses_a_plain_call_in_every_revision() {
    let world = of_all_modes().await;
    Tasker::hello(&world).await;
    for version in ["2025-11-25", "2025-06-18", "2025-03-26", ""] {
        let client = LegacyClient::new(world.addr()).with("mcp-session-id", "s1");
        let client = client.with("mcp-protocol-version", version);
        let answer = client.post(&call("required", None)).await.answer().await;
        assert_eq!(answer.refusal(), (200, -32601), "{version}");
        assert_eq!(answer.json()["id"], "c");
        let message = answer.error()["message"].as_str().expect("a message").to_owned();
        assert!(message.contains("required") && message.contains("params.task"), "{message}");
    }
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn a_tool_that_is_never_a_task_refuses_to_be_one_and_takes_plain_calls() {
    let world = of_all_modes().await;
    let client = Tasker::hello(&world).await;
    for tool in ["never", "observe"] {
        let answer = client.0.post(&call(tool, Some(json!({})))).await.answer().await;
        assert_eq!(answer.refusal(), (200, -32601));
        assert!(answer.error()["message"].as_str().expect("a message").contains(tool));
        assert_eq!(world.calls(), 0);
    }
    passes(&world, &client.0, &call("never", None)).await;
    passes(&world, &client.0, &call("auto", None)).await;
}

#[tokio::test]
async fn a_task_is_made_of_what_may_and_of_what_must_be_one() {
    let world = of_all_modes().await;
    let client = Tasker::hello(&world).await;
    for tool in ["auto", "always", "required"] {
        let answer = client.0.post(&call(tool, Some(json!({})))).await.answer().await;
        let task = id(&answer);
        let sent = world.server.call().await;
        assert_eq!(sent.name(), tool);
        assert_eq!(sent.seen.json["params"].get("task"), None);
        sent.says("done");
        assert_eq!(client.result(&task).await.text(), "done");
    }
}

#[tokio::test]
async fn nothing_is_offered_on_a_route_where_no_tool_makes_tasks() {
    for mode in ["defer: { mode: never }", "defer: { mode: observe }"] {
        let world = world(mode).await;
        let client = LegacyClient::new(world.addr());
        says_what_the_server_says(&world, &client, HELLO).await;
        let client = client.hello().await;
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        says_what_the_server_says(&world, &client, list).await;
        passes(&world, &client, &call("t", Some(json!({ "ttl": 1 })))).await;
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
            passes(&world, &client, &ping("1", method)).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_offered_to_clients_of_older_revisions() {
    for version in ["2025-06-18", "2025-03-26"] {
        let setup = setup().route(ALWAYS).server(|options| {
            options.version = version;
            options.tools = Some(json!([{ "name": "t" }]));
        });
        let world = setup.start().await;
        let hello = HELLO.replace("2025-11-25", version);
        let client = LegacyClient::new(world.addr());
        says_what_the_server_says(&world, &client, &hello).await;
        let client = client.with("mcp-session-id", "s1").with("mcp-protocol-version", version);
        assert_eq!(client.post(READY).await.answer().await.status, 202);
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        says_what_the_server_says(&world, &client, list).await;
        passes(&world, &client, &call("t", Some(json!({ "ttl": "wrong" })))).await;
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
            passes(&world, &client, &ping("1", method)).await;
        }
    }
}

/// A server that has tasks of its own.
fn with_tasks(options: &mut Options) {
    options.capabilities["tasks"] =
        json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
    options.tools = Some(json!([{ "name": "t", "execution": { "taskSupport": "required" } }]));
}

#[tokio::test]
async fn a_server_that_has_tasks_of_its_own_is_left_alone() {
    for mode in [ALWAYS, "defer: { mode: required }", "tools: [{ match: t, mode: never }]"] {
        let world = setup().route(mode).server(with_tasks).start().await;
        let client = LegacyClient::new(world.addr());
        says_what_the_server_says(&world, &client, HELLO).await;
        let client = client.hello().await;
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        says_what_the_server_says(&world, &client, list).await;
        passes(&world, &client, &call("t", Some(json!({ "ttl": 1 })))).await;
        passes(&world, &client, &call("t", None)).await;
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
            passes(&world, &client, &ping("\"i\"", method)).await;
        }
        assert!(
            world.server.log().iter().all(|seen| seen.header("user-agent").is_none()),
            "it was not asked"
        );
    }
}

#[tokio::test]
async fn in_a_session_older_than_the_proxy_calls_become_tasks() {
    let world = world(ALWAYS).await;
    let client = Tasker::within(&world, "old");
    let (task, call) = client.makes(&world).await;
    assert_eq!(call.session(), "old", "the call is made in the client's session");
    call.says("done");
    assert_eq!(client.result(&task).await.text(), "done");
    // The server was asked in a session of our own, and once.
    assert_eq!(world.server.messages("initialize"), 1);
    client.makes(&world).await.1.says("again");
    assert_eq!(world.server.messages("initialize"), 1);
}

#[tokio::test]
async fn in_a_session_older_than_the_proxy_a_server_with_tasks_keeps_its_own() {
    let world = setup().route(ALWAYS).server(with_tasks).start().await;
    let client = Tasker::within(&world, "old");
    passes(&world, &client.0, &call("t", Some(json!({})))).await;
    passes(&world, &client.0, &ping("1", "tasks/get")).await;
}

#[tokio::test]
async fn a_handshake_of_an_older_revision_offers_no_tasks() {
    // Such a server does not speak of tasks where they would not be understood.
    let world = setup()
        .route(ALWAYS)
        .server(|options| {
            with_tasks(options);
            *options = std::mem::take(options).hook(|seen| {
                let older = seen.json["params"]["protocolVersion"] == "2025-06-18";
                (seen.method() == "initialize" && older).then(|| {
                    let result = json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": { "name": "s", "version": "1" } });
                    Canned::json(200, &json!({ "jsonrpc": "2.0", "id": 0, "result": result }))
                        .header("mcp-session-id", "older")
                })
            });
        })
        .start()
        .await;
    let client = Tasker::hello(&world).await;
    let hello = HELLO.replace("2025-11-25", "2025-06-18");
    let answer = LegacyClient::new(world.addr()).post(&hello).await.answer().await;
    assert_eq!(answer.result()["protocolVersion"], "2025-06-18");
    passes(&world, &client.0, &call("t", Some(json!({})))).await;
    passes(&world, &client.0, &ping("1", "tasks/get")).await;
}

#[tokio::test]
async fn a_plain_call_with_the_word_task_in_its_arguments_is_relayed() {
    let world = setup().start().await;
    let client = Tasker::hello(&world).await;
    let body = r#"{"id":"c","jsonrpc":"2.0","method":"tools/call","params":{"arguments":{"task":{ "ttl":-1}},"name":"t"}}"#;
    passes(&world, &client.0, body).await;
}

#[tokio::test]
async fn an_invalid_task_parameter_is_refused_and_not_sent() {
    let world = setup().start().await;
    let client = Tasker::hello(&world).await;
    for wrong in [
        json!(7),
        json!([]),
        json!("x"),
        json!({ "ttl": -1 }),
        json!({ "ttl": "60000" }),
        json!({ "ttl": {} }),
        json!({ "ttl": true }),
    ] {
        let answer = client.begins(wrong.clone()).await;
        assert_eq!(answer.refusal(), (200, -32602), "{wrong}");
        assert!(answer.error()["message"].as_str().expect("a message").contains("params.task"));
    }
    assert_eq!(world.calls(), 0);
    assert_eq!(client.list().await, [""; 0]);
}

/// What the server's capabilities become, as they stand in the answer.
async fn capabilities(sessions: bool, credentials: bool, expected: Expect) {
    for sse in [false, true] {
        let setup = setup().server(|options| {
            (options.sessions, options.sse) = (sessions, sse);
            options.capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
        });
        let world = setup.start().await;
        let client = LegacyClient::new(world.addr());
        let client = if credentials { client.with("authorization", "Bearer a") } else { client };
        let answer = client.post(HELLO).await.answer().await;
        let message = answer.body.trim_end().lines().last().expect("a message");
        let message = message.strip_prefix("data: ").unwrap_or(message);
        let result = member(message, "result").expect("a result");
        expected.assert_eq(&member(&result, "capabilities").expect("capabilities"));
        let direct = LegacyClient::new(world.server.addr()).post(HELLO).await.answer().await;
        let tasks = member(&member(&result, "capabilities").expect("there"), "tasks").expect("tasks");
        assert_eq!(answer.body.replace(&format!(r#","tasks":{tasks}"#), ""), direct.body, "nothing else");
        assert_eq!(answer.header("mcp-session-id").is_empty(), !sessions);
    }
}

#[tokio::test]
async fn tasks_are_offered_in_a_session() {
    let expected = expect![[
        r#"{"logging":{},"tools":{"listChanged":true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}}"#
    ]];
    capabilities(true, false, expected).await;
}

#[tokio::test]
async fn tasks_are_offered_to_credentials_in_a_session() {
    let expected = expect![[
        r#"{"logging":{},"tools":{"listChanged":true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}}"#
    ]];
    capabilities(true, true, expected).await;
}

#[tokio::test]
async fn tasks_are_offered_to_credentials_without_a_session() {
    let expected = expect![[
        r#"{"logging":{},"tools":{"listChanged":true},"tasks":{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}}"#
    ]];
    capabilities(false, true, expected).await;
}

#[tokio::test]
async fn without_credentials_or_sessions_tasks_are_not_listed() {
    let expected = expect![[
        r#"{"logging":{},"tools":{"listChanged":true},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}"#
    ]];
    capabilities(false, false, expected).await;
}

#[tokio::test]
async fn a_server_without_tools_gets_no_tasks() {
    let world = setup().server(|options| options.capabilities = json!({ "prompts": {} })).start().await;
    says_what_the_server_says(&world, &LegacyClient::new(world.addr()), HELLO).await;
}

#[tokio::test]
async fn the_end_of_a_session_passes() {
    let world = setup().start().await;
    let client = Tasker::hello(&world).await;
    assert_eq!(client.0.send(Method::DELETE, "/mcp", "").await.answer().await.status, 200);
    assert_eq!(world.server.count(|seen| seen.http == Method::DELETE && seen.session() == "s1"), 1);
}
