//! Client connections that wait for a request, and which of them is closed when the limit is reached.
//!
//! A connection is idle while no complete request of it is being served: during its handshake, before the
//! first request, while a head or a body is incomplete, between two requests, and while it sends only
//! connection-level frames, such as the SETTINGS and PINGs of HTTP/2. HTTP allows to close it then (RFC 9112,
//! section 9.5; RFC 9113, section 9.1).
//!
//! At the limit, the connection that has been idle longest is closed. Connections that have never completed a
//! request come first, because clients that open connections and send nothing would otherwise evict those
//! that are between two requests. A second limit bounds the connections of one network that have never
//! completed a request, so that no client can take all.

use super::{Clock, Mutex};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::sleep};

/// All connections of one or several listeners.
#[derive(Debug, Default)]
pub struct IdleConnections {
    /// Locked to add or remove a connection, and to find one to close.
    table: Mutex<ConnectionTable>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    all: HashMap<u64, Arc<ConnectionActivity>>,
    /// Connections of each network that have never completed a request.
    pending: HashMap<ClientNetwork, usize>,
}

/// One connection in the table, removed when dropped.
#[derive(Debug)]
pub struct IdleGuard {
    connections: Arc<IdleConnections>,
    number: u64,
    pub activity: Arc<ConnectionActivity>,
}

/// Whether a connection is idle, and since when.
#[derive(Debug)]
pub struct ConnectionActivity {
    began: Instant,
    /// Requests that are being served, incomplete ones included.
    busy: AtomicU32,
    /// Requests among [`busy`](Self::busy) whose body is not complete.
    incomplete: AtomicU32,
    /// When the last request ended, in milliseconds after `began`.
    ended: AtomicU64,
    /// Whether the connection has ever completed a request.
    completed: AtomicBool,
    close_request: Notify,
    is_closing: AtomicBool,
    network: Option<ClientNetwork>,
    connections: Weak<IdleConnections>,
}

/// A request whose body is being received, until dropped.
#[derive(Debug)]
pub struct IncompleteBody<'a>(&'a ConnectionActivity);

/// The addresses that one client can choose from: one of IPv4, or 64 bits of IPv6 (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientNetwork(IpAddr);

/// Least idle time of a connection without a completed request before it is closed because too many of its
/// network wait: the proxy may not have read its first bytes yet.
pub const MIN_PENDING: Duration = Duration::from_millis(100);

/// Least idle time of a connection before it is closed for another: its client has just connected, or has
/// just received a response and may continue.
pub const MIN_IDLE: Duration = Duration::from_secs(1);

// === impl IdleConnections ===

impl IdleConnections {
    /// Adds a connection that has just been accepted. `peer` is its client's address, where it has one.
    pub fn admit(self: &Arc<Self>, peer: Option<IpAddr>, now: Instant) -> IdleGuard {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let network = peer.map(ClientNetwork::of);
        let activity = Arc::new(ConnectionActivity {
            network,
            connections: Arc::downgrade(self),
            ..ConnectionActivity::new(now)
        });
        let mut table = self.table.lock();
        table.all.insert(number, Arc::clone(&activity));
        if let Some(network) = network {
            *table.pending.entry(network).or_default() += 1;
        }
        drop(table);
        IdleGuard { connections: Arc::clone(self), number, activity }
    }

    /// Requests the connection that has been idle longest, and for at least `idle`, to close; returns whether
    /// there was one. Scans all connections, and is called only at the limit.
    pub fn close_longest_idle(&self, now: Instant, idle: Duration) -> bool {
        let table = self.table.lock();
        let waiting = table.all.values().filter(|one| !one.is_closing.load(Ordering::Relaxed));
        let waiting = waiting.filter_map(|one| Some((one.has_completed(), one.waiting_since()?, one)));
        let is_due = |since: Instant| now.saturating_duration_since(since) >= idle;
        let waiting = waiting.filter(|(_, since, _)| is_due(*since));
        let Some((.., longest)) = waiting.min_by_key(|(completed, since, _)| (*completed, *since)) else {
            return false;
        };
        longest.request_close();
        true
    }

