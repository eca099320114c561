//! Harness: the proxy in front of a stdio server in memory. Time is paused.

use crate::{
    legacy::proxy_and_client::{LegacyClient, READY},
    support::modern_client::{Following, soon},
};
use deferral::internals::{
    app, config,
    runtime::{Network, PipeNetwork},
    upstream::{Config, UpstreamLimits, in_memory},
};
use serde_json::{Value, json};
use std::path::Path;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, split},
    sync::mpsc::UnboundedReceiver,
    time::{Duration, sleep},
};

pub(crate) struct ProxyAndStdioServer {
    pub(crate) proxy: app::RunningProxy,
    pipes: PipeNetwork,
    started: UnboundedReceiver<DuplexStream>,
}

/// The server's side of one session: a child process, as it were.
pub(crate) struct Child {
    reads: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writes: WriteHalf<DuplexStream>,
}

const PROXY: &str = "10.0.0.1:80";
/// Everything that can go on without time passing does in less.
const MOMENT: Duration = Duration::from_millis(200);

/// Lets everything happen that is under way.
pub(crate) async fn settle() {
    sleep(MOMENT).await;
}

// === impl ProxyAndStdioServer ===

impl ProxyAndStdioServer {
    /// With these members of the route.
    pub(crate) fn new(route: &str) -> Self {
        Self::limited(route, UpstreamLimits::default())
    }

    pub(crate) fn limited(route: &str, limits: UpstreamLimits) -> Self {
        let yaml = format!(
            "listen: {PROXY}\nadmin: \"off\"\nroutes:\n  - upstream: {{ url: \"http://10.0.0.2/\" }}\n    {route}\n"
        );
        let config = config::parse(Path::new("hosted.yaml"), &yaml).unwrap_or_else(|error| panic!("{error}"));
        let spoken_to = Config { limits, ..Config::default() };
        let (server, started) = in_memory(spoken_to).expect("a runtime is entered");
        let pipes = PipeNetwork::default();
        let proxy =
            app::start_with_upstream(config, &Network::Pipes(pipes.clone()), &server).expect("it starts");
        Self { proxy, pipes, started }
    }

    /// A client that has no session yet.
    pub(crate) fn client(&self) -> LegacyClient {
        LegacyClient::new(PROXY.parse().expect("an address")).piped(&self.pipes)
    }

    /// A child that has been started, greeted.
    pub(crate) async fn child(&mut self) -> Child {
        let mut child = self.start().await;
        child.greets().await;
        child
    }

    /// A child that has been started.
    pub(crate) async fn start(&mut self) -> Child {
        let duplex = soon("a child is started", self.started.recv()).await.expect("the proxy runs");
        let (reads, writes) = split(duplex);
        Child { reads: BufReader::new(reads).lines(), writes }
    }

    /// How many more children have been started.
    pub(crate) fn started(&self) -> usize {
        self.started.len()
    }

    /// A client of 2025-11-25 that declares this, and the child that is started for it.
    pub(crate) async fn begin(&mut self, capabilities: Value) -> (LegacyClient, Child) {
        let client = self.client();
        let (client, child) = tokio::join!(hello(&client, capabilities), self.child());
        (client, child)
    }
}

/// A client in a session of its own.
pub(crate) async fn hello(client: &LegacyClient, capabilities: Value) -> LegacyClient {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": capabilities,
        "clientInfo": { "name": "c", "version": "1" },
    });
    let hello = json!({ "jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params });
    let answer = client.post(&hello.to_string()).await.answer().await;
    assert_eq!(answer.json()["id"], "hello");
    let client = client.within(answer.header("mcp-session-id"));
    assert_eq!(client.post(READY).await.answer().await.status, 202);
    client
}

/// Sends a request; what is said of it is heard as it comes.
pub(crate) async fn ask(client: &LegacyClient, id: &Value, method: &str, params: Value) -> Following {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    client.post(&request.to_string()).await.follow()
}

/// Tells the server something, or answers it.
pub(crate) async fn tell(client: &LegacyClient, message: Value) {
    assert_eq!(client.post(&message.to_string()).await.answer().await.status, 202);
}

/// All that has been heard, once there is nothing more to happen.
pub(crate) async fn heard(following: &Following) -> Vec<Value> {
    settle().await;
    following.messages()
}

// === impl Child ===

impl Child {
    /// The next message that it is sent; none where its input has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let line = soon("it is told something", self.reads.next_line()).await.expect("it can be read")?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    /// The next message, which must be of this method.
    pub(crate) async fn told(&mut self, method: &str) -> Value {
        let message = self.next().await.expect("it is told something");
        assert_eq!(message["method"], method, "{message:#}");
        message
    }

    /// The next message, however long it takes.
    pub(crate) async fn later(&mut self) -> Option<Value> {
        let line = self.reads.next_line().await.expect("it can be read")?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    pub(crate) async fn says(&mut self, message: Value) {
        self.says_raw(&message.to_string()).await;
    }

    pub(crate) async fn says_raw(&mut self, message: &str) {
        self.writes.write_all(format!("{message}\n").as_bytes()).await.expect("it is read");
    }

    pub(crate) async fn answers(&mut self, request: &Value, result: Value) {
        self.says(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    }

    pub(crate) async fn asks(&mut self, id: impl Into<Value>, method: &str) {
        let params = match method {
            "roots/list" => json!({}),
            _ => json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } }),
        };
        self.says(json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })).await;
    }

    pub(crate) async fn notifies(&mut self, method: &str, params: Value) {
        self.says(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    /// The handshake.
    pub(crate) async fn greets(&mut self) {
        let capabilities = json!({
            "tools": { "listChanged": true }, "resources": { "subscribe": true }, "logging": {}, "tasks": {},
        });
        self.greets_with(json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "serverInfo": { "name": "child", "version": "1" }, "instructions": "slowly",
        }))
        .await;
    }

    pub(crate) async fn greets_with(&mut self, result: Value) {
        let hello = self.told("initialize").await;
        self.answers(&hello, result).await;
        self.told("notifications/initialized").await;
    }
}
