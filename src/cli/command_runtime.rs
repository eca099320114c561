//! The runtime of a command: its threads, and the signals that interrupt it.

use crate::runtime::{disable_timer_pool, enable_timer_pool, on_thread_park, or_pending};
use std::{env, num::NonZeroUsize, thread};
use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

/// The environment variable for the number of worker threads, with the name that tokio uses. Overrides
/// [`default_threads`].
const THREADS_VARIABLE: &str = "TOKIO_WORKER_THREADS";

/// Returns the number of worker threads.
///
/// # Errors
/// A message if the environment variable is invalid.
pub(super) fn worker_threads() -> Result<usize, String> {
    match env::var_os(THREADS_VARIABLE).filter(|value| !value.is_empty()) {
        None => Ok(default_threads(thread::available_parallelism().map_or(1, NonZeroUsize::get))),
        Some(value) => {
            let count = value.to_str().and_then(|count| count.trim().parse::<NonZeroUsize>().ok());
            let invalid = || {
                format!(
                    "the environment variable `{THREADS_VARIABLE}` is {value:?}; it must be a number of threads, at least 1"
                )
            };
            count.map(NonZeroUsize::get).ok_or_else(invalid)
        }
    }
}

/// Returns one thread for two cores: clients and servers often run on the same machine, and a call that is
/// handled by two threads costs a third more than a call that stays on a thread (`benches/README.md`).
const fn default_threads(cores: usize) -> usize {
    if cores < 2 { 1 } else { cores / 2 }
}

/// Creates the runtime of a command.
pub(super) fn runtime() -> Runtime {
    runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads().unwrap_or(1))
        .enable_all()
        .on_thread_start(enable_timer_pool)
        .on_thread_park(on_thread_park)
        .on_thread_stop(disable_timer_pool)
        .build()
        .expect("threads can be started at process start")
}

/// Resolves at the first Ctrl-C or SIGTERM.
pub(super) async fn interrupted() {
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let mut terminate = signal(SignalKind::terminate()).ok();
    // The future of a signal that cannot be handled never resolves.
    tokio::select! {
        _ = or_pending(interrupt.as_mut().map(Signal::recv)) => {}
        _ = or_pending(terminate.as_mut().map(Signal::recv)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_serves_calls_for_two_cores() {
        for (cores, threads) in [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (64, 32)] {
            assert_eq!(default_threads(cores), threads, "{cores}");
        }
    }
}
