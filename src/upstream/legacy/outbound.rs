//! Messages to a server outside calls: responses to its requests, and cancellations.
//!
//! They are idempotent by the ids they name, so a message lost with its connection is sent again, a few
//! times. If a response cannot be delivered, the server would wait for it without end, so its call fails with
//! an error that says so.
//!
//! A server that sends requests without end must not use up the proxy's connections: the messages in flight
//! to one server are bounded ([`UpstreamLimits::messages`](crate::upstream::UpstreamLimits::messages)), and
//! so are those that wait.
//!
//! The messages of one session are sent in order ([`OutboundQueue`]), and its end after them: a cancellation
//! that arrives after the DELETE names an unknown session, and the call would continue.

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

/// A message to a server, by its purpose.
pub(super) enum OutboundMessage {
    /// Response to a request of the server in this call.
    Response { call: u64, id: RequestId },
    /// Message that may be dropped: the response to a ping or to a request that the proxy rejects itself, or
    /// a request of the proxy whose response is ignored.
    BestEffort { _counted: OwnedSemaphorePermit },
    /// Cancellation of a call.
    Cancel,
}

/// Limits of the messages outside calls to one server.
pub(super) struct OutboundLimiter {
    permits: Arc<Semaphore>,
    /// Half of the permits: cancellations and input responses do not wait behind a flood of pings.
    best_effort: Arc<Semaphore>,
    /// Best-effort messages that wait or are in flight.
    counted: Arc<Semaphore>,
    /// Whether messages were dropped since half of the permits were free: logged once.
    is_overfull: AtomicBool,
}

/// Messages of one session that wait or are being sent, in order.
#[derive(Debug, Default)]
pub(super) struct OutboundQueue {
    /// Locked for a few statements only.
    state: Mutex<QueueState>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Number of queued messages, including the one being sent.
    count: usize,
    /// Resolves once the last queued message has been sent or dropped.
    last: Option<oneshot::Receiver<()>>,
}

/// Queues of sessions that clients opened, by session id; present while messages are queued. Each call of
/// such a client has an [`UpstreamSession`](super::session::UpstreamSession) of its own.
#[derive(Debug, Default)]
pub(super) struct ClientQueues(DashMap<HeaderValue, Arc<OutboundQueue>>);

/// A place in an [`OutboundQueue`], kept while its message waits or is being sent; dropping it lets the next
/// message proceed.
pub(super) struct QueuedMessage {
    queue: Arc<OutboundQueue>,
    /// Map that holds the queue of a client's session.
    owner: Option<(Arc<ClientQueues>, HeaderValue)>,
    previous: Option<oneshot::Receiver<()>>,
    _sent: oneshot::Sender<()>,
}

/// Permits that a message holds while in flight.
type OutboundPermits<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

/// Limit of best-effort messages that wait for one server. Each costs its message and a small task of less
/// than a KiB. Further messages are dropped.
const MAX_BEST_EFFORT: usize = 1024;
/// Time limit of the wait for earlier messages in a queue, and of the wait for the whole queue before the
/// session is closed: a server that accepts no messages does not delay others.
pub(super) const QUEUE_WAIT: Duration = Duration::from_secs(1);
/// Pauses between the attempts to send a message, which is dropped after the last.
pub(super) const RETRY_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

// === impl OutboundLimiter ===

