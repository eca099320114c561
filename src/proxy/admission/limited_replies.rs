//! The replies to a call that has limits: it waits its turn before it is made, is ended when its time is over, and
//! holds its permits for as long as it is at the server.

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

/// What limits a call that is driven.
pub(in crate::proxy) struct LimitedCall {
    /// The gates that it passes each time it is made.
    pub(in crate::proxy) path: Option<GatePath>,
    /// The time of the call at the server, where it is not the server's own (`timeouts.call`).
    pub(in crate::proxy) timeout: Option<Duration>,
    pub(in crate::proxy) deferral: Option<Deferral>,
}

/// Resolves once a call has left the queue, or is no more.
pub(in crate::proxy) type DequeueSignal = oneshot::Receiver<()>;

/// A place in the queue: what resolves with the permits, and what says that the call has left it.
type QueueWait = (BoxFuture<'static, Result<AdmissionPermits, CallError>>, oneshot::Sender<()>);

/// Its replies.
struct LimitedReplies {
    turn: Option<QueueWait>,
    timeout: Option<Duration>,
    alarm: Option<PooledTimer>,
    clock: Arc<dyn Clock>,
    /// None once it is over. Dropped before the permits: the call is cancelled before another is made.
    replies: Option<UpstreamEvents>,
    permits: Option<AdmissionPermits>,
}

// === impl LimitedCall ===

impl LimitedCall {
    /// The replies within these limits, and when the call leaves the queue, where it waits.
    pub(in crate::proxy) fn limit(
        &self,
        turn: Option<PendingAdmission>,
        replies: UpstreamEvents,
        clock: &Arc<dyn Clock>,
    ) -> (UpstreamEvents, Option<DequeueSignal>) {
        let (turn, permits) = match turn.map(PendingAdmission::try_permits) {
            None => (None, None),
            Some(Ok(permits)) => (None, Some(permits)),
            Some(Err(turn)) => (Some(turn), None),
        };
        if turn.is_none() && permits.is_none() && self.timeout.is_none() {
            return (replies, None);
        }
        let deferral = self.deferral.clone();
        let is_task = move || deferral.as_ref().is_some_and(Deferral::is_deferred);
        let (turn, dequeued) = match turn {
            None => (None, None),
            Some(turn) => {
                let (sender, dequeued) = oneshot::channel();
                (Some((async move { turn.wait(is_task).await }.boxed(), sender)), Some(dequeued))
            }
        };
        let limited = LimitedReplies {
            turn,
            timeout: self.timeout,
            alarm: None,
            clock: Arc::clone(clock),
            replies: Some(replies),
            permits,
        };
        (limited.boxed(), dequeued)
    }

    /// The replies of a call that is made once more.
    pub(in crate::proxy) fn limit_again(
        &self,
        replies: UpstreamEvents,
        clock: &Arc<dyn Clock>,
    ) -> (UpstreamEvents, Option<DequeueSignal>) {
        self.limit(self.path.as_ref().map(GatePath::readmit), replies, clock)
    }
}

// === impl Limited ===

impl LimitedReplies {
    fn fail(&mut self, lost: CallError) -> Poll<Option<UpstreamEvent>> {
        self.replies = None;
        self.permits = None;
        Poll::Ready(Some(UpstreamEvent::Lost(lost)))
    }
}

impl Stream for LimitedReplies {
    type Item = UpstreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<UpstreamEvent>> {
        let this = &mut *self;
        if let Some((turn, _)) = &mut this.turn {
            let outcome = ready!(turn.poll_unpin(cx));
            if let Some((_, dequeued)) = this.turn.take() {
                // Nobody need listen.
                let _ = dequeued.send(());
            }
            match outcome {
                Ok(permits) => this.permits = Some(permits),
                Err(lost) => return this.fail(lost),
            }
        }
        let Some(replies) = &mut this.replies else { return Poll::Ready(None) };
        if let Poll::Ready(event) = replies.poll_next_unpin(cx) {
            return Poll::Ready(event);
        }
        let Some(timeout) = this.timeout else { return Poll::Pending };
        let alarm = this
            .alarm
            .get_or_insert_with(|| PooledTimer::at(this.clock.now() + timeout, TimerKind::Response));
        ready!(alarm.poll(cx));
        this.fail(CallError::CallTimeout(timeout))
    }
}
