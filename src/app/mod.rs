//! Builds all parts and connects them.
//!
//! `shared_parts` has the parts that all routes share, and creates routes; `reload` applies another
//! configuration; `run` serves until the process is signalled to stop, and reloads on request.

mod reload;
mod run;
mod shared_parts;
mod watch;

pub use run::{ConfigSource, PendingWork, StopTriggers, run};

use crate::{
    admin,
    config::{self, Config, DrainTimes},
    dialect::{Principal, PrincipalKey},
    front::{self, FrontReload},
    policy,
    protocol::ClockOffset,
    proxy::{AnchorSeal, OperatorTasks, TaskLedger},
    runtime::{
        Clock, ConnectionLimiter, DescriptorLimit, DescriptorShares, Drain, DrainWatch, Network, SteadyClock,
        SwapCell, SystemClock, random, wall_clock, wall_time,
    },
    store::{DiskStore, KeyPurpose, MemoryStore, Store, StoreBounds, StoreSecret, TimedStore, disk},
    telemetry::{
        DrainCompleted, DrainStarted, Limit, ProxyStarted, ShutdownNotice,
        trace::{self, ExporterHandle, Tracer},
    },
    upstream::{self, CallerIdentity, Upstream, UpstreamSetupError, UpstreamTarget},
};
use shared_parts::{ServedRoute, SharedParts, activate_routes, route_entries, servers, services};
use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout, timeout_at},
};

/// A running proxy.
pub struct RunningProxy {
    /// Addresses of the client listeners, with the actual ports.
    pub addresses: Vec<SocketAddr>,
    /// The admin listener, if one is configured.
    pub admin: Option<admin::AdminServer>,
    /// The metrics listener, if one is configured.
    pub metrics: Option<admin::MetricsListener>,
    /// The paths of the routes, in the order of the configuration.
    pub paths: Vec<Arc<str>>,
    /// Whether the client listeners use TLS.
    pub is_tls: bool,
    stages: DrainStages,
    shared: SharedParts,
    /// The descriptor limit, if it bounds connections.
    descriptors: Option<DescriptorLimit>,
    routes: Vec<ServedRoute>,
    front: Arc<dyn FrontReload>,
    /// The current configuration.
    config: Config,
    /// Operators' requests to reload.
    reload_requests: admin::ReloadReceiver,
    /// Servers that a reload has removed, each with the task that waits for its last call.
    retiring: Vec<(JoinHandle<()>, Arc<dyn Upstream>)>,
    /// The exporter of spans, if one is configured.
    traces: Option<ExporterHandle>,
}

/// Stages of the shutdown, in the order in which they start.
struct DrainStages {
    /// Requests are still served, but `/ready` fails, and each response is the last of its connection.
    notice: Drain,
    /// New calls are refused; calls in progress continue. Tracks active calls and tasks.
    draining: Drain,
    /// The drain time is over: calls and tasks are cancelled.
    overdue: Drain,
    /// No requests are served. Tracks connections.
    closing: Drain,
}

/// Error of a proxy that cannot start, or that was not stopped in order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Front(#[from] front::Error),
    #[error(transparent)]
    Admin(#[from] admin::Error),
    #[error(transparent)]
    Store(#[from] disk::Error),
    #[error("route {path}: {source}")]
    Upstream { path: Arc<str>, source: UpstreamSetupError },
    #[error("stopped immediately by a second signal; the log lists what was lost")]
    SecondSignal,
    #[error(
        "an MCP message arrived on standard input, but the proxy serves HTTP at {url}: a host that \
         started it as a stdio server would wait forever; configure this URL in the host instead of a \
         command, and start the proxy separately"
    )]
    StartedByHost { url: String },
}

/// How long cancelled calls and tasks may take to end after the drain time.
const FINAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of the export of the last spans.
const SPAN_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts a proxy. Once this returns, clients are served.
///
/// # Errors
/// [`Error`] names the address, the file or the route that is at fault.
pub fn start(config: Config) -> Result<RunningProxy, Error> {
    start_on(config, &Network::System)
}

