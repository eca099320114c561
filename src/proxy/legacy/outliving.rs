//! A call that is made although its client leaves before it is sent.
//!
//! A departure is no cancel (2025-11-25, *Sending Messages to the Server*): the call that a server would have read on
//! the direct way is made here, too. What may have to be found out before it is sent (whether its session is there,
//! whether its server has tasks of its own) is found out by work that outlives the client. From then on whatever sends
//! it knows what a departure means.

use crate::{proxy::Passed, runtime::Stopping, telemetry::Limit};
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
pub(super) struct Decided(Arc<AtomicBool>);

/// A call that is being decided and made. Dropped before it is decided, it goes on by itself until it is.
pub(super) struct Outliving {
    call: Option<BoxFuture<'static, Passed>>,
    decided: Decided,
    work: Stopping,
}

/// One of those whose client has left.
struct Departed;

/// Calls that are decided at a time without their clients; further ones are given up. Each holds its message.
const MOST: usize = 1000;

static DEPARTED: AtomicUsize = AtomicUsize::new(0);

// === impl Decided ===

impl Decided {
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

// === impl Outliving ===

impl Outliving {
    pub(super) fn new(
        work: Stopping,
        decided: Decided,
        call: impl Future<Output = Passed> + Send + 'static,
    ) -> Self {
        Self { call: Some(call.boxed()), decided, work }
    }
}

impl Future for Outliving {
    type Output = Passed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Passed> {
        let call = self.call.as_mut().expect("it is not polled behind its end");
        let passed = call.poll_unpin(cx);
        if passed.is_ready() {
            self.call = None;
        }
        passed
    }
}

impl Drop for Outliving {
    fn drop(&mut self) {
        let Some(mut call) = self.call.take().filter(|_| !self.decided.is_set()) else { return };
        let Some(departed) = Departed::new() else {
            Limit::Departed.hit();
            tracing::warn!(target: "deferral::upstream", event = "departed_full", limit = MOST);
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

impl Departed {
    fn new() -> Option<Self> {
        DEPARTED
            .fetch_update(Relaxed, Relaxed, |count| (count < MOST).then_some(count + 1))
            .ok()
            .map(|_| Self)
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        DEPARTED.fetch_sub(1, Relaxed);
    }
}
