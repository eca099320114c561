//! Builds every part and joins them.

use crate::{
    admin,
    bridge::resume::Keyring,
    config,
    config::Config,
    front, policy,
    proxy::{Endpoint, Service, Tasks},
    runtime::{Clock, Descriptors, Drain, Net, Room, Shares, Stopping, SystemClock, random},
    store::{Memory, Store},
    telemetry::{Drained, Started},
    upstream::{self, NotStarted, Streamable, Upstream},
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
    let store = store(&config.store);
    start_with(config, net, store)
}

/// The same, with tasks kept in this store, whatever the configuration names.
///
/// # Errors
/// As [`start`].
pub fn start_with(mut config: Config, net: &Net, store: Arc<dyn Store>) -> Result<Running, Error> {
    let allowed = match net {
        Net::System => Some(Descriptors::raise()),
        Net::Within(_) | Net::Pipes(_) => None,
    };
    let written = (config.connections.clients, config.connections.servers);
    let most = (config.front.limits.connections, upstream::CONNECTIONS);
    let shares = allowed.map(|allowed| allowed.share(written, most));
    let net = match shares {
        Some(Shares { clients, servers, .. }) => {
            config.front.limits.connections = clients;
            &Net::Within(Room::of(servers))
        }
        None => net,
    };
    let summary = Summary::of(&config);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (stop, stopping) = Drain::new();
    let (overdue, too_late) = Drain::new();

    let tasks = Tasks::new(store, config.quotas, Arc::clone(&clock));
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
    if let (Some(allowed), Some(shares)) = (allowed, shares) {
        summary.tell(&bound.addresses, admin.as_ref().map(|admin| admin.address), allowed, shares);
    }
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

/// What is said of the configuration once the proxy has started.
struct Summary {
    routes: String,
    store: &'static str,
    state_keys: &'static str,
    tls: bool,
    drain: Duration,
    calls: usize,
}

impl Summary {
    fn of(config: &Config) -> Self {
        let routes = config.routes.iter().map(|config::RouteConfig { route, upstream, .. }| {
            let policy::Defer { mode, after, .. } = route.defer;
            let mode = match mode {
                policy::Mode::Never | policy::Mode::Always => mode.as_str().to_owned(),
                policy::Mode::Auto | policy::Mode::Required | policy::Mode::Observe => {
                    format!("{} after {}", mode.as_str(), config::values::show_duration(after))
                }
            };
            let url = &upstream.url;
            // Without its query, which may hold a key.
            let scheme = url.scheme_str().unwrap_or_default();
            let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
            format!("{} -> {scheme}://{authority}{} ({mode})", route.path, url.path())
        });
        Self {
            routes: routes.collect::<Vec<_>>().join("; "),
            store: match config.store {
                config::Store::Memory => "memory",
            },
            state_keys: if config.state_keys.is_empty() { "made at start" } else { "configured" },
            tls: config.front.tls.is_some(),
            drain: config.drain,
            calls: config.front.limits.calls,
        }
    }

    fn tell(&self, listen: &[SocketAddr], admin: Option<SocketAddr>, allowed: Descriptors, shares: Shares) {
        Started {
            listen: &listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            admin: &admin.map_or_else(|| "off".to_owned(), |address| address.to_string()),
            tls: self.tls,
            routes: &self.routes,
            store: self.store,
            state_keys: self.state_keys,
            drain: self.drain,
            descriptors: allowed.limit,
            descriptors_before: allowed.before,
            connections: shares.clients,
            upstream_connections: shares.servers,
            calls: self.calls,
            overcommitted: shares.overcommitted,
        }
        .emit();
    }
}

/// A key of its own where none is given: what was sealed with it ends with the process.
fn keyring(keys: &[config::secret::Key]) -> Keyring {
    let mut keys = keys.iter().map(|key| *key.expose());
    let sealing = keys.next().unwrap_or_else(random);
    Keyring::new(sealing, &keys.collect::<Vec<_>>())
}

fn store(store: &config::Store) -> Arc<dyn Store> {
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