/// Starts a proxy on a given network; the admin listener uses that of the system in any case.
///
/// # Errors
/// As [`start`].
pub fn start_on(config: Config, net: &Network) -> Result<RunningProxy, Error> {
    let (store, secret) = open_store(&config.store, &config.quotas)?;
    start_with(config, net, store, secret)
}

/// Starts a proxy with a given store, whatever the configuration names.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    config: Config,
    net: &Network,
    store: Arc<dyn Store>,
    secret: Option<StoreSecret>,
) -> Result<RunningProxy, Error> {
    start_proxy(config, net, (store, secret), upstream::create_upstream)
}

/// Starts a proxy with a given upstream, whatever the configuration names.
///
/// # Errors
/// As [`start`].
pub fn start_with_upstream(
    config: Config,
    net: &Network,
    server: &Arc<dyn Upstream>,
) -> Result<RunningProxy, Error> {
    let store = open_store(&config.store, &config.quotas)?;
    let server = Arc::clone(server);
    start_proxy(config, net, store, move |_, _, _, _| Ok(Arc::clone(&server)))
}

fn start_proxy(
    mut config: Config,
    net: &Network,
    (store, secret): StoreWithSecret,
    make_upstream: impl Fn(
        UpstreamTarget,
        &str,
        upstream::Config,
        &Network,
    ) -> Result<Arc<dyn Upstream>, UpstreamSetupError>
    + Send
    + Sync
    + 'static,
) -> Result<RunningProxy, Error> {
    let descriptors = match net {
        Network::System => {
            let descriptor_limit = DescriptorLimit::raise();
            Some((descriptor_limit, share_descriptors(descriptor_limit, &mut config)))
        }
        Network::Limited(_) | Network::Pipes(_) => None,
    };
    let net = match &descriptors {
        Some((_, shares)) => &Network::Limited(ConnectionLimiter::new(shares.servers)),
        None => net,
    };
    publish_limits(&config);
    if let Some((_, shares)) = &descriptors {
        Limit::UpstreamConnections.set_value(shares.servers as f64);
    }
    let clock = create_clock(net, &*store);
    let (notice, notice_watch) = Drain::new();
    let (draining, draining_watch) = Drain::new();
    let (overdue, overdue_watch) = Drain::new();
    let (closing, closing_watch) = Drain::new();

    let (tracer, traces) = start_tracing(&config);
    let ledger =
        TaskLedger::new(Arc::new(TimedStore::new(store)), secret.as_ref(), config.quotas, Arc::clone(&clock));
    let principals =
        secret.as_ref().map(|secret| PrincipalKey::new(&secret.derive_key(KeyPurpose::Principals)));
    let principals = principals.unwrap_or_default();
    let own_key = secret.as_ref().map_or_else(random, |secret| secret.derive_key(KeyPurpose::States));
    let shared_parts = SharedParts {
        ledger: Arc::clone(&ledger),
        clock: Arc::clone(&clock),
        tracer: tracer.clone(),
        signals: [draining_watch, overdue_watch.clone(), closing_watch.clone()],
        net: net.clone(),
        make_upstream: Box::new(make_upstream),
        own_key,
        sessions: SwapCell::new(shared_parts::session_seal(&config, own_key)),
    };
    let routes = shared_parts.create_routes(&config)?;
    let endpoints = routes.iter().map(|served| served.endpoint.clone()).collect();
    tokio::spawn(Arc::clone(&ledger).maintain(endpoints, overdue_watch));
    let servers = servers(&routes);
    let (reload_sender, reload_requests) = admin::ReloadSender::new();
    let parts = admin::AdminParts {
        access: admin::OperatorAccess::from_client_access(&config.front.access),
        generated_token: Arc::new(admin::GeneratedToken::new(
            config.admin.as_ref().map(|admin| admin.token_folders.clone()).unwrap_or_default(),
        )),
        sign_in: Arc::new(admin::BrowserSignIn::new(Arc::clone(&clock))),
        principal_names: front::PrincipalNames::new(&principals, &config.front.tokens),
        servers: servers.clone(),
        routes: route_entries(&routes),
        settings: config.settings.json().to_string().into(),
        operators: Arc::new(OperatorTasks::new(Arc::clone(&ledger))),
        ledger,
        stopping: notice_watch.clone(),
        needs_servers: config.ready.needs_servers,
        events: Arc::new(admin::EventStreams::new(clock.reading().wall_time().to_string())),
        history: Arc::default(),
        reloads: reload_sender,
    };

    if config.ready.needs_servers {
        tokio::spawn(probe_servers(servers, notice_watch.clone()));
    }
    activate_routes(&routes);
    let front_handle = front::serve(
        config.front.clone(),
        services(&routes),
        front::IdentityKeys { principals, sessions: shared_parts.sessions.clone() },
        [notice_watch, closing_watch],
        clock,
        tracer,
        net,
    )?;
    let (metrics_servers, metrics_ledger) = (parts.servers.clone(), Arc::clone(&parts.ledger));
    let admin = config.admin.clone().map(|admin| admin::serve(admin, parts)).transpose()?;
    let metrics =
        config.metrics.map(|address| admin::serve_metrics(address, metrics_servers, metrics_ledger));
    let metrics = metrics.transpose().inspect_err(|_| {
        if let Some(admin) = &admin {
            admin.task.abort();
        }
    })?;
    if let Some(descriptors) = descriptors {
        let operators = [admin.as_ref().map(|admin| admin.address), metrics.as_ref().map(|it| it.address)];
        log_started(
            &config,
            &describe_routes(&config.routes),
            &front_handle.addresses,
            operators,
            descriptors,
        );
    }
    Ok(RunningProxy {
        addresses: front_handle.addresses,
        admin,
        metrics,
        paths: routes.iter().map(|served| Arc::clone(served.path())).collect(),
        is_tls: config.front.tls.is_some(),
        stages: DrainStages { notice, draining, overdue, closing },
        shared: shared_parts,
        descriptors: descriptors.map(|(descriptor_limit, _)| descriptor_limit),
        routes,
        front: front_handle.reload,
        config,
        reload_requests,
        retiring: Vec::new(),
        traces,
    })
}

