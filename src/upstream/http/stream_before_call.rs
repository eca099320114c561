//! Keeps the order in which a legacy client listens and calls.
//!
//! A client that opens its session's GET stream and then calls a tool finds the stream open when the
//! server asks something: on the direct way the two requests arrive as they were sent. Here they
//! come by two connections, go by two more, and the second may be the faster one; and many servers
//! drop a question that finds no stream, so that the call hangs for ever. So a call waits, for a
//! moment, for the stream that was asked for before it, and one right behind the handshake for the
//! stream that is about to be asked for.

use dashmap::{DashMap, Entry};
use futures_util::future::BoxFuture;
use http::HeaderValue;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The sessions whose stream is about to be opened, by their ids.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamOrder {
    sessions: Arc<DashMap<HeaderValue, AwaitedStream>>,
}

/// A stream that is not open yet.
#[derive(Clone, Debug, Default)]
struct AwaitedStream {
    /// Cancelled once it is open, or will not be.
    settled: CancellationToken,
    /// It has been asked for.
    asked: bool,
}

/// A stream that is being opened; dropped when it is, or when that failed.
pub(super) struct OpeningStream {
    sessions: Arc<DashMap<HeaderValue, AwaitedStream>>,
    session: HeaderValue,
    settled: CancellationToken,
}

/// How long a call waits for a stream that was asked for before it: a server may begin its answer
/// with the first event.
const OPENS: Duration = Duration::from_millis(100);
/// How long after the handshake a client may begin to listen and be waited for.
const BEGINS: Duration = Duration::from_millis(25);

// === impl InOrder ===

impl StreamOrder {
    /// The handshake is over. `spawn` runs what ends the wait for a client that does not listen.
    pub(super) fn handshake_completed<F>(&self, session: &HeaderValue, spawn: F)
    where
        F: FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
    {
        let Entry::Vacant(vacant) = self.sessions.entry(session.clone()) else { return };
        vacant.insert(AwaitedStream::default());
        let (sessions, session) = (self.sessions.clone(), session.clone());
        spawn(Box::pin(async move {
            sleep(BEGINS).await;
            if let Some((_, awaited)) = sessions.remove_if(&session, |_, awaited| !awaited.asked) {
                awaited.settled.cancel();
            }
        }));
    }

    /// A stream is asked for.
    pub(super) fn begin_opening(&self, session: &HeaderValue) -> OpeningStream {
        let mut awaited = self.sessions.entry(session.clone()).or_default();
        awaited.asked = true;
        let settled = awaited.settled.clone();
        drop(awaited);
        OpeningStream { sessions: self.sessions.clone(), session: session.clone(), settled }
    }

    /// Waits for the stream that comes before a call.
    pub(super) async fn wait(&self, session: &HeaderValue) {
        if let Some(awaited) = self.stream_wait(session) {
            awaited.await;
        }
    }

    /// The wait for the stream that comes before a call, where there is one. It may outlast the call's client.
    pub(super) fn stream_wait(&self, session: &HeaderValue) -> Option<BoxFuture<'static, ()>> {
        let settled = self.sessions.get(session)?.settled.clone();
        let (sessions, session) = (self.sessions.clone(), session.clone());
        Some(Box::pin(async move {
            if timeout(OPENS, settled.cancelled()).await.is_err() {
                // Nobody else need wait for it.
                settle(&sessions, &session, &settled);
            }
        }))
    }
}

fn settle(
    sessions: &DashMap<HeaderValue, AwaitedStream>,
    session: &HeaderValue,
    settled: &CancellationToken,
) {
    settled.cancel();
    // Another stream may have been asked for since.
    sessions.remove_if(session, |_, awaited| awaited.settled.is_cancelled());
}

// === impl Opening ===

impl Drop for OpeningStream {
    fn drop(&mut self) {
        settle(&self.sessions, &self.session, &self.settled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    static SESSION: HeaderValue = HeaderValue::from_static("s");

    fn begun() -> StreamOrder {
        let order = StreamOrder::default();
        order.handshake_completed(&SESSION, |expiry| drop(tokio::spawn(expiry)));
        order
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_stream_that_was_asked_for_before_it() {
        let order = StreamOrder::default();
        assert!(order.wait(&SESSION).now_or_never().is_some(), "there is none");
        let opening = order.begin_opening(&SESSION);
        assert!(order.wait(&HeaderValue::from_static("t")).now_or_never().is_some(), "it is another's");
        let mut wait = Box::pin(order.wait(&SESSION));
        assert!(wait.as_mut().now_or_never().is_none());
        drop(opening);
        assert!(wait.now_or_never().is_some());
        assert!(order.sessions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_does_not_wait_for_ever() {
        let order = StreamOrder::default();
        let _opening = order.begin_opening(&SESSION);
        order.wait(&SESSION).await;
        assert!(order.wait(&SESSION).now_or_never().is_some(), "the next does not wait at all");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_right_behind_the_handshake_waits_for_a_client_that_will_listen() {
        let order = begun();
        let mut wait = Box::pin(order.wait(&SESSION));
        assert!(wait.as_mut().now_or_never().is_none());
        let opening = order.begin_opening(&SESSION);
        sleep(BEGINS * 2).await;
        assert!(wait.as_mut().now_or_never().is_none(), "it has been asked for");
        drop(opening);
        wait.await;
        assert!(order.sessions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_listen_is_waited_for_a_moment_only() {
        let order = begun();
        timeout(BEGINS * 2, order.wait(&SESSION)).await.expect("a moment");
        assert!(order.sessions.is_empty());
        assert!(order.wait(&SESSION).now_or_never().is_some());
    }
}
