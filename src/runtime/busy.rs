//! Write batching: whether other tasks of a thread should run before a task writes.
//!
//! Writing to a sleeping client on the same machine wakes it, which can cost more than the write itself.
//! Responses that are ready together are better written together: the first write wakes the client, and the
//! others find it awake. Event loops do this at the end of each round. Here a task that is about to write
//! yields to the other tasks of its thread, if the thread has written since it last parked.

use std::{cell::Cell, pin::pin, task::Context};
use tokio::task::yield_now;

thread_local! {
    /// Number of writes since the thread last parked; `None` on a thread that does not report parking.
    static WRITES_SINCE_PARK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Records that this thread of the runtime is about to park. The runtime calls this before each park.
pub fn on_thread_park() {
    WRITES_SINCE_PARK.set(Some(0));
}

/// Registers a write, and returns whether other tasks of this thread should run first: whether the thread has
/// written since it last parked. The first write after a park does not wait.
pub fn register_write() -> bool {
    WRITES_SINCE_PARK.with(|writes| {
        writes.set(writes.get().map(|count| count.saturating_add(1)));
        writes.get().is_some_and(|count| count > 1)
    })
}

/// Wakes the current task once every other ready task of this thread has run.
pub fn wake_after_others(cx: &mut Context<'_>) {
    let mut yielded = pin!(yield_now());
    let _ = yielded.as_mut().poll(cx);
}