/// Creates the tracer, and the exporter where one is configured.
fn start_tracing(config: &Config) -> (Tracer, Option<ExporterHandle>) {
    let Some(settings) = &config.traces else { return (Tracer::default(), None) };
    let (tracer, exporter) = trace::start(settings, trace::TraceSources { now: wall_clock, random });
    (tracer, Some(exporter))
}

/// A store, and its secret if the store outlives the process.
type StoreWithSecret = (Arc<dyn Store>, Option<StoreSecret>);

/// Creates the clock of the store's records, which goes on from the stored time. A network of pipes runs on
/// tokio's clock, which tests pause.
fn create_clock(net: &Network, store: &dyn Store) -> Arc<dyn Clock> {
    let stored = store.stored_clock();
    Arc::new(match net {
        Network::System | Network::Limited(_) => SteadyClock::resume(stored, wall_time),
        Network::Pipes(_) => {
            let wall = SystemClock::new();
            SteadyClock::resume(stored, move || wall.timestamp() + ClockOffset::ZERO)
        }
    })
}

/// Divides the file descriptors between clients and servers, and sets the clients' connection limit
/// accordingly.
fn share_descriptors(descriptor_limit: DescriptorLimit, config: &mut Config) -> DescriptorShares {
    let configured = (config.connections.clients, config.connections.servers);
    let shares = descriptor_limit
        .divide(configured, (config.front.limits.connections, upstream::DEFAULT_MAX_CONNECTIONS));
    config.front.limits.connections = shares.clients;
    shares
}

fn log_started(
    config: &Config,
    routes: &str,
    listen: &[SocketAddr],
    [admin, metrics]: [Option<SocketAddr>; 2],
    (descriptor_limit, shares): (DescriptorLimit, DescriptorShares),
) {
    ProxyStarted {
        listen: &listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        admin: &admin.map_or_else(|| "off".to_owned(), |address| address.to_string()),
        metrics: &metrics.map_or_else(|| "off".to_owned(), |address| address.to_string()),
        tls: config.front.tls.is_some(),
        routes,
        store: &match &config.store {
            config::StoreConfig::Memory => "memory".to_owned(),
            config::StoreConfig::Disk { path, .. } => format!("disk:{}", path.display()),
        },
        traces: &config.traces.as_ref().map_or_else(|| "off".to_owned(), |traces| traces.display_url.clone()),
        state_keys: if config.state_keys.is_empty() { "made at start" } else { "configured" },
        notice: config.drain.notice,
        drain: config.drain.limit,
        descriptors: descriptor_limit.limit,
        descriptors_before: descriptor_limit.raised_from,
        connections: shares.clients,
        upstream_connections: shares.servers,
        calls: config.front.limits.calls,
        overcommitted: shares.is_overcommitted,
    }
    .emit();
}

