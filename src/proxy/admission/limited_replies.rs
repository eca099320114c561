//! The replies of a call with limits: the call waits for its permits before it is sent, ends at its timeout,
//! and holds the permits for as long as it is at the server.

use super::{AdmissionPermits, GatePath, PendingAdmission};
use crate::{
    runtime::{Clock, PooledTimer, TimerKind},
    upstream::{CallError, Deferral, UpstreamEvent, UpstreamEvents},
};
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::sync::oneshot;

/// The limits of a call that the proxy makes, as a task or as a call that may become one.
pub(in crate::proxy) struct LimitedCall {
    /// The gates that the call passes each time it is sent.
    pub(in crate::proxy) gate_path: Option<GatePath>,
    /// The timeout of the call at the server; `None` if the server's own timeout (`timeouts.call`) applies.
    pub(in crate::proxy) timeout: Option<Duration>,
    /// Tells whether the call has become a task, for which no queue timeout applies; `None` for a call that
    /// cannot become one.
    pub(in crate::proxy) deferral: Option<Deferral>,
}

/// Resolves when a queued call has left the queue or has ended.
pub(in crate::proxy) type DequeueSignal = oneshot::Receiver<()>;

/// The wait in the queue: resolves with the permits; the sender signals that the call has left the queue.
type QueueWait = (BoxFuture<'static, Result<AdmissionPermits, CallError>>, oneshot::Sender<()>);

/// The replies of a call with limits: waits for the permits, then relays the server's replies until the
/// timeout.
struct LimitedReplies {
    queue_wait: Option<QueueWait>,
    timeout: Option<Duration>,
    timeout_timer: Option<PooledTimer>,
    clock: Arc<dyn Clock>,
    /// The replies of the server; `None` after the end. Dropped before `permits`, so that this call is
    /// cancelled before the next queued call is sent.
    replies: Option<UpstreamEvents>,
    permits: Option<AdmissionPermits>,
}

// === impl LimitedCall ===

impl LimitedCall {
    /// Applies the limits to the replies of the call. `admission` is `None` if the call needs no permits. The
    /// returned signal resolves when the call leaves the queue; `None` if the call is not queued.
    pub(in crate::proxy) fn limit_replies(
        &self,
        admission: Option<PendingAdmission>,
        replies: UpstreamEvents,
        clock: &Arc<dyn Clock>,
    ) -> (UpstreamEvents, Option<DequeueSignal>) {
        let (pending, permits) = match admission.map(PendingAdmission::try_permits) {
            None => (None, None),
            Some(Ok(permits)) => (None, Some(permits)),
            Some(Err(pending_admission)) => (Some(pending_admission), None),
        };
        if pending.is_none() && permits.is_none() && self.timeout.is_none() {
            return (replies, None);
        }
        let deferral = self.deferral.clone();
        let is_task = move || deferral.as_ref().is_some_and(Deferral::is_deferred);
        let (queue_wait, dequeued) = match pending {
            None => (None, None),
            Some(admission) => {
                let (sender, dequeued) = oneshot::channel();
                (Some((async move { admission.wait(is_task).await }.boxed(), sender)), Some(dequeued))
            }
        };
        let limited = LimitedReplies {
            queue_wait,
            timeout: self.timeout,
            timeout_timer: None,
            clock: Arc::clone(clock),
            replies: Some(replies),
            permits,
        };
        (limited.boxed(), dequeued)
    }

    /// Applies the limits to a call that is sent again, and readmits the call at its gates.
    pub(in crate::proxy) fn limit_resent_replies(
        &self,
        replies: UpstreamEvents,
        clock: &Arc<dyn Clock>,
    ) -> (UpstreamEvents, Option<DequeueSignal>) {
        self.limit_replies(self.gate_path.as_ref().map(GatePath::readmit), replies, clock)
    }
}

// === impl LimitedReplies ===

impl LimitedReplies {
    fn fail(&mut self, error: CallError) -> Poll<Option<UpstreamEvent>> {
        self.replies = None;
        self.permits = None;
        Poll::Ready(Some(UpstreamEvent::Lost(error)))
    }
}

impl Stream for LimitedReplies {
    type Item = UpstreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        let this = &mut *self;
        if let Some((queue_wait, _)) = &mut this.queue_wait {
            let outcome = ready!(queue_wait.poll_unpin(cx));
            if let Some((_, dequeued)) = this.queue_wait.take() {
                // The send fails if the receiver has been dropped, which is not an error.
                let _ = dequeued.send(());
            }
            match outcome {
                Ok(permits) => this.permits = Some(permits),
                Err(error) => return this.fail(error),
            }
        }
        let Some(replies) = &mut this.replies else { return Poll::Ready(None) };
        if let Poll::Ready(event) = replies.poll_next_unpin(cx) {
            return Poll::Ready(event);
        }
        let Some(timeout) = this.timeout else { return Poll::Pending };
        let timer = this
            .timeout_timer
            .get_or_insert_with(|| PooledTimer::at(this.clock.now() + timeout, TimerKind::Response));
        ready!(timer.poll(cx));
        this.fail(CallError::CallTimeout(timeout))
    }
}
