//! Order of a legacy client's GET stream and its calls.
//!
//! Without a proxy, a client that opens its GET stream and then calls a tool has an open stream when the
//! server sends a request, because the two requests arrive in order. Through the proxy they use separate
//! connections, and the second may be faster; many servers drop a request without a stream, so that the call
//! hangs. A call therefore waits briefly for a GET stream requested before it, and a call right after the
//! handshake for the GET stream about to be requested.

use dashmap::{DashMap, Entry};
use futures_util::future::BoxFuture;
use http::HeaderValue;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Sessions of legacy clients whose GET stream is about to be opened, by session id.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamOrder {
    sessions: Arc<DashMap<HeaderValue, AwaitedStream>>,
}

/// A GET stream that is not open yet.
#[derive(Clone, Debug, Default)]
struct AwaitedStream {
    /// Cancelled once the stream is open, or will not be opened.
    settled: CancellationToken,
    /// Whether the stream has been requested.
    is_requested: bool,
}

/// Guard of a GET stream that is being opened; dropped when the stream is open or has failed.
pub(super) struct OpeningStream {
    sessions: Arc<DashMap<HeaderValue, AwaitedStream>>,
    session: HeaderValue,
    settled: CancellationToken,
}

/// Time for which a call waits for a stream requested before the call: a server may hold back the response
/// head of the stream until the first event.
const OPENING_WAIT: Duration = Duration::from_millis(100);
/// Time after the handshake for which a call waits for the client to request its stream.
const REQUEST_WAIT: Duration = Duration::from_millis(25);

// === impl StreamOrder ===

impl StreamOrder {
    /// Registers the end of a handshake: calls wait for the stream that the client may request next. `spawn`
    /// runs a future that ends the wait for a client that requests no stream.
    pub(super) fn handshake_completed<F>(&self, session: &HeaderValue, spawn: F)
    where
        F: FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
    {
        let Entry::Vacant(vacant) = self.sessions.entry(session.clone()) else { return };
        vacant.insert(AwaitedStream::default());
        let (sessions, session) = (self.sessions.clone(), session.clone());
        spawn(Box::pin(async move {
            sleep(REQUEST_WAIT).await;
            if let Some((_, awaited)) = sessions.remove_if(&session, |_, awaited| !awaited.is_requested) {
                awaited.settled.cancel();
            }
        }));
    }

    /// Registers a stream that the client has requested, until the returned guard is dropped.
    pub(super) fn begin_opening(&self, session: &HeaderValue) -> OpeningStream {
        let mut awaited = self.sessions.entry(session.clone()).or_default();
        awaited.is_requested = true;
        let settled = awaited.settled.clone();
        drop(awaited);
        OpeningStream { sessions: self.sessions.clone(), session: session.clone(), settled }
    }

    /// Waits for the stream that precedes a call of this session, if there is one.
    pub(super) async fn wait_for_stream(&self, session: &HeaderValue) {
        if let Some(awaited) = self.stream_wait(session) {
            awaited.await;
        }
    }

    /// Returns the wait for the stream that precedes a call; `None` if there is no such stream. The future
    /// may outlive the call's client.
    pub(super) fn stream_wait(&self, session: &HeaderValue) -> Option<BoxFuture<'static, ()>> {
        let settled = self.sessions.get(session)?.settled.clone();
        let (sessions, session) = (self.sessions.clone(), session.clone());
        Some(Box::pin(async move {
            if timeout(OPENING_WAIT, settled.cancelled()).await.is_err() {
                // The stream has not been opened in time: end the wait of the session's other calls as well.
                settle(&sessions, &session, &settled);
            }
        }))
    }
}

/// Ends the wait of all calls for this stream.
fn settle(
    sessions: &DashMap<HeaderValue, AwaitedStream>,
    session: &HeaderValue,
    settled: &CancellationToken,
) {
    settled.cancel();
    // Another stream may have been requested since.
    sessions.remove_if(session, |_, awaited| awaited.settled.is_cancelled());
}

// === impl OpeningStream ===

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
    async fn a_call_waits_for_the_stream_requested_before_it() {
        let order = StreamOrder::default();
        assert!(order.wait_for_stream(&SESSION).now_or_never().is_some(), "there is none");
        let opening = order.begin_opening(&SESSION);
        assert!(
            order.wait_for_stream(&HeaderValue::from_static("t")).now_or_never().is_some(),
            "it is another's"
        );
        let mut wait = Box::pin(order.wait_for_stream(&SESSION));
        assert!(wait.as_mut().now_or_never().is_none());
        drop(opening);
        assert!(wait.now_or_never().is_some());
        assert!(order.sessions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_does_not_wait_for_ever() {
        let order = StreamOrder::default();
        let _opening = order.begin_opening(&SESSION);
        order.wait_for_stream(&SESSION).await;
        assert!(order.wait_for_stream(&SESSION).now_or_never().is_some(), "the next does not wait at all");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_right_after_the_handshake_waits_for_a_client_that_opens_its_stream() {
        let order = begun();
        let mut wait = Box::pin(order.wait_for_stream(&SESSION));
        assert!(wait.as_mut().now_or_never().is_none());
        let opening = order.begin_opening(&SESSION);
        sleep(REQUEST_WAIT * 2).await;
        assert!(wait.as_mut().now_or_never().is_none(), "it has been asked for");
        drop(opening);
        wait.await;
        assert!(order.sessions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_opens_no_stream_is_waited_for_briefly() {
        let order = begun();
        timeout(REQUEST_WAIT * 2, order.wait_for_stream(&SESSION)).await.expect("a moment");
        assert!(order.sessions.is_empty());
        assert!(order.wait_for_stream(&SESSION).now_or_never().is_some());
    }
}
