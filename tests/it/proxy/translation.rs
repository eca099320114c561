//! Messages between a modern client and a legacy server: what is translated, and what is relayed unchanged.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, SLOW, Setup};
use serde_json::{Value, json};

const SERVER_INFO: &str = r#"{"io.modelcontextprotocol/serverInfo":{"name":"scripted","version":"1"}}"#;

#[tokio::test]
async fn a_fast_call_is_answered_plainly_with_the_servers_own_bytes() {
    let world = ProxyAndServer::new().await;
    let client = world.tasker();
    let waiting =
        client.send_request(client.request_as(&json!("a"), "tools/call", json!({ "name": "add" }))).await;
    let odd = r#""content":[{"text":"\u00e9 é","type":"text"}],  "big" : 12345678901234567890123,"e":1e400,"structuredContent":{"z":1.10,"a":-0.0},"later":[null]"#;
    world.server.call().await.spelled(&format!("{{{odd}}}"));

    let answer = waiting.answer().await;

    assert_eq!(answer.status, 200);
    assert!(answer.is_json());
    assert_eq!(
        answer.body,
        format!(
            r#"{{"jsonrpc":"2.0","id":"a","result":{{{odd},"resultType":"complete","_meta":{SERVER_INFO}}}}}"#
        )
    );
    assert_eq!(answer.header("mcp-session-id"), "", "a session is our own affair");
}

#[tokio::test]
async fn the_server_gets_the_clients_bytes_but_for_the_listed_edits() {
    let world = Setup::new().route("forward: [x-tenant]").start().await;
    let client = world
        .client()
        .bearing("alice")
        .with("cookie", "a=b")
        .with("x-tenant", "t1")
        .with("x-other", "own")
        .with("mcp-param-region", "eu")
        .with("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let about = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}"#;
    let body = format!(
        r#"{{"odd":null, "jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{{"name":"add","arguments":{{"n":9007199254740993, "x" : 1.10}},"task":{{"ttl":1}},"inputResponses":{{}},"later":[ ],"_meta":{{{about},"com.example/k":1E+2}}}}}}"#
    );
    let waiting = client.send_request(client.spelled("tools/call", Some("add"), body)).await;

    let call = world.server.call().await;

    let seen = &call.seen;
    let expected = format!(
        r#"{{"odd":null, "jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"add","arguments":{{"n":9007199254740993, "x" : 1.10}},"later":[ ],"_meta":{{"com.example/k":1E+2}}}}}}"#,
        call.id()
    );
    assert_eq!(seen.body, expected);
    assert_eq!(seen.header("authorization"), Some("Bearer alice"));
    assert_eq!(seen.header("cookie"), Some("a=b"));
    assert_eq!(seen.header("x-tenant"), Some("t1"));
    assert_eq!(seen.header("x-other"), Some("own"));
    assert_eq!(seen.header("mcp-param-region"), Some("eu"));
    assert!(seen.header("traceparent").is_some());
    for own in ["mcp-method", "mcp-name", "origin"] {
        assert_eq!(seen.header(own), None, "{own} belongs to the client's own message or hop");
    }
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"), "the session's own version");
    assert_eq!(seen.header("host"), Some(&*world.server.addr().to_string()));
    call.says("3");
    let answer = waiting.answer().await;
    assert!(answer.body.contains(r#""id":9007199254740993,"#), "{}", answer.body);
}

#[tokio::test]
async fn progress_is_requested_where_a_call_may_become_a_task() {
    let world = ProxyAndServer::with(SLOW).await;
    let waiting = world.tasker().call("slow").await;
    let call = world.server.call().await;
    assert_eq!(call.seen.json["params"]["_meta"], json!({ "progressToken": call.id() }));
    waiting.leave();

    let waiting = world.client().call("slow").await;
    let call = world.server.call().await;
    assert_eq!(call.seen.json["params"]["_meta"], Value::Null, "nobody would see it");
    waiting.leave();
}

#[tokio::test]
async fn a_description_is_made_from_the_servers_handshake() {
    let setup = Setup::new().server(|options| {
        options.capabilities = json!({ "tools": {}, "tasks": { "list": {} }, "experimental": { "x": 1 } });
    });
    let world = setup.start().await;
    let described = world.client().ask("server/discover", json!({})).await;
    assert_eq!(
        described.result(),
        json!({
            "resultType": "complete",
            "supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"],
            "capabilities": {
                "tools": {},
                "experimental": { "x": 1 },
                "extensions": { "io.modelcontextprotocol/tasks": {} },
            },
            "instructions": "be kind",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
        })
    );
}

#[tokio::test]
async fn lists_get_a_ttl_and_lose_legacy_task_support() {
    let world = Setup::new()
        .server(|options| {
            options.tools = Some(json!([
                { "name": "a", "inputSchema": { "$ref": "#/x", "zz": 1 }, "execution": { "taskSupport": "optional" } },
                { "name": "b", "inputSchema": {}, "execution": { "taskSupport": "required", "x": 1 } },
            ]));
        })
        .start()
        .await;
    let result = world.client().ask("tools/list", json!({})).await.result();
    assert_eq!(
        result["tools"],
        json!([
            { "name": "a", "inputSchema": { "$ref": "#/x", "zz": 1 } },
            { "name": "b", "inputSchema": {}, "execution": { "x": 1 } },
        ])
    );
    assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(0), &json!("private")));
}

#[tokio::test]
async fn every_method_the_server_has_is_served() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    for (method, params) in [
        ("prompts/list", json!({ "cursor": "2" })),
        ("prompts/get", json!({ "name": "p", "arguments": { "a": "1" } })),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({ "uri": "file:///a" })),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "p" }, "argument": {} })),
    ] {
        let waiting = client.send(method, params.clone()).await;
        let call = world.server.call().await;
        assert_eq!(call.method(), method);
        assert_eq!(call.seen.json["params"], params);
        call.result(json!({ "x": method }));
        let result = waiting.answer().await.result();
        assert_eq!((&result["x"], &result["resultType"]), (&json!(method), &json!("complete")));
    }
}

