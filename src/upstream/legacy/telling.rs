//! What a server is told beside calls: answers to its requests, and that a call is cancelled.
//!
//! All of it is idempotent by the id it names, so what a broken connection may have swallowed is told
//! again, a few times. What cannot be told in the end has consequences: the server waits for an answer
//! that will not come, so the call it asked for ends with an error that says so.
//!
//! A server that asks without end must not take the proxy's connections: what is on its way to one server
//! at the same time is bounded ([`Limits::messages`](crate::upstream::Limits::messages)), and so is what waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::{
    protocol::Id,
    runtime::resize,
    telemetry::{AnswersDropped, Limit},
};

/// What a message to the server is for.
pub(super) enum Errand {
    /// It answers a question that the server asked in the course of this call.
    Answer { call: u64, id: Id },
    /// It answers a request of the server that concerns no call of ours: a ping, or what is refused
    /// without asking anybody.
    Courtesy { _counted: OwnedSemaphorePermit },
    /// It says that nobody waits for a call any more.
    Cancel,
}

/// What is on its way to one server, and what waits for that.
pub(super) struct Errands {
    places: Arc<Semaphore>,
    /// Half of the places: cancellations and the answers of people wait behind no flood of pings.
    courtesies: Arc<Semaphore>,
    /// Of courtesies that wait or are on their way.
    counted: Arc<Semaphore>,
    /// Some have been dropped since half of them had been taken: said once in the log.
    overfull: AtomicBool,
}

/// The places that one message holds while it is on its way.
type Places<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

/// Courtesies that wait for one server at most. Each costs its message and a small task, less than a
/// KiB. What the server asks beyond them is not answered.
const COURTESIES: usize = 1024;
/// The pauses before a message that was not taken is told again. After the last it is given up.
pub(super) const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

// === impl Errands ===

impl Errands {
    /// `messages` may be on their way at the same time.
    pub(super) fn new(messages: usize) -> Self {
        let (places, courtesies) = shared_out(messages);
        Self {
            places: Arc::new(Semaphore::new(places)),
            courtesies: Arc::new(Semaphore::new(courtesies)),
            counted: Arc::new(Semaphore::new(COURTESIES)),
            overfull: AtomicBool::new(false),
        }
    }

    /// From now on there may be so many, of which there might be `before`; those that are on their way stay.
    pub(super) fn bound_by(&self, before: usize, messages: usize) {
        let (before, now) = (shared_out(before), shared_out(messages));
        resize(&self.places, before.0, now.0);
        resize(&self.courtesies, before.1, now.1);
    }

    /// A courtesy, unless too many wait already.
    pub(super) fn courtesy(&self) -> Option<Errand> {
        if self.counted.available_permits() > COURTESIES / 2 {
            self.overfull.store(false, Ordering::Relaxed);
        }
        if let Ok(counted) = self.counted.clone().try_acquire_owned() {
            return Some(Errand::Courtesy { _counted: counted });
        }
        if !self.overfull.swap(true, Ordering::Relaxed) {
            AnswersDropped { waiting: COURTESIES }.emit();
        }
        None
    }

    /// Waits until one more message may be on its way.
    pub(super) async fn places(&self, errand: &Errand) -> Places<'_> {
        let courtesy = match errand {
            Errand::Courtesy { .. } => Some(one_of(&self.courtesies).await),
            Errand::Answer { .. } | Errand::Cancel => None,
        };
        (courtesy.flatten(), self.place().await)
    }

    /// Waits until one more farewell may be on its way.
    pub(super) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        one_of(&self.places).await
    }
}

/// The places of all messages, and those of them that courtesies may take.
fn shared_out(messages: usize) -> (usize, usize) {
    let places = messages.clamp(1, Semaphore::MAX_PERMITS);
    (places, (places / 2).max(1))
}

/// One of these places, which are never closed. Whoever has to wait for it has met the limit.
async fn one_of(places: &Semaphore) -> Option<SemaphorePermit<'_>> {
    if places.available_permits() == 0 {
        Limit::Messages.hit();
    }
    places.acquire().await.ok()
}

// === impl Errand ===

impl Errand {
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Answer { .. } => "the answer to a question",
            Self::Courtesy { .. } => "the answer to a request",
            Self::Cancel => "a cancellation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;

    #[tokio::test]
    async fn more_may_be_on_their_way_and_fewer() {
        let errands = Errands::new(2);
        let courtesy = errands.courtesy().expect("there is room");
        let first = errands.places(&courtesy).await;
        {
            let mut second = Box::pin(errands.places(&courtesy));
            assert!(poll!(&mut second).is_pending(), "half of them are for courtesies");
            errands.bound_by(2, 4);
            let second = second.await;
            errands.bound_by(4, 1);
            drop(second);
        }
        tokio::task::yield_now().await;
        let mut third = Box::pin(errands.place());
        assert!(poll!(&mut third).is_pending());
        drop(first);
        assert!(third.await.is_some());
    }
}
