//! Drain and shutdown.

use super::{
    program::Program,
    proxy_and_server::{ALWAYS, ProxyAndServer, Setup, start},
};
use crate::{
    legacy::proxy_and_client::{HELLO, LegacyClient},
    support::{
        legacy_server::{LegacyServer, Options, Seen},
        modern_client::{Answer, Client, Version, soon},
        paused_time::a_moment,
    },
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::{net::TcpListener, runtime::Builder};

fn server() -> Options {
    let options = Setup::new().options;
    Options { ..options }
}

/// Once this returns, new calls are refused.
async fn refusing(client: &Client) -> Answer {
    let refused = async {
        loop {
            let answer = client.ask("tools/list", json!({})).await;
            if answer.status == 503 {
                return answer;
            }
        }
    };
    soon("the door is watched", refused).await
}

#[tokio::test]
async fn calls_in_flight_are_finished_while_new_ones_are_refused() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &[]).await;
    let waiting = proxy.client().call("slow").await;
    let call = server.call().await;
    proxy.stop();
    let refused = refusing(&proxy.client()).await;
    assert_eq!((refused.refusal(), refused.header("retry-after")), ((503, -31007), "1"));
    for method in ["tools/call", "prompts/get", "server/discover"] {
        let refused = proxy.client().ask(method, json!({ "name": "new" })).await;
        assert_eq!(refused.refusal(), (503, -31007), "{method}");
    }
    let older = LegacyClient::new(proxy.addr).post(HELLO).await.answer().await;
    assert_eq!((older.refusal(), older.header("retry-after")), ((503, -31007), "1"));
    assert_eq!(server.count(|seen| seen.method() == "initialize"), 1, "nothing new was sent");
    call.says("finished");
    assert_eq!(waiting.answer().await.text(), "finished");
    let lost = proxy.gone().await;
    assert_eq!((&lost["calls_lost"], &lost["tasks_lost"]), (&json!(0), &json!(0)));
    assert_eq!(server.messages("notifications/cancelled"), 0);
}

