//! Locks and tasks for code that the model checker (shuttle) also runs in many schedules.
//!
//! They are the standard library's and tokio's. In this crate's own unit tests, while `explore_schedules`
//! runs, a lock is also a point where another task may run first, and a task is one of the checker's: the
//! checker runs the very code that is shipped.

use std::{
    future::Future,
    sync::{self, MutexGuard, PoisonError},
};
use tokio::runtime::Handle;

#[cfg(test)]
pub use tried::explore_schedules;

/// A lock without poisoning: the guarded value is consistent after each step, so a panic does not spoil it.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

// === impl Mutex ===

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(test)]
        if tried::is_on() {
            return tried::lock(&self.0);
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Spawns work on a runtime. May be called from a destructor on any thread.
pub fn spawn_on(work: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
    #[cfg(test)]
    if tried::is_on() {
        // Dropping the handle does not end the task.
        return drop(shuttle::future::spawn(work));
    }
    drop(runtime.spawn(work));
}

#[cfg(test)]
mod tried {
    use shuttle::{Config, MaxSteps, Runner, future::block_on, scheduler::RandomScheduler};
    use std::{
        cell::Cell,
        future::Future,
        sync::{Mutex, MutexGuard, TryLockError},
        thread,
    };

    thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Schedules are explored until this is dropped.
    struct On;

    /// Steps of all tasks together, above which a task is taken to wait for ever.
    const STEPS: usize = 1_000_000;
    /// Stack of each task: it includes a whole client.
    const STACK: usize = 1 << 20;

    // === impl On ===

    impl Drop for On {
        fn drop(&mut self) {
            IS_ON.set(false);
        }
    }

    pub(super) fn is_on() -> bool {
        IS_ON.get() && !thread::panicking()
    }

    /// Takes a lock, but lets other tasks run first.
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        loop {
            shuttle::thread::yield_now();
            match mutex.try_lock() {
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Ok(guard) => return guard,
                // All tasks are on one thread: the holder must run first.
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Runs `world` in as many schedules as the variable `SCHEDULES` says, or `default`. Panics, with the
    /// seed, where a schedule panics or leaves a task waiting for ever; timers never fire.
    pub fn explore_schedules<F: Future<Output = ()> + Send>(
        default: usize,
        world: impl Fn() -> F + Send + Sync + 'static,
    ) {
        let wanted = std::env::var("SCHEDULES").ok().map(|text| text.parse().expect("SCHEDULES is a number"));
        let mut config = Config::new();
        config.stack_size = STACK;
        config.max_steps = MaxSteps::FailAfter(STEPS);
        // Timers exist, and time stands still: no thread drives this runtime.
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets");
        let _clock = clock.enter();
        Runner::new(RandomScheduler::new(wanted.unwrap_or(default)), config).run(move || {
            IS_ON.set(true);
            let _on = On;
            block_on(world());
        });
    }
}
