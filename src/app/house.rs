//! What all routes share, and how one comes to be served.

use super::{Error, server_in_words};
use crate::{
    admin,
    bridge::resume::Keyring,
    config::{Config, RouteConfig},
    dialect::SessionSeal,
    policy,
    proxy::{Endpoint, Ledger, Service, Switchboard},
    runtime::{Clock, Live, Net, Stopping},
    telemetry::{metrics, trace::Tracer},
    upstream::{self, NotStarted, Server, Upstream},
};
use std::sync::Arc;

/// What all routes share.
pub(super) struct House {
    pub(super) ledger: Arc<Ledger>,
    pub(super) switchboard: Arc<Switchboard>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tracer: Tracer,
    /// No new call is to begin; the time of those that have begun is over; there is nothing left to listen for.
    pub(super) signals: [Stopping; 3],
    pub(super) net: Net,
    pub(super) to: Box<To>,
    /// What `requestState`s are sealed with where no key is configured; ends with the process, or with the store
    /// if that lasts longer.
    pub(super) own_key: [u8; 32],
    /// Binds session ids of legacy clients to their principal, by the same keys.
    pub(super) sessions: Live<SessionSeal>,
}

/// Makes what speaks to a server.
pub(super) type To =
    dyn Fn(Server, &str, upstream::Config, &Net) -> Result<Arc<dyn Upstream>, NotStarted> + Send + Sync;

/// A route that is served.
pub(super) struct Served {
    pub(super) server: Server,
    pub(super) upstream: Arc<dyn Upstream>,
    pub(super) endpoint: Endpoint,
}

// === impl House ===

impl House {
    /// Begins to serve all routes of a configuration.
    ///
    /// # Errors
    /// [`Error::Upstream`] names the route whose server cannot be spoken to.
    pub(super) fn serve(&self, config: &Config) -> Result<Vec<Served>, Error> {
        let keyring = self.keyring(config);
        let serve = |route: &RouteConfig| self.serve_one(route, Arc::new(route.route.clone()), &keyring);
        config.routes.iter().map(serve).collect()
    }

    /// Begins to serve a route.
    ///
    /// # Errors
    /// As [`House::serve`].
    pub(super) fn serve_one(
        &self,
        config: &RouteConfig,
        route: Arc<policy::Route>,
        keyring: &Arc<Keyring>,
    ) -> Result<Served, Error> {
        let RouteConfig { server, upstream, .. } = config;
        let upstream = (self.to)(server.clone(), &route.path, upstream.clone(), &self.net)
            .map_err(|source| Error::Upstream { path: Arc::clone(&route.path), source })?;
        let endpoint = Endpoint::new(
            route,
            Arc::clone(&upstream),
            Arc::clone(&self.ledger),
            Arc::clone(&self.switchboard),
            Arc::clone(&self.clock),
            Arc::clone(keyring),
            self.signals.clone(),
        )
        .traced(self.tracer.clone());
        Ok(Served { server: server.clone(), upstream, endpoint })
    }

    /// The configured keys, and our own: what was sealed while there were none is opened, too.
    pub(super) fn keyring(&self, config: &Config) -> Arc<Keyring> {
        let (sealing, older) = keys(config, self.own_key);
        Arc::new(Keyring::new(sealing, &older))
    }

    /// From now on session ids are bound by the keys of this configuration.
    pub(super) fn bind_sessions(&self, config: &Config) {
        self.sessions.set(session_seal(config, self.own_key));
    }
}

/// Binds session ids by the configured keys, and opens what was bound by our own.
pub(super) fn session_seal(config: &Config, own_key: [u8; 32]) -> SessionSeal {
    let (sealing, older) = keys(config, own_key);
    SessionSeal::new(sealing, older)
}

/// The key that seals, and the older ones: those of the configuration, and our own as the last.
fn keys(config: &Config, own_key: [u8; 32]) -> ([u8; 32], Vec<[u8; 32]>) {
    let mut keys = config.state_keys.iter().map(|key| *key.expose()).chain([own_key]);
    let sealing = keys.next().expect("there is our own");
    (sealing, keys.collect())
}

// === impl Served ===

impl Served {
    pub(super) fn path(&self) -> &Arc<str> {
        &self.endpoint.route().path
    }
}

/// The configuration of these routes is in force.
pub(super) fn take_effect(routes: &[Served]) {
    for served in routes {
        metrics::route_served(served.path(), matches!(served.server, Server::Command(_)));
        served.endpoint.takes_effect();
    }
}

pub(super) fn services(routes: &[Served]) -> Vec<Arc<dyn Service>> {
    routes.iter().map(|served| -> Arc<dyn Service> { Arc::new(served.endpoint.clone()) }).collect()
}

/// The servers behind the routes, by path.
pub(super) fn servers(routes: &[Served]) -> Vec<(Arc<str>, Arc<dyn Upstream>)> {
    routes.iter().map(|served| (Arc::clone(served.path()), Arc::clone(&served.upstream))).collect()
}

/// The routes as operators are shown them.
pub(super) fn shown(routes: &[Served]) -> Vec<admin::ShownRoute> {
    let shown = routes.iter().map(|served| admin::ShownRoute {
        route: Arc::clone(served.endpoint.route()),
        server: server_in_words(&served.server),
        upstream: Arc::clone(&served.upstream),
    });
    shown.collect()
}