    /// If more than `limit` connections of the newest one's network have never completed a request, requests
    /// those beyond the limit that have waited longest, and for at least `pending`, to close; returns their
    /// number.
    pub fn close_excess_pending(
        &self,
        newest: &IdleGuard,
        limit: usize,
        now: Instant,
        pending: Duration,
    ) -> usize {
        let Some(network) = newest.activity.network else { return 0 };
        let table = self.table.lock();
        if table.pending.get(&network).is_none_or(|&count| count <= limit) {
            return 0;
        }
        let waiting = table.all.values().filter(|one| one.network == Some(network) && !one.has_completed());
        let mut waiting: Vec<_> = waiting.filter(|one| !one.is_closing.load(Ordering::Relaxed)).collect();
        let beyond = waiting.len().saturating_sub(limit);
        waiting.sort_unstable_by_key(|one| one.began);
        let is_due = |one: &&Arc<ConnectionActivity>| now.saturating_duration_since(one.began) >= pending;
        let due = waiting.into_iter().take(beyond).take_while(is_due);
        due.map(|one| one.request_close()).count()
    }

    fn on_first_completion(&self, network: ClientNetwork) {
        self.table.lock().decrement_pending(network);
    }
}

// === impl ConnectionTable ===

impl ConnectionTable {
    /// Removes one connection of a network from the count: it has completed its first request, or is closed.
    fn decrement_pending(&mut self, network: ClientNetwork) {
        if let Some(pending) = self.pending.get_mut(&network) {
            *pending -= 1;
            if *pending == 0 {
                self.pending.remove(&network);
            }
        }
    }
}

/// Waits before the next search for an idle connection.
pub fn wait_before_recheck() -> impl Future<Output = ()> {
    sleep(MIN_IDLE / 4)
}

// === impl IdleGuard ===

impl IdleGuard {
    /// The client's network for the log; empty where there is none.
    pub fn network(&self) -> String {
        self.activity.network.map(|ClientNetwork(address)| address.to_string()).unwrap_or_default()
    }
}

impl Drop for IdleGuard {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.all.remove(&self.number);
        // Mark the request as complete, so that the connection is not subtracted twice.
        if let Some(network) = self.activity.network
            && !self.activity.completed.swap(true, Ordering::AcqRel)
        {
            table.decrement_pending(network);
        }
    }
}

// === impl ConnectionActivity ===

impl ConnectionActivity {
    /// The activity of a connection that is in no table.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            busy: AtomicU32::new(0),
            incomplete: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            completed: AtomicBool::new(false),
            close_request: Notify::new(),
            is_closing: AtomicBool::new(false),
            network: None,
            connections: Weak::new(),
        }
    }

    /// Records that a request is being served.
    pub fn begin(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the body of a request is incomplete.
    pub fn begin_body(&self) -> IncompleteBody<'_> {
        self.incomplete.fetch_add(1, Ordering::AcqRel);
        IncompleteBody(self)
    }

    /// Records that a request is complete.
    pub fn complete(&self) {
        // Load first: most connections have completed a request before.
        if !self.has_completed()
            && !self.completed.swap(true, Ordering::AcqRel)
            && let (Some(network), Some(connections)) = (self.network, self.connections.upgrade())
        {
            connections.on_first_completion(network);
        }
    }

    /// Records that a request has been served.
    pub fn end(&self, now: Instant) {
        let ended = now.saturating_duration_since(self.began).as_millis();
        // Store the end before the count, so that the connection never seems idle since an earlier end.
        self.ended.store(u64::try_from(ended).unwrap_or(u64::MAX), Ordering::Release);
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Since when no request is being served, not even an incomplete one.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.busy.load(Ordering::Acquire) == 0).then(|| self.last_end())
    }

    /// Since when the connection waits for a complete request; `None` while it serves one.
    pub fn waiting_since(&self) -> Option<Instant> {
        let is_waiting = self.busy.load(Ordering::Acquire) <= self.incomplete.load(Ordering::Acquire);
        is_waiting.then(|| self.last_end())
    }

    pub fn has_completed(&self) -> bool {
        self.completed.load(Ordering::Acquire)
    }

    fn last_end(&self) -> Instant {
        self.began + Duration::from_millis(self.ended.load(Ordering::Acquire))
    }

    /// Requests the connection to close as soon as it can.
    pub fn request_close(&self) {
        if !self.is_closing.swap(true, Ordering::Relaxed) {
            self.close_request.notify_one();
        }
    }

    /// Resolves when the connection is requested to close.
    pub async fn close_requested(&self) {
        self.close_request.notified().await;
    }

    /// Resolves when no request has been served for `idle`. Polls, so that it costs the requests nothing.
    pub async fn wait_idle(&self, idle: Duration, clock: &dyn Clock) {
        loop {
            let now = clock.now();
            let rested =
                self.idle_since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            if rested >= idle {
                return;
            }
            sleep(idle - rested).await;
        }
    }
}

