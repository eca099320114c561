//! A server of the older era, over whatever transport carries its messages ([`Wire`]).
//!
//! [`Legacy`] keeps a `group` of sessions for each caller. Reading order: `exchange` is one call from its
//! first poll to its last event, and where what the server says is raised; `group` says which session it goes
//! to; `session` is one session and the calls in flight on it, `attribution` whose is what arrives there;
//! `handshake` opens one; `telling` is what a server is told beside calls; `server` is the server as a whole,
//! `reports` what it says of its own accord. A call that is made for a client in its own session
//! ([`Upstream::call_in`]) is an `exchange` like any other; what is said of it elsewhere is told to
//! `off_stream`.

mod answer;
mod attribution;
mod audience;
mod exchange;
mod group;
mod handshake;
mod hosted;
mod mailbox;
mod message;
mod off_stream;
#[cfg(test)]
mod over_lines;
mod reports;
mod request;
#[cfg(test)]
mod schedules;
mod server;
mod session;
mod subscribe;
mod telling;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, Uri};
use smallvec::SmallVec;
use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc, Once, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::broadcast,
    time::{interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Anchor, Answer, CallError, Calls, Change, ClientSession, Config, Deferral, Description, Document, Event,
    Forward, Forwarded, Health, Identity, Known, NativeCall, NotStarted, Outgoing, ProcessTable, Replies,
    Report, Subscription, TakenUp, Upstream,
    wire::{Again, Line, TakenUpOn, Wire},
    work::Work,
};
use crate::{
    dialect::{Call, Credentials, Further, Principal, raise},
    protocol::{Capabilities, Id, Method},
    runtime::{Net, Relieve},
    telemetry::Limit,
};
use answer::Reply;
use bytes::Bytes;
use exchange::Exchange;
use group::Group;
use hosted::Sessions;
use reports::Reports;
use request::Request;
use server::Server;
use session::Session;

pub use off_stream::OffStream;
pub use reports::Changes;

pub(crate) use attribution::only_one;

/// One server of the older era. Cheap to clone; all clones are the same.
pub struct Legacy<W: Wire>(Arc<Inner<W>>);

struct Inner<W: Wire> {
    server: Arc<Server<W>>,
    /// Those of legacy clients, where the wire has none that they could open.
    hosted: Option<Arc<Sessions<W>>>,
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

/// An identity as a key. Credentials and capabilities are compared byte for byte.
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

// === impl Legacy ===

impl<W: Wire> Clone for Legacy<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Wire> Legacy<W> {
    /// A server at the end of this wire.
    pub(in crate::upstream) fn over(wire: W, route: &str, config: Config, work: Work, net: &Net) -> Self {
        let server = Arc::new(Server::new(wire, route, config, work));
        let hosted = (!W::IS_HTTP).then(|| Arc::new(Sessions::new(server.clone())));
        let inner = Arc::new(Inner {
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
        });
        if let Some(room) = net.room() {
            let keeper: Weak<Inner<W>> = Arc::downgrade(&inner);
            room.ask(keeper);
        }
        Self(inner)
    }

    /// The session of a call that the process before this one has made, and what becomes of that call.
    fn taken_up(&self, caller: &Identity, anchor: &Anchor) -> TakenUpOn<Session<W>, W> {
        let server = self.0.server.clone();
        let (line, answer) = server.wire.take_up(&caller.credentials, anchor)?;
        Some((Arc::new(Session::taken_up(server, line, anchor)), answer))
    }

    /// The session that a client has opened itself.
    fn joined(&self, session: &ClientSession) -> Option<Arc<Session<W>>> {
        let line = self.0.server.wire.join(session)?;
        Some(Arc::new(Session::of_client(self.0.server.clone(), line)))
    }
}

impl<W: Wire> Calls for Group<W> {
    fn call(self: Arc<Self>, id: u64, call: &Call, deferral: Option<Deferral>) -> Replies {
        // What may become a task is watched: its progress is shown in the task's status message.
        let wants_progress = call.progress_token.is_some() || deferral.is_some();
        let request = Request {
            id,
            method: call.method.clone(),
            body: raise::request(call, id, wants_progress),
            headers: call.headers.clone(),
            deferral,
        };
        self.audience.is_joined_by_another();
        Exchange::new(self, request).boxed()
    }
}

impl<W: Wire> Upstream for Legacy<W> {
    fn call(&self, call: Outgoing) -> Replies {
        let Outgoing { id, call, caller, deferral } = call;
        self.0.group(&caller).call(id, &call, deferral)
    }

    fn call_in(&self, session: ClientSession, call: NativeCall) -> (Replies, Option<Arc<dyn OffStream>>) {
        if let Some(hosted) = &self.0.hosted {
            return match hosted.call_in(&session, call, &|caller| self.0.group(caller)) {
                Some(call) => (call.boxed(), None),
                None => (lost(CallError::SessionEnded), None),
            };
        }
        let NativeCall { id, method, body, deferral } = call;
        let request = Request { id, method, body, headers: Further::default(), deferral };
        let Some(session) = self.joined(&session) else {
            return (lost(CallError::not_over_http()), None);
        };
        (Exchange::within(session.clone(), request).boxed(), Some(session))
    }

