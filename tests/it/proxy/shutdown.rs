//! The end of the proxy.

use super::world::{ALWAYS, Setup, World, start};
use crate::support::{
    clients::{Client, Version, soon},
    servers::{LegacyServer, Options},
};
use deferral::internals::app::Running;
use serde_json::json;
use std::net::SocketAddr;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::oneshot,
};

/// Members of the configuration.
type Members = &'static [&'static str];

/// A proxy with a runtime of its own that ends when it has stopped, as the program does: what it
/// still had to say is then not said.
struct Program {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Program {
    async fn start(server: &LegacyServer, route: Members, top: Members) -> Self {
        Self::before(server.url(), route, top).await
    }

    async fn before(url: String, route: Members, top: Members) -> Self {
        let (stop, stopping) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            // On one thread: at the end nothing goes on by chance.
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let running: Running = start(&url, route, top);
                tell.send(running.addresses[0]).expect("the test waits");
                let _ = stopping.await;
                running.stop().await;
            });
            runtime.shutdown_background();
        });
        Self { addr: told.await.expect("it starts"), stop: Some(stop), thread: Some(thread) }
    }

    fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// Tells it to stop, as SIGTERM does.
    fn stop(&mut self) {
        self.stop.take().expect("it is stopped once").send(()).expect("it runs");
    }

    /// Waits until it is gone.
    async fn gone(mut self) {
        let thread = self.thread.take().expect("it is waited for once");
        soon("its end is waited for", tokio::task::spawn_blocking(|| thread.join()))
            .await
            .expect("it is waited for")
            .expect("it does not panic");
    }
}

fn server() -> Options {
    let options = Setup::new().options;
    Options { ..options }
}

/// Once this returns, nobody new is let in.
async fn closed(addr: SocketAddr) {
    let refused = async { while TcpStream::connect(addr).await.is_ok() {} };
    soon("the door is watched", refused).await;
}

#[tokio::test]
async fn calls_in_flight_are_finished_while_nobody_new_is_let_in() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[], &[]).await;
    let waiting = proxy.client().call("slow").await;
    let call = server.call().await;
    proxy.stop();
    closed(proxy.addr).await;
    call.says("finished");
    assert_eq!(waiting.answer().await.text(), "finished");
    proxy.gone().await;
    assert_eq!(server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn calls_that_do_not_end_in_time_are_told_so_and_cancelled() {
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
async fn many_calls_that_do_not_end_in_time_are_all_told_so() {
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
async fn calls_that_wait_for_a_session_are_told_so_too() {
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
async fn calls_that_wait_for_a_handshake_are_told_so_too() {
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
async fn a_task_that_ends_within_the_time_is_not_cancelled() {
    let server = LegacyServer::start(server()).await;
    let mut proxy = Program::start(&server, &[ALWAYS], &[]).await;
    let waiting = proxy.client().with_tasks().call("slow").await;
    let call = server.call().await;
    waiting.answer().await.task();
    proxy.stop();
    closed(proxy.addr).await;
    call.says("finished");
    proxy.gone().await;
    assert_eq!(server.messages("notifications/cancelled"), 0);
}

#[tokio::test]
async fn listeners_are_told_that_it_is_over() {
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
    let world = World::new().await;
    let waiting = world.client().call("t").await;
    world.server.call().await.says("hi");
    waiting.answer().await;
    world.proxy.stop().await;
    assert_eq!(world.server.count(|seen| seen.http == http::Method::DELETE), 1);
}
