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
        /// A limit of the configuration, named after its key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit {
            $(#[doc = concat!("`", $key, "`")] $name,)*
        }

        impl Limit {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The configuration key of the limit, which is also its label in metrics.
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
    Turn "questions.turn",
    HeldDeadline "held.deadline",
    StoreMaxBytes "store.max_bytes",
    StoreDisk "free space of store.disk",
}

const COUNT: usize = Limit::ALL.len();

/// The metrics of one limit.
#[derive(Debug)]
struct LimitState {
    /// The configured value as the bits of an `f64`, times in seconds; NaN if it is not set.
    value: AtomicU64,
    /// Whether this is a concurrency limit, which has a current usage.
    has_usage: bool,
    /// How often the limit was hit.
    hits: AtomicU64,
}

/// The current usage of each limit. Usage that is added on one stripe may be subtracted on another.
static USAGE: LazyLock<PerThread<[AtomicI64; COUNT]>> =
    LazyLock::new(|| PerThread::from_fn(|| [const { AtomicI64::new(0) }; COUNT]));

static STATES: [LimitState; COUNT] = {
    let mut states = [const { LimitState::new(false) }; COUNT];
    let mut at = 0;
    while at < USAGE_LIMITS.len() {
        states[USAGE_LIMITS[at] as usize] = LimitState::new(true);
        at += 1;
    }
    states
};

/// The limits on what all principals together use at a time.
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

/// A part of the usage of a limit, subtracted when dropped.
#[derive(Debug)]
pub struct UsageGuard {
    limit: Limit,
    amount: i64,
}

/// The metrics of one limit at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitSnapshot {
    /// The configuration key of the limit.
    pub limit: &'static str,
    /// The configured value, times in seconds; `None` if it differs by route or is not set.
    pub value: Option<f64>,
    /// The current usage; `None` if the limit bounds single objects, such as a body.
    pub used: Option<i64>,
    /// How often the limit was hit.
    pub hits: u64,
}

// === impl LimitState ===

impl LimitState {
    const fn new(has_usage: bool) -> Self {
        Self { value: AtomicU64::new(f64::NAN.to_bits()), has_usage, hits: AtomicU64::new(0) }
    }
}

// === impl Limit ===

impl Limit {
    const fn state(self) -> &'static LimitState {
        &STATES[self as usize]
    }

    /// Sets the configured value for the metric, times in seconds.
    pub fn set_value(self, value: f64) {
        self.state().value.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Counts one hit of the limit.
    pub fn record_hit(self) {
        self.state().hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one hit of the limit with this configuration key. An unknown key is ignored.
    pub fn record_hit_by_key(key: &str) {
        if let Some(limit) = Self::ALL.iter().find(|limit| limit.key() == key) {
            limit.record_hit();
        }
    }

    /// Adds `delta`, which may be negative, to the current usage.
    pub fn add_used(self, delta: i64) {
        USAGE.local()[self as usize].fetch_add(delta, Ordering::Relaxed);
    }

    /// Sets the current usage, for limits whose usage is known in one place.
    pub fn set_used(self, amount: usize) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        for (stripe, used) in USAGE.iter().enumerate() {
            used[self as usize].store(if stripe == 0 { amount } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Adds `amount` to the current usage until the guard is dropped.
    pub fn acquire(self, amount: usize) -> UsageGuard {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.add_used(amount);
        UsageGuard { limit: self, amount }
    }

    /// The metrics of the limit at this moment.
    pub(crate) fn snapshot(self) -> LimitSnapshot {
        let LimitState { value, has_usage, hits } = self.state();
        // A change on two stripes can be read in part, so the sum may be negative for a moment.
        let used = || {
            let sum: i64 = USAGE.iter().map(|used| used[self as usize].load(Ordering::Relaxed)).sum();
            sum.max(0)
        };
        let value = f64::from_bits(value.load(Ordering::Relaxed));
        LimitSnapshot {
            limit: self.key(),
            value: (!value.is_nan()).then_some(value),
            used: has_usage.then(used),
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
    let value =
        all.iter().filter_map(|snapshot| Some(expose::gauge(&[("limit", snapshot.limit)], snapshot.value?)));
    let used = all
        .iter()
        .filter_map(|snapshot| Some(expose::gauge(&[("limit", snapshot.limit)], snapshot.used? as f64)));
    let hits = all.iter().map(|snapshot| expose::counter(&[("limit", snapshot.limit)], snapshot.hits as f64));
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
        let taken = Limit::Departed.acquire(7);
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
