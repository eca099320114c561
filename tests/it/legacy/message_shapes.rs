//! Policies apply to every shape of a call: the proxy reads a message as the server would, and refuses one that it cannot
//! read where a policy would apply.

use super::proxy_and_client::{LegacyClient, call};
use crate::{
    front::listener_and_service::Lines,
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{limit_hits::LimitHits, modern_client::Version},
};
use http::Method;
use serde_json::json;

/// One tool must be a task; all others are free.
const REQUIRED: &str = "tools: [{ match: must, mode: required }]";

async fn world() -> ProxyAndServer {
    Setup::new().route(REQUIRED).start().await
}

fn plain(tool: &str) -> String {
    call(1).replace(r#""name":"t""#, &format!(r#""name":"{tool}""#))
}

/// Messages that are, or may be read as, a plain call of the tool that must be a task.
fn evasions() -> Vec<String> {
    let must = plain("must");
    let with = |from: &str, to: &str| must.replacen(from, to, 1);
    vec![
        format!("[{must}]"),
        format!("[{},{must}]", plain("free").replace(r#""id":1"#, r#""id":2"#)),
        with(r#""name":"must""#, r#""name":"free","name":"must""#),
        with(r#""name":"must""#, r#""name":"must","name":"free""#),
        with(r#""name":"must""#, r#""name":"free","n\u0061me":"must""#),
        with(r#""name":"must""#, r#""name":"free","Name":"must""#),
        with(r#""name":"must""#, r#""NAME":"must""#),
        with(r#""name":"must""#, r#""name":["must"]"#),
        with(r#""params":{"#, r#""params":{"name":"free"},"params":{"#),
        with(r#""params":{"#, r#""params":{"name":"free"},"Params":{"#),
        with(r#""method":"tools/call""#, r#""method":"ping","method":"tools/call""#),
        with(r#""method":"tools/call""#, r#""method":"tools/call","method":"ping""#),
        with(r#""method":"tools/call""#, r#""method":"ping","METHOD":"tools/call""#),
        with(r#""id":1"#, r#""id":null"#),
        with(r#""id":1"#, r#""id":{}"#),
        with(r#""id":1,"#, ""),
        with(r#""arguments":{}"#, r#""arguments":{"x":NaN}"#),
        format!("[[{must}]]"),
        format!("\u{feff}{must}"),
    ]
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_not_run_by_a_message_of_another_shape() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let client = client.with("mcp-protocol-version", version);
        for body in evasions() {
            let answer = client.post(&body).await.answer().await;
            assert!(answer.is_json(), "{version} {body}: {answer:?}");
            let said = answer.json();
            let error = if said.is_array() { &said[0]["error"] } else { &said["error"] };
            let message = error["message"].as_str().unwrap_or_else(|| panic!("{version} {body}: {answer:?}"));
            assert!(message.contains("must") || message.contains("required"), "{body}: {message}");
        }
    }
    assert_eq!(world.calls(), 0);
    assert_eq!(world.server.log().len(), 2, "nothing but the handshake went out");
}

#[tokio::test]
async fn each_request_of_a_batch_that_is_refused_has_its_error() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let other = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    let answer = client.post(&format!("[{other},{}]", plain("must"))).await.answer().await;
    assert_eq!(answer.status, 200);
    let errors = answer.json();
    let ids: Vec<_> = errors.as_array().expect("a batch").iter().map(|error| &error["id"]).collect();
    assert_eq!(ids, [&json!("p"), &json!(1)]);
    assert!(errors.as_array().expect("a batch").iter().all(|error| error["error"]["code"] == -32601));
}

#[tokio::test]
async fn what_can_be_told_from_a_call_that_is_not_free_passes_in_any_shape() {
    let world = world().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    for body in [
        plain("free"),
        format!("[{}]", plain("free")),
        plain("free").replace("{}", r#"{"name":"must","Name":"must"}"#),
        plain("free").replace(r#""name":"free""#, r#""n\u0061me":"fr\u0065e","_meta":{"name":"must"}"#),
    ] {
        let waiting = client.post(&body).await;
        world.server.seen(|seen| seen.body == body).await;
        waiting.leave();
    }
}

#[tokio::test]
async fn where_no_policy_applies_the_server_judges_odd_messages_itself() {
    for route in ["defer: { mode: auto }", "defer: { mode: never }"] {
        let world = Setup::new().route(route).start().await;
        let client = LegacyClient::new(world.addr()).hello().await;
        for body in evasions() {
            let waiting = client.post(&body).await;
            let seen = world.server.seen(|seen| seen.body == body).await;
            assert_eq!(seen.session(), "s1");
            waiting.leave();
        }
    }
}

#[tokio::test]
async fn the_access_line_names_the_methods_of_a_message_that_is_none() {
    let lines = Lines::record();
    let world = world().await;
    let client = LegacyClient::new(world.addr()).within("s");
    let must = plain("must");
    let named = [
        (must.replace(r#""id":1"#, r#""id":null"#), "tools/call"),
        (must.replace(r#""method""#, r#""method":"ping","method""#), "ping,tools/call"),
        (must.replace("{}", "[NaN]"), "tools/call"),
        (format!("[{must},{must}"), "tools/call,tools/call"),
        ("nothing".to_owned(), "POST"),
    ];
    for (body, _) in &named {
        client.post(body).await.answer().await;
    }
    let lines = lines.until(named.len()).await;
    for (line, (body, method)) in lines.iter().zip(named) {
        assert_eq!(line["method"], method, "{body}");
        assert_eq!((&line["outcome"], &line["client"]), (&json!("refused"), &json!("legacy")));
    }
}

#[tokio::test]
async fn a_message_of_a_legacy_client_may_be_nested_no_deeper_than_the_limit() {
    let world = Setup::new().top("limits: { depth: 16 }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    let nested = |levels: usize| {
        call(1).replace("{}", &format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels)))
    };
    let waiting = client.post(&nested(13)).await;
    world.server.call().await.says("shallow");
    assert_eq!(waiting.answer().await.text(), "shallow");
    for (body, ids) in [(nested(14), json!(1)), (format!("[{}]", nested(13)), json!(1))] {
        let answer = client.post(&body).await.answer().await;
        assert_eq!(answer.refusal(), (200, -32600), "{body}");
        assert_eq!(answer.json()["id"], ids);
        assert!(answer.error()["message"].as_str().expect("a message").contains("16 levels"));
    }
    let answer = client.post(&nested(14).replace(r#""id":1,"#, "")).await.answer().await;
    assert_eq!(answer.refusal(), (400, -32600));
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_request_over_http_2_may_have_no_more_headers_than_the_limit() {
    let hits = LimitHits::of("limits.headers");
    let world = Setup::new().top("limits: { headers: 32 }").start().await;
    let client = LegacyClient::new(world.addr()).hello().await;
    for modern in [false, true] {
        // With the length that its client adds.
        let request = |count: usize| {
            let mut request = match modern {
                true => world.client().request("tools/call", json!({ "name": "t", "arguments": {} })),
                false => client.request(Method::POST, "/mcp", &call(1)),
            };
            *request.uri_mut() = format!("http://{}/mcp", world.addr()).parse().expect("a URL");
            while request.headers().len() < count {
                request.headers_mut().append("x-more", "y".parse().expect("a value"));
            }
            request
        };
        let mut kept = client.client().over(Version::Http2).kept().await;
        let waiting = kept.begin(request(31)).await;
        world.server.call().await.says("done");
        assert_eq!(waiting.answer().await.status, 200);
        let answer = kept.begin(request(32)).await.answer().await;
        assert_eq!(answer.refusal(), (431, -32600));
        assert!(answer.error()["message"].as_str().expect("a message").contains("limits.headers"));
    }
    assert_eq!(world.calls(), 2);
    hits.are(2).await;
}
