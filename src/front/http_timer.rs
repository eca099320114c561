//! hyper's timer for the next request of a connection: a [`PooledTimer`] on the proxy's clock, which costs
//! less than tokio's timer.

use crate::runtime::{Clock, PooledTimer, TimerKind};
use hyper::rt::{Sleep, Timer};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// hyper's timer, on the proxy's clock.
#[derive(Clone)]
pub(super) struct HttpTimer(pub(super) Arc<dyn Clock>);

struct HttpSleep(PooledTimer);

// === impl HttpTimer ===

impl Timer for HttpTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HttpSleep(PooledTimer::at(deadline, TimerKind::Request)))
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<HttpSleep>() {
            Some(http_sleep) => http_sleep.get_mut().0.set(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

// === impl HttpSleep ===

impl Sleep for HttpSleep {}

impl Future for HttpSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}
