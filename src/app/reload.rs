//! Reload: applying another configuration while the proxy serves.
//!
//! Every step that can fail comes first: certificates are read, new addresses are bound, new servers are
//! prepared. Nothing changes before that, and nothing fails after it. New calls are served by the new
//! configuration; calls in progress continue under the one they began with. A route keeps its server, with
//! its sessions and processes, unless that is a different one now; a removed server is closed once no call
//! needs it ([`Endpoint::retire`](crate::proxy::Endpoint::retire)).

use super::{
    Error, RunningProxy, publish_limits, share,
    shared_parts::{ServedRoute, put_into_effect, servers, services, shown_routes},
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
        let needs_restart = self.keep_restart_only(&mut config);
        let shares = self.descriptors.map(|allowed| share(allowed, &mut config));
        let PreparedRoutes { routes, added: further, changes: otherwise } = self.prepare_routes(&config)?;
        let close_added = |routes: &[ServedRoute]| {
            for position in &further {
                let upstream = Arc::clone(&routes[*position].upstream);
                tokio::spawn(async move { upstream.close().await });
            }
        };
        let admitting = match (&self.admin, &config.admin) {
            (Some(bound), Some(admin)) => bound.prepare(admin).map(Some),
            _ => Ok(None),
        };
        let admitting = admitting.inspect_err(|_| close_added(&routes))?;
        let front = Arc::clone(&self.front);
        let prepared = front.prepare(config.front.clone(), services(&routes));
        let prepared = prepared.inspect_err(|_| close_added(&routes))?;

        let changed = self.config.changed_keys(&config);
        self.shared.ledger.set_quotas(config.quotas);
        if let (Some(shares), Some(limiter)) = (shares, self.shared.net.limiter()) {
            limiter.set_limit(shares.servers);
            Limit::UpstreamConnections.set_value(shares.servers as f64);
        }
        self.addresses = prepared.addresses.clone();
        otherwise.into_iter().for_each(|change| change());
        self.shared.bind_sessions(&config);
        prepared.apply();
        self.tls = config.front.tls.is_some();
        self.paths = routes.iter().map(|served| Arc::clone(served.path())).collect();
        let ends_after = self.config.drain.limit;
        let before = mem::replace(&mut self.routes, routes);
        self.retiring.retain(|(retired, _)| !retired.is_finished());
        for served in before {
            let stays = |now: &ServedRoute| Arc::ptr_eq(&now.upstream, &served.upstream);
            if !self.routes.iter().any(stays) {
                let ends = matches!(served.server, UpstreamTarget::Command(_));
                let retired = tokio::spawn(served.endpoint.retire(ends_after, ends));
                self.retiring.push((retired, served.upstream));
            }
        }
        put_into_effect(&self.routes);
        self.config = config;
        publish_limits(&self.config);
        let changed = ChangedKeys { changed, needs_restart };
        self.update_admin(admitting);
        Ok(changed)
    }

    /// Prepares the routes of a configuration: creates new servers, and prepares changes of those that stay.
    fn prepare_routes(&self, config: &Config) -> Result<PreparedRoutes, Error> {
        let keyring = self.shared.keyring(config);
        let mut ready = PreparedRoutes { routes: Vec::new(), added: Vec::new(), changes: Vec::new() };
        for wanted in &config.routes {
            let route = Arc::new(wanted.route.clone());
            let before = self.routes.iter().find(|before| *before.path() == route.path);
            let served = match before {
                Some(before) if self.is_same_server(before, wanted) => {
                    before.prepare_reload(wanted).map(|change| {
                        ready.changes.push(change);
                        before.reloaded(wanted, &keyring)
                    })
                }
                _ => self.shared.serve_one(wanted, route, &keyring).map(|served| {
                    ready.added.push(ready.routes.len());
                    match before {
                        Some(before) => served.replacing(before),
                        None => served,
                    }
                }),
            };
            match served {
                Ok(served) => ready.routes.push(served),
                Err(error) => {
                    for position in ready.added {
                        let upstream = Arc::clone(&ready.routes[position].upstream);
                        tokio::spawn(async move { upstream.close().await });
                    }
                    return Err(error);
                }
            }
        }
        Ok(ready)
    }

    /// Whether a route keeps its server. Other names among the configured headers make it a different server,
    /// because its sessions were opened without those headers.
    fn is_same_server(&self, before: &ServedRoute, wanted: &RouteConfig) -> bool {
        let spoken_to = self.config.routes.iter().find(|route| route.route.path == *before.path());
        let names = |config: &upstream::Config| config.headers.keys().cloned().collect::<HashSet<_>>();
        before.server == wanted.server
            && spoken_to.is_some_and(|route| names(&route.upstream) == names(&wanted.upstream))
    }

    /// Sets the keys that need a restart to their current values. Returns the names of those that differ.
    fn keep_restart_only(&self, config: &mut Config) -> Vec<&'static str> {
        let now = &self.config;
        let mut needs = Vec::new();
        let mut keep = |name, differs: bool| {
            if differs {
                needs.push(name);
            }
        };
        keep("store", config.store != now.store);
        keep("log", config.log != now.log);
        keep("ready", config.ready != now.ready);
        keep("telemetry", config.traces != now.traces);
        let address = |admin: &Option<admin::Config>| admin.as_ref().map(|admin| admin.listen);
        keep("admin", address(&config.admin) != address(&now.admin));
        keep("metrics", config.metrics != now.metrics);
        config.store = now.store.clone();
        config.metrics = now.metrics;
        config.log = now.log.clone();
        config.ready = now.ready;
        config.traces = now.traces.clone();
        if address(&config.admin) != address(&now.admin) {
            config.admin = now.admin.clone();
        }
        needs
    }

    fn update_admin(&self, admitting: Option<admin::PreparedAccess>) {
        if let Some(metrics) = &self.metrics {
            metrics.set_servers(servers(&self.routes));
        }
        let (Some(bound), Some(admitting)) = (&self.admin, admitting) else { return };
        let before = bound.parts();
        let parts = admin::AdminParts {
            access: admin::OperatorAccess::of(&self.config.front.access),
            callers: before.callers.with_tokens(&self.config.front.tokens),
            servers: servers(&self.routes),
            routes: shown_routes(&self.routes),
            settings: self.config.settings.json().to_string().into(),
            ..before
        };
        bound.apply_reload(admitting, parts);
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
