//! Connections that rest, and who goes first when there is no room.
//!
//! A connection rests while none of its requests is being served: before the first, between two, and
//! while it only speaks of itself, as with the PINGs of HTTP/2. Such a connection is closed when it has
//! rested for `timeouts.idle`; sooner where somebody else waits for its place, or the system has no
//! descriptor left. HTTP allows it at any time (RFC 9112, 9.5; RFC 9113, 9.1).

use crate::runtime::{Clock, Mutex};
use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::sleep};

/// All connections there are.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// Locked to let one in or out, and to look for one that rests.
    all: Mutex<HashMap<u64, Arc<Rest>>>,
    next: AtomicU64,
}

/// One connection's place among them, given back when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    guests: Arc<Guests>,
    number: u64,
    pub(super) rest: Arc<Rest>,
}

/// Whether a connection rests, and since when.
#[derive(Debug)]
pub(super) struct Rest {
    began: Instant,
    /// Requests that are being served.
    busy: AtomicU32,
    /// When the last of them ended, in milliseconds after `began`.
    ended: AtomicU64,
    /// It is asked to leave.
    leave: Notify,
    asked: AtomicBool,
}

/// A connection that has rested for less is left alone although somebody waits: its client has just
/// been answered, and may go on.
const BREATHER: Duration = Duration::from_secs(1);

// === impl Guests ===

impl Guests {
    /// A connection has been accepted.
    pub(super) fn admit(self: &Arc<Self>, now: Instant) -> Guest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let rest = Arc::new(Rest::new(now));
        self.all.lock().insert(number, Arc::clone(&rest));
        Guest { guests: Arc::clone(self), number, rest }
    }

    /// Asks the connection that has rested for the longest to leave; says whether there was one. Looks
    /// at all of them, and is called only where there is no room for one more.
    pub(super) fn make_room(&self, now: Instant) -> bool {
        let all = self.all.lock();
        let resting = all.values().filter(|rest| !rest.asked.load(Ordering::Relaxed));
        let resting = resting.filter_map(|rest| Some((rest.since()?, rest)));
        let Some((since, longest)) = resting.min_by_key(|(since, _)| *since) else { return false };
        if now.saturating_duration_since(since) < BREATHER {
            return false;
        }
        longest.ask_to_leave();
        true
    }
}

/// How long to wait until it is worth looking again for one that rests.
pub(super) fn look_again() -> impl Future<Output = ()> {
    sleep(BREATHER / 4)
}

// === impl Guest ===

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.all.lock().remove(&self.number);
    }
}

// === impl Rest ===

impl Rest {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            busy: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            leave: Notify::new(),
            asked: AtomicBool::new(false),
        }
    }

    /// A request is being served.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
    }

    /// A request has been served.
    pub(super) fn end(&self, now: Instant) {
        let ended = now.saturating_duration_since(self.began).as_millis();
        // Before it counts as resting, so that it never seems to have rested since the time before.
        self.ended.store(u64::try_from(ended).unwrap_or(u64::MAX), Ordering::Release);
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Since when it has rested, if it does.
    pub(super) fn since(&self) -> Option<Instant> {
        let ended = || self.began + Duration::from_millis(self.ended.load(Ordering::Acquire));
        (self.busy.load(Ordering::Acquire) == 0).then(ended)
    }

    /// It is to end as soon as it can.
    pub(super) fn ask_to_leave(&self) {
        if !self.asked.swap(true, Ordering::Relaxed) {
            self.leave.notify_one();
        }
    }

    /// Resolves when it is asked to leave.
    pub(super) async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }

    /// Resolves when it has rested for so long. Looked at now and then: that costs its requests nothing.
    pub(super) async fn over(&self, idle: Duration, clock: &dyn Clock) {
        loop {
            let now = clock.now();
            let rested = self.since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            if rested >= idle {
                return;
            }
            sleep(idle - rested).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::SystemClock;
    use futures_util::{FutureExt, poll};
    use std::pin::pin;

    #[tokio::test(start_paused = true)]
    async fn the_one_that_has_rested_longest_goes_first_and_none_that_is_at_work() {
        let clock = SystemClock::new();
        let guests = Arc::new(Guests::default());
        let at_work = guests.admit(clock.now());
        at_work.rest.begin();
        let first = guests.admit(clock.now());
        sleep(BREATHER).await;
        let second = guests.admit(clock.now());
        assert!(guests.make_room(clock.now()));
        assert!(first.rest.asked_to_leave().now_or_never().is_some());
        assert!(!guests.make_room(clock.now()), "the other has only just come");
        sleep(BREATHER).await;
        assert!(guests.make_room(clock.now()), "nobody is asked twice");
        assert!(second.rest.asked_to_leave().now_or_never().is_some());
        assert!(!guests.make_room(clock.now()));
        at_work.rest.end(clock.now());
        sleep(BREATHER).await;
        assert!(guests.make_room(clock.now()));
        drop((at_work, first, second));
        assert!(guests.all.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_is_over_when_it_has_lasted_and_not_when_it_was_interrupted() {
        let clock = SystemClock::new();
        let rest = Rest::new(clock.now());
        let idle = Duration::from_secs(75);
        let mut over = pin!(rest.over(idle, &clock));
        assert!(poll!(&mut over).is_pending());
        sleep(idle / 2).await;
        rest.begin();
        sleep(idle).await;
        assert!(poll!(&mut over).is_pending(), "it is at work");
        rest.end(clock.now());
        let ended = clock.now();
        over.await;
        assert_eq!(clock.now() - ended, idle);
    }
}
