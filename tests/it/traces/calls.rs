//! The span of a call to a server, and its propagation.

use super::{PARENT, SPAN, TRACE, Traced, with_meta};
use crate::{
    legacy::proxy_and_client::LegacyClient,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::legacy_server::Seen,
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_call_of_a_server_is_a_part_of_the_request_it_was_made_for() {
    let traced = Traced::new().await;
    traced.called(&traced.client(), with_meta(json!({ "traceparent": PARENT, "tracestate": "a=1" }))).await;
    let (seen, address) = (traced.world.server.message("tools/call").await, traced.world.server.addr());
    let collector = traced.told().await;
    let (server, client) =
        (collector.span("tools/call greet", false), collector.span("tools/call greet", true));
    assert_eq!((server.trace.as_str(), server.parent.as_str()), (TRACE, SPAN));
    assert_eq!((client.trace.as_str(), client.parent.as_str()), (TRACE, server.id.as_str()));
    assert_eq!((client.says("gen_ai.tool.name"), &client.failed), (Some("greet"), &None));
    let port = address.port().to_string();
    for (key, value) in
        [("server.address", "127.0.0.1"), ("server.port", &port), ("network.transport", "tcp")]
    {
        assert_eq!(client.says(key), Some(value));
    }
    assert_eq!(client.says("jsonrpc.request.id"), Some(&*seen.json["id"].to_string()), "as it was sent");
    let told = format!("00-{TRACE}-{}-01", client.id);
    let meta = &seen.json["params"]["_meta"];
    assert_eq!((&meta["traceparent"], &meta["tracestate"]), (&json!(told), &json!("a=1")));
    assert_eq!((seen.header("traceparent"), seen.header("tracestate")), (Some(told.as_str()), Some("a=1")));
}

/// What a server was sent, as it was spelled, and with which headers.
fn spelled(seen: &Seen) -> (String, Vec<String>) {
    let names = seen.headers.keys().map(|name| name.as_str().to_owned()).collect();
    (String::from_utf8(seen.body.to_vec()).expect("text"), names)
}

/// The same without what names a span of ours, if that is there once.
fn without_trace(text: &str) -> String {
    let Some((before, rest)) = text.split_once(r#""traceparent":""#) else { return text.to_owned() };
    let (_, after) = rest.split_once('"').expect("it ends");
    assert!(!after.contains("traceparent"), "{text}");
    format!("{}{after}", before.trim_end_matches(','))
}

/// A message as its server gets it from a proxy that traces, and from one that does not: what is sent is
/// the same but for our span, and for the id of our hop.
async fn compared(send: impl AsyncFn(&ProxyAndServer)) -> [(String, Vec<String>); 2] {
    let plain = Setup::new().start().await;
    send(&plain).await;
    let traced = Traced::new().await;
    send(&traced.world).await;
    let seen = [&plain, &traced.world].map(|world| {
        let log = world.server.log();
        let call = log.iter().find(|seen| seen.method() == "tools/call").expect("it was called").clone();
        let (text, names) = spelled(&call);
        // Small numbers stand elsewhere, too.
        let text = ["\"id\":", "\"id\": ", "\"progressToken\":"].iter().fold(text, |text, before| {
            text.replacen(&format!("{before}{}", call.json["id"]), &format!("{before}ID"), 1)
        });
        (text, names)
    });
    drop(traced.told().await);
    seen
}

#[tokio::test]
async fn nothing_else_of_a_message_changes_for_its_server() {
    let spelling = r#"{ "jsonrpc" : "2.0", "id":"a", "method":"tools/call","params" : {"name":"greet", "arguments":{"n":1.0e+2,"n2":9007199254740993}, "_meta":{ "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}, "x" : [ ] } } }"#;
    let [plain, traced] = compared(async |world| {
        let client = world.client();
        let waiting =
            client.send_request(client.spelled("tools/call", Some("greet"), spelling.to_owned())).await;
        world.server.call().await.says("done");
        waiting.answer().await.result();
    })
    .await;
    assert!(plain.0.contains(r#""n":1.0e+2"#) && !plain.0.contains("traceparent"));
    assert_eq!(without_trace(&traced.0), plain.0);
    let more: Vec<_> = traced.1.iter().filter(|name| !plain.1.contains(name)).collect();
    assert_eq!(more, ["traceparent"]);
}

#[tokio::test]
async fn nothing_else_of_a_legacy_clients_message_changes_for_its_server() {
    let spelling = r#"{"jsonrpc": "2.0","id": 7, "method":"tools/call", "params":{"name":"greet","arguments":{ "n":1.0e+2 } , "_meta": {"x":1 }}}"#;
    let [plain, traced] = compared(async |world| {
        let older = LegacyClient::new(world.addr()).hello().await;
        let waiting = older.post(spelling).await;
        world.server.call().await.says("done");
        waiting.answer().await.result();
    })
    .await;
    assert_eq!(plain.0, spelling.replacen('7', "ID", 1), "untraced it passes as it is");
    assert_eq!(without_trace(&traced.0), plain.0);
    let more: Vec<_> = traced.1.iter().filter(|name| !plain.1.contains(name)).collect();
    assert_eq!(more, ["traceparent"]);
}

#[tokio::test]
async fn a_legacy_clients_own_parent_gives_way_to_the_span_between() {
    let traced = Traced::new().await;
    let older = LegacyClient::new(traced.world.addr()).hello().await;
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "greet", "arguments": {}, "_meta": { "traceparent": PARENT } },
    });
    let waiting = older.post(&call.to_string()).await;
    let seen = traced.world.server.call().await;
    let told = seen.seen.json["params"]["_meta"]["traceparent"].clone();
    let sent = seen.id().to_string();
    seen.error(json!({ "code": -32602, "message": "a-secret" }));
    waiting.answer().await;
    let collector = traced.told().await;
    let (server, client) =
        (collector.span("tools/call greet", false), collector.span("tools/call greet", true));
    assert_eq!((server.parent.as_str(), client.parent.as_str()), (SPAN, server.id.as_str()));
    assert_eq!(client.says("jsonrpc.request.id"), Some(&*sent));
    assert_eq!(told, Value::from(format!("00-{TRACE}-{}-01", client.id)));
    assert_eq!(
        (server.says("error.type"), client.says("error.type")),
        (Some("server_error"), Some("server_error"))
    );
    let hello = (collector.span("initialize", false), collector.span("initialize", true));
    assert_eq!(hello.1.parent, hello.0.id);
    assert!(!format!("{:?}", collector.all()).contains("a-secret"));
}

#[tokio::test]
async fn a_call_that_its_client_disconnects_is_cancelled() {
    let traced = Traced::new().await;
    let waiting = traced.client().call("leaves").await;
    let call = traced.world.server.call().await;
    waiting.leave();
    call.left().await;
    let collector = traced.told().await;
    assert_eq!(collector.span("tools/call leaves", true).says("error.type"), Some("cancelled"));
}

#[tokio::test]
async fn an_unsampled_call_is_sent_with_the_sampled_flag_off() {
    let traced = Traced::new().await;
    let unwanted = PARENT.replace("-01", "-00");
    traced.called(&traced.client(), with_meta(json!({ "traceparent": unwanted }))).await;
    let seen = traced.world.server.message("tools/call").await;
    let told = seen.json["params"]["_meta"]["traceparent"].as_str().expect("a parent");
    assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00") && told != unwanted, "{told}");
    assert!(traced.told().await.names().is_empty());
}
