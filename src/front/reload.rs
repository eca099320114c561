//! A front that goes on by another configuration.
//!
//! What a request is served with is a [`StackGeneration`]: it is looked up for each request, so that the next one on an
//! open connection is served by the newest. What a connection itself is bound by (its head, its times, its
//! certificate) is that of the moment in which it was accepted.

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

/// A front that can go on by another configuration.
pub trait FrontReload: Send + Sync {
    /// Gets ready what another configuration needs. Nothing changes before that is [taken](PreparedReload::apply).
    ///
    /// # Errors
    /// [`Error`] names the address or the file that is at fault.
    fn prepare(
        &self,
        config: Config,
        services: Vec<Arc<dyn RouteService>>,
    ) -> Result<PreparedReload<'_>, Error>;
}

/// All that another configuration needs.
pub struct PreparedReload<'a> {
    /// What will really be listened on, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    apply: Box<dyn FnOnce() + Send + 'a>,
}

/// A front whose requests go through stacks of this kind.
pub(super) struct ReloadHandle<S, F> {
    pub(super) generations: SwapCell<StackGeneration<S>>,
    /// Builds one.
    pub(super) stack: F,
    pub(super) shared: Arc<SharedState>,
    pub(super) listening: Mutex<Vec<ListenAddress>>,
    pub(super) updates: mpsc::UnboundedSender<ListenerUpdate>,
    pub(super) net: Network,
}

/// What is offered in TLS, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

// === impl Prepared ===

impl PreparedReload<'_> {
    /// From now on it holds.
    pub fn apply(self) {
        (self.apply)();
    }
}

// === impl Renewal ===

impl<S: FrontStack, F: Fn(&Arc<Front>, &Config) -> S + Send + Sync> FrontReload for ReloadHandle<S, F> {
    fn prepare(
        &self,
        config: Config,
        services: Vec<Arc<dyn RouteService>>,
    ) -> Result<PreparedReload<'_>, Error> {
        let tls = acceptor(&config)?;
        let mut there = self.listening.lock().clone();
        let mut kept = Vec::new();
        let mut wanted = config.listen.clone();
        wanted.retain(|wanted| match there.iter().position(|one| one.wanted == *wanted) {
            Some(at) => {
                kept.push(there.swap_remove(at));
                false
            }
            None => true,
        });
        let further = if config.listen.is_empty() || !wanted.is_empty() {
            ListenerSet::bind(&wanted, &self.net)?
        } else {
            ListenerSet::empty()
        };
        let listening: Vec<_> = in_order(&config.listen, kept.iter().copied().chain(further.addresses()));
        let front = Front::of(&config, services, Arc::clone(&self.shared));
        let addresses = listening.iter().map(|one| one.address).collect();
        let take = Box::new(move || {
            let before = self.generations.load_full();
            self.shared.set_limits(before.front.limits, front.limits);
            let stack = (self.stack)(&front, &config);
            self.generations.set(StackGeneration { front, stack, tls });
            // Behind it, so that a client whose stream ends here is judged by the new tokens when it comes back.
            self.shared.tokens.send_replace(config.tokens);
            *self.listening.lock() = listening;
            // It has ended where the proxy stops.
            let _ = self.updates.send(ListenerUpdate { kept, added: further });
        });
        Ok(PreparedReload { addresses, apply: take })
    }
}

/// The certificates of a configuration, if it has any.
pub(super) fn acceptor(config: &Config) -> Result<Option<TlsAcceptor>, Error> {
    Ok(config.tls.as_ref().map(|paths| tls::acceptor(paths, &PROTOCOLS)).transpose()?)
}

/// What is listened on, in the order in which it is wanted.
fn in_order(wanted: &[SocketAddr], listening: impl Iterator<Item = ListenAddress>) -> Vec<ListenAddress> {
    let mut listening: Vec<_> = listening.collect();
    listening.sort_by_key(|one| wanted.iter().position(|wanted| *wanted == one.wanted));
    listening
}
