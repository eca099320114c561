//! An upstream and a scripted legacy server, over real sockets.

mod broken_streams;
mod call_responses;
mod call_retries;
mod cancellation;
mod connections;
mod get_stream;
mod handshake;
mod http_responses;
mod limits;
mod lost_sessions;
mod odd_events;
mod outbound_messages;
mod server_requests;
mod session_pool;
mod session_queue;
mod session_start;
mod subscriptions;
mod unfinished_calls;
mod upstream_http;

use crate::support::legacy_server::{LegacyServer, Options, PATIENCE};
use bytes::Bytes;
use deferral::internals::{
    dialect::{Call, Credentials, Principal, modern},
    protocol::{Capabilities, Frame, Kind, Method},
    upstream::{
        CallError, CallerIdentity, Config, HttpOrigin, HttpRelay, HttpUpstream, OutgoingCall,
        PendingServerRequest, Upstream, UpstreamEvent, UpstreamEvents,
    },
};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout;

const ASKABLE: &str = r#"{"elicitation":{}}"#;

const MUTE: &str = "{}";

/// The server that a test scripts, and the upstream that speaks to it.
struct UpstreamAndServer {
    server: LegacyServer,
    upstream: HttpUpstream,
}

impl UpstreamAndServer {
    async fn new(options: Options) -> Self {
        Self::with(options, |_| {}).await
    }

    async fn with(options: Options, change: impl FnOnce(&mut Config)) -> Self {
        let server = LegacyServer::start(options).await;
        let upstream = connect(&server.url(), change);
        Self { server, upstream }
    }

    /// The port for the requests of legacy clients.
    fn relay(&self) -> &dyn HttpRelay {
        self.upstream.http_relay().expect("sessions for legacy clients")
    }

    /// The port to the server's documents.
    fn origin(&self) -> &dyn HttpOrigin {
        self.upstream.http_origin().expect("a server over HTTP")
    }

    fn call(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsCall, MUTE))
    }

    fn ask(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsCall, ASKABLE))
    }

    fn list(&self, id: u64) -> Running {
        self.send(request(id, Method::ToolsList, MUTE))
    }

    /// Makes a call in a task of its own, as the proxy does with those it has in hand.
    fn send(&self, call: OutgoingCall) -> Running {
        Running::new(self.upstream.call(call))
    }

    /// The next call, answered with its own session.
    async fn answer(&self) -> String {
        let call = self.server.call().await;
        let session = call.session().to_owned();
        call.result(json!({ "session": session }));
        session
    }
}

/// A call under way. Dropping it drops its stream of events.
struct Running {
    events: tokio::sync::mpsc::UnboundedReceiver<UpstreamEvent>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn new(mut replies: UpstreamEvents) -> Self {
        let (sender, events) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(event) = replies.next().await {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Self { events, task }
    }

    async fn next(&mut self) -> Option<UpstreamEvent> {
        timeout(PATIENCE, self.events.recv()).await.expect("something happens to the call")
    }

    async fn result(&mut self) -> Value {
        match self.next().await {
            Some(UpstreamEvent::Final(response)) => {
                assert!(self.next().await.is_none(), "nothing follows the final event");
                result(response.frame())
            }
            other => panic!("a final event, not {other:?}"),
        }
    }

    async fn lost(&mut self) -> CallError {
        match self.next().await {
            Some(UpstreamEvent::Lost(lost)) => {
                assert!(self.next().await.is_none(), "nothing follows the loss");
                lost
            }
            other => panic!("a loss, not {other:?}"),
        }
    }

    async fn notice(&mut self) -> Value {
        match self.next().await {
            Some(UpstreamEvent::Notification(frame)) => value(&frame),
            other => panic!("a notice, not {other:?}"),
        }
    }

    async fn question(&mut self) -> PendingServerRequest {
        match self.next().await {
            Some(UpstreamEvent::ServerRequest(question)) => question,
            other => panic!("a question, not {other:?}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn connect(url: &str, change: impl FnOnce(&mut Config)) -> HttpUpstream {
    let mut config = Config::default();
    change(&mut config);
    HttpUpstream::new(&url.parse().expect("a URL"), config).expect("a URL to speak to")
}

fn identity(capabilities: &'static str) -> CallerIdentity {
    CallerIdentity {
        principal: Principal::ANONYMOUS,
        credentials: Credentials::default(),
        capabilities: Arc::new(
            Capabilities::read(Bytes::from_static(capabilities.as_bytes())).expect("an object"),
        ),
        client_info: Default::default(),
    }
}

fn token(token: &str) -> CallerIdentity {
    let value: HeaderValue = token.parse().expect("a header value");
    CallerIdentity {
        principal: Principal::derive(&[token.as_bytes()]),
        credentials: Credentials::new(HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])),
        ..identity(MUTE)
    }
}

fn request(id: u64, method: Method, capabilities: &'static str) -> OutgoingCall {
    let call = modern::build_call(&method, r#"{"name":"t","_meta":{"progressToken":"t"}}"#);
    let call = Call { progress_token: Some(Bytes::from_static(b"\"t\"")), ..call };
    OutgoingCall { id, call: Arc::new(call), caller: identity(capabilities), deferral: None }
}

fn value(frame: &Frame) -> Value {
    serde_json::from_slice(frame.as_bytes()).expect("JSON")
}

fn result(frame: &Frame) -> Value {
    match frame.kind() {
        Kind::Success { result, .. } => serde_json::from_slice(result).expect("JSON"),
        other => panic!("a success, not {other:?}"),
    }
}

fn elicitation(id: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": { "message": "?" } })
}

fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}