/// Interval of probes of a server that is not known to be reachable.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Probes servers that are not known to be reachable, until shutdown.
async fn probe_servers(servers: Vec<(Arc<str>, Arc<dyn Upstream>)>, stopping: DrainWatch) {
    let anonymous = CallerIdentity::of_principal(Principal::ANONYMOUS);
    loop {
        let unconfirmed = servers.iter().filter(|(_, server)| server.status().is_up != Some(true));
        // The probe updates the server's status.
        let probes =
            futures_util::future::join_all(unconfirmed.map(|(_, server)| server.describe(&anonymous)));
        tokio::select! {
            () = stopping.stopped() => return,
            _ = probes => {}
        }
        tokio::select! {
            () = stopping.stopped() => return,
            () = sleep(PROBE_INTERVAL) => {}
        }
    }
}

/// Publishes the value of each configured limit as a metric. Limits that differ by route are published where
/// they apply.
fn publish_limits(config: &Config) {
    let front::Config { limits, timeouts, .. } = &config.front;
    let count = |limit: Limit, value: usize| limit.set_value(value as f64);
    let time = |limit: Limit, value: Duration| limit.set_value(value.as_secs_f64());
    count(Limit::BodyBytes, limits.body_bytes);
    count(Limit::BodyMemory, limits.body_memory);
    count(Limit::HeaderBytes, limits.header_bytes);
    count(Limit::Headers, limits.headers);
    count(Limit::Connections, limits.connections);
    count(Limit::PendingConnections, limits.pending_connections());
    count(Limit::Calls, limits.calls);
    count(Limit::Streams, limits.streams as usize);
    count(Limit::Depth, limits.depth);
    time(Limit::ReadHeaders, timeouts.read_headers);
    time(Limit::ReadBody, timeouts.read_body);
    time(Limit::IdleConnection, timeouts.idle);
    time(Limit::Write, timeouts.write);
    let quotas = &config.quotas;
    count(Limit::Tasks, quotas.tasks);
    count(Limit::TasksPerPrincipal, quotas.tasks_per_principal);
    count(Limit::StoredBytes, quotas.stored_bytes);
    count(Limit::StoredBytesPerPrincipal, quotas.stored_bytes_per_principal);
    count(Limit::StoredResultBytes, quotas.stored_result_bytes);
    count(Limit::PollsPerSecond, quotas.polls_per_second as usize);
    count(Limit::MissesPerMinute, quotas.misses_per_minute as usize);
    count(Limit::ListensPerPrincipal, quotas.listens_per_principal);
    // The limits of upstreams are the same for all routes.
    let Some(config::RouteConfig { upstream: upstream::Config { limits, timeouts, .. }, .. }) =
        config.routes.first()
    else {
        return;
    };
    count(Limit::Sessions, limits.sessions);
    count(Limit::TaskSessions, limits.task_sessions);
    count(Limit::Queue, limits.queue);
    count(Limit::Messages, limits.messages);
    count(Limit::Identities, limits.identities);
    count(Limit::IdentityBytes, limits.identity_bytes);
    count(Limit::ResultBytes, limits.result_bytes);
    count(Limit::Departed, limits.departed);
    count(Limit::ClientSessions, limits.client_sessions);
    time(Limit::Connect, timeouts.connect);
    time(Limit::FirstByte, timeouts.first_byte);
    time(Limit::Idle, timeouts.idle);
    let calls: BTreeSet<_> = config.routes.iter().map(|route| route.upstream.timeouts.call).collect();
    // A limit that differs by route has no value here.
    Limit::Call.set_value(if calls.len() == 1 { timeouts.call.as_secs_f64() } else { f64::NAN });
    time(Limit::QueueTime, timeouts.queue);
    time(Limit::IdleSession, timeouts.idle_session);
}

