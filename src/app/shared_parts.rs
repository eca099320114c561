//! Parts that all routes share, and the creation of routes.

use super::{Error, describe_server};
use crate::{
    admin,
    bridge::request_state::SealKeyring,
    config::{Config, RouteConfig},
    dialect::SessionSeal,
    policy,
    proxy::{Endpoint, RouteService, TaskLedger},
    runtime::{Clock, DrainWatch, Network, SwapCell},
    telemetry::{metrics, trace::Tracer},
    upstream::{self, Upstream, UpstreamSetupError, UpstreamTarget},
};
use std::sync::Arc;

/// Parts that all routes share.
pub(super) struct SharedParts {
    pub(super) ledger: Arc<TaskLedger>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tracer: Tracer,
    /// Shutdown signals, in order: no new calls; the drain time is over; listen streams end.
    pub(super) signals: [DrainWatch; 3],
    pub(super) net: Network,
    /// Creates upstreams; tests replace it.
    pub(super) make_upstream: Box<UpstreamFactory>,
    /// Key that seals `requestState` if none is configured. Random, and lost with the process, unless the
    /// store is durable and provides it.
    pub(super) own_key: [u8; 32],
    /// Binds session ids of legacy clients to their principal, by the same keys.
    pub(super) sessions: SwapCell<SessionSeal>,
}

/// Function that creates the upstream of a route.
pub(super) type UpstreamFactory = dyn Fn(UpstreamTarget, &str, upstream::Config, &Network) -> Result<Arc<dyn Upstream>, UpstreamSetupError>
    + Send
    + Sync;

/// A route with its server and the endpoint that serves it.
pub(super) struct ServedRoute {
    /// The configured URL or command of the server.
    pub(super) server: UpstreamTarget,
    pub(super) upstream: Arc<dyn Upstream>,
    pub(super) endpoint: Endpoint,
}

// === impl SharedParts ===

impl SharedParts {
    /// Creates all routes of a configuration.
    ///
    /// # Errors
    /// [`Error::Upstream`] names the route whose upstream cannot be created.
    pub(super) fn create_routes(&self, config: &Config) -> Result<Vec<ServedRoute>, Error> {
        let keyring = self.keyring(config);
        let create = |route: &RouteConfig| self.create_route(route, Arc::new(route.route.clone()), &keyring);
        config.routes.iter().map(create).collect()
    }

    /// Creates a route.
    ///
    /// # Errors
    /// The same as for [`SharedParts::create_routes`].
    pub(super) fn create_route(
        &self,
        config: &RouteConfig,
        route: Arc<policy::Route>,
        keyring: &Arc<SealKeyring>,
    ) -> Result<ServedRoute, Error> {
        let RouteConfig { server, upstream, .. } = config;
        let upstream = (self.make_upstream)(server.clone(), &route.path, upstream.clone(), &self.net)
            .map_err(|source| Error::Upstream { path: Arc::clone(&route.path), source })?;
        let endpoint = Endpoint::new(
            route,
            Arc::clone(&upstream),
            Arc::clone(&self.ledger),
            Arc::clone(&self.clock),
            Arc::clone(keyring),
            self.signals.clone(),
        )
        .with_tracer(self.tracer.clone());
        Ok(ServedRoute { server: server.clone(), upstream, endpoint })
    }

    /// Returns the keys that seal `requestState`: the configured ones, and the proxy's own as the last, which
    /// opens state that was sealed while none was configured.
    pub(super) fn keyring(&self, config: &Config) -> Arc<SealKeyring> {
        let (sealing, older) = ordered_keys(config, self.own_key);
        Arc::new(SealKeyring::new(sealing, &older))
    }

    /// Binds session ids by the keys of this configuration from now on; ids that older keys bound stay valid.
    pub(super) fn bind_sessions(&self, config: &Config) {
        self.sessions.set(session_seal(config, self.own_key));
    }
}

/// Creates a seal that binds session ids by the configured keys, and opens those that the proxy's own key
/// bound.
pub(super) fn session_seal(config: &Config, own_key: [u8; 32]) -> SessionSeal {
    let (sealing, older) = ordered_keys(config, own_key);
    SessionSeal::new(sealing, older)
}

/// Returns the key that seals, and the older keys: those of the configuration, and the proxy's own as the
/// last.
fn ordered_keys(config: &Config, own_key: [u8; 32]) -> ([u8; 32], Vec<[u8; 32]>) {
    let mut keys = config.state_keys.iter().map(|key| *key.expose()).chain([own_key]);
    let sealing = keys.next().expect("there is our own");
    (sealing, keys.collect())
}

// === impl ServedRoute ===

impl ServedRoute {
    /// Returns the path of the route.
    pub(super) fn path(&self) -> &Arc<str> {
        &self.endpoint.route().path
    }
}

/// Puts the configuration of these routes into effect: registers their metrics, and applies their limits.
pub(super) fn activate_routes(routes: &[ServedRoute]) {
    for served in routes {
        metrics::register_route(served.path(), matches!(served.server, UpstreamTarget::Command(_)));
        served.endpoint.apply_limits();
    }
}

/// Returns the services of the routes, for the front.
pub(super) fn services(routes: &[ServedRoute]) -> Vec<Arc<dyn RouteService>> {
    routes.iter().map(|served| -> Arc<dyn RouteService> { Arc::new(served.endpoint.clone()) }).collect()
}

/// Returns the servers behind the routes, each with the path of its route.
pub(super) fn servers(routes: &[ServedRoute]) -> Vec<(Arc<str>, Arc<dyn Upstream>)> {
    routes.iter().map(|served| (Arc::clone(served.path()), Arc::clone(&served.upstream))).collect()
}

/// Returns the routes as the admin listener shows them.
pub(super) fn route_entries(routes: &[ServedRoute]) -> Vec<admin::RouteEntry> {
    let entries = routes.iter().map(|served| admin::RouteEntry {
        route: Arc::clone(served.endpoint.route()),
        server: describe_server(&served.server),
        upstream: Arc::clone(&served.upstream),
    });
    entries.collect()
}
