//! The few places where the outside world is read: the clock, entropy, the signal to stop.

mod clock;
mod drain;
mod entropy;

pub use clock::{Clock, SystemClock, Timestamp, wall_clock};
pub use drain::{Drain, Stopping};
pub use entropy::random;
