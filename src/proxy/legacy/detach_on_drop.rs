//! Completes the dispatch of a call whose client disconnects before the call is sent.
//!
//! A disconnect is not a cancellation (2025-11-25, *Sending Messages to the Server*): a call that the server
//! would have received over a direct connection is sent here, too. The checks before the call is sent
//! (whether its session exists, whether its server has tasks of its own) then continue in a background task.
//! Once dispatched, the call handles a disconnect itself.

use crate::{proxy::LegacyResponse, runtime::DrainWatch, telemetry::Limit};
use futures_util::{FutureExt, future::BoxFuture};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

/// A flag that is set once the dispatch of a call is decided: directly before the first step of the dispatch,
/// without an await in between.
#[derive(Clone, Debug, Default)]
pub(super) struct DispatchFlag(Arc<AtomicBool>);

/// A call that is being dispatched: a future that continues in the background, until the decision, if it is
/// dropped before the decision.
pub(super) struct DetachOnDrop {
    call: Option<BoxFuture<'static, LegacyResponse>>,
    dispatch_flag: DispatchFlag,
    drain: DrainWatch,
}

/// A permit for a call that is dispatched after its client has disconnected; released on drop.
struct DetachedPermit;

/// The maximum number of calls that are dispatched at a time after their clients have disconnected; further
/// calls are dropped. Each call holds its message in memory.
const MAX_DETACHED: usize = 1000;

/// The number of `DetachedPermit`s in use.
static DETACHED: AtomicUsize = AtomicUsize::new(0);

// === impl DispatchFlag ===

impl DispatchFlag {
    /// Records that the dispatch is decided.
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

// === impl DetachOnDrop ===

impl DetachOnDrop {
    /// Wraps the future of a call. `drain` runs the future if it is dropped before `dispatch_flag` is set.
    pub(super) fn new(
        drain: DrainWatch,
        dispatch_flag: DispatchFlag,
        call: impl Future<Output = LegacyResponse> + Send + 'static,
    ) -> Self {
        Self { call: Some(call.boxed()), dispatch_flag, drain }
    }
}

impl Future for DetachOnDrop {
    type Output = LegacyResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LegacyResponse> {
        let call = self.call.as_mut().expect("it is not polled after its end");
        let response = call.poll_unpin(cx);
        if response.is_ready() {
            self.call = None;
        }
        response
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        let Some(mut call) = self.call.take().filter(|_| !self.dispatch_flag.is_set()) else { return };
        let Some(permit) = DetachedPermit::try_acquire() else {
            Limit::Departed.record_hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit = MAX_DETACHED);
            return;
        };
        let dispatch_flag = self.dispatch_flag.clone();
        self.drain.spawn(async move {
            let _permit = permit;
            // The response is dropped. Once the dispatch is decided, the future is dropped too, by which the
            // call learns that its client has disconnected.
            poll_fn(|cx| match call.poll_unpin(cx).is_ready() || dispatch_flag.is_set() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        });
    }
}

// === impl DetachedPermit ===

impl DetachedPermit {
    /// Returns `None` if `MAX_DETACHED` permits are in use.
    fn try_acquire() -> Option<Self> {
        DETACHED
            .fetch_update(Relaxed, Relaxed, |count| (count < MAX_DETACHED).then_some(count + 1))
            .ok()
            .map(|_| Self)
    }
}

impl Drop for DetachedPermit {
    fn drop(&mut self) {
        DETACHED.fetch_sub(1, Relaxed);
    }
}
