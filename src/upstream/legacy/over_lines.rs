//! Tests of a legacy server over a transport other than HTTP: one duplex of lines, on which every message is
//! off-stream.

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, split},
    sync::mpsc,
};

use super::LegacyUpstream;
use crate::{
    dialect::{Credentials, Principal, modern},
    protocol::{Capabilities, Method},
    runtime::Network,
    upstream::{
        CallError, CallerIdentity, Config, OutgoingCall, Upstream, UpstreamEvent, UpstreamEvents,
        background::BackgroundTasks, duplex::DuplexTransport,
    },
};

/// The server's side.
struct LineServer {
    reads: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writes: WriteHalf<DuplexStream>,
}

// === impl LineServer ===

impl From<DuplexStream> for LineServer {
    fn from(theirs: DuplexStream) -> Self {
        let (reads, writes) = split(theirs);
        Self { reads: BufReader::new(reads).lines(), writes }
    }
}

impl LineServer {
    /// Reads the next message to the server; `None` at the end of the server's input.
    async fn read(&mut self) -> Option<Value> {
        let line = self.reads.next_line().await.expect("it can be read")?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    async fn send(&mut self, message: Value) {
        self.writes.write_all(format!("{message}\n").as_bytes()).await.expect("it is read");
    }

    /// Answers the handshake, and returns the call that follows.
    async fn begins(&mut self) -> Value {
        let initialize = self.read().await.expect("a handshake");
        assert_eq!(initialize["method"], "initialize");
        let result = json!({
            "protocolVersion": "2025-11-25", "capabilities": { "tools": {}, "tasks": {} },
            "serverInfo": { "name": "child", "version": "1" },
        });
        self.send(json!({ "jsonrpc": "2.0", "id": initialize["id"], "result": result })).await;
        assert_eq!(self.read().await.expect("more")["method"], "notifications/initialized");
        self.read().await.expect("a call")
    }
}

/// A server over lines, and a receiver of its connections.
fn server() -> (LegacyUpstream<DuplexTransport>, mpsc::UnboundedReceiver<DuplexStream>) {
    let (children, started) = mpsc::unbounded_channel();
    let work = BackgroundTasks::new().expect("a runtime is entered");
    (
        LegacyUpstream::with_transport(
            DuplexTransport(children),
            "",
            Config::default(),
            work,
            &Network::System,
        ),
        started,
    )
}

/// Makes a call of a client with capabilities, polled to its first event in a task.
fn begin(
    server: &LegacyUpstream<DuplexTransport>,
) -> tokio::task::JoinHandle<(Option<UpstreamEvent>, UpstreamEvents)> {
    let capabilities = Capabilities::read(Bytes::from_static(br#"{"elicitation":{}}"#)).expect("an object");
    let caller = CallerIdentity {
        principal: Principal::ANONYMOUS,
        credentials: Credentials::default(),
        capabilities: Arc::new(capabilities),
        client_info: Default::default(),
    };
    let call = Arc::new(modern::build_call(&Method::ToolsCall, r#"{"name":"t"}"#));
    let mut replies = server.call(OutgoingCall { id: 7, call, caller, deferral: None });
    tokio::spawn(async move { (replies.next().await, replies) })
}

#[tokio::test(start_paused = true)]
async fn a_call_over_lines_is_answered_off_stream_after_an_input_request() {
    let (server, mut started) = server();
    let call = begin(&server);
    let mut child = LineServer::from(started.recv().await.expect("a child"));
    assert_eq!(child.begins().await["id"], 7);
    let question = json!({ "message": "?", "requestedSchema": { "type": "object" } });
    child
        .send(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": question }))
        .await;
    let (event, mut replies) = call.await.expect("it goes on");
    let Some(UpstreamEvent::ServerRequest(asked)) = event else { panic!("it is asked: {event:?}") };
    asked.responder.respond(Ok(Bytes::from_static(br#"{"action":"decline"}"#)));
    let answer = json!({ "jsonrpc": "2.0", "id": "q", "result": { "action": "decline" } });
    assert_eq!(child.read().await, Some(answer));
    child.send(json!({ "jsonrpc": "2.0", "id": 7, "result": { "content": [] } })).await;
    let Some(UpstreamEvent::Final(response)) = replies.next().await else { panic!("it is answered") };
    let raised = response.client_result(&Method::ToolsCall).expect("a result");
    let raised: Value = serde_json::from_slice(&raised).expect("JSON");
    assert_eq!(raised["resultType"], "complete");
    let about = server.status().description.expect("it has spoken");
    assert_eq!((&**about.capabilities, about.has_tasks), (&br#"{"tools":{}}"#[..], false));
    server.close().await;
    assert_eq!(child.read().await, None, "its input ends");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_over_lines_is_cancelled_and_its_session_takes_no_other() {
    let (server, mut started) = server();
    let call = begin(&server);
    let mut child = LineServer::from(started.recv().await.expect("a child"));
    child.begins().await;
    call.abort();
    let cancelled = child.read().await.expect("a cancel");
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], 7);
    assert_eq!(child.read().await, None, "its input ends");
    let _next = begin(&server);
    LineServer::from(started.recv().await.expect("another child")).begins().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_exits_fails_its_calls_and_closing_cancels_them() {
    let (server, mut started) = server();
    let call = begin(&server);
    let mut child = LineServer::from(started.recv().await.expect("a child"));
    child.begins().await;
    drop(child);
    let (event, _) = call.await.expect("it goes on");
    assert!(matches!(event, Some(UpstreamEvent::Lost(CallError::SessionEnded))), "{event:?}");

    let call = begin(&server);
    let mut child = LineServer::from(started.recv().await.expect("another child"));
    child.begins().await;
    server.close().await;
    let (event, _) = call.await.expect("it goes on");
    assert!(matches!(event, Some(UpstreamEvent::Lost(CallError::Closing))), "{event:?}");
    assert_eq!(child.read().await.expect("a cancel")["method"], "notifications/cancelled");
    assert_eq!(child.read().await, None, "its input ends");
}
