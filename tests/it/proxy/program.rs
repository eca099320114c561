//! Harness: a proxy on a runtime of its own, which ends as the program does.

use super::proxy_and_server::{Kept, start, start_kept};
use crate::support::{
    legacy_server::LegacyServer,
    modern_client::{Client, soon},
};
use deferral::internals::{app::RunningProxy, telemetry};
use serde_json::Value;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::UNIX_EPOCH,
};
use tokio::{runtime::Builder, sync::oneshot};
use tracing_subscriber::layer::SubscriberExt as _;

/// Members of the configuration.
pub(crate) type Members = &'static [&'static str];

/// A proxy with a runtime of its own that ends when it has stopped, as the program does: what it
/// still had to say is then not said.
pub(crate) struct Program {
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<End>>,
    pub(crate) log: Log,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// How it ends.
enum End {
    Stopped,
    Killed,
}

impl Program {
    pub(crate) async fn start(server: &LegacyServer, route: Members, top: Members) -> Self {
        Self::before(server.url(), route, top).await
    }

    pub(crate) async fn before(url: String, route: Members, top: Members) -> Self {
        // On one thread: at the end nothing goes on by chance.
        Self::on(Builder::new_current_thread(), url, route, top).await
    }

    /// One whose tasks are kept here.
    pub(crate) async fn kept(server: &LegacyServer, kept: Kept, route: Members, top: Members) -> Self {
        let url = server.url();
        Self::begun(Builder::new_current_thread(), move || start_kept(&url, kept, route, top)).await
    }

    pub(crate) async fn on(threads: Builder, url: String, route: Members, top: Members) -> Self {
        Self::begun(threads, move || start(&url, route, top)).await
    }

    async fn begun(mut threads: Builder, start: impl FnOnce() -> RunningProxy + Send + 'static) -> Self {
        let (stop, stopping) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let log = Log::default();
        let written = log.clone();
        let thread = std::thread::spawn(move || {
            let take = move |_: &tracing::Level, line: &str| {
                written.0.lock().expect("nothing panics while it is held").push_str(line);
            };
            let lines = telemetry::LogLayer::new(telemetry::LineFormat::Json, || UNIX_EPOCH, take);
            let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(lines));
            let runtime = threads.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let running: RunningProxy = start();
                tell.send(running.addresses[0]).expect("the test waits");
                match stopping.await {
                    Ok(End::Killed) => {}
                    Ok(End::Stopped) | Err(_) => running.stop().await,
                }
            });
            runtime.shutdown_background();
        });
        Self { addr: told.await.expect("it starts"), stop: Some(stop), log, thread: Some(thread) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// Tells it to stop, as SIGTERM does.
    pub(crate) fn stop(&mut self) {
        self.stop.take().expect("it is stopped once").send(End::Stopped).ok().expect("it runs");
    }

    /// Kills it: nothing that it holds is sent.
    pub(crate) async fn killed(mut self) {
        let stop = self.stop.take().expect("it is stopped once");
        stop.send(End::Killed).ok().expect("it runs");
        self.over().await;
    }

    /// Waits until it is gone; gives the line that says what was lost.
    pub(crate) async fn gone(mut self) -> Value {
        self.over().await;
        self.log.drained()
    }

    async fn over(&mut self) {
        let thread = self.thread.take().expect("it is waited for once");
        soon("its end is waited for", tokio::task::spawn_blocking(|| thread.join()))
            .await
            .expect("it is waited for")
            .expect("it does not panic");
    }
}

/// Every line of the log so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<Value> {
        let written = self.0.lock().expect("nothing panics while it is held").clone();
        written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The line that says what was lost.
    pub(crate) fn drained(&self) -> Value {
        self.lines().into_iter().rfind(|line| line["event"] == "drained").expect("it has drained")
    }
}
