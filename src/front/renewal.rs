//! A front that goes on by another configuration.
//!
//! What a request is served with is a [`Generation`]: it is looked up for each request, so that the next one on an
//! open connection is served by the newest. What a connection itself is bound by (its head, its times, its
//! certificate) is that of the moment in which it was accepted.

use super::{
    Config, Error, Front, Lasting,
    listener::{Generation, Listeners, Listening, Move, Serves},
    tls,
};
use crate::{
    proxy::Service,
    runtime::{Live, Mutex, Net},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// A front that can go on by another configuration.
pub trait Renew: Send + Sync {
    /// Gets ready what another configuration needs. Nothing changes before that is [taken](Prepared::take).
    ///
    /// # Errors
    /// [`Error`] names the address or the file that is at fault.
    fn prepare(&self, config: Config, services: Vec<Arc<dyn Service>>) -> Result<Prepared<'_>, Error>;
}

/// All that another configuration needs.
pub struct Prepared<'a> {
    /// What will really be listened on, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    take: Box<dyn FnOnce() + Send + 'a>,
}

/// A front whose requests go through stacks of this kind.
pub(super) struct Renewal<S, F> {
    pub(super) generations: Live<Generation<S>>,
    /// Builds one.
    pub(super) stack: F,
    pub(super) lasting: Arc<Lasting>,
    pub(super) listening: Mutex<Vec<Listening>>,
    pub(super) moves: mpsc::UnboundedSender<Move>,
    pub(super) net: Net,
}

/// What is offered in TLS, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

// === impl Prepared ===

impl Prepared<'_> {
    /// From now on it holds.
    pub fn take(self) {
        (self.take)();
    }
}

// === impl Renewal ===

impl<S: Serves, F: Fn(&Arc<Front>, &Config) -> S + Send + Sync> Renew for Renewal<S, F> {
    fn prepare(&self, config: Config, services: Vec<Arc<dyn Service>>) -> Result<Prepared<'_>, Error> {
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
            Listeners::bind(&wanted, &self.net)?
        } else {
            Listeners::none()
        };
        let listening: Vec<_> = in_order(&config.listen, kept.iter().copied().chain(further.addresses()));
        let front = Front::of(&config, services, Arc::clone(&self.lasting));
        let addresses = listening.iter().map(|one| one.address).collect();
        let take = Box::new(move || {
            let before = self.generations.kept();
            self.lasting.bound_by(before.front.limits, front.limits);
            let stack = (self.stack)(&front, &config);
            self.generations.set(Generation { front, stack, tls });
            // Behind it, so that a client whose stream ends here is judged by the new tokens when it comes back.
            self.lasting.tokens.send_replace(config.tokens);
            *self.listening.lock() = listening;
            // It has ended where the proxy stops.
            let _ = self.moves.send(Move { kept, further });
        });
        Ok(Prepared { addresses, take })
    }
}

/// The certificates of a configuration, if it has any.
pub(super) fn acceptor(config: &Config) -> Result<Option<TlsAcceptor>, Error> {
    Ok(config.tls.as_ref().map(|paths| tls::acceptor(paths, &PROTOCOLS)).transpose()?)
}

/// What is listened on, in the order in which it is wanted.
fn in_order(wanted: &[SocketAddr], listening: impl Iterator<Item = Listening>) -> Vec<Listening> {
    let mut listening: Vec<_> = listening.collect();
    listening.sort_by_key(|one| wanted.iter().position(|wanted| *wanted == one.wanted));
    listening
}