/// Whether balancers are to send clients here.
async fn ready(admin: SocketAddr) -> StatusCode {
    let client = Client::new(admin).with("host", "localhost");
    let mut request = client.spelled("", None, String::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = "/ready".parse().expect("a path");
    client.send_request(request).await.answer().await.status
}

#[tokio::test]
async fn during_the_notice_health_checks_fail_and_new_calls_are_served() {
    let server = LegacyServer::start(server()).await;
    let proxy = start(&server.url(), &[], &["admin: 127.0.0.1:0", "drain: { notice: 1h }"]);
    let (client, admin) = (Client::new(proxy.addresses[0]), proxy.admin.as_ref().expect("it is on").address);
    assert_eq!(ready(admin).await, 200);
    let stopping = tokio::spawn(proxy.stop());
    soon("balancers hear of it", async { while ready(admin).await == 200 {} }).await;
    assert_eq!(ready(admin).await, 503);
    let waiting = client.call("new").await;
    server.call().await.says("served");
    assert_eq!(waiting.answer().await.text(), "served");
    assert!(!stopping.is_finished(), "an hour is not over");
}

#[tokio::test]
async fn calls_over_the_drain_get_an_error_and_are_cancelled() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &["drain: 20ms"]).await;
    let waiting = proxy.client().call("slow").await;
    let call = server.call().await;
    proxy.stop();
    let answer = waiting.answer().await;
    assert_eq!(answer.refusal(), (200, -31007), "{answer:?}");
    proxy.gone().await;
    let told = server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
    assert_eq!(server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn many_calls_over_the_drain_all_get_an_error() {
    // The server has no sessions to say goodbye to, so that the end is near.
    let options = Options { sessions: false, ..server() };
    let server = LegacyServer::start(options).await;
    let mut proxy = Program::start(&server, &[], &["drain: 20ms"]).await;
    let mut waiting = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..50 {
        waiting.push(proxy.client().call("slow").await);
        calls.push(server.call().await);
    }
    proxy.stop();
    proxy.gone().await;
    for waiting in waiting {
        assert_eq!(waiting.answer().await.refusal(), (200, -31007));
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_session_get_the_drain_error() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &["drain: 20ms", "limits: { sessions: 1 }"]).await;
    let client = proxy.client().over(Version::Http2).declaring(json!({ "elicitation": {} }));
    let mut kept = client.kept().await;
    let request = |tool| client.request("tools/call", json!({ "name": tool }));
    let mut waiting = vec![kept.begin(request("slow")).await];
    let call = server.call().await;
    for _ in 0..20 {
        waiting.push(kept.begin(request("queued")).await);
    }
    // What came before this has arrived.
    kept.ask("server/discover", json!({})).await.result();
    proxy.stop();
    proxy.gone().await;
    for waiting in waiting {
        assert_eq!(waiting.answer().await.refusal(), (200, -31007));
    }
    assert_eq!(server.messages("tools/call"), 1, "what waited was never sent");
    drop(call);
}

#[tokio::test]
async fn calls_that_wait_for_a_handshake_get_the_drain_error() {
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/mcp", mute.local_addr().expect("bound"));
    let mut proxy = Program::before(url, &[], &["drain: 20ms"]).await;
    let mut waiting = Vec::new();
    let mut taken = Vec::new();
    for token in 0..20 {
        waiting.push(proxy.client().bearing(&token.to_string()).call("t").await);
        taken.push(soon("the handshake is waited for", mute.accept()).await.expect("a connection"));
    }
    proxy.stop();
    proxy.gone().await;
    for waiting in waiting {
        assert_eq!(waiting.answer().await.refusal(), (200, -31007));
    }
}

#[tokio::test]
async fn tasks_that_do_not_end_in_time_are_cancelled_at_the_server() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[ALWAYS], &["drain: 20ms"]).await;
    let waiting = proxy.client().with_tasks().call("slow").await;
    let call = server.call().await;
    waiting.answer().await.task();
    proxy.stop();
    proxy.gone().await;
    let told = server.message("notifications/cancelled").await;
    assert_eq!(told.json["params"]["requestId"], call.id());
    assert_eq!(server.messages("notifications/cancelled"), 1);
}

#[tokio::test]
async fn a_task_that_ends_while_the_proxy_stops_is_fetched_and_not_cancelled() {
    let server = LegacyServer::start(server()).await;
    for kept in [false, true] {
        let mut proxy = Program::start(&server, &[ALWAYS], &[]).await;
        let client = proxy.client().with_tasks();
        // One that has a connection is served on it once more; one that comes on a new one is served, too.
        let mut connection = client.kept().await;
        let waiting = client.call("slow").await;
        let call = server.call().await;
        let task = waiting.answer().await.task();
        proxy.stop();
        refusing(&client).await;
        assert_eq!(client.task(&task).await["status"], "working");
        call.says("finished");
        let ended = match kept {
            false => client.ended(&task).await,
            true => loop {
                let shown = connection.ask("tasks/get", json!({ "taskId": task })).await.result();
                if shown["status"] != "working" {
                    break shown;
                }
                a_moment().await;
            },
        };
        assert_eq!(ended["result"]["content"][0]["text"], "finished");
        // The drain time is longer than anybody waits here: it goes once nothing is left to fetch.
        let lost = proxy.gone().await;
        assert_eq!((&lost["tasks_lost"], &lost["results_lost"]), (&json!(0), &json!(0)));
        assert_eq!(server.messages("notifications/cancelled"), 0);
    }
}

