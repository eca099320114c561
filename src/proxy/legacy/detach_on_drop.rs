//! A call that is made although its client leaves before it is sent.
//!
//! A departure is no cancel (2025-11-25, *Sending Messages to the Server*): the call that a server would have read on
//! the direct way is made here, too. What may have to be found out before it is sent (whether its session is there,
//! whether its server has tasks of its own) is found out by work that outlives the client. From then on whatever sends
//! it knows what a departure means.

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

/// Whether it has been decided how a call is made. Set right before the first step of that, without waiting between.
#[derive(Clone, Debug, Default)]
pub(super) struct DispatchFlag(Arc<AtomicBool>);

/// A call that is being decided and made. Dropped before it is decided, it goes on by itself until it is.
pub(super) struct DetachOnDrop {
    call: Option<BoxFuture<'static, LegacyResponse>>,
    decided: DispatchFlag,
    work: DrainWatch,
}

/// One of those whose client has left.
struct DetachedPermit;

/// Calls that are decided at a time without their clients; further ones are given up. Each holds its message.
const MAX_DETACHED: usize = 1000;

static DETACHED: AtomicUsize = AtomicUsize::new(0);

// === impl Decided ===

impl DispatchFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

// === impl Outliving ===

impl DetachOnDrop {
    pub(super) fn new(
        work: DrainWatch,
        decided: DispatchFlag,
        call: impl Future<Output = LegacyResponse> + Send + 'static,
    ) -> Self {
        Self { call: Some(call.boxed()), decided, work }
    }
}

impl Future for DetachOnDrop {
    type Output = LegacyResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LegacyResponse> {
        let call = self.call.as_mut().expect("it is not polled behind its end");
        let passed = call.poll_unpin(cx);
        if passed.is_ready() {
            self.call = None;
        }
        passed
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        let Some(mut call) = self.call.take().filter(|_| !self.decided.is_set()) else { return };
        let Some(departed) = DetachedPermit::new() else {
            Limit::Departed.record_hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit = MAX_DETACHED);
            return;
        };
        let decided = self.decided.clone();
        self.work.spawn(async move {
            let _departed = departed;
            // Nobody hears what it came to; dropped behind its decision, it is a call whose client has left.
            poll_fn(|cx| match call.poll_unpin(cx).is_ready() || decided.is_set() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        });
    }
}

// === impl Departed ===

impl DetachedPermit {
    fn new() -> Option<Self> {
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
