//! Metrics of the configured limits: value, current usage, and hits.

use super::expose;
use crate::runtime::PerThread;
use prometheus::proto::MetricFamily;
use serde::Serialize;
use std::sync::{
    LazyLock,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

macro_rules! limits {
    ($($name:ident $key:literal,)*) => {
        /// A limit of the configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $(#[doc = concat!("`", $key, "`")] $name,)*
        }

        impl Limit {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The configuration key.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }
        }
    };
}

limits! {
    BodyBytes "limits.body_bytes",
    BodyMemory "limits.body_memory",
    HeaderBytes "limits.header_bytes",
    Headers "limits.headers",
    Connections "limits.connections",
    PendingConnections "limits.pending_connections",
    UpstreamConnections "limits.upstream_connections",
    Calls "limits.calls",
    Streams "limits.streams",
    Depth "limits.depth",
    Sessions "limits.sessions",
    TaskSessions "limits.task_sessions",
    Queue "limits.queue",
    Messages "limits.messages",
    Identities "limits.identities",
    IdentityBytes "limits.identity_bytes",
    ResultBytes "limits.result_bytes",
    Departed "limits.departed",
    ClientSessions "limits.client_sessions",
    Tasks "limits.tasks",
    TasksPerPrincipal "limits.tasks_per_principal",
    StoredBytes "limits.stored_bytes",
    StoredBytesPerPrincipal "limits.stored_bytes_per_principal",
    StoredResultBytes "limits.stored_result_bytes",
    PollsPerSecond "limits.polls_per_second",
    MissesPerMinute "limits.misses_per_minute",
    ListensPerPrincipal "limits.listens_per_principal",
    Connect "timeouts.connect",
    FirstByte "timeouts.first_byte",
    Idle "timeouts.idle",
    Call "timeouts.call",
    QueueTime "timeouts.queue",
    IdleSession "timeouts.idle_session",
    ReadHeaders "timeouts.read_headers",
    ReadBody "timeouts.read_body",
    IdleConnection "timeouts.idle_connection",
    Write "timeouts.write",
    Concurrency "concurrency",
    CallsPerMinute "calls_per_minute",
    Instances "upstream.instances",
    StartTimeout "upstream.start_timeout",
    Park "questions.park",
    HeldDeadline "held.deadline",
    StoreMaxBytes "store.max_bytes",
    StoreDisk "free space of store.disk",
}

const COUNT: usize = Limit::ALL.len();

/// The metrics of one limit.
#[derive(Debug)]
struct LimitState {
    /// The value as the bits of a float, times in seconds. NaN if it is not set.
    value: AtomicU64,
    /// Whether this is a concurrency limit, which has a current usage.
    has_usage: bool,
    hits: AtomicU64,
}

/// Current usage per limit. Usage acquired on one stripe may be released on another.
static USED: LazyLock<PerThread<[AtomicI64; COUNT]>> =
    LazyLock::new(|| PerThread::from_fn(|| [const { AtomicI64::new(0) }; COUNT]));

static STATES: [LimitState; COUNT] = {
    let mut known = [const { LimitState::new(false) }; COUNT];
    let mut at = 0;
    while at < USAGE_LIMITS.len() {
        known[USAGE_LIMITS[at] as usize] = LimitState::new(true);
        at += 1;
    }
    known
};

/// Concurrency limits of all principals together.
const USAGE_LIMITS: &[Limit] = &[
    Limit::BodyMemory,
    Limit::Connections,
    Limit::UpstreamConnections,
    Limit::Calls,
    Limit::Concurrency,
    Limit::Identities,
    Limit::IdentityBytes,
    Limit::Departed,
    Limit::ClientSessions,
    Limit::Tasks,
    Limit::StoredBytes,
];

/// Usage of a limit, released when dropped.
#[derive(Debug)]
pub struct UsageGuard {
    limit: Limit,
    amount: i64,
}