#[tokio::test]
async fn errors_are_translated_from_the_legacy_era() {
    let world = ProxyAndServer::new().await;
    let client = world.client();
    let read = json!({ "uri": "file:///gone" });
    for (method, params, said, heard) in [
        (
            "resources/read",
            read.clone(),
            json!({ "code": -32002, "message": "gone" }),
            json!({ "code": -32602, "message": "gone", "data": { "uri": "file:///gone" } }),
        ),
        (
            "resources/read",
            read,
            json!({ "code": -32002, "message": "gone", "data": { "uri": "x", "y": 1 } }),
            json!({ "code": -32602, "message": "gone", "data": { "uri": "x", "y": 1 } }),
        ),
        (
            "tools/call",
            json!({ "name": "t" }),
            json!({ "code": -32042, "message": "elicit", "data": [1] }),
            json!({ "code": -32603, "message": "elicit", "data": { "code": -32042, "data": [1] } }),
        ),
        (
            "tools/call",
            json!({ "name": "t" }),
            json!({ "code": 17, "message": "own", "x": 1 }),
            json!({ "code": 17, "message": "own", "x": 1 }),
        ),
    ] {
        let waiting = client.send(method, params).await;
        world.server.call().await.error(said);
        let answer = waiting.answer().await;
        assert_eq!((answer.status.as_u16(), answer.error()), (200, heard));
    }
}

#[tokio::test]
async fn a_code_that_means_something_else_now_is_kept_inside_the_data() {
    let world = ProxyAndServer::new().await;
    for (said, data) in [
        (
            json!({ "code": -32050, "message": "quota", "data": { "left": 0 } }),
            json!({ "code": -32050, "data": { "left": 0 } }),
        ),
        (json!({ "code": -32021, "message": "mine", "data": null }), json!({ "code": -32021, "data": null })),
        (json!({ "code": -32099, "message": "mine" }), json!({ "code": -32099 })),
    ] {
        let waiting = world.client().call("t").await;
        world.server.call().await.error(said.clone());
        let heard = json!({ "code": -32603, "message": said["message"], "data": data });
        assert_eq!(waiting.answer().await.error(), heard);
    }
}

#[tokio::test]
async fn an_error_that_is_no_error_object_is_made_one() {
    let world = ProxyAndServer::new().await;
    let client = world.tasker();
    for (said, heard) in [
        (json!("boom"), json!({ "code": -32603, "message": "boom" })),
        (
            json!([1]),
            json!({ "code": -32603, "message": "the server sent an error that is no object", "data": [1] }),
        ),
        (json!({ "code": 7 }), json!({ "code": 7, "message": "the server sent no message" })),
        (json!({ "message": "m", "x": 1 }), json!({ "code": -32603, "message": "m", "x": 1 })),
        (
            json!({ "code": "E_BUSY", "message": "m" }),
            json!({ "code": -32603, "message": "m", "data": { "code": "E_BUSY" } }),
        ),
        (
            json!({ "code": 7.5, "message": ["m"], "data": 1 }),
            json!({ "code": -32603, "message": "the server sent no message", "data": { "code": 7.5, "message": ["m"], "data": 1 } }),
        ),
    ] {
        let waiting = client.call("t").await;
        world.server.call().await.error(said);
        assert_eq!(waiting.answer().await.error(), heard);
    }
    // So it is of a task.
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.error(json!("boom"));
    let ended = client.ended(&task).await;
    assert_eq!(
        (&ended["error"], &ended["statusMessage"]),
        (&json!({ "code": -32603, "message": "boom" }), &json!("boom"))
    );
}

#[tokio::test]
async fn nothing_found_is_an_error_where_the_route_reports_it() {
    let world = ProxyAndServer::with("empty_contents_is_error: true").await;
    let waiting = world.client().send("resources/read", json!({ "uri": "file:///gone" })).await;
    world.server.call().await.result(json!({ "contents": [] }));
    let error = waiting.answer().await.error();
    assert_eq!((&error["code"], &error["data"]), (&json!(-32602), &json!({ "uri": "file:///gone" })));
}

#[tokio::test]
async fn unknown_notifications_are_relayed_on_the_calls_stream() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    let call = world.server.call().await;
    let (id, events) = (call.id(), call.stream());
    events.notify("notifications/x/new", json!({ "n": 1 }));
    events.notify("notifications/tools/list_changed", json!({}));
    events.result(&id, json!({ "content": [] }));
    let answer = waiting.answer().await;
    let methods: Vec<_> = answer.messages().iter().map(|message| message["method"].clone()).collect();
    assert_eq!(methods, [json!("notifications/x/new"), Value::Null], "{answer:?}");
}

#[tokio::test]
async fn a_document_over_many_lines_becomes_one() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    world.server.call().await.spelled("{\n  \"content\": [\r\n  ]\n}");
    let answer = waiting.answer().await;
    assert!(!answer.body.contains(['\n', '\r']), "{:?}", answer.body);
    assert_eq!(answer.result()["content"], json!([]));
}

#[tokio::test]
async fn an_idle_session_is_closed() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    let call = world.server.call().await;
    let session = call.session().to_owned();
    call.says("hi");
    waiting.answer().await;
    for _ in 0..40 {
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        tokio::time::resume();
        tokio::task::yield_now().await;
    }
    world.server.seen(|seen| seen.http == http::Method::DELETE && seen.session() == session).await;
}
