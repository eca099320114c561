//! Session pools of a server: selection for a caller, sharing, eviction.

use dashmap::DashMap;
use foldhash::fast::RandomState;
use futures_util::{StreamExt, stream};
use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc, Once, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{emulated::EmulatedSessions, pool::SessionPool, server::ServerContext};
use crate::{
    dialect::Principal,
    runtime::ConnectionReclaimer,
    telemetry::Limit,
    upstream::{CallerIdentity, changes::ChangeNotifier, transport::Transport},
};

/// Session pools of one server, one for each identity.
pub(super) struct SessionPools<W: Transport> {
    pub(super) server: Arc<ServerContext<W>>,
    /// Emulated sessions of legacy clients, for transports without HTTP.
    pub(super) emulated: Option<Arc<EmulatedSessions<W>>>,
    /// Hashed for each call: fast, and with a seed for each process.
    pools: DashMap<PoolKey, Arc<SessionPool<W>>, RandomState>,
    /// Change notifiers by principal.
    notifiers: DashMap<Principal, ChangeNotifier>,
    start_sweep: Once,
    /// Logical clock of pool uses: advances when a pool other than the last used one is used.
    use_count: AtomicU64,
    /// Number of pools from which eviction is tried again: if all are in use, each further pool would search
    /// all in vain.
    eviction_threshold: AtomicUsize,
    /// Lower bound of the bytes of all identities at which the next eviction is tried, for the same reason.
    eviction_threshold_bytes: AtomicUsize,
    /// Number of searches through all pools.
    #[cfg(test)]
    searches: AtomicUsize,
}

/// An identity as a map key. Compares capabilities and `clientInfo` byte by byte, credentials by their
/// digest.
struct PoolKey(CallerIdentity);

/// Idle time of pools that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleFor {
    /// Without a call now.
    Any,
    /// Without a call for at least a sweep interval.
    OneRound,
}

/// Interval of the sweep for unused sessions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

// === impl SessionPools ===

impl<W: Transport> SessionPools<W> {
    pub(super) fn new(server: Arc<ServerContext<W>>, emulated: Option<Arc<EmulatedSessions<W>>>) -> Self {
        Self {
            server,
            emulated,
            pools: DashMap::default(),
            notifiers: DashMap::new(),
            start_sweep: Once::new(),
            use_count: AtomicU64::new(1),
            eviction_threshold: AtomicUsize::new(0),
            eviction_threshold_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            searches: AtomicUsize::new(0),
        }
    }

    /// Returns the pool that serves this caller, its own or a shared one, if it exists. Creates and evicts
    /// none.
    pub(super) fn find(&self, caller: &CallerIdentity) -> Option<Arc<SessionPool<W>>> {
        let key = PoolKey(self.server.transport.pool_key(caller));
        self.own_pool(&key).or_else(|| self.shared_pool(&key))
    }

