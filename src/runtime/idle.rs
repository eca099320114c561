//! Client connections that wait for a request, and which of them is closed when the limit is reached.
//!
//! A connection is idle while no complete request of it is being served: during its handshake, before the
//! first request, while a head or a body is incomplete, between two requests, and while it sends only
//! connection-level frames, such as the SETTINGS and PINGs of HTTP/2. HTTP allows closing it then (RFC 9112,
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

/// The client connections of one or several listeners.
#[derive(Debug, Default)]
pub struct IdleConnections {
    /// The connections. Locked to add or remove one, and to find one to close.
    table: Mutex<ConnectionTable>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    connections: HashMap<u64, Arc<ConnectionActivity>>,
    /// The number of connections of each network that have never completed a request.
    pending: HashMap<ClientNetwork, usize>,
}

/// The membership of one connection in [`IdleConnections`], removed when dropped.
#[derive(Debug)]
pub struct IdleGuard {
    connections: Arc<IdleConnections>,
    number: u64,
    /// The activity of the connection.
    pub activity: Arc<ConnectionActivity>,
}

/// The activity of one connection: whether it is idle, and since when.
#[derive(Debug)]
pub struct ConnectionActivity {
    /// When the connection was accepted.
    began: Instant,
    /// The number of requests that are being served, including those that are incomplete.
    active_requests: AtomicU32,
    /// The number of requests among [`active_requests`](Self::active_requests) whose body is incomplete.
    incomplete_requests: AtomicU32,
    /// When the last request ended, in milliseconds after `began`.
    last_ended_ms: AtomicU64,
    /// Whether the connection has ever completed a request.
    has_completed_request: AtomicBool,
    close_request: Notify,
    is_closing: AtomicBool,
    network: Option<ClientNetwork>,
    connections: Weak<IdleConnections>,
}

/// Marks a request whose body is being received, until dropped.
#[derive(Debug)]
pub struct IncompleteBody<'a>(&'a ConnectionActivity);

/// The network of a client, from which it can choose its address: one IPv4 address, or 64 bits of IPv6 (RFC
/// 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientNetwork(IpAddr);

/// Minimum time that a connection without a completed request is open before it can be closed because too
/// many connections of its network wait: the proxy may not have read its first bytes yet.
pub const MIN_PENDING: Duration = Duration::from_millis(100);

/// Minimum idle time of a connection before it can be closed to make room for another: its client has just
/// connected, or has just received a response and may continue.
pub const MIN_IDLE: Duration = Duration::from_secs(1);

// === impl IdleConnections ===

impl IdleConnections {
    /// Adds a connection that has just been accepted. `peer` is the client's address; `None` if it has none,
    /// such as a pipe.
    pub fn admit(self: &Arc<Self>, peer: Option<IpAddr>, now: Instant) -> IdleGuard {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let network = peer.map(ClientNetwork::from_address);
        let activity = Arc::new(ConnectionActivity {
            network,
            connections: Arc::downgrade(self),
            ..ConnectionActivity::new(now)
        });
        let mut table = self.table.lock();
        table.connections.insert(number, Arc::clone(&activity));
        if let Some(network) = network {
            *table.pending.entry(network).or_default() += 1;
        }
        drop(table);
        IdleGuard { connections: Arc::clone(self), number, activity }
    }

    /// Requests the connection that has been idle longest, and for at least `min_idle`, to close; returns
    /// whether there was one. Scans all connections, so it is called only at the limit.
    pub fn close_longest_idle(&self, now: Instant, min_idle: Duration) -> bool {
        let table = self.table.lock();
        let waiting =
            table.connections.values().filter(|connection| !connection.is_closing.load(Ordering::Relaxed));
        let waiting = waiting.filter_map(|connection| {
            Some((connection.has_completed_request(), connection.waiting_since()?, connection))
        });
        let is_due = |since: Instant| now.saturating_duration_since(since) >= min_idle;
        let waiting = waiting.filter(|(_, since, _)| is_due(*since));
        let Some((.., longest)) = waiting.min_by_key(|(completed, since, _)| (*completed, *since)) else {
            return false;
        };
        longest.request_close();
        true
    }

