//! Builds every part and joins them.

use crate::{
    admin,
    bridge::resume::Keyring,
    config,
    config::Config,
    front, policy,
    proxy::{Endpoint, Service, Tasks},
    runtime::{Clock, Drain, Net, Stopping, SystemClock, random},
    store::{Memory, Store},
    telemetry::Drained,
    upstream::{NotStarted, Streamable, Upstream},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A proxy at work.
pub struct Running {
    /// What clients can connect to, with the ports that were really got.
    pub addresses: Vec<SocketAddr>,
    /// The operator's address, where there is one.
    pub admin: Option<admin::Bound>,
    /// The paths that are served, in the order of the configuration.
    pub paths: Vec<Arc<str>>,
    /// Whether clients are met with TLS.
    pub tls: bool,
    stop: Drain,
    work: Stopping,
    overdue: Drain,
    upstreams: Vec<Arc<dyn Upstream>>,
    tasks: Arc<Tasks>,
    limit: Duration,
}

/// Why the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Front(#[from] front::Error),
    #[error(transparent)]
    Admin(#[from] admin::Error),
    #[error("route {path}: {source}")]
    Upstream { path: Arc<str>, source: NotStarted },
}

/// After the time to end by itself is over, tasks are told and given this long to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Starts a proxy. Once this returns, clients are served.
///
/// # Errors
/// [`Error`] names the address, the file or the route that is at fault.
pub fn start(config: Config) -> Result<Running, Error> {
    start_on(config, &Net::System)
}

/// The same, on a network of the caller's choice; the operator's address is the system's all the same.
///
/// # Errors
/// As [`start`].
pub fn start_on(config: Config, net: &Net) -> Result<Running, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (stop, stopping) = Drain::new();
    let (overdue, too_late) = Drain::new();

    let tasks = Tasks::new(store(config.store), config.quotas, Arc::clone(&clock));
    tokio::spawn(Arc::clone(&tasks).look_after(stopping.clone()));

    let keyring = Arc::new(keyring(&config.state_keys));
    let mut upstreams = Vec::new();
    let mut services: Vec<Arc<dyn Service>> = Vec::new();
    let mut paths = Vec::new();
    for config::RouteConfig { route, upstream, .. } in config.routes {
        let route: Arc<policy::Route> = Arc::new(route);
        let path = Arc::clone(&route.path);
        let upstream: Arc<dyn Upstream> = Arc::new(
            Streamable::on(upstream, net)
                .map_err(|source| Error::Upstream { path: Arc::clone(&path), source })?,
        );
        upstreams.push(Arc::clone(&upstream));
        services.push(Arc::new(Endpoint::new(
            route,
            upstream,
            Arc::clone(&tasks),
            Arc::clone(&clock),
            Arc::clone(&keyring),
            [stopping.clone(), too_late.clone()],
        )));
        paths.push(path);
    }

    let tls = config.front.tls.is_some();
    let access = config.front.access.clone();
    let bound = front::serve(config.front, services, stopping.clone(), clock, net)?;
    let admin = config
        .admin
        .map(|listen| admin::serve(admin::Config { listen, access: access.clone() }, stopping.clone()))
        .transpose()?;
    Ok(Running {
        addresses: bound.addresses,
        admin,
        paths,
        tls,
        stop,
        work: stopping,
        overdue,
        upstreams,
        tasks,
        limit: config.drain,
    })
}

/// A key of its own where none is given: what was sealed with it ends with the process.
fn keyring(keys: &[config::secret::Key]) -> Keyring {
    let mut keys = keys.iter().map(|key| *key.expose());
    let sealing = keys.next().unwrap_or_else(random);
    Keyring::new(sealing, &keys.collect::<Vec<_>>())
}

fn store(store: config::Store) -> Arc<dyn Store> {
    match store {
        config::Store::Memory => Arc::new(Memory::default()),
    }
}

// === impl Running ===

impl Running {
    /// An endpoint as a URL.
    pub fn url(&self, address: &SocketAddr, path: &str) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{address}{path}")
    }

    /// Stops in order: no more clients, listen streams end, what ends within the drain time does,
    /// the rest is ended with a clear error, and the servers are told.
    pub async fn stop(self) {
        let unfinished = self.stop.stop(self.limit).await;
        let tasks_lost = self.tasks.held();
        self.overdue.stop(LAST_WORDS).await;
        futures_util::future::join_all(self.upstreams.iter().map(|upstream| upstream.close())).await;
        // What is told of that must still be written.
        let _ = tokio::time::timeout(LAST_WORDS, self.work.is_over()).await;
        // It has answered to the last, so that operators saw us stopping.
        if let Some(admin) = self.admin {
            admin.task.abort();
        }
        Drained { calls_lost: unfinished.saturating_sub(tasks_lost), tasks_lost }.emit();
    }
}

/// Serves until the process is told to stop, then stops in order. `ready` is told once clients are
/// served.
///
/// # Errors
/// As [`start`].
pub async fn run(config: Config, ready: impl FnOnce(&Running)) -> Result<(), Error> {
    let stop = stop_signal();
    let running = start(config)?;
    ready(&running);
    stop.await;
    running.stop().await;
    Ok(())
}

/// Resolves at the first SIGTERM or Ctrl-C. Listens from the moment it is called.
fn stop_signal() -> impl Future<Output = ()> {
    let mut terminate = signal(SignalKind::terminate()).ok();
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    async move {
        tokio::select! {
            () = heard(&mut terminate) => {}
            () = heard(&mut interrupt) => {}
        }
    }
}

/// A signal that cannot be listened to never comes.
async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
