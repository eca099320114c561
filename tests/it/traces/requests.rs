//! The span of a client's request.

use super::{PARENT, SPAN, TRACE, Traced, with_meta};
use crate::support::modern_client::Client;
use serde_json::json;

#[tokio::test]
async fn a_call_has_a_span_with_the_attributes_of_the_mcp_conventions() {
    let traced = Traced::new().await;
    traced.called(&traced.client().bearing("a-secret-token"), with_meta(json!({}))).await;
    let collector = traced.told().await;
    let span = collector.span("tools/call greet", false);
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.tool.name", "greet"),
        ("gen_ai.operation.name", "execute_tool"),
        ("mcp.protocol.version", "2026-07-28"),
        ("network.transport", "tcp"),
        ("network.protocol.name", "http"),
        ("network.protocol.version", "1.1"),
        ("deferral.route", "/mcp"),
        ("deferral.outcome", "result"),
    ] {
        assert_eq!(span.says(key), Some(value), "{key} in {span:#?}");
    }
    assert!(span.says("jsonrpc.request.id").is_some());
    assert_eq!((span.parent.as_str(), &span.failed, span.says("error.type")), ("", &None, None));
    assert_eq!(collector.resource("service.name").as_deref(), Some("deferral"));
    // Neither what was asked, nor what came back, nor who asked.
    for span in collector.all() {
        let all = format!("{:?}", span.raw);
        for hidden in ["a-secret", "done"] {
            assert!(!all.contains(hidden), "{hidden} in {all}");
        }
    }
}

#[tokio::test]
async fn the_parent_is_that_of_the_message_or_else_that_of_its_headers() {
    let traced = Traced::new().await;
    let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let in_header = traced.client().with("traceparent", header);
    traced.called(&in_header, with_meta(json!({ "traceparent": PARENT, "tracestate": "a=1" }))).await;
    traced.called(&in_header, with_meta(json!({}))).await;
    traced.called(&traced.client(), with_meta(json!({ "traceparent": "nonsense" }))).await;
    let collector = traced.told().await;
    let mut spans = collector.spans("tools/call greet");
    spans.retain(|span| !span.is_client);
    let [both, header_only, neither] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!((both.trace.as_str(), both.parent.as_str()), (TRACE, SPAN));
    assert_eq!(both.raw.trace_state, "a=1");
    assert_eq!(both.links, ["b7ad6b7169203331"], "the way it came is linked to");
    assert_eq!(
        (header_only.trace.as_str(), header_only.parent.as_str()),
        ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    );
    assert!(header_only.links.is_empty());
    assert_eq!(neither.parent, "");
}

#[tokio::test]
async fn what_a_client_does_not_want_recorded_is_not() {
    let traced = Traced::new().await;
    let unwanted = PARENT.replace("-01", "-00");
    traced.called(&traced.client(), with_meta(json!({ "traceparent": unwanted }))).await;
    assert!(traced.told().await.names().is_empty());
}

#[tokio::test]
async fn a_span_has_the_error_of_its_request() {
    let traced = Traced::new().await;
    let client = traced.client();
    let waiting = client.call("fails").await;
    let refused = json!({ "code": -32602, "message": "no such a-secret" });
    traced.world.server.call().await.error(refused);
    waiting.answer().await;
    let waiting = client.call("errs").await;
    traced.world.server.call().await.result(json!({ "content": [], "isError": true }));
    waiting.answer().await;
    let waiting = client.call("leaves").await;
    let call = traced.world.server.call().await;
    waiting.leave();
    call.left().await;
    client.of_task("tasks/get", &"0".repeat(32)).await;
    let collector = traced.told().await;
    let failed = |name: &str| {
        let span = collector.span(name, false);
        (span.says("error.type").map(str::to_owned), span.failed.expect("it has failed"))
    };
    assert_eq!(
        failed("tools/call fails"),
        (Some("-32602".into()), String::new()),
        "without the server's words"
    );
    assert_eq!(collector.span("tools/call fails", false).says("rpc.response.status_code"), Some("-32602"));
    assert_eq!(failed("tools/call errs").0.as_deref(), Some("tool_error"));
    assert_eq!(failed("tools/call leaves").0.as_deref(), Some("departed"));
    let (code, words) = failed("tasks/get");
    assert_eq!(code.as_deref(), Some("-32021"));
    assert!(!words.is_empty(), "these words are ours");
    assert_eq!(collector.span("tasks/get", false).says("deferral.task.id"), Some("00000000"));
}

#[tokio::test]
async fn a_legacy_clients_requests_have_spans_too() {
    let traced = Traced::new().await;
    let client = Client::new(traced.world.addr());
    let older = |body: serde_json::Value| {
        let mut request = client.spelled("", None, body.to_string());
        for name in ["mcp-method", "mcp-name", "mcp-protocol-version"] {
            request.headers_mut().remove(name);
        }
        request
    };
    let hello = json!({ "jsonrpc": "2.0", "id": "h-1", "method": "initialize", "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" }, "_meta": { "traceparent": PARENT } } });
    let answer = client.send_request(older(hello)).await.answer().await;
    let session = answer.header("mcp-session-id").to_owned();
    assert!(!session.is_empty());
    let collector = traced.told().await;
    let span = collector.span("initialize", false);
    assert_eq!((span.trace.as_str(), span.parent.as_str()), (TRACE, SPAN));
    assert_eq!(span.says("jsonrpc.request.id"), Some("h-1"));
    assert_eq!(span.says("mcp.protocol.version"), Some("2025-06-18"));
    let tag = span.says("mcp.session.id").expect("it begins one");
    assert!(!tag.is_empty() && !session.contains(tag) && !tag.contains(&session), "{tag}");
}
