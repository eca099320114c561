//! Room for connections to servers: how many there may be, and who gives one up.
//!
//! A connection takes a [`ConnectionPermit`]. Where there is none, those who keep connections that nobody uses are
//! asked to close some ([`ConnectionReclaimer`]), and it is waited. What is said in passing (an answer, a cancel, a
//! farewell) must not wait for calls that may wait for it in their turn: it has a few places of its own.

use super::{Mutex, resize_semaphore};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

/// Cheap to clone; all clones are the same room.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter(Arc<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    limit: AtomicUsize,
    permits: Arc<Semaphore>,
    /// For what is said in passing, when there are no others.
    reserved: Arc<Semaphore>,
    /// Locked to add one, and to ask them all.
    reclaimers: Mutex<Vec<Weak<dyn ConnectionReclaimer>>>,
    /// Sessions have been asked to close, and somebody waits for what comes of it.
    has_relief_request: AtomicBool,
}

/// Somebody waits for what comes of asking; nobody else need ask meanwhile.
#[derive(Debug)]
pub struct ReliefRequest<'a>(&'a AtomicBool);

/// One connection's place, given back when dropped.
#[derive(Debug, Default)]
pub struct ConnectionPermit {
    _permit: Option<OwnedSemaphorePermit>,
    is_reserved: bool,
}

/// Somebody who keeps connections that nobody uses.
pub trait ConnectionReclaimer: Send + Sync {
    /// Closes connections that wait for their next request; says whether there were any.
    fn close_idle(&self) -> bool;

    /// Closes what waits to hear from a server although nobody listens: the streams of idle sessions.
    fn close_sessions(&self);
}

/// Places for what is said in passing. They come out of the reserve of
/// [`DescriptorLimit`](super::DescriptorLimit).
const RESERVED_PERMITS: usize = 16;

/// How long to wait until those who keep connections are asked again.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

// === impl Room ===

impl ConnectionLimiter {
    /// For so many connections, at least one.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(LimiterState {
            limit: AtomicUsize::new(limit),
            permits: Arc::new(Semaphore::new(at_least_one(limit))),
            reserved: Arc::new(Semaphore::new(RESERVED_PERMITS)),
            reclaimers: Mutex::default(),
            has_relief_request: AtomicBool::new(false),
        }))
    }

    /// How many connections there may be.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// From now on there may be so many; where there are more, those that end make room for nobody.
    pub fn set_limit(&self, limit: usize) {
        let before = self.0.limit.swap(limit, Ordering::Relaxed);
        resize_semaphore(&self.0.permits, at_least_one(before), at_least_one(limit));
    }

    /// `keeper` is asked where there is no room.
    pub fn register(&self, keeper: Weak<dyn ConnectionReclaimer>) {
        let mut keepers = self.0.reclaimers.lock();
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(keeper);
    }

    /// A place for one connection; waits until there is one.
    pub async fn acquire(&self, in_passing: bool) -> ConnectionPermit {
        let LimiterState { permits: places, reserved: spare, .. } = &*self.0;
        if let Ok(permit) = Arc::clone(places).try_acquire_owned() {
            return ConnectionPermit { _permit: Some(permit), is_reserved: false };
        }
        if in_passing && let Ok(permit) = Arc::clone(spare).try_acquire_owned() {
            return ConnectionPermit { _permit: Some(permit), is_reserved: true };
        }
        let waiting = Arc::clone(places).acquire_owned();
        tokio::pin!(waiting);
        loop {
            let _asked = self.reclaim();
            tokio::select! {
                biased;
                permit = &mut waiting => {
                    let permit = permit.expect("the semaphore is never closed");
                    return ConnectionPermit { _permit: Some(permit), is_reserved: false };
                }
                () = sleep(RECLAIM_INTERVAL) => {}
            }
        }
    }

    /// Has connections closed that nobody uses: first those that cost nothing to make again. Of those who
    /// ask at the same time one is heard, or nothing would be left that anybody could use again.
    pub fn reclaim(&self) -> Option<ReliefRequest<'_>> {
        let keepers: Vec<_> = {
            let keepers = self.0.reclaimers.lock();
            keepers.iter().filter_map(Weak::upgrade).collect()
        };
        let idle = keepers.iter().filter(|keeper| keeper.close_idle()).count();
        let asked = (idle == 0 && !self.0.has_relief_request.swap(true, Ordering::AcqRel))
            .then(|| ReliefRequest(&self.0.has_relief_request));
        if asked.is_some() {
            keepers.iter().for_each(|keeper| keeper.close_sessions());
        }
        asked
    }
}

fn at_least_one(limit: usize) -> usize {
    limit.clamp(1, Semaphore::MAX_PERMITS)
}

// === impl Asked ===

impl Drop for ReliefRequest<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

// === impl Place ===

impl ConnectionPermit {
    /// Whether its connection must not be kept for another request.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};

    /// Keeps a place until it is asked often enough.
    #[derive(Default)]
    struct Keeper {
        idle: Mutex<Option<ConnectionPermit>>,
        session: Mutex<Option<ConnectionPermit>>,
        asked: AtomicUsize,
    }

    impl ConnectionReclaimer for Keeper {
        fn close_idle(&self) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.idle.lock().take().is_some()
        }

        fn close_sessions(&self) {
            self.session.lock().take();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_a_connection_gives_it_up_where_there_is_no_room() {
        let room = ConnectionLimiter::new(2);
        let keeper = Arc::new(Keeper::default());
        let as_keeper: Arc<dyn ConnectionReclaimer> = keeper.clone();
        room.register(Arc::downgrade(&as_keeper));
        *keeper.idle.lock() = Some(room.acquire(false).await);
        *keeper.session.lock() = Some(room.acquire(false).await);
        let first = room.acquire(false).await;
        assert!(keeper.session.lock().is_some(), "what is cheap goes first");
        let second = room.acquire(false).await;
        assert!(keeper.session.lock().is_none());
        let third = room.acquire(false);
        tokio::pin!(third);
        assert!(poll!(&mut third).is_pending());
        drop((first, second));
        assert!(!third.await.is_reserved());
    }

    #[tokio::test(start_paused = true)]
    async fn there_may_be_more_of_them_and_fewer() {
        let room = ConnectionLimiter::new(1);
        let first = room.acquire(false).await;
        let mut second = Box::pin(room.acquire(false));
        assert!(poll!(&mut second).is_pending());
        room.set_limit(2);
        let second = second.await;
        room.set_limit(0);
        drop(first);
        tokio::task::yield_now().await;
        let mut third = Box::pin(room.acquire(false));
        assert!(poll!(&mut third).is_pending(), "there is one, as many as there may be at least");
        drop(second);
        third.await;
        assert_eq!(room.limit(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_in_passing_does_not_wait_for_calls() {
        let room = ConnectionLimiter::new(1);
        let call = room.acquire(false).await;
        let answer = room.acquire(true).now_or_never().expect("at once");
        assert!(answer.is_reserved());
        let rest: Vec<_> =
            (1..RESERVED_PERMITS).map(|_| room.acquire(true).now_or_never().expect("at once")).collect();
        assert!(room.acquire(true).now_or_never().is_none(), "there are only so many");
        drop((call, rest));
    }
}
