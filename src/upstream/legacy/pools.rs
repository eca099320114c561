//! The groups of a server: which of them a caller's calls go to, which is let go for another.

use dashmap::DashMap;
use foldhash::fast::RandomState;
use futures_util::{StreamExt, stream};
use smallvec::SmallVec;
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

use super::{emulated::EmulatedSessions, pool::SessionPool, reports::ChangeNotifier, server::ServerContext};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::Capabilities,
    runtime::ConnectionReclaimer,
    telemetry::Limit,
    upstream::{CallerIdentity, transport::Transport},
};

/// The groups of one server, one for each identity that calls.
pub(super) struct SessionPools<W: Transport> {
    pub(super) server: Arc<ServerContext<W>>,
    /// The sessions of legacy clients, where the wire has none that they could open.
    pub(super) hosted: Option<Arc<EmulatedSessions<W>>>,
    /// Hashed for each call: by what is quick, and different in each process.
    pools: DashMap<PoolKey, Arc<SessionPool<W>>, RandomState>,
    /// For each principal, what its sessions report.
    reports: DashMap<Principal, ChangeNotifier>,
    sweeping: Once,
    /// How often a group was asked for that was not the one which was asked for last.
    uses: AtomicU64,
    /// How many groups there must be before it is looked for room again: where all of them are in use,
    /// each further one would look through all of them in vain.
    eviction_threshold: AtomicUsize,
    /// The same for the bytes that they keep.
    eviction_threshold_bytes: AtomicUsize,
    /// How often all groups were looked through.
    #[cfg(test)]
    searches: AtomicUsize,
}

/// An identity as a key. Capabilities and `clientInfo` are compared byte for byte, credentials by their digest.
struct PoolKey(CallerIdentity);

/// Which identities nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleFor {
    /// Those that have no call now.
    Any,
    /// Those that have had none for a [`ROUND`] at least.
    OneRound,
}

/// How often it is looked for sessions that nobody uses.
const ROUND: Duration = Duration::from_secs(60);

// === impl Groups ===

impl<W: Transport> SessionPools<W> {
    pub(super) fn new(server: Arc<ServerContext<W>>, hosted: Option<Arc<EmulatedSessions<W>>>) -> Self {
        Self {
            server,
            hosted,
            pools: DashMap::default(),
            reports: DashMap::new(),
            sweeping: Once::new(),
            uses: AtomicU64::new(1),
            eviction_threshold: AtomicUsize::new(0),
            eviction_threshold_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            searches: AtomicUsize::new(0),
        }
    }

    /// The group that a caller's calls go to, where there is one. Ends none for it.
    pub(super) fn find(&self, caller: &CallerIdentity) -> Option<Arc<SessionPool<W>>> {
        let key = PoolKey(self.server.transport.pool_key(caller));
        self.own_pool(&key).or_else(|| self.shared_pool(&key))
    }

