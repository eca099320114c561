//! The limits of the configuration, as operators see them near: what each is, how much of it is taken, and how often
//! it was met.

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

            /// Its key in the configuration.
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

/// What is known of one.
#[derive(Debug)]
struct LimitState {
    /// Its value, as the bits of a float: times are in seconds. Not a number where it was not told.
    value: AtomicU64,
    /// Whether it is a limit on what there is at a time, so that some of it can be taken.
    has_usage: bool,
    hits: AtomicU64,
}

/// How much of each is taken. Each call takes of some, and gives it back; what it took on one stripe it may give back
/// on another.
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

/// Those on what there is at a time, of all callers together.
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

/// So much of a limit is taken; given back when dropped.
#[derive(Debug)]
pub struct UsageGuard {
    limit: Limit,
    amount: i64,
}

/// One limit at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitSnapshot {
    pub limit: &'static str,
    /// Times in seconds. None where it differs by route or is not set.
    pub value: Option<f64>,
    /// None where it bounds one thing at a time, such as a body.
    pub used: Option<i64>,
    /// How often it was met.
    pub hits: u64,
}

// === impl Known ===

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

    /// It is this, times in seconds.
    pub fn set_value(self, value: f64) {
        self.state().value.store(value.to_bits(), Ordering::Relaxed);
    }

    /// It was met.
    pub fn record_hit(self) {
        self.state().hits.fetch_add(1, Ordering::Relaxed);
    }

    /// The limit of this key was met. A key that is none of these is not counted.
    pub fn record_hit_by_key(key: &str) {
        if let Some(limit) = Self::ALL.iter().find(|limit| limit.key() == key) {
            limit.record_hit();
        }
    }

    /// So much more of it is taken, or less.
    pub fn add_used(self, more: i64) {
        USED.local()[self as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// So much of it is taken, where one place knows that: nobody says then of what becomes more or less.
    pub fn set_used(self, amount: usize) {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        for (stripe, used) in USED.iter().enumerate() {
            used[self as usize].store(if stripe == 0 { amount } else { 0 }, Ordering::Relaxed);
        }
    }

    /// So much of it is taken until what is given is dropped.
    pub fn take(self, amount: usize) -> UsageGuard {
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        self.add_used(amount);
        UsageGuard { limit: self, amount }
    }

    pub(crate) fn snapshot(self) -> LimitSnapshot {
        let LimitState { value, has_usage: is_taken, hits } = self.state();
        // What began on a stripe that was looked at and ended on one that was not is missing for a moment.
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

/// As Prometheus is shown them.
pub(super) fn families() -> Vec<MetricFamily> {
    let all: Vec<_> = Limit::ALL.iter().map(|limit| limit.snapshot()).collect();
    let value = all.iter().filter_map(|one| Some(expose::gauge(&[("limit", one.limit)], one.value?)));
    let used = all.iter().filter_map(|one| Some(expose::gauge(&[("limit", one.limit)], one.used? as f64)));
    let hits = all.iter().map(|one| expose::counter(&[("limit", one.limit)], one.hits as f64));
    vec![
        expose::family(
            "deferral_limit",
            "Limits of the configuration by their keys; times in seconds.",
            expose::GAUGE,
            value,
        ),
        expose::family(
            "deferral_limit_used",
            "How much of a limit is taken, of those on what there is at a time.",
            expose::GAUGE,
            used,
        ),
        expose::family("deferral_limit_hits_total", "How often a limit was met.", expose::COUNTER, hits),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
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
