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

use super::{group::Group, hosted::Sessions, reports::Reports, server::Server};
use crate::{
    dialect::{ClientInfo, Credentials, Principal},
    protocol::Capabilities,
    runtime::Relieve,
    telemetry::Limit,
    upstream::{Identity, wire::Wire},
};

/// The groups of one server, one for each identity that calls.
pub(super) struct Groups<W: Wire> {
    pub(super) server: Arc<Server<W>>,
    /// The sessions of legacy clients, where the wire has none that they could open.
    pub(super) hosted: Option<Arc<Sessions<W>>>,
    /// Hashed for each call: by what is quick, and different in each process.
    groups: DashMap<Key, Arc<Group<W>>, RandomState>,
    /// For each principal, what its sessions report.
    reports: DashMap<Principal, Reports>,
    sweeping: Once,
    /// How often a group was asked for that was not the one which was asked for last.
    asked: AtomicU64,
    /// How many groups there must be before it is looked for room again: where all of them are in use,
    /// each further one would look through all of them in vain.
    crowd: AtomicUsize,
    /// The same for the bytes that they keep.
    crowd_bytes: AtomicUsize,
    /// How often all groups were looked through.
    #[cfg(test)]
    searches: AtomicUsize,
}

/// An identity as a key. Capabilities and `clientInfo` are compared byte for byte, credentials by their digest.
struct Key(Identity);

/// Which identities nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    /// Those that have no call now.
    Now,
    /// Those that have had none for a [`ROUND`] at least.
    ForAWhile,
}

/// How often it is looked for sessions that nobody uses.
const ROUND: Duration = Duration::from_secs(60);

// === impl Groups ===

impl<W: Wire> Groups<W> {
    pub(super) fn new(server: Arc<Server<W>>, hosted: Option<Arc<Sessions<W>>>) -> Self {
        Self {
            server,
            hosted,
            groups: DashMap::default(),
            reports: DashMap::new(),
            sweeping: Once::new(),
            asked: AtomicU64::new(1),
            crowd: AtomicUsize::new(0),
            crowd_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            searches: AtomicUsize::new(0),
        }
    }

    /// The group that a caller's calls go to, where there is one. Ends none for it.
    pub(super) fn known(&self, caller: &Identity) -> Option<Arc<Group<W>>> {
        let key = Key(self.server.wire.known_as(caller));
        self.kept(&key).or_else(|| self.shared(&key))
    }

    /// The group of an identity, where there is one that has a place.
    fn kept(&self, key: &Key) -> Option<Arc<Group<W>>> {
        let group = self.groups.get(key)?;
        // One that has lost its sessions has none any more, where there are no more of those.
        if W::IS_COSTLY && self.server.wire.is_full() && group.is_empty() {
            return None;
        }
        self.uses(&group);
        Some(group.clone())
    }

    /// The group that an identity without one shares, where it can be asked all there that it declares, and none would
    /// be ended for it but such as have not been used for a while. Ends none.
    fn shared(&self, key: &Key) -> Option<Arc<Group<W>>> {
        if !self.is_full() {
            return None;
        }
        let most = self.of_those_who_declare_most(key).filter(|group| group.covers(&key.0))?;
        if self.groups.iter().any(|group| Idle::ForAWhile.is_of(&group)) {
            return None;
        }
        Limit::Instances.hit();
        self.uses(&most);
        Some(most)
    }

    /// Whether there is no place for the session of a further identity, where sessions are costly.
    fn is_full(&self) -> bool {
        if !W::IS_COSTLY {
            return false;
        }
        let limit = self.server.config.now().limits.identities.max(1);
        let is_full = || self.groups.len() >= limit || self.server.wire.is_full();
        is_full() && {
            self.forget_empty();
            is_full()
        }
    }

