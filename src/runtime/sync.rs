//! Locks and tasks for code that the model checker (shuttle) also runs in many schedules.
//!
//! Locks are the standard library's, and tasks are tokio's. In this crate's own unit tests, while
//! `explore_schedules` runs, a lock is also a point where another task may run first, and a task is one of
//! the checker's: so the checker runs the very code that is shipped.

use std::{
    future::Future,
    sync::{self, MutexGuard, PoisonError},
};
use tokio::runtime::Handle;

#[cfg(test)]
pub use exploration::explore_schedules;

/// A mutex without poisoning: the guarded value is consistent after each step, so a panic does not spoil it.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

// === impl Mutex ===

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Locks the mutex; a panic of an earlier holder is ignored.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(test)]
        if exploration::is_exploring() {
            return exploration::lock(&self.0);
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Spawns a task on a runtime. May be called from a destructor on any thread.
pub fn spawn_on(work: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
    #[cfg(test)]
    if exploration::is_exploring() {
        // Dropping the handle does not end the task.
        return drop(shuttle::future::spawn(work));
    }
    drop(runtime.spawn(work));
}

#[cfg(test)]
mod exploration {
    use shuttle::{Config, MaxSteps, Runner, future::block_on, scheduler::RandomScheduler};
    use std::{
        cell::Cell,
        future::Future,
        sync::{Mutex, MutexGuard, TryLockError},
        thread,
    };

    thread_local! {
        static IS_EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Marks, until dropped, that this thread explores schedules.
    struct ExplorationGuard;

    /// Maximum number of steps of all tasks together; beyond it, a task is taken to wait for ever.
    const STEPS: usize = 1_000_000;
    /// Bytes of the stack of each task, which includes a whole client.
    const STACK: usize = 1 << 20;

    // === impl ExplorationGuard ===

    impl Drop for ExplorationGuard {
        fn drop(&mut self) {
            IS_EXPLORING.set(false);
        }
    }

    /// Whether this thread explores schedules now.
    pub(super) fn is_exploring() -> bool {
        IS_EXPLORING.get() && !thread::panicking()
    }

    /// Locks a mutex, after other tasks could run.
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

    /// Runs `world` in many schedules: as many as the environment variable `SCHEDULES` says, or `default`.
    /// Panics, with the seed, if a schedule panics or leaves a task waiting for ever; timers never fire.
    pub fn explore_schedules<F: Future<Output = ()> + Send>(
        default: usize,
        world: impl Fn() -> F + Send + Sync + 'static,
    ) {
        let requested =
            std::env::var("SCHEDULES").ok().map(|text| text.parse().expect("SCHEDULES is a number"));
        let mut config = Config::new();
        config.stack_size = STACK;
        config.max_steps = MaxSteps::FailAfter(STEPS);
        // The runtime makes timers usable, but time stands still: no thread drives it.
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets");
        let _clock = clock.enter();
        Runner::new(RandomScheduler::new(requested.unwrap_or(default)), config).run(move || {
            IS_EXPLORING.set(true);
            let _on = ExplorationGuard;
            block_on(world());
        });
    }
}
