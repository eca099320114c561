//! Room for connections to servers: how many there may be, and who gives one up.
//!
//! A connection takes a [`Place`]. Where there is none, those who keep connections that nobody uses are
//! asked to close some ([`Relieve`]), and it is waited. What is said in passing (an answer, a cancel, a
//! farewell) must not wait for calls that may wait for it in their turn: it has a few places of its own.

use super::{Mutex, resize};
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
pub struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: AtomicUsize,
    places: Arc<Semaphore>,
    /// For what is said in passing, when there are no others.
    spare: Arc<Semaphore>,
    /// Locked to add one, and to ask them all.
    keepers: Mutex<Vec<Weak<dyn Relieve>>>,
    /// Sessions have been asked to close, and somebody waits for what comes of it.
    asked: AtomicBool,
}

/// Somebody waits for what comes of asking; nobody else need ask meanwhile.
#[derive(Debug)]
pub struct Asked<'a>(&'a AtomicBool);

/// One connection's place, given back when dropped.
#[derive(Debug, Default)]
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    is_spare: bool,
}

/// Somebody who keeps connections that nobody uses.
pub trait Relieve: Send + Sync {
    /// Closes connections that wait for their next request; says whether there were any.
    fn close_idle(&self) -> bool;

    /// Closes what waits to hear from a server although nobody listens: the streams of idle sessions.
    fn close_sessions(&self);
}

/// Places for what is said in passing. They come out of the reserve of
/// [`Descriptors`](super::Descriptors).
const SPARE: usize = 16;

/// How long to wait until those who keep connections are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

// === impl Room ===

impl Room {
    /// For so many connections, at least one.
    pub fn of(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit: AtomicUsize::new(limit),
            places: Arc::new(Semaphore::new(at_least_one(limit))),
            spare: Arc::new(Semaphore::new(SPARE)),
            keepers: Mutex::default(),
            asked: AtomicBool::new(false),
        }))
    }

    /// How many connections there may be.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// From now on there may be so many; where there are more, those that end make room for nobody.
    pub fn bound_by(&self, limit: usize) {
        let before = self.0.limit.swap(limit, Ordering::Relaxed);
        resize(&self.0.places, at_least_one(before), at_least_one(limit));
    }

    /// `keeper` is asked where there is no room.
    pub fn ask(&self, keeper: Weak<dyn Relieve>) {
        let mut keepers = self.0.keepers.lock();
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(keeper);
    }

    /// A place for one connection; waits until there is one.
    pub async fn place(&self, in_passing: bool) -> Place {
        let Inner { places, spare, .. } = &*self.0;
        if let Ok(permit) = Arc::clone(places).try_acquire_owned() {
            return Place { _permit: Some(permit), is_spare: false };
        }
        if in_passing && let Ok(permit) = Arc::clone(spare).try_acquire_owned() {
            return Place { _permit: Some(permit), is_spare: true };
        }
        let waiting = Arc::clone(places).acquire_owned();
        tokio::pin!(waiting);
        loop {
            let _asked = self.relieve();
            tokio::select! {
                biased;
                permit = &mut waiting => {
                    let permit = permit.expect("the semaphore is never closed");
                    return Place { _permit: Some(permit), is_spare: false };
                }
                () = sleep(ASK_AGAIN) => {}
            }
        }
    }

    /// Has connections closed that nobody uses: first those that cost nothing to make again. Of those who
    /// ask at the same time one is heard, or nothing would be left that anybody could use again.
    pub fn relieve(&self) -> Option<Asked<'_>> {
        let keepers: Vec<_> = {
            let keepers = self.0.keepers.lock();
            keepers.iter().filter_map(Weak::upgrade).collect()
        };
        let idle = keepers.iter().filter(|keeper| keeper.close_idle()).count();
        let asked = (idle == 0 && !self.0.asked.swap(true, Ordering::AcqRel)).then(|| Asked(&self.0.asked));
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

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

// === impl Place ===

impl Place {
    /// Whether its connection must not be kept for another request.
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};

    /// Keeps a place until it is asked often enough.
    #[derive(Default)]
    struct Keeper {
        idle: Mutex<Option<Place>>,
        session: Mutex<Option<Place>>,
        asked: AtomicUsize,
    }

    impl Relieve for Keeper {
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
        let room = Room::of(2);
        let keeper = Arc::new(Keeper::default());
        let as_keeper: Arc<dyn Relieve> = keeper.clone();
        room.ask(Arc::downgrade(&as_keeper));
        *keeper.idle.lock() = Some(room.place(false).await);
        *keeper.session.lock() = Some(room.place(false).await);
        let first = room.place(false).await;
        assert!(keeper.session.lock().is_some(), "what is cheap goes first");
        let second = room.place(false).await;
        assert!(keeper.session.lock().is_none());
        let third = room.place(false);
        tokio::pin!(third);
        assert!(poll!(&mut third).is_pending());
        drop((first, second));
        assert!(!third.await.is_spare());
    }

    #[tokio::test(start_paused = true)]
    async fn there_may_be_more_of_them_and_fewer() {
        let room = Room::of(1);
        let first = room.place(false).await;
        let mut second = Box::pin(room.place(false));
        assert!(poll!(&mut second).is_pending());
        room.bound_by(2);
        let second = second.await;
        room.bound_by(0);
        drop(first);
        tokio::task::yield_now().await;
        let mut third = Box::pin(room.place(false));
        assert!(poll!(&mut third).is_pending(), "there is one, as many as there may be at least");
        drop(second);
        third.await;
        assert_eq!(room.limit(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_in_passing_does_not_wait_for_calls() {
        let room = Room::of(1);
        let call = room.place(false).await;
        let answer = room.place(true).now_or_never().expect("at once");
        assert!(answer.is_spare());
        let rest: Vec<_> = (1..SPARE).map(|_| room.place(true).now_or_never().expect("at once")).collect();
        assert!(room.place(true).now_or_never().is_none(), "there are only so many");
        drop((call, rest));
    }
}
