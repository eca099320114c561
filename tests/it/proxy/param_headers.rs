//! Tool parameters that are mirrored into `Mcp-Param-*` headers.

use super::proxy_and_server::{ProxyAndServer, Setup};
use crate::support::{
    legacy_server::{Call, Canned, Seen},
    modern_client::Client,
    paused_time::{self, Still},
};
use serde_json::{Value, json};
use std::time::Duration;

/// A server whose tools are the test's to list.
async fn world() -> ProxyAndServer {
    Setup::new().server(|options| options.tools = None).start().await
}

fn tool(name: &str, header: Option<&str>) -> Value {
    let mut region = json!({ "type": "string" });
    if let Some(header) = header {
        region["x-mcp-header"] = json!(header);
    }
    json!({ "name": name, "inputSchema": { "type": "object", "properties": { "region": region } } })
}

async fn page(world: &ProxyAndServer, cursor: Option<&str>) -> Call {
    let call = world.server.call().await;
    assert_eq!((call.method(), call.seen.json["params"]["cursor"].as_str()), ("tools/list", cursor));
    call
}

fn params(region: &str) -> Value {
    json!({ "name": "mirrored", "arguments": { "region": region } })
}

/// The call passes.
async fn passes(world: &ProxyAndServer, client: &Client, params: Value) {
    let waiting = client.send("tools/call", params).await;
    let call = world.server.call().await;
    assert_eq!(call.method(), "tools/call");
    call.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");
}

#[tokio::test]
async fn the_tools_are_read_once_over_all_pages_before_the_first_call() {
    let world = world().await;
    let _still = Still::stands();
    let client = world.client().with("mcp-param-region", "eu");
    let waiting = client.send("tools/call", params("eu")).await;
    page(&world, None).await.result(json!({ "tools": [tool("plain", None)], "nextCursor": "2\u{e9}" }));
    page(&world, Some("2\u{e9}")).await.result(json!({ "tools": [tool("mirrored", Some("Region"))] }));
    let call = world.server.call().await;
    assert_eq!((call.method(), call.seen.header("mcp-param-region")), ("tools/call", Some("eu")));
    call.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");

    // Known from now on: what does not agree is refused, and what does goes straight through.
    for client in [world.client(), world.client().with("mcp-param-region", "us")] {
        let answer = client.ask("tools/call", params("eu")).await;
        assert_eq!(answer.refusal(), (400, -32020), "{answer:?}");
    }
    passes(&world, &world.client().with("mcp-param-region", "=?base64?ZcO8?="), params("e\u{fc}")).await;
    let bad = world.client().with("mcp-param-region", "=?base64?ZcO8===?=");
    assert_eq!(bad.ask("tools/call", params("e\u{fc}")).await.refusal(), (400, -32020));
    passes(&world, &world.client(), json!({ "name": "plain", "arguments": { "region": "eu" } })).await;
    passes(&world, &world.client(), json!({ "name": "mirrored", "arguments": {} })).await;
    assert_eq!((world.server.messages("tools/list"), world.calls()), (2, 4));
}

#[tokio::test]
async fn first_calls_at_the_same_time_read_the_tools_once() {
    let world = world().await;
    let _still = Still::stands();
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(world.client().call("plain").await);
    }
    page(&world, None).await.result(json!({ "tools": [] }));
    for _ in 0..5 {
        let call = world.server.call().await;
        assert_eq!(call.method(), "tools/call");
        call.says("passed");
    }
    for waiting in waiting {
        assert_eq!(waiting.answer().await.text(), "passed");
    }
    assert_eq!(world.server.messages("tools/list"), 1);
}

#[tokio::test]
async fn the_tools_are_read_again_after_they_have_changed() {
    let world = world().await;
    let client = world.client();
    let mut changes = client.listen(json!({ "toolsListChanged": true })).await;
    changes.notice("notifications/subscriptions/acknowledged").await;
    let still = Still::stands();
    let waiting = client.send("tools/call", params("eu")).await;
    page(&world, None).await.result(json!({ "tools": [tool("mirrored", None)] }));
    let call = world.server.call().await;
    drop(still);
    let session = call.session().to_owned();
    call.says("passed");
    waiting.answer().await;
    passes(&world, &client, params("eu")).await;

    world.server.listener(&session).await.notify("notifications/tools/list_changed", json!({}));
    changes.notice("notifications/tools/list_changed").await;

    let _still = Still::stands();
    let waiting = client.send("tools/call", params("eu")).await;
    page(&world, None).await.result(json!({ "tools": [tool("mirrored", Some("Region"))] }));
    assert_eq!(waiting.answer().await.refusal(), (400, -32020));
}

#[tokio::test]
async fn each_caller_has_the_tools_it_may_see() {
    let world = world().await;
    let _still = Still::stands();
    for (token, header, outcome) in [("alice", None, 200), ("bob", Some("Region"), 400)] {
        let waiting = world.client().bearing(token).send("tools/call", params("eu")).await;
        let list = page(&world, None).await;
        assert_eq!(list.seen.header("authorization"), Some(&*format!("Bearer {token}")));
        list.result(json!({ "tools": [tool("mirrored", header)] }));
        if outcome == 200 {
            world.server.call().await.says("passed");
        }
        assert_eq!(waiting.answer().await.status, outcome, "{token}");
    }
}

