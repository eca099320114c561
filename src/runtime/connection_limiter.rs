//! The limit on connections to servers.
//!
//! Each connection holds a [`ConnectionPermit`]. If no permit is free, the owners of idle connections are
//! requested to close some ([`ConnectionReclaimer`]), and the caller waits. Control messages (a response, a
//! cancellation, the end of a session) must not wait for calls, because those calls may wait for them:
//! control messages have a few permits of their own.

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

/// A limit on connections. Cheap to clone; clones share the permits.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter(Arc<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    limit: AtomicUsize,
    permits: Arc<Semaphore>,
    /// Permits that only control messages may use, when no others are free.
    reserved: Arc<Semaphore>,
    /// The owners of idle connections. Locked to add one, and to copy the list.
    reclaimers: Mutex<Vec<Weak<dyn ConnectionReclaimer>>>,
    /// Owners have been requested to close sessions, and the caller that requested it still waits.
    has_relief_request: AtomicBool,
}

/// A request to close idle sessions, until its caller has a permit. Meanwhile no other caller makes such a
/// request.
#[derive(Debug)]
pub struct ReliefRequest<'a>(&'a AtomicBool);

/// The permit of one connection, released when dropped. The default value is that of an unlimited network.
#[derive(Debug, Default)]
pub struct ConnectionPermit {
    _permit: Option<OwnedSemaphorePermit>,
    is_reserved: bool,
}

/// An owner of idle connections, which can be requested to close them.
pub trait ConnectionReclaimer: Send + Sync {
    /// Closes connections that wait for their next request; returns whether there were any.
    fn close_idle(&self) -> bool;

    /// Closes the GET streams of idle sessions, which only wait for messages of a server.
    fn close_sessions(&self);
}

/// Number of permits for control messages. Their descriptors are part of the reserve of
/// [`DescriptorLimit`](super::DescriptorLimit).
const RESERVED_PERMITS: usize = 16;

/// Interval between two requests to close idle connections while a caller waits.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// Creates a limit of `limit` connections, at least one.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(LimiterState {
            limit: AtomicUsize::new(limit),
            permits: Arc::new(Semaphore::new(at_least_one(limit))),
            reserved: Arc::new(Semaphore::new(RESERVED_PERMITS)),
            reclaimers: Mutex::default(),
            has_relief_request: AtomicBool::new(false),
        }))
    }

    /// The current limit.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Surplus connections stay open, and their permits are not reused.
    pub fn set_limit(&self, limit: usize) {
        let previous = self.0.limit.swap(limit, Ordering::Relaxed);
        resize_semaphore(&self.0.permits, at_least_one(previous), at_least_one(limit));
    }

    /// Registers an owner of idle connections, which is called when no permit is free.
    pub fn register_reclaimer(&self, reclaimer: Weak<dyn ConnectionReclaimer>) {
        let mut reclaimers = self.0.reclaimers.lock();
        reclaimers.retain(|reclaimer| reclaimer.strong_count() > 0);
        reclaimers.push(reclaimer);
    }

    /// Acquires a permit for one connection, and waits for a free one. A control message (`is_control`) may
    /// also use a reserved permit.
    pub async fn acquire(&self, is_control: bool) -> ConnectionPermit {
        let LimiterState { permits, reserved, .. } = &*self.0;
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return ConnectionPermit { _permit: Some(permit), is_reserved: false };
        }
        if is_control && let Ok(permit) = Arc::clone(reserved).try_acquire_owned() {
            return ConnectionPermit { _permit: Some(permit), is_reserved: true };
        }
        let acquiring = Arc::clone(permits).acquire_owned();
        tokio::pin!(acquiring);
        loop {
            let _relief = self.reclaim();
            tokio::select! {
                biased;
                permit = &mut acquiring => {
                    let permit = permit.expect("the semaphore is never closed");
                    return ConnectionPermit { _permit: Some(permit), is_reserved: false };
                }
                () = sleep(RECLAIM_INTERVAL) => {}
            }
        }
    }

    /// Requests owners to close idle connections: first those that are cheap to open again, and only if there
    /// are none the streams of idle sessions. Of concurrent callers only one gets sessions closed (it gets
    /// the [`ReliefRequest`], to be held while it waits); otherwise no session would be left to reuse.
    pub fn reclaim(&self) -> Option<ReliefRequest<'_>> {
        let reclaimers: Vec<_> = {
            let reclaimers = self.0.reclaimers.lock();
            reclaimers.iter().filter_map(Weak::upgrade).collect()
        };
        let with_idle = reclaimers.iter().filter(|reclaimer| reclaimer.close_idle()).count();
        let relief = (with_idle == 0 && !self.0.has_relief_request.swap(true, Ordering::AcqRel))
            .then(|| ReliefRequest(&self.0.has_relief_request));
        if relief.is_some() {
            reclaimers.iter().for_each(|reclaimer| reclaimer.close_sessions());
        }
        relief
    }
}

fn at_least_one(limit: usize) -> usize {
    limit.clamp(1, Semaphore::MAX_PERMITS)
}

// === impl ReliefRequest ===

impl Drop for ReliefRequest<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// Whether this is a permit for control messages: its connection must not be kept for another request.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};

    /// Holds a permit until it is reclaimed.
    #[derive(Default)]
    struct PermitHolder {
        idle: Mutex<Option<ConnectionPermit>>,
        session: Mutex<Option<ConnectionPermit>>,
        calls: AtomicUsize,
    }

    impl ConnectionReclaimer for PermitHolder {
        fn close_idle(&self) -> bool {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.idle.lock().take().is_some()
        }

        fn close_sessions(&self) {
            self.session.lock().take();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_reclaimed_before_sessions() {
        let limiter = ConnectionLimiter::new(2);
        let reclaimer = Arc::new(PermitHolder::default());
        let as_reclaimer: Arc<dyn ConnectionReclaimer> = reclaimer.clone();
        limiter.register_reclaimer(Arc::downgrade(&as_reclaimer));
        *reclaimer.idle.lock() = Some(limiter.acquire(false).await);
        *reclaimer.session.lock() = Some(limiter.acquire(false).await);
        let first = limiter.acquire(false).await;
        assert!(reclaimer.session.lock().is_some(), "what is cheap goes first");
        let second = limiter.acquire(false).await;
        assert!(reclaimer.session.lock().is_none());
        let third = limiter.acquire(false);
        tokio::pin!(third);
        assert!(poll!(&mut third).is_pending());
        drop((first, second));
        assert!(!third.await.is_reserved());
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_of_connections_can_be_raised_and_lowered() {
        let limiter = ConnectionLimiter::new(1);
        let first = limiter.acquire(false).await;
        let mut second = Box::pin(limiter.acquire(false));
        assert!(poll!(&mut second).is_pending());
        limiter.set_limit(2);
        let second = second.await;
        limiter.set_limit(0);
        drop(first);
        tokio::task::yield_now().await;
        let mut third = Box::pin(limiter.acquire(false));
        assert!(poll!(&mut third).is_pending(), "there is one, as many as there may be at least");
        drop(second);
        third.await;
        assert_eq!(limiter.limit(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn control_messages_do_not_wait_for_calls() {
        let limiter = ConnectionLimiter::new(1);
        let call = limiter.acquire(false).await;
        let answer = limiter.acquire(true).now_or_never().expect("at once");
        assert!(answer.is_reserved());
        let rest: Vec<_> =
            (1..RESERVED_PERMITS).map(|_| limiter.acquire(true).now_or_never().expect("at once")).collect();
        assert!(limiter.acquire(true).now_or_never().is_none(), "there are only so many");
        drop((call, rest));
    }
}
