//! Servers that fail.

use super::proxy_and_server::{ALWAYS, ProxyAndServer, Setup, start};
use crate::support::{
    legacy_server::{Call, Canned, LegacyServer, Options, ReservedPort},
    modern_client::Client,
    paused_time::passes,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpListener;

/// What becomes of a call that waits, and of one that is a task, when its server does this.
async fn failing(setup: impl Fn() -> Setup, what: impl Fn(Call)) -> [Value; 2] {
    let world = setup().start().await;
    let waiting = world.client().call("t").await;
    what(world.server.call().await);
    let held = waiting.answer().await;
    assert_eq!(held.status, 200);

    let world = setup().route(ALWAYS).start().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    what(call);
    let ended = client.ended(&task).await;
    assert_eq!(ended["status"], "failed");
    assert_eq!(ended["statusMessage"], ended["error"]["message"]);
    assert_eq!(world.calls(), 1, "a call is not made twice");
    [held.error(), ended["error"].clone()]
}

fn code(error: &Value) -> i64 {
    error["code"].as_i64().expect("a code")
}

#[tokio::test]
async fn a_call_refused_for_a_lost_session_is_made_once_more_in_a_new_one() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    let first = world.server.call().await;
    let lost = first.session().to_owned();
    first.canned(Canned::status(404));
    let again = world.server.call().await;
    assert_ne!(again.session(), lost);
    again.says("hi");
    assert_eq!(waiting.answer().await.text(), "hi");
    assert_eq!((world.server.messages("initialize"), world.calls()), (2, 2));
}

#[tokio::test]
async fn a_call_that_has_become_a_task_is_made_again_too_when_it_was_refused() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let first = world.server.call().await;
    let task = waiting.answer().await.task();
    first.canned(Canned::status(404));
    world.server.call().await.says("hi");
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "hi");
}

#[tokio::test]
async fn a_connection_that_breaks_in_mid_call_leaves_the_outcome_unknown() {
    // Before the head, in the middle of a document, in the middle of a stream.
    let ways: [fn(Call); 3] = [
        |call| call.document().break_off(),
        |call| {
            let document = call.document();
            document.raw(r#"{"jsonrpc":"2.0","#);
            document.break_off();
        },
        |call| {
            let events = call.stream();
            events.raw("data: {\"jsonrpc\"");
            events.break_off();
        },
    ];
    for way in ways {
        for error in failing(Setup::new, way).await {
            assert_eq!(code(&error), -31002, "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_error_without_a_message_is_no_answer() {
    for error in failing(Setup::new, |call| call.canned(Canned::status(500).body("oops"))).await {
        assert_eq!(code(&error), -31004, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("500")), "{error}");
    }
}

#[tokio::test]
async fn a_call_over_its_timeout_fails_and_is_cancelled_at_the_server() {
    let world = Setup::new().top("timeouts: { call: 10s, keep_alive: 1h }").start().await;
    let waiting = world.client().call("t").await;
    let call = world.server.call().await;
    passes(Duration::from_secs(10)).await;
    let answer = waiting.answer().await;
    assert_eq!(answer.refusal(), (200, -31003), "{answer:?}");
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());

    let world = Setup::new().route(ALWAYS).top("timeouts: { call: 10s, keep_alive: 1h }").start().await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    passes(Duration::from_secs(10)).await;
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], code(&ended["error"])), (&json!("failed"), -31003));
    let told = world.server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
}

#[tokio::test]
async fn an_answer_over_the_limit_ends_the_call_with_the_limits_name() {
    let setup = || Setup::new().top("limits: { result_bytes: 10KiB }");
    for error in failing(setup, |call| call.says(&"x".repeat(20 << 10))).await {
        assert_eq!(code(&error), -31005, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("result_bytes")), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_until_it_comes() {
    let nobody = ReservedPort::new();
    let proxy = start(&nobody.url(), &[ALWAYS], &[]);
    let client = Client::new(proxy.addresses[0]);
    for client in [client.clone(), client.with_tasks()] {
        let call = client.call("t").await.answer().await;
        assert_eq!(call.refusal(), (200, -31001), "{call:?}");
        let discover = client.ask("server/discover", json!({})).await;
        assert_eq!(discover.refusal(), (502, -31001), "an outage must look like one: {discover:?}");
        let listen = client.ask("subscriptions/listen", json!({ "notifications": {} })).await;
        assert_eq!(listen.error()["code"], -31001);
    }

    let _server = LegacyServer::on(nobody.listens(), Options::default());
    assert_eq!(client.ask("server/discover", json!({})).await.status, 200);
}

/// A server that refuses every request.
fn closed(status: u16) -> Setup {
    Setup::new().server(|options| {
        options.hook = Some(Box::new(move |seen| {
            let url = format!("http://{}/.well-known/oauth-protected-resource/mcp", seen.header("host")?);
            Some(Canned::status(status).header(
                "www-authenticate",
                format!(r#"Bearer realm="x", resource_metadata="{url}", scope="a b""#),
            ))
        }));
    })
}

#[tokio::test]
async fn refused_credentials_are_relayed_with_a_challenge_that_leads_to_us() {
    for status in [401, 403] {
        let world = closed(status).start().await;
        let addr = world.addr();
        for (method, params) in [
            ("server/discover", json!({})),
            ("tools/list", json!({})),
            ("tools/call", json!({ "name": "t" })),
            ("subscriptions/listen", json!({ "notifications": {} })),
        ] {
            let answer = world.tasker().bearing("old").ask(method, params).await;
            assert_eq!(answer.refusal(), (status, -31008), "{method}");
            let expected = format!(
                r#"Bearer realm="x", resource_metadata="http://{addr}/.well-known/oauth-protected-resource/mcp", scope="a b""#
            );
            assert_eq!(answer.header("www-authenticate"), expected, "{method}");
        }
    }
}

#[tokio::test]
async fn a_403_of_the_server_is_relayed_with_its_message_and_not_as_a_challenge() {
    let refused = |body: &'static str| {
        move |options: &mut Options| {
            options.hook = Some(Box::new(move |seen| {
                (seen.method() == "tools/call").then(|| Canned::status(403).body(body))
            }));
        }
    };
    // Its JSON-RPC error as it is; any other words as a part of ours.
    for (body, code, message) in [
        (
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32000,"message":"Invalid Host: x"}}"#,
            -32000,
            "Invalid Host: x",
        ),
        ("Invalid Host header", -31008, "the server refused the request (HTTP 403): Invalid Host header"),
        ("", -31008, "the server refused the request (HTTP 403): Forbidden"),
    ] {
        let world = Setup::new().server(refused(body)).start().await;
        let answer = world.client().call("t").await.answer().await;
        assert_eq!(answer.refusal(), (403, code));
        assert_eq!(answer.error()["message"], message);

        let world = Setup::new().server(refused(body)).route(ALWAYS).start().await;
        let client = world.tasker();
        let task = client.call("t").await.answer().await.task();
        let ended = client.ended(&task).await;
        assert_eq!((self::code(&ended["error"]), &ended["statusMessage"]), (code, &json!(message)));
    }
}

