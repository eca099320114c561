//! Reload: applying another configuration while the proxy serves.
//!
//! Every step that can fail comes first: certificates are read, new addresses are bound, new servers are
//! prepared. Nothing changes before that, and nothing fails after it. New calls are served by the new
//! configuration; calls in progress continue under the one they began with. A route keeps its server, with
//! its sessions and processes, unless that is a different one now; a removed server is closed once no call
//! needs it ([`Endpoint::retire`](crate::proxy::Endpoint::retire)).

use super::{
    Error, RunningProxy, publish_limits, share_descriptors,
    shared_parts::{ServedRoute, activate_routes, route_entries, servers, services},
};
use crate::{
    admin::{self, ChangedKeys},
    bridge::request_state::SealKeyring,
    config::{Config, RouteConfig},
    telemetry::Limit,
    upstream::{self, ApplyReload, UpstreamTarget},
};
use std::{collections::HashSet, mem, sync::Arc};

/// The prepared parts of another configuration.
struct PreparedRoutes {
    routes: Vec<ServedRoute>,
    /// Indices in `routes` of the routes with new servers.
    added: Vec<usize>,
    /// Configuration changes of the servers that stay.
    changes: Vec<ApplyReload>,
}

// === impl RunningProxy ===

impl RunningProxy {
    /// Applies another configuration. Returns the keys that changed, and the keys that change only at the
    /// next start.
    ///
    /// # Errors
    /// The same as for [`start`](super::start); nothing has changed then.
    pub fn reload(&mut self, mut config: Config) -> Result<ChangedKeys, Error> {
        let needs_restart = self.keep_restart_keys(&mut config);
        let shares = self.descriptors.map(|allowed| share_descriptors(allowed, &mut config));
        let PreparedRoutes { routes, added, changes } = self.prepare_routes(&config)?;
        let close_added = |routes: &[ServedRoute]| {
            for position in &added {
                let upstream = Arc::clone(&routes[*position].upstream);
                tokio::spawn(async move { upstream.close().await });
            }
        };
        let admin_access = match (&self.admin, &config.admin) {
            (Some(admin_server), Some(admin)) => admin_server.prepare(admin).map(Some),
            _ => Ok(None),
        };
        let admin_access = admin_access.inspect_err(|_| close_added(&routes))?;
        let front = Arc::clone(&self.front);
        let prepared_front = front.prepare(config.front.clone(), services(&routes));
        let prepared_front = prepared_front.inspect_err(|_| close_added(&routes))?;

        let changed = self.config.changed_keys(&config);
        self.shared.ledger.set_quotas(config.quotas);
        if let (Some(shares), Some(limiter)) = (shares, self.shared.net.limiter()) {
            limiter.set_limit(shares.servers);
            Limit::UpstreamConnections.set_value(shares.servers as f64);
        }
        self.addresses = prepared_front.addresses.clone();
        changes.into_iter().for_each(|change| change());
        self.shared.bind_sessions(&config);
        prepared_front.apply();
        self.is_tls = config.front.tls.is_some();
        self.paths = routes.iter().map(|served| Arc::clone(served.path())).collect();
        let drain_limit = self.config.drain.limit;
        let old_routes = mem::replace(&mut self.routes, routes);
        self.retiring.retain(|(retired, _)| !retired.is_finished());
        for served in old_routes {
            let is_kept_by = |new: &ServedRoute| Arc::ptr_eq(&new.upstream, &served.upstream);
            if !self.routes.iter().any(is_kept_by) {
                let is_stdio = matches!(served.server, UpstreamTarget::Command(_));
                let retired = tokio::spawn(served.endpoint.retire(drain_limit, is_stdio));
                self.retiring.push((retired, served.upstream));
            }
        }
        activate_routes(&self.routes);
        self.config = config;
        publish_limits(&self.config);
        let changed = ChangedKeys { changed, needs_restart };
        self.update_admin(admin_access);
        Ok(changed)
    }