/// The metrics of one limit at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitSnapshot {
    pub limit: &'static str,
    /// Times in seconds. `None` if it differs by route or is not set.
    pub value: Option<f64>,
    /// `None` if the limit bounds single objects, such as a body.
    pub used: Option<i64>,
    /// How often the limit was hit.
    pub hits: u64,
}

// === impl LimitState ===

impl LimitState {
    const fn new(is_taken: bool) -> Self {
        Self { value: AtomicU64::new(f64::NAN.to_bits()), has_usage: is_taken, hits: AtomicU64::new(0) }
    }
}

// === impl Limit ===

impl Limit {
    const fn state(self) -> &'static LimitState {
        &STATES[self as usize]
    }

    /// Sets the value, times in seconds.
    pub fn set_value(self, value: f64) {
        self.state().value.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Counts a hit.
    pub fn record_hit(self) {
        self.state().hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a hit of the limit with this key. Unknown keys are ignored.
    pub fn record_hit_by_key(key: &str) {
        if let Some(limit) = Self::ALL.iter().find(|limit| limit.key() == key) {
            limit.record_hit();
        }
    }

    /// Changes the current usage by `more`, which may be negative.
    pub fn add_used(self, more: i64) {
        USED.local()[self as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Sets the current usage, for limits whose usage is known in one place.
    pub fn set_used(self, amount: usize) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        for (stripe, used) in USED.iter().enumerate() {
            used[self as usize].store(if stripe == 0 { amount } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Adds to the current usage until the guard is dropped.
    pub fn take(self, amount: usize) -> UsageGuard {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.add_used(amount);
        UsageGuard { limit: self, amount }
    }

    pub(crate) fn snapshot(self) -> LimitSnapshot {
        let LimitState { value, has_usage: is_taken, hits } = self.state();
        // A concurrent change can be missed for a moment, so the sum may be negative.
        let used = || {
            let sum: i64 = USED.iter().map(|used| used[self as usize].load(Ordering::Relaxed)).sum();
            sum.max(0)
        };
        let value = f64::from_bits(value.load(Ordering::Relaxed));
        LimitSnapshot {
            limit: self.key(),
            value: (!value.is_nan()).then_some(value),
            used: is_taken.then(used),
            hits: hits.load(Ordering::Relaxed),
        }
    }
}

impl Drop for UsageGuard {
    fn drop(&mut self) {
        self.limit.add_used(-self.amount);
    }
}

/// The metric families for Prometheus.
pub(super) fn families() -> Vec<MetricFamily> {
    let all: Vec<_> = Limit::ALL.iter().map(|limit| limit.snapshot()).collect();
    let value = all.iter().filter_map(|one| Some(expose::gauge(&[("limit", one.limit)], one.value?)));
    let used = all.iter().filter_map(|one| Some(expose::gauge(&[("limit", one.limit)], one.used? as f64)));
    let hits = all.iter().map(|one| expose::counter(&[("limit", one.limit)], one.hits as f64));
    vec![
        expose::family("deferral_limit", "Configured limits by key; times in seconds.", expose::GAUGE, value),
        expose::family("deferral_limit_used", "Current usage of concurrency limits.", expose::GAUGE, used),
        expose::family("deferral_limit_hits_total", "How often a limit was reached.", expose::COUNTER, hits),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_released_when_the_guard_is_dropped() {
        let before = Limit::Departed.snapshot().used.expect("it can be taken");
        let taken = Limit::Departed.take(7);
        assert_eq!(Limit::Departed.snapshot().used, Some(before + 7));
        drop(taken);
        assert_eq!(Limit::Departed.snapshot().used, Some(before));
        assert_eq!(Limit::BodyBytes.snapshot().used, None);
    }

    #[test]
    fn a_limit_is_counted_by_the_key_that_an_error_names() {
        let before = Limit::PollsPerSecond.snapshot().hits;
        Limit::record_hit_by_key("limits.polls_per_second");
        Limit::record_hit_by_key("limits.nonsense");
        assert_eq!(Limit::PollsPerSecond.snapshot().hits, before + 1);
    }
}