// === impl IncompleteBody ===

impl Drop for IncompleteBody<'_> {
    fn drop(&mut self) {
        self.0.incomplete.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl ClientNetwork ===

impl ClientNetwork {
    fn of(peer: IpAddr) -> Self {
        Self(match peer.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use futures_util::{FutureExt, poll};
    use std::pin::pin;

    fn is_asked(one: &IdleGuard) -> bool {
        one.activity.close_requested().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_closed_first_and_no_busy_one() {
        let clock = SystemClock::new();
        let all = Arc::new(IdleConnections::default());
        let at_work = all.admit(None, clock.now());
        at_work.activity.begin();
        let first = all.admit(None, clock.now());
        sleep(MIN_IDLE).await;
        let second = all.admit(None, clock.now());
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE));
        assert!(is_asked(&first));
        assert!(!all.close_longest_idle(clock.now(), MIN_IDLE), "the other has only just connected");
        sleep(MIN_IDLE).await;
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE), "none is asked twice");
        assert!(is_asked(&second));
        assert!(!all.close_longest_idle(clock.now(), MIN_IDLE));
        at_work.activity.end(clock.now());
        sleep(MIN_IDLE).await;
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE));
        drop((at_work, first, second));
        assert!(all.table.lock().all.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_completed_request_are_closed_first() {
        let clock = SystemClock::new();
        let all = Arc::new(IdleConnections::default());
        let idle = all.admit(None, clock.now());
        idle.activity.begin();
        idle.activity.complete();
        idle.activity.end(clock.now());
        sleep(MIN_IDLE).await;
        let silent = all.admit(None, clock.now());
        let half_a_body = all.admit(None, clock.now());
        half_a_body.activity.begin();
        let receiving = half_a_body.activity.begin_body();
        sleep(MIN_IDLE).await;
        assert!(
            all.close_longest_idle(clock.now(), MIN_IDLE) && all.close_longest_idle(clock.now(), MIN_IDLE)
        );
        assert!(is_asked(&silent) && is_asked(&half_a_body) && !is_asked(&idle));
        drop(receiving);
        assert!(half_a_body.activity.waiting_since().is_none(), "its request is complete");
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE) && is_asked(&idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_is_limited_in_connections_without_a_completed_request() {
        let clock = SystemClock::new();
        let all = Arc::new(IdleConnections::default());
        let admit = |address: &str| all.admit(Some(address.parse().expect("an address")), clock.now());
        let first = admit("192.0.2.1");
        sleep(Duration::from_millis(1)).await;
        let second = admit("::ffff:192.0.2.1");
        let other = admit("192.0.2.2");
        let bound =
            |newest: &IdleGuard, limit| all.close_excess_pending(newest, limit, clock.now(), MIN_PENDING);
        assert_eq!((bound(&second, 2), bound(&other, 2)), (0, 0));
        let third = admit("192.0.2.1");
        assert_eq!(bound(&third, 2), 0, "what they have sent may not have been read");
        sleep(MIN_PENDING).await;
        assert_eq!(bound(&third, 2), 1);
        assert!(is_asked(&first) && !is_asked(&second) && !is_asked(&third) && !is_asked(&other));
        drop(first);
        let fourth = admit("192.0.2.1");
        third.activity.complete();
        third.activity.complete();
        assert_eq!(bound(&fourth, 2), 0, "one is gone, and one has completed a request");
        drop((second, third, other, fourth));
        assert!(all.table.lock().pending.is_empty());
        let one = admit("2001:db8:0:1::1");
        let same = admit("2001:db8:0:1:ffff::2");
        let different = admit("2001:db8:0:2::1");
        sleep(MIN_PENDING).await;
        assert_eq!((bound(&same, 1), bound(&different, 1)), (1, 0));
        drop(one);
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_time_restarts_after_a_request() {
        let clock = SystemClock::new();
        let activity = ConnectionActivity::new(clock.now());
        let idle = Duration::from_secs(75);
        let mut over = pin!(activity.wait_idle(idle, &clock));
        assert!(poll!(&mut over).is_pending());
        sleep(idle / 2).await;
        activity.begin();
        sleep(idle).await;
        assert!(poll!(&mut over).is_pending(), "it is at work");
        activity.end(clock.now());
        let ended = clock.now();
        over.await;
        assert_eq!(clock.now() - ended, idle);
    }
}
