//! Tickets of clients of 2026-07-28 that do not declare tasks and are configured for tickets.

use super::{names, ticket, tools};
use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{
        legacy_server::Call,
        limit_hits::counts,
        modern_client::{Answer, Client},
    },
};
use serde_json::{Value, json};

const NAMED: &str = "tickets: { for: [{ header: X-Agent, value: \"1\", after: 50ms, wait: 1h }] }";

async fn world(route: &'static str) -> ProxyAndServer {
    Setup::new().server(|options| options.tools = Some(tools())).route(route).start().await
}

pub(super) fn holder(world: &ProxyAndServer) -> Client {
    world.client().with("x-agent", "1")
}

pub(super) async fn use_ticket(client: &Client, tool: &str, ticket: &str) -> Answer {
    client.ask("tools/call", json!({ "name": tool, "arguments": { "ticket": ticket } })).await
}

/// A call whose client has been answered with this ticket.
pub(super) async fn deferred(world: &ProxyAndServer, client: &Client) -> (Call, String) {
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    (call, ticket(&waiting.answer().await.result()).0)
}

#[tokio::test]
async fn a_slow_call_is_answered_with_a_ticket_and_its_result_is_fetched() {
    let world = world(NAMED).await;
    let client = holder(&world);
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let result = waiting.answer().await.result();
    assert_eq!(result["resultType"], "complete");
    assert!(result["_meta"]["io.modelcontextprotocol/serverInfo"].is_object(), "{result:#}");
    let (held, words) = ticket(&result);
    assert!(words.contains("deferral_result"), "{words}");
    call.result(json!({ "content": [], "structuredContent": { "n": 1 } }));
    for _ in 0..2 {
        let fetched = use_ticket(&client, "deferral_result", &held).await.result();
        assert_eq!(fetched["structuredContent"], json!({ "n": 1 }));
        assert_eq!(fetched["resultType"], "complete");
    }
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn clients_without_a_session_get_no_ticket() {
    let world = world(NAMED).await;
    let client = world.client();
    assert_eq!(names(&client.ask("tools/list", json!({})).await.result()), ["t", "u"]);
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    ticket(&holder(&world).call("u").await.answer().await.result());
    call.says("late");
    assert_eq!(waiting.answer().await.text(), "late");
}

#[tokio::test]
async fn the_ticket_tools_are_listed_for_ticket_holders_only() {
    let world = world(NAMED).await;
    let listed = holder(&world).ask("tools/list", json!({})).await.result();
    assert_eq!(names(&listed), ["t", "u", "deferral_result", "deferral_cancel"]);
    assert_eq!(listed["tools"][0].get("outputSchema"), None);
    for other in [world.client(), holder(&world).with_tasks()] {
        let listed = other.ask("tools/list", json!({})).await.result();
        assert_eq!(names(&listed), ["t", "u"]);
        assert!(listed["tools"][0]["outputSchema"].is_object());
    }
}

#[tokio::test]
async fn input_requests_are_sent_to_the_client_that_waits_for_the_result() {
    let world = world(NAMED).await;
    let client = holder(&world).declaring(json!({ "elicitation": {} }));
    let (call, held) = deferred(&world, &client).await;
    let (id, events) = (call.id(), call.stream());
    let question = json!({ "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} } });
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": question }));
    let asked = use_ticket(&client, "deferral_result", &held).await.result();
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let params = json!({
        "name": "deferral_result",
        "arguments": { "ticket": held },
        "inputResponses": { key: { "action": "accept", "content": {} } },
        "requestState": asked["requestState"],
    });
    let again = client.send("tools/call", params).await;
    let answered = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(answered.json["result"]["action"], "accept");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    assert_eq!(again.answer().await.result()["content"][0]["text"], "done");
}

#[tokio::test]
async fn what_a_holder_did_not_declare_that_waits_is_declined_at_once() {
    let world = world(NAMED).await;
    let client = holder(&world);
    let (call, held) = deferred(&world, &client.clone().declaring(json!({ "elicitation": {} }))).await;
    let (id, events) = (call.id(), call.stream());
    let question = json!({ "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} } });
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": question }));
    let params = json!({ "name": "deferral_result", "arguments": { "ticket": held } });
    let waiting = client.send("tools/call", params).await;
    let declined = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(declined.json["error"]["code"], -32601);
    let questions = |outcome: &str| -> f64 {
        let labels = format!("outcome=\"{outcome}\"");
        let is_one = |name: &String| name.starts_with("deferral_questions_total") && name.contains(&labels);
        counts().into_iter().filter(|(name, _)| is_one(name)).map(|(_, count)| count).sum()
    };
    assert_eq!((questions("refused"), questions("answered")), (1.0, 0.0), "nobody has answered it");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    assert_eq!(waiting.answer().await.result()["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_holder_that_cannot_be_asked_leaves_it_to_another_that_can_also_while_that_answers() {
    let world = world(NAMED).await;
    let (able, unable) = (holder(&world).declaring(json!({ "elicitation": {} })), holder(&world));
    let (call, held) = deferred(&world, &able).await;
    let (id, events) = (call.id(), call.stream());
    let params = json!({ "name": "deferral_result", "arguments": { "ticket": held } });
    let other = unable.send("tools/call", params.clone()).await;
    let waiting = able.send("tools/call", params).await;
    // What is asked behind both has been made behind them.
    for client in [&able, &unable] {
        client.ask("tools/list", json!({})).await.result();
    }
    let question = json!({ "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} } });
    events.send(&json!({ "jsonrpc": "2.0", "id": 40, "method": "elicitation/create", "params": question }));
    let asked = waiting.answer().await.result();
    assert_eq!(asked["resultType"], "input_required", "{asked:#}");
    // The one that can be asked does not wait meanwhile, and this is one more that cannot be.
    let third = unable
        .send("tools/call", json!({ "name": "deferral_result", "arguments": { "ticket": held } }))
        .await;
    unable.ask("tools/list", json!({})).await.result();
    assert_eq!(world.server.count(|seen| seen.answers(&json!(40))), 0);
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let params = json!({
        "name": "deferral_result",
        "arguments": { "ticket": held },
        "inputResponses": { key: { "action": "accept", "content": {} } },
        "requestState": asked["requestState"],
    });
    let again = able.send("tools/call", params).await;
    let answered = world.server.seen(|seen| seen.answers(&json!(40))).await;
    assert_eq!(answered.json["result"]["action"], "accept");
    events.result(&id, json!({ "content": [{ "type": "text", "text": "done" }] }));
    for waiting in [again, other, third] {
        assert_eq!(waiting.answer().await.result()["content"][0]["text"], "done");
    }
}

#[tokio::test]
async fn a_call_is_stopped_and_what_is_no_ticket_is_not_known() {
    let world = world(NAMED).await;
    let client = holder(&world);
    let (_call, held) = deferred(&world, &client).await;
    let stopped = use_ticket(&client, "deferral_cancel", &held).await.result();
    assert!(stopped["content"][0]["text"].as_str().expect("text").contains("asked to stop"));
    world.server.message("notifications/cancelled").await;
    let unknown: Value = use_ticket(&client, "deferral_result", "tk_none").await.result();
    assert_eq!(unknown["isError"], true);
    let missing = client.ask("tools/call", json!({ "name": "deferral_result" })).await.result();
    assert!(missing["content"][0]["text"].as_str().expect("text").contains("`ticket`"), "{missing}");
}