    /// The group that a caller's calls go to: its own, made where there is none; or another's, where there is no place for
    /// one more.
    pub(super) fn group(self: &Arc<Self>, caller: &Identity) -> Arc<Group<W>> {
        if let Some(group) = self.known(caller) {
            return group;
        }
        let key = Key(self.server.wire.known_as(caller));
        let limits = self.server.config.now().limits;
        let (limit, most) = (limits.identities.max(1), limits.identity_bytes);
        let kept = || self.server.identity_bytes.load(Ordering::Relaxed);
        if W::IS_COSTLY {
            if self.is_full() {
                Limit::Instances.hit();
                let most = self.of_those_who_declare_most(&key);
                // None is ended for somebody who can share another's and be asked all there, but what has not been
                // used for a while.
                let can_share = most.as_ref().is_some_and(|group| group.covers(&key.0));
                let gone = self.let_go(1, true, if can_share { Idle::ForAWhile } else { Idle::Now });
                // Nor does somebody share who can wait for what could be asked nowhere, unless there is no end to that.
                let waits = || !can_share && !self.groups.iter().all(|group| group.is_of_tasks());
                let shares =
                    self.groups.len() >= limit || self.server.wire.is_full() && gone == 0 && !waits();
                if let Some(group) = most.filter(|_| shares) {
                    self.uses(&group);
                    return group;
                }
            }
        } else if self.groups.len() >= limit.max(self.crowd.load(Ordering::Relaxed))
            || kept() >= most.max(self.crowd_bytes.load(Ordering::Relaxed))
        {
            self.make_room();
            let next = |left: usize, most| if left < most { most } else { left + left.div_ceil(8) };
            self.crowd.store(next(self.groups.len(), limit), Ordering::Relaxed);
            self.crowd_bytes.store(next(kept(), most), Ordering::Relaxed);
        }
        self.sweeping.call_once(|| {
            let (wire, closing) = (self.server.wire.clone(), self.server.work.closing.clone());
            self.server.work.spawn(sweep(Arc::downgrade(self), wire, closing))
        });
        let identity = key.0.clone();
        let reports = self.reports_of(identity.principal);
        let fresh = || Arc::new(Group::new(self.server.clone(), identity, reports));
        let group = self.groups.entry(key).or_insert_with(fresh).clone();
        self.uses(&group);
        group
    }

