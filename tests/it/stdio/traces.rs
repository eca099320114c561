//! Spans of calls to a stdio server, which receives them in its messages only.

use super::{Proxy, SERVER, arguments};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    support::collector::{Collector, Span},
    traces::{PARENT, SPAN, TRACE},
};
use serde_json::{Value, json};

/// A proxy in front of the plain server, whose spans go to this collector.
fn traced(collector: &Collector) -> Proxy {
    let top = format!("telemetry: {{ otlp: \"{}\" }}\n", collector.url());
    Proxy::written(&top, &format!("{{ command: [python3, '{SERVER}'] }}"))
}

/// The spans of the one call, of its request and of its server's, and that the server was told of its own.
fn linked(collector: &Collector, told: &Value) -> Span {
    let (request, call) = (collector.span("tools/call meta", false), collector.span("tools/call meta", true));
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, SPAN));
    assert_eq!((call.trace.as_str(), call.parent.as_str()), (TRACE, request.id.as_str()));
    assert_eq!(told["traceparent"], format!("00-{TRACE}-{}-01", call.id));
    assert_eq!((call.says("network.transport"), call.says("server.address")), (Some("pipe"), None));
    call
}

fn text(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str().expect("a text");
    serde_json::from_str(text).expect("it is JSON")
}

#[tokio::test]
async fn a_process_gets_the_span_in_the_message() {
    let collector = Collector::start().await;
    let proxy = traced(&collector);
    let mut params = arguments("meta", json!({}));
    params["_meta"] = json!({ "traceparent": PARENT });
    let told = text(&proxy.client().ask("tools/call", params).await.result());
    proxy.stops().await;
    let call = linked(&collector, &told);
    assert_eq!(call.says("jsonrpc.request.id"), Some(&*told["id"].to_string()), "as it was sent");
}

#[tokio::test]
async fn a_process_gets_the_span_in_a_legacy_clients_message() {
    let collector = Collector::start().await;
    let proxy = traced(&collector);
    let older = LegacyClient::new(proxy.addr).hello().await;
    let mut params = arguments("meta", json!({}));
    params["_meta"] = json!({ "traceparent": PARENT });
    let call = json!({ "jsonrpc": "2.0", "id": "c-7", "method": "tools/call", "params": params });
    let told = text(&older.post(&call.to_string()).await.answer().await.result());
    proxy.stops().await;
    let call = linked(&collector, &told);
    assert_eq!(call.says("jsonrpc.request.id"), None, "it is given another on the way");
    assert_ne!(told["id"], "c-7");
}