/// A disconnected client could find the task only in this process, which is about to end.
#[tokio::test]
async fn in_memory_a_call_whose_client_disconnects_while_the_proxy_stops_becomes_no_task() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &["tasks: { unsolicited: always }"], &[]).await;
    let client = LegacyClient::new(proxy.addr).hello().await;
    let waiting = client.call(7).await;
    let call = server.call().await;
    proxy.stop();
    refusing(&proxy.client()).await;
    waiting.leave();
    soon("its departure is heard", async {
        while !proxy.log.lines().iter().any(|line| line["outcome"] == "departed") {
            a_moment().await;
        }
    })
    .await;
    call.says("nobody hears this");
    let lost = proxy.gone().await;
    let counted = ["became_tasks", "calls_lost", "results_lost"].map(|name| lost[name].as_u64());
    assert_eq!(counted, [Some(0), Some(0), Some(0)], "{lost:#}");
    assert_eq!(server.messages("notifications/cancelled"), 0, "the call ended by itself");
}

#[tokio::test]
async fn a_connection_ends_with_what_it_is_answered_while_the_proxy_stops_and_what_it_carries_goes_on() {
    let server = LegacyServer::start(server()).await;
    for version in [Version::Http1, Version::Http2] {
        let mut proxy = Program::start(&server, &[ALWAYS], &[]).await;
        let client = proxy.client().with_tasks();
        let mut connection = client.clone().over(version).kept().await;
        let task = connection.ask("tools/call", json!({ "name": "slow" })).await.task();
        let call = server.call().await;
        assert_eq!(connection.ended(), 0);
        // Over HTTP/2 it carries a listener, too.
        let listened = json!({ "notifications": { "taskIds": [task] } });
        let listening = match version {
            Version::Http1 => None,
            Version::Http2 => {
                let request = connection.client().request("subscriptions/listen", listened);
                Some(connection.begin(request).await.stream().await)
            }
        };
        proxy.stop();
        refusing(&client).await;
        let shown = connection.ask("tasks/get", json!({ "taskId": task })).await;
        let closes = (version == Version::Http1).then_some("close");
        assert_eq!(shown.header("connection"), closes.unwrap_or_default());
        assert_eq!(shown.result()["status"], "working");
        // What is asked before the client has heard of it is answered.
        while connection.ended() == 0 {
            connection.ask("tasks/get", json!({ "taskId": task })).await.result();
        }
        call.says("finished");
        match listening {
            Some(mut listening) => {
                listening.notice("notifications/subscriptions/acknowledged").await;
                assert_eq!(listening.notice("notifications/tasks").await["status"], "completed");
            }
            None => {
                let ended = client.ended(&task).await;
                assert_eq!(ended["result"]["content"][0]["text"], "finished");
            }
        }
        drop(connection);
        proxy.gone().await;
    }
}

#[tokio::test]
async fn a_result_that_nobody_fetches_in_time_is_counted() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[ALWAYS], &["drain: 20ms"]).await;
    let client = proxy.client().with_tasks();
    let mut made = Vec::new();
    for _ in 0..4 {
        let waiting = client.call("slow").await;
        let call = server.call().await;
        made.push((waiting.answer().await.task(), call));
    }
    let mut made = made.into_iter();
    let mut next = || made.next().expect("one more");
    let (fetched, call) = next();
    call.says("asked for");
    client.ended(&fetched).await;
    let (heard, call) = next();
    let mut stream = client.listen(json!({ "taskIds": [heard] })).await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    call.says("heard of");
    assert_eq!(stream.notice("notifications/tasks").await["status"], "completed");
    let (_still_working, _call) = next();
    let (unfetched, call) = next();
    call.says("nobody wants to know");
    // It is kept once the log says so.
    let kept = |line: &Value| line["task"] == json!(unfetched[..8]) && line["to"] == "completed";
    soon("its end is waited for", async {
        while !proxy.log.lines().iter().any(kept) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    proxy.stop();
    let lost = proxy.gone().await;
    let counted = ["calls_lost", "tasks_lost", "results_lost"].map(|name| lost[name].as_u64());
    assert_eq!(counted, [Some(0), Some(1), Some(1)], "{lost:#}");
}

#[tokio::test]
async fn a_parked_call_is_retried_during_the_drain() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &[]).await;
    let client = proxy.client().declaring(json!({ "elicitation": {} }));
    let waiting = client.call("ask").await;
    let call = server.call().await;
    let id = call.id();
    let events = call.stream();
    events.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {
        "mode": "form", "message": "who?", "requestedSchema": { "type": "object", "properties": {} },
    } }));
    let asked = waiting.answer().await.result();
    proxy.stop();
    refusing(&client).await;
    let key = asked["inputRequests"].as_object().expect("questions").keys().next().expect("one").clone();
    let waiting = client
        .send(
            "tools/call",
            json!({
                "name": "ask",
                "arguments": {},
                "requestState": asked["requestState"],
                "inputResponses": { key: { "action": "decline" } },
            }),
        )
        .await;
    server.seen(|seen| seen.answers(&json!(0))).await;
    events.result(&id, json!({ "content": [{ "type": "text", "text": "answered" }] }));
    assert_eq!(waiting.answer().await.text(), "answered");
    proxy.gone().await;
}