    /// Pool of an identity, if the pool has sessions or can open one.
    fn own_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        let pool = self.pools.get(key)?;
        // A pool that lost its sessions cannot open one while the transport is full.
        if W::IS_COSTLY && self.server.transport.is_full() && pool.is_empty() {
            return None;
        }
        self.mark_used(&pool);
        Some(pool.clone())
    }

    /// Pool that an identity without its own shares, if all of its declared input requests may be sent there
    /// and no pool has been idle for a round. Evicts none.
    fn shared_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        if !self.is_full() {
            return None;
        }
        let candidate = self.most_capable_pool(key).filter(|pool| pool.covers(&key.0))?;
        let must_wait = self.asks_more_in(&candidate, key) && !self.is_held_by_tasks();
        let has_room = || self.pools.iter().any(|pool| IdleFor::OneRound.matches(&pool));
        if must_wait || has_room() || self.has_spare_session() {
            return None;
        }
        Limit::Instances.record_hit();
        self.mark_used(&candidate);
        Some(candidate)
    }

    /// Whether no session can be opened for a further identity. Always `false` if a session costs no process.
    fn is_full(&self) -> bool {
        if !W::IS_COSTLY {
            return false;
        }
        let limit = self.server.config.load().limits.identities.max(1);
        let is_full = || self.pools.len() >= limit || self.server.transport.is_full();
        is_full() && {
            self.remove_empty();
            is_full()
        }
    }

    /// Pool of a caller: its own, created if necessary; or a shared one, if no more can be created.
    pub(super) fn pool(self: &Arc<Self>, caller: &CallerIdentity) -> Arc<SessionPool<W>> {
        if let Some(pool) = self.find(caller) {
            return pool;
        }
        let key = PoolKey(self.server.transport.pool_key(caller));
        let limits = self.server.config.load().limits;
        let (max_identities, max_bytes) = (limits.identities.max(1), limits.identity_bytes);
        let used_bytes = || self.server.identity_bytes.load(Ordering::Relaxed);
        if W::IS_COSTLY {
            if self.is_full() {
                Limit::Instances.record_hit();
                // Before the candidate is chosen, which may be the pool of this session.
                let has_made_room = self.close_spare_session();
                let candidate = self.most_capable_pool(&key);
                // For a caller that can share a pool with all of its input requests, only a pool that was
                // idle for a round is evicted; any idle one if it would be asked there what it did not declare.
                let can_share = candidate.as_ref().is_some_and(|pool| pool.covers(&key.0));
                let is_asked_more = candidate.as_ref().is_some_and(|pool| self.asks_more_in(pool, &key));
                let idle = if can_share && !is_asked_more { IdleFor::OneRound } else { IdleFor::Any };
                let has_made_room = has_made_room || self.evict(1, true, idle) > 0;
                // A caller whose input requests could be sent nowhere, or that would be asked what it did not
                // declare, waits instead of sharing, unless tasks hold every pool.
                let must_wait = || (!can_share || is_asked_more) && !self.is_held_by_tasks();
                let can_use_shared = self.pools.len() >= max_identities
                    || self.server.transport.is_full() && !has_made_room && !must_wait();
                if let Some(shared) = candidate.filter(|_| can_use_shared) {
                    self.mark_used(&shared);
                    return shared;
                }
            }
        } else if self.pools.len() >= max_identities.max(self.eviction_threshold.load(Ordering::Relaxed))
            || used_bytes() >= max_bytes.max(self.eviction_threshold_bytes.load(Ordering::Relaxed))
        {
            self.evict_oldest();
            let next_threshold =
                |current: usize, limit| if current < limit { limit } else { current + current.div_ceil(8) };
            self.eviction_threshold
                .store(next_threshold(self.pools.len(), max_identities), Ordering::Relaxed);
            self.eviction_threshold_bytes.store(next_threshold(used_bytes(), max_bytes), Ordering::Relaxed);
        }
        self.start_sweep.call_once(|| {
            let (transport, closing) = (self.server.transport.clone(), self.server.work.closing.clone());
            self.server.work.spawn(sweep(Arc::downgrade(self), transport, closing))
        });
        let identity = key.0.clone();
        let notifier = self.notifier_for(identity.principal);
        let new_pool = || Arc::new(SessionPool::new(self.server.clone(), identity, notifier));
        let pool = self.pools.entry(key).or_insert_with(new_pool).clone();
        self.mark_used(&pool);
        pool
    }

    /// Marks the pool as last used. Written only if another was used in between, so that threads with the
    /// same callers do not contend.
    fn mark_used(&self, pool: &SessionPool<W>) {
        if pool.last_used.load(Ordering::Relaxed) != self.use_count.load(Ordering::Relaxed) {
            pool.last_used.store(self.use_count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Evicts the pools with the oldest last call: those above the limit, and an eighth of the limit, so that
    /// eviction is rare.
    fn evict_oldest(&self) {
        let limit = self.server.config.load().limits.identities.max(1);
        match self.pools.len() >= limit {
            true => Limit::Identities.record_hit(),
            false => Limit::IdentityBytes.record_hit(),
        }
        self.evict(self.pools.len().saturating_sub(limit) + limit.div_ceil(8), true, IdleFor::Any);
    }

    /// Evicts up to `count` pools with the oldest last call, first those whose principal has no listeners.
    /// Evicts pools with listeners only if `include_listened` is set. Returns how many were evicted.
    fn evict(&self, count: usize, include_listened: bool, idle: IdleFor) -> usize {
        #[cfg(test)]
        self.searches.fetch_add(1, Ordering::Relaxed);
        let mut unused: Vec<_> = self
            .pools
            .iter()
            .filter(|pool| idle.matches(pool))
            .filter(|pool| include_listened || !pool.notifier.has_listeners())
            .map(|pool| {
                let used = pool.last_used.load(Ordering::Relaxed);
                (pool.notifier.has_listeners(), used, PoolKey(pool.identity.clone()))
            })
            .collect();
        unused.sort_unstable_by_key(|(listened, used, _)| (*listened, *used));
        unused.truncate(count);
        let mut count = 0;
        for (.., key) in unused {
            // Checked again under the lock of its shard, where no other reference can be created.
            let closed = self
                .pools
                .remove_if(&key, |_, pool| IdleFor::Any.matches(pool))
                .map(|(_, pool)| pool.close());
            count += usize::from(closed.is_some());
            // The pool is removed by now, so that it opens no other sessions.
            for session in closed.into_iter().flatten() {
                session.retire();
            }
            self.notifiers.remove_if(&key.0.principal, |_, reports| !reports.is_needed());
        }
        count
    }

    /// Whether the server is known to send input requests, and may send this caller some in the pool's sessions
    /// that it did not declare.
    fn asks_more_in(&self, pool: &SessionPool<W>, key: &PoolKey) -> bool {
        !self.server.request_placement.can_share_sessions()
            && !key.0.capabilities.covers(&pool.identity.capabilities)
    }

    /// Whether tasks hold every pool.
    fn is_held_by_tasks(&self) -> bool {
        self.pools.iter().all(|pool| pool.is_held_by_tasks())
    }

    /// Whether a pool has a session that no call will use, which can be closed for another pool.
    fn has_spare_session(&self) -> bool {
        self.pools.iter().any(|pool| pool.spare_session().is_some())
    }

    /// Closes a session that no call will use. Returns whether there was one.
    fn close_spare_session(&self) -> bool {
        let spare = self.pools.iter().find_map(|pool| pool.spare_session());
        let Some(session) = spare else { return false };
        session.retire();
        self.remove_empty();
        true
    }

    /// Closes an unused session of a pool that has others. Returns whether there was one.
    fn close_unused_session(&self) -> bool {
        let unused = self.pools.iter().find_map(|pool| pool.unused_session());
        let Some(session) = unused else { return false };
        // A call that gets it at this moment fails there, or leases another.
        session.retire();
        true
    }

    /// Pool of this principal, with sessions, that declares the most; first those that declare all of the
    /// caller's capabilities. Input requests there that this caller did not declare are rejected.
    fn most_capable_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        let same_principal = self.pools.iter().filter(|pool| pool.identity.principal == key.0.principal);
        let declared = |pool: &SessionPool<W>| {
            let capabilities = &pool.identity.capabilities;
            (pool.covers(&key.0), capabilities.input_capability_count(), capabilities.legacy().len())
        };
        let pool = same_principal.filter(|pool| !pool.is_empty()).max_by_key(|pool| declared(pool))?;
        Some(pool.value().clone())
    }

    /// Change notifier of a principal; created on first use.
    pub(super) fn notifier(&self, principal: Principal) -> ChangeNotifier {
        let identity = self.server.transport.pool_key(&CallerIdentity::of_principal(principal));
        self.notifier_for(identity.principal)
    }

    fn notifier_for(&self, principal: Principal) -> ChangeNotifier {
        self.notifiers.entry(principal).or_default().clone()
    }

    /// Closes unused sessions, and removes empty pools.
    fn sweep(&self) {
        self.server.transport.sweep();
        self.emulated.iter().for_each(|emulated| emulated.sweep(SWEEP_INTERVAL));
        for pool in &self.pools {
            pool.sweep(pool.notifier.has_listeners());
        }
        self.remove_empty();
        self.notifiers.retain(|_, reports| reports.is_needed());
    }

    /// Removes empty pools.
    fn remove_empty(&self) {
        // Pools are handed out under the lock of their shard, so one that only the map holds is unused.
        self.pools.retain(|_, pool| Arc::strong_count(pool) > 1 || !pool.is_empty());
    }

    /// Closes all sessions, and waits for the background tasks up to the transport's time limit.
    pub(super) async fn close(&self) {
        self.server.work.close();
        self.emulated.iter().for_each(|emulated| emulated.close());
        let pools: Vec<_> = self.pools.iter().map(|entry| entry.value().clone()).collect();
        self.pools.clear();
        let sessions = pools.iter().flat_map(|pool| pool.close());
        let closing = stream::iter(sessions).for_each_concurrent(None, |session| session.close());
        let finished = async {
            closing.await;
            self.server.work.wait().await;
        };
        // A server that does not accept the end of its session finds out by itself.
        let _ = timeout(W::CLOSE_TIMEOUT, finished).await;
    }
}

// === impl IdleFor ===

impl IdleFor {
    /// Checked under the lock of its shard, where no other reference can be created.
    fn matches<W: Transport>(self, pool: &Arc<SessionPool<W>>) -> bool {
        Arc::strong_count(pool) == 1 && pool.is_idle() && (self == Self::Any || pool.is_quiet())
    }
}

// === impl SessionPools ===

impl<W: Transport> ConnectionReclaimer for SessionPools<W> {
    fn close_idle(&self) -> bool {
        self.server.transport.close_idle()
    }

    /// Closes the GET streams of the sessions as well: each is a connection.
    fn close_sessions(&self) {
        self.evict(self.pools.len().div_ceil(8), false, IdleFor::Any);
    }
}

/// Evicts unused pools: periodically those idle for long, and one at once on request of the transport.
async fn sweep<W: Transport>(pools: Weak<SessionPools<W>>, transport: Arc<W>, closing: CancellationToken) {
    let mut ticks = interval(SWEEP_INTERVAL);
    // The first tick is at once.
    ticks.tick().await;
    loop {
        let is_requested = tokio::select! {
            () = closing.cancelled() => return,
            _ = ticks.tick() => false,
            () = transport.eviction_requested() => true,
        };
        match pools.upgrade() {
            Some(pools) if is_requested => {
                pools.remove_empty();
                let is_closed = pools.close_spare_session()
                    || pools.evict(1, true, IdleFor::Any) > 0
                    || pools.close_unused_session();
                if !is_closed {
                    pools.pools.iter().for_each(|pool| pool.end_turns_for_others());
                    transport.report_eviction_failed();
                }
            }
            Some(pools) => pools.sweep(),
            None => return,
        }
    }
}

// === impl PoolKey ===

impl PartialEq for PoolKey {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        a.principal == b.principal
            && (Arc::ptr_eq(&a.capabilities, &b.capabilities)
                || a.capabilities.legacy() == b.capabilities.legacy())
            && a.client_info == b.client_info
            && a.credentials.digest() == b.credentials.digest()
    }
}

