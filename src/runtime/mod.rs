//! The few places where the outside world is met: the clock, entropy, the network, the signal to stop.

mod clock;
mod drain;
mod entropy;
mod net;
mod turns;

pub use clock::{Clock, SystemClock, wall_clock};
pub use drain::{Drain, Stopping};
pub use entropy::random;
pub use net::{Connector, Listener, Net, Pipes, Stream};
#[cfg(test)]
pub use turns::try_orders;
pub use turns::{Mutex, MutexGuard, spawn_on};