    fn take_up(
        &self,
        caller: &Identity,
        anchor: &Anchor,
        open: Vec<Id>,
        deferral: Deferral,
    ) -> Option<TakenUp> {
        let (session, answer) = self.taken_up(caller, anchor)?;
        let request = Request {
            id: anchor.call,
            method: Method::ToolsCall,
            body: Bytes::new(),
            headers: Further::default(),
            deferral: Some(deferral),
        };
        let call = Exchange::taken_up(session.clone(), request, answer?, &open)?;
        if !anchor.is_clients {
            let session = session.clone();
            self.0.server.work.spawn(async move { handshake::listen(&session).await });
        }
        let way = |id| -> Box<dyn Answer> { Box::new(Reply::new(session.clone(), anchor.call, id)) };
        Some(TakenUp {
            replies: call.boxed(),
            open: open.into_iter().map(way).collect(),
            elsewhere: anchor.is_clients.then(|| session.clone() as Arc<dyn OffStream>),
        })
    }

    fn cancel_at(&self, caller: &Identity, anchor: &Anchor) -> BoxFuture<'_, ()> {
        let taken_up = self.taken_up(caller, anchor);
        let call = anchor.call;
        async move {
            let Some((session, _)) = taken_up else { return };
            let cancelled = message::cancelled(call, "the client no longer waits");
            let _ = session.line.tell(cancelled, Again::Yes).await;
            session.retire();
        }
        .boxed()
    }

    fn cancel_in(&self, session: ClientSession, calls: &[Id], reason: &str) {
        if let Some(hosted) = &self.0.hosted {
            return hosted.cancel_in(&session, calls);
        }
        let Some(session) = self.joined(&session) else { return };
        for call in calls {
            session.cancel_later(call, reason);
        }
    }

    fn deferred(&self, caller: &Identity, deferral: &Deferral) {
        deferral.comes();
        // Somebody may have room now.
        for group in self.0.sharing(caller) {
            group.pass_on();
        }
    }

