//! Another configuration, while the proxy serves.
//!
//! All that can fail is done first: certificates are read, further addresses are listened on, further servers are
//! got ready. Only then anything changes, and from there on nothing fails. New calls are served by the new
//! configuration, and what is in hand goes on by the one it began with. A route keeps its server, with its sessions and its processes, unless that is
//! another one now; a server that is not in the configuration any more is let go when nobody needs it
//! ([`Endpoint::retire`](crate::proxy::Endpoint::retire)).

use super::{
    Error, Running,
    house::{Served, servers, services, shown, take_effect},
    share, tell_limits,
};
use crate::{
    admin::{self, Changed},
    bridge::resume::Keyring,
    config::{Config, RouteConfig},
    telemetry::Limit,
    upstream::{self, Change, Server},
};
use std::{collections::HashSet, mem, sync::Arc};

/// What another configuration needs, and has got.
struct Ready {
    routes: Vec<Served>,
    /// Which of them were not served before, by their place.
    further: Vec<usize>,
    /// Those that stay are spoken to so from now on.
    otherwise: Vec<Change>,
}

// === impl Running ===

impl Running {
    /// Goes on by another configuration. Says what changed, and what will with the next start.
    ///
    /// # Errors
    /// As [`start`](super::start); nothing has changed then.
    pub fn reload(&mut self, mut config: Config) -> Result<Changed, Error> {
        let needs_restart = self.keep_what_needs_a_restart(&mut config);
        let shares = self.descriptors.map(|allowed| share(allowed, &mut config));
        let Ready { routes, further, otherwise } = self.get_ready(&config)?;
        let let_go = |routes: &[Served]| {
            for place in &further {
                let upstream = Arc::clone(&routes[*place].upstream);
                tokio::spawn(async move { upstream.close().await });
            }
        };
        let admitting = match (&self.admin, &config.admin) {
            (Some(bound), Some(admin)) => bound.prepare(admin).map(Some),
            _ => Ok(None),
        };
        let admitting = admitting.inspect_err(|_| let_go(&routes))?;
        let front = Arc::clone(&self.front);
        let prepared = front.prepare(config.front.clone(), services(&routes));
        let prepared = prepared.inspect_err(|_| let_go(&routes))?;

        let changed = self.config.changed_to(&config);
        self.house.ledger.bound_by(config.quotas);
        if let (Some(shares), Some(room)) = (shares, self.house.net.room()) {
            room.bound_by(shares.servers);
            Limit::UpstreamConnections.is(shares.servers as f64);
        }
        self.addresses = prepared.addresses.clone();
        otherwise.into_iter().for_each(|change| change());
        self.house.bind_sessions(&config);
        prepared.take();
        self.tls = config.front.tls.is_some();
        self.paths = routes.iter().map(|served| Arc::clone(served.path())).collect();
        let ends_after = self.config.drain.limit;
        let before = mem::replace(&mut self.routes, routes);
        self.retiring.retain(|(retired, _)| !retired.is_finished());
        for served in before {
            let stays = |now: &Served| Arc::ptr_eq(&now.upstream, &served.upstream);
            if !self.routes.iter().any(stays) {
                let ends = matches!(served.server, Server::Command(_));
                let retired = tokio::spawn(served.endpoint.retire(ends_after, ends));
                self.retiring.push((retired, served.upstream));
            }
        }
        take_effect(&self.routes);
        self.config = config;
        tell_limits(&self.config);
        let changed = Changed { changed, needs_restart };
        self.show_operators(admitting);
        Ok(changed)
    }

    /// Begins to serve what is not served yet.
    fn get_ready(&self, config: &Config) -> Result<Ready, Error> {
        let keyring = self.house.keyring(config);
        let mut ready = Ready { routes: Vec::new(), further: Vec::new(), otherwise: Vec::new() };
        for wanted in &config.routes {
            let route = Arc::new(wanted.route.clone());
            let before = self.routes.iter().find(|before| *before.path() == route.path);
            let served = match before {
                Some(before) if self.stays(before, wanted) => before.otherwise(wanted).map(|change| {
                    ready.otherwise.push(change);
                    before.renewed(wanted, &keyring)
                }),
                _ => self.house.serve_one(wanted, route, &keyring).map(|served| {
                    ready.further.push(ready.routes.len());
                    match before {
                        Some(before) => served.in_place_of(before),
                        None => served,
                    }
                }),
            };
            match served {
                Ok(served) => ready.routes.push(served),
                Err(error) => {
                    for place in ready.further {
                        let upstream = Arc::clone(&ready.routes[place].upstream);
                        tokio::spawn(async move { upstream.close().await });
                    }
                    return Err(error);
                }
            }
        }
        Ok(ready)
    }

    /// Whether a route's server is the same. With other names among the headers of ours it is not: what its sessions
    /// always say is without those.
    fn stays(&self, before: &Served, wanted: &RouteConfig) -> bool {
        let spoken_to = self.config.routes.iter().find(|route| route.route.path == *before.path());
        let names = |config: &upstream::Config| config.headers.keys().cloned().collect::<HashSet<_>>();
        before.server == wanted.server
            && spoken_to.is_some_and(|route| names(&route.upstream) == names(&wanted.upstream))
    }

    /// What only a start can change stays as it is. Gives the names of what is written in another way.
    fn keep_what_needs_a_restart(&self, config: &mut Config) -> Vec<&'static str> {
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

    fn show_operators(&self, admitting: Option<admin::Prepared>) {
        if let Some(metrics) = &self.metrics {
            metrics.renew(servers(&self.routes));
        }
        let (Some(bound), Some(admitting)) = (&self.admin, admitting) else { return };
        let before = bound.parts();
        let parts = admin::Parts {
            access: admin::OperatorAccess::of(&self.config.front.access),
            callers: before.callers.with_tokens(&self.config.front.tokens),
            servers: servers(&self.routes),
            routes: shown(&self.routes),
            settings: self.config.settings.json().to_string().into(),
            ..before
        };
        bound.renew(admitting, parts);
    }
}

// === impl Served ===

impl Served {
    /// The same server, by another configuration.
    fn renewed(&self, config: &RouteConfig, keyring: &Arc<Keyring>) -> Self {
        Self {
            server: self.server.clone(),
            upstream: Arc::clone(&self.upstream),
            endpoint: self.endpoint.renewed(Arc::new(config.route.clone()), Arc::clone(keyring)),
        }
    }

    /// Gets ready to speak to the server so.
    fn otherwise(&self, config: &RouteConfig) -> Result<Change, Error> {
        let change = self.upstream.otherwise(&config.upstream);
        change.map_err(|source| Error::Upstream { path: Arc::clone(self.path()), source })
    }

    fn in_place_of(self, before: &Self) -> Self {
        Self { endpoint: self.endpoint.in_place_of(&before.endpoint), ..self }
    }
}
