//! Quotas on tasks, of one principal and in total.

use std::time::Duration;

/// Quotas on tasks (`limits`). A call that would exceed a quota stays synchronous; running tasks are never
/// evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskQuotas {
    /// Stored tasks of one principal, including ended ones. Default 10 000.
    pub tasks_per_principal: usize,
    /// Stored tasks in total. Default 100 000.
    pub tasks: usize,
    /// Bytes of stored results and input requests in total. A result that exceeds it fails its task. Default
    /// 1 GiB.
    pub stored_bytes: usize,
    /// Bytes of stored results and input requests of one principal. Default 256 MiB.
    pub stored_bytes_per_principal: usize,
    /// Bytes of one stored result. A larger one fails its task. Default 16 MiB.
    pub stored_result_bytes: usize,
    /// `tasks/*` requests of one principal in a second. High, because some clients start polling at 20 ms.
    /// Default 1 000.
    pub polls_per_second: u32,
    /// Lookups of unknown tasks by one principal in a minute; bounds the guessing of task ids. Default 600.
    pub misses_per_minute: u32,
    /// Open `subscriptions/listen` streams of one principal. Default 100.
    pub listens_per_principal: usize,
    /// The least and greatest `pollIntervalMs`. Default 500 ms to 30 s.
    pub poll_interval: (Duration, Duration),
}

impl Default for TaskQuotas {
    fn default() -> Self {
        Self {
            tasks_per_principal: 10_000,
            tasks: 100_000,
            stored_bytes: 1 << 30,
            stored_bytes_per_principal: 256 << 20,
            stored_result_bytes: 16 << 20,
            polls_per_second: 1_000,
            misses_per_minute: 600,
            listens_per_principal: 100,
            poll_interval: (Duration::from_millis(500), Duration::from_secs(30)),
        }
    }
}