/// Describes each route by its path, its server and its mode, for the log.
fn describe_routes(routes: &[config::RouteConfig]) -> String {
    let routes = routes.iter().map(|config::RouteConfig { route, server, .. }| {
        let policy::DeferPolicy { mode, after, .. } = route.defer;
        let mode = match mode {
            policy::Mode::Never | policy::Mode::Always | policy::Mode::Deny => mode.as_str().to_owned(),
            policy::Mode::Auto | policy::Mode::Required | policy::Mode::Observe => {
                format!("{} after {}", mode.as_str(), config::values::show_duration(after))
            }
        };
        let rollout =
            route.defer.rollout.as_ref().map_or_else(String::new, |share| format!(", rollout {share}"));
        let server = describe_server(server);
        format!("{} -> {server} ({mode}{rollout})", route.path)
    });
    routes.collect::<Vec<_>>().join("; ")
}

/// Describes a server without the parts that may contain a key: the query of a URL, the arguments of a
/// command.
fn describe_server(server: &UpstreamTarget) -> String {
    match server {
        UpstreamTarget::Url(url) => url.shown().to_owned(),
        UpstreamTarget::Command(command) => format!("`{}`", command.program()),
    }
}

/// Opens the configured store, and derives its secret if the store outlives the process.
fn open_store(store: &config::StoreConfig, quotas: &policy::TaskQuotas) -> Result<StoreWithSecret, Error> {
    let &policy::TaskQuotas { stored_bytes, stored_bytes_per_principal, .. } = quotas;
    let bounds = StoreBounds { stored_bytes, stored_bytes_per_principal };
    Ok(match store {
        config::StoreConfig::Memory => (Arc::new(MemoryStore::bounded(bounds)), None),
        config::StoreConfig::Disk { path, key, max_bytes } => {
            let store = DiskStore::open(path, bounds, max_bytes.map(|bytes| bytes as u64))?;
            let file = match key {
                Some(config::StoreKeySource::Value(_)) | None => None,
                Some(config::StoreKeySource::File(file)) => Some(&**file),
            };
            let (key, name) = match key {
                Some(config::StoreKeySource::Value(key)) => {
                    (*key.expose(), "the one given by `store.key`".to_owned())
                }
                Some(config::StoreKeySource::File(_)) | None => {
                    (disk::load_or_create_key(path, file)?, disk::key_path(path, file)?.display().to_string())
                }
            };
            let secret = StoreSecret::new(&key);
            let seal = AnchorSeal::new(&secret);
            store.check_key(&secret, &name, |task, sealed| seal.can_open(task, sealed))?;
            (Arc::new(store), Some(secret))
        }
    })
}

// === impl RunningProxy ===

impl RunningProxy {
    /// Returns the URL of a route, by a listening address and the path of the route.
    pub fn url(&self, address: &SocketAddr, path: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{address}{path}")
    }

    /// Returns the URL of the first route at the first address; empty if there is no address.
    fn first_url(&self) -> String {
        let path = self.paths.first().map_or("", |path| path);
        self.addresses.first().map_or_else(String::new, |address| self.url(address, path))
    }

    /// Shuts down in order: during the notice time requests are served as before; then new calls are refused;
    /// calls and tasks that end within the drain time are fetched; the others end with a clear error, and
    /// their servers get a cancellation; listen streams end last.
    pub async fn stop(self) {
        self.stop_or_abort(std::future::pending()).await;
    }

