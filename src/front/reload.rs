//! Applying another configuration while the front serves.
//!
//! Each request is served with the current [`StackGeneration`], so that the next request on an open
//! connection gets the newest configuration. The properties of a connection itself (limits of its head,
//! timeouts, certificate) are those of the moment when it was accepted.

use super::{
    Config, Error, Front, SharedState,
    listener::{FrontStack, ListenAddress, ListenerSet, ListenerUpdate, StackGeneration},
    tls,
};
use crate::{
    proxy::RouteService,
    runtime::{Mutex, Network, SwapCell},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// A front that can apply another configuration.
pub trait FrontReload: Send + Sync {
    /// Prepares another configuration: reads its certificates and binds its new addresses. Nothing else
    /// changes before it is [applied](PreparedReload::apply).
    ///
    /// # Errors
    /// [`Error`] names the address or the file that is at fault.
    fn prepare(
        &self,
        config: Config,
        services: Vec<Arc<dyn RouteService>>,
    ) -> Result<PreparedReload<'_>, Error>;
}

/// A configuration that has been checked and can be applied; dropping it changes nothing.
pub struct PreparedReload<'a> {
    /// The actual addresses, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    apply: Box<dyn FnOnce() + Send + 'a>,
}

/// Applies configurations to a front with stacks of this type.
pub(super) struct ReloadHandle<S, F> {
    pub(super) generations: SwapCell<StackGeneration<S>>,
    /// Builds the stack of layers.
    pub(super) stack: F,
    pub(super) shared: Arc<SharedState>,
    /// The addresses of the open sockets.
    pub(super) listening: Mutex<Vec<ListenAddress>>,
    /// Changes of the sockets, for the task that accepts connections.
    pub(super) updates: mpsc::UnboundedSender<ListenerUpdate>,
    pub(super) net: Network,
}

/// ALPN protocols, the preferred one first.
const ALPN_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

// === impl PreparedReload ===

impl PreparedReload<'_> {
    /// Applies the configuration.
    pub fn apply(self) {
        (self.apply)();
    }
}

// === impl ReloadHandle ===

impl<S: FrontStack, F: Fn(&Arc<Front>, &Config) -> S + Send + Sync> FrontReload for ReloadHandle<S, F> {
    fn prepare(
        &self,
        config: Config,
        services: Vec<Arc<dyn RouteService>>,
    ) -> Result<PreparedReload<'_>, Error> {
        let tls = tls_acceptor(&config)?;
        let mut open = self.listening.lock().clone();
        let mut kept = Vec::new();
        let mut missing = config.listen.clone();
        missing.retain(|configured| match open.iter().position(|socket| socket.configured == *configured) {
            Some(index) => {
                kept.push(open.swap_remove(index));
                false
            }
            None => true,
        });
        let added = if config.listen.is_empty() || !missing.is_empty() {
            ListenerSet::bind(&missing, &self.net)?
        } else {
            ListenerSet::empty()
        };
        let listening: Vec<_> =
            sort_as_configured(&config.listen, kept.iter().copied().chain(added.addresses()));
        let front = Front::new(&config, services, Arc::clone(&self.shared));
        let addresses = listening.iter().map(|socket| socket.address).collect();
        let apply = Box::new(move || {
            let old = self.generations.load_full();
            self.shared.set_limits(old.front.limits, front.limits);
            let stack = (self.stack)(&front, &config);
            self.generations.set(StackGeneration { front, stack, tls });
            // Replace the tokens after the stack, so that a client whose stream ends here is checked against
            // the new tokens when it reconnects.
            self.shared.tokens.send_replace(config.tokens);
            *self.listening.lock() = listening;
            // The accept task has ended at shutdown.
            let _ = self.updates.send(ListenerUpdate { kept, added });
        });
        Ok(PreparedReload { addresses, apply })
    }
}

/// Builds the TLS acceptor of a configuration, if it has certificates.
pub(super) fn tls_acceptor(config: &Config) -> Result<Option<TlsAcceptor>, Error> {
    Ok(config.tls.as_ref().map(|paths| tls::acceptor(paths, &ALPN_PROTOCOLS)).transpose()?)
}

/// Sorts the addresses by the order of the configured ones.
fn sort_as_configured(
    configured: &[SocketAddr],
    listening: impl Iterator<Item = ListenAddress>,
) -> Vec<ListenAddress> {
    let mut listening: Vec<_> = listening.collect();
    listening.sort_by_key(|socket| configured.iter().position(|candidate| *candidate == socket.configured));
    listening
}