impl OutboundLimiter {
    /// Creates the limits; `messages` may be in flight at once.
    pub(super) fn new(messages: usize) -> Self {
        let (permits, best_effort) = permit_counts(messages);
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            best_effort: Arc::new(Semaphore::new(best_effort)),
            counted: Arc::new(Semaphore::new(MAX_BEST_EFFORT)),
            is_overfull: AtomicBool::new(false),
        }
    }

    /// Changes the limit from `before` to `messages`; messages in flight are not affected.
    pub(super) fn set_limit(&self, before: usize, messages: usize) {
        let (old, new) = (permit_counts(before), permit_counts(messages));
        resize_semaphore(&self.permits, old.0, new.0);
        resize_semaphore(&self.best_effort, old.1, new.1);
    }

    /// Reserves a best-effort message; `None` if too many are waiting.
    pub(super) fn reserve_best_effort(&self) -> Option<OutboundMessage> {
        if self.counted.available_permits() > MAX_BEST_EFFORT / 2 {
            self.is_overfull.store(false, Ordering::Relaxed);
        }
        if let Ok(counted) = self.counted.clone().try_acquire_owned() {
            return Some(OutboundMessage::BestEffort { _counted: counted });
        }
        if !self.is_overfull.swap(true, Ordering::Relaxed) {
            ResponsesDropped { waiting: MAX_BEST_EFFORT }.emit();
        }
        None
    }

    /// Waits until the message may be sent, and returns the permits to hold while it is in flight.
    pub(super) async fn acquire(&self, message: &OutboundMessage) -> OutboundPermits<'_> {
        let best_effort = match message {
            OutboundMessage::BestEffort { .. } => Some(acquire_permit(&self.best_effort).await),
            OutboundMessage::Response { .. } | OutboundMessage::Cancel => None,
        };
        (best_effort.flatten(), self.acquire_one().await)
    }

    /// Waits until one more message, or the close request of a session, may be sent.
    pub(super) async fn acquire_one(&self) -> Option<SemaphorePermit<'_>> {
        acquire_permit(&self.permits).await
    }
}

/// Permits for all messages, and for best-effort ones.
fn permit_counts(messages: usize) -> (usize, usize) {
    let permits = messages.clamp(1, Semaphore::MAX_PERMITS);
    (permits, (permits / 2).max(1))
}

/// Acquires a permit; the semaphore is never closed. A wait counts the limit as reached.
async fn acquire_permit(permits: &Semaphore) -> Option<SemaphorePermit<'_>> {
    if permits.available_permits() == 0 {
        Limit::Messages.record_hit();
    }
    permits.acquire().await.ok()
}

// === impl OutboundQueue ===

impl OutboundQueue {
    /// Adds a message to the end of the queue.
    pub(super) fn enqueue(self: &Arc<Self>) -> QueuedMessage {
        let (sent, last) = oneshot::channel();
        let previous = {
            let mut state = self.state.lock();
            state.count += 1;
            state.last.replace(last)
        };
        QueuedMessage { queue: Arc::clone(self), owner: None, previous, _sent: sent }
    }

    /// Waits until all queued messages have been sent or dropped, at most for [`QUEUE_WAIT`].
    pub(super) async fn flush(&self) {
        let queue_emptied = async {
            loop {
                // Before the count is read: a later removal notifies.
                let emptied = self.emptied.notified();
                if self.is_empty() {
                    return;
                }
                emptied.await;
            }
        };
        let _ = timeout(QUEUE_WAIT, queue_emptied).await;
    }

    fn is_empty(&self) -> bool {
        self.state.lock().count == 0
    }
}

// === impl ClientQueues ===

impl ClientQueues {
    /// Adds a message to the queue of the session with this id, and creates the queue if needed.
    pub(super) fn enqueue(self: &Arc<Self>, session: &HeaderValue) -> QueuedMessage {
        // Under the lock of the shard, like the removal: a message is never added to a removed queue.
        let mut message = self.0.entry(session.clone()).or_default().enqueue();
        message.owner = Some((Arc::clone(self), session.clone()));
        message
    }

    /// Queue of the session with this id, if messages are queued.
    pub(super) fn get(&self, session: &HeaderValue) -> Option<Arc<OutboundQueue>> {
        self.0.get(session).map(|queue| Arc::clone(&queue))
    }
}

// === impl QueuedMessage ===

impl QueuedMessage {
    /// Waits until earlier messages of the queue have been sent or dropped, at most for [`QUEUE_WAIT`].
    pub(super) async fn wait_turn(&mut self) {
        if let Some(previous) = self.previous.take() {
            let _ = timeout(QUEUE_WAIT, previous).await;
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

// === impl OutboundMessage ===

impl OutboundMessage {
    /// Description for log messages.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Response { .. } => "the response to an input request",
            Self::BestEffort { .. } => "the response to a request",
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
        assert_eq!(clock.now() - before, QUEUE_WAIT);
        drop(second);
        queue.flush().await;
        assert_eq!(clock.now() - before, QUEUE_WAIT, "at once");
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
    async fn the_limit_of_messages_in_flight_can_be_changed() {
        let errands = OutboundLimiter::new(2);
        let best_effort = errands.reserve_best_effort().expect("there is room");
        let first = errands.acquire(&best_effort).await;
        {
            let mut second = Box::pin(errands.acquire(&best_effort));
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