    fn describe(&self, caller: &Identity) -> BoxFuture<'_, Result<Arc<Description>, CallError>> {
        let group = self.0.group(caller);
        async move { Ok(group.lists().await?.description.clone()) }.boxed()
    }

    /// Only looks: what has to give way to a further session does to whoever then opens it.
    fn known(&self, caller: &Identity) -> Option<Known> {
        let key = Key(self.0.server.wire.known_as(caller));
        let group = self.0.kept(&key).or_else(|| self.0.shared(&key))?;
        Some(Known { description: group.known_description()?, calls: group })
    }

    fn described(&self) -> Option<Arc<Description>> {
        self.0.server.described()
    }

    fn watch(&self, principal: Principal) -> broadcast::Receiver<Report> {
        self.0.reports(principal).listen()
    }

    fn takes_turns(&self) -> bool {
        W::IS_COSTLY
    }

    fn changes(&self, principal: Principal) -> Changes {
        self.0.reports(principal).changes()
    }

    fn subscribe<'a>(
        &'a self,
        caller: &'a Identity,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Subscription, CallError>> {
        let group = self.0.group(caller);
        async move {
            let guard = subscribe::subscribe(group, uri).await.map_err(CallError::from)?;
            Ok(Box::new(guard) as Subscription)
        }
        .boxed()
    }

    fn fetch<'a>(
        &'a self,
        path: &'a str,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<Document, CallError>> {
        self.0.server.wire.fetch(path, credentials)
    }

    fn forward(&self, request: Forward) -> BoxFuture<'static, Result<Forwarded, CallError>> {
        match self.0.hosted.clone() {
            None => self.0.server.wire.forward(request),
            Some(hosted) => {
                let inner = self.0.clone();
                async move { hosted.serve(request, &|caller| inner.group(caller)).await }.boxed()
            }
        }
    }

    fn health(&self) -> Health {
        self.0.server.health()
    }

    fn address(&self) -> Option<&Uri> {
        self.0.server.wire.address()
    }

    fn processes(&self) -> Option<ProcessTable> {
        self.0.server.wire.processes()
    }

    fn has_sent(&self, headers: &HeaderMap) -> bool {
        self.0.server.wire.has_sent(headers)
    }

    fn otherwise(&self, config: &Config) -> Result<Change, NotStarted> {
        let wired = self.0.server.wire.otherwise(config)?;
        let (inner, limits) = (Arc::clone(&self.0), self.0.server.wire.limits(config.limits));
        let config = Config { limits, ..config.clone() };
        Ok(Box::new(move || {
            wired();
            if let Some(hosted) = &inner.hosted {
                hosted.bound_by(&config.limits);
            }
            let before = inner.server.config.now().limits.messages;
            inner.server.errands.bound_by(before, config.limits.messages);
            inner.server.config.set(config);
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close().boxed()
    }
}

// === impl Inner ===

impl<W: Wire> Inner<W> {
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
        let limit = self.server.config.now().limits.identities.max(1);
        let is_full = || self.groups.len() >= limit || self.server.wire.is_full();
        if !W::IS_COSTLY || !is_full() {
            return false;
        }
        self.forget_empty();
        is_full()
    }

    fn group(self: &Arc<Self>, caller: &Identity) -> Arc<Group<W>> {
        let key = Key(self.server.wire.known_as(caller));
        if let Some(group) = self.kept(&key).or_else(|| self.shared(&key)) {
            return group;
        }
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
                let is_full =
                    self.groups.len() >= limit || self.server.wire.is_full() && gone == 0 && !waits();
                if let Some(group) = most.filter(|_| is_full) {
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
    fn sharing(&self, caller: &Identity) -> SmallVec<[Arc<Group<W>>; 1]> {
        if W::IS_COSTLY {
            // Few, and each may have this caller's calls too.
            return self.groups.iter().map(|group| group.value().clone()).collect();
        }
        self.groups.get(&Key(caller.clone())).map(|group| group.value().clone()).into_iter().collect()
    }

    fn reports(&self, principal: Principal) -> Reports {
        let (credentials, capabilities) = (Credentials::default(), Arc::new(Capabilities::none()));
        self.reports_of(
            self.server.wire.known_as(&Identity { principal, credentials, capabilities }).principal,
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

    async fn close(&self) {
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

impl<W: Wire> Relieve for Inner<W> {
    fn close_idle(&self) -> bool {
        self.server.wire.close_idle()
    }

    /// With their sessions go the streams on which they would be heard of: each is a connection.
    fn close_sessions(&self) {
        self.let_go(self.groups.len().div_ceil(8), false, Idle::Now);
    }
}

/// Of a call that cannot be made.
fn lost(why: CallError) -> Replies {
    stream::once(std::future::ready(Event::Lost(why))).boxed()
}

/// Lets go of what nobody uses: what has not been used for a while, and one at once where there is no place for
/// another.
async fn sweep<W: Wire>(inner: Weak<Inner<W>>, wire: Arc<W>, closing: CancellationToken) {
    let mut rounds = interval(ROUND);
    // The first tick is at once.
    rounds.tick().await;
    loop {
        let is_crowded = tokio::select! {
            () = closing.cancelled() => return,
            _ = rounds.tick() => false,
            () = wire.is_crowded() => true,
        };
        match inner.upgrade() {
            Some(inner) if is_crowded => {
                inner.forget_empty();
                if inner.let_go(1, true, Idle::Now) == 0 && !inner.spares_one() {
                    wire.nothing_gave_way();
                }
            }
            Some(inner) => inner.sweep(),
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
            && a.credentials.headers() == b.credentials.headers()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.principal.hash(state);
        self.0.capabilities.legacy().hash(state);
        // In one order, as they are compared: else callers without a principal of their own, told apart by
        // a cookie alone, would all be compared with each other under one lock.
        let headers = self.0.credentials.headers().iter();
        let mut headers: SmallVec<[_; 4]> =
            headers.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        headers.sort_unstable();
        headers.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::Capabilities,
        upstream::{Limits, Streamable},
    };
    use bytes::Bytes;
    use http::HeaderValue;

    #[tokio::test]
    async fn identities_that_are_all_in_use_are_not_looked_through_for_each_further_one() {
        let limits = Limits { identities: 64, ..Limits::default() };
        let url = "http://127.0.0.1:9/mcp".parse().expect("a URL");
        let config = Config { limits, ..Config::default() };
        let upstream = Streamable::new(&url, config).expect("it can be spoken to");
        let inner = &upstream.0;
        let caller = |n: usize| Identity {
            principal: Principal::of(&[&n.to_be_bytes()]),
            credentials: Credentials::default(),
            capabilities: Arc::new(Capabilities::read(Bytes::from_static(b"{}")).expect("an object")),
        };
        let searches = || inner.searches.load(Ordering::Relaxed);
        let busy: Vec<_> = (0..1024).map(|n| inner.group(&caller(n))).collect();
        assert!(searches() < 32, "{} for {} identities", searches(), busy.len());
        // Once they are at rest, there is room again.
        drop(busy);
        for n in 1024..1280 {
            inner.group(&caller(n));
        }
        assert!(inner.groups.len() <= 64, "{}", inner.groups.len());
        let before = searches();
        for n in 2000..2800 {
            inner.group(&caller(n));
        }
        assert!(inner.groups.len() <= 64, "{}", inner.groups.len());
        assert!(searches() - before <= 800 / 8, "{}", searches() - before);
        // What they would have reported goes with them.
        assert!(inner.reports.len() <= 64, "{}", inner.reports.len());
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
