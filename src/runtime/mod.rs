//! The few places where the outside world is met: the clock, entropy, the network and
//! how many connections the system allows, the signal to stop, and whoever started the process.

mod alarm;
mod busy;
mod clock;
mod descriptors;
mod drain;
mod entropy;
mod idle;
mod live;
mod net;
pub mod notify;
mod private_key;
mod room;
mod seldom;
mod striped;
mod throttled;
mod turns;

pub use alarm::{Alarm, Of, forget_alarms, keep_alarms};
pub use busy::{give_way, has_rest, is_busy};
pub use clock::{Clock, SystemClock, reached, wall_clock};
pub use descriptors::{Descriptors, Shares};
pub use drain::{Drain, Stopping, Work};
pub use entropy::random;
pub use idle::{Activity, IdleConnections, IdleGuard, MIN_IDLE, MIN_PENDING, Receiving, look_again};
pub use live::{Live, resize};
pub use net::{Connector, Listener, Net, Pipes, Stream, is_out_of_descriptors, peer_address};
pub use private_key::{PrivateKey, read_pem};
pub use room::{Place, Relieve, Room};
pub use seldom::Seldom;
pub use striped::Striped;
pub use throttled::Throttled;
#[cfg(test)]
pub use turns::try_orders;
pub use turns::{Mutex, spawn_on};

use futures_util::future::{Either, pending};

/// Waits for what there is to wait for; for ever where there is nothing.
pub fn or_never<F: Future>(future: Option<F>) -> impl Future<Output = F::Output> {
    future.map_or_else(|| Either::Right(pending()), Either::Left)
}