    /// The group of an identity, where there is one that has a place.
    fn own_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        let group = self.pools.get(key)?;
        // One that has lost its sessions has none any more, where there are no more of those.
        if W::IS_COSTLY && self.server.transport.is_full() && group.is_empty() {
            return None;
        }
        self.mark_used(&group);
        Some(group.clone())
    }

    /// The group that an identity without one shares, where it can be asked all there that it declares, and none would
    /// be ended for it but such as have not been used for a while. Ends none.
    fn shared_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        if !self.is_full() {
            return None;
        }
        let most = self.most_capable_pool(key).filter(|group| group.covers(&key.0))?;
        if self.pools.iter().any(|group| IdleFor::OneRound.matches(&group)) {
            return None;
        }
        Limit::Instances.record_hit();
        self.mark_used(&most);
        Some(most)
    }

    /// Whether there is no place for the session of a further identity, where sessions are costly.
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

    /// The group that a caller's calls go to: its own, made where there is none; or another's, where there is no place for
    /// one more.
    pub(super) fn pool(self: &Arc<Self>, caller: &CallerIdentity) -> Arc<SessionPool<W>> {
        if let Some(group) = self.find(caller) {
            return group;
        }
        let key = PoolKey(self.server.transport.pool_key(caller));
        let limits = self.server.config.load().limits;
        let (limit, most) = (limits.identities.max(1), limits.identity_bytes);
        let kept = || self.server.identity_bytes.load(Ordering::Relaxed);
        if W::IS_COSTLY {
            if self.is_full() {
                Limit::Instances.record_hit();
                let most = self.most_capable_pool(&key);
                // None is ended for somebody who can share another's and be asked all there, but what has not been
                // used for a while.
                let can_share = most.as_ref().is_some_and(|group| group.covers(&key.0));
                let gone = self.evict(1, true, if can_share { IdleFor::OneRound } else { IdleFor::Any });
                // Nor does somebody share who can wait for what could be asked nowhere, unless there is no end to that.
                let waits = || !can_share && !self.pools.iter().all(|group| group.is_held_by_tasks());
                let shares =
                    self.pools.len() >= limit || self.server.transport.is_full() && gone == 0 && !waits();
                if let Some(group) = most.filter(|_| shares) {
                    self.mark_used(&group);
                    return group;
                }
            }
        } else if self.pools.len() >= limit.max(self.eviction_threshold.load(Ordering::Relaxed))
            || kept() >= most.max(self.eviction_threshold_bytes.load(Ordering::Relaxed))
        {
            self.evict_oldest();
            let next = |left: usize, most| if left < most { most } else { left + left.div_ceil(8) };
            self.eviction_threshold.store(next(self.pools.len(), limit), Ordering::Relaxed);
            self.eviction_threshold_bytes.store(next(kept(), most), Ordering::Relaxed);
        }
        self.sweeping.call_once(|| {
            let (wire, closing) = (self.server.transport.clone(), self.server.work.closing.clone());
            self.server.work.spawn(sweep(Arc::downgrade(self), wire, closing))
        });
        let identity = key.0.clone();
        let reports = self.reports_of(identity.principal);
        let fresh = || Arc::new(SessionPool::new(self.server.clone(), identity, reports));
        let group = self.pools.entry(key).or_insert_with(fresh).clone();
        self.mark_used(&group);
        group
    }

    /// It is the one that is used last. Written only where another was in between: threads whose callers are all the
    /// same need not meet here.
    fn mark_used(&self, group: &SessionPool<W>) {
        if group.used.load(Ordering::Relaxed) != self.uses.load(Ordering::Relaxed) {
            group.used.store(self.uses.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Lets go of identities that have not called for the longest: what is too many, and an eighth of what
    /// may be, so that it is seldom looked for.
    fn evict_oldest(&self) {
        let limit = self.server.config.load().limits.identities.max(1);
        match self.pools.len() >= limit {
            true => Limit::Identities.record_hit(),
            false => Limit::IdentityBytes.record_hit(),
        }
        self.evict(self.pools.len().saturating_sub(limit) + limit.div_ceil(8), true, IdleFor::Any);
    }

    /// Lets go of so many identities, those that have not called for the longest. First those for whose
    /// principal nobody listens to reports; others only where they are meant too. Gives how many those are.
    fn evict(&self, count: usize, listened: bool, idle: IdleFor) -> usize {
        #[cfg(test)]
        self.searches.fetch_add(1, Ordering::Relaxed);
        let mut unused: Vec<_> = self
            .pools
            .iter()
            .filter(|group| idle.matches(group))
            .filter(|group| listened || !group.reports.has_listeners())
            .map(|group| {
                let used = group.used.load(Ordering::Relaxed);
                (group.reports.has_listeners(), used, PoolKey(group.identity.clone()))
            })
            .collect();
        unused.sort_unstable_by_key(|(listened, used, _)| (*listened, *used));
        unused.truncate(count);
        let mut count = 0;
        for (.., key) in unused {
            // Looked at again under the lock of its shard, where nobody can be handed it meanwhile.
            let gone = self
                .pools
                .remove_if(&key, |_, group| IdleFor::Any.matches(group))
                .map(|(_, group)| group.close());
            count += usize::from(gone.is_some());
            // The group is no more by now, so that it opens no other session in their place.
            for session in gone.into_iter().flatten() {
                session.retire();
            }
            self.reports.remove_if(&key.0.principal, |_, reports| !reports.is_needed());
        }
        count
    }

    /// Closes a session that nobody uses of those whose group has others in use. Gives whether there is one.
    fn close_unused_session(&self) -> bool {
        let Some(session) = self.pools.iter().find_map(|group| group.unused_session()) else { return false };
        // A call that is given it in this moment has its end there, or looks for another.
        session.retire();
        true
    }

    /// Of the groups of this caller's that have a session, the one that declares most, first of those that declare
    /// what this caller does. What its sessions are asked and this caller cannot do is refused where it is asked.
    fn most_capable_pool(&self, key: &PoolKey) -> Option<Arc<SessionPool<W>>> {
        let of_the_same = self.pools.iter().filter(|group| group.identity.principal == key.0.principal);
        let declared = |group: &SessionPool<W>| {
            let capabilities = &group.identity.capabilities;
            (group.covers(&key.0), capabilities.input_capability_count(), capabilities.legacy().len())
        };
        let most = of_the_same.filter(|group| !group.is_empty()).max_by_key(|group| declared(group))?;
        Some(most.value().clone())
    }

    /// The groups in which a caller's calls may be.
    pub(super) fn pools_of(&self, caller: &CallerIdentity) -> SmallVec<[Arc<SessionPool<W>>; 1]> {
        if W::IS_COSTLY {
            // Few, and each may have this caller's calls too.
            return self.pools.iter().map(|group| group.value().clone()).collect();
        }
        self.pools.get(&PoolKey(caller.clone())).map(|group| group.value().clone()).into_iter().collect()
    }

    pub(super) fn reports(&self, principal: Principal) -> ChangeNotifier {
        let (credentials, capabilities) = (Credentials::default(), Arc::new(Capabilities::none()));
        let client_info = ClientInfo::default();
        self.reports_of(
            self.server
                .transport
                .pool_key(&CallerIdentity { principal, credentials, capabilities, client_info })
                .principal,
        )
    }

    fn reports_of(&self, principal: Principal) -> ChangeNotifier {
        self.reports.entry(principal).or_default().clone()
    }

    /// Closes what nobody uses, and forgets identities that have nothing left.
    fn sweep(&self) {
        self.server.transport.sweep();
        self.hosted.iter().for_each(|hosted| hosted.sweep(ROUND));
        for group in &self.pools {
            group.sweep(group.reports.has_listeners());
        }
        self.remove_empty();
        self.reports.retain(|_, reports| reports.is_needed());
    }

    /// Forgets identities that have nothing left.
    fn remove_empty(&self) {
        // A group is handed out under its shard's lock, so one that only the map holds is nobody's.
        self.pools.retain(|_, group| Arc::strong_count(group) > 1 || !group.is_empty());
    }

    pub(super) async fn close(&self) {
        self.server.work.close();
        self.hosted.iter().for_each(|hosted| hosted.close());
        let groups: Vec<_> = self.pools.iter().map(|entry| entry.value().clone()).collect();
        self.pools.clear();
        let sessions = groups.iter().flat_map(|group| group.close());
        let farewells = stream::iter(sessions).for_each_concurrent(None, |session| session.close());
        let all = async {
            farewells.await;
            self.server.work.wait().await;
        };
        // A server that does not take its farewell will find out by itself.
        let _ = timeout(W::FAREWELL, all).await;
    }
}

// === impl Idle ===

impl IdleFor {
    /// Looked at under the lock of its shard, where nobody can be handed it meanwhile.
    fn matches<W: Transport>(self, group: &Arc<SessionPool<W>>) -> bool {
        Arc::strong_count(group) == 1 && group.is_idle() && (self == Self::Any || group.is_quiet())
    }
}

// === impl Relieve ===

impl<W: Transport> ConnectionReclaimer for SessionPools<W> {
    fn close_idle(&self) -> bool {
        self.server.transport.close_idle()
    }

    /// With their sessions go the streams on which they would be heard of: each is a connection.
    fn close_sessions(&self) {
        self.evict(self.pools.len().div_ceil(8), false, IdleFor::Any);
    }
}

/// Lets go of what nobody uses: what has not been used for a while, and one at once where there is no place for
/// another.
async fn sweep<W: Transport>(groups: Weak<SessionPools<W>>, wire: Arc<W>, closing: CancellationToken) {
    let mut rounds = interval(ROUND);
    // The first tick is at once.
    rounds.tick().await;
    loop {
        let is_crowded = tokio::select! {
            () = closing.cancelled() => return,
            _ = rounds.tick() => false,
            () = wire.eviction_requested() => true,
        };
        match groups.upgrade() {
            Some(groups) if is_crowded => {
                groups.remove_empty();
                if groups.evict(1, true, IdleFor::Any) == 0 && !groups.close_unused_session() {
                    wire.report_eviction_failed();
                }
            }
            Some(groups) => groups.sweep(),
            None => return,
        }
    }
}

// === impl Key ===

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
        // Callers without a principal of their own are told apart by these alone.
        self.0.credentials.digest().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::Capabilities,
        upstream::{Config, HttpUpstream, UpstreamLimits},
    };
    use bytes::Bytes;
    use http::HeaderValue;

    #[tokio::test]
    async fn identities_that_are_all_in_use_are_not_looked_through_for_each_further_one() {
        let limits = UpstreamLimits { identities: 64, ..UpstreamLimits::default() };
        let url = "http://127.0.0.1:9/mcp".parse().expect("a URL");
        let config = Config { limits, ..Config::default() };
        let upstream = HttpUpstream::new(&url, config).expect("it can be spoken to");
        let groups = &upstream.0;
        let caller = |n: usize| CallerIdentity {
            principal: Principal::of(&[&n.to_be_bytes()]),
            credentials: Credentials::default(),
            capabilities: Arc::new(Capabilities::read(Bytes::from_static(b"{}")).expect("an object")),
            client_info: ClientInfo::default(),
        };
        let searches = || groups.searches.load(Ordering::Relaxed);
        let busy: Vec<_> = (0..1024).map(|n| groups.pool(&caller(n))).collect();
        assert!(searches() < 32, "{} for {} identities", searches(), busy.len());
        // Once they are at rest, there is room again.
        drop(busy);
        for n in 1024..1280 {
            groups.pool(&caller(n));
        }
        assert!(groups.pools.len() <= 64, "{}", groups.pools.len());
        let before = searches();
        for n in 2000..2800 {
            groups.pool(&caller(n));
        }
        assert!(groups.pools.len() <= 64, "{}", groups.pools.len());
        assert!(searches() - before <= 800 / 8, "{}", searches() - before);
        // What they would have reported goes with them.
        assert!(groups.reports.len() <= 64, "{}", groups.reports.len());
    }

    #[tokio::test]
    async fn identities_that_differ_in_credentials_alone_are_told_apart_by_their_hash() {
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
        // Whoever is the same has the same, in whatever order it is said.
        assert_eq!(hash(key(&["a", "b"], 1)), hash(key(&["b", "a"], 1)));
    }
}