    /// Shuts down in order, or at once when `stop_now` resolves. Returns whether it was stopped at once.
    async fn stop_or_abort(self, stop_now: impl Future<Output = ()>) -> bool {
        let (initial, tasks_made) = (self.unfinished_work(), self.shared.ledger.created_count());
        let mut unfinished = UnfinishedWork::default();
        let hurried = tokio::select! {
            // If both are ready, the shutdown counts as completed.
            biased;
            () = self.drain(&mut unfinished) => false,
            () = stop_now => true,
        };
        let lost = if hurried && !unfinished.is_final { self.unfinished_work() } else { unfinished };
        // The admin listener serves until the end, so that operators can observe the shutdown.
        if let Some(metrics) = &self.metrics {
            metrics.task.abort();
        }
        if let Some(admin) = self.admin {
            admin.stop();
        }
        if let (Some(traces), false) = (self.traces, hurried) {
            traces.close(SPAN_FLUSH_TIMEOUT).await;
        }
        let UnfinishedWork { calls, tasks, results, .. } = lost;
        let tasks_released = self.shared.ledger.released_count();
        DrainCompleted {
            ended: (initial.calls + initial.tasks).saturating_sub(calls + tasks),
            became_tasks: self.shared.ledger.created_count().saturating_sub(tasks_made),
            tasks_released,
            calls_lost: calls,
            tasks_lost: tasks.saturating_sub(tasks_released),
            results_lost: results,
            hurried,
        }
        .emit();
        hurried
    }

    async fn drain(&self, unfinished: &mut UnfinishedWork) {
        let DrainStages { notice: notice_stage, draining, overdue, closing } = &self.stages;
        let DrainTimes { notice, limit } = self.config.drain;
        notice_stage.start();
        if !notice.is_zero() {
            ShutdownNotice { notice }.emit();
            sleep(notice).await;
        }
        let deadline = (self.shared.clock.now() + limit).into();
        draining.start();
        let UnfinishedWork { calls, tasks, results, .. } = self.unfinished_work();
        DrainStarted { calls, tasks, results, limit }.emit();
        let _ = timeout_at(deadline, self.wait_until_drained()).await;
        // Work that is unfinished at the end of the drain time is lost.
        *unfinished = UnfinishedWork { is_final: true, ..self.unfinished_work() };
        overdue.start();
        // The last stage cancels calls at their servers, and answers their clients.
        let _ = timeout(FINAL_TIMEOUT, draining.completed()).await;
        closing.start();
        let _ = timeout_at(deadline, closing.completed()).await;
        let current = self.routes.iter().map(|served| &served.upstream);
        let upstreams = current.chain(self.retiring.iter().map(|(_, upstream)| upstream));
        futures_util::future::join_all(upstreams.map(|upstream| upstream.close())).await;
        // Connections still have to write the last responses.
        let _ = timeout(FINAL_TIMEOUT, closing.completed()).await;
        let _ = timeout(FINAL_TIMEOUT, self.shared.ledger.close()).await;
    }

    /// Resolves when no call or task is active and every result has been fetched.
    async fn wait_until_drained(&self) {
        loop {
            self.stages.draining.completed().await;
            self.shared.ledger.wait_until_all_fetched().await;
            // A client may have sent another call meanwhile.
            if self.stages.draining.active_count() == 0 {
                return;
            }
        }
    }

    /// Returns the work that a shutdown would wait for now.
    fn pending_work(&self, is_interrupt: bool) -> PendingWork {
        let (UnfinishedWork { calls, tasks, results, .. }, drain) =
            (self.unfinished_work(), &self.config.drain);
        PendingWork { calls, tasks, results, limit: drain.notice + drain.limit, is_interrupt }
    }

    fn unfinished_work(&self) -> UnfinishedWork {
        let tasks = self.shared.ledger.working_count();
        let calls = self.stages.draining.active_count().saturating_sub(tasks);
        UnfinishedWork { calls, tasks, results: self.shared.ledger.unfetched_count(), is_final: false }
    }
}

/// Unfinished work at a shutdown.
#[derive(Default)]
struct UnfinishedWork {
    /// Calls in flight that are not tasks.
    calls: usize,
    /// Active tasks.
    tasks: usize,
    /// Results of tasks that have not been fetched.
    results: usize,
    /// Whether the drain time was over when the work was counted.
    is_final: bool,
}

/// Supervises the process of a stdio server for a proxy that has started this program for that purpose.
/// Returns the exit code.
///
/// # Errors
/// An error if this program was not started by a proxy.
pub async fn supervise(arguments: &[String]) -> std::io::Result<u8> {
    upstream::stdio::supervise(arguments).await
}