#[tokio::test]
async fn a_forbidden_handshake_is_reported_with_its_reason() {
    for body in [
        "Invalid Host header",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Invalid Host header"}}"#,
    ] {
        let world = Setup::new()
            .server(|options| options.hook = Some(Box::new(move |_| Some(Canned::status(403).body(body)))))
            .start()
            .await;
        for method in ["server/discover", "tools/list"] {
            let answer = world.client().ask(method, json!({})).await;
            assert_eq!(answer.status, 403, "{method}");
            let message = answer.error()["message"].as_str().expect("words").to_owned();
            assert!(message.contains("Invalid Host header") && !message.contains("credentials"), "{message}");
        }
    }
}

#[tokio::test]
async fn credentials_that_end_during_a_task_fail_it() {
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker().bearing("short");
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    call.canned(Canned::status(401).header("www-authenticate", "Bearer"));
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], code(&ended["error"])), (&json!("failed"), -31008));
}

#[tokio::test]
async fn a_stream_that_can_be_resumed_is_although_its_call_is_a_task() {
    let world = Setup::new()
        .route(ALWAYS)
        .server(|options| {
            // The server's own stream is not the point here; a GET with an id is.
            options.hook = Some(Box::new(|seen| {
                let id = seen.header("last-event-id")?;
                let call: Value = id.parse::<u64>().ok()?.into();
                let result =
                    json!({ "jsonrpc": "2.0", "id": call, "result": { "content": [], "x": "resumed" } });
                let stream = Canned::status(200).header("content-type", "text/event-stream");
                Some(stream.body(format!("data: {result}\n\n")))
            }));
        })
        .start()
        .await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let id = call.id();
    let events = call.stream();
    events.raw(format!("id: {id}\nretry: 1\ndata:\n\n"));
    drop(events);
    let ended = client.ended(&task).await;
    assert_eq!((&ended["status"], &ended["result"]["x"]), (&json!("completed"), &json!("resumed")));
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn servers_without_sessions_streams_or_answers_in_events_have_tasks_too() {
    use crate::support::legacy_server::Get;
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let world = Setup::new()
            .route(ALWAYS)
            .server(|options| {
                options.version = version;
                options.sessions = false;
                options.get = Get::Refused(405);
            })
            .start()
            .await;
        let client = world.tasker();
        let waiting = client.call("t").await;
        let call = world.server.call().await;
        let task = waiting.answer().await.task();
        call.says("done");
        assert_eq!(client.ended(&task).await["status"], "completed", "{version}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_the_handshake_is_abandoned() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("bound"));
    let proxy = start(&url, &[], &["timeouts: { first_byte: 20ms }"]);
    let client = Client::new(proxy.addresses[0]);
    let discover = client.ask("server/discover", json!({})).await;
    assert_eq!(discover.refusal(), (502, -31001), "{discover:?}");
    let call = client.ask("tools/call", json!({ "name": "t" })).await;
    assert_eq!(call.refusal(), (200, -31001), "it was not sent: {call:?}");
}

#[tokio::test]
async fn a_broken_stream_is_resumed_for_a_client_that_waits() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    let call = world.server.call().await;
    let (id, session) = (call.id(), call.session().to_owned());
    let own = world.server.listener(&session).await;
    drop(own);
    let events = call.stream();
    events.raw("id: e1\nretry: 1\ndata:\n\n");
    drop(events);
    world.server.seen(|seen| seen.header("last-event-id") == Some("e1")).await;
    world.server.listener(&session).await.result(&id, json!({ "content": [], "x": "resumed" }));
    assert_eq!(waiting.answer().await.result()["x"], "resumed");
    assert_eq!(world.calls(), 1);
}

#[tokio::test]
async fn a_loss_of_the_session_during_a_call_leaves_the_outcome_unknown_only_where_it_is() {
    // The call's own answer may still come: the session's end is no end of the call.
    let world = ProxyAndServer::with(ALWAYS).await;
    let client = world.tasker();
    let waiting = client.call("t").await;
    let call = world.server.call().await;
    let task = waiting.answer().await.task();
    let other = world.client().call("other").await;
    world.server.call().await.canned(Canned::status(404));
    world.server.call().await.says("in another session");
    assert_eq!(other.answer().await.text(), "in another session");
    call.says("in the old one");
    assert_eq!(client.ended(&task).await["result"]["content"][0]["text"], "in the old one");
}