    /// Closes excess connections of the newest connection's network: if more than `limit` of them have never
    /// completed a request, those that have waited longest, and for at least `min_pending`, are requested to
    /// close. Returns their number.
    pub fn close_excess_pending(
        &self,
        newest: &IdleGuard,
        limit: usize,
        now: Instant,
        min_pending: Duration,
    ) -> usize {
        let Some(network) = newest.activity.network else { return 0 };
        let table = self.table.lock();
        if table.pending.get(&network).is_none_or(|&count| count <= limit) {
            return 0;
        }
        let waiting = table
            .connections
            .values()
            .filter(|connection| connection.network == Some(network) && !connection.has_completed_request());
        let mut waiting: Vec<_> =
            waiting.filter(|connection| !connection.is_closing.load(Ordering::Relaxed)).collect();
        let excess = waiting.len().saturating_sub(limit);
        waiting.sort_unstable_by_key(|connection| connection.began);
        let is_due = |connection: &&Arc<ConnectionActivity>| {
            now.saturating_duration_since(connection.began) >= min_pending
        };
        let due = waiting.into_iter().take(excess).take_while(is_due);
        due.map(|connection| connection.request_close()).count()
    }

    fn on_first_completion(&self, network: ClientNetwork) {
        self.table.lock().decrement_pending(network);
    }
}

// === impl ConnectionTable ===

impl ConnectionTable {
    /// Subtracts one connection of a network, which has completed its first request or is closed.
    fn decrement_pending(&mut self, network: ClientNetwork) {
        if let Some(pending) = self.pending.get_mut(&network) {
            *pending -= 1;
            if *pending == 0 {
                self.pending.remove(&network);
            }
        }
    }
}

/// Waits for the time between two searches for an idle connection.
pub fn wait_before_recheck() -> impl Future<Output = ()> {
    sleep(MIN_IDLE / 4)
}

// === impl IdleGuard ===

impl IdleGuard {
    /// The client's network as text for the log; empty if the client has no address.
    pub fn network(&self) -> String {
        self.activity.network.map(|ClientNetwork(address)| address.to_string()).unwrap_or_default()
    }
}

impl Drop for IdleGuard {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.connections.remove(&self.number);
        // Mark the connection as having completed a request, so that it is not subtracted twice.
        if let Some(network) = self.activity.network
            && !self.activity.has_completed_request.swap(true, Ordering::AcqRel)
        {
            table.decrement_pending(network);
        }
    }
}

// === impl ConnectionActivity ===

impl ConnectionActivity {
    /// Creates the activity of a connection that is in no table of connections.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            active_requests: AtomicU32::new(0),
            incomplete_requests: AtomicU32::new(0),
            last_ended_ms: AtomicU64::new(0),
            has_completed_request: AtomicBool::new(false),
            close_request: Notify::new(),
            is_closing: AtomicBool::new(false),
            network: None,
            connections: Weak::new(),
        }
    }

    /// Records that the connection begins to serve a request.
    pub fn begin_request(&self) {
        self.active_requests.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the body of the current request is incomplete, until the result is dropped.
    pub fn begin_body(&self) -> IncompleteBody<'_> {
        self.incomplete_requests.fetch_add(1, Ordering::AcqRel);
        IncompleteBody(self)
    }

    /// Records that a request has been received completely.
    pub fn complete_request(&self) {
        // Load the flag before the swap: most connections have completed a request before, and a load is
        // cheaper.
        if !self.has_completed_request()
            && !self.has_completed_request.swap(true, Ordering::AcqRel)
            && let (Some(network), Some(connections)) = (self.network, self.connections.upgrade())
        {
            connections.on_first_completion(network);
        }
    }

    /// Records that a request has been served.
    pub fn end_request(&self, now: Instant) {
        let ended = now.saturating_duration_since(self.began).as_millis();
        // Store the end before the count, so that the connection never seems idle since an earlier end.
        self.last_ended_ms.store(u64::try_from(ended).unwrap_or(u64::MAX), Ordering::Release);
        self.active_requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// When the last request ended, or the connection began; `None` while a request is being served, even an
    /// incomplete one.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.active_requests.load(Ordering::Acquire) == 0).then(|| self.last_end())
    }

    /// When the connection began to wait for a complete request; `None` while it serves one.
    pub fn waiting_since(&self) -> Option<Instant> {
        let is_waiting =
            self.active_requests.load(Ordering::Acquire) <= self.incomplete_requests.load(Ordering::Acquire);
        is_waiting.then(|| self.last_end())
    }

    /// Whether the connection has ever completed a request.
    pub fn has_completed_request(&self) -> bool {
        self.has_completed_request.load(Ordering::Acquire)
    }

    /// When the last request ended; without one, when the connection began.
    fn last_end(&self) -> Instant {
        self.began + Duration::from_millis(self.last_ended_ms.load(Ordering::Acquire))
    }

    /// Requests the connection to close as soon as it can.
    pub fn request_close(&self) {
        if !self.is_closing.swap(true, Ordering::Relaxed) {
            self.close_request.notify_one();
        }
    }

    /// Resolves once [`request_close`](Self::request_close) has been called.
    pub async fn close_requested(&self) {
        self.close_request.notified().await;
    }

    /// Resolves once no request has been served for the duration `idle`. Checks at intervals, so that
    /// requests do not have to notify.
    pub async fn wait_idle(&self, idle: Duration, clock: &dyn Clock) {
        loop {
            let now = clock.now();
            let idle_for =
                self.idle_since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            if idle_for >= idle {
                return;
            }
            sleep(idle - idle_for).await;
        }
    }
}

