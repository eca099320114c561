//! What a server is told beside calls: answers to its requests, and that a call is cancelled.
//!
//! All of it is idempotent by the id it names, so what a broken connection may have swallowed is told
//! again, a few times. What cannot be told in the end has consequences: the server waits for an answer
//! that will not come, so the call it asked for ends with an error that says so.
//!
//! A server that asks without end must not take the proxy's connections: what is on its way to one server
//! at the same time is bounded ([`UpstreamLimits::messages`](crate::upstream::UpstreamLimits::messages)), and so is what waits.
//!
//! The messages of one session are sent in their order ([`OutboundQueue`]), and its end behind them: a cancellation that
//! a DELETE overtakes arrives in a session that the server no longer knows, and the call runs on.

use dashmap::DashMap;
use http::HeaderValue;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use crate::{
    protocol::RequestId,
    runtime::{Mutex, resize_semaphore},
    telemetry::{Limit, ResponsesDropped},
};

/// What a message to the server is for.
pub(super) enum OutboundMessage {
    /// It answers a question that the server asked in the course of this call.
    Response { call: u64, id: RequestId },
    /// It answers a request of the server that concerns no call of ours: a ping, or what is refused
    /// without asking anybody.
    BestEffort { _counted: OwnedSemaphorePermit },
    /// It says that nobody waits for a call any more.
    Cancel,
}

/// What is on its way to one server, and what waits for that.
pub(super) struct OutboundLimiter {
    permits: Arc<Semaphore>,
    /// Half of the places: cancellations and the answers of people wait behind no flood of pings.
    best_effort: Arc<Semaphore>,
    /// Of courtesies that wait or are on their way.
    counted: Arc<Semaphore>,
    /// Some have been dropped since half of them had been taken: said once in the log.
    is_overfull: AtomicBool,
}

/// The messages of one session that wait or are being sent, in their order.
#[derive(Debug, Default)]
pub(super) struct OutboundQueue {
    /// Held for a few lines each time.
    state: Mutex<QueueState>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    count: usize,
    /// Resolves when the last of them has been sent.
    last: Option<oneshot::Receiver<()>>,
}

/// The queues of sessions that clients have opened themselves, by the session's id: only of those in which something
/// is queued. Each call of such a client has a [`UpstreamSession`](super::session::UpstreamSession) of its own.
#[derive(Debug, Default)]
pub(super) struct ClientQueues(DashMap<HeaderValue, Arc<OutboundQueue>>);

/// A message that is queued, until this is dropped.
pub(super) struct QueuedMessage {
    queue: Arc<OutboundQueue>,
    /// Where the queue is kept, if it is a client's.
    owner: Option<(Arc<ClientQueues>, HeaderValue)>,
    before: Option<oneshot::Receiver<()>>,
    _sent: oneshot::Sender<()>,
}

/// The places that one message holds while it is on its way.
type OutboundPermits<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

/// Courtesies that wait for one server at most. Each costs its message and a small task, less than a
/// KiB. What the server asks beyond them is not answered.
const COURTESIES: usize = 1024;
/// How long a message waits for those before it, and the end of a session for all: a server that takes none holds up
/// none.
pub(super) const TURN: Duration = Duration::from_secs(1);
/// The pauses before a message that was not taken is told again. After the last it is given up.
pub(super) const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

// === impl Errands ===

impl OutboundLimiter {
    /// `messages` may be on their way at the same time.
    pub(super) fn new(messages: usize) -> Self {
        let (places, courtesies) = permit_counts(messages);
        Self {
            permits: Arc::new(Semaphore::new(places)),
            best_effort: Arc::new(Semaphore::new(courtesies)),
            counted: Arc::new(Semaphore::new(COURTESIES)),
            is_overfull: AtomicBool::new(false),
        }
    }

    /// From now on there may be so many, of which there might be `before`; those that are on their way stay.
    pub(super) fn set_limit(&self, before: usize, messages: usize) {
        let (before, now) = (permit_counts(before), permit_counts(messages));
        resize_semaphore(&self.permits, before.0, now.0);
        resize_semaphore(&self.best_effort, before.1, now.1);
    }

    /// A courtesy, unless too many wait already.
    pub(super) fn best_effort(&self) -> Option<OutboundMessage> {
        if self.counted.available_permits() > COURTESIES / 2 {
            self.is_overfull.store(false, Ordering::Relaxed);
        }
        if let Ok(counted) = self.counted.clone().try_acquire_owned() {
            return Some(OutboundMessage::BestEffort { _counted: counted });
        }
        if !self.is_overfull.swap(true, Ordering::Relaxed) {
            ResponsesDropped { waiting: COURTESIES }.emit();
        }
        None
    }

    /// Waits until one more message may be on its way.
    pub(super) async fn acquire(&self, errand: &OutboundMessage) -> OutboundPermits<'_> {
        let courtesy = match errand {
            OutboundMessage::BestEffort { .. } => Some(acquire_permit(&self.best_effort).await),
            OutboundMessage::Response { .. } | OutboundMessage::Cancel => None,
        };
        (courtesy.flatten(), self.acquire_one().await)
    }

    /// Waits until one more farewell may be on its way.
    pub(super) async fn acquire_one(&self) -> Option<SemaphorePermit<'_>> {
        acquire_permit(&self.permits).await
    }
}

