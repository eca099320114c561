//! Locks and tasks, for what is also run in every order that chance finds.
//!
//! They are the standard library's and tokio's underneath. In this crate's own tests a lock is also a place where
//! another task may go on first, and a task one of the checker's, for as long as `explore_schedules` runs: what is
//! checked is then the very code that is shipped.

use std::{
    future::Future,
    sync::{self, MutexGuard, PoisonError},
};
use tokio::runtime::Handle;

#[cfg(test)]
pub use tried::explore_schedules;

/// A lock. A panic while it is held does not spoil it: what it guards is changed in steps that are each whole.
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
        // Dropping the handle does not end it.
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

    /// Orders are tried, until this is dropped.
    struct On;

    /// Steps of all tasks together, after which somebody is taken to wait for ever.
    const STEPS: usize = 1_000_000;
    /// What runs on each task's own stack includes a whole client.
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

    /// Takes a lock, but lets others go first.
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        loop {
            shuttle::thread::yield_now();
            match mutex.try_lock() {
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Ok(guard) => return guard,
                // All tasks are on one thread: who holds it must go on first.
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Runs `world` in as many orders of its steps as `SCHEDULES` says, or `default`. Panics where one of
    /// them panics, or leaves somebody waiting for ever; timers never end. Says which seed it was.
    pub fn explore_schedules<F: Future<Output = ()> + Send>(
        default: usize,
        world: impl Fn() -> F + Send + Sync + 'static,
    ) {
        let wanted = std::env::var("SCHEDULES").ok().map(|text| text.parse().expect("SCHEDULES is a number"));
        let mut config = Config::new();
        config.stack_size = STACK;
        config.max_steps = MaxSteps::FailAfter(STEPS);
        // Timers are there, and no time passes: nobody drives this runtime.
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