    /// Prepares the routes of a configuration: creates new servers, and prepares changes of those that stay.
    fn prepare_routes(&self, config: &Config) -> Result<PreparedRoutes, Error> {
        let keyring = self.shared.keyring(config);
        let mut prepared = PreparedRoutes { routes: Vec::new(), added: Vec::new(), changes: Vec::new() };
        for new in &config.routes {
            let route = Arc::new(new.route.clone());
            let current = self.routes.iter().find(|served| *served.path() == route.path);
            let served = match current {
                Some(current) if self.is_same_server(current, new) => {
                    current.prepare_reload(new).map(|change| {
                        prepared.changes.push(change);
                        current.reloaded(new, &keyring)
                    })
                }
                _ => self.shared.create_route(new, route, &keyring).map(|served| {
                    prepared.added.push(prepared.routes.len());
                    match current {
                        Some(current) => served.replacing(current),
                        None => served,
                    }
                }),
            };
            match served {
                Ok(served) => prepared.routes.push(served),
                Err(error) => {
                    for position in prepared.added {
                        let upstream = Arc::clone(&prepared.routes[position].upstream);
                        tokio::spawn(async move { upstream.close().await });
                    }
                    return Err(error);
                }
            }
        }
        Ok(prepared)
    }

    /// Whether a route keeps its server. Other names among the configured headers make it a different server,
    /// because its sessions were opened without those headers.
    fn is_same_server(&self, current: &ServedRoute, new: &RouteConfig) -> bool {
        let current_config = self.config.routes.iter().find(|route| route.route.path == *current.path());
        let header_names = |config: &upstream::Config| config.headers.keys().cloned().collect::<HashSet<_>>();
        current.server == new.server
            && current_config
                .is_some_and(|route| header_names(&route.upstream) == header_names(&new.upstream))
    }

    /// Sets the keys that need a restart to their current values. Returns the names of those that differ.
    fn keep_restart_keys(&self, config: &mut Config) -> Vec<&'static str> {
        let current = &self.config;
        let mut needs_restart = Vec::new();
        let mut note = |name, differs: bool| {
            if differs {
                needs_restart.push(name);
            }
        };
        note("store", config.store != current.store);
        note("log", config.log != current.log);
        note("ready", config.ready != current.ready);
        note("telemetry", config.traces != current.traces);
        let address = |admin: &Option<admin::Config>| admin.as_ref().map(|admin| admin.listen);
        note("admin", address(&config.admin) != address(&current.admin));
        note("metrics", config.metrics != current.metrics);
        config.store = current.store.clone();
        config.metrics = current.metrics;
        config.log = current.log.clone();
        config.ready = current.ready;
        config.traces = current.traces.clone();
        if address(&config.admin) != address(&current.admin) {
            config.admin = current.admin.clone();
        }
        needs_restart
    }

    fn update_admin(&self, access: Option<admin::PreparedAccess>) {
        if let Some(metrics) = &self.metrics {
            metrics.set_servers(servers(&self.routes));
        }
        let (Some(admin_server), Some(access)) = (&self.admin, access) else { return };
        let current = admin_server.parts();
        let parts = admin::AdminParts {
            access: admin::OperatorAccess::from_client_access(&self.config.front.access),
            principal_names: current.principal_names.with_tokens(&self.config.front.tokens),
            servers: servers(&self.routes),
            routes: route_entries(&self.routes),
            settings: self.config.settings.json().to_string().into(),
            ..current
        };
        admin_server.apply_reload(access, parts);
    }
}

// === impl ServedRoute ===

impl ServedRoute {
    /// Returns the route with another configuration and the same server.
    fn reloaded(&self, config: &RouteConfig, keyring: &Arc<SealKeyring>) -> Self {
        Self {
            server: self.server.clone(),
            upstream: Arc::clone(&self.upstream),
            endpoint: self.endpoint.reconfigured(Arc::new(config.route.clone()), Arc::clone(keyring)),
        }
    }

    /// Prepares a change of the server's configuration, and returns the function that applies it.
    fn prepare_reload(&self, config: &RouteConfig) -> Result<ApplyReload, Error> {
        let change = self.upstream.prepare_reload(&config.upstream);
        change.map_err(|source| Error::Upstream { path: Arc::clone(self.path()), source })
    }

    /// Returns the route as the successor of `before`, whose tasks it continues to serve.
    fn replacing(self, before: &Self) -> Self {
        Self { endpoint: self.endpoint.replacing(&before.endpoint), ..self }
    }
}
