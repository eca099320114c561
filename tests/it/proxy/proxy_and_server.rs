//! Harness: the proxy as its program starts it, and a scripted legacy server behind it.

use crate::support::{
    faulty_store::FaultyStore,
    legacy_server::{LegacyServer, Options},
    modern_client::Client,
};
use deferral::internals::{
    admin, app, config,
    runtime::Network,
    store::{Store, StoreSecret},
};
use serde_json::json;
use std::{net::SocketAddr, path::Path, sync::Arc};

/// The proxy and what is behind it.
pub(crate) struct ProxyAndServer {
    pub(crate) server: LegacyServer,
    pub(crate) proxy: app::RunningProxy,
}

/// What a world is to be like.
pub(crate) struct Setup {
    pub(crate) options: Options,
    route: Vec<&'static str>,
    top: Vec<&'static str>,
    store: Option<Arc<FaultyStore>>,
}

/// Everything is a task once it has run this long.
pub(crate) const SLOW: &str = "defer: { after: 20ms }";
/// Every call is a task at once.
pub(crate) const ALWAYS: &str = "defer: { mode: always }";

// === impl ProxyAndServer ===

impl ProxyAndServer {
    /// With the defaults: calls are fast for five seconds.
    pub(crate) async fn new() -> Self {
        Setup::new().start().await
    }

    /// With this setting of the route.
    pub(crate) async fn with(route: &'static str) -> Self {
        Setup::new().route(route).start().await
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.proxy.addresses[0]
    }

    /// A client without credentials that declares nothing.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.addr())
    }

    /// A client that declares the tasks extension.
    pub(crate) fn tasker(&self) -> Client {
        self.client().with_tasks()
    }

    /// Goes on with these members, in front of the same server.
    pub(crate) fn reload(&mut self, route: &[&str], top: &[&str]) -> Result<admin::ChangedKeys, app::Error> {
        self.proxy.reload(written(&self.server.url(), route, top))
    }

    /// How many `tools/call` the server has seen.
    pub(crate) fn calls(&self) -> usize {
        self.server.messages("tools/call")
    }
}

// === impl Setup ===

impl Setup {
    /// The server declares everything there is, and has no tools that want anything special.
    pub(crate) fn new() -> Self {
        let options = Options {
            capabilities: json!({
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "resources": { "listChanged": true, "subscribe": true },
                "completions": {},
                "logging": {},
            }),
            tools: Some(json!([])),
            ..Options::default()
        };
        Self { options, route: Vec::new(), top: Vec::new(), store: None }
    }

    /// One more member of the route.
    pub(crate) fn route(mut self, member: &'static str) -> Self {
        self.route.push(member);
        self
    }

    /// One more member beside the routes.
    pub(crate) fn top(mut self, member: &'static str) -> Self {
        self.top.push(member);
        self
    }

    /// The server is to be like this.
    pub(crate) fn server(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Tasks are kept in this store.
    pub(crate) fn store(mut self, store: &Arc<FaultyStore>) -> Self {
        self.store = Some(Arc::clone(store));
        self
    }

    pub(crate) async fn start(self) -> ProxyAndServer {
        let server = LegacyServer::start(self.options).await;
        let config = written(&server.url(), &self.route, &self.top);
        let proxy = match self.store {
            Some(store) => app::start_with(config, &Network::System, store, None),
            None => app::start(config),
        };
        ProxyAndServer { server, proxy: proxy.expect("the proxy starts") }
    }
}

/// A proxy in front of a URL.
pub(crate) fn start(url: &str, route: &[&str], top: &[&str]) -> app::RunningProxy {
    app::start(written(url, route, top)).expect("the proxy starts")
}

/// Where tasks are kept for longer than a proxy lives, and the secret beside it.
pub(crate) type Kept = (Arc<dyn Store>, StoreSecret);

/// The same, with tasks kept there.
pub(crate) fn start_kept(
    url: &str,
    (store, secret): Kept,
    route: &[&str],
    top: &[&str],
) -> app::RunningProxy {
    let config = written(url, route, top);
    app::start_with(config, &Network::System, store, Some(secret)).expect("the proxy starts")
}

pub(crate) fn written(url: &str, route: &[&str], top: &[&str]) -> config::Config {
    let mut yaml = String::from("listen: 127.0.0.1:0\n");
    if !top.iter().any(|member| member.starts_with("admin:")) {
        yaml.push_str("admin: \"off\"\n");
    }
    if !top.iter().any(|member| member.starts_with("timeouts:")) {
        // However long a busy machine takes: a comment makes an answer a stream.
        yaml.push_str("timeouts: { keep_alive: 1h }\n");
    }
    for member in top {
        yaml.push_str(&format!("{member}\n"));
    }
    yaml.push_str(&format!("routes:\n  - upstream: {{ url: \"{url}\" }}\n"));
    for member in route {
        yaml.push_str(&format!("    {member}\n"));
    }
    config::parse(Path::new("test.yaml"), &yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}
