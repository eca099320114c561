//! Whether a thread has more to do than one thing.
//!
//! To write to a client of this machine that sleeps means to wake it, which can cost more than the write itself. What
//! is answered together is better written together: the first wakes it, and finds it awake for the others. Event loops
//! do so at the end of each round; here whoever is about to write lets the others of its thread go first, if the thread
//! has others.

use std::{cell::Cell, pin::pin, task::Context};
use tokio::task::yield_now;

thread_local! {
    /// How much of the kind was done since the thread last had nothing to do; none where nobody says when that is.
    static DONE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// This thread of the runtime has nothing to do. To be told each time that it goes to sleep.
pub fn on_thread_park() {
    DONE.set(Some(0));
}

/// Notes that something is to be written, and says whether others of this thread had better go first: whether something
/// was written already since it last slept. The one that comes after a rest has nobody to wait for.
pub fn register_write() -> bool {
    DONE.with(|done| {
        done.set(done.get().map(|count| count.saturating_add(1)));
        done.get().is_some_and(|count| count > 1)
    })
}

/// Has the task woken once everything that waits on this thread has had its turn.
pub fn wake_after_others(cx: &mut Context<'_>) {
    let mut turn = pin!(yield_now());
    let _ = turn.as_mut().poll(cx);
}