    /// It is the one that is used last. Written only where another was in between: threads whose callers are all the
    /// same need not meet here.
    fn uses(&self, group: &Group<W>) {
        if group.used.load(Ordering::Relaxed) != self.asked.load(Ordering::Relaxed) {
            group.used.store(self.asked.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Lets go of identities that have not called for the longest: what is too many, and an eighth of what
    /// may be, so that it is seldom looked for.
    fn make_room(&self) {
        let limit = self.server.config.now().limits.identities.max(1);
        match self.groups.len() >= limit {
            true => Limit::Identities.hit(),
            false => Limit::IdentityBytes.hit(),
        }
        self.let_go(self.groups.len().saturating_sub(limit) + limit.div_ceil(8), true, Idle::Now);
    }

    /// Lets go of so many identities, those that have not called for the longest. First those for whose
    /// principal nobody listens to reports; others only where they are meant too. Gives how many those are.
    fn let_go(&self, count: usize, listened: bool, idle: Idle) -> usize {
        #[cfg(test)]
        self.searches.fetch_add(1, Ordering::Relaxed);
        let mut unused: Vec<_> = self
            .groups
            .iter()
            .filter(|group| idle.is_of(group))
            .filter(|group| listened || !group.reports.is_listened_to())
            .map(|group| {
                let used = group.used.load(Ordering::Relaxed);
                (group.reports.is_listened_to(), used, Key(group.identity.clone()))
            })
            .collect();
        unused.sort_unstable_by_key(|(listened, used, _)| (*listened, *used));
        unused.truncate(count);
        let mut count = 0;
        for (.., key) in unused {
            // Looked at again under the lock of its shard, where nobody can be handed it meanwhile.
            let gone = self
                .groups
                .remove_if(&key, |_, group| Idle::Now.is_of(group))
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
    fn spares_one(&self) -> bool {
        let Some(session) = self.groups.iter().find_map(|group| group.spare()) else { return false };
        // A call that is given it in this moment has its end there, or looks for another.
        session.retire();
        true
    }

    /// Of the groups of this caller's that have a session, the one that declares most, first of those that declare
    /// what this caller does. What its sessions are asked and this caller cannot do is refused where it is asked.
    fn of_those_who_declare_most(&self, key: &Key) -> Option<Arc<Group<W>>> {
        let of_the_same = self.groups.iter().filter(|group| group.identity.principal == key.0.principal);
        let declared = |group: &Group<W>| {
            let capabilities = &group.identity.capabilities;
            (group.covers(&key.0), capabilities.askable(), capabilities.legacy().len())
        };
        let most = of_the_same.filter(|group| !group.is_empty()).max_by_key(|group| declared(group))?;
        Some(most.value().clone())
    }

    /// The groups in which a caller's calls may be.
    pub(super) fn sharing(&self, caller: &Identity) -> SmallVec<[Arc<Group<W>>; 1]> {
        if W::IS_COSTLY {
            // Few, and each may have this caller's calls too.
            return self.groups.iter().map(|group| group.value().clone()).collect();
        }
        self.groups.get(&Key(caller.clone())).map(|group| group.value().clone()).into_iter().collect()
    }

    pub(super) fn reports(&self, principal: Principal) -> Reports {
        let (credentials, capabilities) = (Credentials::default(), Arc::new(Capabilities::none()));
        let client_info = ClientInfo::default();
        self.reports_of(
            self.server
                .wire
                .known_as(&Identity { principal, credentials, capabilities, client_info })
                .principal,
        )
    }

    fn reports_of(&self, principal: Principal) -> Reports {
        self.reports.entry(principal).or_default().clone()
    }

    /// Closes what nobody uses, and forgets identities that have nothing left.
    fn sweep(&self) {
        self.server.wire.sweep();
        self.hosted.iter().for_each(|hosted| hosted.sweep(ROUND));
        for group in &self.groups {
            group.sweep(group.reports.is_listened_to());
        }
        self.forget_empty();
        self.reports.retain(|_, reports| reports.is_needed());
    }

    /// Forgets identities that have nothing left.
    fn forget_empty(&self) {
        // A group is handed out under its shard's lock, so one that only the map holds is nobody's.
        self.groups.retain(|_, group| Arc::strong_count(group) > 1 || !group.is_empty());
    }

    pub(super) async fn close(&self) {
        self.server.work.close();
        self.hosted.iter().for_each(|hosted| hosted.close());
        let groups: Vec<_> = self.groups.iter().map(|entry| entry.value().clone()).collect();
        self.groups.clear();
        let sessions = groups.iter().flat_map(|group| group.close());
        let farewells = stream::iter(sessions).for_each_concurrent(None, |session| session.close());
        let all = async {
            farewells.await;
            self.server.work.settle().await;
        };
        // A server that does not take its farewell will find out by itself.
        let _ = timeout(W::FAREWELL, all).await;
    }
}

// === impl Idle ===

impl Idle {
    /// Looked at under the lock of its shard, where nobody can be handed it meanwhile.
    fn is_of<W: Wire>(self, group: &Arc<Group<W>>) -> bool {
        Arc::strong_count(group) == 1 && group.is_idle() && (self == Self::Now || group.is_quiet())
    }
}

// === impl Relieve ===

impl<W: Wire> Relieve for Groups<W> {
    fn close_idle(&self) -> bool {
        self.server.wire.close_idle()
    }

    /// With their sessions go the streams on which they would be heard of: each is a connection.
    fn close_sessions(&self) {
        self.let_go(self.groups.len().div_ceil(8), false, Idle::Now);
    }
}

/// Lets go of what nobody uses: what has not been used for a while, and one at once where there is no place for
/// another.
async fn sweep<W: Wire>(groups: Weak<Groups<W>>, wire: Arc<W>, closing: CancellationToken) {
    let mut rounds = interval(ROUND);
    // The first tick is at once.
    rounds.tick().await;
    loop {
        let is_crowded = tokio::select! {
            () = closing.cancelled() => return,
            _ = rounds.tick() => false,
            () = wire.is_crowded() => true,
        };
        match groups.upgrade() {
            Some(groups) if is_crowded => {
                groups.forget_empty();
                if groups.let_go(1, true, Idle::Now) == 0 && !groups.spares_one() {
                    wire.nothing_gave_way();
                }
            }
            Some(groups) => groups.sweep(),
            None => return,
        }
    }
}

// === impl Key ===

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        a.principal == b.principal
            && (Arc::ptr_eq(&a.capabilities, &b.capabilities)
                || a.capabilities.legacy() == b.capabilities.legacy())
            && a.client_info == b.client_info
            && a.credentials.digest() == b.credentials.digest()
    }
}

impl Eq for Key {}

impl Hash for Key {
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
        upstream::{Config, Limits, Streamable},
    };
    use bytes::Bytes;
    use http::HeaderValue;

    #[tokio::test]
    async fn identities_that_are_all_in_use_are_not_looked_through_for_each_further_one() {
        let limits = Limits { identities: 64, ..Limits::default() };
        let url = "http://127.0.0.1:9/mcp".parse().expect("a URL");
        let config = Config { limits, ..Config::default() };
        let upstream = Streamable::new(&url, config).expect("it can be spoken to");
        let groups = &upstream.0;
        let caller = |n: usize| Identity {
            principal: Principal::of(&[&n.to_be_bytes()]),
            credentials: Credentials::default(),
            capabilities: Arc::new(Capabilities::read(Bytes::from_static(b"{}")).expect("an object")),
            client_info: ClientInfo::default(),
        };
        let searches = || groups.searches.load(Ordering::Relaxed);
        let busy: Vec<_> = (0..1024).map(|n| groups.group(&caller(n))).collect();
        assert!(searches() < 32, "{} for {} identities", searches(), busy.len());
        // Once they are at rest, there is room again.
        drop(busy);
        for n in 1024..1280 {
            groups.group(&caller(n));
        }
        assert!(groups.groups.len() <= 64, "{}", groups.groups.len());
        let before = searches();
        for n in 2000..2800 {
            groups.group(&caller(n));
        }
        assert!(groups.groups.len() <= 64, "{}", groups.groups.len());
        assert!(searches() - before <= 800 / 8, "{}", searches() - before);
        // What they would have reported goes with them.
        assert!(groups.reports.len() <= 64, "{}", groups.reports.len());
    }

    #[tokio::test]
    async fn identities_that_differ_in_credentials_alone_are_told_apart_by_their_hash() {
        let key = |names: &[&'static str], cookie: usize| {
            let named =
                names.iter().map(|name| (http::HeaderName::from_static(name), HeaderValue::from(cookie)));
            Key(Identity {
                principal: Principal::ANONYMOUS,
                credentials: Credentials::new(named.collect()),
                capabilities: Arc::new(Capabilities::none()),
                client_info: ClientInfo::default(),
            })
        };
        let state = std::hash::RandomState::new();
        let hash = |key: Key| std::hash::BuildHasher::hash_one(&state, key);
        let hashes: std::collections::HashSet<_> = (0..4096).map(|n| hash(key(&["cookie"], n))).collect();
        assert_eq!(hashes.len(), 4096, "else each is compared with all");
        // Whoever is the same has the same, in whatever order it is said.
        assert_eq!(hash(key(&["a", "b"], 1)), hash(key(&["b", "a"], 1)));
    }
}
