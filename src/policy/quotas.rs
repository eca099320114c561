//! How much of everything there may be.

use std::time::Duration;

/// Bounds on tasks. Where one is reached a call stays synchronous; nothing that runs is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskQuotas {
    /// Tasks of one principal that are still kept, ended ones included. Default 10 000.
    pub tasks_per_principal: usize,
    /// Tasks in all. Default 100 000.
    pub tasks: usize,
    /// Bytes of results and questions of tasks kept in all. A result that does not fit fails its task.
    /// Default 1 GiB.
    pub stored_bytes: usize,
    /// The same for one principal, so that none takes the room of all. Default 256 MiB.
    pub stored_bytes_per_principal: usize,
    /// Bytes of one result that may be kept. A larger one fails its task. Default 16 MiB.
    pub stored_result_bytes: usize,
    /// `tasks/*` calls of one principal in a second. Generous, as some clients start at 20 ms.
    /// Default 1 000.
    pub polls_per_second: u32,
    /// Look-ups of unknown tasks by one principal in a minute. Default 600.
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