/// The places of all messages, and those of them that courtesies may take.
fn permit_counts(messages: usize) -> (usize, usize) {
    let places = messages.clamp(1, Semaphore::MAX_PERMITS);
    (places, (places / 2).max(1))
}

/// One of these places, which are never closed. Whoever has to wait for it has met the limit.
async fn acquire_permit(places: &Semaphore) -> Option<SemaphorePermit<'_>> {
    if places.available_permits() == 0 {
        Limit::Messages.record_hit();
    }
    places.acquire().await.ok()
}

// === impl OutboundQueue ===

impl OutboundQueue {
    /// Queues one more message.
    pub(super) fn enqueue(self: &Arc<Self>) -> QueuedMessage {
        let (sent, last) = oneshot::channel();
        let before = {
            let mut state = self.state.lock();
            state.count += 1;
            state.last.replace(last)
        };
        QueuedMessage { queue: Arc::clone(self), owner: None, before, _sent: sent }
    }

    /// Waits until all that is queued has been sent or given up, at most for [`TURN`].
    pub(super) async fn flush(&self) {
        let emptied = async {
            loop {
                // Before the count is read: a message that leaves later notifies.
                let emptied = self.emptied.notified();
                if self.is_empty() {
                    return;
                }
                emptied.await;
            }
        };
        let _ = timeout(TURN, emptied).await;
    }

    fn is_empty(&self) -> bool {
        self.state.lock().count == 0
    }
}

// === impl ClientQueues ===

impl ClientQueues {
    /// Queues one more message in the session with this id.
    pub(super) fn enqueue(self: &Arc<Self>, session: &HeaderValue) -> QueuedMessage {
        // Under the lock of the shard, as the removal is: a message is never queued where nobody looks.
        let mut message = self.0.entry(session.clone()).or_default().enqueue();
        message.owner = Some((Arc::clone(self), session.clone()));
        message
    }

    /// The queue of the session with this id, where something is in it.
    pub(super) fn get(&self, session: &HeaderValue) -> Option<Arc<OutboundQueue>> {
        self.0.get(session).map(|queue| Arc::clone(&queue))
    }
}

// === impl QueuedMessage ===

impl QueuedMessage {
    /// Waits until the messages before it have been sent, at most for [`TURN`].
    pub(super) async fn wait_turn(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = timeout(TURN, before).await;
        }
    }
}

impl Drop for QueuedMessage {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state.lock();
            state.count -= 1;
            if state.count == 0 {
                state.last = None;
            }
        }
        if let Some((queues, session)) = &self.owner {
            queues.0.remove_if(session, |_, queue| queue.is_empty());
        }
        self.queue.emptied.notify_waiters();
    }
}

// === impl Errand ===

impl OutboundMessage {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Response { .. } => "the answer to a question",
            Self::BestEffort { .. } => "the answer to a request",
            Self::Cancel => "a cancellation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Clock, SystemClock};
    use futures_util::poll;

    #[tokio::test(start_paused = true)]
    async fn a_message_waits_for_the_one_before_it_and_the_end_of_the_session_for_all_but_not_for_ever() {
        let queue = Arc::<OutboundQueue>::default();
        queue.flush().await;
        let (mut first, mut second) = (queue.enqueue(), queue.enqueue());
        first.wait_turn().await;
        {
            let mut end = Box::pin(queue.flush());
            let mut turn = Box::pin(second.wait_turn());
            assert!(poll!(&mut end).is_pending() && poll!(&mut turn).is_pending());
            drop(first);
            turn.await;
            assert!(poll!(&mut end).is_pending(), "one is left");
        }
        let clock = SystemClock::new();
        let before = clock.now();
        queue.flush().await;
        assert_eq!(clock.now() - before, TURN);
        drop(second);
        queue.flush().await;
        assert_eq!(clock.now() - before, TURN, "at once");
    }

    #[test]
    fn the_calls_of_a_clients_session_share_its_queue_and_nothing_is_kept_of_one_that_is_empty() {
        let queues = Arc::<ClientQueues>::default();
        let [one, other] = ["one", "other"].map(HeaderValue::from_static);
        let messages = [queues.enqueue(&one), queues.enqueue(&one), queues.enqueue(&other)];
        assert!(Arc::ptr_eq(&messages[0].queue, &messages[1].queue));
        assert!(!Arc::ptr_eq(&messages[0].queue, &messages[2].queue));
        let [first, second, third] = messages;
        drop((first, third));
        assert!(queues.get(&one).is_some() && queues.get(&other).is_none());
        drop(second);
        assert!(queues.0.is_empty());
    }

    #[tokio::test]
    async fn more_may_be_on_their_way_and_fewer() {
        let errands = OutboundLimiter::new(2);
        let courtesy = errands.best_effort().expect("there is room");
        let first = errands.acquire(&courtesy).await;
        {
            let mut second = Box::pin(errands.acquire(&courtesy));
            assert!(poll!(&mut second).is_pending(), "half of them are for courtesies");
            errands.set_limit(2, 4);
            let second = second.await;
            errands.set_limit(4, 1);
            drop(second);
        }
        tokio::task::yield_now().await;
        let mut third = Box::pin(errands.acquire_one());
        assert!(poll!(&mut third).is_pending());
        drop(first);
        assert!(third.await.is_some());
    }
}
