//! The whole file: the configuration, and the keys of the top level.

use super::{
    access::read_access,
    admin::read_admin,
    limits::{ConnectionLimits, read_limits, read_timeouts},
    listeners::{read_health_path, read_listen, read_metrics, read_public_url},
    process::{DrainTimes, LogConfig, ReadinessConfig, read_drain, read_log, read_ready},
    request_state::read_request_state,
    route::{RouteConfig, RouteContext, read_routes},
    store::{StoreConfig, read_store},
    telemetry::read_telemetry,
    tls::read_tls,
};
use crate::{
    admin,
    config::{
        config_files::ConfigFiles,
        schema::{LoadContext, SecretKey, SectionReader},
        settings::RedactedSettings,
    },
    front, policy,
    telemetry::trace::ExportSettings,
    upstream::{UpstreamTarget, stdio::EnvInheritance},
};
use std::{fmt, net::SocketAddr, sync::Arc};

/// The complete configuration of the proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The client listeners.
    pub front: front::Config,
    /// Admin listener; `None` if off.
    pub admin: Option<admin::Config>,
    /// Additional listener for Prometheus; `None` if off.
    pub metrics: Option<SocketAddr>,
    /// Where task records are stored.
    pub store: StoreConfig,
    /// The routes: at least one, with distinct paths.
    pub routes: Vec<RouteConfig>,
    /// Limits of tasks, in total and of one principal.
    pub quotas: policy::TaskQuotas,
    /// Keys that encrypt `requestState`: the first encrypts, all decrypt. If empty, a key is generated at
    /// start, and states are valid until the process ends.
    pub state_keys: Vec<SecretKey>,
    /// Limits of open connections that are written in the file.
    pub connections: ConnectionLimits,
    /// Durations of the phases of a shutdown.
    pub drain: DrainTimes,
    /// Format and level of the log.
    pub log: LogConfig,
    /// Conditions under which `/ready` responds with 200.
    pub ready: ReadinessConfig,
    /// Trace export; `None` if off.
    pub traces: Option<ExportSettings>,
    /// The configuration as shown to operators, without secrets.
    pub settings: RedactedSettings,
    /// Warnings about valid but probably unintended values.
    pub warnings: ConfigWarnings,
    /// The configuration file and the files that it names.
    pub files: ConfigFiles,
}

/// Warnings about valid but probably unintended values, one per line. `Debug` hides them, so that equivalent
/// configurations compare equal.
#[derive(Clone, Default)]
pub struct ConfigWarnings(pub Vec<String>);

/// Reads the whole file: declares the keys of the top level, and converts their values.
pub fn read_config_file(s: &mut SectionReader<'_, '_>, context: LoadContext<'_>) -> Config {
    let listen = read_listen(s);
    let admin = read_admin(s, &listen, context);
    let metrics = read_metrics(s, &listen, admin.as_ref());
    let (limits, timeouts) = (read_limits(s), read_timeouts(s));
    let public_url = read_public_url(s);
    let access = read_access(s, context);
    // The proxy is exposed if remote clients can connect without a token, directly or through a reverse proxy
    // on this machine. Otherwise all clients belong to one user.
    let is_local = !public_url.is_valid() && listen.iter().all(|address| is_loopback(&address.value));
    let traces = read_telemetry(s, context);
    let routes = read_routes(
        s,
        RouteContext {
            limits: &limits,
            timeouts: &timeouts,
            is_exposed: !is_local && !access.needs_token,
            needs_token: access.needs_token,
            load: context,
        },
    );
    let health = read_health_path(s, &routes);
    let ready = read_ready(s);
    Config {
        admin,
        metrics,
        store: read_store(s, context),
        quotas: limits.quotas,
        state_keys: read_request_state(s, context),
        connections: limits.connections,
        drain: read_drain(s),
        log: read_log(s),
        ready,
        traces,
        settings: RedactedSettings::default(),
        warnings: ConfigWarnings::default(),
        files: ConfigFiles::default(),
        routes: routes.into_iter().filter_map(|route| route.config).collect(),
        front: front::Config {
            listen: listen.into_iter().map(|address| address.value).collect(),
            tls: s
                .key("tls", "TLS of the client listeners, which then serve HTTPS only. Default: plain HTTP.")
                .read_section("`tls`", |s| read_tls(s, context)),
            access: access.access,
            tokens: access.tokens,
            limits: limits.front,
            timeouts: timeouts.front,
            public_url: public_url.ok(),
            health: health.map(|path| front::HealthConfig { path, needs_servers: ready.needs_servers }),
        },
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

// === impl ConfigWarnings ===

impl ConfigWarnings {
    /// Returns the warnings with their source positions, as in `deferral.yaml:7:5: …`.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Debug for ConfigWarnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigWarnings(..)")
    }
}

// === impl Config ===

impl Config {
    /// Completes the commands of stdio servers with values derived from other keys: the secret variables of
    /// the proxy, which no process inherits, and whether clients may see the standard error of a server,
    /// which requires that all of them are local.
    pub fn prepare_commands(&mut self, secrets: Vec<String>) {
        let secrets: Arc<[String]> = secrets.into();
        let is_local = self.front.public_url.is_none() && self.front.listen.iter().all(is_loopback);
        for route in &mut self.routes {
            if let UpstreamTarget::Command(command) = &mut route.server {
                // Withholding only variables that would be inherited keeps unchanged commands equal, so that
                // a reload keeps their processes.
                command.secret_variables = match &command.inherit {
                    EnvInheritance::All => Arc::clone(&secrets),
                    EnvInheritance::Safe => Arc::default(),
                    EnvInheritance::Also(names) => {
                        secrets.iter().filter(|secret| names.contains(secret)).cloned().collect()
                    }
                };
                command.reveals_stderr = is_local;
            }
        }
    }
}