impl Eq for PoolKey {}

impl Hash for PoolKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.principal.hash(state);
        self.0.capabilities.legacy().hash(state);
        self.0.client_info.hash(state);
        // Callers without a principal differ in their credentials only.
        self.0.credentials.digest().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dialect::{ClientInfo, Credentials},
        protocol::Capabilities,
        upstream::{Config, HttpUpstream, UpstreamLimits},
    };
    use bytes::Bytes;
    use http::HeaderValue;

    #[tokio::test]
    async fn pools_in_use_are_not_searched_for_each_further_identity() {
        let limits = UpstreamLimits { identities: 64, ..UpstreamLimits::default() };
        let url = "http://127.0.0.1:9/mcp".parse().expect("a URL");
        let config = Config { limits, ..Config::default() };
        let upstream = HttpUpstream::new(&url, config).expect("it can be spoken to");
        let pools = &upstream.0;
        let caller = |n: usize| CallerIdentity {
            principal: Principal::derive(&[&n.to_be_bytes()]),
            credentials: Credentials::default(),
            capabilities: Arc::new(Capabilities::read(Bytes::from_static(b"{}")).expect("an object")),
            client_info: ClientInfo::default(),
        };
        let searches = || pools.searches.load(Ordering::Relaxed);
        let busy: Vec<_> = (0..1024).map(|n| pools.pool(&caller(n))).collect();
        assert!(searches() < 32, "{} for {} identities", searches(), busy.len());
        // Idle pools can be evicted again.
        drop(busy);
        for n in 1024..1280 {
            pools.pool(&caller(n));
        }
        assert!(pools.pools.len() <= 64, "{}", pools.pools.len());
        let before = searches();
        for n in 2000..2800 {
            pools.pool(&caller(n));
        }
        assert!(pools.pools.len() <= 64, "{}", pools.pools.len());
        assert!(searches() - before <= 800 / 8, "{}", searches() - before);
        // Their change notifiers are removed with them.
        assert!(pools.notifiers.len() <= 64, "{}", pools.notifiers.len());
    }

    #[tokio::test]
    async fn identities_that_differ_in_credentials_alone_have_different_hashes() {
        let key = |names: &[&'static str], cookie: usize| {
            let named =
                names.iter().map(|name| (http::HeaderName::from_static(name), HeaderValue::from(cookie)));
            PoolKey(CallerIdentity {
                principal: Principal::ANONYMOUS,
                credentials: Credentials::new(named.collect()),
                capabilities: Arc::new(Capabilities::none()),
                client_info: ClientInfo::default(),
            })
        };
        let state = std::hash::RandomState::new();
        let hash = |key: PoolKey| std::hash::BuildHasher::hash_one(&state, key);
        let hashes: std::collections::HashSet<_> = (0..4096).map(|n| hash(key(&["cookie"], n))).collect();
        assert_eq!(hashes.len(), 4096, "else each is compared with all");
        // Equal credentials have equal hashes, in any order.
        assert_eq!(hash(key(&["a", "b"], 1)), hash(key(&["b", "a"], 1)));
    }
}
