//! Access to the outside world: clock, randomness, network and descriptor limit, the shutdown signal, and the
//! service manager.

mod busy;
mod clock;
mod connection_limiter;
mod descriptors;
mod drain;
mod entropy;
mod event_throttle;
mod idle;
mod net;
pub mod notify;
mod per_thread;
mod poll_on_wake;
mod pooled_timer;
mod private_key;
mod swap_cell;
mod sync;

pub use busy::{on_thread_park, register_write, wake_after_others};
pub use clock::{Clock, SteadyClock, SystemClock, wait_until, wall_clock, wall_time};
pub use connection_limiter::{ConnectionLimiter, ConnectionPermit, ConnectionReclaimer};
pub use descriptors::{DescriptorLimit, DescriptorShares};
pub use drain::{Drain, DrainWatch, TaskToken};
pub use entropy::random;
pub use event_throttle::EventThrottle;
pub use idle::{
    ConnectionActivity, IdleConnections, IdleGuard, IncompleteBody, MIN_IDLE, MIN_PENDING,
    wait_before_recheck,
};
pub use net::{
    Network, NetworkConnector, NetworkListener, NetworkStream, PipeNetwork, is_out_of_descriptors,
    peer_address,
};
pub use per_thread::PerThread;
pub use poll_on_wake::PollOnWake;
pub use pooled_timer::{PooledTimer, TimerKind, disable_timer_pool, enable_timer_pool};
pub use private_key::{PrivateKey, read_pem};
pub use swap_cell::{SwapCell, resize_semaphore};
#[cfg(test)]
pub use sync::explore_schedules;
pub use sync::{Mutex, spawn_on};

use futures_util::future::{Either, pending};

/// Waits for `future`; for ever if it is `None`.
pub fn or_pending<F: Future>(future: Option<F>) -> impl Future<Output = F::Output> {
    future.map_or_else(|| Either::Right(pending()), Either::Left)
}