// === impl IncompleteBody ===

impl Drop for IncompleteBody<'_> {
    fn drop(&mut self) {
        self.0.incomplete_requests.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl ClientNetwork ===

impl ClientNetwork {
    fn from_address(peer: IpAddr) -> Self {
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

    fn is_close_requested(guard: &IdleGuard) -> bool {
        guard.activity.close_requested().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_closed_first_and_no_busy_one() {
        let clock = SystemClock::new();
        let all = Arc::new(IdleConnections::default());
        let at_work = all.admit(None, clock.now());
        at_work.activity.begin_request();
        let first = all.admit(None, clock.now());
        sleep(MIN_IDLE).await;
        let second = all.admit(None, clock.now());
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE));
        assert!(is_close_requested(&first));
        assert!(!all.close_longest_idle(clock.now(), MIN_IDLE), "the other has only just connected");
        sleep(MIN_IDLE).await;
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE), "none is asked twice");
        assert!(is_close_requested(&second));
        assert!(!all.close_longest_idle(clock.now(), MIN_IDLE));
        at_work.activity.end_request(clock.now());
        sleep(MIN_IDLE).await;
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE));
        drop((at_work, first, second));
        assert!(all.table.lock().connections.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_completed_request_are_closed_first() {
        let clock = SystemClock::new();
        let all = Arc::new(IdleConnections::default());
        let idle = all.admit(None, clock.now());
        idle.activity.begin_request();
        idle.activity.complete_request();
        idle.activity.end_request(clock.now());
        sleep(MIN_IDLE).await;
        let silent = all.admit(None, clock.now());
        let half_a_body = all.admit(None, clock.now());
        half_a_body.activity.begin_request();
        let receiving = half_a_body.activity.begin_body();
        sleep(MIN_IDLE).await;
        assert!(
            all.close_longest_idle(clock.now(), MIN_IDLE) && all.close_longest_idle(clock.now(), MIN_IDLE)
        );
        assert!(
            is_close_requested(&silent) && is_close_requested(&half_a_body) && !is_close_requested(&idle)
        );
        drop(receiving);
        assert!(half_a_body.activity.waiting_since().is_none(), "its request is complete");
        assert!(all.close_longest_idle(clock.now(), MIN_IDLE) && is_close_requested(&idle));
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
        assert!(
            is_close_requested(&first)
                && !is_close_requested(&second)
                && !is_close_requested(&third)
                && !is_close_requested(&other)
        );
        drop(first);
        let fourth = admit("192.0.2.1");
        third.activity.complete_request();
        third.activity.complete_request();
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
        activity.begin_request();
        sleep(idle).await;
        assert!(poll!(&mut over).is_pending(), "it is at work");
        activity.end_request(clock.now());
        let ended = clock.now();
        over.await;
        assert_eq!(clock.now() - ended, idle);
    }
}