#[tokio::test]
async fn a_subscription_reports_the_end_of_a_task_before_its_stream_ends() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[ALWAYS], &[]).await;
    let client = proxy.client().with_tasks();
    let waiting = client.call("slow").await;
    let call = server.call().await;
    let task = waiting.answer().await.task();
    let mut stream = client.listen(json!({ "taskIds": [task] })).await;
    stream.notice("notifications/subscriptions/acknowledged").await;
    proxy.stop();
    refusing(&client).await;
    call.says("finished");
    assert_eq!(stream.notice("notifications/tasks").await["status"], "completed");
    stream.notice("notifications/cancelled").await;
    assert_eq!(stream.next().await["result"]["resultType"], "complete");
    assert_eq!(stream.event().await, None);
    proxy.gone().await;
}

#[tokio::test]
async fn a_call_beside_a_task_in_one_session_gets_the_drain_error_and_is_cancelled() {
    const BESIDE: &str = "tools: [{ match: plain, mode: never }]";
    // On several threads, and often, as who comes first is a matter of chance.
    for _ in 0..10 {
        let server = LegacyServer::start(server()).await;
        let threads = Builder::new_multi_thread();
        let mut proxy = Program::on(threads, server.url(), &[ALWAYS, BESIDE], &["drain: 20ms"]).await;
        let client = proxy.client().with_tasks();
        let waiting = client.call("slow").await;
        let task = server.call().await;
        waiting.answer().await.task();
        let plain = client.call("plain").await;
        let call = server.call().await;
        assert_eq!(task.session(), call.session());
        proxy.stop();
        assert_eq!(plain.answer().await.refusal(), (200, -31007));
        let lost = proxy.gone().await;
        assert_eq!((&lost["calls_lost"], &lost["tasks_lost"]), (&json!(1), &json!(1)));
        for call in [task, call] {
            let told = |seen: &Seen| {
                seen.method() == "notifications/cancelled" && seen.json["params"]["requestId"] == call.id()
            };
            server.seen(told).await;
            assert_eq!(server.count(told), 1);
        }
    }
}

#[tokio::test]
async fn subscriptions_end_at_the_shutdown() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &[]).await;
    for id in [json!(5), json!("five")] {
        let client = proxy.client();
        let mut stream = client.listen_as(&id, json!({ "toolsListChanged": true })).await;
        stream.notice("notifications/subscriptions/acknowledged").await;
        if id == json!("five") {
            proxy.stop();
            let cancelled = stream.notice("notifications/cancelled").await;
            assert_eq!(cancelled["requestId"], id);
            let result = stream.next().await;
            assert_eq!((&result["id"], &result["result"]["resultType"]), (&id, &json!("complete")));
            assert_eq!(stream.event().await, None);
        }
    }
    proxy.gone().await;
}

#[tokio::test]
async fn the_servers_sessions_are_ended() {
    let world = ProxyAndServer::new().await;
    let waiting = world.client().call("t").await;
    world.server.call().await.says("hi");
    waiting.answer().await;
    world.proxy.stop().await;
    assert_eq!(world.server.count(|seen| seen.http == Method::DELETE), 1);
}