#[tokio::test]
async fn a_server_whose_tools_cannot_be_listed_is_called_all_the_same() {
    let world = world().await;
    let _still = Still::stands();
    let waiting = world.client().send("tools/call", params("eu")).await;
    page(&world, None).await.error(json!({ "code": -32603, "message": "no list" }));
    world.server.call().await.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");
}

#[tokio::test]
async fn a_server_that_fails_or_hangs_at_listing_holds_up_no_further_call() {
    let world = world().await;
    let waiting = world.client().send("tools/call", params("eu")).await;
    let hanging = page(&world, None).await;
    paused_time::passes(Duration::from_secs(5)).await;
    let call = world.server.call().await;
    assert_eq!(call.method(), "tools/call", "the list was not waited for for ever");
    call.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");
    hanging.left().await;
    for _ in 0..3 {
        passes(&world, &world.client(), params("eu")).await;
    }
    assert_eq!(world.server.messages("tools/list"), 1, "nor is it waited for by each call");
    paused_time::passes(Duration::from_secs(30)).await;
    let waiting = world.client().send("tools/call", params("eu")).await;
    page(&world, None).await.error(json!({ "code": -32603, "message": "no list" }));
    world.server.call().await.says("passed");
    waiting.answer().await;
}

#[tokio::test]
async fn a_list_of_tools_that_takes_long_keeps_no_call_waiting() {
    let world = world().await;
    let still = Still::stands();
    let client = world.client().with("mcp-param-region", "us");
    let waiting = client.send("tools/call", params("eu")).await;
    let list = page(&world, None).await;
    still.passes(Duration::from_millis(251)).await;
    let call = world.server.call().await;
    assert_eq!(call.method(), "tools/call", "it can do without");
    call.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");
    // The next does not wait at all, and asks for no list of its own.
    passes(&world, &client, params("eu")).await;
    assert_eq!(world.server.messages("tools/list"), 1);

    // Once there, the list is used.
    still.passes(Duration::from_secs(4)).await;
    list.result(json!({ "tools": [tool("mirrored", Some("Region"))] }));
    loop {
        let mut answer = std::pin::pin!(client.send("tools/call", params("eu")).await.answer());
        let answer = tokio::select! {
            answer = &mut answer => answer,
            call = world.server.call() => {
                call.says("not read yet");
                answer.await
            }
        };
        if answer.status == 400 {
            break assert_eq!(answer.refusal(), (400, -32020));
        }
    }
    assert_eq!(world.server.messages("tools/list"), 1);
}

#[tokio::test]
async fn a_list_of_tools_is_read_until_a_cursor_is_empty_or_returns() {
    for (cursors, pages) in [(&[""][..], 1), (&["a"][..], 2), (&["a", "b", "a"][..], 3)] {
        let listed = std::sync::atomic::AtomicUsize::new(0);
        let hook = move |seen: &Seen| {
            (seen.method() == "tools/list").then(|| {
                let at = listed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let next = cursors[at.min(cursors.len() - 1)];
                let tools = [tool("mirrored", Some("Region"))];
                let result = json!({ "tools": tools, "nextCursor": next });
                Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result }))
            })
        };
        let mut setup = Setup::new();
        setup.options = setup.options.hook(hook);
        let world = setup.start().await;
        let _still = Still::stands();
        for _ in 0..2 {
            let answer = world.client().ask("tools/call", params("eu")).await;
            assert_eq!(answer.refusal(), (400, -32020), "what was read is known: {cursors:?}");
        }
        assert_eq!(world.server.messages("tools/list"), pages, "{cursors:?}");
    }
}

#[tokio::test]
async fn parameters_deep_inside_are_mirrored_and_null_is_not() {
    let world = world().await;
    let _still = Still::stands();
    let schema = json!({ "type": "object", "properties": {
        "where": { "type": "object", "properties": { "zone": { "type": "integer", "x-mcp-header": "Zone" } } },
    }});
    let arguments = |zone: Value| json!({ "name": "deep", "arguments": { "where": { "zone": zone } } });
    let client = world.client().with("mcp-param-zone", "7");
    let waiting = client.send("tools/call", arguments(json!(7))).await;
    page(&world, None).await.result(json!({ "tools": [{ "name": "deep", "inputSchema": schema }] }));
    world.server.call().await.says("passed");
    assert_eq!(waiting.answer().await.text(), "passed");
    assert_eq!(client.ask("tools/call", arguments(json!(8))).await.refusal(), (400, -32020));
    assert_eq!(world.client().ask("tools/call", arguments(json!(7))).await.refusal(), (400, -32020));
    passes(&world, &world.client(), arguments(Value::Null)).await;
}

#[tokio::test]
async fn a_list_of_tools_without_end_is_read_so_far_and_keeps_no_call() {
    let listed = std::sync::atomic::AtomicUsize::new(0);
    let hook = move |seen: &Seen| {
        (seen.method() == "tools/list").then(|| {
            let next = listed.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
            let result = json!({ "tools": [], "nextCursor": next });
            Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result }))
        })
    };
    let mut setup = Setup::new();
    setup.options = setup.options.hook(hook);
    let world = setup.start().await;
    let _still = Still::stands();
    for client in [world.client(), world.client()] {
        let waiting = client.call("plain").await;
        world.server.call().await.says("passed");
        assert_eq!(waiting.answer().await.text(), "passed");
    }
    assert_eq!(world.server.messages("tools/list"), 100, "and not again for each call");
}
