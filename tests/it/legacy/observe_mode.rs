//! Mode `observe` for calls of legacy clients, which are relayed.

use super::proxy_and_client::LegacyClient;
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
};
use serde_json::{Value, json};

/// Every call is over the threshold.
const AT_ONCE: &str = "defer: { mode: observe, after: 0s }";
/// No call is.
const LATE: &str = "defer: { mode: observe, after: 1h }";

/// The lines of calls that would have become tasks, once so many requests have ended.
async fn counted(lines: &Lines, ended: usize) -> Vec<Value> {
    lines.until(ended).await;
    lines.of("would_defer")
}

#[tokio::test]
async fn a_relayed_call_is_observed_however_it_ends() {
    for (route, observed) in [(AT_ONCE, 1), (LATE, 0)] {
        let world = ProxyAndServer::with(route).await;
        let client = LegacyClient::new(world.addr()).within("s1");
        // Answered by a document, by a stream, by an error; and left before the answer, or in the middle of it.
        for way in 0..5 {
            let lines = Lines::record();
            let waiting = client.call(1).await;
            let call = world.server.call().await;
            match way {
                0 => {
                    call.says("done");
                    waiting.answer().await;
                }
                1 => {
                    let id = call.id();
                    call.stream().result(&id, json!({ "content": [] }));
                    waiting.answer().await;
                }
                2 => {
                    call.error(json!({ "code": -32602, "message": "no" }));
                    waiting.answer().await;
                }
                3 => waiting.leave(),
                _ => {
                    let _events = call.stream();
                    drop(waiting.stream().await);
                }
            }
            let counted = counted(&lines, 1).await;
            assert_eq!(counted.len(), observed, "{way}: {counted:?}");
            for line in counted {
                assert_eq!((&line["route"], &line["tool"]), (&json!("/mcp"), &json!("t")));
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_call_and_what_can_be_no_task_is_not_observed() {
    let rules = "tools: [{ match: t, mode: observe, after: 0s }, { match: '*', mode: auto, after: 0s }]";
    let world = Setup::new().route(rules).start().await;
    let client = LegacyClient::new(world.addr()).within("s1");
    let lines = Lines::record();
    let other = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"other"}}"#;
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
    for body in [other, list] {
        let waiting = client.post(body).await;
        world.server.call().await.result(json!({ "content": [] }));
        waiting.answer().await;
    }
    assert_eq!(counted(&lines, 2).await, [Value::Null; 0]);
}
