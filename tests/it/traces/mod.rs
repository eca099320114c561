//! Traces: spans of requests, calls and tasks at a collector.

mod calls;
mod exporting;
mod requests;
mod tasks;

use crate::{
    proxy::proxy_and_server::{ProxyAndServer, Setup},
    support::{collector::Collector, modern_client::Client},
};
use serde_json::{Value, json};

/// A parent that a client may have.
pub(crate) const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const SPAN: &str = "00f067aa0ba902b7";

/// A proxy whose traces go to a collector.
pub(crate) struct Traced {
    pub(crate) world: ProxyAndServer,
    pub(crate) collector: Collector,
}

impl Traced {
    pub(crate) async fn new() -> Self {
        Self::with(Setup::new()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let collector = Collector::start().await;
        let top = format!("telemetry: {{ otlp: \"{}\" }}", collector.url());
        Self { world: setup.top(top.leak()).start().await, collector }
    }

    pub(crate) fn client(&self) -> Client {
        self.world.client()
    }

    /// A call of a tool that answers at once.
    pub(crate) async fn called(&self, client: &Client, params: Value) -> Value {
        let waiting = client.send("tools/call", params).await;
        self.world.server.call().await.says("done");
        waiting.answer().await.json()
    }

    /// Everything has ended, and what was recorded has been sent.
    pub(crate) async fn told(self) -> Collector {
        self.world.proxy.stop().await;
        self.collector
    }
}

/// The parameters of a call whose `_meta` has this, too.
pub(crate) fn with_meta(meta: Value) -> Value {
    json!({ "name": "greet", "arguments": { "secret": "a-secret-argument" }, "_meta": meta })
}
