//! Tools of mode `deny`: hidden from every list, and refused in whatever shape they are called.

use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::{Canned, Seen},
        modern_client::Answer,
    },
};
use serde_json::{Value, json};

const DENY: &str = "tools: [{ match: keep_rm, mode: auto }, { match: '*rm*', mode: deny }]";

fn tools(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })).collect()
}

fn setup() -> Setup {
    Setup::new().server(|options| {
        options.capabilities = json!({ "tools": { "listChanged": true } });
        options.tools = Some(tools(&["rm", "add", "keep_rm", "rmdir"]));
    })
}

async fn world() -> ProxyAndServer {
    setup().route(DENY).start().await
}

fn names(answer: &Answer) -> Vec<String> {
    let result = answer.result();
    let tools = result["tools"].as_array().expect("tools").iter();
    tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

/// Refused as an unknown tool is, by the one id.
fn is_denied(answer: &Answer, what: &str) {
    assert_eq!(answer.refusal(), (200, -32602), "{what}: {}", answer.body);
    let message = answer.error()["message"].as_str().expect("a message").to_owned();
    assert!(message.starts_with("Unknown tool: rm") && message.contains("mode: deny"), "{message}");
}

fn call(params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{params}}}"#)
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{}}"#;

#[tokio::test]
async fn a_denied_tool_is_hidden_from_modern_clients_and_refused() {
    let world = world().await;
    for client in [world.client(), world.tasker()] {
        assert_eq!(names(&client.ask("tools/list", json!({})).await), ["add", "keep_rm"]);
        is_denied(&client.ask("tools/call", json!({ "name": "rm" })).await, "plain");
        let about = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let spelled = call(&format!(r#"{{"n\u0061me":"r\u006d","arguments":{{}},{about}}}"#));
        let answer =
            client.send_request(client.spelled("tools/call", Some("rm"), spelled)).await.answer().await;
        is_denied(&answer, "escaped");
    }
    assert_eq!(world.calls(), 0);
    let waiting = world.client().call("keep_rm").await;
    world.server.call().await.says("kept");
    assert_eq!(waiting.answer().await.text(), "kept");
}

#[tokio::test]
async fn a_denied_tool_is_hidden_from_legacy_clients_and_refused_in_every_shape() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    assert_eq!(names(&client.post(LIST).await.answer().await), ["add", "keep_rm"]);
    for params in [
        r#"{"name":"rm","arguments":{}}"#,
        r#"{"n\u0061me":"r\u006d","arguments":{}}"#,
        r#"{"name":"rmdir","task":{}}"#,
        r#"{"name":"rm","task":7}"#,
    ] {
        is_denied(&client.post(&call(params)).await.answer().await, params);
    }
    for params in [r#"{"name":"add","name":"rm"}"#, r#"{"name":"add","Name":"rm"}"#, r#"{"name":["rm"]}"#] {
        let answer = client.post(&call(params)).await.answer().await;
        assert_eq!(answer.refusal(), (200, -32602), "{params}: {}", answer.body);
    }
    let unread = r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","method":"ping","params":{"name":"rm"}}"#;
    assert_eq!(client.post(unread).await.answer().await.status, 400);
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn a_batch_with_a_denied_call_or_a_list_is_refused_whole() {
    let world = world().await;
    let client = LegacyClient::new(world.addr())
        .with("mcp-session-id", "s1")
        .with("mcp-protocol-version", "2025-03-26");
    let fine = call(r#"{"name":"add"}"#).replace("\"c\"", "\"f\"");
    for (held, code) in [(call(r#"{"name":"rm"}"#), -32602), (LIST.to_owned(), -32600)] {
        let answers = client.post(&format!("[{fine},{held}]")).await.answer().await.json();
        let answers = answers.as_array().expect("a batch").clone();
        assert_eq!(answers.len(), 2, "{answers:?}");
        assert!(answers.iter().all(|answer| answer["error"]["code"] == code), "{answers:?}");
    }
    assert_eq!((world.calls(), world.server.messages("tools/list")), (0, 0));
}

/// Answers a list as this says.
fn listing(answer: impl Fn(&Seen) -> Canned + Send + Sync + 'static) -> Setup {
    setup().route(DENY).server(|options| {
        *options =
            std::mem::take(options).hook(move |seen| (seen.method() == "tools/list").then(|| answer(seen)));
        options.capabilities = json!({ "tools": {} });
    })
}

#[tokio::test]
async fn a_page_that_holds_denied_tools_alone_is_empty_and_keeps_its_cursor() {
    let world = listing(|seen| {
        let result = match seen.json["params"]["cursor"].as_str() {
            None => json!({ "tools": tools(&["rm", "rmdir"]), "nextCursor": "2" }),
            Some(_) => json!({ "tools": tools(&["add", "rm"]) }),
        };
        Canned::json(200, &json!({ "jsonrpc": "2.0", "id": seen.json["id"], "result": result }))
    })
    .start()
    .await;
    let older = LegacyClient::new(world.addr()).hello().await;
    let first = older.post(LIST).await.answer().await;
    assert_eq!(first.result(), json!({ "tools": [], "nextCursor": "2" }));
    let second = LIST.replace("{}", r#"{"cursor":"2"}"#);
    assert_eq!(names(&older.post(&second).await.answer().await), ["add"]);

    let modern = world.client();
    let first = modern.ask("tools/list", json!({})).await;
    assert_eq!((names(&first), &first.result()["nextCursor"]), (vec![], &json!("2")));
    assert_eq!(names(&modern.ask("tools/list", json!({ "cursor": "2" })).await), ["add"]);
}

#[tokio::test]
async fn a_list_on_an_event_stream_is_edited_also_where_a_client_returns_for_it() {
    let result = json!({ "tools": tools(&["rm", "add"]), "x": 1 });
    let list = json!({ "jsonrpc": "2.0", "id": "l", "result": result }).to_string();
    let events = format!(
        ": hi\nid: 1\ndata: {{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{{}}}}\n\nid: 2\ndata: {list}\n\n"
    );
    let world = setup()
        .route(DENY)
        .server(move |options| {
            *options = std::mem::take(options).hook(move |seen| {
                let is_back = seen.http == http::Method::GET && seen.headers.contains_key("last-event-id");
                let events = Canned::status(200).header("content-type", "text/event-stream").body(&events);
                (is_back || seen.method() == "tools/list").then_some(events)
            });
            options.capabilities = json!({ "tools": {} });
        })
        .start()
        .await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let listed = client.post(LIST).await.answer().await;
    let again = client.with("last-event-id", "0").listen().await.answer().await;
    for answer in [listed, again] {
        assert!(!answer.body.contains("\"rm\""), "{}", answer.body);
        assert!(answer.body.contains("\"add\"") && answer.body.contains(": hi\nid: 1\n"), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_tool_that_takes_a_ticket_is_there_where_every_tool_is_denied() {
    let world = setup()
        .route("tools: [{ match: slow, mode: auto }, { match: '*', mode: deny }]")
        .route("held: { ticket: 20ms }")
        .start()
        .await;
    let client = LegacyClient::new(world.addr()).hello().await;
    assert_eq!(names(&client.post(LIST).await.answer().await), ["deferral_result", "deferral_cancel"]);
    let waiting = client.post(&call(r#"{"name":"slow","arguments":{}}"#)).await;
    let running = world.server.call().await;
    let answer = waiting.answer().await.result();
    let ticket = answer["_meta"]["deferral/ticket"]["ticket"].as_str().expect("a ticket");
    running.says("done");
    let wanted = json!({ "name": "deferral_result", "arguments": { "ticket": ticket } }).to_string();
    while client.post(&call(&wanted)).await.answer().await.text() != "done" {}
    is_unknown(&client.post(&call(r#"{"name":"add"}"#)).await.answer().await);
}

fn is_unknown(answer: &Answer) {
    assert_eq!(answer.refusal(), (200, -32602), "{}", answer.body);
}

#[test]
fn deny_on_a_route_is_refused_with_the_place_where_it_belongs() {
    use deferral::internals::config;
    let text = "routes:\n  - upstream: { url: 'http://a' }\n    defer: { mode: deny }\n";
    let problems = config::parse(std::path::Path::new("x.yaml"), text).expect_err("it is wrong").to_string();
    assert!(
        problems.contains("3:20") && problems.contains("tools: [{ match: delete_*, mode: deny }]"),
        "{problems}"
    );
}
